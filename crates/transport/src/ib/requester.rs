//! The requester: the send queue of a queue pair and what is in flight from it.
//!
//! Read IBTA vol. 1 §9.7.3 (requests), §9.7.7 (RDMA READ, atomics), §10.8.3.3 (ordering and fences) first. A work request
//! is, in this order: *posted*; *begun* (its segments checked, PSNs given); *sent* up to the cursor; *acknowledged* up to
//! `una`; *retired* from the front with at most one completion. Going back is moving the cursor back to `una`: nothing
//! else remembers what was sent. `emit` builds the packets, `completer` takes the answers, `retire` carries them out.

mod budget;
mod emit;
mod retire;

pub(super) use emit::{Step, fill};
pub(super) use retire::PendingRead;

use std::collections::VecDeque;
use std::time::Instant;

use everywire_wire::Psn;

use super::attr::QpType;
use super::env::{Counter, QpEnv};
use super::local::local_operation;
use super::retry::{Retry, Verdict, earlier};
use super::shared::Shared;
use super::wr::{MAX_MESSAGE, SendOp, SendWr, WcStatus};
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
            wqe.failed = local_operation(env.memory(), sh.pd(), sh.qpn(), &wqe.wr.op);
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
        earlier(self.retry.next(), self.blocked_until)
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

/// Packets of a message: one even if it is empty.
fn packets_of(length: u32, mtu: usize) -> u32 {
    (length as usize).div_ceil(mtu).max(1) as u32
}

/// Units that a READ's responses take of our read window.
fn read_cost(bytes: usize, packets: u32) -> usize {
    bytes + packets as usize * PACKET_OVERHEAD
}
