//! A disk that an initiator reaches, as an `everywire_block::Backend`.
//!
//! Initiators are single-threaded tasks of the runtime; a backend is shared and may be called from anywhere. So the backend
//! is a queue: commands go in at [`Remote`], and whoever holds the other end ([`Commands`]) carries them out with the
//! protocol at hand, several at a time. How many there are is bounded by those who call.

use std::io;

use everywire_block::{Backend, BlockError, BlockOp, Geometry, IoBuf, IoFuture, IoResult};
use everywire_verbs::rt::Rt;
use tokio::sync::{mpsc, oneshot};

/// A command for the initiator. Offsets and lengths are bytes, whole blocks inside the disk.
pub enum Command {
    Read {
        offset: u64,
        into: IoBuf,
    },
    Write {
        offset: u64,
        from: IoBuf,
        fua: bool,
    },
    Flush,
    /// Also what a discard becomes: afterwards the range reads as zeroes.
    WriteZeroes {
        offset: u64,
        len: u64,
        may_unmap: bool,
    },
}

struct Order {
    command: Command,
    done: oneshot::Sender<IoResult>,
}

/// The backend.
pub struct Remote {
    geometry: Geometry,
    description: String,
    orders: mpsc::UnboundedSender<Order>,
}

/// What is to be carried out.
pub struct Commands(mpsc::UnboundedReceiver<Order>);

/// A disk of this geometry, and the end at which its commands come out.
pub fn remote(geometry: Geometry, description: String) -> (Remote, Commands) {
    let (orders, commands) = mpsc::unbounded_channel();
    (Remote { geometry, description, orders }, Commands(commands))
}

impl Commands {
    /// Carries out each command by `work`, as a task of its own, until the backend is dropped.
    pub async fn serve<F>(mut self, rt: &Rt, work: impl Fn(Command) -> F)
    where
        F: Future<Output = IoResult> + 'static,
    {
        while let Some(Order { command, done }) = self.0.recv().await {
            let result = work(command);
            rt.spawn(async move {
                // Whoever asked may have left.
                let _ = done.send(result.await);
            });
        }
    }
}

impl Remote {
    fn order(&self, op: BlockOp, offset: u64, command: Command) -> IoFuture<IoResult> {
        let (done, result) = oneshot::channel();
        let gone =
            move || BlockError::Io { op, offset, source: io::Error::from(io::ErrorKind::NotConnected) };
        if self.orders.send(Order { command, done }).is_err() {
            return IoFuture::ready(Err(gone()));
        }
        IoFuture::pending(async move { result.await.unwrap_or_else(|_| Err(gone())) })
    }

    fn checked(
        &self,
        op: BlockOp,
        offset: u64,
        len: u64,
        command: impl FnOnce() -> Command,
    ) -> IoFuture<IoResult> {
        if op != BlockOp::Read && self.geometry.read_only {
            return IoFuture::ready(Err(BlockError::ReadOnly { op }));
        }
        match self.geometry.check(op, offset, len) {
            Ok(()) => self.order(op, offset, command()),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }
}

impl Backend for Remote {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        let command = || Command::Read { offset, into: into.clone() };
        self.checked(BlockOp::Read, offset, into.len() as u64, command)
    }

    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult> {
        let command = || Command::Write { offset, from: from.clone(), fua };
        self.checked(BlockOp::Write, offset, from.len() as u64, command)
    }

    fn flush(&self) -> IoFuture<IoResult> {
        self.order(BlockOp::Flush, 0, Command::Flush)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> IoFuture<IoResult> {
        let command = || Command::WriteZeroes { offset, len, may_unmap };
        self.checked(BlockOp::WriteZeroes, offset, len, command)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        let command = || Command::WriteZeroes { offset, len, may_unmap: true };
        self.checked(BlockOp::Discard, offset, len, command)
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
