//! Times of many short things, and their quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Times of single messages, in nanoseconds, to three digits, up to a minute.
pub struct Samples(Histogram<u64>);

const LONGEST_NS: u64 = 60_000_000_000;

impl Samples {
    /// None yet.
    pub fn new() -> Samples {
        // Bounds and digits are constants within what the histogram accepts.
        Samples(Histogram::new_with_max(LONGEST_NS, 3).unwrap_or_else(|_| unreachable!("valid bounds")))
    }

    /// Adds one; longer than a minute counts as a minute.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS));
    }

    /// A quantile in microseconds.
    pub fn micros(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
    /// Adds all of another's.
    pub fn add(&mut self, other: &Samples) {
        // Both have the same bounds, so nothing is out of range.
        let _ = self.0.add(&other.0);
    }
}
