//! A subnet as it is to be built: hosts, switches, links, and who manages it. Checked, so that what builds it cannot fail.
//!
//! Read IBTA vol. 1 §14.2.5.6 (PortInfo: widths, speeds, MTUs, virtual lanes) for the numbers a link may have. The plan knows
//! nothing of files; `everywire fabric` reads one from TOML and hands it over.

mod check;
mod rate;
mod subnets;
mod ways;

use std::net::IpAddr;
use std::time::Duration;

use everywire_wire::{Guid, Mtu};
use serde::{Deserialize, Serialize};

pub use check::check_name;
pub use everywire_fabric::ib::config::{MAX_HCA_PORTS as MAX_HOST_PORTS, MAX_ROUTER_PORTS, MAX_SWITCH_PORTS};
pub use everywire_fabric::ib::subnet_manager::lanes::{DROPS, LaneTables, MAX_WEIGHTS};
pub use everywire_wire::smp::VlWeight;
pub use rate::{LinkRate, Speed, Width};
pub use subnets::{Hop, Subnets};

/// Most hosts and switches of one fabric.
pub const MAX_NODES: usize = 4096;
/// Most links of one fabric.
pub const MAX_LINKS: usize = 16_384;
/// Most subnets of one fabric.
pub const MAX_SUBNETS: usize = 64;
/// Longest name of a node or fabric, in bytes: the ibsim protocol has 32 with the final NUL.
pub const MAX_NAME: usize = 31;
/// Longest delay of a link.
pub const MAX_DELAY: Duration = Duration::from_millis(100);
/// Parts in a million that are all.
pub const MAX_PPM: u32 = 1_000_000;
/// Highest priority of a subnet manager (IBTA §14.2.5.13: four bits).
pub const MAX_SM_PRIORITY: u8 = 15;
/// Largest LID mask control (IBTA §7.11.1: three bits).
pub const MAX_LMC: u8 = 7;
/// Highest service level (IBTA §7.6.5: four bits).
pub const MAX_SL: u8 = 15;

/// A host or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeRef {
    /// By its place in [`Plan::hosts`].
    Host(usize),
    /// By its place in [`Plan::switches`].
    Switch(usize),
}

/// A port of a host or switch; ports count from 1, and 0 is a switch's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRef {
    /// Whose.
    pub node: NodeRef,
    /// Which.
    pub port: u8,
}

/// A host: one channel adapter. Or a router, whose ports are in subnets of their own, and which takes no programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// Its name, as in `ib:FABRIC/NAME/1`.
    pub name: String,
    /// Its ports.
    pub ports: u8,
    /// Its node GUID; ports have the following ones.
    pub guid: Guid,
    /// The IP address that stands for each port, port 1 first.
    pub ips: Vec<IpAddr>,
    /// It is a router (IBTA chapter 19).
    pub router: bool,
}

/// A subnet beyond a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetPlan {
    /// The host's port where its subnet manager is.
    pub sm: PortRef,
    /// High half of its GIDs.
    pub gid_prefix: u64,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Its name.
    pub name: String,
    /// Its external ports.
    pub ports: u8,
    /// Its GUID.
    pub guid: Guid,
}

/// What a link is like, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Width and speed.
    pub rate: LinkRate,
    /// Propagation delay.
    pub delay: Duration,
    /// Largest packet payload.
    pub mtu: Mtu,
    /// Data virtual lanes: 1, 2, 4, 8 or 15.
    pub vls: u8,
    /// Link-level retry: what the wire damages is sent again instead of being dropped.
    pub retry: bool,
    /// Packets in a million of which the wire flips a bit, at most [`MAX_PPM`].
    pub bit_errors_ppm: u32,
}

impl Default for LinkShape {
    fn default() -> LinkShape {
        LinkShape {
            rate: LinkRate::X4_QDR,
            delay: Duration::from_nanos(100),
            mtu: Mtu::M4096,
            vls: 4,
            retry: false,
            bit_errors_ppm: 0,
        }
    }
}

/// A cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// Its two ends.
    pub ends: [PortRef; 2],
    /// What it is like.
    pub shape: LinkShape,
}

/// How routes are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Shortest paths; may have credit loops.
    #[default]
    MinHop,
    /// Up, then down: never loops.
    #[serde(rename = "updn")]
    UpDown,
    /// Shortest paths of a fat tree, spread by destination.
    #[serde(rename = "ftree")]
    FatTree,
}

impl Engine {
    /// Its name, as OpenSM has it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::MinHop => "minhop",
            Engine::UpDown => "updn",
            Engine::FatTree => "ftree",
        }
    }
}

/// A partition besides the default one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPlan {
    /// Its 15 bits.
    pub pkey: u16,
    /// Full members.
    pub full: Vec<PortRef>,
    /// Limited members.
    pub limited: Vec<PortRef>,
    /// Service level of paths in it, at most [`MAX_SL`].
    pub sl: u8,
}

/// How a picture of the fabric is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Hosts below, each switch above what it connects.
    #[default]
    Levels,
    /// Switches on a circle, in their order.
    Circle,
    /// Switches on a grid with so many columns, in their order.
    Grid(usize),
}

/// Everything about a subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Hosts, in order.
    pub hosts: Vec<HostPlan>,
    /// Switches, in order.
    pub switches: Vec<SwitchPlan>,
    /// Cables.
    pub links: Vec<LinkPlan>,
    /// The host's port where the subnet manager is, or port 0 of a switch.
    pub sm: PortRef,
    /// Its SM_Key, which several managers of a subnet share; a secret of the run if there is none.
    pub sm_key: Option<u64>,
    /// Its priority among several managers, at most [`MAX_SM_PRIORITY`].
    pub sm_priority: u8,
    /// High half of the GIDs of that manager's subnet.
    pub gid_prefix: u64,
    /// Further subnets, which routers join to it.
    pub subnets: Vec<SubnetPlan>,
    /// How it makes routes.
    pub engine: Engine,
    /// Root switches of up/down and fat-tree routing; found by rank if empty.
    pub roots: Vec<usize>,
    /// LID mask control of host ports.
    pub lmc: u8,
    /// Service level of paths in the default partition, at most [`MAX_SL`].
    pub sl: u8,
    /// How service levels share links; evenly if nothing.
    pub lanes: Option<LaneTables>,
    /// Partitions besides the default one.
    pub partitions: Vec<PartitionPlan>,
    /// How it is drawn.
    pub layout: Layout,
}

impl Plan {
    /// Every subnet, the first manager's and those beyond routers.
    pub fn all_subnets(&self) -> impl Iterator<Item = SubnetPlan> {
        let first = SubnetPlan { sm: self.sm, gid_prefix: self.gid_prefix };
        std::iter::once(first).chain(self.subnets.iter().copied())
    }

    /// The name of a node.
    pub fn name_of(&self, node: NodeRef) -> &str {
        match node {
            NodeRef::Host(index) => &self.hosts[index].name,
            NodeRef::Switch(index) => &self.switches[index].name,
        }
    }

    /// Ports of a node.
    pub fn ports_of(&self, node: NodeRef) -> u8 {
        match node {
            NodeRef::Host(index) => self.hosts[index].ports,
            NodeRef::Switch(index) => self.switches[index].ports,
        }
    }

    /// `NAME/PORT`.
    pub fn port_name(&self, port: PortRef) -> String {
        format!("{}/{}", self.name_of(port.node), port.port)
    }

    /// Hosts, then switches.
    pub fn nodes(&self) -> impl Iterator<Item = NodeRef> + use<> {
        (0..self.hosts.len()).map(NodeRef::Host).chain((0..self.switches.len()).map(NodeRef::Switch))
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<NodeRef> {
        self.nodes().find(|node| self.name_of(*node) == name)
    }

    /// The port of `NAME/PORT`, or of `NAME` where it has one port only.
    ///
    /// # Errors
    /// What there is instead.
    pub fn port(&self, text: &str) -> Result<PortRef, String> {
        let (name, port) = match text.rsplit_once('/') {
            Some((name, port)) => (name.trim(), Some(port.trim())),
            None => (text.trim(), None),
        };
        let node = self.node(name).ok_or_else(|| self.no_such_node(name))?;
        let most = self.ports_of(node);
        let port = match port {
            None if most == 1 => 1,
            None => return Err(format!("{text:?}: which port of {name}? It has {most}: {name}/1")),
            Some(port) => match port.parse::<u8>() {
                Ok(port) if (1..=most).contains(&port) => port,
                _ if most == 1 => return Err(format!("{text:?}: {name} has port 1 only")),
                _ => return Err(format!("{text:?}: {name} has the ports 1 to {most}")),
            },
        };
        Ok(PortRef { node, port })
    }

    fn no_such_node(&self, name: &str) -> String {
        const SHOWN: usize = 6;
        let list = |kind: &str, names: Vec<&str>| {
            let more = if names.len() > SHOWN { ", …" } else { "" };
            let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
            (!names.is_empty()).then(|| format!("the {kind} {shown}{more}"))
        };
        let hosts = |router| {
            let those = self.hosts.iter().filter(move |host| host.router == router);
            those.map(|host| host.name.as_str()).collect()
        };
        let switches = self.switches.iter().map(|switch| switch.name.as_str()).collect();
        let lists = [("hosts", hosts(false)), ("routers", hosts(true)), ("switches", switches)];
        let lists: Vec<String> = lists.into_iter().filter_map(|(kind, names)| list(kind, names)).collect();
        format!("{name:?} is no host or switch; there are {}", lists.join(", and "))
    }

    /// The cable at a port, and its other end.
    pub fn peer(&self, port: PortRef) -> Option<(usize, PortRef)> {
        self.links.iter().enumerate().find_map(|(index, link)| match link.ends {
            [a, b] if a == port => Some((index, b)),
            [a, b] if b == port => Some((index, a)),
            _ => None,
        })
    }
}
