//! Address handles: where datagrams go.
//!
//! Read IBTA vol. 1 §11.2.2 first. Making one asks the driver for the route and fails if there is none, so that no
//! datagram ever leaves with half an address. A multicast group needs no route: it goes out from the device's address.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use everywire_transport::ib::path::source_port_for_flow_label;
use everywire_transport::ib::{Path, PathLink, UdDest};
use everywire_wire::{Mtu, QKey, Qpn};

use crate::config::{DeviceConfig, GidType, Wire};
use crate::device::Device;
use crate::error::{ErrorKind, VerbsError};
use crate::multicast::group_address;
use crate::pd::Pd;
use crate::route::{Route, RouteError, Way};
use crate::wire_kind::WireFeature;

/// Hop limit where none is asked for, as Linux has it.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Where an address handle leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhAttr {
    /// Destination address or multicast group.
    pub dst: IpAddr,
    /// Interface index of a link-local destination; 0 otherwise.
    pub scope_id: u32,
    /// Source address; one of the device's. `None`: the route's.
    pub src: Option<IpAddr>,
    /// Which of the source's entries in the GID table, where it has several; `None`: the first.
    pub gid_type: Option<GidType>,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 for the default of 64.
    pub hop_limit: u8,
    /// Flow label, 20 bits: equal labels take equal ways. 0: one that is made from the addresses.
    pub flow_label: u32,
    /// Low bits of our LID on InfiniBand, below 2^LMC: which of several paths (`src_path_bits` of ibverbs). `None`: the device's
    /// ([`DeviceConfig::path_bits`]).
    pub path_bits: Option<u8>,
}

impl AhAttr {
    /// A destination, with everything else at its default.
    pub fn new(dst: IpAddr) -> AhAttr {
        AhAttr {
            dst,
            scope_id: 0,
            src: None,
            gid_type: None,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            path_bits: None,
        }
    }
}

/// A resolved destination for datagrams. Cheap to clone.
#[derive(Clone)]
pub struct Ah(Arc<AhInner>);

struct AhInner {
    pd: Pd,
    path: Path,
    mtu: Mtu,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        self.pd.device().lock().ahs -= 1;
    }
}

impl Pd {
    /// Creates an address handle, once the driver has found the route. Dropped before it is ready, it leaves nothing
    /// behind.
    pub async fn create_ah(&self, attr: AhAttr) -> Result<Ah, VerbsError> {
        let device = self.device();
        device.config().needs(WireFeature::Ud)?;
        // A group of InfiniBand has to be joined to be sent to, which the administrator is asked for.
        let at_once = attr.dst.is_multicast() && device.wire() != Wire::InfiniBand;
        let way = match at_once {
            true => self.group_way(&attr),
            false => {
                let AhAttr { dst, scope_id, src, gid_type, path_bits, .. } = attr;
                device.resolve(dst, scope_id, src, gid_type, path_bits, None).await
            }
        };
        let way = way.map_err(|error| self.unreachable(attr.dst, error))?;
        self.ah_through(&attr, &way)
    }

    /// An address handle by a route that is known.
    pub(crate) fn ah_through(&self, attr: &AhAttr, way: &Way) -> Result<Ah, VerbsError> {
        let device = self.device();
        let flow_label = match attr.flow_label & 0x000f_ffff {
            0 => label_of_flow(way.src, way.dst),
            label => label,
        };
        let path = Path {
            link: way.link,
            src: way.src,
            dst: way.dst,
            scope_id: way.scope_id,
            src_port: device.source_port(flow_label),
            traffic_class: attr.traffic_class,
            hop_limit: if attr.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { attr.hop_limit },
            flow_label: if has_flow_label(way.link, way.dst) { flow_label } else { 0 },
        };
        let mut state = device.lock();
        let max = device.limits().max_ah;
        if state.ahs >= max {
            return Err(VerbsError::full(device.name(), "max_ah", max.into()));
        }
        state.ahs += 1;
        drop(state);
        Ok(Ah(Arc::new(AhInner { pd: self.clone(), path, mtu: way.mtu })))
    }

    /// The way to a group: out from the device's address, by the wire's own name for the group.
    fn group_way(&self, attr: &AhAttr) -> Result<Way, RouteError> {
        self.device().lock().path_bits(attr.path_bits)?;
        let gids = self.device().gids().iter();
        let mut gids = gids.filter(|gid| attr.gid_type.is_none_or(|ty| ty == gid.ty));
        let gid = match attr.src {
            Some(src) => gids.find(|gid| gid.ip == src).ok_or(RouteError::NotOurSource)?,
            None => gids.find(|gid| gid.ip.is_ipv4() == attr.dst.is_ipv4()).ok_or(RouteError::Family)?,
        };
        let scope_id = if attr.scope_id == 0 { gid.scope_id } else { attr.scope_id };
        let route = Route { src: gid.ip, scope_id, mtu: usize::from(u16::MAX) };
        let group = group_address(attr.dst, gid.ty);
        self.device().lock().way(group, &route, Some(gid.ty))
    }

    fn unreachable(&self, dst: IpAddr, error: RouteError) -> VerbsError {
        let kind = match error {
            RouteError::TooMany => ErrorKind::OutOfResources,
            ref error if error.is_wrong_request() => ErrorKind::InvalidArgument,
            _ => ErrorKind::Unreachable,
        };
        VerbsError::new(kind, self.device().name(), format!("no way to {dst}: {error}"))
    }
}

/// Whether packets have a flow label: IPv6 and GRHs do.
pub(crate) fn has_flow_label(link: PathLink, dst: IpAddr) -> bool {
    link != PathLink::Udp || dst.is_ipv6()
}

/// A flow label from the addresses, never 0: datagrams of one way stay in order, those of several spread over the source
/// ports and so over links and queues (IBTA A17.9.2 leaves the entropy to the sender).
fn label_of_flow(src: IpAddr, dst: IpAddr) -> u32 {
    let mut hash = 0x811c_9dc5_u32; // FNV-1a
    let mut eat =
        |bytes: &[u8]| bytes.iter().for_each(|&b| hash = (hash ^ u32::from(b)).wrapping_mul(0x0100_0193));
    for ip in [src, dst] {
        match ip {
            IpAddr::V4(v4) => eat(&v4.octets()),
            IpAddr::V6(v6) => eat(&v6.octets()),
        }
    }
    ((hash >> 12 ^ hash) & 0x000f_ffff).max(1)
}

impl Device {
    /// One of the driver's source ports, by flow label: equal labels give equal ports. Label 0 gives the first.
    pub(crate) fn source_port(&self, flow_label: u32) -> u16 {
        self.config().source_port(flow_label)
    }
}

impl DeviceConfig {
    /// One of the driver's source ports, by flow label: equal labels give equal ports. Label 0 gives the first.
    pub(crate) fn source_port(&self, flow_label: u32) -> u16 {
        let ports = &self.source_ports;
        let index = if flow_label == 0 {
            0
        } else {
            usize::from(source_port_for_flow_label(flow_label)) % ports.len()
        };
        ports[index]
    }
}

impl Ah {
    /// The resolved path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The largest packet payload that the way allows.
    pub fn mtu(&self) -> Mtu {
        self.0.mtu
    }

    /// A queue pair there, as a destination of work requests.
    pub fn dest(&self, qpn: Qpn, qkey: QKey) -> UdDest {
        UdDest { path: self.0.path, qpn, qkey }
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ah({} -> {})", self.0.path.src, self.0.path.dst)
    }
}
