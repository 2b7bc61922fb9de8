//! The agents of a node: who answers subnet management on QP0 and performance management on QP1.
//!
//! Read IBTA §14.2 and §14.3 (subnet management agent), §14.2.2 (directed routes, [`smi`]) and §16.1 (performance, [`pma`])
//! first. An agent answers at once. MADs for a subnet manager (responses to its requests, traps, SMInfo) are handed to the
//! host of the port that they reach, as [`super::Event::Smp`]; what the manager decides is none of the agent's business.

mod pma;
mod port_info;
mod samples;
mod set_port;
mod sma;
mod smi;
mod tables;
mod traps;
mod violations;

use everywire_wire::mad::{MadHeader, class, method, status};
use everywire_wire::smp::{NodeDescription, Smp};
use everywire_wire::{Lid, Mad, QKey};

use super::config::{NodeId, PortId};
use super::mad_packet::MadRoute;
use super::packet::Packet;
use super::port::VL15;
use super::subnet::{Event, Subnet};
use crate::clock::SimTime;

pub(super) use pma::Windows;
pub use violations::{Violation, WrongKey};

/// What the agents of a node keep.
#[derive(Debug)]
pub(super) struct AgentState {
    pub description: NodeDescription,
    traps: traps::Traps,
    /// When the M_Key's protection ends, as somebody has tried to get past it.
    lease_ends: Option<SimTime>,
    /// By port number: what the performance counters were when they were cleared.
    windows: Vec<Windows>,
    sample: samples::Sample,
}

impl AgentState {
    pub fn new(name: &str) -> AgentState {
        AgentState {
            description: NodeDescription::new(name),
            traps: traps::Traps::default(),
            lease_ends: None,
            windows: Vec::new(),
            sample: samples::Sample::default(),
        }
    }

    /// The power was off: only the name is left.
    pub fn forget(&mut self) {
        *self = AgentState { description: self.description, ..AgentState::new("") };
    }
}

/// What a switch answers to a class that it does not serve.
fn refused_class(mad: &Mad) -> Option<Mad> {
    let header = MadHeader::parse(mad).ok()?;
    let mut answer = *mad;
    MadHeader { method: method::GET_RESP, status: status::BAD_VERSION, ..header }.emit(&mut answer);
    Some(answer)
}

impl Subnet {
    /// A packet of lane 15 is in; it occupies no buffer.
    pub(super) fn arrive_on_vl15(&mut self, now: SimTime, index: u32, id: u32) {
        let dlid = self.packets.get(id).lrh.dlid;
        let node = self.node_of(index);
        if node.switch().is_some()
            && dlid != Lid::PERMISSIVE
            && !self.ports[node.port(0) as usize].has_lid(dlid)
        {
            return self.forward(now, index, id);
        }
        self.take_smp(now, index, id);
    }

    /// A packet for a switch's own LID.
    pub(super) fn receive_at_switch(&mut self, now: SimTime, input: u32, id: u32) {
        if self.packets.get(id).lrh.vl == VL15 {
            return self.take_smp(now, input, id);
        }
        if self.give_to_administrator(now, input, id) {
            return;
        }
        // A switch has no queue pairs but these.
        let answered = self.answer_gsi(now, input, id);
        if !answered {
            self.ports[input as usize].counters.rcv_errors += 1;
        }
        self.discard(now, id);
    }

    fn take_smp(&mut self, now: SimTime, index: u32, id: u32) {
        let Some(packet) = self.packets.remove(id) else { return };
        let own = if self.ports[index as usize].in_switch { self.node_of(index).port(0) } else { index };
        let dlid = packet.lrh.dlid;
        let ours = dlid == Lid::PERMISSIVE || self.ports[own as usize].has_lid(dlid);
        match MadRoute::parse(&packet.into_bytes()) {
            Ok((route, mad)) if ours => match Smp::from_mad(&mad) {
                Ok(smp) if smp.is_directed() => self.directed(now, index, smp, route.slid),
                Ok(smp) => self.local_smp(now, index, smp, route.slid),
                Err(_) => self.ports[index as usize].counters.vl15_dropped += 1,
            },
            _ => self.ports[index as usize].counters.vl15_dropped += 1,
        }
    }

    /// An SMP that has reached its node: for the manager at the port, or for the agent, whose answer goes back.
    fn local_smp(&mut self, now: SimTime, index: u32, smp: Smp, slid: Lid) {
        let own = self.management_port(index);
        let port = &self.ports[own as usize];
        if smp.header.method & method::RESPONSE_BIT != 0 {
            if !port.in_switch || port.is_sm() {
                self.give_to_manager(now, own, &smp, slid);
            }
            return;
        }
        match smp.header.method {
            method::TRAP_REPRESS => {
                let is_sm = port.is_sm();
                self.repressed(now, index, &smp, slid);
                // A manager may have sent the trap itself: a standby that is better than the master does.
                if is_sm {
                    self.give_to_manager(now, own, &smp, slid);
                }
            }
            _ if self.is_for_manager(own, &smp) => self.give_to_manager(now, own, &smp, slid),
            method::GET | method::SET => {
                if let Some(response) = self.answer_smp(now, index, &smp, slid) {
                    self.respond(now, index, response, slid);
                }
            }
            _ => {}
        }
    }

    fn is_for_manager(&self, index: u32, smp: &Smp) -> bool {
        let port = &self.ports[index as usize];
        let asks_manager = smp.header.method == method::TRAP
            || smp.header.attribute_id == everywire_wire::smp::attribute::SM_INFO;
        port.is_sm() && asks_manager
    }

    fn give_to_manager(&mut self, now: SimTime, index: u32, smp: &Smp, slid: Lid) {
        let (port, at) = (self.port_id(index), self.clock.instant(now));
        self.out.push_back(Event::Smp { port, at, mad: Box::new(smp.to_mad()), slid });
    }

    /// Sends the agent's answer the way that the request came.
    fn respond(&mut self, now: SimTime, index: u32, response: Smp, slid: Lid) {
        if response.is_directed() {
            return self.answer_directed(now, index, response, slid);
        }
        let own = if self.ports[index as usize].in_switch { self.node_of(index).port(0) } else { index };
        if self.ports[own as usize].has_lid(slid) {
            return self.local_smp(now, index, response, slid);
        }
        let lid = self.ports[own as usize].info.lid;
        self.send_on_vl15(now, index, MadRoute::management(lid, slid), &response.to_mad());
    }

    /// Puts an SMP on the wire: an adapter by its port, a switch by the port that its table has for the LID, by `index`
    /// for the permissive one.
    fn send_on_vl15(&mut self, now: SimTime, index: u32, route: MadRoute, mad: &Mad) -> bool {
        let node = self.node_of(index);
        let out = match node.switch() {
            Some(switch) if route.dlid != Lid::PERMISSIVE => match switch.unicast(route.dlid) {
                number if (1..=node.ports).contains(&number) => node.port(number),
                _ => return false,
            },
            _ => index,
        };
        let bytes = route.packet(mad);
        let Ok(lrh) = everywire_wire::Lrh::parse(&bytes) else { return false };
        let packet = Packet::new(bytes.into(), lrh, now);
        let port = &mut self.ports[out as usize];
        if !port.is_up() || port.queues[usize::from(VL15)].len() >= super::hca::SEND_QUEUE {
            port.counters.xmit_discards += 1;
            return false;
        }
        let packet = self.packets.insert(packet);
        self.enqueue(now, out, VL15, packet);
        self.transmit(now, out);
        true
    }

    /// A MAD for QP1 that an agent of the node answers. False if it is for the host.
    pub(super) fn answer_gsi(&mut self, now: SimTime, index: u32, id: u32) -> bool {
        let packet = self.packets.get(id);
        let Ok((route, mad)) = MadRoute::parse(&packet.clone().into_bytes()) else { return false };
        let (for_perf, in_switch) = (mad[1] == class::PERF_MGT, self.ports[index as usize].in_switch);
        let asks = matches!(mad[3], method::GET | method::SET);
        if mad[3] & method::RESPONSE_BIT != 0 || !(for_perf || in_switch && asks) {
            return false;
        }
        if route.qkey != QKey::GSI {
            let port = &mut self.ports[index as usize];
            port.counters.qp1_dropped += 1;
            self.key_violation(now, index, &Violation::of_route(WrongKey::QKey(route.qkey), &route));
            return true;
        }
        let answer = if for_perf { self.answer_perf(now, index, &mad) } else { refused_class(&mad) };
        if let Some(answer) = answer {
            self.send_from_agent(now, index, route, &answer);
        }
        true
    }

    /// Sends an agent's answer to a request to QP1.
    fn send_from_agent(&mut self, now: SimTime, index: u32, request: MadRoute, answer: &Mad) {
        let node = self.node_of(index);
        let own = if node.switch().is_some() { node.port(0) } else { index };
        let mut route = request.reversed();
        route.slid = self.ports[own as usize].info.lid;
        let out = match node.switch() {
            Some(switch) => match switch.unicast(route.dlid) {
                number if (1..=node.ports).contains(&number) => node.port(number),
                _ => return,
            },
            None => index,
        };
        let bytes = route.packet(answer);
        let Ok(lrh) = everywire_wire::Lrh::parse(&bytes) else { return };
        let mut packet = Packet::new(bytes.into(), lrh, now);
        if self.ports[own as usize].has_lid(route.dlid) {
            let packet = self.packets.insert(packet);
            return self.events.push(now, super::events::Next::Loopback { port: index, packet });
        }
        let vl = self.ports[out as usize].lane(0, lrh.sl);
        let port = &self.ports[out as usize];
        let full = port.queues[usize::from(vl)].len() >= super::hca::SEND_QUEUE;
        if full || port.may_send() & 1 << vl == 0 || vl == VL15 {
            return;
        }
        packet.set_vl(vl);
        let packet = self.packets.insert(packet);
        self.enqueue(now, out, vl, packet);
        self.transmit(now, out);
    }

    /// A port went up or down: what a switch has to report, and an adapter's host to know.
    pub(super) fn state_changed(&mut self, now: SimTime, index: u32) {
        self.tell_values(index);
        self.report_link_state(now, index);
    }

    /// A node's name.
    pub fn node_name(&self, node: NodeId) -> Option<String> {
        Some(self.nodes.get(node.0 as usize)?.agent.description.name())
    }

    /// Names a port: the node's name, a colon, the number.
    pub fn port_name(&self, port: PortId) -> String {
        format!("{}:{}", self.node_name(port.node).unwrap_or_default(), port.port)
    }

    /// Renames a node, and tells the subnet manager.
    pub fn set_node_name(&mut self, now: std::time::Instant, node: NodeId, name: &str) {
        let now = self.enter(now);
        if let Some(record) = self.nodes.get_mut(node.0 as usize) {
            record.agent.description = NodeDescription::new(name);
            let index = record.port(if record.switch().is_some() { 0 } else { 1 });
            self.report_description(now, index);
        }
    }
}
