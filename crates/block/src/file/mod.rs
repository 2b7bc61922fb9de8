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
mod ring;
mod threads;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, FallocateFlags, StatxFlags};

use crate::backend::{Backend, Geometry, IoBuf, IoFuture, IoResult};
use crate::buffer::BufferPool;
use crate::error::{BlockError, BlockOp};
use crate::size::format_size;
use lock::Lock;
use op::{Op, Request};

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

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Bytes to serve: the file's, which are made if it has none and `size` says how many.
fn size_of(file: &File, device: bool, options: &FileOptions) -> io::Result<u64> {
    let mut bytes = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
    if let Some(size) = options.size {
        if bytes == 0 && !device && !options.read_only {
            file.set_len(size)
                .map_err(|e| io::Error::new(e.kind(), format!("give it {}: {e}", format_size(size))))?;
            file.sync_all()?;
            bytes = size;
        }
        if bytes < size || (bytes > size && !device) {
            let (has, asked) = (in_bytes(bytes), in_bytes(size));
            return Err(invalid(format!("it has {has} but size={asked} was asked for")));
        }
        bytes = size;
    }
    let block = u64::from(options.block_size);
    if bytes < block {
        return Err(invalid("smaller than one block: give it a size, as in size=1GiB".to_owned()));
    }
    if !bytes.is_multiple_of(block) {
        let has = in_bytes(bytes);
        return Err(invalid(format!("its size, {has}, is no multiple of the block size, {block} bytes")));
    }
    Ok(bytes)
}

/// A size as texts have it, with its bytes where that says more.
fn in_bytes(bytes: u64) -> String {
    let short = format_size(bytes);
    if short == format!("{bytes}B") { format!("{bytes} bytes") } else { format!("{short} ({bytes} bytes)") }
}

/// Opens for direct I/O if the file system and the block size allow it; says whether it did.
///
/// A block device that is to be written is claimed (`O_EXCL`), which fails if it is mounted or part of something that is.
fn open_file(path: &Path, device: bool, options: &FileOptions) -> io::Result<(File, bool)> {
    let exclusive = if device && !options.read_only { libc::O_EXCL } else { 0 };
    let sync = if options.write_through { libc::O_DSYNC } else { 0 } | exclusive;
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    let open = |flags| {
        let mut how = how.clone();
        how.custom_flags(sync | flags).open(path).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) if device => {
                io::Error::new(e.kind(), "the device is mounted, or another program's")
            }
            _ => e,
        })
    };
    if !options.buffered
        && let Ok(file) = open(libc::O_DIRECT)
        && direct_alignment(&file).is_some_and(|align| align <= options.block_size)
    {
        return Ok((file, true));
    }
    Ok((open(0)?, false))
}

/// Makes the file if there is none; whether it did.
fn create(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => Ok(true),
        // A link that leads nowhere: the file is made where it leads.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !path.exists() => {
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map(|_| false)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// The offset alignment direct I/O needs on this file, in bytes; `None` where there is no direct I/O or no telling.
fn direct_alignment(file: &File) -> Option<u32> {
    if file.metadata().ok()?.file_type().is_block_device() {
        return rustix::fs::ioctl_blksszget(file).ok();
    }
    let stat = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (known && stat.stx_dio_offset_align != 0 && stat.stx_dio_mem_align as usize <= crate::buffer::ALIGNMENT)
        .then_some(stat.stx_dio_offset_align)
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
