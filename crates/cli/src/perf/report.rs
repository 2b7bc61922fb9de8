//! Results: what was measured, and how it is printed.

use std::time::Duration;

use serde_json::json;

use crate::error::{CliError, print};
use crate::samples::Samples;

/// A result, with the units in the names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Messages sent.
    pub messages: u64,
    /// Payload, 10^9 bits a second.
    pub gbit_per_s: f64,
    /// Messages a second.
    pub msg_per_s: f64,
    /// Median time of one.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Of messages sent on an unreliable service, the part that did not arrive, where the receiver can tell.
    pub lost: Option<f64>,
}

impl Measured {
    /// From counts.
    pub fn new(messages: u64, size: u32, elapsed: Duration, samples: &Samples) -> Measured {
        let msg_per_s = messages as f64 / elapsed.as_secs_f64();
        Measured {
            messages,
            gbit_per_s: msg_per_s * f64::from(size) * 8.0 / 1e9,
            msg_per_s,
            p50_us: samples.micros(0.5),
            p99_us: samples.micros(0.99),
            lost: None,
        }
    }

    /// The rates of what arrived, of `self.messages` sent.
    pub fn of_which_arrived(self, arrived: u64) -> Measured {
        let part = if self.messages == 0 { 0.0 } else { (arrived as f64 / self.messages as f64).min(1.0) };
        Measured {
            gbit_per_s: self.gbit_per_s * part,
            msg_per_s: self.msg_per_s * part,
            lost: Some(1.0 - part),
            ..self
        }
    }

    /// Times of one message, where they were taken: a stream of raw TCP has none.
    fn times(&self) -> String {
        if self.p99_us == 0.0 {
            return String::new();
        }
        format!("   p50 {:>9.2} us   p99 {:>9.2} us", self.p50_us, self.p99_us)
    }

    fn line(&self, name: &str) -> String {
        format!("{name:<28} {:>9.3} Gbit/s {:>12.0} msg/s{}", self.gbit_per_s, self.msg_per_s, self.times())
    }
}

/// A run, ready to print.
pub struct Report {
    /// What was measured, in a few words.
    pub name: String,
    /// The product.
    pub measured: Measured,
    /// Raw UDP or TCP in the same run.
    pub baseline: Option<Measured>,
    /// Which of them, "raw UDP".
    pub raw: &'static str,
    /// Compare times (latency) instead of rates.
    pub by_time: bool,
}

impl Report {
    /// The product over raw UDP: of rates, higher is better; of times, lower is better.
    pub fn ratio(&self) -> Option<f64> {
        let baseline = self.baseline?;
        let ratio = if self.by_time {
            self.measured.p50_us / baseline.p50_us
        } else {
            self.measured.msg_per_s / baseline.msg_per_s
        };
        Some(ratio)
    }

    /// Prints it.
    pub fn print(&self, as_json: bool) -> Result<(), CliError> {
        let Measured { gbit_per_s, msg_per_s, p50_us, p99_us, lost, .. } = self.measured;
        if as_json {
            let taken = |us: f64| (us > 0.0).then_some(us);
            let baseline = self.baseline.map(|b| {
                json!({"gbit_per_s": b.gbit_per_s, "msg_per_s": b.msg_per_s, "p50_us": taken(b.p50_us),
                       "p99_us": taken(b.p99_us)})
            });
            print(
                json!({"test": self.name, "gbit_per_s": gbit_per_s, "msg_per_s": msg_per_s, "p50_us": p50_us,
                       "p99_us": p99_us, "ratio": self.ratio(), "lost": lost, "baseline": baseline}),
            )?;
            return Ok(());
        }
        print(format_args!("{}", self.measured.line(&self.name)))?;
        if let Some(lost) = lost {
            print(format_args!(
                "{:.3} % of the messages sent were lost, since nothing holds an unreliable sender back; the rates are those of \
                 arrival",
                lost * 100.0
            ))?;
        }
        if let (Some(baseline), Some(ratio)) = (self.baseline, self.ratio()) {
            print(format_args!("{}", baseline.line(&format!("{}, same run", self.raw))))?;
            let raw = self.raw;
            let what = if self.by_time {
                format!("of the {raw} time (lower is better)")
            } else {
                format!("of {raw} (higher is better)")
            };
            print(format_args!("ratio {ratio:.3} {what}"))?;
        }
        Ok(())
    }
}
