//! `everywire nvme attach`: a remote namespace as a Network Block Device here.
//!
//! One controller, kept connected: when it is lost, commands wait while it is looked for, and are sent again, so that a
//! client sees a pause and no error. NBD's commands become NVMe's: FUA stays FUA, a flush is Flush, and trim and zeroes are
//! Write Zeroes, with and without leave to deallocate. Data passes through registered buffers, which are kept and used again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{BlockError, BlockOp, Geometry, IoBuf, IoResult, format_size};
use everywire_nvmeof::rdma::{Controller, InitiatorOptions, IoBuffer, Namespace};

use super::{Ground, Place, nvme};
use crate::error::{CliError, print};
use crate::nbd::remote::{Command, remote};
use crate::nbd::{Door, Export, Server};
use crate::serve::Signals;

/// Bytes of one NVMe command, where the controller takes so many.
const PIECE: u32 = 1 << 20;
/// Smallest buffer; the others are powers of two.
const LEAST_BUFFER: usize = 4096;
/// Bytes of buffers that are kept for the next commands.
const KEPT: usize = 32 << 20;
/// Bytes copied at a time between a registered buffer and a client's.
const COPY: usize = 64 << 10;
/// Bit of ONCS: Write Zeroes. NVMe Base 2.0 figure 276.
const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// Bit of VWC: there is a volatile write cache.
const VWC_PRESENT: u8 = 1;
/// What a command should move for best speed.
const OPTIMAL_IO: u32 = 4096;

/// Flags of `everywire nvme attach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire nvme attach 192.0.2.1 nqn.2026-11.example:disk --nbd /run/disk.sock\n  \
    nbdcopy image 'nbd+unix:///?socket=/run/disk.sock'\n  \
    qemu-system-x86_64 … -drive file=nbd+unix:///?socket=/run/disk.sock,format=raw\n\n  \
    everywire nvme attach 192.0.2.1 nqn.2026-11.example:disk --nbd 127.0.0.1:10809\n  \
    nbd-client -b 4096 127.0.0.1 /dev/nbd0      (as root, the kernel's driver)\n\n\
    It stays until SIGTERM or SIGINT, then finishes and flushes what clients have asked for. NBD has no passwords: who reaches\n\
    an address given to --nbd uses the disk; a UNIX socket is for this user only.")]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Where NBD clients connect: a path of a UNIX socket, or ADDRESS[:PORT] (port 10809).
    #[arg(long, value_name = "SOCKET")]
    nbd: Door,
    /// I/O queues.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Seconds for which a lost controller is looked for before commands fail.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    loss_timeout: u64,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
}

/// Attaches until it is told to stop.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on_for_good(async {
        let mut signals = Signals::new()?;
        let options = InitiatorOptions {
            io_queues: args.queues,
            loss_timeout: Duration::from_secs(args.loss_timeout),
            ..InitiatorOptions::default()
        };
        let (controller, namespace) = args.place.namespace(&ground, options).await?;
        let served = serve(args, &ground, &controller, namespace, &mut signals).await;
        let ended = controller.disconnect().await.map_err(nvme);
        served.and(ended)
    })
}

async fn serve(
    args: &Args,
    ground: &Ground,
    controller: &Controller,
    namespace: Namespace,
    signals: &mut Signals,
) -> Result<(), CliError> {
    let id = controller.identify().ok_or_else(|| CliError::peer("the controller went away"))?;
    let can_zero = id.oncs & ONCS_WRITE_ZEROES != 0;
    let info = namespace.info();
    let geometry = Geometry {
        block_size: info.block_size,
        blocks: info.blocks,
        optimal_io: OPTIMAL_IO.max(info.block_size),
        read_only: info.read_only || args.read_only,
        volatile_cache: id.vwc & VWC_PRESENT != 0,
        discard: can_zero,
    };
    let name = controller_name(controller);
    let description = format!("namespace {} of {name} at {}", info.nsid, ground.address);
    let size = format_size(info.bytes());
    let (disk, commands) = remote(geometry, description.clone());
    let server = Server::listen(&args.nbd).await?;
    print(format_args!("listening on {}, {size}, {description}", server.door()))?;
    let rt = ground.rt();
    let attached = Rc::new(Attached { namespace: namespace.clone(), can_zero, free: RefCell::default() });
    let working = rt.clone();
    rt.spawn(async move {
        commands.serve(&working, move |command| attached.clone().carry_out(command)).await;
    });
    let export = Export { name, description, geometry };
    let stop = async { tracing::info!("{}: stopping; a second signal stops at once", signals.next().await) };
    server.run(&rt, export, Arc::new(disk), stop).await;
    if geometry.read_only { Ok(()) } else { namespace.flush().await.map_err(nvme) }
}

/// The subsystem's NQN.
fn controller_name(controller: &Controller) -> String {
    let id = controller.identify();
    id.map(|id| everywire_nvmeof::pdu::discovery::text(&id.subnqn).into()).unwrap_or_default()
}

/// The namespace, and buffers that wait for the next command, by their size.
struct Attached {
    namespace: Namespace,
    can_zero: bool,
    free: RefCell<BTreeMap<usize, Vec<IoBuffer>>>,
}

impl Attached {
    async fn carry_out(self: Rc<Self>, command: Command) -> IoResult {
        match command {
            Command::Read { offset, into } => self.read(offset, &into).await,
            Command::Write { offset, from, fua } => self.write(offset, &from, fua).await,
            Command::Flush => self.namespace.flush().await.map_err(|e| failed(BlockOp::Flush, 0, e)),
            Command::WriteZeroes { offset, len, may_unmap } if self.can_zero => {
                let done = self.namespace.write_zeroes(offset, len, may_unmap).await;
                done.map_err(|e| failed(BlockOp::WriteZeroes, offset, e))
            }
            Command::WriteZeroes { offset, len, .. } => self.write_zeroes(offset, len).await,
        }
    }

    async fn read(&self, offset: u64, into: &IoBuf) -> IoResult {
        let error = |e| failed(BlockOp::Read, offset, e);
        let buffer = self.buffer(into.len()).map_err(error)?;
        for (at, blocks) in self.pieces(into.len() as u64) {
            let slba = (offset + at) / self.block();
            self.namespace.read_blocks(slba, blocks, &buffer, at as usize).await.map_err(error)?;
        }
        let mut copy = vec![0; COPY.min(into.len())];
        for at in (0..into.len()).step_by(COPY) {
            let part = &mut copy[..COPY.min(into.len() - at)];
            buffer.read_at(at, part).map_err(|e| failed(BlockOp::Read, offset, e))?;
            into.store(at, part);
        }
        self.keep(buffer);
        Ok(())
    }

    async fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoResult {
        let error = |e| failed(BlockOp::Write, offset, e);
        let buffer = self.buffer(from.len()).map_err(error)?;
        let mut copy = vec![0; COPY.min(from.len())];
        for at in (0..from.len()).step_by(COPY) {
            let part = &mut copy[..COPY.min(from.len() - at)];
            from.load(at, part);
            buffer.write_at(at, part).map_err(|e| failed(BlockOp::Write, offset, e))?;
        }
        for (at, blocks) in self.pieces(from.len() as u64) {
            let slba = (offset + at) / self.block();
            self.namespace.write_blocks(slba, blocks, &buffer, at as usize, fua).await.map_err(error)?;
        }
        self.keep(buffer);
        Ok(())
    }

    /// For a controller without Write Zeroes.
    async fn write_zeroes(&self, offset: u64, len: u64) -> IoResult {
        let error = |e| failed(BlockOp::WriteZeroes, offset, e);
        let buffer = self.namespace.buffer(self.piece() as usize).map_err(error)?;
        for (at, blocks) in self.pieces(len) {
            let slba = (offset + at) / self.block();
            self.namespace.write_blocks(slba, blocks, &buffer, 0, false).await.map_err(error)?;
        }
        Ok(())
    }

    fn block(&self) -> u64 {
        self.namespace.info().block_size.into()
    }

    /// Bytes of one command at most: whole blocks.
    fn piece(&self) -> u64 {
        let info = self.namespace.info();
        u64::from(PIECE.min(info.max_transfer)) / self.block() * self.block()
    }

    /// Where each command of so many bytes begins, and its blocks.
    fn pieces(&self, len: u64) -> impl Iterator<Item = (u64, u32)> + use<> {
        let (piece, block) = (self.piece().max(1), self.block());
        (0..len.div_ceil(piece)).map(move |i| (i * piece, ((len - i * piece).min(piece) / block) as u32))
    }

    fn buffer(&self, len: usize) -> Result<IoBuffer, everywire_nvmeof::rdma::NvmeError> {
        let size = len.next_power_of_two().max(LEAST_BUFFER);
        let kept = self.free.borrow_mut().get_mut(&size).and_then(Vec::pop);
        kept.map_or_else(|| self.namespace.buffer(size), Ok)
    }

    /// Keeps a buffer whose command has ended well; that of one that failed may still be the controller's.
    fn keep(&self, buffer: IoBuffer) {
        let mut free = self.free.borrow_mut();
        let kept: usize = free.iter().map(|(size, buffers)| size * buffers.len()).sum();
        if kept + buffer.len() <= KEPT {
            free.entry(buffer.len()).or_default().push(buffer);
        }
    }
}

fn failed(op: BlockOp, offset: u64, source: impl std::error::Error + Send + Sync + 'static) -> BlockError {
    BlockError::Io { op, offset, source: io::Error::other(source) }
}
