//! `everywire iscsi attach`: a remote logical unit as a Network Block Device here.
//!
//! One session, kept up: when it is lost, commands wait while the target is looked for, and are sent again, so that a client
//! sees a pause and no error. NBD's commands become SCSI's: FUA stays FUA, a flush is SYNCHRONIZE CACHE, and trim and zeroes are
//! WRITE SAME, with and without UNMAP; a unit that has none is written zeroes.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{BlockError, BlockOp, Geometry, IoBuf, IoResult, format_size};
use everywire_iscsi::initiator::{Disk, Initiator, IscsiError};

use super::{Ground, Place, failed};
use crate::error::{CliError, print};
use crate::nbd::remote::{Command, remote};
use crate::nbd::{Door, Export, Server};
use crate::serve::Signals;

/// What a command should move for best speed.
const OPTIMAL_IO: u32 = 4096;
/// Bytes of zeroes written at once where WRITE SAME is not known.
const ZEROES: u64 = 1 << 20;

/// Flags of `everywire iscsi attach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire iscsi attach 192.0.2.1 iqn.2026-11.example:disk --nbd /run/disk.sock\n  \
    everywire iscsi attach --device rocev2 192.0.2.1 iqn.2026-11.example:disk --nbd 127.0.0.1:10809\n  \
    nbdcopy image 'nbd+unix:///?socket=/run/disk.sock'\n\n\
    It stays until SIGTERM or SIGINT, then finishes and flushes what clients have asked for. NBD has no passwords: who reaches\n\
    an address given to --nbd uses the disk; a UNIX socket is for this user only.")]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Where NBD clients connect: a path of a UNIX socket, or ADDRESS[:PORT] (port 10809).
    #[arg(long, value_name = "SOCKET")]
    nbd: Door,
    /// Seconds for which a lost target is looked for before commands fail.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    loss_timeout: u64,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
}

/// Attaches until it is told to stop.
pub fn run(args: &Args) -> Result<(), CliError> {
    let mut ground = args.place.open()?;
    ground.options.loss_timeout = Duration::from_secs(args.loss_timeout);
    ground.block_on_for_good(async {
        let mut signals = Signals::new()?;
        let session = args.place.login(&ground).await?;
        let served = serve(args, &ground, &session, &mut signals).await;
        session.logout().await;
        served
    })
}

async fn serve(
    args: &Args,
    ground: &Ground,
    session: &Initiator,
    signals: &mut Signals,
) -> Result<(), CliError> {
    let disk = args.place.disk(session).await?;
    let capacity = disk.capacity();
    let geometry = Geometry {
        block_size: capacity.block_size,
        blocks: capacity.blocks,
        optimal_io: OPTIMAL_IO.max(capacity.block_size),
        read_only: args.read_only || disk.is_read_only().await.map_err(failed)?,
        // A unit without a cache has nothing to do for a flush.
        volatile_cache: true,
        discard: true,
    };
    let size = format_size(capacity.bytes());
    let description = format!("LUN {} at {}", args.place.lun, ground.address);
    let (backend, commands) = remote(geometry, description.clone());
    let server = Server::listen(&args.nbd).await?;
    print(format_args!("listening on {}, {size}, {description}", server.door()))?;
    let rt = ground.rt();
    let attached = Rc::new(Attached { disk: disk.clone(), knows_same: Cell::new(true) });
    let working = rt.clone();
    rt.spawn(async move {
        commands.serve(&working, move |command| attached.clone().carry_out(command)).await;
    });
    let name = args.place.target.as_ref().map(ToString::to_string).unwrap_or_default();
    let export = Export { name, description, geometry };
    let stop = async { tracing::info!("{}: stopping; a second signal stops at once", signals.next().await) };
    server.run(&rt, export, Arc::new(backend), stop).await;
    if geometry.read_only { Ok(()) } else { disk.flush().await.map_err(failed) }
}

struct Attached {
    disk: Disk,
    /// Whether the unit knows WRITE SAME, as far as it has told.
    knows_same: Cell<bool>,
}

impl Attached {
    async fn carry_out(self: Rc<Self>, command: Command) -> IoResult {
        match command {
            Command::Read { offset, into } => {
                let data = self.disk.read(offset, into.len()).await;
                into.store(0, &data.map_err(|e| broken(BlockOp::Read, offset, e))?);
                Ok(())
            }
            Command::Write { offset, from, fua } => self.write(offset, &from, fua).await,
            Command::Flush => self.disk.flush().await.map_err(|e| broken(BlockOp::Flush, 0, e)),
            Command::WriteZeroes { offset, len, may_unmap } => self
                .write_zeroes(offset, len, may_unmap)
                .await
                .map_err(|e| broken(BlockOp::WriteZeroes, offset, e)),
        }
    }

    async fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoResult {
        let mut data = vec![0; from.len()];
        from.load(0, &mut data);
        let written = match fua {
            true => self.disk.write_through(offset, data.into()).await,
            false => self.disk.write(offset, data.into()).await,
        };
        written.map_err(|e| broken(BlockOp::Write, offset, e))
    }

    async fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IscsiError> {
        if self.knows_same.get() {
            match self.disk.write_zeroes(offset, len, may_unmap).await {
                Err(IscsiError::Status { .. }) => self.knows_same.set(false),
                other => return other,
            }
        }
        for at in (0..len).step_by(ZEROES as usize) {
            let piece = vec![0; ZEROES.min(len - at) as usize];
            self.disk.write(offset + at, piece.into()).await?;
        }
        Ok(())
    }
}

fn broken(op: BlockOp, offset: u64, source: IscsiError) -> BlockError {
    BlockError::Io { op, offset, source: io::Error::other(source) }
}
