//! Builds request packets: which one is next, whether it may go now, and its headers.
//!
//! Read IBTA vol. 1 §9.3 and §9.4 (packet formats by operation), §9.7.2 (PSNs) and §9.7.5.1.2 (AckReq). The per-packet
//! path does not allocate. Windows are read once and charged once a burst.

use std::time::Instant;

use everywire_wire::{AtomicEth, Opcode, Psn, Reth, RocePacket};

use super::budget::Budget;
use super::{ACK_EVERY, Flight, MAX_PSN_IN_FLIGHT, ReadRun, Requester, read_cost};
use crate::congestion::window::{PATIENCE, cost};
use crate::ib::attr::{QpState, QpType};
use crate::ib::burst::Burst;
use crate::ib::env::{Counter, QpEnv};
use crate::ib::packet::{UC_BIT, extend, message_opcode};
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
        // IBTA §9.7.5.1.2: whoever needs an answer asks. The last packet of a message does, unless nobody waits for its
        // completion and another message is queued behind it, whose own answer will cover it.
        let waited_for = wqe.wr.signaled || sh.config.sq_sig_all || index + 1 == self.sq.len();
        let asks = last && waited_for || self.unasked + 1 >= ACK_EVERY || budget.closes(units);
        packet.bth.ack_req = sh.is_rc() && asks;
        packet.bth.solicited = last && wqe.wr.solicited && !matches!(wqe.wr.op, SendOp::Write { .. });
        if sh.ty() == QpType::Uc {
            packet.bth.opcode = Opcode(opcode.0 | UC_BIT);
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
