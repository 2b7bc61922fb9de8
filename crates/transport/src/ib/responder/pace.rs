//! How fast READ answers leave once answers that were sent have been asked for again.
//!
//! Read IBTA vol. 1 §9.7.4.5 (duplicate requests) and C9-108 first. A requester that misses one response repeats every READ
//! it has outstanding, and answers sent before that are of no use to it. Where its packets arrive slower than they leave
//! here, they fill the queue in front of it anew after every loss, and it comes to do little but throw stale answers away.
//! So answers leave little faster than they were found to get through: the queue stays short, and the rate still rises to
//! what the path takes. Nothing is paced before a rewind, nor where it would not matter.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use everywire_wire::Psn;

/// Packets a second from which on nothing is paced.
const CEILING: u64 = 65_536;
/// The slowest pace, in packets a second.
const FLOOR: u64 = 200;
/// Answers leave 3/2 times as fast as they got through, so that the pace can rise. Of what was tried behind a slow queue that
/// is the best: at twice the rate too many are stale again, at 5/4 a fast path takes longer to be found out.
const GAIN: u64 = 3;
const GAIN_OF: u64 = 2;
/// One measurement takes no more than half the pace away, and the first comes to no less than this: it may have met a
/// timeout, or the queue of a faster pace.
const MOST_FALL: u64 = 2;
const FIRST: u64 = 16_384;
/// A measurement has this many packets, or takes this long.
const MEASURE_PACKETS: u64 = 16;
const MEASURE_TIME: Duration = Duration::from_millis(100);
/// New READs for this many packets without a rewind double the pace: a requester asks for more as it gets its answers.
const GROWTH_PACKETS: u32 = 256;
/// Most packets that leave at once, and the longest time between such bursts where they are more than one packet.
const QUANTUM: u64 = 16;
const QUANTUM_TIME: Duration = Duration::from_millis(4);
/// What was measured longer ago says nothing.
const FORGET: Duration = Duration::from_secs(10);

/// A place in the stream of answers, and when it was reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) psn: Psn,
    pub(super) at: Instant,
}

impl Mark {
    /// Packets a second from here to `there`, if that is enough to go by. All of them were sent and taken in between.
    fn rate(self, there: Mark) -> Option<u64> {
        let packets = u64::try_from(self.psn.distance(there.psn)).ok()?;
        let time = there.at.saturating_duration_since(self.at);
        let enough = packets >= MEASURE_PACKETS || time >= MEASURE_TIME;
        enough.then(|| packets * 1_000_000_000 / (time.as_nanos() as u64).max(1))
    }
}

/// Requests that were repeated together, after one loss.
#[derive(Clone, Copy, Debug)]
struct Volley {
    /// The last one seen.
    last: Psn,
    /// After the newest request that had come when it began.
    end: Psn,
    began: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Packets a second; none: as fast as they can.
    rate: Option<u64>,
    /// Packets that may still leave before `refill`.
    left: u32,
    refill: Option<Instant>,
    volley: Option<Volley>,
    /// Where the last measurement ended.
    mark: Option<Mark>,
    /// Packets of new READs since the last rewind.
    fresh: u32,
}

impl Pace {
    /// Answers from `to` on, which have been sent, are asked for again. `whole`: from the start of a READ. `newest`: the
    /// PSN after all requests. `requests`: the start of READs executed, and when they came.
    pub(super) fn rewound(
        &mut self,
        to: Mark,
        whole: bool,
        newest: Psn,
        requests: impl Iterator<Item = Mark>,
    ) {
        if let Some(volley) = &mut self.volley
            && whole
            && volley.last.before(to.psn)
            && to.psn.before(volley.end)
        {
            volley.last = to.psn;
            return;
        }
        let mark = self.mark.filter(|m| to.at.saturating_duration_since(m.at) < FORGET);
        if mark.is_some_and(|m| to.psn.before(m.psn)) {
            return; // an old request that was late
        }
        self.volley = Some(Volley { last: to.psn, end: newest, began: to.at });
        self.fresh = 0;
        let since = mark.map(|m| m.rate(to));
        if since == Some(None) {
            return; // too little yet
        }
        self.mark = Some(to);
        // What came since the mark says little if the requester had nothing to ask for in between; then a READ says more. All
        // are lower bounds.
        let rates = since.flatten().into_iter().chain(requests.filter_map(|from| from.rate(to)));
        let Some(best) = rates.max() else { return };
        let least = self.rate.map_or(FIRST, |rate| rate / MOST_FALL);
        self.set((best * GAIN / GAIN_OF).max(least).max(FLOOR));
    }

    /// A new READ has come.
    #[inline]
    pub(super) fn asked(&mut self, packets: u32, now: Instant) {
        if let Some(rate) = self.rate {
            self.grow(rate, packets, now);
        }
    }

    fn grow(&mut self, rate: u64, packets: u32, now: Instant) {
        if self.volley.is_none_or(|v| now.saturating_duration_since(v.began) > FORGET) {
            return self.end();
        }
        self.fresh = self.fresh.saturating_add(packets);
        if self.fresh >= GROWTH_PACKETS {
            self.fresh = 0;
            self.set(rate * 2);
        }
    }

    fn set(&mut self, rate: u64) {
        self.rate = (rate < CEILING).then_some(rate);
    }

    /// Answers leave as fast as they can.
    pub(super) fn end(&mut self) {
        *self = Pace::default();
    }

    /// Packets that may leave now.
    #[inline]
    pub(super) fn allowance(&mut self, now: Instant) -> u32 {
        match self.rate {
            None => u32::MAX,
            Some(rate) => self.refilled(rate, now),
        }
    }

    fn refilled(&mut self, rate: u64, now: Instant) -> u32 {
        if self.refill.is_none_or(|at| at <= now) {
            let quantum = (rate * QUANTUM_TIME.as_millis() as u64 / 1000).clamp(1, QUANTUM);
            let time = Duration::from_nanos(quantum * 1_000_000_000 / rate);
            self.left = quantum as u32;
            // A call that came late is made up for, once.
            self.refill = Some(self.refill.map_or(now + time, |at| (at + time).max(now)));
        }
        self.left
    }

    /// So many of them have left.
    #[inline]
    pub(super) fn sent(&mut self, packets: u32) {
        self.left = self.left.saturating_sub(packets);
    }

    /// When more may leave, if none may now.
    #[inline]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.rate.and(self.refill).filter(|_| self.left == 0)
    }
}
