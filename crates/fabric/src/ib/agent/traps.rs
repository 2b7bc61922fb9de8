//! Traps: what an agent tells the subnet manager unasked, again and again until it is told to stop.
//!
//! Read IBTA §13.4.9 (repetition, TrapRepress) and §14.2.5.1 (the traps of subnet management) first. A trap waits until the
//! port knows its own LID and the manager's. Repetition ends after [`MAX_SENDS`] too, so that a subnet without a manager
//! comes to rest.

use std::collections::{BTreeMap, VecDeque};

use everywire_wire::mad::method;
use everywire_wire::notice::{
    Notice, TrapCapabilities, TrapLinkState, TrapPort, TrapSwitchKey, kind, switch_key, trap,
};
use everywire_wire::smp::{Smp, attribute};
use everywire_wire::{Bth, Deth, Qpn};

use crate::clock::SimTime;
use crate::ib::events::Next;
use crate::ib::mad_packet::MadRoute;
use crate::ib::port::Port;
use crate::ib::subnet::Subnet;

/// Traps of a node that wait for their TrapRepress; the oldest makes room.
const MAX_PENDING: usize = 16;
/// How often a trap is sent.
const MAX_SENDS: u32 = 10;
/// Nanoseconds of the unit of PortInfo:SubnetTimeOut, which doubles 2^value times.
const TIMEOUT_UNIT_NS: u64 = 4_096;
/// No trap is repeated faster than this, whatever SubnetTimeOut says.
const LEAST_INTERVAL_NS: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Traps {
    pending: VecDeque<Pending>,
    transaction: u64,
    /// By port and number: when a trap about a wrong key may follow the last.
    next_about_keys: BTreeMap<(u32, u16), SimTime>,
}

#[derive(Debug)]
struct Pending {
    notice: Notice,
    /// Port whose LID and manager count.
    index: u32,
    transaction: u64,
    sends_left: u32,
    next_at: SimTime,
}

/// Nanoseconds until a trap of a port is sent again.
fn repeat_after(port: &Port) -> u64 {
    (TIMEOUT_UNIT_NS << port.info.subnet_timeout).max(LEAST_INTERVAL_NS)
}

impl Subnet {
    /// Queues a trap and sends it.
    pub(super) fn raise_trap(&mut self, now: SimTime, index: u32, notice: Notice) {
        let info = &self.ports[index as usize].info;
        if info.master_sm_lid.0 == 0 || info.lid.0 == 0 {
            return;
        }
        let node = self.ports[index as usize].node;
        let traps = &mut self.nodes[node as usize].agent.traps;
        // The same again tells nothing new, but asks anew.
        traps
            .pending
            .retain(|p| p.notice.trap_number != notice.trap_number || p.notice.details != notice.details);
        if traps.pending.len() == MAX_PENDING {
            traps.pending.pop_front();
        }
        traps.transaction += 1;
        let transaction = traps.transaction;
        traps.pending.push_back(Pending { notice, index, transaction, sends_left: MAX_SENDS, next_at: now });
        self.agent_timeout(now, node);
    }

    /// Queues a trap about a wrong key, unless one of its kind was raised within the time in which traps are repeated: who
    /// sends many such packets causes no flood of traps (IBTA §13.4.9).
    pub(super) fn raise_key_trap(&mut self, now: SimTime, index: u32, notice: Notice) {
        let interval = repeat_after(&self.ports[index as usize]);
        let node = self.ports[index as usize].node as usize;
        let next = &mut self.nodes[node].agent.traps.next_about_keys;
        let key = (index, notice.trap_number);
        if next.get(&key).is_some_and(|at| *at > now) {
            return;
        }
        next.insert(key, SimTime::from_nanos(now.as_nanos() + interval));
        self.raise_trap(now, index, notice);
    }

    /// Sends the traps of a node that are due.
    pub(in crate::ib) fn agent_timeout(&mut self, now: SimTime, node: u32) {
        if !self.nodes[node as usize].powered {
            return;
        }
        let mut due = Vec::new();
        let mut next = None;
        for trap in &mut self.nodes[node as usize].agent.traps.pending {
            if trap.next_at <= now {
                let interval = repeat_after(&self.ports[trap.index as usize]);
                trap.sends_left -= 1;
                trap.next_at = SimTime::from_nanos(now.as_nanos() + interval);
                due.push((trap.index, trap.notice, trap.transaction));
            }
            if trap.sends_left > 0 {
                next = Some(next.map_or(trap.next_at, |at: SimTime| at.min(trap.next_at)));
            }
        }
        self.nodes[node as usize].agent.traps.pending.retain(|trap| trap.sends_left > 0);
        if let Some(at) = next {
            self.events.push(at, Next::Agent { node });
        }
        for (index, notice, transaction) in due {
            self.send_trap(now, index, &notice, transaction);
        }
    }

    fn send_trap(&mut self, now: SimTime, index: u32, notice: &Notice, transaction: u64) {
        let info = &self.ports[index as usize].info;
        let (lid, sm_lid) = (info.lid, info.master_sm_lid);
        let mut smp = Smp::lid_routed(method::TRAP, attribute::NOTICE, 0, transaction);
        notice.emit(&mut smp.data);
        if self.ports[index as usize].has_lid(sm_lid) {
            return self.local_smp(now, index, smp, lid);
        }
        self.send_on_vl15(now, index, MadRoute::management(lid, sm_lid), &smp.to_mad());
    }

    /// The subnet manager has heard.
    pub(super) fn repress_trap(&mut self, index: u32, smp: &Smp) {
        let node = self.ports[index as usize].node as usize;
        let Ok(notice) = Notice::parse(&smp.data) else { return };
        let transaction = smp.header.transaction_id as u32;
        let traps = &mut self.nodes[node].agent.traps;
        // The upper half of a transaction is the managers' own.
        traps.pending.retain(|trap| {
            trap.transaction as u32 != transaction || trap.notice.trap_number != notice.trap_number
        });
    }

    /// A port of a switch has changed its state: trap 128.
    pub(super) fn report_link_state(&mut self, now: SimTime, index: u32) {
        let node = self.ports[index as usize].node as usize;
        let Some(switch) = self.nodes[node].switch_mut() else { return };
        switch.info.port_state_change = true;
        let own = self.nodes[node].port(0);
        let lid = self.ports[own as usize].info.lid;
        let mut notice = Notice::generic(kind::URGENT, self.producer(index), trap::LINK_STATE_CHANGED, lid);
        TrapLinkState { lid }.emit(&mut notice.details);
        self.raise_trap(now, own, notice);
    }

    /// More damaged packets came in than PortInfo:LocalPhyErrors allows: trap 129.
    #[cold]
    pub(in crate::ib) fn report_link_integrity(&mut self, now: SimTime, index: u32) {
        let own = self.management_port(index);
        let (lid, port) = (self.ports[own as usize].info.lid, self.ports[index as usize].number);
        let mut notice = Notice::generic(kind::URGENT, self.producer(index), trap::LINK_INTEGRITY, lid);
        TrapPort { lid, port, ..TrapPort::default() }.emit(&mut notice.details);
        self.raise_trap(now, own, notice);
    }

    /// The capability mask has changed: trap 144.
    pub(in crate::ib) fn capabilities_changed(&mut self, now: SimTime, index: u32) {
        self.report_local_change(now, index, |_| {});
    }

    /// The node has a new name: trap 144.
    pub(super) fn report_description(&mut self, now: SimTime, index: u32) {
        self.report_local_change(now, index, |details| {
            (details.other_local_changes, details.node_description) = (true, true);
        });
    }

    fn report_local_change(&mut self, now: SimTime, index: u32, change: impl FnOnce(&mut TrapCapabilities)) {
        let info = &self.ports[index as usize].info;
        let (lid, capability_mask) = (info.lid, info.capability_mask);
        let mut details = TrapCapabilities { lid, capability_mask, ..TrapCapabilities::default() };
        change(&mut details);
        let producer = self.producer(index);
        let mut notice = Notice::generic(kind::INFORMATIONAL, producer, trap::CAPABILITIES_CHANGED, lid);
        details.emit(&mut notice.details);
        self.raise_trap(now, index, notice);
    }

    /// A packet of a partition that may not pass here: counted, and trap 259.
    pub(in crate::ib) fn pkey_violation(&mut self, now: SimTime, index: u32, id: u32) {
        let port = &mut self.ports[index as usize];
        port.info.p_key_violations = port.info.p_key_violations.saturating_add(1);
        let own = self.management_port(index);
        let lid = self.ports[own as usize].info.lid;
        let packet = self.packets.get(id);
        let Some(bth) = packet.after_link_headers().and_then(|bytes| Bth::parse(bytes).ok()) else { return };
        let after = packet.after_link_headers().and_then(|bytes| bytes.get(Bth::LEN..));
        let is_datagram = bth.opcode.0 >> 5 == 3;
        let source = after.filter(|_| is_datagram).and_then(|bytes| Deth::parse(bytes).ok());
        let qp1 = if source.is_some() { switch_key::QP1 } else { 0 };
        let details = TrapSwitchKey {
            data_valid: switch_key::ADDRESSES | switch_key::QP2 | qp1,
            lid1: packet.lrh.slid,
            lid2: packet.lrh.dlid,
            pkey: bth.pkey,
            sl: packet.lrh.sl,
            qp1: source.map_or(Qpn::new(0), |deth| deth.src_qp),
            qp2: bth.dest_qp,
            switch_lid: lid,
            port: self.ports[index as usize].number,
            ..TrapSwitchKey::default()
        };
        let mut notice = Notice::generic(kind::SECURITY, self.producer(index), trap::SWITCH_BAD_P_KEY, lid);
        details.emit(&mut notice.details);
        self.raise_key_trap(now, own, notice);
    }

    /// Traps of a node that are sent again until a subnet manager represses them.
    pub fn traps_pending(&self, node: crate::ib::NodeId) -> usize {
        self.nodes.get(node.0 as usize).map_or(0, |node| node.agent.traps.pending.len())
    }
}
