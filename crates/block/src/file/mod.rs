//! A file or block device as a backend.
//!
//! I/O goes through io_uring ([`ring`]), or a few threads where the kernel or its sandbox refuses io_uring ([`threads`]).
//! Files are opened for direct I/O where the file system allows it at the chosen block size, else buffered; data always
//! passes through page-aligned buffers of our own, because registered memory may change under the kernel's hands.
//! Flush is `fdatasync`; once one fails, every later flush fails too, since Linux reports a lost write only once.
//! A file has one writer ([`lock`]). What this does not do: cache, stop programs that ask for no lock, or notice that the file
//! was resized.

mod lock;
mod op;
mod open;
mod ring;
mod threads;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;

use crate::backend::{Backend, Geometry, IoBuf, IoFuture, IoResult};
use crate::buffer::BufferPool;
use crate::error::{BlockError, BlockOp};
use crate::size::format_size;
use lock::Lock;
use op::{Op, Request};
use open::{create, invalid, open_file, size_of};

/// Zeroes written at once where the file system cannot zero a range itself, in bytes.
const ZERO_STEP: u64 = 1 << 20;
/// Largest single read or write handed to the kernel, in bytes.
const MAX_TRANSFER: usize = 4 << 20;

/// How to open a file backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// Logical block size: 512 or 4096 bytes.
    pub block_size: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// Create the file with this many bytes (sparsely), or expect it to have them; of a block device, use so many.
    pub size: Option<u64>,
    /// Every write is durable when it completes (`O_DSYNC`), so there is no volatile cache.
    pub write_through: bool,
    /// Do not try direct I/O.
    pub buffered: bool,
    /// Do not try io_uring.
    pub threads: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            block_size: 512,
            read_only: false,
            size: None,
            write_through: false,
            buffered: false,
            threads: false,
        }
    }
}

/// Runs requests; completions wake the future that waits for them.
enum Engine {
    Ring(ring::Ring),
    Threads(threads::Threads),
}

impl Engine {
    fn submit(&self, op: Arc<Op>) {
        match self {
            Self::Ring(ring) => ring.submit(op),
            Self::Threads(threads) => threads.submit(op),
        }
    }
}

struct Inner {
    /// Ends first: what is in flight lands before the lock is given back.
    engine: Engine,
    _lock: Option<Lock>,
    buffers: BufferPool,
    geometry: Geometry,
    /// Cleared when the file system turns out not to support the operation.
    can_zero: AtomicBool,
    can_punch: AtomicBool,
    /// The first flush failure's text.
    flush_lost: Mutex<Option<String>>,
}

/// A file or block device.
pub struct FileBackend {
    inner: Arc<Inner>,
    path: PathBuf,
    direct: bool,
    write_through: bool,
}

impl FileBackend {
    /// Opens `path`; errors name the path and the step.
    pub fn open(path: &Path, options: &FileOptions) -> io::Result<Self> {
        let device = match std::fs::metadata(path).map(|meta| meta.file_type()) {
            // Not opened: a pipe would wait for its other end.
            Ok(kind) if !kind.is_file() && !kind.is_block_device() => {
                return Err(invalid("not a regular file or block device".to_owned()));
            }
            kind => kind.is_ok_and(|kind| kind.is_block_device()),
        };
        let created = options.size.is_some() && !options.read_only && create(path)?;
        let opened = open_file(path, device, options)
            .and_then(|(file, direct)| Self::of(file, device, direct, path, options));
        opened.inspect_err(|_| {
            if created {
                // There is nothing in it; what could not be made whole is not left behind.
                let _ = std::fs::remove_file(path);
            }
        })
    }

    /// The same of the open file.
    fn of(file: File, device: bool, direct: bool, path: &Path, options: &FileOptions) -> io::Result<Self> {
        let file = Arc::new(file);
        let lock = Lock::take(file.clone(), options.read_only)?;
        if device {
            let sector = rustix::fs::ioctl_blksszget(&file)?;
            if sector > options.block_size {
                return Err(invalid(format!("device sector is {sector} bytes: choose bs={sector}")));
            }
        }
        let bytes = size_of(&file, device, options)?;
        let geometry = Geometry {
            block_size: options.block_size,
            blocks: bytes / u64::from(options.block_size),
            optimal_io: 4096,
            read_only: options.read_only,
            volatile_cache: !options.write_through,
            discard: !options.read_only,
        };
        Ok(Self::start((file, Some(lock)), geometry, path, direct, options))
    }

    fn start(
        (file, lock): (Arc<File>, Option<Lock>),
        geometry: Geometry,
        path: &Path,
        direct: bool,
        options: &FileOptions,
    ) -> Self {
        let ring = if options.threads { None } else { ring::Ring::new(file.clone()).ok() };
        let engine = match ring {
            Some(ring) => Engine::Ring(ring),
            None => Engine::Threads(threads::Threads::new(file)),
        };
        let inner = Inner {
            engine,
            _lock: lock,
            buffers: BufferPool::default(),
            geometry,
            can_zero: AtomicBool::new(true),
            can_punch: AtomicBool::new(true),
            flush_lost: Mutex::new(None),
        };
        let (path, write_through) = (path.to_owned(), options.write_through);
        Self { inner: Arc::new(inner), path, direct, write_through }
    }

    fn checked(&self, op: BlockOp, offset: u64, len: u64) -> IoResult {
        if self.inner.geometry.read_only && op != BlockOp::Read {
            return Err(BlockError::ReadOnly { op });
        }
        self.inner.geometry.check(op, offset, len)
    }
}

impl Inner {
    /// Moves `io.len()` bytes, resuming after short transfers.
    async fn transfer(self: Arc<Self>, op: BlockOp, offset: u64, io: IoBuf, fua: bool) -> IoResult {
        let mut moved = 0;
        while moved < io.len() {
            let step = (io.len() - moved).min(MAX_TRANSFER);
            let at = offset + moved as u64;
            let mut buf = self.buffers.take(step).ok_or(BlockError::NoSpace { op, offset: at })?;
            if op == BlockOp::Write {
                io.load(moved, &mut buf[..step]);
            }
            let request = match op {
                BlockOp::Write => Request::Write { offset: at, len: step, fua },
                _ => Request::Read { offset: at, len: step },
            };
            let (result, buf) = Op::run(&self.engine, request, Some(buf)).await;
            let n = result.map_err(|errno| BlockError::from_os(op, at, errno))?;
            if n == 0 {
                let source = io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file is shorter than when it was opened",
                );
                return Err(BlockError::Io { op, offset: at, source });
            }
            if let Some(buf) = buf {
                if op == BlockOp::Read {
                    io.store(moved, &buf[..n.min(step)]);
                }
                self.buffers.give(buf);
            }
            moved += n.min(step);
        }
        Ok(())
    }

    async fn flush(self: Arc<Self>) -> IoResult {
        let lost = || self.flush_lost.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = lost().clone() {
            return Err(BlockError::FlushLost { first });
        }
        let (result, _) = Op::run(&self.engine, Request::Sync, None).await;
        result.map(drop).map_err(|errno| {
            let error = BlockError::from_os(BlockOp::Flush, 0, errno);
            lost().get_or_insert_with(|| error.to_string());
            error
        })
    }

    /// Runs fallocate; `false` when the file system has no such mode.
    async fn fallocate(
        &self,
        op: BlockOp,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<bool, BlockError> {
        let request = Request::Fallocate { mode: (mode | FallocateFlags::KEEP_SIZE).bits(), offset, len };
        match Op::run(&self.engine, request, None).await.0 {
            Ok(_) => Ok(true),
            Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(false),
            Err(errno) => Err(BlockError::from_os(op, offset, errno)),
        }
    }

    async fn zero(self: Arc<Self>, op: BlockOp, offset: u64, len: u64, may_unmap: bool) -> IoResult {
        if len != 0 {
            self.clone().zero_range(op, offset, len, may_unmap).await?;
        }
        if self.geometry.volatile_cache {
            return Ok(());
        }
        // O_DSYNC covers writes, not fallocate.
        self.flush().await
    }

    async fn zero_range(self: Arc<Self>, op: BlockOp, offset: u64, len: u64, may_unmap: bool) -> IoResult {
        if may_unmap && self.can_punch.load(Ordering::Relaxed) {
            if self.fallocate(op, FallocateFlags::PUNCH_HOLE, offset, len).await? {
                return Ok(());
            }
            self.can_punch.store(false, Ordering::Relaxed);
        }
        if self.can_zero.load(Ordering::Relaxed) {
            if self.fallocate(op, FallocateFlags::ZERO_RANGE, offset, len).await? {
                return Ok(());
            }
            self.can_zero.store(false, Ordering::Relaxed);
        }
        let mut at = 0;
        while at < len {
            let step = (len - at).min(ZERO_STEP);
            let zeroes = crate::buffer::SharedBuffer::new(vec![0; step as usize]);
            self.clone().transfer(BlockOp::Write, offset + at, zeroes.io(), false).await?;
            at += step;
        }
        Ok(())
    }
}

impl Backend for FileBackend {
    fn geometry(&self) -> Geometry {
        self.inner.geometry
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        match self.checked(BlockOp::Read, offset, into.len() as u64) {
            Ok(()) => {
                IoFuture::pending(self.inner.clone().transfer(BlockOp::Read, offset, into.clone(), false))
            }
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult> {
        match self.checked(BlockOp::Write, offset, from.len() as u64) {
            Ok(()) => {
                IoFuture::pending(self.inner.clone().transfer(BlockOp::Write, offset, from.clone(), fua))
            }
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn flush(&self) -> IoFuture<IoResult> {
        if self.inner.geometry.read_only {
            return IoFuture::ready(Ok(()));
        }
        IoFuture::pending(self.inner.clone().flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> IoFuture<IoResult> {
        match self.checked(BlockOp::WriteZeroes, offset, len) {
            Ok(()) => {
                IoFuture::pending(self.inner.clone().zero(BlockOp::WriteZeroes, offset, len, may_unmap))
            }
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        match self.checked(BlockOp::Discard, offset, len) {
            Ok(()) => IoFuture::pending(self.inner.clone().zero(BlockOp::Discard, offset, len, true)),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn describe(&self) -> String {
        let engine = match self.inner.engine {
            Engine::Ring(_) => "io_uring",
            Engine::Threads(_) => "threads",
        };
        let how = if self.direct { "direct" } else { "buffered" };
        let through = if self.write_through { ", write-through" } else { "" };
        let ro = if self.inner.geometry.read_only { ", read-only" } else { "" };
        let size = format_size(self.inner.geometry.bytes());
        format!("file {}, {size}, {engine}, {how} I/O{through}{ro}", self.path.display())
    }
}

#[cfg(test)]
mod tests;
