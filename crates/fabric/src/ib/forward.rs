//! Switches: from a packet in an input buffer to the queues of output ports.
//!
//! Read IBTA §18.2.4 (relay), §18.2.5.4 (lifetimes) and §9.6.1.1.5 with §10.9 (partition enforcement) first. A packet
//! occupies the input buffer that it came into until its last bit has left, and waits by output port and lane, so one that
//! cannot go on holds up no other of a different way out (but its buffer is taken).

use everywire_wire::Lid;
use everywire_wire::smp::codes::port_state;

use super::node::{NO_PORT, Switch};
use super::packet::{NONE, Packet};
use super::port::{LIFETIME_FOREVER, VL15};
use super::subnet::Subnet;
use crate::clock::SimTime;

/// Nanoseconds of the unit of timeouts (IBTA §14.2.5.4), which they double 2^value times.
const TIMEOUT_UNIT_NS: u64 = 4_096;
/// Packets of lane 15 that wait at an output at most; there are no credits for them.
const VL15_QUEUE: usize = 64;

/// Why a packet does not leave by a port.
enum Refused {
    Discard,
    /// Lane 15 has no room for it.
    Vl15,
    Constraint,
}

impl Subnet {
    /// Whether data passes in the port's state. Data that reaches an armed port makes it active (IBTA §7.2.7.4).
    #[inline]
    pub(super) fn data_is_welcome(&mut self, _now: SimTime, index: u32) -> bool {
        match self.ports[index as usize].state {
            port_state::ACTIVE => true,
            port_state::ARMED => {
                self.set_state(index, port_state::ACTIVE);
                true
            }
            _ => false,
        }
    }

    /// Looks a packet up and queues it, or its copies.
    #[inline]
    pub(super) fn forward(&mut self, now: SimTime, input: u32, id: u32) {
        let port = &self.ports[input as usize];
        let packet = self.packets.get_mut(id);
        if (port.info.partition_enforcement_inbound || port.info.filter_raw_inbound)
            && !passes(port, packet, port.info.partition_enforcement_inbound, port.info.filter_raw_inbound)
        {
            return self.refuse_inbound(now, input, id);
        }
        let node = &self.nodes[port.node as usize];
        let Some(switch) = node.switch() else { return };
        packet.ready_at = SimTime::from_nanos(now.as_nanos() + switch.latency_ns);
        packet.hops = packet.hops.saturating_add(1);
        let (dlid, number, first) = (packet.lrh.dlid, port.number, node.first_port);
        if dlid.is_multicast() {
            return self.forward_to_group(now, input, id);
        }
        let out = switch.unicast(dlid);
        if out == 0 || (out == NO_PORT && self.ports[first as usize].has_lid(dlid)) {
            return self.receive_at_switch(now, input, id);
        }
        if out > node.ports || out == number {
            self.ports[input as usize].counters.rcv_switch_relay_errors += 1;
            return self.discard(now, id);
        }
        self.forward_to(now, input, first + u32::from(out), id);
    }

    /// Queues a packet at an output, or counts why not.
    #[inline]
    fn forward_to(&mut self, now: SimTime, input: u32, out: u32, id: u32) {
        match self.admit(input, out, id) {
            Ok(vl) => {
                self.forwarded += 1;
                self.enqueue(now, out, vl, id);
                self.transmit(now, out);
            }
            Err(refused) => {
                match refused {
                    Refused::Discard => self.ports[out as usize].counters.xmit_discards += 1,
                    Refused::Vl15 => self.ports[input as usize].counters.vl15_dropped += 1,
                    Refused::Constraint => {
                        self.ports[out as usize].counters.xmit_constraint_errors += 1;
                        self.pkey_violation(now, out, id);
                    }
                }
                self.discard(now, id);
            }
        }
    }

    /// The lane by which a packet leaves, and the packet put on it.
    #[inline]
    fn admit(&mut self, input: u32, out: u32, id: u32) -> Result<u8, Refused> {
        let number = self.ports[input as usize].number;
        let port = &self.ports[out as usize];
        let packet = self.packets.get_mut(id);
        if packet.lrh.vl == VL15 {
            let room = port.queues[usize::from(VL15)].len() < VL15_QUEUE;
            return match (port.is_up(), room) {
                (true, true) => Ok(VL15),
                (true, false) => Err(Refused::Vl15),
                _ => Err(Refused::Discard),
            };
        }
        let vl = port.lane(number, packet.lrh.sl);
        // Lane 15 in the table drops the packet (IBTA §7.6.6).
        if port.state != port_state::ACTIVE || port.lanes & 1 << vl == 0 || packet.len() > port.longest {
            return Err(Refused::Discard);
        }
        let (keys, raw) = (port.info.partition_enforcement_outbound, port.info.filter_raw_outbound);
        if (keys || raw) && !passes(port, packet, keys, raw) {
            return Err(Refused::Constraint);
        }
        packet.set_vl(vl);
        Ok(vl)
    }

    #[cold]
    fn refuse_inbound(&mut self, now: SimTime, input: u32, id: u32) {
        self.ports[input as usize].counters.rcv_constraint_errors += 1;
        self.pkey_violation(now, input, id);
        self.discard(now, id);
    }

    /// Copies for every port of the group but the one that the packet came in by.
    fn forward_to_group(&mut self, now: SimTime, input: u32, id: u32) {
        let port = &self.ports[input as usize];
        let node = &self.nodes[port.node as usize];
        let packet = self.packets.get(id);
        let mut outs = node.switch().map_or(0, |switch: &Switch| switch.group(packet.lrh.dlid, port.number));
        outs &= (1u128 << (node.ports + 1)) - 1;
        let first = node.first_port;
        // Port 0 would be a queue pair of the switch itself: there is none for multicast.
        outs &= !1;
        if outs == 0 {
            // Nobody beyond: that is how the edges of a tree look, and no error.
            return self.discard(now, id);
        }
        let mut packet = packet.clone();
        self.packets.remove(id);
        if packet.hold.port != NONE {
            packet.hold.shared = self.copies.insert(outs.count_ones());
        }
        while outs != 0 {
            let out = outs.trailing_zeros();
            outs &= outs - 1;
            let copy = self.packets.insert(packet.clone());
            self.forward_to(now, input, first + out, copy);
        }
    }

    /// Drops what has waited longer than the lifetimes allow, and looks again when the next would have.
    pub(super) fn expire(&mut self, now: SimTime, index: u32) {
        let port = &self.ports[index as usize];
        let Some(switch) = self.nodes[port.node as usize].switch() else { return };
        let (life, head) = (timeout_ns(switch.info.life_time_value), timeout_ns(port.info.hoq_life));
        let mut lanes = port.queued & !(1 << VL15);
        while lanes != 0 {
            let vl = lanes.trailing_zeros() as u8;
            lanes &= lanes - 1;
            while let Some(&first) = self.ports[index as usize].queues[usize::from(vl)].front() {
                let since = self.ports[index as usize].head_since[usize::from(vl)];
                let entered = self.packets.get(first).entered;
                let ends =
                    |from: SimTime, limit: Option<u64>| limit.map(|ns| from.as_nanos().saturating_add(ns));
                let deadline = ends(since, head).into_iter().chain(ends(entered, life)).min();
                let Some(deadline) = deadline.map(SimTime::from_nanos) else { break };
                if deadline > now {
                    self.wake_at(index, deadline);
                    break;
                }
                self.ports[index as usize].counters.xmit_discards += 1;
                self.dequeue(now, index, vl);
                self.discard(now, first);
            }
        }
    }
}

/// A lifetime; `None` for "for ever" (IBTA §18.2.5.4).
fn timeout_ns(value: u8) -> Option<u64> {
    (value < LIFETIME_FOREVER).then(|| TIMEOUT_UNIT_NS << value)
}

/// Partition enforcement and raw filtering of one port in one direction.
fn passes(port: &super::port::Port, packet: &Packet, keys: bool, raw: bool) -> bool {
    if packet.is_raw() {
        return !raw;
    }
    !keys || packet.lrh.vl == VL15 || packet.pkey().is_some_and(|pkey| port.admits(pkey))
}

impl Subnet {
    /// The output port that a switch has for a unicast LID, 255 for none; `None` for what is no switch.
    pub fn route(&self, node: super::config::NodeId, lid: Lid) -> Option<u8> {
        self.nodes.get(node.0 as usize)?.switch().map(|switch| switch.unicast(lid))
    }
}
