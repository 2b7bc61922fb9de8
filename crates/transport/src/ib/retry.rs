//! Retry counters and timers of an RC requester.
//!
//! Read IBTA vol. 1 §9.7.6.1.3 (local ACK timeout), §9.7.5.2.8 and table 45 (RNR timers), §9.9.2.1.1 (retry counters).
//! A counter is full again after every acknowledgement of something new. Beside the timer that the attributes set there
//! is an early one, which resends without spending a retry: connection managers choose timeouts of seconds, and a lost
//! acknowledgement should not cost as much. A responder has to expect duplicates at any time, so this is within the rules.

use std::time::{Duration, Instant};

use everywire_wire::Psn;

/// RNR timer codes in units of 10 µs (IBTA table 45). Code 0 is the longest.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];
/// Shortest local ACK timeout that is obeyed: below it, a busy peer looks like a dead one.
pub const MIN_ACK_TIMEOUT: Duration = Duration::from_micros(16_777);
/// `rnr_retry` of 7 retries for ever (IBTA §9.7.5.2.8).
pub const RNR_RETRY_FOREVER: u8 = 7;
/// Shortest wait before the early resend.
const EARLY_MIN: Duration = Duration::from_millis(16);
/// The wait of early resends doubles this many times at most.
const EARLY_DOUBLINGS: u32 = 8;
/// The early resend waits for this many round trips at least.
const EARLY_ROUND_TRIPS: u32 = 4;

/// How long an RNR timer code (0..=31) waits.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(10 * u64::from(RNR_TIMER_10US[usize::from(code & 31)]))
}

/// The local ACK timeout 4.096 µs · 2^`exponent`, not below [`MIN_ACK_TIMEOUT`]. Exponent 0: none, wait for ever.
pub fn ack_timeout(exponent: u8) -> Option<Duration> {
    let exact = Duration::from_nanos(4096u64 << u32::from(exponent & 31));
    (exponent != 0).then_some(exact.max(MIN_ACK_TIMEOUT))
}

/// The earlier of two times, where there are any.
#[inline]
pub(super) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// What to do after a setback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Again,
    GiveUp,
}

#[derive(Debug, Default)]
pub(super) struct Retry {
    timeout: Option<Duration>,
    limit: u8,
    rnr_limit: u8,
    left: u8,
    rnr_left: u8,
    /// When the local ACK timeout runs out.
    deadline: Option<Instant>,
    /// When to resend early.
    early: Option<Instant>,
    /// Early resends since the last progress: each doubles the wait.
    early_count: u32,
    /// Nothing is sent before this.
    rnr_until: Option<Instant>,
    /// A packet whose acknowledgement will give a round-trip time.
    timed: Option<(Psn, Instant)>,
    round_trip: Duration,
    /// The last setback, if there was no progress since.
    set_back_at: Option<Instant>,
}

impl Retry {
    pub(super) fn configure(&mut self, timeout: u8, retry_cnt: u8, rnr_retry: u8) {
        self.timeout = ack_timeout(timeout);
        self.limit = retry_cnt;
        self.rnr_limit = rnr_retry;
        self.left = retry_cnt;
        self.rnr_left = rnr_retry;
    }

    /// Something was sent that an acknowledgement is owed for: starts the timers that do not run.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|t| now + t);
        }
        if self.early.is_none() {
            self.arm_early(now);
        }
    }

    /// Something new was acknowledged. `outstanding`: more is still owed.
    pub(super) fn progress(&mut self, now: Instant, outstanding: bool) {
        self.left = self.limit;
        self.rnr_left = self.rnr_limit;
        self.early_count = 0;
        self.set_back_at = None;
        self.stop();
        if outstanding {
            self.sent(now);
        }
    }

    /// Stops both timers, because nothing is outstanding or everything will be sent again.
    pub(super) fn stop(&mut self) {
        self.deadline = None;
        self.early = None;
    }

    /// Whether a NAK tells what is known: one that comes sooner after the last setback than half a round trip was on its
    /// way before.
    pub(super) fn is_echo(&self, now: Instant) -> bool {
        self.set_back_at.is_some_and(|at| now.saturating_duration_since(at) < self.round_trip / 2)
    }

    /// A timeout or a NAK: spends a retry.
    pub(super) fn setback(&mut self, now: Instant) -> Verdict {
        self.stop();
        self.timed = None;
        self.set_back_at = Some(now);
        if self.left == 0 {
            return Verdict::GiveUp;
        }
        self.left -= 1;
        Verdict::Again
    }

    /// An RNR NAK: spends an RNR retry and waits. The peer is there, so the transport retries are full again: lost or
    /// repeated packets between one RNR NAK and the next must not add up.
    pub(super) fn not_ready(&mut self, now: Instant, timer: u8) -> Verdict {
        self.stop();
        self.timed = None;
        self.left = self.limit;
        if self.rnr_limit != RNR_RETRY_FOREVER {
            if self.rnr_left == 0 {
                return Verdict::GiveUp;
            }
            self.rnr_left -= 1;
        }
        self.rnr_until = Some(now + rnr_delay(timer));
        Verdict::Again
    }

    /// Whether an RNR NAK's wait is on.
    pub(super) fn waits(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Ends the RNR wait if it is over.
    pub(super) fn end_wait(&mut self, now: Instant) {
        if self.rnr_until.is_some_and(|t| t <= now) {
            self.rnr_until = None;
        }
    }

    /// Whether the local ACK timeout has run out.
    pub(super) fn expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|t| t <= now)
    }

    /// Whether it is time to resend early; if so, the next early resend waits twice as long.
    pub(super) fn take_early(&mut self, now: Instant) -> bool {
        if self.early.is_none_or(|t| t > now) {
            return false;
        }
        self.early_count += 1;
        self.timed = None;
        self.arm_early(now);
        true
    }

    fn arm_early(&mut self, now: Instant) {
        let base = EARLY_MIN.max(self.round_trip * EARLY_ROUND_TRIPS);
        let at = now + base * (1 << self.early_count.min(EARLY_DOUBLINGS));
        // Useful only well before the real timeout.
        self.early = match self.deadline {
            Some(deadline) if at >= deadline => None,
            _ => Some(at),
        };
    }

    /// Notes when an acknowledgement was asked for, to learn the round-trip time.
    pub(super) fn asked(&mut self, psn: Psn, now: Instant) {
        self.timed.get_or_insert((psn, now));
    }

    /// An acknowledgement up to before `una` came.
    pub(super) fn answered(&mut self, una: Psn, now: Instant) {
        if let Some((psn, at)) = self.timed
            && psn.before(una)
        {
            let sample = now.saturating_duration_since(at);
            self.round_trip =
                if self.round_trip.is_zero() { sample } else { (self.round_trip * 7 + sample) / 8 };
            self.timed = None;
        }
    }

    /// The earliest of the timers.
    pub(super) fn next(&self) -> Option<Instant> {
        earlier(earlier(self.deadline, self.early), self.rnr_until)
    }

    /// Back to the start, keeping the configuration.
    pub(super) fn reset(&mut self) {
        let fresh =
            Retry { timeout: self.timeout, limit: self.limit, rnr_limit: self.rnr_limit, ..Retry::default() };
        *self = Retry { left: fresh.limit, rnr_left: fresh.rnr_limit, ..fresh };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timers_are_the_standards() {
        // IBTA table 45, in milliseconds.
        let ms = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
            2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76,
            327.68, 491.52,
        ];
        for (code, ms) in ms.into_iter().enumerate() {
            assert_eq!(rnr_delay(code as u8), Duration::from_secs_f64(ms / 1000.0), "code {code}");
        }
    }

    #[test]
    fn ack_timeout_doubles_and_zero_is_for_ever() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(MIN_ACK_TIMEOUT));
        // 14, the usual choice: 67.1 ms. 19, Linux's connection manager: 2.147 s. 31: 2.4 hours.
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(19), Some(Duration::from_nanos(2_147_483_648)));
        assert_eq!(ack_timeout(31).unwrap().as_secs(), 8796);
    }

    #[test]
    fn counters_fill_up_on_progress() {
        let now = Instant::now();
        let mut retry = Retry::default();
        retry.configure(14, 2, 1);
        assert_eq!(
            [retry.setback(now), retry.setback(now), retry.setback(now)],
            [Verdict::Again, Verdict::Again, Verdict::GiveUp]
        );
        retry.progress(now, false);
        assert_eq!(retry.setback(now), Verdict::Again);
        assert_eq!([retry.not_ready(now, 1), retry.not_ready(now, 1)], [Verdict::Again, Verdict::GiveUp]);
        retry.configure(14, 0, RNR_RETRY_FOREVER);
        assert_eq!(retry.setback(now), Verdict::GiveUp, "0 retries none");
        assert!((0..1000).all(|_| retry.not_ready(now, 1) == Verdict::Again), "7 is for ever");
    }
}
