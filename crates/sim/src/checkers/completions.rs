//! Work requests and their completions: exactly once, in queue order, with a status that the request can have.
//!
//! Read IBTA vol. 1 §10.7.3 (completion rules) and §10.8.5 (flush) first. A [`SendLedger`] watches one send queue, a
//! [`RecvLedger`] one receive queue, a [`SharedLedger`] one shared receive queue. What an end means for memory is the caller's
//! affair: each completion is turned into the list of requests that it ended.

use std::collections::{BTreeMap, VecDeque};

use everywire_verbs::{Completion, WcOpcode, WcStatus};

use super::Violation;
use crate::{ensure, violation};

/// How a work request ended, as the program must understand it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was done.
    Success,
    /// It was the one that failed.
    Failed(WcStatus),
    /// It was flushed because an earlier one failed or the queue pair was in ERR.
    Flushed,
}

/// What a send work request may end as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendExpect {
    /// The program's token.
    pub wr_id: u64,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// The opcode of its completion.
    pub opcode: WcOpcode,
    /// Bytes that the completion of a READ or an atomic must report.
    pub byte_len: Option<u32>,
    /// Statuses of which one must come, for a request that is bound to fail; empty for one that is bound to succeed.
    pub must_fail: Vec<WcStatus>,
}

/// Failures that the environment, not the request, can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Excuses {
    /// The peer may be gone or the network too bad: RETRY_EXC_ERR is no surprise.
    pub retry: bool,
    /// Receives may be missing for too long: RNR_RETRY_EXC_ERR is no surprise.
    pub rnr: bool,
    /// The queue pair may be put to ERR from outside (by the program, by a peer's fault): a flush may come first.
    pub flush: bool,
}

/// The send queue of one queue pair.
#[derive(Debug, Clone)]
pub struct SendLedger {
    name: String,
    open: VecDeque<SendExpect>,
    failed: bool,
    /// What the environment may do.
    pub excuses: Excuses,
    completions: u64,
}

impl SendLedger {
    /// An empty queue; `name` is for messages.
    pub fn new(name: impl Into<String>) -> Self {
        SendLedger {
            name: name.into(),
            open: VecDeque::new(),
            failed: false,
            excuses: Excuses::default(),
            completions: 0,
        }
    }

    /// The program posted a work request.
    pub fn posted(&mut self, expect: SendExpect) {
        self.open.push_back(expect);
    }

    /// Requests that have not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Requests that have not ended and owe a completion by themselves.
    pub fn owed(&self) -> usize {
        if self.failed { self.open.len() } else { self.open.iter().filter(|e| e.signaled).count() }
    }

    /// Whether a request has failed, so that everything after it must be flushed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The send queue runs again (SQE to RTS), or the queue pair was reset: nothing is owed any more.
    pub fn restart(&mut self) -> Vec<SendExpect> {
        self.failed = false;
        self.open.drain(..).collect()
    }

    /// A completion was polled: the requests it ended, in queue order.
    pub fn completed(&mut self, wc: &Completion) -> Result<Vec<(u64, Ended)>, Violation> {
        self.completions += 1;
        let Some(index) = self.open.iter().position(|e| e.wr_id == wc.wr_id) else {
            return Err(violation!(
                "{}: completion of {:#x}, which is not open: {wc:?}",
                self.name,
                wc.wr_id
            ));
        };
        let mut ended = Vec::with_capacity(index + 1);
        for skipped in self.open.drain(..index) {
            // An unsignalled request completes by itself only when it does not succeed; so it succeeded.
            ensure!(
                !skipped.signaled && !self.failed && skipped.must_fail.is_empty(),
                "{}: {:#x} ended before {:#x}, which was posted earlier and owes a completion",
                self.name,
                wc.wr_id,
                skipped.wr_id
            );
            ended.push((skipped.wr_id, Ended::Success));
        }
        let Some(expect) = self.open.pop_front() else {
            return Err(violation!("{}: the ledger is empty", self.name));
        };
        ended.push((expect.wr_id, self.judge(&expect, wc)?));
        Ok(ended)
    }

    fn judge(&mut self, expect: &SendExpect, wc: &Completion) -> Result<Ended, Violation> {
        let name = &self.name;
        if wc.status == WcStatus::Success {
            ensure!(!self.failed, "{name}: {:#x} succeeded after an earlier request failed", wc.wr_id);
            ensure!(
                expect.must_fail.is_empty(),
                "{name}: {:#x} succeeded and should have been {:?}",
                wc.wr_id,
                expect.must_fail
            );
            ensure!(
                expect.signaled,
                "{name}: {:#x} is unsignalled, succeeded, and has a completion",
                wc.wr_id
            );
            ensure!(
                wc.opcode == expect.opcode,
                "{name}: {:#x} is {:?}, completed as {:?}",
                wc.wr_id,
                expect.opcode,
                wc.opcode
            );
            if let Some(len) = expect.byte_len {
                ensure!(
                    wc.byte_len == len,
                    "{name}: {:#x} read {len} bytes, completion says {}",
                    wc.wr_id,
                    wc.byte_len
                );
            }
            return Ok(Ended::Success);
        }
        if wc.status == WcStatus::WrFlushErr {
            ensure!(
                self.failed || self.excuses.flush,
                "{name}: {:#x} flushed, but nothing failed before it",
                wc.wr_id
            );
            self.failed = true;
            return Ok(Ended::Flushed);
        }
        ensure!(
            !self.failed,
            "{name}: {:#x} is {:?} after a failure; it must be flushed",
            wc.wr_id,
            wc.status
        );
        let excused = (wc.status == WcStatus::RetryExcErr && self.excuses.retry)
            || (wc.status == WcStatus::RnrRetryExcErr && self.excuses.rnr);
        ensure!(
            excused || expect.must_fail.contains(&wc.status),
            "{name}: {:#x} ({:?}) is {:?}, expected {:?}",
            wc.wr_id,
            expect.opcode,
            wc.status,
            expect.must_fail
        );
        self.failed = true;
        Ok(Ended::Failed(wc.status))
    }
}

/// The receive queue of one queue pair.
#[derive(Debug, Clone)]
pub struct RecvLedger {
    name: String,
    open: VecDeque<u64>,
    failed: bool,
    /// The queue pair may be put to ERR from outside.
    pub may_flush: bool,
    /// Failures of a receive that are expected: a message too long, a bad segment.
    pub may_fail: Vec<WcStatus>,
}

impl RecvLedger {
    /// An empty queue; `name` is for messages.
    pub fn new(name: impl Into<String>) -> Self {
        RecvLedger {
            name: name.into(),
            open: VecDeque::new(),
            failed: false,
            may_flush: false,
            may_fail: Vec::new(),
        }
    }

    /// The program posted a receive.
    pub fn posted(&mut self, wr_id: u64) {
        self.open.push_back(wr_id);
    }

    /// Receives that have not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// A completion was polled: how the receive it names ended. Receives end in the order in which they were posted.
    pub fn completed(&mut self, wc: &Completion) -> Result<Ended, Violation> {
        let Some(head) = self.open.pop_front() else {
            return Err(violation!(
                "{}: no receive is open, but {:#x} completed: {wc:?}",
                self.name,
                wc.wr_id
            ));
        };
        ensure!(head == wc.wr_id, "{}: {:#x} completed, {head:#x} is next", self.name, wc.wr_id);
        judge_recv(&self.name, &mut self.failed, self.may_flush, &self.may_fail, wc)
    }
}

fn judge_recv(
    name: &str,
    failed: &mut bool,
    may_flush: bool,
    may_fail: &[WcStatus],
    wc: &Completion,
) -> Result<Ended, Violation> {
    match wc.status {
        WcStatus::Success => {
            ensure!(!*failed, "{name}: receive {:#x} succeeded after a failure", wc.wr_id);
            let is_receive = matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
            ensure!(is_receive, "{name}: receive {:#x} completed as {:?}", wc.wr_id, wc.opcode);
            Ok(Ended::Success)
        }
        WcStatus::WrFlushErr => {
            ensure!(*failed || may_flush, "{name}: receive {:#x} flushed without a reason", wc.wr_id);
            *failed = true;
            Ok(Ended::Flushed)
        }
        status => {
            ensure!(!*failed, "{name}: receive {:#x} is {status:?} after a failure", wc.wr_id);
            ensure!(
                may_fail.contains(&status),
                "{name}: receive {:#x} is {status:?}, expected {may_fail:?}",
                wc.wr_id
            );
            *failed = true;
            Ok(Ended::Failed(status))
        }
    }
}

/// A shared receive queue: receives are taken in order, and each ends at most once, through the queue pair that took it.
#[derive(Debug, Clone)]
pub struct SharedLedger {
    name: String,
    /// By token: its place in the order of posting.
    open: BTreeMap<u64, u64>,
    posted: u64,
    ended: u64,
    /// By queue pair: the place of the last receive it completed, and whether it has failed.
    users: BTreeMap<u32, (u64, bool)>,
}

impl SharedLedger {
    /// An empty queue; `name` is for messages.
    pub fn new(name: impl Into<String>) -> Self {
        SharedLedger { name: name.into(), open: BTreeMap::new(), posted: 0, ended: 0, users: BTreeMap::new() }
    }

    /// The program posted a receive.
    pub fn posted(&mut self, wr_id: u64) {
        self.posted += 1;
        self.open.insert(wr_id, self.posted);
    }

    /// Receives that have not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The tokens of the receives that have not ended.
    pub fn open_ids(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// A completion of queue pair `wc.qpn` was polled. A queue pair completes what it took in the order it took it.
    pub fn completed(
        &mut self,
        wc: &Completion,
        may_flush: bool,
        may_fail: &[WcStatus],
    ) -> Result<Ended, Violation> {
        let Some(place) = self.open.remove(&wc.wr_id) else {
            return Err(violation!("{}: {:#x} is not open, but completed: {wc:?}", self.name, wc.wr_id));
        };
        self.ended += 1;
        let (last, failed) = self.users.entry(wc.qpn.get()).or_insert((0, false));
        ensure!(place > *last, "{}: {:?} completed receive no. {place} after {last}", self.name, wc.qpn);
        *last = place;
        judge_recv(&self.name, failed, may_flush, may_fail, wc)
    }

    /// Checks that nothing was taken that did not end: `left` receives are still in the queue by the device's account.
    pub fn verify(&self, left: u64) -> Result<(), Violation> {
        ensure!(
            self.posted == self.ended + left,
            "{}: {} posted, {} ended, {left} left",
            self.name,
            self.posted,
            self.ended
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests;
