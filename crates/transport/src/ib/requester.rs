//! The requester: the send queue of a queue pair and what is in flight from it.
//!
//! Read IBTA vol. 1 §9.7.3 (requests), §9.7.7 (RDMA READ, atomics), §10.8.3.3 (ordering and fences) first. A work request
//! is, in this order: *posted*; *begun* (its segments checked, PSNs given); *sent* up to the cursor; *acknowledged* up to
//! `una`; *retired* from the front with at most one completion. Going back is moving the cursor back to `una`: nothing
//! else remembers what was sent. `emit` builds the packets, `completer` takes the answers.

mod emit;

pub(super) use emit::{Step, fill};

use std::collections::VecDeque;
use std::time::Instant;

use everywire_wire::Psn;

use super::attr::{QpState, QpType};
use super::env::{Counter, QpEnv, QpEvent};
use super::qp_state::StateEvent;
use super::retry::{Retry, Verdict};
use super::shared::Shared;
use super::wr::{Completion, MAX_MESSAGE, SendOp, SendWr, WcStatus};
use crate::congestion::window::PACKET_OVERHEAD;
use crate::memory::Memory;

/// Most packets sent without asking for an acknowledgement.
pub const ACK_EVERY: u32 = 16;
/// Most PSNs unacknowledged: far below 2^23, where old and new cannot be told apart (IBTA C9-118).
pub const MAX_PSN_IN_FLIGHT: u32 = 1 << 20;
/// Most bytes asked for by one READ request on the wire; longer work requests go as several.
pub const READ_RUN_BYTES: usize = 64 * 1024;

/// A send work request on its way.
#[derive(Debug)]
struct SendWqe {
    wr: SendWr,
    /// Payload, or bytes to read.
    length: u32,
    /// Once begun.
    first_psn: Psn,
    /// PSNs that it takes; 0 for local operations.
    packets: u32,
    /// A local check failed: it completes with this once everything before it is complete.
    failed: Option<WcStatus>,
}

impl SendWqe {
    fn end_psn(&self) -> Psn {
        self.first_psn.add(self.packets)
    }
}

/// A READ or atomic request that awaits its response. Its bounds never change: a responder holds the original request
/// against every repetition of it.
#[derive(Clone, Copy, Debug)]
struct ReadRun {
    first: Psn,
    packets: u32,
    /// Sent once and not again, so its responses must come in the standard's sequence of opcodes.
    pristine: bool,
}

impl ReadRun {
    fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    fn holds(&self, psn: Psn) -> bool {
        self.first.at_or_before(psn) && psn.before(self.end())
    }
}

/// A request packet in flight and what it took of the window.
#[derive(Clone, Copy, Debug)]
struct Flight {
    psn: Psn,
    cost: u32,
}

/// The next packet to send.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Index into the send queue.
    wqe: usize,
    /// Packet within it.
    packet: u32,
}

#[derive(Debug, Default)]
pub(super) struct Requester {
    sq: VecDeque<SendWqe>,
    /// How many at the front have begun.
    begun: usize,
    cursor: Cursor,
    /// For the next work request that begins.
    next_psn: Psn,
    /// Oldest PSN not acknowledged (or, for a READ, not answered).
    una: Psn,
    /// One past the highest PSN ever sent.
    sent_end: Psn,
    reads: VecDeque<ReadRun>,
    flight: VecDeque<Flight>,
    /// Units of the peer's window that `flight` holds.
    charged: usize,
    /// Units of our read window.
    read_charged: usize,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
    retry: Retry,
    /// A closed window holds us up: when to send one packet in spite of it.
    blocked_until: Option<Instant>,
    /// That moment has come.
    overdraft: bool,
    /// After a timeout: one packet at a time until there is progress.
    probing: bool,
    /// Highest response that came ahead of its turn since the cursor last went back.
    gap_seen: Option<Psn>,
    /// In SQD: everything that had begun is complete and this was reported.
    drained: bool,
}

impl Requester {
    /// Takes the attributes of a move to RTS (also after SQD or SQE).
    pub(super) fn configure(&mut self, sh: &Shared) {
        let set = &sh.attr;
        self.retry.configure(
            set.timeout.unwrap_or(0),
            set.retry_cnt.unwrap_or(0),
            set.rnr_retry.unwrap_or(0),
        );
    }

    /// Where a move from RTR to RTS starts.
    pub(super) fn start(&mut self, psn: Psn) {
        (self.next_psn, self.una, self.sent_end) = (psn, psn, psn);
    }

    pub(super) fn len(&self) -> usize {
        self.sq.len()
    }

    pub(super) fn push(&mut self, wr: SendWr) {
        self.sq.push_back(SendWqe { wr, length: 0, first_psn: Psn::default(), packets: 0, failed: None });
    }

    /// Begins the work request at the cursor, if its turn has come. False: not now.
    fn begin<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E) -> bool {
        let at = self.cursor.wqe;
        let wqe = &mut self.sq[at];
        // IBTA C10-100: a fenced request waits for all READs and atomics before it.
        if wqe.wr.fence && !self.reads.is_empty() {
            return false;
        }
        if matches!(wqe.wr.op, SendOp::LocalInv(_)) && at > 0 {
            // Invalidation must not overtake anything that may still be sent again from that key.
            return false;
        }
        if wqe.wr.op.is_local() {
            wqe.failed = local_operation(sh, env, &wqe.wr);
            wqe.packets = 0;
        } else {
            match measure(sh, env, &wqe.wr) {
                Ok(length) => {
                    wqe.length = length;
                    wqe.packets = packets_of(length, sh.mtu);
                }
                Err(status) => wqe.failed = Some(status),
            }
        }
        wqe.first_psn = self.next_psn;
        self.next_psn = wqe.end_psn();
        self.begun += 1;
        self.retire(sh, env);
        true
    }

    /// Everything before `upto` has been received by the peer. Stops at a READ or atomic whose answer is missing;
    /// false then (an implied NAK, IBTA §9.7.5.1.1).
    pub(super) fn advance<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        upto: Psn,
    ) -> bool {
        let before = self.una;
        let mut complete = true;
        while self.una.before(upto) {
            let Some(front) = self.sq.front().filter(|_| self.begun > 0) else { break };
            if front.wr.op.is_read_or_atomic() {
                complete = false;
                break;
            }
            let end = front.end_psn();
            if end.at_or_before(upto) {
                self.una = end;
                self.retire(sh, env);
            } else {
                self.una = upto;
            }
        }
        if self.una != before {
            self.moved(sh, env, now);
        }
        complete
    }

    /// `una` has moved: gives window back, refills the counters, and keeps the cursor from falling behind.
    fn moved<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, now: Instant) {
        let mut cost = 0;
        while let Some(flight) = self.flight.front().filter(|f| f.psn.before(self.una)) {
            cost += flight.cost as usize;
            self.flight.pop_front();
        }
        if cost > 0 {
            self.charged -= cost;
            env.window(sh.path.dst).acknowledge(cost);
        }
        while self.reads.front().is_some_and(|run| run.end().at_or_before(self.una)) {
            self.reads.pop_front();
        }
        if let (0, Some(front)) = (self.cursor.wqe, self.sq.front().filter(|_| self.begun > 0)) {
            let acked = front.first_psn.distance(self.una).max(0) as u32;
            self.cursor.packet = self.cursor.packet.max(acked);
        }
        self.probing = false;
        self.gap_seen = None;
        let outstanding = self.outstanding();
        self.retry.answered(self.una, now);
        self.retry.progress(now, outstanding);
    }

    /// Takes finished work requests off the front, in order, with their completions (IBTA C10-96).
    fn retire<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E) {
        while self.begun > 0 && sh.fault.is_none() {
            let front = &self.sq[0];
            if let Some(status) = front.failed {
                self.fail_front(sh, env, status, 0);
                return;
            }
            if front.packets > 0 && self.una.before(front.end_psn()) {
                return;
            }
            self.pop_front(sh, env, WcStatus::Success, 0);
        }
        self.check_drained(sh, env);
    }

    fn pop_front<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, status: WcStatus, vendor_err: u32) {
        let Some(wqe) = self.sq.pop_front() else { return };
        self.begun = self.begun.saturating_sub(1);
        if self.cursor.wqe > 0 {
            self.cursor.wqe -= 1;
        } else {
            self.cursor.packet = 0;
        }
        if matches!(wqe.wr.op, SendOp::Write { .. } | SendOp::WriteImm { .. } | SendOp::Read { .. }) {
            env.count(Counter::RdmaSends, 1);
        }
        // IBTA §10.8.6: an unsignalled work request that succeeds makes no completion.
        if status != WcStatus::Success || wqe.wr.signaled || sh.config.sq_sig_all {
            env.complete(sh.config.send_cq, send_completion(sh, &wqe, status, vendor_err), false);
        }
    }

    /// Ends the first work request in error; the queue pair follows with ERR or SQE.
    pub(super) fn fail_front<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        status: WcStatus,
        vendor_err: u32,
    ) {
        env.count(Counter::ReqCqeError, 1);
        match status {
            WcStatus::RetryExcErr => env.count(Counter::RetryExceededErr, 1),
            WcStatus::RnrRetryExcErr => env.count(Counter::RetryRnrExceededErr, 1),
            WcStatus::RemAccessErr => env.count(Counter::ReqRemoteAccessErrors, 1),
            WcStatus::RemInvReqErr => env.count(Counter::ReqRemoteInvalidRequest, 1),
            WcStatus::LocProtErr | WcStatus::LocLenErr | WcStatus::LocQpOpErr => {
                env.count(Counter::SendErr, 1)
            }
            _ => {}
        }
        self.pop_front(sh, env, status, vendor_err);
        sh.raise(StateEvent::SendError);
    }

    /// Moves the cursor back to the oldest unacknowledged packet: everything in flight counts as lost or ignored.
    pub(super) fn go_back<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        let packet = match self.sq.front() {
            Some(front) if self.begun > 0 => front.first_psn.distance(self.una).max(0) as u32,
            _ => 0,
        };
        self.cursor = Cursor { wqe: 0, packet };
        self.gap_seen = None;
        for run in &mut self.reads {
            run.pristine = false;
        }
        self.release(sh, env);
    }

    /// Gives back all window units without calling them acknowledged.
    fn release<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        self.flight.clear();
        self.unasked = 0;
        if self.charged > 0 {
            env.window(sh.path.dst).release(std::mem::take(&mut self.charged));
        }
        if self.read_charged > 0 {
            env.read_window().release(std::mem::take(&mut self.read_charged));
        }
    }

    /// Resends from `una`, or gives up if the retries are spent.
    pub(super) fn setback<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant) {
        match self.retry.setback(now) {
            Verdict::Again => self.go_back(sh, env),
            Verdict::GiveUp => self.fail_front(sh, env, WcStatus::RetryExcErr, 0),
        }
    }

    pub(super) fn handle_timeout<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant) {
        self.retry.end_wait(now);
        if self.blocked_until.is_some_and(|t| t <= now) {
            self.blocked_until = None;
            self.overdraft = true;
        }
        if self.retry.expired(now) {
            env.count(Counter::LocalAckTimeoutErr, 1);
            env.window(sh.path.dst).lost();
            self.setback(sh, env, now);
            self.probing = true;
        } else if self.retry.take_early(now) {
            self.go_back(sh, env);
            self.probing = true;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.retry.next(), self.blocked_until].into_iter().flatten().min()
    }

    /// In SQD: reports once that what had begun is complete (IBTA §10.3.1.5).
    pub(super) fn check_drained<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        if sh.state == QpState::Sqd && self.begun == 0 && !self.drained {
            self.drained = true;
            if sh.attr.en_sqd_async_notify == Some(true) {
                env.event(sh.qpn(), QpEvent::SqDrained);
            }
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    pub(super) fn begin_drain(&mut self) {
        self.drained = false;
    }

    /// Completes everything with "flushed", in order, and forgets what was in flight (IBTA §10.3.1.7).
    pub(super) fn flush<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        self.halt(sh, env);
        while !self.sq.is_empty() {
            env.count(Counter::ReqCqeFlushError, 1);
            self.pop_front(sh, env, WcStatus::WrFlushErr, 0);
        }
        self.begun = 0;
        self.cursor = Cursor::default();
    }

    /// Stops all timers and gives windows back, keeping the queue.
    pub(super) fn halt<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        self.release(sh, env);
        self.reads.clear();
        self.retry.reset();
        self.probing = false;
        self.gap_seen = None;
        self.blocked_until = None;
        self.overdraft = false;
        if sh.is_rc() && sh.attr.path.is_some() {
            env.window(sh.path.dst).forget(sh.qpn());
            env.read_window().forget(sh.qpn());
        }
        // Whatever answers still come belong to nothing.
        (self.una, self.next_psn) = (self.sent_end, self.sent_end);
    }

    /// Forgets everything, without completions (a move to RESET).
    pub(super) fn clear<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        self.halt(sh, env);
        *self = Requester::default();
    }
}

/// Does a local operation; the status it fails with, if it does.
fn local_operation<E: QpEnv>(sh: &Shared, env: &mut E, wr: &SendWr) -> Option<WcStatus> {
    let (pd, qpn) = (sh.pd(), sh.qpn());
    let memory = env.memory();
    let done = match &wr.op {
        SendOp::LocalInv(key) => memory.invalidate_local(pd, qpn, *key),
        SendOp::BindMw(bind) => memory.bind_window(pd, qpn, bind).map(drop),
        SendOp::FastReg(reg) => memory.fast_register(pd, qpn, reg),
        _ => Ok(()),
    };
    done.err().map(|_| WcStatus::MwBindErr)
}

/// Checks a work request's segments and gives its length.
fn measure<E: QpEnv>(sh: &Shared, env: &mut E, wr: &SendWr) -> Result<u32, WcStatus> {
    let asked = wr.length();
    // IBTA §9.7.1, C10-93: 2^31 bytes; a datagram is one packet.
    let limit = if sh.ty() == QpType::Ud { sh.mtu as u64 } else { MAX_MESSAGE };
    // Half the PSN circle is one packet too many: 2^31 bytes at MTU 256.
    if asked > limit || asked.div_ceil(sh.mtu as u64) >= 1 << 23 {
        return Err(WcStatus::LocLenErr);
    }
    let atomic = matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    if atomic && asked < 8 {
        return Err(WcStatus::LocLenErr);
    }
    let sink = wr.op.is_read_or_atomic();
    if sink && sh.max_rd_atomic == 0 {
        return Err(WcStatus::LocQpOpErr);
    }
    if wr.inline.is_none() && asked > 0 {
        env.memory().check_local(sh.pd(), &wr.sges, sink).map_err(|_| WcStatus::LocProtErr)?;
    }
    Ok(if atomic { 8 } else { asked as u32 })
}

fn send_completion(sh: &Shared, wqe: &SendWqe, status: WcStatus, vendor_err: u32) -> Completion {
    Completion {
        wr_id: wqe.wr.wr_id,
        status,
        opcode: wqe.wr.op.wc_opcode(),
        byte_len: wqe.length,
        imm: None,
        invalidated: None,
        qpn: sh.qpn(),
        src_qp: sh.dest_qp,
        grh: false,
        solicited: false,
        vendor_err,
    }
}

/// Packets of a message: one even if it is empty.
fn packets_of(length: u32, mtu: usize) -> u32 {
    (length as usize).div_ceil(mtu).max(1) as u32
}

/// Units that a READ's responses take of our read window.
fn read_cost(bytes: usize, packets: u32) -> usize {
    bytes + packets as usize * PACKET_OVERHEAD
}

/// The READ or atomic whose answer is due next.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRead {
    pub(super) atomic: bool,
    /// Of the due packet within its run.
    pub(super) index: u32,
    /// Of the run.
    pub(super) packets: u32,
    pub(super) pristine: bool,
    /// Of the due packet's payload within the work request.
    pub(super) offset: u64,
    pub(super) payload_len: usize,
}

/// What the completer needs to know and do.
impl Requester {
    pub(super) fn una(&self) -> Psn {
        self.una
    }

    pub(super) fn sent_end(&self) -> Psn {
        self.sent_end
    }

    pub(super) fn retry_mut(&mut self) -> &mut Retry {
        &mut self.retry
    }

    pub(super) fn front(&self) -> Option<&SendWr> {
        self.sq.front().map(|w| &w.wr)
    }

    /// The response that is due at `una`, if a READ or an atomic is there and was sent.
    pub(super) fn pending_read(&self, mtu: usize) -> Option<PendingRead> {
        let front = self.sq.front().filter(|w| self.begun > 0 && w.wr.op.is_read_or_atomic())?;
        let run = self.reads.front().filter(|r| r.holds(self.una))?;
        let offset = front.first_psn.distance(self.una) as usize * mtu;
        Some(PendingRead {
            atomic: front.wr.op.is_atomic(),
            index: run.first.distance(self.una) as u32,
            packets: run.packets,
            pristine: run.pristine,
            offset: offset as u64,
            payload_len: mtu.min(front.length as usize - offset),
        })
    }

    /// The answer at `una` was taken.
    pub(super) fn answered_one<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        bytes: usize,
    ) {
        if self.front().is_some_and(|wr| !wr.op.is_atomic()) {
            let units = read_cost(bytes, 1).min(self.read_charged);
            self.read_charged -= units;
            env.read_window().acknowledge(units);
        }
        self.una = self.una.next();
        self.retire(sh, env);
        self.moved(sh, env, now);
    }

    /// Whether a response at `psn`, ahead of its turn, shows a loss that was not acted upon: the first since going
    /// back, or the packet right after the missing one once more.
    pub(super) fn is_new_gap(&mut self, psn: Psn) -> bool {
        let Some(seen) = self.gap_seen else { return true };
        if seen.before(psn) {
            self.gap_seen = Some(psn);
        }
        psn == self.una.next() && psn.at_or_before(seen)
    }

    pub(super) fn see_gap(&mut self, psn: Psn) {
        self.gap_seen = Some(psn);
    }
}
