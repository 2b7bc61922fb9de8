//! The wires a device can be on, and what each of them cannot do.
//!
//! Read RFC 5040 §3 and RFC 7306 first for iWARP. Programs learn no wire's name: they look at [`DeviceAttr`], which is
//! filled from the tables here, and whatever a wire lacks is refused at the call with the reason that stands here.
//!
//! [`DeviceAttr`]: crate::DeviceAttr

use std::fmt;

use everywire_transport::ib::{PostError, QpType, SendOp, SendWr};
use everywire_transport::memory::Access;

use crate::config::DeviceConfig;
use crate::device::Device;
use crate::error::{ErrorKind, VerbsError};

/// What carries a device's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// BTH to ICRC in UDP datagrams (IBTA annex A17).
    #[default]
    RoceV2,
    /// GRH to ICRC in Ethernet frames (IBTA annex A16).
    RoceV1,
    /// MPA, DDP and RDMAP on TCP (RFC 5040, 5041, 5044, 6581).
    Iwarp,
    /// LRH to VCRC on an InfiniBand subnet.
    InfiniBand,
}

/// The kind of a device. The numbers are `ibv_node_type`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NodeType {
    /// A channel adapter: InfiniBand and RoCE.
    Ca = 1,
    /// An RDMA network interface controller: iWARP.
    Rnic = 4,
}

/// Something that not every wire has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireFeature {
    /// Unreliable connections.
    Uc,
    /// Datagrams, and the services that are found by them.
    Ud,
    /// Multicast groups.
    Multicast,
    /// Compare and swap, fetch and add.
    Atomics,
    /// Immediate data, with SEND and with WRITE.
    Immediate,
}

impl WireFeature {
    /// All of them.
    pub const ALL: [WireFeature; 5] = [
        WireFeature::Uc,
        WireFeature::Ud,
        WireFeature::Multicast,
        WireFeature::Atomics,
        WireFeature::Immediate,
    ];

    /// As a person calls it.
    pub fn name(self) -> &'static str {
        match self {
            WireFeature::Uc => "unreliable connections",
            WireFeature::Ud => "datagrams",
            WireFeature::Multicast => "multicast",
            WireFeature::Atomics => "atomics",
            WireFeature::Immediate => "immediate data",
        }
    }
}

/// A row of a wire's table: what it lacks, unless an option gives it, and why.
struct Lack {
    feature: WireFeature,
    /// Offered once the device is opened with RFC 7306.
    by_rfc7306: bool,
    why: &'static str,
}

const IWARP_LACKS: &[Lack] = &[
    Lack {
        feature: WireFeature::Uc,
        by_rfc7306: false,
        why: "every iWARP queue pair is one reliable TCP stream (RFC 5044 §3)",
    },
    Lack {
        feature: WireFeature::Ud,
        by_rfc7306: false,
        why: "iWARP runs on TCP streams and has no datagrams (RFC 5040 §1.1)",
    },
    Lack {
        feature: WireFeature::Multicast,
        by_rfc7306: false,
        why: "iWARP runs on TCP, which has exactly two ends (RFC 5040 §1.1)",
    },
    Lack {
        feature: WireFeature::Atomics,
        by_rfc7306: true,
        why: "iWARP has atomics only by RFC 7306, which this device is not opened with",
    },
    Lack {
        feature: WireFeature::Immediate,
        by_rfc7306: true,
        why: "iWARP has immediate data only by RFC 7306, which this device is not opened with",
    },
];

impl Wire {
    /// Its name, as device names begin.
    pub fn name(self) -> &'static str {
        match self {
            Wire::RoceV2 => "rocev2",
            Wire::RoceV1 => "rocev1",
            Wire::Iwarp => "iwarp",
            Wire::InfiniBand => "ib",
        }
    }

    /// What sort of device it makes.
    pub fn node_type(self) -> NodeType {
        match self {
            Wire::Iwarp => NodeType::Rnic,
            Wire::RoceV2 | Wire::RoceV1 | Wire::InfiniBand => NodeType::Ca,
        }
    }

    fn lacks(self) -> &'static [Lack] {
        match self {
            Wire::Iwarp => IWARP_LACKS,
            Wire::RoceV2 | Wire::RoceV1 | Wire::InfiniBand => &[],
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::RoceV2 => "RoCE v2",
            Wire::RoceV1 => "RoCE v1",
            Wire::Iwarp => "iWARP",
            Wire::InfiniBand => "InfiniBand",
        })
    }
}

/// What the wire asks of a work request's opcode.
#[inline]
fn feature_of(op: &SendOp) -> Option<WireFeature> {
    match op {
        SendOp::SendImm(_) | SendOp::WriteImm { .. } => Some(WireFeature::Immediate),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Some(WireFeature::Atomics),
        _ => None,
    }
}

impl DeviceConfig {
    /// Why this device cannot do it; `None` if it can.
    pub fn lacks(&self, feature: WireFeature) -> Option<&'static str> {
        let row = self.wire.lacks().iter().find(|row| row.feature == feature)?;
        (!(row.by_rfc7306 && self.iwarp.rfc7306)).then_some(row.why)
    }

    /// Refuses, with the reason, what the wire cannot do.
    pub(crate) fn needs(&self, feature: WireFeature) -> Result<(), VerbsError> {
        self.lacks(feature).map_or(Ok(()), |why| {
            let what = format!("no {} here: {why}", feature.name());
            Err(VerbsError::new(ErrorKind::NotSupported, &self.name, what))
        })
    }

    /// Refuses a transport service that the wire does not have.
    pub(crate) fn needs_service(&self, ty: QpType) -> Result<(), VerbsError> {
        match ty {
            QpType::Rc => Ok(()),
            QpType::Uc => self.needs(WireFeature::Uc),
            QpType::Ud => self.needs(WireFeature::Ud),
        }
    }

    /// Refuses a work request that the wire has no message for.
    #[inline]
    pub(crate) fn check_post(&self, wr: &SendWr) -> Result<(), PostError> {
        match feature_of(&wr.op).and_then(|feature| self.lacks(feature)) {
            Some(why) => Err(PostError::NotOnThisWire { op: wr.op.name(), why }),
            None => Ok(()),
        }
    }
}

impl Device {
    /// What a region must allow that is the sink of this device's READs: over iWARP a READ's response is a tagged message
    /// like a WRITE, and its sink must allow it (RFC 5040 §4.3), unless the device is opened lenient.
    pub fn read_sink_access(&self) -> Access {
        let tagged = self.wire() == Wire::Iwarp && self.config().iwarp.strict_read_sink;
        if tagged { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::IwarpOptions;

    #[test]
    fn what_a_wire_lacks_is_data_and_has_a_reason() {
        let iwarp = DeviceConfig { wire: Wire::Iwarp, ..DeviceConfig::default() };
        let rfc7306 = DeviceConfig {
            iwarp: IwarpOptions { rfc7306: true, ..IwarpOptions::default() },
            ..iwarp.clone()
        };
        for feature in WireFeature::ALL {
            assert!(iwarp.lacks(feature).is_some(), "{feature:?}");
            let optional = matches!(feature, WireFeature::Atomics | WireFeature::Immediate);
            assert_eq!(rfc7306.lacks(feature).is_none(), optional, "{feature:?}");
            for wire in [Wire::RoceV2, Wire::RoceV1, Wire::InfiniBand] {
                assert_eq!(DeviceConfig { wire, ..DeviceConfig::default() }.lacks(feature), None);
            }
        }
        let error = iwarp.needs(WireFeature::Multicast).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NotSupported, 95));
        assert!(error.to_string().contains("no multicast here: iWARP runs on TCP"), "{error}");
    }

    #[test]
    fn work_requests_are_refused_by_what_they_need() {
        let iwarp = DeviceConfig { wire: Wire::Iwarp, ..DeviceConfig::default() };
        let refused = iwarp.check_post(&SendWr::new(1, SendOp::SendImm(7))).unwrap_err();
        assert_eq!(refused.errno(), 95);
        assert!(refused.to_string().contains("SEND_WITH_IMM"), "{refused}");
        assert!(iwarp.check_post(&SendWr::new(1, SendOp::Send)).is_ok());
        assert!(DeviceConfig::default().check_post(&SendWr::new(1, SendOp::SendImm(7))).is_ok());
    }
}
