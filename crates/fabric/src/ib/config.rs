//! What a subnet is built from: nodes, ports, links and their properties.
//!
//! Read IBTA §5.7 (speeds and widths) and §7.2 (link states) first. Everything here is plain data: [`super::Subnet`] checks
//! it when a node or link is added.

use std::time::Duration;

use everywire_wire::smp::codes::{link_speed, link_width};
use everywire_wire::{Gid, Guid, Mtu};

use crate::faults::Ppm;

/// The most external ports of a switch.
pub const MAX_SWITCH_PORTS: u8 = 64;
/// The most ports of a channel adapter.
pub const MAX_HCA_PORTS: u8 = 2;
/// The most ports of a router.
pub const MAX_ROUTER_PORTS: u8 = 16;
/// The most routes of a router to subnets that it is not in.
pub const MAX_PREFIX_ROUTES: usize = 256;
/// The most nodes of a subnet: there are no more unicast LIDs.
pub const MAX_NODES: usize = 0xbfff;
/// The most data lanes of a link.
pub const MAX_DATA_VLS: u8 = 15;

/// A channel adapter, a switch or a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A port of a node. Numbers begin at 1; port 0 of a switch is its management port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// The node.
    pub node: NodeId,
    /// The node's number for it.
    pub port: u8,
}

/// A link, both directions of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A channel adapter to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HcaConfig {
    /// Node GUID; port n has this plus n.
    pub guid: Guid,
    /// 1 or 2.
    pub ports: u8,
    /// Node description, at most 64 bytes.
    pub name: String,
    /// Whether received packets keep their buffer until [`super::Subnet::consume`] is called, as a port in another process
    /// needs it.
    pub holds_receives: bool,
}

impl HcaConfig {
    /// One port.
    pub fn new(guid: Guid, name: &str) -> HcaConfig {
        HcaConfig { guid, ports: 1, name: name.to_owned(), holds_receives: false }
    }
}

/// A switch to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Node GUID, and GUID of port 0.
    pub guid: Guid,
    /// External ports, 1 to [`MAX_SWITCH_PORTS`].
    pub ports: u8,
    /// Node description, at most 64 bytes.
    pub name: String,
    /// From a packet's last bit in to its first bit out at the earliest.
    pub latency: Duration,
}

impl SwitchConfig {
    /// A switch that takes 100 ns to decide.
    pub fn new(guid: Guid, ports: u8, name: &str) -> SwitchConfig {
        SwitchConfig { guid, ports, name: name.to_owned(), latency: Duration::from_nanos(100) }
    }
}

/// A router to add: each of its ports is in a subnet of its own, whose manager gives it a LID and a GID prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterConfig {
    /// Node GUID; port n has this plus n.
    pub guid: Guid,
    /// 1 to [`MAX_ROUTER_PORTS`].
    pub ports: u8,
    /// Node description, at most 64 bytes.
    pub name: String,
    /// From a packet's last bit in to its first bit out at the earliest.
    pub latency: Duration,
    /// Ways to subnets that none of its ports is in, at most [`MAX_PREFIX_ROUTES`].
    pub routes: Vec<PrefixRoute>,
}

/// A way by another router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixRoute {
    /// High half of the GIDs that lie there.
    pub prefix: u64,
    /// The port by which packets leave.
    pub port: u8,
    /// GID of the other router's port in that port's subnet.
    pub next: Gid,
}

impl RouterConfig {
    /// A router that takes 300 ns to decide, and knows the subnets of its ports only.
    pub fn new(guid: Guid, ports: u8, name: &str) -> RouterConfig {
        let latency = Duration::from_nanos(300);
        RouterConfig { guid, ports, name: name.to_owned(), latency, routes: Vec::new() }
    }
}

/// Lanes of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Width {
    /// One lane.
    X1,
    /// Four lanes.
    X4,
    /// Eight lanes.
    X8,
    /// Twelve lanes.
    X12,
}

impl Width {
    /// Number of lanes.
    pub const fn lanes(self) -> u64 {
        match self {
            Width::X1 => 1,
            Width::X4 => 4,
            Width::X8 => 8,
            Width::X12 => 12,
        }
    }

    /// Its bit in PortInfo.
    pub const fn code(self) -> u8 {
        match self {
            Width::X1 => link_width::X1,
            Width::X4 => link_width::X4,
            Width::X8 => link_width::X8,
            Width::X12 => link_width::X12,
        }
    }
}

/// Speed of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Speed {
    /// 2.5 Gbit/s, 8b/10b.
    Sdr,
    /// 5 Gbit/s, 8b/10b.
    Ddr,
    /// 10 Gbit/s, 8b/10b.
    Qdr,
    /// 14.0625 Gbit/s, 64b/66b.
    Fdr,
    /// 25.78125 Gbit/s, 64b/66b.
    Edr,
    /// 53.125 Gbit/s with forward error correction.
    Hdr,
}

impl Speed {
    /// Data bits a second of a lane, coding taken off.
    pub const fn data_bits(self) -> u64 {
        match self {
            Speed::Sdr => 2_000_000_000,
            Speed::Ddr => 4_000_000_000,
            Speed::Qdr => 8_000_000_000,
            Speed::Fdr => 13_636_363_636,
            Speed::Edr => 25_000_000_000,
            Speed::Hdr => 50_000_000_000,
        }
    }

    /// Its bit among LinkSpeed* of PortInfo; faster ones have the bit of QDR, beside one of [`Speed::extended_code`].
    pub const fn code(self) -> u8 {
        match self {
            Speed::Sdr => link_speed::SDR,
            Speed::Ddr => link_speed::DDR,
            Speed::Qdr | Speed::Fdr | Speed::Edr | Speed::Hdr => link_speed::QDR,
        }
    }

    /// Its bit among LinkSpeedExt* of PortInfo, 0 for none.
    pub const fn extended_code(self) -> u8 {
        match self {
            Speed::Sdr | Speed::Ddr | Speed::Qdr => 0,
            Speed::Fdr => link_speed::EXT_FDR,
            Speed::Edr => link_speed::EXT_EDR,
            Speed::Hdr => link_speed::EXT_HDR,
        }
    }
}

/// The properties of a link, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkParams {
    /// Lanes.
    pub width: Width,
    /// Speed of each lane.
    pub speed: Speed,
    /// Propagation delay.
    pub delay: Duration,
    /// Largest MTU of both ends.
    pub mtu: Mtu,
    /// Data lanes of both ends: 1, 2, 4, 8 or 15.
    pub vls: u8,
    /// Receive buffer of each data lane at each end, in bytes: whole blocks of 64, at most 131,072 are used.
    pub buffer: usize,
    /// Link-level retry: what the wire damages is sent again, instead of being dropped by the receiver.
    pub retry: bool,
    /// How often the wire flips a bit of a packet, per packet.
    pub bit_errors: Ppm,
}

impl LinkParams {
    /// 4x EDR (100 Gbit/s), 20 ns (four metres), MTU 4096, 8 lanes, 32 KiB a lane, no errors.
    pub const DEFAULT: LinkParams = LinkParams {
        width: Width::X4,
        speed: Speed::Edr,
        delay: Duration::from_nanos(20),
        mtu: Mtu::M4096,
        vls: 8,
        buffer: 32 << 10,
        retry: false,
        bit_errors: Ppm::NEVER,
    };

    /// Data bits a second.
    pub const fn data_bits(&self) -> u64 {
        self.width.lanes() * self.speed.data_bits()
    }
}

impl Default for LinkParams {
    fn default() -> Self {
        LinkParams::DEFAULT
    }
}

/// How the whole subnet behaves. The defaults never drop a packet that a link carried whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubnetOptions {
    /// Obey SwitchInfo:LifeTimeValue and PortInfo:HOQLife: packets that wait longer are dropped, which ends deadlocks
    /// (IBTA §18.2.5.4). Off, both are kept and shown but have no effect.
    pub lifetimes: bool,
    /// When the VCRC of a packet is computed and compared.
    pub vcrc: VcrcCheck,
    /// Account for every credit and check the books after each change ([`super::Subnet::check_credits`]).
    pub audit: bool,
}

/// When a VCRC is checked. Nothing but the faults of a link ever changes a packet's bytes in this subnet, so the first two
/// find the same errors as the third: they only leave out sums whose outcome is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VcrcCheck {
    /// By the first receiver of a packet, and by the receiver at the end of a link that damaged it.
    #[default]
    FirstHop,
    /// Only by the receiver at the end of a link that damaged the packet: for senders that are trusted to sum right.
    Damaged,
    /// By every receiver.
    EveryHop,
}

/// Why a subnet could not be built as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No such port.
    #[error("{0:?} is not in this subnet")]
    UnknownPort(PortId),
    /// No such link.
    #[error("{0:?} is not in this subnet")]
    UnknownLink(LinkId),
    /// A port takes one link.
    #[error("{0:?} already has a link")]
    PortInUse(PortId),
    /// Too many or too few ports.
    #[error("a node of this kind has 1 to {most} ports, not {asked}")]
    Ports {
        /// Limit.
        most: u8,
        /// Asked for.
        asked: u8,
    },
    /// The subnet is full.
    #[error("a subnet has at most {MAX_NODES} nodes")]
    TooManyNodes,
    /// Too many routes of a router, or one by a port that it has not.
    #[error("a router has at most {MAX_PREFIX_ROUTES} routes, each by a port of its own")]
    Routes,
    /// Two nodes of one GUID.
    #[error("GUID {0} is in this subnet already")]
    GuidInUse(Guid),
    /// Not a number of lanes that the standard has.
    #[error("a link has 1, 2, 4, 8 or 15 data lanes, not {0}")]
    Lanes(u8),
    /// A lane could not take a single packet.
    #[error("a lane's buffer of {asked} bytes does not hold a packet of the link's MTU: {least} bytes")]
    Buffer {
        /// Asked for.
        asked: usize,
        /// A packet of that MTU.
        least: usize,
    },
}
