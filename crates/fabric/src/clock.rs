//! Virtual time: nanoseconds since a base instant that the caller chooses.
//!
//! The fabric never reads a clock. A simulation holds one base `Instant` and adds virtual durations to it, so that code
//! written against `std::time::Instant` runs unchanged; a real-time driver passes instants of the real clock.

use std::time::{Duration, Instant};

/// A point in virtual time, in nanoseconds since the base of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SimTime(u64);

impl SimTime {
    /// The base of the clock.
    pub const ZERO: SimTime = SimTime(0);

    /// The time `ns` nanoseconds after the base.
    pub const fn from_nanos(ns: u64) -> Self {
        SimTime(ns)
    }

    /// Nanoseconds since the base.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This time and `d` more; saturates after 584 years.
    pub fn after(self, d: Duration) -> Self {
        SimTime(self.0.saturating_add(nanos(d)))
    }

    /// The time from `earlier` to this, zero when `earlier` is later.
    pub fn since(self, earlier: SimTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole nanoseconds, saturating at `u64::MAX`.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that moves only when it is told to, and never backwards.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    base: Instant,
    now: SimTime,
}

impl VirtualClock {
    /// A clock that stands at `base`.
    pub fn new(base: Instant) -> Self {
        VirtualClock { base, now: SimTime::ZERO }
    }

    /// The instant of virtual time zero.
    pub fn base(&self) -> Instant {
        self.base
    }

    /// The present instant.
    pub fn now(&self) -> Instant {
        self.instant(self.now)
    }

    /// The present as nanoseconds since the base.
    pub fn elapsed(&self) -> SimTime {
        self.now
    }

    /// The instant of a virtual time.
    pub fn instant(&self, t: SimTime) -> Instant {
        self.base + Duration::from_nanos(t.0)
    }

    /// The virtual time of an instant; instants before the base count as the base.
    pub fn sim_time(&self, at: Instant) -> SimTime {
        SimTime(nanos(at.saturating_duration_since(self.base)))
    }

    /// Moves the clock forward to `to`; does nothing when that is in the past.
    pub fn advance_to(&mut self, to: SimTime) {
        self.now = self.now.max(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_counts_nanoseconds_from_its_base_and_never_goes_back() {
        let base = Instant::now();
        let mut clock = VirtualClock::new(base);
        clock.advance_to(SimTime::from_nanos(1_500));
        clock.advance_to(SimTime::from_nanos(700));
        assert_eq!(clock.now(), base + Duration::from_nanos(1_500));
        assert_eq!(clock.sim_time(base + Duration::from_micros(3)).as_nanos(), 3_000);
        assert_eq!(clock.sim_time(base), SimTime::ZERO);
        assert_eq!(SimTime::from_nanos(5).since(SimTime::from_nanos(9)), Duration::ZERO);
    }
}
