//! The window of bytes in flight to one peer address, shared by all RC queue pairs to it.
//!
//! An unprivileged receiver has a socket buffer of 212,992 bytes, counted in the kernel's own unit (about twice the
//! payload); a sender that keeps more than fits in flight loses packets on an idle network. The window starts at what
//! certainly fits, grows while acknowledgements come back without loss, and halves on loss, at most once per flight. A
//! receive buffer does not change size, so growth towards the limit that lost is slow: otherwise every climb would end in
//! another loss.
//! It never blocks for good: whoever closes it asks for an acknowledgement, and a queue pair that has nothing in flight
//! itself may send one packet after [`PATIENCE`] in spite of it. It does not pace: the driver's bursts do.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use everywire_wire::Qpn;

/// What a packet costs beyond its bytes: headers and the receiver's bookkeeping, in window units.
pub const PACKET_OVERHEAD: usize = 256;
/// Where a window starts: what fits the default receive buffer as single packets of any size.
pub const INITIAL: usize = 88 * 1024;
/// Smallest window: a few packets of MTU 4096 are always possible.
pub const FLOOR: usize = 24 * 1024;
/// Largest window of request bytes.
pub const CEILING: usize = 1024 * 1024;
/// The limit grows by a kilobyte for each such part of it that is acknowledged: some dozens of round trips to double.
const GROWTH: usize = 8;
/// Near the limit that lost, it takes this many whole windows instead.
const SLOW_GROWTH: usize = 32;
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
    /// Growth slows down above this: three quarters of the limit that last lost.
    soft: usize,
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
            soft: ceiling,
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
        self.acked = (self.acked + cost).min(self.limit * SLOW_GROWTH);
        while self.recovering == 0 && self.acked >= self.step() && self.limit < self.ceiling {
            self.acked -= self.step();
            self.limit = (self.limit + 4 * PACKET_OVERHEAD).min(self.ceiling);
        }
    }

    /// Units to be acknowledged before the limit grows by a kilobyte.
    fn step(&self) -> usize {
        if self.limit < self.soft { self.limit / GROWTH } else { self.limit * SLOW_GROWTH }
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
        self.soft = (self.limit / 4 * 3).max(FLOOR);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fly(window: &mut PeerWindow, windows: usize) {
        for _ in 0..windows {
            let units = window.available();
            window.charge(units);
            window.acknowledge(units);
        }
    }

    #[test]
    fn starts_within_the_default_receive_buffer() {
        // Measured: 95 KB of 1040-byte packets or 103 KB of 4112-byte ones fit 212,992 bytes of buffer.
        for (payload, fits) in [(1040, 95_000), (4112, 103_000)] {
            let window = PeerWindow::default();
            let packets = window.limit() / cost(payload);
            assert!(packets * payload <= fits, "{packets} of {payload}");
        }
        // A packet of 64 bytes takes 768 of the buffer.
        assert!(PeerWindow::default().limit() / cost(64) * 768 <= 212_992 * 11 / 10);
    }

    #[test]
    fn grows_without_loss_up_to_its_ceiling() {
        let mut window = PeerWindow::new(INITIAL, 300_000);
        fly(&mut window, 20);
        assert!(window.limit() > 2 * INITIAL, "{}", window.limit());
        fly(&mut window, 1000);
        assert_eq!(window.limit(), 300_000);
    }

    #[test]
    fn halves_once_a_flight_and_then_creeps_towards_what_lost() {
        let mut window = PeerWindow::new(200_000, CEILING);
        window.charge(100_000);
        window.lost();
        window.lost();
        assert_eq!((window.limit(), window.losses()), (100_000, 1));
        window.release(100_000);
        fly(&mut window, 12);
        assert!((140_000..=160_000).contains(&window.limit()), "{}", window.limit());
        fly(&mut window, 100);
        assert!(window.limit() < 160_000, "no second loss soon: {}", window.limit());
        (0..100).for_each(|_| {
            window.lost();
            fly(&mut window, 3);
        });
        assert!((FLOOR..2 * FLOOR).contains(&window.limit()));
    }

    #[test]
    fn waiters_are_served_in_order_when_their_need_is_met() {
        let mut window = PeerWindow::new(FLOOR, FLOOR);
        window.charge(FLOOR);
        window.wait(Qpn::new(1), 5000);
        window.wait(Qpn::new(2), 10);
        window.wait(Qpn::new(1), 5000);
        assert_eq!(window.next_waiter(), None);
        window.release(100);
        assert_eq!(window.next_waiter(), None, "the small one does not overtake");
        window.release(4900);
        assert_eq!(window.next_waiter(), Some(Qpn::new(1)));
        window.forget(Qpn::new(2));
        assert_eq!(window.next_waiter(), None);
    }
}
