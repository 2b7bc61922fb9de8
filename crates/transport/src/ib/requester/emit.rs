//! Builds request packets: which one is next, whether it may go now, and its headers.
//!
//! Read IBTA vol. 1 §9.3 and §9.4 (packet formats by operation), §9.7.2 (PSNs) and §9.7.5.1.2 (AckReq). The per-packet
//! path does not allocate. Windows are read once and charged once a burst.

use std::time::Instant;

use everywire_wire::{AtomicEth, Ieth, ImmDt, Opcode, Psn, Reth, RocePacket};

use super::{ACK_EVERY, Flight, MAX_PSN_IN_FLIGHT, READ_RUN_BYTES, ReadRun, Requester, read_cost};
use crate::congestion::window::{PATIENCE, cost};
use crate::ib::attr::{QpState, QpType};
use crate::ib::burst::Burst;
use crate::ib::env::{Counter, QpEnv};
use crate::ib::shared::Shared;
use crate::ib::wr::{SendOp, SendWr, WcStatus};
use crate::memory::Memory;

/// What came of trying to send one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ib) enum Step {
    /// Sent, or the cursor moved on: try again.
    On,
    /// Nothing more now: the burst is full, or something else has to happen first.
    Stop,
    /// The peer's window has not this much room.
    PeerWindow(usize),
    /// Our window for READ responses has not this much room.
    ReadWindow(usize),
}

/// A request packet that was just added to the burst.
struct Sent {
    psn: Psn,
    /// PSNs that it takes: those of its responses for a READ.
    packets: u32,
    /// Of the peer's window.
    units: usize,
    /// AckReq, or a request that is answered anyway.
    asks: bool,
    now: Instant,
}

/// What the windows leave for this burst.
#[derive(Debug)]
pub(super) struct Budget {
    free: usize,
    spent: usize,
    read_free: usize,
    read_spent: usize,
    /// One packet may go although a window is closed.
    overdraft: bool,
    /// Nothing may go beside what is in flight.
    probing: bool,
}

impl Budget {
    fn admits(&self, cost: usize) -> bool {
        let within = self.spent + cost <= self.free;
        (within || (self.overdraft && self.spent == 0)) && !(self.probing && self.spent > 0)
    }

    /// Whether a READ may ask for responses of this cost. A repetition has to ask for all that it is short of, so with
    /// none of our own under way room for one packet will do.
    fn admits_read(&self, cost: usize, charged: usize, one_packet: usize) -> bool {
        let within = self.read_spent + cost <= self.read_free;
        let idle = charged + self.read_spent == 0;
        within || (idle && (self.overdraft || self.read_free >= one_packet))
    }

    /// Whether a packet of this cost leaves no room for another like it.
    fn closes(&self, cost: usize) -> bool {
        self.probing || self.spent + 2 * cost > self.free
    }
}

impl Requester {
    /// Adds packets to `burst` until it is full, a window closes or there is nothing to send.
    pub(in crate::ib) fn transmit<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
    ) {
        if !matches!(sh.state, QpState::Rts | QpState::Sqd) || self.retry.waits() {
            return;
        }
        if self.cursor.wqe >= self.sq.len() || (self.probing && self.charged > 0) {
            return;
        }
        let packets_before = burst.packets();
        let mut budget = self.budget(sh, env);
        let stopped = loop {
            match self.step(sh, env, now, burst, &mut budget) {
                Step::On if sh.fault.is_none() => {}
                other => break other,
            }
        };
        let sent = burst.packets() - packets_before;
        if sent > 0 {
            env.count(Counter::SentPkts, sent as u64);
            self.blocked_until = None;
        }
        self.overdraft = false;
        self.settle(sh, env, &budget);
        if sent > 0 && sh.is_rc() {
            self.retry.sent(now);
        }
        match stopped {
            Step::PeerWindow(need) => env.window(sh.path.dst).wait(sh.qpn(), need),
            Step::ReadWindow(need) => env.read_window().wait(sh.qpn(), need),
            Step::On | Step::Stop => return,
        }
        self.blocked_until.get_or_insert(now + PATIENCE);
    }

    fn budget<E: QpEnv>(&self, sh: &Shared, env: &mut E) -> Budget {
        let (free, read_free) = if sh.is_rc() {
            (env.window(sh.path.dst).available(), env.read_window().available())
        } else {
            (usize::MAX / 2, 0)
        };
        let answer_due = self.charged > 0 && self.unasked == 0;
        Budget {
            free,
            spent: 0,
            read_free,
            read_spent: 0,
            overdraft: self.overdraft && !answer_due,
            probing: self.probing,
        }
    }

    fn settle<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, budget: &Budget) {
        if !sh.is_rc() {
            return;
        }
        if budget.spent > 0 {
            self.charged += budget.spent;
            env.window(sh.path.dst).charge(budget.spent);
        }
        if budget.read_spent > 0 {
            self.read_charged += budget.read_spent;
            env.read_window().charge(budget.read_spent);
        }
    }

    fn step<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
        budget: &mut Budget,
    ) -> Step {
        if self.cursor.wqe >= self.sq.len() {
            return Step::Stop;
        }
        if self.cursor.wqe >= self.begun {
            // IBTA §10.3.1.5: in SQD nothing new begins.
            if sh.state != QpState::Rts {
                return Step::Stop;
            }
            return if self.begin(sh, env) { Step::On } else { Step::Stop };
        }
        let wqe = &self.sq[self.cursor.wqe];
        if wqe.failed.is_some() {
            return Step::Stop;
        }
        if self.cursor.packet >= wqe.packets {
            self.cursor.wqe += 1;
            self.cursor.packet = 0;
            return Step::On;
        }
        let psn = wqe.first_psn.add(self.cursor.packet);
        if self.una.distance(psn) >= MAX_PSN_IN_FLIGHT as i32 {
            return Step::Stop;
        }
        match (sh.ty(), &wqe.wr.op) {
            (QpType::Ud, _) => self.send_datagram(sh, env, burst, psn),
            (_, SendOp::Read { .. }) => self.send_read(sh, env, now, burst, budget, psn),
            (_, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) => {
                self.send_atomic(sh, env, now, burst, budget, psn)
            }
            _ => self.send_message(sh, env, now, burst, budget, psn),
        }
    }

    /// One packet of a SEND or WRITE.
    fn send_message<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
        budget: &mut Budget,
        psn: Psn,
    ) -> Step {
        let index = self.cursor.wqe;
        let wqe = &self.sq[index];
        let offset = self.cursor.packet as usize * sh.mtu;
        let payload_len = sh.mtu.min(wqe.length as usize - offset);
        let (first, last) = (self.cursor.packet == 0, self.cursor.packet + 1 == wqe.packets);
        let opcode = message_opcode(&wqe.wr.op, first, last);
        let units = cost(opcode.header_len() + payload_len + 4);
        if !budget.admits(units) {
            return Step::PeerWindow(units);
        }
        if !burst.admits(opcode.header_len(), payload_len) {
            return Step::Stop;
        }
        let mut packet = sh.packet(opcode, psn);
        // IBTA §9.7.5.1.2: whoever needs an answer asks. The last packet of a message always does.
        packet.bth.ack_req = sh.is_rc() && (last || self.unasked + 1 >= ACK_EVERY || budget.closes(units));
        packet.bth.solicited = last && wqe.wr.solicited && !matches!(wqe.wr.op, SendOp::Write { .. });
        if sh.ty() == QpType::Uc {
            packet.bth.opcode = Opcode(opcode.0 | UC);
        }
        extend(&mut packet, &wqe.wr.op, wqe.length);
        let filled = burst.push(&sh.path, &packet, payload_len, |into| {
            fill(env.memory(), sh, &wqe.wr, offset as u64, into)
        });
        if filled.is_err() {
            return self.fail_cursor(sh, env, WcStatus::LocProtErr);
        }
        if sh.is_rc() {
            let sent = Sent { psn, packets: 1, units, asks: packet.bth.ack_req, now };
            self.track(env, sent, budget);
        } else {
            self.sent_unreliably(sh, env, psn, last);
        }
        Step::On
    }

    /// Books an RC request packet that takes `packets` PSNs as in flight.
    fn track<E: QpEnv>(&mut self, env: &mut E, sent: Sent, budget: &mut Budget) {
        let Sent { psn, packets, units, asks, now } = sent;
        if psn.before(self.sent_end) {
            env.count(Counter::RetransmittedPkts, 1);
        }
        let end = psn.add(packets);
        if self.sent_end.before(end) {
            self.sent_end = end;
        }
        self.cursor.packet += packets;
        budget.spent += units;
        self.flight.push_back(Flight { psn, cost: units as u32 });
        if asks {
            self.unasked = 0;
            self.retry.asked(psn, now);
        } else {
            self.unasked += 1;
        }
    }

    /// UC and UD: what is sent is done (IBTA C9-186).
    pub(in crate::ib) fn sent_unreliably<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        psn: Psn,
        last: bool,
    ) {
        self.cursor.packet += 1;
        self.sent_end = psn.next();
        self.una = psn.next();
        if last {
            self.retire(sh, env);
        }
    }

    /// A READ request for as much as the windows allow.
    fn send_read<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
        budget: &mut Budget,
        psn: Psn,
    ) -> Step {
        let wqe = &self.sq[self.cursor.wqe];
        let SendOp::Read { remote } = wqe.wr.op else { return Step::Stop };
        let opcode = Opcode::RC_READ_REQUEST;
        let units = cost(opcode.header_len() + 4);
        if !budget.admits(units) {
            return Step::PeerWindow(units);
        }
        if !burst.admits(opcode.header_len(), 0) {
            return Step::Stop;
        }
        let left = wqe.packets - self.cursor.packet;
        // A repetition keeps the bounds of the original, which the responder remembers.
        let known = psn.before(self.sent_end).then(|| self.reads.iter().find(|r| r.holds(psn))).flatten();
        let packets = match known {
            Some(run) => psn.distance(run.end()) as u32,
            // IBTA C9-88: no more than the responder can hold.
            None if self.reads.len() >= sh.max_rd_atomic => return Step::Stop,
            None => self.read_run(sh, budget, left),
        };
        let offset = self.cursor.packet as usize * sh.mtu;
        let length = (packets as usize * sh.mtu).min(wqe.length as usize - offset);
        let read_units = read_cost(length, packets);
        if packets == 0 || !budget.admits_read(read_units, self.read_charged, read_cost(sh.mtu, 1)) {
            // Responses under way call again; without any, the window's own queue does.
            let idle = self.read_charged + budget.read_spent == 0;
            return if idle { Step::ReadWindow(read_cost(sh.mtu, 1)) } else { Step::Stop };
        }
        let mut packet = sh.packet(opcode, psn);
        packet.bth.ack_req = true;
        let va = remote.addr.wrapping_add(offset as u64);
        packet.reth = Some(Reth { va, rkey: remote.rkey, length: length as u32 });
        push_headers(burst, sh, &packet);
        if known.is_none() {
            self.reads.push_back(ReadRun { first: psn, packets, pristine: true });
        }
        budget.read_spent += read_units;
        self.track(env, Sent { psn, packets, units, asks: true, now }, budget);
        Step::On
    }

    /// How many packets to ask for with one new READ request; 0: better wait until more of our window is free.
    fn read_run(&self, sh: &Shared, budget: &Budget, left: u32) -> u32 {
        let most = left.min((READ_RUN_BYTES / sh.mtu) as u32);
        let free = budget.read_free.saturating_sub(budget.read_spent) / read_cost(sh.mtu, 1);
        let idle = self.read_charged + budget.read_spent == 0;
        match (free as u32).min(most) {
            0 if idle && budget.overdraft => 1,
            fits if fits == most || idle => fits,
            // Small runs cost as much to answer as large ones.
            fits if fits * 2 >= most => fits,
            _ => 0,
        }
    }

    fn send_atomic<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
        budget: &mut Budget,
        psn: Psn,
    ) -> Step {
        let wqe = &self.sq[self.cursor.wqe];
        let (opcode, eth) = match wqe.wr.op {
            SendOp::CompareSwap { remote, compare, swap } => (
                Opcode::RC_COMPARE_SWAP,
                AtomicEth { va: remote.addr, rkey: remote.rkey, swap_add: swap, compare },
            ),
            SendOp::FetchAdd { remote, add } => (
                Opcode::RC_FETCH_ADD,
                AtomicEth { va: remote.addr, rkey: remote.rkey, swap_add: add, compare: 0 },
            ),
            _ => return Step::Stop,
        };
        let units = cost(opcode.header_len() + 4);
        if !budget.admits(units) {
            return Step::PeerWindow(units);
        }
        let known = psn.before(self.sent_end) && self.reads.iter().any(|r| r.holds(psn));
        let full = !known && self.reads.len() >= sh.max_rd_atomic;
        if full || !burst.admits(opcode.header_len(), 0) {
            return Step::Stop;
        }
        let mut packet = sh.packet(opcode, psn);
        packet.bth.ack_req = true;
        packet.atomic_eth = Some(eth);
        push_headers(burst, sh, &packet);
        if !known {
            self.reads.push_back(ReadRun { first: psn, packets: 1, pristine: true });
        }
        self.track(env, Sent { psn, packets: 1, units, asks: true, now }, budget);
        Step::On
    }

    /// A local error of the work request at the cursor: it ends once all before it are complete.
    pub(in crate::ib) fn fail_cursor<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        status: WcStatus,
    ) -> Step {
        self.sq[self.cursor.wqe].failed = Some(status);
        self.retire(sh, env);
        Step::Stop
    }

    /// The work request at the cursor.
    pub(in crate::ib) fn at_cursor(&self) -> Option<&SendWr> {
        self.sq.get(self.cursor.wqe).map(|w| &w.wr)
    }
}

impl Requester {
    /// PSN of the next packet to send.
    pub(super) fn cursor_psn(&self) -> Psn {
        match self.sq.get(self.cursor.wqe) {
            Some(wqe) if self.cursor.wqe < self.begun => wqe.first_psn.add(self.cursor.packet),
            _ => self.next_psn,
        }
    }

    /// Whether anything that was sent is still to be acknowledged.
    pub(in crate::ib) fn outstanding(&self) -> bool {
        self.una.before(self.cursor_psn())
    }
}

/// Difference between a UC opcode and the RC opcode of the same operation.
const UC: u8 = 0x20;

/// The RC opcode of one packet of a SEND or WRITE (IBTA §9.2.1).
fn message_opcode(op: &SendOp, first: bool, last: bool) -> Opcode {
    let (first_op, middle, [last_op, only]) = match op {
        SendOp::Send => {
            (Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, [Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY])
        }
        SendOp::SendImm(_) => (
            Opcode::RC_SEND_FIRST,
            Opcode::RC_SEND_MIDDLE,
            [Opcode::RC_SEND_LAST_IMM, Opcode::RC_SEND_ONLY_IMM],
        ),
        SendOp::SendInv(_) => (
            Opcode::RC_SEND_FIRST,
            Opcode::RC_SEND_MIDDLE,
            [Opcode::RC_SEND_LAST_INV, Opcode::RC_SEND_ONLY_INV],
        ),
        SendOp::WriteImm { .. } => (
            Opcode::RC_WRITE_FIRST,
            Opcode::RC_WRITE_MIDDLE,
            [Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY_IMM],
        ),
        _ => {
            (Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, [Opcode::RC_WRITE_LAST, Opcode::RC_WRITE_ONLY])
        }
    };
    match (first, last) {
        (true, true) => only,
        (true, false) => first_op,
        (false, false) => middle,
        (false, true) => last_op,
    }
}

/// Adds the extended headers that the opcode calls for.
fn extend(packet: &mut RocePacket<'_>, op: &SendOp, length: u32) {
    let opcode = packet.bth.opcode;
    match *op {
        SendOp::Write { remote } | SendOp::WriteImm { remote, .. } if opcode.has_reth() => {
            packet.reth = Some(Reth { va: remote.addr, rkey: remote.rkey, length });
        }
        _ => {}
    }
    match *op {
        SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } if opcode.has_immdt() => {
            packet.immdt = Some(ImmDt(imm))
        }
        SendOp::SendInv(rkey) if opcode.has_ieth() => packet.ieth = Some(Ieth { rkey }),
        _ => {}
    }
}

/// Copies payload from the work request's segments, or from what was taken inline at post time.
pub(in crate::ib) fn fill<M: Memory>(
    memory: &M,
    sh: &Shared,
    wr: &SendWr,
    offset: u64,
    into: &mut [u8],
) -> Result<(), crate::memory::AccessError> {
    match &wr.inline {
        Some(bytes) => {
            let at = offset as usize;
            into.copy_from_slice(&bytes[at..at + into.len()]);
            Ok(())
        }
        None if into.is_empty() => Ok(()),
        None => memory.gather(sh.pd(), &wr.sges, offset, into),
    }
}

fn push_headers(burst: &mut Burst, sh: &Shared, packet: &RocePacket<'_>) {
    let filled: Result<(), std::convert::Infallible> = burst.push(&sh.path, packet, 0, |_| Ok(()));
    debug_assert!(filled.is_ok());
}
