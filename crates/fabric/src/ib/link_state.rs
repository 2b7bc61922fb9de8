//! Links that come and go, and nodes that lose their power.
//!
//! Read IBTA §7.2 (link state machine) and §6.7 (initialisation) first. Training takes no time here: a link whose both
//! ends are willing is up, in state Init, and the subnet manager takes it from there.

use std::time::Instant;

use everywire_wire::smp::codes::{physical_state, port_state};

use super::config::{LinkId, NodeId, TopologyError};
use super::packet::Hold;
use super::port::LANES;
use super::subnet::Subnet;
use crate::clock::SimTime;
use crate::faults::{FaultSource, Ppm};

impl Subnet {
    /// Pulls a link's cable. Packets on the wire are lost; those that wait to cross it are dropped and counted.
    pub fn link_down(&mut self, now: Instant, link: LinkId) -> Result<(), TopologyError> {
        let now = self.enter(now);
        let record = self.links.get_mut(link.0 as usize).ok_or(TopologyError::UnknownLink(link))?;
        record.plugged = false;
        self.lower_link(now, link);
        Ok(())
    }

    /// Plugs it in again.
    pub fn link_up(&mut self, now: Instant, link: LinkId) -> Result<(), TopologyError> {
        let now = self.enter(now);
        let record = self.links.get_mut(link.0 as usize).ok_or(TopologyError::UnknownLink(link))?;
        record.plugged = true;
        self.raise_link(now, link);
        Ok(())
    }

    /// How often a link's wire flips a bit of a packet, from now on.
    pub fn set_bit_errors(&mut self, link: LinkId, errors: Ppm) -> Result<(), TopologyError> {
        let record = self.links.get_mut(link.0 as usize).ok_or(TopologyError::UnknownLink(link))?;
        record.params.bit_errors = errors;
        for end in record.ends {
            if let Some(cable) = &mut self.ports[end as usize].cable {
                cable.params.bit_errors = errors;
            }
            if errors.0 > 0 && self.faults[end as usize].is_none() {
                // Odd multipliers keep the generators of the ports apart.
                let seed = self.seed ^ (u64::from(end) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.faults[end as usize] = Some(Box::new(FaultSource::new(seed)));
            }
        }
        Ok(())
    }

    /// A node that has died, or a host that has gone: its links go down and its agents are silent.
    pub fn power_off(&mut self, now: Instant, node: NodeId) {
        let now = self.enter(now);
        let Some(record) = self.nodes.get_mut(node.0 as usize) else { return };
        record.powered = false;
        for link in self.links_of(node) {
            self.lower_link(now, link);
        }
    }

    /// The node is back, with nothing in its tables.
    pub fn power_on(&mut self, now: Instant, node: NodeId) {
        let now = self.enter(now);
        let Some(record) = self.nodes.get_mut(node.0 as usize) else { return };
        if std::mem::replace(&mut record.powered, true) {
            return;
        }
        let fresh = record.switch().map(|switch| super::node::Switch::new(switch.latency_ns));
        if let (Some(fresh), Some(switch)) = (fresh, record.switch_mut()) {
            *switch = fresh;
        }
        let waited = record.router_mut().map(super::router::Router::forget).unwrap_or_default();
        record.agent.forget();
        waited.into_iter().for_each(|packet| self.discard(now, packet));
        let record = &self.nodes[node.0 as usize];
        let (first, numbers) = (record.first_port, 0..=record.ports);
        for index in numbers.map(|number| first + u32::from(number)) {
            self.ports[index as usize].forget();
        }
        for link in self.links_of(node) {
            self.raise_link(now, link);
        }
    }

    fn links_of(&self, node: NodeId) -> Vec<LinkId> {
        let Some(record) = self.nodes.get(node.0 as usize) else { return Vec::new() };
        let cables = record.numbers().filter_map(|n| self.ports[record.port(n) as usize].cable);
        cables.map(|cable| LinkId(cable.link)).collect()
    }

    /// Whether a link carries anything.
    pub fn is_up(&self, link: LinkId) -> bool {
        let record = self.links.get(link.0 as usize);
        record.is_some_and(|record| self.ports[record.ends[0] as usize].is_up())
    }

    /// Brings a link up if both ends are willing.
    pub(super) fn raise_link(&mut self, now: SimTime, link: LinkId) {
        let record = self.links[link.0 as usize];
        let willing = |end: u32| {
            let disabled = self.ports[end as usize].info.port_physical_state == physical_state::DISABLED;
            !disabled && self.node_of(end).powered
        };
        if !record.plugged || self.is_up(link) || !record.ends.into_iter().all(willing) {
            return;
        }
        for end in record.ends {
            self.ports[end as usize].link_up();
        }
        if let Some(ledger) = &mut self.ledger {
            for end in record.ends {
                ledger.opened(end, &self.ports[end as usize]);
            }
        }
        for end in record.ends {
            self.send_flow_control(now, end);
            self.state_changed(now, end);
        }
    }

    /// Takes a link down, whatever the reason.
    pub(super) fn lower_link(&mut self, now: SimTime, link: LinkId) {
        let record = self.links[link.0 as usize];
        if !self.is_up(link) {
            return;
        }
        for end in record.ends {
            let port = &mut self.ports[end as usize];
            let disabled = port.info.port_physical_state == physical_state::DISABLED;
            port.link_down(if disabled { physical_state::DISABLED } else { physical_state::POLLING });
            port.counters.link_downed += 1;
            if let Some(ledger) = &mut self.ledger {
                ledger.closed(end);
            }
        }
        for end in record.ends {
            self.drop_queues(now, end);
            self.state_changed(now, end);
        }
    }

    /// What waited to cross a link that is gone.
    fn drop_queues(&mut self, now: SimTime, end: u32) {
        let leaving = std::mem::replace(&mut self.ports[end as usize].leaving, Hold::NOTHING);
        self.release(now, leaving);
        for vl in 0..LANES as u8 {
            while let Some(packet) = self.dequeue(now, end, vl) {
                self.ports[end as usize].counters.xmit_discards += 1;
                self.discard(now, packet);
            }
        }
        if self.ports[end as usize].refused != 0 {
            for vl in 0..LANES as u8 {
                self.tell_room(end, vl);
            }
        }
    }

    /// Logical state as the subnet manager or the link has changed it.
    pub(super) fn set_state(&mut self, index: u32, state: u8) {
        let port = &mut self.ports[index as usize];
        if port.state == state {
            return;
        }
        debug_assert!(state != port_state::DOWN, "links go down by lower_link");
        port.state = state;
        port.refresh();
        self.tell_values(index);
    }
}
