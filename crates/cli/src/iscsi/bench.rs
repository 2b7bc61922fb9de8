//! `everywire iscsi bench`: a number of commands in flight, for a time; IOPS, GB/s and latency.
//!
//! The mirror of `everywire nvme bench`. Without a portal it starts a target of its own, a RAM disk in a second process on
//! loopback, and goes there over RDMA.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use everywire_block::parse_size;
use everywire_iscsi::initiator::Disk;
use everywire_verbs::rt::Rt;

use super::{Place, failed};
use crate::bench::{Load, Measured, Pattern, Places};
use crate::device::DeviceArgs;
use crate::error::{CliError, print};
use crate::progress::Progress;
use crate::samples::Samples;
use crate::second::SecondProcess;
use crate::second::places::{self, ByHand};
use crate::serve;

/// What a target of its own serves.
const OWN_TARGET: &str = "iqn.2026-11.net.everywire:bench=ram:256MiB";
/// The same by hand.
const BY_HAND: ByHand<'static> =
    ByHand { server: "serve --iscsi iqn.2026-11.net.everywire:bench=ram:256MiB", client: "iscsi bench" };
/// Bytes written at once when it is filled.
const TOUCH: u64 = 1 << 20;
/// Most bytes of a command.
const MOST: u64 = 1 << 20;

/// Flags of `everywire iscsi bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire iscsi bench 192.0.2.1 iqn.2026-11.example:disk --device rocev2 --rw randread --depth 32\n  \
    everywire iscsi bench 192.0.2.1 iqn.2026-11.example:disk --json          over TCP\n  \
    everywire iscsi bench                          a RAM disk here, over RDMA")]
pub struct Args {
    #[command(flatten)]
    place: OptionalPlace,
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

/// A place, or none.
#[derive(Debug, clap::Args)]
struct OptionalPlace {
    #[command(flatten)]
    device: DeviceArgs,
    /// The portal: ADDRESS or ADDRESS:PORT ([v6]:PORT) [default: a RAM disk in a second process here].
    #[arg(value_name = "PORTAL")]
    portal: Option<crate::peer::PeerName>,
    /// The target [default: the only one that the portal offers].
    #[arg(value_name = "IQN")]
    target: Option<everywire_iscsi::name::IscsiName>,
    /// The logical unit.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..16384))]
    lun: u16,
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<(), CliError> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(CliError::usage(format_args!("--seconds {}: more than 0, at most 3600", args.seconds)));
    }
    let second = match args.place.portal {
        Some(_) => None,
        None => {
            let devices = places::beside(args.place.device.device.as_deref(), BY_HAND)?;
            Some(SecondProcess::start(&devices, arguments)?)
        }
    };
    let place = args.place.resolve(second.as_ref())?;
    let ground = place.open()?;
    let duration = Duration::from_secs_f64(args.seconds);
    let measured = ground.block_on(async {
        let session = place.login(&ground).await?;
        let disk = place.disk(&session).await?;
        if second.is_some() {
            touch(&disk).await?;
        }
        let progress = Progress::time("measuring", duration);
        let load = Load { pattern: args.rw, block_size: args.block_size, depth: args.depth, duration };
        let measured = measure(load, &ground.rt(), &disk).await;
        drop(progress);
        let reconnects = session.reconnects();
        session.logout().await;
        measured.map(|measured| Measured { reconnects, ..measured })
    })?;
    drop((ground, second));
    if args.json {
        return print(measured.object(args.rw, args.depth));
    }
    print(measured.line(args.rw, args.depth))
}

fn arguments(device: &str) -> Vec<String> {
    serve::arguments(device, &["--iscsi", OWN_TARGET])
}

impl OptionalPlace {
    /// Where to: as named, or the target that was started for it, which is reached over RDMA.
    fn resolve(&self, own: Option<&SecondProcess>) -> Result<Place, CliError> {
        let mut device = self.device.clone();
        let portal = match (&self.portal, own) {
            (Some(portal), _) => portal.clone(),
            (None, Some(second)) => {
                device.device = device.device.or_else(|| Some("rocev2".to_owned()));
                second.addr().to_string().parse().map_err(CliError::failed)?
            }
            (None, None) => return Err(CliError::usage("no portal")),
        };
        Ok(Place::of(device, portal, self.target.clone(), self.lun))
    }
}

/// Writes all of a new RAM disk once: memory that nobody has written is not memory yet.
async fn touch(disk: &Disk) -> Result<(), CliError> {
    let piece = Bytes::from(vec![0xa5; TOUCH as usize]);
    for offset in (0..disk.capacity().bytes()).step_by(TOUCH as usize) {
        disk.write(offset, piece.clone()).await.map_err(failed)?;
    }
    Ok(())
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
    if load.block_size == 0 || !load.block_size.is_multiple_of(block) || load.block_size > MOST {
        return Err(CliError::usage(format_args!(
            "--block-size {}: a multiple of {block}, at most {MOST}",
            load.block_size
        )));
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
        let (mut done, mut samples) = (0, Samples::new());
        let mut random = rt.entropy() | 1;
        let buffer = self.disk.buffer(len).map_err(failed)?;
        buffer.write_at(0, &(0..size).map(|at| (random >> (at % 57)) as u8).collect::<Vec<u8>>());
        let mut before = rt.now();
        while before < self.deadline {
            let offset = self.places.next(&mut random) * size;
            match self.load.pattern.writes() {
                true => self.disk.write_from(offset, &buffer, 0, len, false).await.map_err(failed)?,
                false => self.disk.read_into(offset, &buffer, 0, len).await.map_err(failed)?,
            }
            let now = rt.now();
            samples.record(now - before);
            before = now;
            done += 1;
        }
        Ok((done, samples))
    }
}
