//! `everywire nvme bench`: a number of commands in flight, for a time; IOPS, GB/s and latency.
//!
//! Each command in flight is a task with its own registered buffer; nothing is registered or allocated per command. Latency
//! is from the call to its return, queueing in the program included. Without a target it starts one of its own, a RAM disk
//! in a second process on loopback; the same reads as bare UDP can then be measured beside it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_block::parse_size;
use everywire_net::baseline::BaselineResult;
use everywire_nvmeof::Nqn;
use everywire_nvmeof::rdma::{InitiatorOptions, IoBuffer, Namespace};
use everywire_verbs::rt::Rt;
use serde_json::json;

use super::baseline::ReadLoop;
use super::{LOSS_TIMEOUT, Place, Target, impatient, nvme};
use crate::bench::{Load, Measured, Pattern, Places};
use crate::device::DeviceArgs;
use crate::error::{CliError, print};
use crate::peer::PeerName;
use crate::progress::Progress;
use crate::samples::Samples;
use crate::second::SecondProcess;
use crate::second::places::{self, ByHand};
use crate::serve;

/// What a target of its own serves.
const OWN_TARGET: &str = "nqn.2026-11.net.everywire:bench=ram:256MiB";
/// The same by hand.
const BY_HAND: ByHand<'static> =
    ByHand { server: "serve --nvme nqn.2026-11.net.everywire:bench=ram:256MiB", client: "nvme bench" };
/// How long an orderly end may take after I/O has failed.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes written at once when it is filled; a part of it.
const TOUCH: u64 = 4 << 20;

/// Flags of `everywire nvme bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire nvme bench 192.0.2.1 nqn.2026-11.example:disk --rw randread --depth 32 --json\n  \
    everywire nvme bench --baseline            a RAM disk here, beside the same READs as raw UDP")]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// The target: ADDRESS or ADDRESS:PORT ([v6]:PORT) [default: a RAM disk in a second process here].
    #[arg(value_name = "TARGET")]
    target: Option<PeerName>,
    /// The subsystem [default: the only one that the target offers].
    #[arg(value_name = "NQN")]
    subsystem: Option<Nqn>,
    /// Host NQN [default: that of /etc/nvme/hostnqn, or derived from the machine's identity].
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<Nqn>,
    /// The namespace [default: the first].
    #[arg(long)]
    nsid: Option<u32>,
    /// What to do; the writing ones destroy what the namespace holds.
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
    /// I/O queues, each a connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Seconds for which a lost controller is looked for before the measurement fails.
    #[arg(long, value_name = "SECONDS", default_value_t = LOSS_TIMEOUT.as_secs())]
    loss_timeout: u64,
    /// Measure the same random READs as raw UDP in the same run, with the product's own sockets and checks, and print the
    /// ratio; without a TARGET.
    #[arg(long, conflicts_with = "target")]
    baseline: bool,
    /// One JSON object: iops, gb_per_s, p50_us, p99_us, max_us, reconnects, ratio.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), CliError> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(CliError::usage(format_args!("--seconds {}: more than 0, at most 3600", args.seconds)));
    }
    if args.baseline && args.rw != Pattern::RandRead {
        return Err(CliError::usage("--baseline is a loop of random READs: --rw randread"));
    }
    let second = match args.target {
        Some(_) => None,
        None => {
            let devices = places::beside(args.device.device.as_deref(), BY_HAND)?;
            Some(SecondProcess::start(&devices, |device| serve::arguments(device, &["--nvme", OWN_TARGET]))?)
        }
    };
    let place = args.place(second.as_ref())?;
    let ground = place.open()?;
    // A queue of n entries holds n - 1 commands (NVMe Base 2.0 §3.3.1.2).
    let per_queue = args.depth.div_ceil(args.queues) + 1;
    let loss_timeout = Duration::from_secs(args.loss_timeout);
    let options = InitiatorOptions {
        io_queues: args.queues,
        queue_entries: per_queue.max(impatient().queue_entries),
        loss_timeout,
        ..impatient()
    };
    let duration = Duration::from_secs_f64(args.seconds);
    let (measured, bytes) = ground.block_on(async {
        let (controller, namespace) = place.namespace(&ground, options).await?;
        if second.is_some() {
            touch(&namespace).await?;
        }
        let progress = Progress::time("measuring", duration);
        let load = Load { pattern: args.rw, block_size: args.block_size, depth: args.depth, duration };
        let rt = ground.rt();
        let measured = rt.timeout(duration + loss_timeout, measure(load, &rt, &namespace)).await;
        drop(progress);
        let reconnects = controller.reconnects();
        match measured {
            Ok(Ok(measured)) => {
                controller.disconnect().await.map_err(nvme)?;
                Ok((Measured { reconnects, ..measured }, namespace.info().bytes()))
            }
            Ok(Err(error)) => {
                // What it says is of no interest any more.
                let _ = rt.timeout(FAREWELL, controller.disconnect()).await;
                Err(error)
            }
            Err(_) => Err(CliError::peer(format_args!(
                "{}: the peer is gone: commands have no answer {loss_timeout:?} after the end of the measurement",
                ground.address
            ))),
        }
    })?;
    drop((ground, second));
    let (size, depth, region) = (args.block_size, args.depth, bytes);
    let read_loop = args.baseline.then_some(ReadLoop { size, depth, region, duration });
    let raw = read_loop.map(ReadLoop::measure).transpose()?;
    report(args, &measured, raw.as_ref())
}

impl Args {
    /// Where to: as named, or the target that was started for it.
    fn place(&self, own: Option<&SecondProcess>) -> Result<Place, CliError> {
        let target = match (&self.target, own) {
            (Some(target), _) => target.clone(),
            (None, Some(second)) => second.addr().to_string().parse().map_err(CliError::failed)?,
            (None, None) => return Err(CliError::usage("no target")),
        };
        let (device, host_nqn) = (self.device.clone(), self.host_nqn.clone());
        let target = Target { device, target, host_nqn };
        Ok(Place { target, subsystem: self.subsystem.clone(), nsid: self.nsid })
    }
}

/// Writes all of a new RAM disk once: memory that nobody has written is not memory yet.
async fn touch(namespace: &Namespace) -> Result<(), CliError> {
    let piece = vec![0xa5; TOUCH as usize];
    for offset in (0..namespace.info().bytes()).step_by(TOUCH as usize) {
        namespace.write(offset, &piece).await.map_err(nvme)?;
    }
    Ok(())
}

fn report(args: &Args, measured: &Measured, raw: Option<&BaselineResult>) -> Result<(), CliError> {
    let ratio = raw.map(|raw| measured.iops() / raw.msg_per_s);
    if args.json {
        let baseline = raw.map(|raw| {
            json!({"iops": raw.msg_per_s, "gb_per_s": raw.gbit_per_s / 8.0, "p50_us": raw.p50_us, "p99_us": raw.p99_us})
        });
        let mut object = measured.object(args.rw, args.depth);
        object["queues"] = args.queues.into();
        object["ratio"] = ratio.into();
        object["baseline"] = baseline.into();
        return print(object);
    }
    print(measured.line(args.rw, args.depth))?;
    let (Some(raw), Some(ratio)) = (raw, ratio) else { return Ok(()) };
    let BaselineResult { msg_per_s, gbit_per_s, p50_us, p99_us, .. } = raw;
    let gb_per_s = gbit_per_s / 8.0;
    print(format_args!(
        "READs as raw UDP, same run: {msg_per_s:.0} IOPS  {gb_per_s:.3} GB/s  p50 {p50_us:.1} us  p99 {p99_us:.1} us"
    ))?;
    print(format_args!("ratio {ratio:.2}"))
}

/// What the tasks share.
struct Shared {
    namespace: Namespace,
    load: Load,
    places: Places,
    deadline: Instant,
}

/// Does what is to be done.
pub async fn measure(load: Load, rt: &Rt, namespace: &Namespace) -> Result<Measured, CliError> {
    let info = namespace.info();
    let (block, most) = (u64::from(info.block_size), u64::from(info.max_transfer));
    if load.block_size == 0 || !load.block_size.is_multiple_of(block) || load.block_size > most {
        return Err(CliError::usage(format_args!(
            "--block-size {}: a multiple of {block}, at most {most} (the controller's MDTS)",
            load.block_size
        )));
    }
    let places = Places::new(&load, info.bytes())?;
    let start = rt.now();
    let deadline = start + load.duration;
    let shared = Rc::new(Shared { namespace: namespace.clone(), load, places, deadline });
    let mut tasks = Vec::new();
    for _ in 0..load.depth {
        let buffer = namespace.buffer(load.block_size as usize).map_err(nvme)?;
        fill(&buffer, rt.entropy())?;
        tasks.push(rt.spawn(shared.clone().work(rt.clone(), buffer)));
    }
    let (mut commands, mut samples) = (0, Samples::new());
    for task in tasks {
        let (done, times) = task.await.map_err(CliError::failed)??;
        commands += done;
        samples.add(&times);
    }
    Ok(Measured { commands, elapsed: rt.now() - start, block_size: load.block_size, samples, reconnects: 0 })
}

impl Shared {
    /// One command after the other.
    async fn work(self: Rc<Self>, rt: Rt, buffer: IoBuffer) -> Result<(u64, Samples), CliError> {
        let blocks = (self.load.block_size / u64::from(self.namespace.info().block_size)) as u32;
        let (mut done, mut samples) = (0, Samples::new());
        let mut random = rt.entropy() | 1;
        let mut before = rt.now();
        while before < self.deadline {
            let slba = self.places.next(&mut random) * u64::from(blocks);
            let result = match self.load.pattern {
                Pattern::Read | Pattern::RandRead => {
                    self.namespace.read_blocks(slba, blocks, &buffer, 0).await
                }
                Pattern::Write | Pattern::RandWrite => {
                    self.namespace.write_blocks(slba, blocks, &buffer, 0, false).await
                }
            };
            result.map_err(nvme)?;
            let now = rt.now();
            samples.record(now - before);
            before = now;
            done += 1;
        }
        Ok((done, samples))
    }
}

/// Bytes that no compression makes less of.
fn fill(buffer: &IoBuffer, seed: u64) -> Result<(), CliError> {
    let mut state = seed | 1;
    let bytes: Vec<u8> = (0..buffer.len())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56) as u8
        })
        .collect();
    buffer.write_at(0, &bytes).map_err(CliError::failed)
}
