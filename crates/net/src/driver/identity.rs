//! What a device on a network interface is: its interface, addresses, GUID, wire and path MTU.

use std::io;
use std::net::IpAddr;

use everywire_verbs::{GidEntry, GidType, Guid, Mtu, Wire};

use crate::error::OpenError;
use crate::route::{self, Interface};
use crate::spec::{DeviceSpec, WireKind};

/// The same for an address as long as it stays on its interface, and another for every address: one host may have many
/// devices, of several processes. FNV-1a of both; a locally administered EUI-64 that is no group's.
pub(super) fn node_guid(ip: IpAddr, mac: Option<[u8; 6]>) -> Guid {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    match ip {
        IpAddr::V4(v4) => add(&v4.octets()),
        IpAddr::V6(v6) => add(&v6.octets()),
    }
    add(&mac.unwrap_or_default());
    Guid(hash & !(0x01 << 56) | 0x02 << 56)
}

pub(super) fn find_interface(spec: &DeviceSpec) -> Result<Interface, OpenError> {
    let ip = spec.ip;
    let found = match &spec.wire {
        WireKind::Raw(raw) => {
            return route::interface(&raw.interface)
                .map_err(|source| OpenError::interface(&raw.interface, ip, source));
        }
        WireKind::Udp | WireKind::Tcp | WireKind::Fabric(_) => route::interface_of(ip, spec.scope_id),
    };
    match found {
        Ok(Some(interface)) => Ok(interface),
        Ok(None) => Err(OpenError::NotOurs { ip, source: io::ErrorKind::AddrNotAvailable.into() }),
        Err(source) => Err(OpenError::System { step: "find the interface", ip, source }),
    }
}

/// The wire that connections are made over unless the peer chooses another.
pub(super) fn wire_of(spec: &DeviceSpec) -> Wire {
    match &spec.wire {
        WireKind::Raw(raw) if raw.roce_v1 => Wire::RoceV1,
        WireKind::Raw(_) | WireKind::Udp => Wire::RoceV2,
        WireKind::Tcp => Wire::Iwarp,
        WireKind::Fabric(_) => Wire::InfiniBand,
    }
}

/// The device's address, as each kind of frame that its port takes has it; the preferred kind first.
pub(super) fn gid_table(spec: &DeviceSpec, interface: &Interface) -> Vec<GidEntry> {
    let types: &[GidType] = match &spec.wire {
        WireKind::Udp | WireKind::Tcp => &[GidType::RoceV2],
        WireKind::Fabric(_) => &[GidType::Ib],
        WireKind::Raw(raw) if raw.roce_v1 => &[GidType::RoceV1, GidType::RoceV2],
        WireKind::Raw(_) => &[GidType::RoceV2, GidType::RoceV1],
    };
    let entry =
        |&ty| GidEntry { ip: spec.ip, scope_id: spec.scope_id, interface: Some(interface.name.clone()), ty };
    types.iter().map(entry).collect()
}

/// The largest MTU that the interface takes, or the one asked for if it fits.
pub(super) fn active_mtu(interface: &Interface, asked: Option<Mtu>) -> Result<Mtu, OpenError> {
    let most = Mtu::largest_in(interface.mtu)
        .ok_or_else(|| OpenError::MtuTooSmall { interface: interface.name.clone(), mtu: interface.mtu })?;
    match asked {
        Some(asked) if asked.bytes() > most.bytes() => Err(OpenError::MtuTooLarge {
            asked: asked.bytes(),
            interface: interface.name.clone(),
            mtu: interface.mtu,
            most: most.bytes(),
        }),
        Some(asked) => Ok(asked),
        None => Ok(most),
    }
}
