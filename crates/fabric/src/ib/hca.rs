//! Channel adapter ports as their host sees them: sending with backpressure, receiving, giving buffers back.
//!
//! Read IBTA §17.2 first. The port puts packets on the lane of their service level and corrects the VCRC; it answers
//! subnet management (QP0) and performance management itself and hands all else to the host, but for packets of
//! partitions that the port is not in. A queue pair's business (its P_Key, Q_Key, PSN) is the host's, which reports
//! violations by [`Subnet::report_violation`].

use std::time::Instant;

use bytes::Bytes;
use everywire_wire::smp::codes::port_state;
use everywire_wire::vcrc::check_length;
use everywire_wire::{Guid, Lid, Lnh, Mtu, PKey, Qpn, WireError};

use super::config::{PortId, VcrcCheck};
use super::events::Next;
use super::node::Kind;
use super::packet::{Hold, Packet};
use super::port::{Port, VL15};
use super::subnet::{Event, Subnet};
use crate::clock::SimTime;

/// Packets that an adapter's port queues on each lane before it refuses.
pub const SEND_QUEUE: usize = 128;

/// What the host of a port has to know, as the subnet manager has set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IbPort {
    /// Logical state, one of [`port_state`].
    pub state: u8,
    /// Base LID, 0 for none yet.
    pub lid: Lid,
    /// The port answers to 2^LMC LIDs.
    pub lmc: u8,
    /// Where the subnet manager, and subnet administration, is.
    pub sm_lid: Lid,
    /// Service level of packets to it.
    pub sm_sl: u8,
    /// High half of GIDs.
    pub gid_prefix: u64,
    /// Low halves of the port's GIDs; zero for an unused entry.
    pub guids: [Guid; 8],
    /// Partition keys in their places; partition 0 for an empty one.
    pub pkeys: Vec<PKey>,
    /// Largest payload that the link takes.
    pub mtu: Mtu,
    /// Data bits a second, 0 while there is no link.
    pub data_bits: u64,
    /// Longest round trip in the subnet: 4.096 µs × 2^value.
    pub subnet_timeout: u8,
    /// Join multicast groups, register services and subscribe anew.
    pub client_reregister: bool,
}

/// A received packet's room in the port's buffer. Not to be copied: it is given back once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the sender waits for this room"]
pub struct Credit(pub(super) Hold);

/// Why a packet was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such port, or one of a switch with a link.
    #[error("{0:?} is no port of a channel adapter, and not port 0 of a switch")]
    NoAdapter(PortId),
    /// Not LRH to VCRC.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// Lane 15 is for [`Subnet::send_smp`].
    #[error("lane 15 carries subnet management only")]
    ManagementLane,
    /// The subnet manager has not brought the link up.
    #[error("the port is in state {0}, and sends data in state 4 (active) only")]
    NotActive(u8),
    /// Sent in another port's name.
    #[error("source LID {lid:#06x} is none of the port's", lid = .0.0)]
    ForeignSource(Lid),
    /// Longer than the neighbour's MTU allows.
    #[error("a packet of {bytes} bytes is longer than the {most} that the link's MTU allows")]
    TooLong {
        /// Of the packet.
        bytes: usize,
        /// Limit.
        most: usize,
    },
    /// The SLtoVL table drops this service level.
    #[error("service level {0} has no lane")]
    NoLane(u8),
    /// Sent from port 0 of a switch, whose table has no port for it.
    #[error("the switch's forwarding table has no port for LID {lid:#06x}", lid = .0.0)]
    NoRoute(Lid),
    /// The lane's send queue is full: [`Event::Room`] tells when to try again.
    #[error("the send queue of service level {0} is full")]
    Full(u8),
}

/// A packet that was not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// As it was given.
    pub packet: Bytes,
    /// Why.
    pub reason: Refusal,
}

/// The port that a packet leaves by and its lane; `None` for one that stays in the node.
pub(super) type Way = Option<(u32, u8)>;

impl Port {
    /// The lane of a service level, if it takes a packet of so many bytes now.
    #[inline]
    pub(super) fn lane_with_room(&self, sl: u8, bytes: usize) -> Result<u8, Refusal> {
        if bytes > self.longest {
            return Err(Refusal::TooLong { bytes, most: self.longest });
        }
        let vl = self.lane(0, sl);
        if self.lanes & 1 << vl == 0 {
            return Err(Refusal::NoLane(sl));
        }
        if self.queues[usize::from(vl)].len() >= SEND_QUEUE {
            return Err(Refusal::Full(sl));
        }
        Ok(vl)
    }
}

impl Subnet {
    /// Sends a packet, LRH to VCRC, from an adapter's port (or port 0 of a switch, for a manager there), on the lane of its service level; the lane in its LRH and the
    /// VCRC are corrected on the way. What is taken is never dropped for want of room.
    ///
    /// Errors: the packet comes back with the reason.
    pub fn send(&mut self, now: Instant, port: PortId, packet: impl Into<Bytes>) -> Result<(), Refused> {
        let now = self.enter(now);
        let packet = packet.into();
        match self.check_send(port, &packet) {
            Ok((index, vl, lrh)) => {
                let mut packet = Packet::new(packet, lrh, now);
                packet.suspect = self.options.vcrc != VcrcCheck::Damaged;
                let stays = self.ports[index as usize].has_lid(lrh.dlid);
                self.put(now, index, (!stays).then_some((index, vl)), packet);
                Ok(())
            }
            Err(reason) => {
                if let (Refusal::NoAdapter(_), Some(own)) = (reason, self.end_port(port)) {
                    return self.send_from_switch(now, own, packet);
                }
                match (reason, self.adapter(port)) {
                    (Refusal::Full(sl), Some(index)) => self.ports[index as usize].refused |= 1 << sl,
                    (Refusal::ForeignSource(_), Some(index)) => {
                        self.ports[index as usize].counters.foreign_sources += 1;
                    }
                    _ => {}
                }
                Err(Refused { packet, reason })
            }
        }
    }

    fn check_send(&self, id: PortId, packet: &[u8]) -> Result<(u32, u8, everywire_wire::Lrh), Refusal> {
        let index = self.adapter(id).ok_or(Refusal::NoAdapter(id))?;
        let port = &self.ports[index as usize];
        let lrh = check_length(packet)?;
        if lrh.vl == VL15 {
            return Err(Refusal::ManagementLane);
        }
        if port.state != port_state::ACTIVE {
            return Err(Refusal::NotActive(port.state));
        }
        if !port.has_lid(lrh.slid) {
            return Err(Refusal::ForeignSource(lrh.slid));
        }
        Ok((index, port.lane_with_room(lrh.sl, packet.len())?, lrh))
    }

    /// Sends a packet that was admitted at the port `own`, by this way.
    #[inline]
    pub(super) fn put(&mut self, now: SimTime, own: u32, way: Way, mut packet: Packet) {
        let Some((out, vl)) = way else {
            let packet = self.packets.insert(packet);
            return self.events.push(now, Next::Loopback { port: own, packet });
        };
        packet.set_vl(vl);
        let packet = self.packets.insert(packet);
        self.enqueue(now, out, vl, packet);
        self.transmit(now, out);
    }

    /// How many packets of a service level the port would take now.
    pub fn room(&self, port: PortId, sl: u8) -> usize {
        let Some(index) = self.adapter(port) else { return 0 };
        let port = &self.ports[index as usize];
        let vl = port.lane(0, sl);
        if port.state != port_state::ACTIVE || port.lanes & 1 << vl == 0 {
            return 0;
        }
        SEND_QUEUE - port.queues[usize::from(vl)].len().min(SEND_QUEUE)
    }

    /// Whether the port takes a packet of a service level now.
    pub fn can_send(&self, port: PortId, sl: u8) -> bool {
        self.room(port, sl) > 0
    }

    /// Asks for an [`Event::Room`] when there is some.
    pub fn want_room(&mut self, port: PortId, sl: u8) {
        if let Some(index) = self.adapter(port) {
            self.ports[index as usize].refused |= 1 << (sl & 15);
        }
    }

    /// The host has taken a packet out of the port's buffer.
    pub fn consume(&mut self, now: Instant, credit: Credit) {
        let now = self.enter(now);
        let Credit(hold) = credit;
        let current = self.ports.get(hold.port as usize).is_some_and(|port| port.epoch == hold.epoch);
        if let Some(ledger) = self.ledger.as_mut().filter(|_| current) {
            ledger.consumed(hold);
        }
        self.release(now, hold);
    }

    /// What holds at an adapter's port, or port 0 of a switch, now.
    pub fn port_values(&self, port: PortId) -> Option<IbPort> {
        Some(self.ports[self.end_port(port)? as usize].values())
    }

    /// Says whether a subnet manager runs at a port, which then gets the MADs meant for it.
    pub fn set_sm(&mut self, now: Instant, port: PortId, is_sm: bool) {
        use everywire_wire::smp::codes::capability::IS_SM;
        let now = self.enter(now);
        let Some(index) = self.index(port) else { return };
        let mask = &mut self.ports[index as usize].info.capability_mask;
        let before = *mask;
        *mask = if is_sm { before | IS_SM } else { before & !IS_SM };
        if *mask != before {
            self.capabilities_changed(now, index);
        }
    }

    pub(super) fn adapter(&self, port: PortId) -> Option<u32> {
        let node = self.nodes.get(port.node.0 as usize)?;
        if node.switch().is_some() {
            return None;
        }
        self.index(port)
    }

    /// A data packet reached an adapter.
    #[inline]
    pub(super) fn receive(&mut self, now: SimTime, index: u32, id: u32) {
        let port = &self.ports[index as usize];
        let packet = self.packets.get(id);
        let dlid = packet.lrh.dlid;
        if !dlid.is_multicast() && !port.has_lid(dlid) {
            self.ports[index as usize].counters.rcv_errors += 1;
            return self.discard(now, id);
        }
        if packet.lrh.lnh == Lnh::IbaGlobal && self.node_of(index).router().is_some() {
            return self.route_packet(now, index, id);
        }
        self.receive_own(now, index, id);
    }

    /// A packet for the port itself.
    pub(super) fn receive_own(&mut self, now: SimTime, index: u32, id: u32) {
        let (port, packet) = (&self.ports[index as usize], self.packets.get(id));
        if packet.pkey_bits().is_some_and(|pkey| !port.admits(pkey)) {
            // No queue pair here can be in that partition (IBTA §10.9.3).
            self.refuse_partition(now, index, id);
            return self.discard(now, id);
        }
        if is_for_gsi(packet) && self.answer_gsi(now, index, id) {
            return self.discard(now, id);
        }
        if self.node_of(index).router().is_some() {
            return self.receive_at_router(now, index, id);
        }
        self.deliver(now, index, id);
    }

    /// A packet that a port has sent to itself.
    pub(super) fn loop_back(&mut self, now: SimTime, index: u32, id: u32) {
        self.receive(now, index, id);
    }

    pub(super) fn deliver(&mut self, now: SimTime, index: u32, id: u32) {
        let Some(packet) = self.packets.remove(id) else { return };
        let (hold, hops) = (packet.hold, packet.hops);
        let holds = matches!(self.node_of(index).kind, Kind::Hca { holds_receives: true });
        let credit = (holds && hold != Hold::NOTHING).then_some(Credit(hold));
        if credit.is_some()
            && let Some(ledger) = &mut self.ledger
        {
            ledger.given(hold);
        }
        let (port, at) = (self.port_id(index), self.clock.instant(now));
        let kept = credit.is_some();
        self.out.push_back(Event::Deliver { port, at, packet: packet.into_bytes(), hops, credit });
        if !kept {
            self.release(now, hold);
        }
    }

    /// Tells the host of room on the lane, for the service levels that were refused.
    #[cold]
    pub(super) fn tell_room(&mut self, index: u32, vl: u8) {
        let id = self.port_id(index);
        let port = &mut self.ports[index as usize];
        for sl in 0..16 {
            if port.refused & 1 << sl != 0 && port.lane(0, sl) == vl {
                port.refused &= !(1 << sl);
                self.out.push_back(Event::Room { port: id, sl });
            }
        }
    }

    /// Tells the host what holds now.
    pub(super) fn tell_values(&mut self, index: u32) {
        if self.ports[index as usize].in_switch {
            return;
        }
        if self.node_of(index).router().is_some() {
            // Nobody is to be told; what was known of ways may not hold any more.
            return self.forget_ways(index);
        }
        let port = self.port_id(index);
        let values = Box::new(self.ports[index as usize].values());
        // Of two changes at once the later is enough, unless the earlier asks for something.
        let stale = |event: &Event| matches!(event, Event::PortChanged { port: p, values: v } if *p == port && !v.client_reregister);
        if self.out.back().is_some_and(stale) {
            self.out.pop_back();
        }
        self.out.push_back(Event::PortChanged { port, values });
        self.ports[index as usize].info.client_reregister = false;
    }
}

impl Port {
    pub(super) fn values(&self) -> IbPort {
        IbPort {
            state: self.state,
            lid: self.info.lid,
            lmc: self.info.lmc,
            sm_lid: self.info.master_sm_lid,
            sm_sl: self.info.master_sm_sl,
            gid_prefix: self.info.gid_prefix,
            guids: self.guids,
            pkeys: self.pkeys.to_vec(),
            mtu: Mtu::from_code(self.info.neighbor_mtu).unwrap_or(Mtu::M256),
            data_bits: self.cable.filter(|_| self.is_up()).map_or(0, |cable| cable.params.data_bits()),
            subnet_timeout: self.info.subnet_timeout,
            client_reregister: self.info.client_reregister,
        }
    }
}

/// Whether a packet goes to QP1.
#[inline]
pub(super) fn is_for_gsi(packet: &Packet) -> bool {
    packet
        .after_link_headers()
        .and_then(|bth| bth.get(5..8))
        .is_some_and(|qpn| qpn == &Qpn::GSI.get().to_be_bytes()[1..])
}
