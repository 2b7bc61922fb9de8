//! The backend trait, its geometry, and how data reaches it.
//!
//! A backend never sees a slice of registered memory: peers may write registered memory at any time, so it copies
//! through [`IoMemory`]. A command that can be answered at once returns [`IoFuture::Ready`] and costs no allocation.
//! What this does not do: ordering. Two overlapping commands in flight may land in either order, as on any disk.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{BlockError, BlockOp};

/// What a backend looks like to the protocol above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a logical block: 512 or 4096.
    pub block_size: u32,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Bytes that one command should move, and be aligned to, for best speed.
    pub optimal_io: u32,
    /// Writes are refused with [`BlockError::ReadOnly`].
    pub read_only: bool,
    /// A completed write may be lost in a power failure until `flush` completes.
    pub volatile_cache: bool,
    /// `discard` gives space back, and what was discarded reads as zeroes.
    pub discard: bool,
}

impl Geometry {
    /// Capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Checks that `offset..offset + len` (bytes) lies inside the backend and on block boundaries.
    pub fn check(&self, op: BlockOp, offset: u64, len: u64) -> Result<(), BlockError> {
        let size = self.bytes();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { op, offset, len, size });
        }
        let mask = u64::from(self.block_size) - 1;
        if (offset | len) & mask != 0 {
            return Err(BlockError::Misaligned { op, offset, len, block_size: self.block_size });
        }
        Ok(())
    }
}

/// Memory that a backend copies into or out of; a registered region, or a [`crate::SharedBuffer`].
///
/// Offsets and lengths are bytes. Implementations panic when a range lies outside: callers size their buffers.
pub trait IoMemory: Send + Sync {
    /// Copies `self[at..at + into.len()]` into `into`.
    fn load(&self, at: usize, into: &mut [u8]);
    /// Copies `from` into `self[at..at + from.len()]`.
    fn store(&self, at: usize, from: &[u8]);
}

/// A range of some [`IoMemory`]: the data of one command. Cheap to clone.
#[derive(Clone)]
pub struct IoBuf {
    memory: Arc<dyn IoMemory>,
    at: usize,
    len: usize,
}

impl IoBuf {
    /// The `len` bytes of `memory` from byte `at`.
    pub fn new(memory: Arc<dyn IoMemory>, at: usize, len: usize) -> Self {
        Self { memory, at, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The `len` bytes of it from byte `at`.
    pub fn slice(&self, at: usize, len: usize) -> Self {
        assert!(at + len <= self.len, "a slice past the end of an I/O buffer");
        Self { memory: self.memory.clone(), at: self.at + at, len }
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies out of the buffer, from byte `at` of it.
    pub fn load(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len, "load past the end of an I/O buffer");
        self.memory.load(self.at + at, into);
    }

    /// Copies into the buffer, from byte `at` of it.
    pub fn store(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "store past the end of an I/O buffer");
        self.memory.store(self.at + at, from);
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoBuf").field("at", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

/// The result of a backend command.
pub type IoResult = Result<(), BlockError>;

/// A command's outcome: there already, or to be awaited.
pub enum IoFuture<T> {
    /// Done synchronously. Taken by the first poll.
    Ready(Option<T>),
    /// Still running. Dropping it abandons the result, not the I/O.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> IoFuture<T> {
    /// An outcome known at once.
    pub fn ready(value: T) -> Self {
        Self::Ready(Some(value))
    }

    /// An outcome that `future` will give.
    pub fn pending(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Splits into the value, if it is there, or the future to wait for.
    pub fn into_ready(self) -> Result<T, Self> {
        match self {
            Self::Ready(Some(value)) => Ok(value),
            other => Err(other),
        }
    }
}

impl<T: Unpin> Future for IoFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Self::Ready(value) => {
                Poll::Ready(value.take().expect("an IoFuture was polled after it completed"))
            }
            Self::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

/// A run of blocks that are all in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, a multiple of the block size.
    pub len: u64,
    /// It takes space. What does not reads as zeroes.
    pub mapped: bool,
}

/// An array of logical blocks. Shared by every connection that serves it.
pub trait Backend: Send + Sync {
    /// Size, block size and capabilities; constant for the life of the backend.
    fn geometry(&self) -> Geometry;
    /// Reads `into.len()` bytes from byte `offset`.
    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult>;
    /// Writes `from.len()` bytes at byte `offset`; with `fua`, the data is on the medium when it completes.
    fn write(&self, offset: u64, from: &IoBuf, fua: bool) -> IoFuture<IoResult>;
    /// Makes every write that completed before this call durable.
    fn flush(&self) -> IoFuture<IoResult>;
    /// Makes `len` bytes from `offset` read as zeroes; `may_unmap` allows giving the space back.
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> IoFuture<IoResult>;
    /// Gives `len` bytes from `offset` back to the storage below, which then read as zeroes.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult>;
    /// What is at byte `offset`, a multiple of the block size inside the backend, and how far that goes at least. A backend
    /// that does not know says that everything is mapped.
    fn extent(&self, offset: u64) -> Extent {
        Extent { len: self.geometry().bytes() - offset, mapped: true }
    }
    /// What this is, for logs: kind, path, size.
    fn describe(&self) -> String;
}
