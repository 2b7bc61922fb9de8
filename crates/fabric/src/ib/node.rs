//! A node: a channel adapter, a switch with its forwarding tables, or a router.
//!
//! Read IBTA §18.2.4.3 (forwarding tables) and §14.2.5.4 (SwitchInfo) first. The tables are the subnet manager's to write;
//! how packets use them is in [`super::forward`]; routers are in [`super::router`].

use everywire_wire::smp::SwitchInfo;
use everywire_wire::{Guid, Lid};

use super::agent::AgentState;
use super::port::{LIFETIME_FOREVER, PKEYS};
use super::router::Router;

/// Port number in a forwarding table that drops the packet.
pub(super) const NO_PORT: u8 = 255;
/// Entries of a linear forwarding table: every unicast LID.
pub(super) const LINEAR_ENTRIES: usize = 0xc000;
/// Entries of a multicast forwarding table.
pub(super) const MULTICAST_ENTRIES: usize = 1024;
/// Ports of one position of a multicast forwarding block.
pub(super) const PORTS_A_POSITION: usize = 16;

#[derive(Debug)]
pub(super) struct Switch {
    pub info: SwitchInfo,
    /// Output port by LID.
    pub linear: Vec<u8>,
    /// Output ports by LID − 0xc000, a bit each, bit 0 for port 0.
    pub multicast: Vec<u128>,
    pub latency_ns: u64,
}

impl Switch {
    pub fn new(latency_ns: u64) -> Switch {
        let info = SwitchInfo {
            linear_fdb_cap: LINEAR_ENTRIES as u16,
            multicast_fdb_cap: MULTICAST_ENTRIES as u16,
            life_time_value: LIFETIME_FOREVER,
            partition_enforcement_cap: PKEYS as u16,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: true,
            ..SwitchInfo::default()
        };
        let (linear, multicast) = (vec![NO_PORT; LINEAR_ENTRIES], vec![0; MULTICAST_ENTRIES]);
        Switch { info, linear, multicast, latency_ns }
    }

    /// The port for a unicast LID.
    #[inline]
    pub fn unicast(&self, lid: Lid) -> u8 {
        if lid.0 > self.info.linear_fdb_top {
            return NO_PORT;
        }
        self.linear.get(usize::from(lid.0)).copied().unwrap_or(NO_PORT)
    }

    /// The ports for a multicast LID, the one that it came in by left out.
    pub fn group(&self, lid: Lid, input: u8) -> u128 {
        let entry = usize::from(lid.0 - Lid::FIRST_MULTICAST.0);
        let top = self.info.multicast_fdb_top;
        let unlimited = top < Lid::FIRST_MULTICAST.0;
        let known = self.multicast.get(entry).filter(|_| unlimited || lid.0 <= top);
        let ports = known.copied().unwrap_or_else(|| {
            let SwitchInfo { default_multicast_primary_port: first, .. } = self.info;
            let other = self.info.default_multicast_not_primary_port;
            let port = if input == first { other } else { first };
            if port == NO_PORT || port == 0 { 0 } else { 1u128.checked_shl(port.into()).unwrap_or(0) }
        });
        ports & !(1u128 << input)
    }
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Whether received packets keep their buffer until they are consumed.
    Hca {
        holds_receives: bool,
    },
    Switch(Box<Switch>),
    Router(Box<Router>),
}

#[derive(Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub guid: Guid,
    /// Index of port 0; an adapter's is never used.
    pub first_port: u32,
    /// External ports.
    pub ports: u8,
    /// A node without power has no links and no agents.
    pub powered: bool,
    pub agent: AgentState,
}

impl Node {
    /// Index of a port of this node.
    #[inline]
    pub fn port(&self, number: u8) -> u32 {
        self.first_port + u32::from(number)
    }

    pub fn switch(&self) -> Option<&Switch> {
        match &self.kind {
            Kind::Switch(switch) => Some(switch),
            Kind::Hca { .. } | Kind::Router(_) => None,
        }
    }

    pub fn switch_mut(&mut self) -> Option<&mut Switch> {
        match &mut self.kind {
            Kind::Switch(switch) => Some(switch),
            Kind::Hca { .. } | Kind::Router(_) => None,
        }
    }

    pub fn router(&self) -> Option<&Router> {
        match &self.kind {
            Kind::Router(router) => Some(router),
            Kind::Hca { .. } | Kind::Switch(_) => None,
        }
    }

    pub fn router_mut(&mut self) -> Option<&mut Router> {
        match &mut self.kind {
            Kind::Router(router) => Some(router),
            Kind::Hca { .. } | Kind::Switch(_) => None,
        }
    }

    /// Numbers of the external ports.
    pub fn numbers(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.ports
    }
}
