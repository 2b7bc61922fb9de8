//! The requester: the send queue of an iWARP queue pair and what is outstanding from it.
//!
//! Read RFC 5040 §5 (data transfer and its ordering rules) first. A work request is, in this order: *posted*; *begun* (its
//! segments checked, its MSN given); *sent*, all its FPDUs given to the driver; *done*: the socket has taken its last byte, or,
//! for a READ or an atomic, the answer has landed; *retired* from the front with at most one completion. TCP loses nothing, so
//! nothing is ever sent again. `emit` builds the segments, `answers` takes what comes back.

mod answers;
mod begin;
mod emit;

use std::collections::VecDeque;

use everywire_wire::rdmap::{RdmapOpcode, Terminate};
use everywire_wire::{Qpn, ddp::DdpTarget};

pub(super) use answers::ReadResponse;
pub(super) use emit::{Step, push_empty_write, tagged, untagged};

use begin::measure;

use super::params::Rtr;
use super::shared::Shared;
use crate::ib::attr::QpState;
use crate::ib::env::{Counter, QpEnv, QpEvent};
use crate::ib::local::local_operation;
use crate::ib::wr::{Completion, SendOp, SendWr, WcStatus};

/// A send work request on its way.
#[derive(Debug)]
struct SendWqe {
    wr: SendWr,
    /// Payload, or bytes to read; once begun.
    length: u32,
    /// Of an untagged message; once begun.
    msn: u32,
    /// Stream position behind its last byte; once sent.
    end: u64,
    sent: bool,
    /// The answer has landed.
    answered: bool,
    /// A local check failed: it completes with this once everything before it is complete.
    failed: Option<WcStatus>,
}

/// A work request for good: its place in the order of posting.
type Seq = u64;

#[derive(Debug)]
pub(super) struct Requester {
    sq: VecDeque<SendWqe>,
    /// Of the first in `sq`.
    first: Seq,
    /// Index of the one to send next.
    next: usize,
    /// It has begun.
    begun: bool,
    /// Payload of it that was sent.
    offset: u32,
    /// Of a WRITE with immediate: the WRITE is sent, the immediate is not.
    owes_immediate: bool,
    /// READs and atomics without answer, oldest first.
    reads: VecDeque<Seq>,
    /// Bytes of the oldest READ's answer that have landed.
    landed: u32,
    /// Next MSN of queue 0.
    send_msn: u32,
    /// Next MSN of queue 1.
    request_msn: u32,
    /// The frame that makes the peer ready, not yet sent.
    rtr: Option<Rtr>,
    /// A READ was that frame, and its answer has not come.
    rtr_answer: bool,
    /// Nothing from here on begins: the connection is being closed.
    limit: Option<Seq>,
    /// A work request failed: nothing more begins.
    stopped: bool,
    /// It was completed, and the queue pair has yet to follow.
    broken: bool,
    /// In SQD: everything that had begun is complete and this was reported.
    drained: bool,
}

impl Default for Requester {
    fn default() -> Requester {
        Requester {
            sq: VecDeque::new(),
            first: 0,
            next: 0,
            begun: false,
            offset: 0,
            owes_immediate: false,
            reads: VecDeque::new(),
            landed: 0,
            // RFC 5041 §5.1: MSNs begin at one.
            send_msn: 1,
            request_msn: 1,
            rtr: None,
            rtr_answer: false,
            limit: None,
            stopped: false,
            broken: false,
            drained: false,
        }
    }
}

impl Requester {
    /// A move to RTS; `rtr` is the frame that we owe.
    pub(super) fn start(&mut self, rtr: Option<Rtr>) {
        self.rtr = rtr;
    }

    pub(super) fn len(&self) -> usize {
        self.sq.len()
    }

    pub(super) fn push(&mut self, wr: SendWr) {
        let (length, msn, end) = (0, 0, 0);
        self.sq.push_back(SendWqe { wr, length, msn, end, sent: false, answered: false, failed: None });
    }

    /// What is posted from now on never begins.
    pub(super) fn begin_close(&mut self) {
        let end = self.first + self.sq.len() as u64;
        self.limit.get_or_insert(end);
    }

    /// Everything that was posted before [`Requester::begin_close`] is complete.
    pub(super) fn is_closed(&self) -> bool {
        self.limit.is_some_and(|limit| self.first >= limit)
    }

    /// Whether a message was begun and not finished.
    pub(super) fn is_amid(&self) -> bool {
        self.offset > 0 || self.owes_immediate
    }

    /// Whether a READ's answer has begun to arrive and is not complete.
    pub(super) fn is_amid_answer(&self) -> bool {
        self.landed > 0
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    pub(super) fn begin_drain(&mut self) {
        self.drained = false;
    }

    /// Whether a work request has failed and was completed, since asked last.
    pub(super) fn take_broken(&mut self) -> bool {
        std::mem::take(&mut self.broken)
    }

    /// READs and atomics that the peer holds of its IRD: a READ that made it ready is one of them (RFC 6581 §9).
    fn unanswered(&self) -> usize {
        self.reads.len() + usize::from(self.rtr_answer)
    }

    /// How far what was posted has come, apart from the bytes written: work requests done, bytes of the oldest READ landed.
    pub(super) fn progress(&self) -> (u64, u32) {
        (self.first, self.landed)
    }

    /// Begins the work request that is next, if its turn has come. False: not now.
    fn begin<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, written: u64) -> bool {
        let seq = self.first + self.next as u64;
        // In SQD nothing new begins; nor does what was posted after `disconnect`.
        if sh.state != QpState::Rts || self.stopped || self.limit.is_some_and(|limit| seq >= limit) {
            return false;
        }
        let unanswered = self.unanswered();
        let wqe = &mut self.sq[self.next];
        let op = &wqe.wr.op;
        // A fenced request waits for all READs and atomics before it.
        if wqe.wr.fence && !self.reads.is_empty() {
            return false;
        }
        // Invalidation comes after everything that may still use the key.
        if matches!(op, SendOp::LocalInv(_)) && self.next > 0 {
            return false;
        }
        if op.is_read_or_atomic() && sh.ord() > 0 && unanswered >= sh.ord() {
            return false;
        }
        if op.is_local() {
            wqe.failed = local_operation(env.memory(), sh.pd(), sh.qpn(), &wqe.wr.op);
            self.stopped = wqe.failed.is_some();
            self.finish_message(0);
            self.retire(sh, env, written);
            return true;
        }
        match measure(sh, env, &wqe.wr) {
            Ok(length) => {
                wqe.length = length;
                let msn = match wqe.wr.op {
                    SendOp::Write { .. } => None,
                    ref op if op.is_read_or_atomic() => Some(&mut self.request_msn),
                    _ => Some(&mut self.send_msn),
                };
                if let Some(msn) = msn {
                    wqe.msn = *msn;
                    *msn = msn.wrapping_add(1);
                }
                self.begun = true;
            }
            Err(status) => self.fail_next(sh, env, status, written),
        }
        true
    }

    /// Runs local operations up to the first work request that is sent.
    pub(super) fn run_local<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, written: u64) {
        while !self.begun && self.sq.get(self.next).is_some_and(|wqe| wqe.wr.op.is_local()) {
            if !self.begin(sh, env, written) || self.stopped {
                return;
            }
        }
    }

    /// The work request that is next fails locally: it ends once all before it are complete.
    fn fail_next<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, status: WcStatus, written: u64) {
        self.sq[self.next].failed = Some(status);
        self.stopped = true;
        self.retire(sh, env, written);
    }

    /// Everything of the work request that is next has been sent.
    fn finish_message(&mut self, end: u64) {
        let wqe = &mut self.sq[self.next];
        wqe.sent = true;
        wqe.end = end;
        self.next += 1;
        self.begun = false;
        self.offset = 0;
    }

    /// Takes finished work requests off the front, in order, with their completions.
    pub(super) fn retire<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, written: u64) {
        while let Some(front) = self.sq.front() {
            if let Some(status) = front.failed {
                self.fail_front(sh, env, status);
                return;
            }
            let done = match &front.wr.op {
                op if op.is_read_or_atomic() => front.answered,
                op if op.is_local() => true,
                _ => front.end <= written,
            };
            if !front.sent || !done {
                break;
            }
            self.pop_front(sh, env, WcStatus::Success, 0);
        }
        self.check_drained(sh, env);
    }

    fn pop_front<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, status: WcStatus, vendor_err: u32) {
        let Some(wqe) = self.sq.pop_front() else { return };
        self.first += 1;
        self.next = self.next.saturating_sub(1);
        if matches!(wqe.wr.op, SendOp::Write { .. } | SendOp::WriteImm { .. } | SendOp::Read { .. }) {
            env.count(Counter::RdmaSends, 1);
        }
        if status != WcStatus::Success || wqe.wr.signaled || sh.config.sq_sig_all {
            let event = status != WcStatus::Success;
            env.complete(sh.config.send_cq, send_completion(sh, &wqe, status, vendor_err), event);
        }
    }

    fn fail_front<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, status: WcStatus) {
        env.count(Counter::ReqCqeError, 1);
        env.count(Counter::SendErr, 1);
        self.pop_front(sh, env, status, 0);
        self.stopped = true;
        self.broken = true;
    }

    /// In SQD: reports once that what had begun is complete.
    pub(super) fn check_drained<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        if sh.state == QpState::Sqd && self.next == 0 && !self.begun && !self.drained {
            self.drained = true;
            if sh.tell_drained {
                env.event(sh.qpn(), QpEvent::SqDrained);
            }
        }
    }

    /// Completes everything with "flushed", in order, but for one that is to blame, and forgets what was outstanding.
    pub(super) fn flush<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, blamed: Option<Blamed>) {
        while !self.sq.is_empty() {
            match blamed.filter(|b| b.seq == self.first) {
                Some(b) => {
                    env.count(Counter::ReqCqeError, 1);
                    match b.status {
                        WcStatus::RemAccessErr => env.count(Counter::ReqRemoteAccessErrors, 1),
                        WcStatus::RemInvReqErr => env.count(Counter::ReqRemoteInvalidRequest, 1),
                        _ => {}
                    }
                    self.pop_front(sh, env, b.status, b.vendor_err);
                }
                None => {
                    env.count(Counter::ReqCqeFlushError, 1);
                    self.pop_front(sh, env, WcStatus::WrFlushErr, 0);
                }
            }
        }
        let first = self.first;
        *self = Requester { sq: std::mem::take(&mut self.sq), first, stopped: true, ..Requester::default() };
    }

    /// The READ or atomic whose answer is due, to blame for a wrong one.
    pub(super) fn blame_answer(&self) -> Option<Blamed> {
        let seq = *self.reads.front()?;
        Some(Blamed { seq, status: WcStatus::BadRespErr, vendor_err: 0 })
    }

    /// The work request that a TERMINATE of the peer is about, if it is still here.
    pub(super) fn blame(&self, term: &Terminate, status: WcStatus) -> Option<Blamed> {
        let header = term.ddp?;
        let begun = self.next + usize::from(self.begun);
        let opcode = RdmapOpcode::from_bits(header.ulp & 0x0f)?;
        let index = self.sq.iter().take(begun).position(|wqe| match (header.target, &wqe.wr.op) {
            (DdpTarget::Tagged { stag, to }, SendOp::Write { remote } | SendOp::WriteImm { remote, .. }) => {
                let inside = to.wrapping_sub(remote.addr) <= u64::from(wqe.length);
                opcode == RdmapOpcode::Write && stag == remote.rkey && inside
            }
            (
                DdpTarget::Untagged { qn: 0, msn, .. },
                SendOp::Send | SendOp::SendInv(_) | SendOp::WriteImm { .. },
            ) => wqe.msn == msn,
            (DdpTarget::Untagged { qn: 1, msn, .. }, op) => op.is_read_or_atomic() && wqe.msn == msn,
            _ => false,
        })?;
        let vendor_err = u32::from(term.error.to_u16());
        Some(Blamed { seq: self.first + index as u64, status, vendor_err })
    }
}

/// A work request that ends with a status of its own when the others are flushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blamed {
    seq: Seq,
    status: WcStatus,
    vendor_err: u32,
}

fn send_completion(sh: &Shared, wqe: &SendWqe, status: WcStatus, vendor_err: u32) -> Completion {
    let plain = Completion::of(wqe.wr.wr_id, wqe.wr.op.wc_opcode(), sh.qpn(), Qpn::default());
    Completion { status, byte_len: wqe.length, vendor_err, ..plain }
}
