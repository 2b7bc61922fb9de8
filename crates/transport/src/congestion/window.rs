//! The window of bytes in flight to one peer address, shared by all RC queue pairs to it.
//!
//! An unprivileged receiver has a socket buffer of 212,992 bytes, counted in the kernel's own unit (about twice the
//! payload); a sender that keeps more than fits in flight loses packets on an idle network. The window starts at what
//! certainly fits, grows while acknowledgements come back without loss, and halves on loss, at most once per flight.
//! It never blocks for good: whoever closes it asks for an acknowledgement, and a queue pair that has nothing in flight
//! itself may send one packet after [`PATIENCE`] in spite of it. It does not pace: the driver's bursts do.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use everywire_wire::Qpn;

/// What a packet costs beyond its bytes: headers and the receiver's bookkeeping, in window units.
pub const PACKET_OVERHEAD: usize = 256;
/// Where a window starts: what fits the default receive buffer as single packets of any size.
pub const INITIAL: usize = 88 * 1024;
/// Smallest window: two packets of MTU 4096 are always possible.
pub const FLOOR: usize = 2 * (4096 + 2 * PACKET_OVERHEAD);
/// Largest window of request bytes.
pub const CEILING: usize = 1024 * 1024;
/// A queue pair with nothing in flight waits this long for a closed window, then sends one packet all the same.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// Window units that a packet with this much UDP payload takes.
pub fn cost(udp_payload: usize) -> usize {
    udp_payload + PACKET_OVERHEAD
}

/// Bytes in flight to one peer, or asked of peers by READs.
#[derive(Debug)]
pub struct PeerWindow {
    limit: usize,
    ceiling: usize,
    in_flight: usize,
    /// Acknowledged since the limit last changed.
    acked: usize,
    /// Still to be acknowledged before another loss may halve the limit again.
    recovering: usize,
    /// Queue pairs waiting for room and how much they need, in order, each once.
    waiting: VecDeque<(Qpn, usize)>,
    /// The same, to find them.
    is_waiting: HashSet<Qpn>,
    losses: u64,
}

impl Default for PeerWindow {
    fn default() -> PeerWindow {
        PeerWindow::new(INITIAL, CEILING)
    }
}

impl PeerWindow {
    /// A window that starts at `initial` units and never grows past `ceiling`.
    pub fn new(initial: usize, ceiling: usize) -> PeerWindow {
        let ceiling = ceiling.max(FLOOR);
        PeerWindow {
            limit: initial.clamp(FLOOR, ceiling),
            ceiling,
            in_flight: 0,
            acked: 0,
            recovering: 0,
            waiting: VecDeque::new(),
            is_waiting: HashSet::new(),
            losses: 0,
        }
    }

    /// Current limit, in units.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Units in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Times the limit was halved.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Units free.
    pub fn available(&self) -> usize {
        self.limit.saturating_sub(self.in_flight)
    }

    /// Whether something of this cost may go now.
    pub fn admits(&self, cost: usize) -> bool {
        self.in_flight + cost <= self.limit
    }

    /// Takes units. Going over the limit is the caller's decision (see [`PATIENCE`]).
    pub fn charge(&mut self, cost: usize) {
        self.in_flight += cost;
    }

    /// Gives units back because they were acknowledged: the window grows.
    pub fn acknowledge(&mut self, cost: usize) {
        self.release(cost);
        self.recovering = self.recovering.saturating_sub(cost);
        self.acked += cost;
        // One packet more per eighth of a window acknowledged: doubling takes some dozens of round trips, so that the
        // limit passes the receiver's capacity by little before the loss that shows it.
        if self.recovering == 0 && self.acked * 8 >= self.limit {
            self.acked = 0;
            self.limit = (self.limit + PACKET_OVERHEAD * 4).min(self.ceiling);
        }
    }

    /// Gives units back that were dropped, flushed or will be sent again.
    pub fn release(&mut self, cost: usize) {
        debug_assert!(cost <= self.in_flight, "released {cost} of {}", self.in_flight);
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Packets were lost: halves the limit, once per flight.
    pub fn lost(&mut self) {
        if self.recovering > 0 {
            return;
        }
        self.losses += 1;
        self.recovering = self.limit;
        self.acked = 0;
        self.limit = (self.limit / 2).max(FLOOR);
    }

    /// Remembers that `qpn` waits for `need` units to be free.
    pub fn wait(&mut self, qpn: Qpn, need: usize) {
        if self.is_waiting.insert(qpn) {
            self.waiting.push_back((qpn, need));
        }
    }

    /// The queue pair whose turn it is, once there is room for what it needs. The device drains this after every input
    /// and polls those queue pairs again. First come, first served: a large packet is not overtaken for ever.
    pub fn next_waiter(&mut self) -> Option<Qpn> {
        let (qpn, need) = *self.waiting.front()?;
        if need > self.available() && self.in_flight > 0 {
            return None;
        }
        self.waiting.pop_front();
        self.is_waiting.remove(&qpn);
        Some(qpn)
    }

    /// Forgets a queue pair that is gone.
    pub fn forget(&mut self, qpn: Qpn) {
        if self.is_waiting.remove(&qpn) {
            self.waiting.retain(|(q, _)| *q != qpn);
        }
    }
}
