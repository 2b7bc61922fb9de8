//! What a host of a world is made of, and how a wait can end.

use std::net::IpAddr;
use std::time::Duration;

use everywire_fabric::link::LinkParams;
use everywire_verbs::{DeviceConfig, Guid};

/// What a host is made of.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Its name, for captures.
    pub name: String,
    /// Its addresses, each a GID.
    pub ips: Vec<IpAddr>,
    /// Its link to the switch; the device's MTU follows from it.
    pub link: LinkParams,
    /// Whether it sends UDP checksums, as Linux sockets do and adapters do not.
    pub udp_checksum: bool,
    /// The VLAN its frames are tagged for, if any.
    pub vlan: Option<u16>,
    /// Whether its TCP hands streams over in pieces of random length, down to a byte.
    pub stream_cuts: bool,
    /// Everything else about the device. Addresses, seed, GUID and MTU are filled in.
    pub device: DeviceConfig,
}

impl HostConfig {
    /// A host with one address, a default link and UDP checksums.
    pub fn new(ip: IpAddr) -> Self {
        HostConfig {
            name: format!("host-{ip}"),
            ips: vec![ip],
            link: LinkParams::DEFAULT,
            udp_checksum: true,
            vlan: None,
            stream_cuts: false,
            device: DeviceConfig::roce_v2(ip),
        }
    }

    /// The same with iWARP on a simulated TCP.
    pub fn iwarp(ip: IpAddr) -> Self {
        HostConfig { device: DeviceConfig::iwarp(ip), ..HostConfig::new(ip) }
    }

    /// A host with an InfiniBand port that goes by one IP address. [`World::ib_up`] waits for its subnet.
    pub fn infiniband(ip: IpAddr) -> Self {
        HostConfig { device: DeviceConfig::infiniband(Guid(0), vec![ip]), ..HostConfig::new(ip) }
    }

    /// The same with RoCE v1: its frames stay on the switch, whatever routers there are.
    pub fn roce_v1(ip: IpAddr) -> Self {
        HostConfig { device: DeviceConfig::roce_v1(ip), ..HostConfig::new(ip) }
    }
}

/// Nothing can happen any more, or the time given is over, and the future is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stalled {
    /// No event, timeout or timer is left: the future waits for something that will never come.
    #[error("nothing is left to happen after {after:?} of virtual time, and the task has not ended")]
    Idle {
        /// Virtual time since the start.
        after: Duration,
    },
    /// The time is over.
    #[error("the task has not ended within {limit:?} of virtual time")]
    TimedOut {
        /// The time that was given.
        limit: Duration,
    },
}
