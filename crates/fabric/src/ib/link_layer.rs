//! The two ends of a link: sending by lane and credit, receiving into buffers, flow control.
//!
//! Read IBTA §7.6 (lanes) and §7.9 (flow control) first. A hop is three events: the last bit leaves, it arrives, and the
//! receiver's flow control packet comes back. Flow control packets go between data packets, before the next one, and take
//! no time on the wire here (six bytes on a real one).

use super::config::VcrcCheck;
use super::events::Next;
use super::packet::{Hold, NONE};
use super::port::VL15;
use super::subnet::Subnet;
use crate::clock::SimTime;
use crate::faults::Faults;

/// Symbol times within which a port sends flow control for every lane, needed or not (IBTA §7.9.4.1).
const FLOW_CONTROL_SYMBOLS: u64 = 65_536;
/// Data bits of a symbol.
const SYMBOL_BITS: u64 = 8;
/// How often link-level retry sends a packet again before it lets it pass as it is.
const MAX_RETRIES: u32 = 64;

impl Subnet {
    /// Puts a packet into a port's queue. It is sent by [`Subnet::transmit`].
    #[inline]
    pub(super) fn enqueue(&mut self, now: SimTime, port: u32, vl: u8, packet: u32) {
        let port = &mut self.ports[port as usize];
        let queue = &mut port.queues[usize::from(vl)];
        if queue.is_empty() {
            port.queued |= 1 << vl;
            port.head_since[usize::from(vl)] = now;
        }
        queue.push_back(packet);
    }

    /// Takes the first packet of a lane's queue.
    #[inline]
    pub(super) fn dequeue(&mut self, now: SimTime, port: u32, vl: u8) -> Option<u32> {
        let port = &mut self.ports[port as usize];
        let queue = &mut port.queues[usize::from(vl)];
        let packet = queue.pop_front()?;
        if queue.is_empty() {
            port.queued &= !(1 << vl);
        }
        port.head_since[usize::from(vl)] = now;
        Some(packet)
    }

    /// Sends what can be sent: flow control that is due, then one packet.
    #[inline]
    pub(super) fn transmit(&mut self, now: SimTime, index: u32) {
        if self.ports[index as usize].sending {
            return;
        }
        if self.ports[index as usize].flow_control_due != 0 {
            self.send_flow_control(now, index);
        }
        if self.options.lifetimes {
            self.expire(now, index);
        }
        let port = &mut self.ports[index as usize];
        let mut lanes = port.queued & port.may_send();
        if lanes == 0 {
            return;
        }
        let (mut ready, mut starved, mut next_ready) = (0u16, false, None);
        while lanes != 0 {
            let vl = lanes.trailing_zeros() as u8;
            lanes &= lanes - 1;
            let Some(&first) = port.queues[usize::from(vl)].front() else { continue };
            let packet = self.packets.get(first);
            if packet.ready_at > now {
                let at = packet.ready_at;
                next_ready = Some(next_ready.map_or(at, |sooner: SimTime| sooner.min(at)));
            } else if vl == VL15 || port.sender[usize::from(vl)].allows(packet.blocks()) {
                ready |= 1 << vl;
            } else {
                starved = true;
            }
        }
        let chosen = if ready & 1 << VL15 != 0 {
            Some(VL15)
        } else {
            let (queues, packets) = (&port.queues, &self.packets);
            let bytes_of =
                |vl: u8| queues[usize::from(vl)].front().map_or(0, |&p| packets.get(p).len() as u32);
            port.arbiter.choose(ready, bytes_of)
        };
        if let Some(vl) = chosen {
            return self.start_sending(now, index, vl);
        }
        if starved || ready != 0 {
            port.waiting_since.get_or_insert(now);
        }
        if let Some(at) = next_ready {
            self.wake_at(index, at);
        }
    }

    /// Makes a port look again at `at`, unless it does so earlier.
    pub(super) fn wake_at(&mut self, index: u32, at: SimTime) {
        let port = &mut self.ports[index as usize];
        if port.wake_at.is_none_or(|planned| at < planned) {
            port.wake_at = Some(at);
            self.events.push(at, Next::Wake { port: index });
        }
    }

    pub(super) fn wake(&mut self, now: SimTime, index: u32) {
        let port = &mut self.ports[index as usize];
        // An earlier one has replaced this.
        if port.wake_at == Some(now) {
            port.wake_at = None;
            self.transmit(now, index);
        }
    }

    #[inline]
    fn start_sending(&mut self, now: SimTime, index: u32, vl: u8) {
        let Some(id) = self.dequeue(now, index, vl) else { return };
        let port = &mut self.ports[index as usize];
        let Some(cable) = port.cable else { return };
        let packet = self.packets.get_mut(id);
        let blocks = packet.blocks();
        packet.lane = vl;
        port.stop_waiting(now);
        port.sending = true;
        port.leaving = std::mem::replace(&mut packet.hold, Hold::NOTHING);
        port.counters.xmit_words += u64::from(packet.lrh.pkt_len);
        port.counters.xmit_packets += 1;
        port.counters.multicast_xmit += u64::from(packet.lrh.dlid.is_multicast());
        if vl != VL15 {
            port.sender[usize::from(vl)].sent(blocks);
        }
        let mut busy_ns = cable.serialisation_ns(packet.len());
        let epoch = port.epoch;
        if self.faults[index as usize].is_some() {
            busy_ns += self.damage(index, id, busy_ns);
        }
        if vl != VL15
            && let Some(ledger) = &mut self.ledger
        {
            ledger.sent(cable.peer, vl, blocks);
        }
        if self.tap.is_some() {
            self.tell_tap(now, cable.link, index, id);
        }
        let done = SimTime::from_nanos(now.as_nanos() + busy_ns);
        let arrives = SimTime::from_nanos(done.as_nanos() + cable.delay_ns);
        let peer_epoch = self.ports[cable.peer as usize].epoch;
        self.events.push(done, Next::Sent { port: index, epoch });
        self.events.push(arrives, Next::Arrive { port: cable.peer, packet: id, epoch: peer_epoch });
        if self.ports[index as usize].refused != 0 {
            self.tell_room(index, vl);
        }
    }

    /// The wire's faults: flips a bit, or with link-level retry gives the time that sending again takes.
    #[cold]
    fn damage(&mut self, index: u32, id: u32, packet_ns: u64) -> u64 {
        let (Some(cable), Some(source)) =
            (self.ports[index as usize].cable, &mut self.faults[index as usize])
        else {
            return 0;
        };
        let receiver = &mut self.ports[cable.peer as usize];
        let faults = Faults { corrupt: cable.params.bit_errors, ..Faults::NONE };
        let packet = self.packets.get_mut(id);
        let mut extra = 0;
        for _ in 0..MAX_RETRIES {
            let Some(bit) = source.judge(&faults, packet.len()).flip_bit else { return extra };
            receiver.counters.symbol_errors += 1;
            if !cable.params.retry {
                packet.flip(bit);
                return extra;
            }
            // The receiver asks for it again; nothing overtakes it meanwhile.
            extra += packet_ns + 2 * cable.delay_ns;
        }
        extra
    }

    /// The last bit has left: its buffer is free.
    #[inline]
    pub(super) fn sent(&mut self, now: SimTime, index: u32, epoch: u32) {
        let port = &mut self.ports[index as usize];
        if port.epoch != epoch {
            return;
        }
        port.sending = false;
        let hold = std::mem::replace(&mut port.leaving, Hold::NOTHING);
        self.release(now, hold);
        self.transmit(now, index);
    }

    /// A packet has left its buffer; the neighbour that sent it is to hear of it.
    #[inline]
    pub(super) fn release(&mut self, now: SimTime, hold: Hold) {
        if hold.port == NONE {
            return;
        }
        if hold.shared != NONE {
            let copies = self.copies.get_mut(hold.shared);
            *copies -= 1;
            if *copies > 0 {
                return;
            }
            self.copies.remove(hold.shared);
        }
        let port = &mut self.ports[hold.port as usize];
        if port.epoch != hold.epoch {
            return;
        }
        port.receiver[usize::from(hold.vl)].freed(hold.blocks);
        port.flow_control_due |= 1 << hold.vl;
        let idle = !port.sending;
        if let Some(ledger) = &mut self.ledger {
            ledger.freed(hold.port, hold.vl, hold.blocks);
        }
        if idle {
            self.send_flow_control(now, hold.port);
        }
    }

    /// Removes a packet that goes no further.
    pub(super) fn discard(&mut self, now: SimTime, id: u32) {
        if let Some(packet) = self.packets.remove(id) {
            self.release(now, packet.hold);
        }
    }

    #[inline]
    pub(super) fn send_flow_control(&mut self, now: SimTime, index: u32) {
        let port = &mut self.ports[index as usize];
        let mut due = std::mem::take(&mut port.flow_control_due);
        let Some(cable) = port.cable.filter(|_| port.is_up()) else { return };
        let at = SimTime::from_nanos(now.as_nanos() + cable.delay_ns);
        let epoch = self.ports[cable.peer as usize].epoch;
        while due != 0 {
            let vl = due.trailing_zeros() as u8;
            due &= due - 1;
            let port = &self.ports[index as usize];
            let fctbs = port.sender[usize::from(vl)].fctbs;
            let fccl = port.receiver[usize::from(vl)].fccl();
            if let Some(ledger) = &mut self.ledger {
                ledger.granted(index, vl, fccl);
            }
            self.events.push(at, Next::FlowControl { port: cable.peer, epoch, vl, fctbs, fccl });
        }
    }

    #[inline]
    pub(super) fn flow_control(
        &mut self,
        now: SimTime,
        index: u32,
        epoch: u32,
        vl: u8,
        fctbs: u16,
        fccl: u16,
    ) {
        let port = &mut self.ports[index as usize];
        if port.epoch != epoch {
            return;
        }
        let lane = usize::from(vl);
        let lost = port.receiver[lane].abr != fctbs;
        if lost {
            // The wire has swallowed packets: their room is there again, and the sender is to hear of it.
            port.receiver[lane].resynchronise(fctbs);
            port.flow_control_due |= 1 << vl;
        }
        port.sender[lane].fccl = fccl;
        let (peer, waits) = (port.peer(), lost || port.queued & 1 << vl != 0);
        if let Some(ledger) = &mut self.ledger {
            if lost {
                ledger.resynchronised(index, vl, fctbs);
            }
            ledger.heard(peer, vl, fccl);
        }
        if waits {
            self.transmit(now, index);
        }
    }

    pub(super) fn refresh_credits(&mut self, now: SimTime, index: u32, epoch: u32, vl: u8) {
        let port = &mut self.ports[index as usize];
        if port.epoch == epoch {
            port.flow_control_due |= 1 << vl;
            self.transmit(now, index);
        }
    }

    /// The last bit of a packet is in.
    #[inline]
    pub(super) fn arrive(&mut self, now: SimTime, index: u32, id: u32, epoch: u32) {
        let every_hop = self.options.vcrc == VcrcCheck::EveryHop;
        let port = &mut self.ports[index as usize];
        let packet = self.packets.get_mut(id);
        if port.epoch != epoch {
            self.packets.remove(id);
            return;
        }
        let (vl, blocks) = (packet.lane, packet.blocks());
        if packet.suspect || every_hop {
            if !packet.vcrc_is_right() {
                return self.lost_on_the_wire(now, index, id);
            }
            packet.suspect = false;
        }
        port.physical_errors = port.physical_errors.saturating_sub(1);
        port.counters.rcv_words += u64::from(packet.lrh.pkt_len);
        port.counters.rcv_packets += 1;
        port.counters.multicast_rcv += u64::from(packet.lrh.dlid.is_multicast());
        packet.entered = now;
        packet.ready_at = now;
        if vl == VL15 {
            return self.arrive_on_vl15(now, index, id);
        }
        let receiver = &mut port.receiver[usize::from(vl)];
        if !receiver.has_room(blocks) {
            port.counters.buffer_overruns += 1;
            return self.lost_on_the_wire(now, index, id);
        }
        receiver.arrived(blocks);
        packet.hold = Hold { port: index, epoch, vl, blocks, shared: NONE };
        if let Some(ledger) = &mut self.ledger {
            ledger.arrived(index, vl, blocks);
        }
        if !self.data_is_welcome(now, index) {
            self.ports[index as usize].counters.rcv_errors += 1;
            return self.discard(now, id);
        }
        if self.ports[index as usize].in_switch {
            self.forward(now, index, id);
        } else {
            self.receive(now, index, id);
        }
    }

    /// A packet that the receiver could not take: its blocks are missing until the sender next tells its count.
    #[cold]
    fn lost_on_the_wire(&mut self, now: SimTime, index: u32, id: u32) {
        let Some(packet) = self.packets.remove(id) else { return };
        let port = &mut self.ports[index as usize];
        port.counters.rcv_errors += 1;
        let Some(cable) = port.cable else { return };
        port.physical_errors += 1;
        if port.physical_errors > port.info.local_phy_errors {
            port.physical_errors = 0;
            port.counters.local_link_integrity_errors += 1;
            self.report_link_integrity(now, index);
        }
        // The damaged header may name any lane.
        let vl = packet.lane;
        if vl == VL15 {
            return;
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.lost(index, vl, packet.blocks());
        }
        let wait = FLOW_CONTROL_SYMBOLS * SYMBOL_BITS * 1_000_000_000 / cable.params.speed.data_bits();
        let at = SimTime::from_nanos(now.as_nanos() + wait);
        let epoch = self.ports[cable.peer as usize].epoch;
        self.events.push(at, Next::Refresh { port: cable.peer, epoch, vl });
    }
}
