//! `everywire srp attach`: a remote logical unit as a Network Block Device here.
//!
//! One login, kept up: when the target is lost, commands wait while it is looked for, and are sent again, so that a client sees a
//! pause and no error. FUA stays FUA, a flush is SYNCHRONIZE CACHE, trim and zeroes are WRITE SAME, with and without UNMAP. Data
//! passes through registered buffers, which are kept and used again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{BlockError, BlockOp, Geometry, IoBuf, IoResult, format_size};
use everywire_srp::rdma::SrpError;
use everywire_srp::rdma::initiator::{Disk, SrpErrorKind};
use everywire_verbs::MemoryRegion;

use super::{Ground, Place, failed};
use crate::error::{CliError, print};
use crate::nbd::remote::{Command, remote};
use crate::nbd::{Door, Export, Server};
use crate::serve::Signals;

/// Smallest buffer; the others are powers of two.
const LEAST_BUFFER: usize = 4096;
/// Bytes of buffers that are kept for the next commands.
const KEPT: usize = 32 << 20;
/// Bytes copied at a time between a registered buffer and a client's.
const COPY: usize = 64 << 10;
/// Bytes of zeroes written by one command where the unit knows no WRITE SAME.
const ZEROES: u64 = 1 << 20;
/// What a command should move for best speed.
const OPTIMAL_IO: u32 = 4096;

/// Flags of `everywire srp attach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire srp attach 192.0.2.1 ID_EXT:IOC_GUID --nbd /run/disk.sock\n\n\
    It stays until SIGTERM or SIGINT, then finishes and flushes what clients have asked for. NBD has no passwords: who reaches\n\
    an address given to --nbd uses the disk; a UNIX socket is for this user only.")]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Where NBD clients connect: a path of a UNIX socket, or ADDRESS[:PORT] (port 10809).
    #[arg(long, value_name = "SOCKET")]
    nbd: Door,
    /// Seconds for which a lost target is looked for before commands fail [default: for ever].
    #[arg(long, value_name = "SECONDS")]
    loss_timeout: Option<u64>,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
}

/// Attaches until it is told to stop.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on_for_good(async {
        let mut signals = Signals::new()?;
        let loss_timeout = args.loss_timeout.map(Duration::from_secs);
        let initiator = args.place.log_in(&ground, loss_timeout).await?;
        let disk = initiator.disk(args.place.lun).await.map_err(failed)?;
        let served = serve(args, &ground, disk, &mut signals).await;
        initiator.log_out().await;
        served
    })
}

async fn serve(args: &Args, ground: &Ground, disk: Disk, signals: &mut Signals) -> Result<(), CliError> {
    let capacity = disk.capacity();
    let geometry = Geometry {
        block_size: capacity.block_size,
        blocks: capacity.blocks,
        optimal_io: OPTIMAL_IO.max(capacity.block_size),
        read_only: args.read_only,
        volatile_cache: true,
        discard: capacity.thin,
    };
    let name = args.place.target.0.to_string();
    let description = format!("LUN {} of {name} at {}", args.place.lun, ground.address);
    let size = format_size(capacity.bytes());
    let (backend, commands) = remote(geometry, description.clone());
    let server = Server::listen(&args.nbd).await?;
    print(format_args!("listening on {}, {size}, {description}", server.door()))?;
    let rt = ground.rt();
    let attached =
        Rc::new(Attached { disk: disk.clone(), zeroes: Cell::new(Zeroes::Unmap), free: RefCell::default() });
    let working = rt.clone();
    rt.spawn(async move {
        commands.serve(&working, move |command| attached.clone().carry_out(command)).await;
    });
    let export = Export { name, description, geometry };
    let stop = async { tracing::info!("{}: stopping; a second signal stops at once", signals.next().await) };
    server.run(&rt, export, Arc::new(backend), stop).await;
    if geometry.read_only { Ok(()) } else { disk.flush().await.map_err(failed) }
}

/// How zeroes are written, as far as the unit knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroes {
    Unmap,
    Same,
    Written,
}

/// The unit has answered, and not with GOOD.
fn refused(error: &SrpError) -> bool {
    matches!(*error.kind, SrpErrorKind::Status { .. })
}

/// The disk, and buffers that wait for the next command, by their size.
struct Attached {
    disk: Disk,
    zeroes: Cell<Zeroes>,
    free: RefCell<BTreeMap<usize, Vec<MemoryRegion>>>,
}

impl Attached {
    async fn carry_out(self: Rc<Self>, command: Command) -> IoResult {
        match command {
            Command::Read { offset, into } => self.read(offset, &into).await,
            Command::Write { offset, from, fua } => self.write(offset, &from, fua).await,
            Command::Flush => self.disk.flush().await.map_err(|e| io_error(BlockOp::Flush, 0, e)),
            Command::WriteZeroes { offset, len, may_unmap } => {
                let done = self.write_zeroes(offset, len, may_unmap).await;
                done.map_err(|e| io_error(BlockOp::WriteZeroes, offset, e))
            }
        }
    }

    async fn read(&self, offset: u64, into: &IoBuf) -> IoResult {
        let error = |e| io_error(BlockOp::Read, offset, e);
        let buffer = self.buffer(into.len()).map_err(error)?;
        self.disk.read_into(offset, &buffer, 0, into.len()).await.map_err(error)?;
        let mut copy = vec![0; COPY.min(into.len())];
        for at in (0..into.len()).step_by(COPY) {
            let part = &mut copy[..COPY.min(into.len() - at)];
            buffer.read_at(at, part).map_err(|e| io_error(BlockOp::Read, offset, e))?;
            into.store(at, part);
        }
        self.keep(buffer);
        Ok(())
    }

    async fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoResult {
        let error = |e| io_error(BlockOp::Write, offset, e);
        let buffer = self.buffer(from.len()).map_err(error)?;
        let mut copy = vec![0; COPY.min(from.len())];
        for at in (0..from.len()).step_by(COPY) {
            let part = &mut copy[..COPY.min(from.len() - at)];
            from.load(at, part);
            buffer.write_at(at, part).map_err(|e| io_error(BlockOp::Write, offset, e))?;
        }
        self.disk.write_from(offset, &buffer, 0, from.len(), fua).await.map_err(error)?;
        self.keep(buffer);
        Ok(())
    }

    /// By WRITE SAME as far as the unit knows it, and by writing where it does not.
    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), SrpError> {
        if may_unmap && self.zeroes.get() == Zeroes::Unmap {
            match self.disk.write_zeroes(offset, len, true).await {
                Err(error) if refused(&error) => self.zeroes.set(Zeroes::Same),
                other => return other,
            }
        }
        if self.zeroes.get() != Zeroes::Written {
            match self.disk.write_zeroes(offset, len, false).await {
                Err(error) if refused(&error) => self.zeroes.set(Zeroes::Written),
                other => return other,
            }
        }
        let zeroes = self.disk.buffer(ZEROES.min(len) as usize)?;
        for at in (0..len).step_by(ZEROES as usize) {
            self.disk.write_from(offset + at, &zeroes, 0, ZEROES.min(len - at) as usize, false).await?;
        }
        Ok(())
    }

    fn buffer(&self, len: usize) -> Result<MemoryRegion, SrpError> {
        let size = len.next_power_of_two().max(LEAST_BUFFER);
        let kept = self.free.borrow_mut().get_mut(&size).and_then(Vec::pop);
        kept.map_or_else(|| self.disk.buffer(size), Ok)
    }

    /// Keeps a buffer whose command has ended well; that of one that failed may still be the target's.
    fn keep(&self, buffer: MemoryRegion) {
        let mut free = self.free.borrow_mut();
        let kept: usize = free.iter().map(|(size, buffers)| size * buffers.len()).sum();
        if kept + buffer.len() <= KEPT {
            free.entry(buffer.len()).or_default().push(buffer);
        }
    }
}

fn io_error(op: BlockOp, offset: u64, source: impl std::error::Error + Send + Sync + 'static) -> BlockError {
    BlockError::Io { op, offset, source: io::Error::other(source) }
}
