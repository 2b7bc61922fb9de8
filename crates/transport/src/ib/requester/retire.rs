//! What the peer has answered leaves the send queue: acknowledgement, retirement, completions, errors.
//!
//! Read IBTA vol. 1 §9.7.5.1 (what an acknowledgement covers) and §10.8.3.3 (order of completions) first. A work request is
//! retired from the front only, with at most one completion. `completer` decides what an answer means; this carries it
//! out.

use std::time::Instant;

use everywire_wire::Psn;

use super::{Requester, SendWqe, read_cost};
use crate::ib::attr::QpState;
use crate::ib::env::{Counter, QpEnv, QpEvent};
use crate::ib::qp_state::StateEvent;
use crate::ib::retry::Retry;
use crate::ib::shared::Shared;
use crate::ib::wr::{Completion, SendOp, SendWr, WcStatus};

/// The READ or atomic whose answer is due next.
#[derive(Clone, Copy, Debug)]
pub(in crate::ib) struct PendingRead {
    pub(in crate::ib) atomic: bool,
    /// Of the due packet within its run.
    pub(in crate::ib) index: u32,
    /// Of the run.
    pub(in crate::ib) packets: u32,
    pub(in crate::ib) pristine: bool,
    /// Of the due packet's payload within the work request.
    pub(in crate::ib) offset: u64,
    pub(in crate::ib) payload_len: usize,
}

impl Requester {
    /// Everything before `upto` has been received by the peer. Stops at a READ or atomic whose answer is missing;
    /// false then (an implied NAK, IBTA §9.7.5.1.1).
    pub(in crate::ib) fn advance<E: QpEnv>(
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
    pub(super) fn retire<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E) {
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

    pub(super) fn pop_front<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        status: WcStatus,
        vendor_err: u32,
    ) {
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
            // IBTA §11.4.2.2: an error is an event even for those who wait for solicited ones only.
            let event = status != WcStatus::Success;
            env.complete(sh.config.send_cq, send_completion(sh, &wqe, status, vendor_err), event);
        }
    }

    /// Ends the first work request in error; the queue pair follows with ERR or SQE.
    pub(in crate::ib) fn fail_front<E: QpEnv>(
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

    /// In SQD: reports once that what had begun is complete (IBTA §10.3.1.5).
    pub(in crate::ib) fn check_drained<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        if sh.state == QpState::Sqd && self.begun == 0 && !self.drained {
            self.drained = true;
            if sh.attr.en_sqd_async_notify == Some(true) {
                env.event(sh.qpn(), QpEvent::SqDrained);
            }
        }
    }

    pub(in crate::ib) fn una(&self) -> Psn {
        self.una
    }

    pub(in crate::ib) fn sent_end(&self) -> Psn {
        self.sent_end
    }

    pub(in crate::ib) fn retry_mut(&mut self) -> &mut Retry {
        &mut self.retry
    }

    pub(in crate::ib) fn front(&self) -> Option<&SendWr> {
        self.sq.front().map(|w| &w.wr)
    }

    /// The response that is due at `una`, if a READ or an atomic is there and was sent.
    pub(in crate::ib) fn pending_read(&self, mtu: usize) -> Option<PendingRead> {
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
    pub(in crate::ib) fn answered_one<E: QpEnv>(
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
    pub(in crate::ib) fn is_new_gap(&mut self, psn: Psn) -> bool {
        let Some(seen) = self.gap_seen else { return true };
        if seen.before(psn) {
            self.gap_seen = Some(psn);
        }
        psn == self.una.next() && psn.at_or_before(seen)
    }

    pub(in crate::ib) fn see_gap(&mut self, psn: Psn) {
        self.gap_seen = Some(psn);
    }
}

fn send_completion(sh: &Shared, wqe: &SendWqe, status: WcStatus, vendor_err: u32) -> Completion {
    let plain = Completion::of(wqe.wr.wr_id, wqe.wr.op.wc_opcode(), sh.qpn(), sh.dest_qp);
    Completion { status, byte_len: wqe.length, vendor_err, ..plain }
}
