//! The bytes behind a registration: raw memory that peers write while the program holds it.
//!
//! Read DESIGN §5. Such memory is never a `&[u8]` or `&mut [u8]`: every access copies, through raw pointers, with bounds
//! checked here once more. Naturally aligned accesses of up to 8 bytes are single volatile accesses, so a flag written by
//! a peer can be polled without tearing; atomics are CPU atomics. Whether an access is *allowed* is the key table's
//! business (`keys`), not this module's. It is the only module of this crate with `unsafe` in it.

#[cfg(test)]
mod tests;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Alignment of memory that a registration owns.
pub const PAGE_SIZE: usize = 4096;

/// From this size on a region has a mapping of its own.
const MAPPED_FROM: usize = 64 << 10;

/// What the C library's `calloc` aligns to by itself: asking for no more than this keeps the zeroing lazy.
const CALLOC_ALIGN: usize = 16;

/// Memory of the caller's that stays where it is and can be registered in place.
///
/// # Safety
/// For as long as the value lives, the `len()` bytes at `as_ptr()` must stay mapped, readable and, if it is registered
/// with any write access, writable; both functions must always return the same answer. Whoever else touches those bytes
/// must do so by raw, volatile or atomic copying: peers change them at any time.
pub unsafe trait StableBuffer: Send + Sync + 'static {
    /// Where the memory begins. Alignment is free; remote atomics need 8 bytes.
    fn as_ptr(&self) -> *mut u8;
    /// Its length in bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory that is reached by copying only, such as a sparse RAM disk: registered without `unsafe`.
///
/// Calls come from whichever thread drives the device, with the device locked: they must not block, nor call verbs.
/// The range is always within `len()`.
pub trait CopyMemory: Send + Sync + 'static {
    /// Length in bytes; never changes.
    fn len(&self) -> u64;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes from `offset` out.
    fn read_at(&self, offset: u64, into: &mut [u8]);
    /// Copies bytes in at `offset`.
    fn write_at(&self, offset: u64, from: &[u8]);
    /// Replaces the 64-bit word (native byte order) at the 8-aligned `offset` by `update` of it, atomically with respect
    /// to every other access, and returns the old one. `update` may be called more than once.
    fn update_u64(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> u64;
}

/// A range outside the memory it was meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("range of {length} bytes at offset {offset} is outside the region of {region} bytes")]
pub struct RangeError {
    /// Where the range began.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The length of the region in bytes.
    pub region: u64,
}

/// Why memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no {0} bytes of memory to give")]
pub struct NoMemory(pub usize);

/// Zeroed, page-aligned memory of our own; pages are touched when used first.
enum Pages {
    /// A part of the heap, with room for the alignment.
    Heap { base: NonNull<u8>, layout: Layout, start: NonNull<u8> },
    /// Mapped for this region alone. The heap zeroes a large block by hand when it gives it out again, and keeps it when it
    /// comes back; this is untouched at first and gone in the end, however many regions come and go.
    Mapped { start: NonNull<u8>, _map: memmap2::MmapMut },
}

impl Pages {
    fn new(len: usize) -> Result<Pages, NoMemory> {
        // Without room in the process's table of mappings the heap may still have some.
        if len >= MAPPED_FROM
            && let Some(mut map) = map(len)
            && let Some(start) = NonNull::new(map.as_mut_ptr())
        {
            return Ok(Pages::Mapped { start, _map: map });
        }
        // Over-allocation instead of an aligned layout: `alloc_zeroed` is `calloc` only for small alignments, and only
        // `calloc` leaves fresh pages of the system untouched.
        let size = len.max(1).checked_add(PAGE_SIZE).ok_or(NoMemory(len))?;
        let layout = Layout::from_size_align(size, CALLOC_ALIGN).map_err(|_| NoMemory(len))?;
        // SAFETY: the layout has a size of at least PAGE_SIZE + 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(NoMemory(len))?;
        let skip = base.as_ptr().align_offset(PAGE_SIZE);
        // SAFETY: `skip` is below PAGE_SIZE, which was added to the size.
        let start = unsafe { base.add(skip) };
        Ok(Pages::Heap { base, layout, start })
    }

    fn start(&self) -> NonNull<u8> {
        match *self {
            Pages::Heap { start, .. } | Pages::Mapped { start, .. } => start,
        }
    }
}

/// A fresh mapping of zeroes.
fn map(len: usize) -> Option<memmap2::MmapMut> {
    if cfg!(miri) { None } else { memmap2::MmapMut::map_anon(len).ok() }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Pages::Heap { base, layout, .. } = *self {
            // SAFETY: allocated in `new` with this very layout, and freed nowhere else.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }
}

/// A vector, held by its parts so that no Rust reference to its bytes exists while peers write them.
struct RawVec {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

impl RawVec {
    fn new(bytes: Vec<u8>) -> RawVec {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let (len, capacity) = (bytes.len(), bytes.capacity());
        // A vector's pointer is never null; the fallback is what an empty vector has.
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        RawVec { start, len, capacity }
    }
}

impl Drop for RawVec {
    fn drop(&mut self) {
        // SAFETY: the parts of a vector that was given up to `new`, put together once.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

enum Backing {
    Raw { start: NonNull<u8>, _owner: Owner },
    Copied(Arc<dyn CopyMemory>),
}

/// Keeps the raw memory alive; never read.
enum Owner {
    Pages { _pages: Pages },
    Vec { _vec: RawVec },
    Stable { _stable: Arc<dyn StableBuffer> },
}

/// The bytes of one registration. Shared by `Arc`: whoever holds one can copy, whatever happens to the registration.
pub(crate) struct Region {
    backing: Backing,
    len: u64,
}

// SAFETY: the memory is only reached through raw copies, volatile accesses and atomics, which the contract of the owner
// (ours, or `StableBuffer`'s) allows from any thread; the owners themselves are Send + Sync or plain heap memory.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Memory of our own: page aligned and zeroed.
    pub(crate) fn owned(len: usize) -> Result<Region, NoMemory> {
        let pages = Pages::new(len)?;
        let start = pages.start();
        Ok(Region {
            backing: Backing::Raw { start, _owner: Owner::Pages { _pages: pages } },
            len: len as u64,
        })
    }

    /// The bytes of a vector.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Region {
        let vec = RawVec::new(bytes);
        let (start, len) = (vec.start, vec.len as u64);
        Region { backing: Backing::Raw { start, _owner: Owner::Vec { _vec: vec } }, len }
    }

    /// Memory of the caller's.
    pub(crate) fn stable(buffer: Arc<dyn StableBuffer>) -> Region {
        let len = buffer.len() as u64;
        // A null pointer is only legal with no bytes at all; then nothing is ever accessed.
        let start = NonNull::new(buffer.as_ptr());
        let (start, len) = start.map_or((NonNull::dangling(), 0), |start| (start, len));
        Region { backing: Backing::Raw { start, _owner: Owner::Stable { _stable: buffer } }, len }
    }

    /// Memory behind copying calls.
    pub(crate) fn copied(memory: Arc<dyn CopyMemory>) -> Region {
        let len = memory.len();
        Region { backing: Backing::Copied(memory), len }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Where the bytes are, unless they are reached by copying calls only.
    pub(crate) fn as_ptr(&self) -> Option<*mut u8> {
        match &self.backing {
            Backing::Raw { start, .. } => Some(start.as_ptr()),
            Backing::Copied(_) => None,
        }
    }

    fn check(&self, offset: u64, length: usize) -> Result<(), RangeError> {
        let length = length as u64;
        match offset.checked_add(length) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(RangeError { offset, length, region: self.len }),
        }
    }

    /// Copies bytes from `offset` out. What was written before the flag just read is seen after it.
    #[inline]
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RangeError> {
        self.check(offset, into.len())?;
        match &self.backing {
            Backing::Raw { start, .. } => {
                // SAFETY: `check` keeps the range inside the memory the owner keeps mapped; `into` is ours alone, and no
                // Rust reference to registered memory exists that it could overlap.
                unsafe { copy(start.as_ptr().add(offset as usize), into.as_mut_ptr(), into.len()) }
                fence(Ordering::Acquire);
            }
            Backing::Copied(memory) => memory.read_at(offset, into),
        }
        Ok(())
    }

    /// Copies bytes in at `offset`, after everything that was written before, and the end of them last: a program may poll
    /// the last byte or word of a message and then read the rest, as it does on hardware.
    #[inline]
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> Result<(), RangeError> {
        self.check(offset, from.len())?;
        match &self.backing {
            Backing::Raw { start, .. } => {
                // SAFETY: as in `read`, the other way round.
                unsafe { copy_in_order(from.as_ptr(), start.as_ptr().add(offset as usize), from.len()) }
            }
            Backing::Copied(memory) => memory.write_at(offset, from),
        }
        Ok(())
    }

    /// Whether a remote atomic can be executed at `offset`: 8 bytes inside, naturally aligned in this host's memory.
    pub(crate) fn atomic_possible(&self, offset: u64) -> bool {
        if self.check(offset, 8).is_err() {
            return false;
        }
        match &self.backing {
            Backing::Raw { start, .. } => {
                (start.as_ptr() as usize as u64).wrapping_add(offset).is_multiple_of(8)
            }
            Backing::Copied(_) => offset.is_multiple_of(8),
        }
    }

    /// Replaces the word at `offset` atomically, also with respect to this host's CPUs (IBV_ATOMIC_GLOB); returns the old
    /// one. `None` if [`atomic_possible`](Region::atomic_possible) says no.
    pub(crate) fn update_u64(&self, offset: u64, mut update: impl FnMut(u64) -> u64) -> Option<u64> {
        if !self.atomic_possible(offset) {
            return None;
        }
        match &self.backing {
            Backing::Raw { start, .. } => {
                // SAFETY: in bounds and 8-aligned as just checked; all other accesses to the word are raw copies, which
                // the contract of registered memory allows to race.
                let word = unsafe { AtomicU64::from_ptr(start.as_ptr().add(offset as usize).cast::<u64>()) };
                let mut old = word.load(Ordering::Acquire);
                loop {
                    let swapped =
                        word.compare_exchange_weak(old, update(old), Ordering::AcqRel, Ordering::Acquire);
                    match swapped {
                        Ok(old) => return Some(old),
                        Err(now) => old = now,
                    }
                }
            }
            Backing::Copied(memory) => Some(memory.update_u64(offset, &mut update)),
        }
    }
}

impl everywire_transport::memory::PinOwner for Region {
    fn start(&self) -> *const u8 {
        self.as_ptr().map_or(std::ptr::null(), <*mut u8>::cast_const)
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        // A pin is made of a range that was checked, and a region never shrinks.
        let read = Region::read(self, offset, into);
        debug_assert!(read.is_ok(), "a pin outside its region");
    }
}

/// Copies `len` bytes between memory that others may change meanwhile and memory that is ours.
///
/// # Safety
/// Both ranges are mapped (`from` readable, `to` writable) and do not overlap.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // A small, naturally aligned access is one machine access: a peer's flag or doorbell is never seen half written.
    // SAFETY: in bounds by the contract above, aligned as tested before each access.
    unsafe {
        match len {
            0 => {}
            1 => to.write_volatile(from.read_volatile()),
            2 => copy_word::<u16>(from, to),
            4 => copy_word::<u32>(from, to),
            8 => copy_word::<u64>(from, to),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Copies like [`copy`], and the last word, as large as its place is aligned for, after all else.
///
/// # Safety
/// As [`copy`].
#[inline]
unsafe fn copy_in_order(from: *const u8, to: *mut u8, len: usize) {
    fence(Ordering::Release);
    let end = to as usize + len;
    let tail = match len {
        0 | 1 => len,
        _ if len >= 8 && end.is_multiple_of(8) => 8,
        _ if len >= 4 && end.is_multiple_of(4) => 4,
        _ if end.is_multiple_of(2) => 2,
        _ => 1,
    };
    let head = len - tail;
    // SAFETY: two parts of the range that the caller vouches for.
    unsafe {
        if head > 0 {
            std::ptr::copy_nonoverlapping(from, to, head);
            fence(Ordering::Release);
        }
        copy(from.add(head), to.add(head), tail);
    }
}

/// Copies one machine word, whole on each side that is aligned for it.
///
/// # Safety
/// As [`copy`], with `size_of::<T>()` bytes; `T` is an integer type.
#[inline]
unsafe fn copy_word<T: Copy>(from: *const u8, to: *mut u8) {
    let (from, to) = (from.cast::<T>(), to.cast::<T>());
    // SAFETY: in bounds by the contract; the volatile accesses only where aligned.
    unsafe {
        let word = if from.is_aligned() { from.read_volatile() } else { from.read_unaligned() };
        if to.is_aligned() { to.write_volatile(word) } else { to.write_unaligned(word) }
    }
}
