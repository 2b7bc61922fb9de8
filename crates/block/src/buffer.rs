//! Page-aligned memory, and the two ways it is shared.
//!
//! [`AlignedBuf`] is uniquely owned and page aligned, as direct I/O needs. [`SharedBuffer`] is an [`IoMemory`] behind a
//! lock, for users with no registered memory. [`Chunk`] is a piece of a RAM disk: `Arc`-owned, at a fixed address, so that
//! a target may register it and serve from it without a copy.
//! Multiples of 2 MiB, which is what a RAM disk is made of, come in huge pages where the kernel has them.
//! The `unsafe` here is the allocation itself and forming slices over it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::backend::{IoBuf, IoMemory};

/// Alignment of every buffer, in bytes: enough for direct I/O on any device in use.
pub const ALIGNMENT: usize = 4096;

/// A zeroed, page-aligned, heap-allocated byte buffer.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
}

/// A page of the larger kind that x86-64 and most arm64 kernels have.
const HUGE_PAGE: usize = 2 << 20;

// SAFETY: the buffer owns its allocation exclusively; nothing in it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads (through `Deref`); mutation needs `&mut`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates `len` zeroed bytes; `None` when memory is exhausted or `len` is absurd.
    pub fn zeroed(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self { ptr: NonNull::dangling(), len });
        }
        if is_huge(len) {
            return Some(Self { ptr: map_huge(len)?, len });
        }
        let layout = Layout::from_size_align(len, ALIGNMENT).ok()?;
        // SAFETY: the layout has a non-zero size.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, len })
    }

    /// The same of huge pages that are there already, where the system gives them: writing it costs no page fault.
    fn populated(len: usize) -> Option<Self> {
        let buf = Self::zeroed(len)?;
        populate(buf.as_ptr(), len);
        Some(buf)
    }

    /// The same for somebody who has no time: small pages, each of which comes when it is first written. A fault of 2 MiB takes
    /// a twentieth of a second where a virtual machine's host has to find the memory first. The kernel makes a huge page of
    /// them later, on its own.
    fn cold(len: usize) -> Option<Self> {
        use rustix::mm::Advice;
        if !is_huge(len) {
            return Self::zeroed(len);
        }
        let mut buf = Self { ptr: map_aligned(len)?, len };
        advise(buf.as_ptr(), len, Advice::LinuxNoHugepage);
        // A table of small pages is there from now on, so that no fault makes a huge one any more.
        buf.iter_mut().step_by(HUGE_PAGE).for_each(|byte| {
            // SAFETY: an exclusive reference to a byte.
            unsafe { std::ptr::write_volatile(byte, 0) }
        });
        advise(buf.as_ptr(), len, Advice::LinuxHugepage);
        Some(buf)
    }

    /// The fixed address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if is_huge(self.len) {
            // SAFETY: mapped in `zeroed` with exactly this length, and unmapped once.
            let unmapped = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        } else if self.len != 0 {
            let layout =
                Layout::from_size_align(self.len, ALIGNMENT).expect("the layout it was allocated with");
            // SAFETY: allocated in `zeroed` with exactly this layout, and freed once.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

/// Whether a buffer is made of huge pages.
fn is_huge(len: usize) -> bool {
    len != 0 && len.is_multiple_of(HUGE_PAGE)
}

/// Maps zeroed memory and asks for huge pages: random access to a large RAM disk otherwise spends its time on address
/// translation (docs/performance.md). Where the kernel has none, small pages do as well.
fn map_huge(len: usize) -> Option<NonNull<u8>> {
    let at = map_aligned(len)?;
    advise(at.as_ptr(), len, rustix::mm::Advice::LinuxHugepage);
    Some(at)
}

/// Maps zeroed memory on a boundary of huge pages.
fn map_aligned(len: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let mapped_len = len.checked_add(HUGE_PAGE)?;
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_len, prot, flags) }.ok()?;
    let head = base.cast::<u8>().align_offset(HUGE_PAGE);
    let at = base.cast::<u8>().wrapping_add(head);
    for (from, excess) in [(base.cast::<u8>(), head), (at.wrapping_add(len), HUGE_PAGE - head)] {
        if excess != 0 {
            // SAFETY: the piece lies in the mapping made above, and nothing refers to it.
            let unmapped = unsafe { munmap(from.cast(), excess) };
            debug_assert!(unmapped.is_ok());
        }
    }
    NonNull::new(at)
}

/// Tells the kernel what a mapping is for. Refusal does no harm.
fn advise(at: *const u8, len: usize, advice: rustix::mm::Advice) {
    // SAFETY: the callers give a mapping of theirs, and only advice that changes no contents.
    let _ = unsafe { rustix::mm::madvise(at.cast_mut().cast(), len, advice) };
}

/// Gives a mapping its memory now (Linux 5.14; before, the pages come one by one as they are written).
fn populate(at: *const u8, len: usize) {
    advise(at, len, rustix::mm::Advice::LinuxPopulateWrite);
}

/// Ordinary memory as [`IoMemory`].
pub struct SharedBuffer(RwLock<Vec<u8>>);

impl SharedBuffer {
    /// A buffer holding `bytes`.
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(bytes)))
    }

    /// The whole of it as an I/O buffer.
    pub fn io(self: &Arc<Self>) -> IoBuf {
        let len = self.0.read().unwrap_or_else(PoisonError::into_inner).len();
        IoBuf::new(self.clone(), 0, len)
    }

    /// A copy of the contents.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl IoMemory for SharedBuffer {
    fn load(&self, at: usize, into: &mut [u8]) {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        into.copy_from_slice(&bytes[at..at + into.len()]);
    }

    fn store(&self, at: usize, from: &[u8]) {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        bytes[at..at + from.len()].copy_from_slice(from);
    }
}

/// A piece of a RAM disk. Its address never changes while an `Arc` to it lives.
///
/// Whoever registers a chunk with an RDMA device lets peers touch it outside the lock; reads and writes of the same
/// blocks may then mix, as concurrent commands on a disk do.
pub struct Chunk(RwLock<AlignedBuf>);

impl Chunk {
    /// A zeroed chunk of `len` bytes; `None` when memory is exhausted.
    pub fn zeroed(len: usize) -> Option<Arc<Self>> {
        Some(Arc::new(Self(RwLock::new(AlignedBuf::zeroed(len)?))))
    }

    /// The same with its memory there.
    pub(crate) fn populated(len: usize) -> Option<Arc<Self>> {
        Some(Arc::new(Self(RwLock::new(AlignedBuf::populated(len)?))))
    }

    /// The same whose memory comes piece by piece as it is written.
    pub(crate) fn cold(len: usize) -> Option<Arc<Self>> {
        Some(Arc::new(Self(RwLock::new(AlignedBuf::cold(len)?))))
    }

    /// Gives it the memory that is not there yet. Writers go on meanwhile; contents stay.
    pub(crate) fn populate(&self) {
        let (at, len) = self.raw();
        populate(at, len);
    }

    /// The address and length to register.
    pub fn raw(&self) -> (*const u8, usize) {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (bytes.as_ptr(), bytes.len())
    }

    pub(crate) fn read<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        with(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn write<R>(&self, with: impl FnOnce(&mut [u8]) -> R) -> R {
        with(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Free buffers a pool keeps per power-of-two size class.
const KEPT_PER_CLASS: usize = 64;
/// Size classes: 4 KiB to 4 MiB; larger buffers are not kept.
const CLASSES: usize = 11;

/// Recycles [`AlignedBuf`]s, by power-of-two size class.
#[derive(Default)]
pub struct BufferPool {
    free: Mutex<[Vec<AlignedBuf>; CLASSES]>,
}

impl BufferPool {
    fn class(len: usize) -> (usize, usize) {
        let size = len.next_power_of_two().max(ALIGNMENT);
        ((size.trailing_zeros() - ALIGNMENT.trailing_zeros()) as usize, size)
    }

    /// A buffer of at least `len` bytes with arbitrary contents; `None` when memory is exhausted.
    pub fn take(&self, len: usize) -> Option<AlignedBuf> {
        let (class, size) = Self::class(len);
        if class >= CLASSES {
            return AlignedBuf::zeroed(len);
        }
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner)[class].pop();
        kept.or_else(|| AlignedBuf::zeroed(size))
    }

    /// Gives a buffer back.
    pub fn give(&self, buf: AlignedBuf) {
        let (class, size) = Self::class(buf.len());
        if class < CLASSES && buf.len() == size {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free[class].len() < KEPT_PER_CLASS {
                free[class].push(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_writable() {
        let mut buf = AlignedBuf::zeroed(8192).expect("memory");
        assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
        assert!(buf.iter().all(|&b| b == 0));
        buf[8191] = 7;
        assert_eq!(buf[8191], 7);
        assert!(AlignedBuf::zeroed(usize::MAX).is_none());
        assert_eq!(AlignedBuf::zeroed(0).expect("empty").len(), 0);
    }

    #[test]
    fn memory_that_is_there_and_memory_that_comes_are_both_zeroes() {
        for buf in [AlignedBuf::populated(HUGE_PAGE), AlignedBuf::cold(HUGE_PAGE), AlignedBuf::cold(8192)] {
            let mut buf = buf.expect("memory");
            assert!(buf.iter().all(|&b| b == 0));
            let last = buf.len() - 1;
            buf[last] = 7;
            assert_eq!(buf[last], 7);
        }
    }

    #[test]
    fn pool_hands_the_same_memory_out_again() {
        let pool = BufferPool::default();
        let buf = pool.take(5000).expect("memory");
        assert_eq!(buf.len(), 8192);
        let at = buf.as_ptr();
        pool.give(buf);
        assert_eq!(pool.take(8192).expect("memory").as_ptr(), at);
    }

    #[test]
    fn chunk_address_is_stable() {
        let chunk = Chunk::zeroed(4096).expect("memory");
        let before = chunk.raw();
        chunk.write(|bytes| bytes[0] = 1);
        assert_eq!(chunk.raw(), before);
    }
}
