//! `everywire srp bench`: a number of commands in flight, for a time; IOPS, GB/s and latency.
//!
//! Each command in flight is a task with its own registered buffer; nothing is registered per command.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_block::{format_size, parse_size};
use everywire_srp::rdma::initiator::Disk;
use everywire_verbs::rt::Rt;
use serde_json::json;

use super::{Place, failed};
use crate::error::{CliError, print};
use crate::nvme::bench::Pattern;
use crate::samples::Samples;

/// Flags of `everywire srp bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire srp bench 192.0.2.1 ID_EXT:IOC_GUID --rw randread --depth 32 --json")]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// What to do; the writing ones destroy what the logical unit holds.
    #[arg(long, value_enum, default_value = "randread")]
    rw: Pattern,
    /// Bytes of a command.
    #[arg(long, default_value = "4KiB", value_parser = |text: &str| parse_size(text).map_err(|e| e.to_string()))]
    block_size: u64,
    /// Commands in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Seconds to measure.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// One JSON object: iops, gb_per_s, p50_us, p99_us, max_us.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), CliError> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(CliError::usage(format_args!("--seconds {}: more than 0, at most 3600", args.seconds)));
    }
    let ground = args.place.open()?;
    ground.block_on(async {
        let (initiator, disk) = args.place.disk(&ground).await?;
        let measured = measure(args, &ground.rt(), &disk).await;
        initiator.log_out().await;
        report(args, &measured?)
    })
}

struct Measured {
    commands: u64,
    elapsed: Duration,
    samples: Samples,
}

/// What the tasks share.
struct Shared {
    disk: Disk,
    pattern: Pattern,
    size: u64,
    places: u64,
    next: Cell<u64>,
    deadline: Instant,
}

async fn measure(args: &Args, rt: &Rt, disk: &Disk) -> Result<Measured, CliError> {
    let capacity = disk.capacity();
    let (size, block) = (args.block_size, u64::from(capacity.block_size));
    if size == 0 || !size.is_multiple_of(block) || size > capacity.bytes() {
        let text = format_args!("--block-size {size}: a multiple of {block}, at most {}", capacity.bytes());
        return Err(CliError::usage(text));
    }
    let start = rt.now();
    let shared = Rc::new(Shared {
        disk: disk.clone(),
        pattern: args.rw,
        size,
        places: capacity.bytes() / size,
        next: Cell::new(0),
        deadline: start + Duration::from_secs_f64(args.seconds),
    });
    let tasks: Vec<_> = (0..args.depth).map(|_| rt.spawn(shared.clone().work(rt.clone()))).collect();
    let (mut commands, mut samples) = (0, Samples::new());
    for task in tasks {
        let (done, times) = task.await.map_err(CliError::failed)??;
        commands += done;
        samples.add(&times);
    }
    Ok(Measured { commands, elapsed: rt.now() - start, samples })
}

impl Shared {
    /// One command after the other.
    async fn work(self: Rc<Self>, rt: Rt) -> Result<(u64, Samples), CliError> {
        let len = self.size as usize;
        let buffer = self.disk.buffer(len).map_err(failed)?;
        let (mut done, mut samples) = (0, Samples::new());
        let mut random = rt.entropy() | 1;
        let mut before = rt.now();
        while before < self.deadline {
            let offset = self.place(&mut random) * self.size;
            let result = match self.pattern {
                Pattern::Read | Pattern::RandRead => self.disk.read_into(offset, &buffer, 0, len).await,
                Pattern::Write | Pattern::RandWrite => {
                    self.disk.write_from(offset, &buffer, 0, len, false).await
                }
            };
            result.map_err(failed)?;
            let now = rt.now();
            samples.record(now - before);
            before = now;
            done += 1;
        }
        Ok((done, samples))
    }

    fn place(&self, random: &mut u64) -> u64 {
        if let Pattern::Read | Pattern::Write = self.pattern {
            let next = self.next.get();
            self.next.set(next.wrapping_add(1));
            return next % self.places;
        }
        // xorshift64, Marsaglia 2003.
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random % self.places
    }
}

fn report(args: &Args, measured: &Measured) -> Result<(), CliError> {
    let name =
        clap::ValueEnum::to_possible_value(&args.rw).map_or_else(String::new, |v| v.get_name().to_owned());
    let at = |quantile| measured.samples.micros(quantile);
    let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
    let iops = measured.commands as f64 / measured.elapsed.as_secs_f64();
    let gb_per_s = iops * args.block_size as f64 / 1e9;
    if args.json {
        return print(json!({
            "rw": name, "block_size": args.block_size, "depth": args.depth, "commands": measured.commands,
            "seconds": measured.elapsed.as_secs_f64(), "iops": iops, "gb_per_s": gb_per_s,
            "p50_us": p50, "p99_us": p99, "max_us": max,
        }));
    }
    let size = format_size(args.block_size);
    print(format_args!(
        "{name} {size} depth {}: {iops:.0} IOPS  {gb_per_s:.3} GB/s  p50 {p50:.1} us  p99 {p99:.1} us  max {max:.1} us",
        args.depth
    ))
}
