//! What the benches of the storage protocols share: what is done, where on the disk, and how its result is told.

use std::cell::Cell;
use std::time::Duration;

use everywire_block::format_size;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::samples::Samples;

/// What is done, as fio calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
}

impl Pattern {
    /// As fio calls it.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Whether it changes the disk.
    pub fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandWrite)
    }
}

/// A result.
pub struct Measured {
    /// Commands done.
    pub commands: u64,
    /// Time it took.
    pub elapsed: Duration,
    /// Bytes of a command.
    pub block_size: u64,
    /// Times of commands.
    pub samples: Samples,
    /// How often the connection was lost and came back meanwhile.
    pub reconnects: u64,
}

impl Measured {
    /// Commands a second.
    pub fn iops(&self) -> f64 {
        self.commands as f64 / self.elapsed.as_secs_f64()
    }

    /// 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.iops() * self.block_size as f64 / 1e9
    }

    /// Its numbers in quantiles of microseconds: half, 99 of 100, all.
    fn quantiles(&self) -> [f64; 3] {
        [0.5, 0.99, 1.0].map(|quantile| self.samples.micros(quantile))
    }

    /// As a JSON object.
    pub fn object(&self, pattern: Pattern, depth: u16) -> Value {
        let [p50, p99, max] = self.quantiles();
        json!({
            "rw": pattern.name(), "block_size": self.block_size, "depth": depth,
            "commands": self.commands, "seconds": self.elapsed.as_secs_f64(),
            "iops": self.iops(), "gb_per_s": self.gb_per_s(), "p50_us": p50, "p99_us": p99, "max_us": max,
            "reconnects": self.reconnects,
        })
    }

    /// As a line.
    pub fn line(&self, pattern: Pattern, depth: u16) -> String {
        let [p50, p99, max] = self.quantiles();
        let (name, size) = (pattern.name(), format_size(self.block_size));
        let lost = match self.reconnects {
            0 => String::new(),
            times => format!("  reconnected {times} times, which is in these numbers"),
        };
        format!(
            "{name} {size} depth {depth}: {:.0} IOPS  {:.3} GB/s  p50 {p50:.1} us  p99 {p99:.1} us  max {max:.1} us{lost}",
            self.iops(),
            self.gb_per_s()
        )
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Direction and order.
    pub pattern: Pattern,
    /// Bytes of a command.
    pub block_size: u64,
    /// Commands in flight.
    pub depth: u16,
    /// How long.
    pub duration: Duration,
}

/// Where each command goes.
pub struct Places {
    pattern: Pattern,
    /// Commands that fit the disk.
    count: u64,
    next: Cell<u64>,
}

impl Places {
    /// On a disk of so many bytes.
    pub fn new(load: &Load, bytes: u64) -> Result<Places, CliError> {
        let count = bytes / load.block_size;
        if count == 0 {
            let text = format_args!("--block-size {}: the disk has {bytes} bytes", load.block_size);
            return Err(CliError::usage(text));
        }
        Ok(Places { pattern: load.pattern, count, next: Cell::new(0) })
    }

    /// The next one, in commands from the start of the disk; `random` is the caller's state, never 0.
    pub fn next(&self, random: &mut u64) -> u64 {
        match self.pattern {
            Pattern::Read | Pattern::Write => {
                let next = self.next.get();
                self.next.set(next.wrapping_add(1));
                next % self.count
            }
            Pattern::RandRead | Pattern::RandWrite => {
                // xorshift64, Marsaglia 2003.
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                *random % self.count
            }
        }
    }
}
