//! `everywire srp bench`: a number of commands in flight, for a time; IOPS, GB/s and latency.
//!
//! Each command in flight is a task with its own registered buffer; nothing is registered per command.

use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_block::parse_size;
use everywire_srp::rdma::initiator::Disk;
use everywire_verbs::rt::Rt;

use super::{Place, failed};
use crate::bench::{Load, Measured, Pattern, Places};
use crate::error::{CliError, print};
use crate::progress::Progress;
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
    /// One JSON object: iops, gb_per_s, p50_us, p99_us, max_us, reconnects.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), CliError> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(CliError::usage(format_args!("--seconds {}: more than 0, at most 3600", args.seconds)));
    }
    let ground = args.place.open()?;
    let duration = Duration::from_secs_f64(args.seconds);
    let measured = ground.block_on(async {
        let (initiator, disk) = args.place.disk(&ground).await?;
        let progress = Progress::time("measuring", duration);
        let load = Load { pattern: args.rw, block_size: args.block_size, depth: args.depth, duration };
        let measured = measure(load, &ground.rt(), &disk).await;
        drop(progress);
        let reconnects = initiator.reconnects();
        initiator.log_out().await;
        measured.map(|measured| Measured { reconnects, ..measured })
    })?;
    if args.json {
        return print(measured.object(args.rw, args.depth));
    }
    print(measured.line(args.rw, args.depth))
}

/// What the tasks share.
struct Shared {
    disk: Disk,
    load: Load,
    places: Places,
    deadline: Instant,
}

/// Measures one logical unit.
pub async fn measure(load: Load, rt: &Rt, disk: &Disk) -> Result<Measured, CliError> {
    let block = u64::from(disk.capacity().block_size);
    if load.block_size == 0 || !load.block_size.is_multiple_of(block) {
        return Err(CliError::usage(format_args!("--block-size {}: a multiple of {block}", load.block_size)));
    }
    let places = Places::new(&load, disk.capacity().bytes())?;
    let start = rt.now();
    let shared = Rc::new(Shared { disk: disk.clone(), load, places, deadline: start + load.duration });
    let tasks: Vec<_> = (0..load.depth).map(|_| rt.spawn(shared.clone().work(rt.clone()))).collect();
    let (mut commands, mut samples) = (0, Samples::new());
    for task in tasks {
        let (done, times) = task.await.map_err(CliError::failed)??;
        commands += done;
        samples.add(&times);
    }
    let elapsed = rt.now() - start;
    Ok(Measured { commands, elapsed, block_size: load.block_size, samples, reconnects: 0 })
}

impl Shared {
    /// One command after the other.
    async fn work(self: Rc<Self>, rt: Rt) -> Result<(u64, Samples), CliError> {
        let size = self.load.block_size;
        let len = size as usize;
        let buffer = self.disk.buffer(len).map_err(failed)?;
        let (mut done, mut samples) = (0, Samples::new());
        let mut random = rt.entropy() | 1;
        let mut before = rt.now();
        while before < self.deadline {
            let offset = self.places.next(&mut random) * size;
            let result = match self.load.pattern.writes() {
                true => self.disk.write_from(offset, &buffer, 0, len, false).await,
                false => self.disk.read_into(offset, &buffer, 0, len).await,
            };
            result.map_err(failed)?;
            let now = rt.now();
            samples.record(now - before);
            before = now;
            done += 1;
        }
        Ok((done, samples))
    }
}
