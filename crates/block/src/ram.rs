//! The RAM backend: sparse, in chunks of 2 MiB that exist only while something non-zero may be in them.
//!
//! A chunk keeps one bit for each 4 KiB page that may hold data; write-zeroes and discard clear bits, and a chunk with
//! none left is freed. [`RamBackend::warm`] gives it memory beforehand, off the serving thread: a page fault of 2 MiB may take
//! a twentieth of a second on a virtual machine. Every command completes at once. Memory is the only store: flush does nothing, and there is no
//! volatile cache to advertise because nothing here survives a power failure anyway.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use crate::backend::{Backend, Extent, Geometry, IoBuf, IoFuture, IoResult};
use crate::buffer::Chunk;
use crate::error::{BlockError, BlockOp};
use crate::memory;
use crate::null::store_zeroes;
use crate::size::format_size;

/// Bytes in a chunk.
pub const CHUNK: u64 = 2 << 20;
/// Largest RAM backend: bounds the chunk table (32 bytes a chunk).
pub const MAX_RAM_BYTES: u64 = 1 << 40;
const PAGE: usize = 4096;
const WORDS: usize = CHUNK as usize / PAGE / 64;

/// One chunk slot. `pages` has a bit for each page that may be non-zero.
#[derive(Default)]
struct Slot {
    chunk: Option<Arc<Chunk>>,
    pages: Option<Box<PageMap>>,
}

#[derive(Default)]
struct PageMap([std::sync::atomic::AtomicU64; WORDS]);

impl PageMap {
    fn set(&self, at: usize, len: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        for page in at / PAGE..=(at + len - 1) / PAGE {
            let (word, bit) = (&self.0[page / 64], 1 << (page % 64));
            // Most writes land on pages already marked: a load is cheaper than a locked or.
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    fn holds(&self, at: usize) -> bool {
        let page = at / PAGE;
        self.0[page / 64].load(std::sync::atomic::Ordering::Relaxed) & 1 << (page % 64) != 0
    }

    /// Clears the pages wholly inside the range; true when no page is left.
    fn clear(&mut self, at: usize, len: usize) -> bool {
        for page in at.div_ceil(PAGE)..(at + len) / PAGE {
            *self.0[page / 64].get_mut() &= !(1 << (page % 64));
        }
        self.0.iter_mut().all(|word| *word.get_mut() == 0)
    }
}

/// Sparse memory as a disk.
pub struct RamBackend {
    geometry: Geometry,
    slots: Arc<[RwLock<Slot>]>,
}

/// Of the memory that can be had, the part that RAM disks take before anybody writes.
const WARM_PART: u64 = 4;
/// Chunks between two looks at how much memory is left.
const LOOK_EVERY: usize = 16;

impl RamBackend {
    /// A RAM disk of `blocks` blocks of `block_size` bytes, all zeroes, taking no memory yet.
    ///
    /// Fails when the size is over [`MAX_RAM_BYTES`].
    pub fn new(block_size: u32, blocks: u64) -> Result<Self, BlockError> {
        let bytes = blocks.checked_mul(u64::from(block_size)).filter(|&bytes| bytes <= MAX_RAM_BYTES);
        let Some(bytes) = bytes else {
            return Err(BlockError::OutOfRange {
                op: BlockOp::Write,
                offset: 0,
                len: blocks.saturating_mul(u64::from(block_size)),
                size: MAX_RAM_BYTES,
            });
        };
        let slots = (0..bytes.div_ceil(CHUNK)).map(|_| RwLock::default()).collect();
        let geometry = Geometry {
            block_size,
            blocks,
            optimal_io: PAGE as u32,
            read_only: false,
            volatile_cache: false,
            discard: true,
        };
        Ok(Self { geometry, slots })
    }

    /// Gives it its memory from the first byte on, on a thread of its own, as long as that leaves three quarters of the memory
    /// that can be had now: a large sparse disk stays sparse. It is heard of no more if there is no thread to be had.
    pub fn warm(&self) {
        let Some(available) = memory::available() else { return };
        let bytes = self.geometry.bytes().min(available / WARM_PART);
        let floor = available - available / WARM_PART;
        let slots = Arc::downgrade(&self.slots);
        let work = move || warm_slots(&slots, (bytes / CHUNK) as usize, || memory::available() > Some(floor));
        // Writers are served without it, if slower at first.
        let _ = std::thread::Builder::new().name("ram-warm".to_owned()).spawn(work);
    }

    /// The chunk that holds byte `offset`, if it exists: its address is stable while the `Arc` lives.
    pub fn chunk_at(&self, offset: u64) -> Option<Arc<Chunk>> {
        self.slots.get((offset / CHUNK) as usize).and_then(|slot| lock_read(slot).chunk.clone())
    }

    /// Chunks that take memory now.
    pub fn allocated_chunks(&self) -> usize {
        self.slots.iter().filter(|slot| lock_read(slot).chunk.is_some()).count()
    }

    fn write_piece(&self, index: usize, at: usize, from: &IoBuf, skip: usize, len: usize) -> IoResult {
        loop {
            let slot = lock_read(&self.slots[index]);
            if let (Some(chunk), Some(pages)) = (&slot.chunk, &slot.pages) {
                pages.set(at, len);
                chunk.write(|bytes| from.load(skip, &mut bytes[at..at + len]));
                return Ok(());
            }
            drop(slot);
            let mut slot = lock_write(&self.slots[index]);
            if slot.chunk.is_none() {
                let offset = index as u64 * CHUNK + at as u64;
                let chunk = Chunk::cold(CHUNK as usize);
                slot.chunk = Some(chunk.ok_or(BlockError::NoSpace { op: BlockOp::Write, offset })?);
                slot.pages = Some(Box::default());
            }
        }
    }

    fn zero_piece(&self, index: usize, at: usize, len: usize) {
        let mut slot = lock_write(&self.slots[index]);
        let Slot { chunk, pages } = &mut *slot;
        if let (Some(memory), Some(map)) = (chunk.as_ref(), pages.as_mut()) {
            memory.write(|bytes| bytes[at..at + len].fill(0));
            if map.clear(at, len) {
                *chunk = None;
                *pages = None;
            }
        }
    }

    fn zero(&self, op: BlockOp, offset: u64, len: u64) -> IoResult {
        self.geometry.check(op, offset, len)?;
        let mut at = offset;
        while at < offset + len {
            let within = at % CHUNK;
            let n = (CHUNK - within).min(offset + len - at);
            self.zero_piece((at / CHUNK) as usize, within as usize, n as usize);
            at += n;
        }
        Ok(())
    }
}

/// Gives the first `count` slots their memory, until the disk is gone or there is no more memory to be taken.
fn warm_slots(slots: &Weak<[RwLock<Slot>]>, count: usize, more: impl Fn() -> bool) {
    for index in 0..count {
        if index % LOOK_EVERY == 0 && !more() {
            return;
        }
        let Some(disk) = slots.upgrade() else { return };
        let Some(slot) = disk.get(index) else { return };
        let there = lock_read(slot).chunk.clone();
        match there {
            // Somebody has written to it, and goes on writing meanwhile.
            Some(chunk) => chunk.populate(),
            None => {
                let Some(chunk) = Chunk::populated(CHUNK as usize) else { return };
                let mut slot = lock_write(slot);
                if slot.chunk.is_none() {
                    *slot = Slot { chunk: Some(chunk), pages: Some(Box::default()) };
                }
            }
        }
    }
}

/// Calls `piece(chunk index, offset in chunk, offset in buffer, length)` for each chunk a range touches.
fn pieces(
    offset: u64,
    len: usize,
    mut piece: impl FnMut(usize, usize, usize, usize) -> IoResult,
) -> IoResult {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % CHUNK) as usize;
        let n = (CHUNK as usize - within).min(len - done);
        piece((at / CHUNK) as usize, within, done, n)?;
        done += n;
    }
    Ok(())
}

fn lock_read(slot: &RwLock<Slot>) -> RwLockReadGuard<'_, Slot> {
    slot.read().unwrap_or_else(PoisonError::into_inner)
}

fn lock_write(slot: &RwLock<Slot>) -> RwLockWriteGuard<'_, Slot> {
    slot.write().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for RamBackend {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        let checked = self.geometry.check(BlockOp::Read, offset, into.len() as u64);
        let done = checked.and_then(|()| {
            pieces(offset, into.len(), |index, at, skip, len| {
                match &lock_read(&self.slots[index]).chunk {
                    Some(chunk) => chunk.read(|bytes| into.store(skip, &bytes[at..at + len])),
                    None => store_zeroes(into, skip, len),
                }
                Ok(())
            })
        });
        IoFuture::ready(done)
    }

    fn write(&self, offset: u64, from: &IoBuf, _fua: bool) -> IoFuture<IoResult> {
        let checked = self.geometry.check(BlockOp::Write, offset, from.len() as u64);
        IoFuture::ready(checked.and_then(|()| {
            pieces(offset, from.len(), |index, at, skip, len| self.write_piece(index, at, from, skip, len))
        }))
    }

    fn flush(&self) -> IoFuture<IoResult> {
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _may_unmap: bool) -> IoFuture<IoResult> {
        IoFuture::ready(self.zero(BlockOp::WriteZeroes, offset, len))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        IoFuture::ready(self.zero(BlockOp::Discard, offset, len))
    }

    fn extent(&self, offset: u64) -> Extent {
        let end = self.geometry.bytes();
        // One chunk at a time: its page map is looked at under one lock.
        let within = (offset % CHUNK) as usize;
        let limit = (CHUNK - offset % CHUNK).min(end.saturating_sub(offset));
        let slot = lock_read(&self.slots[(offset / CHUNK) as usize]);
        let Some(pages) = &slot.pages else { return Extent { len: limit, mapped: false } };
        let mapped = pages.holds(within);
        let mut len = (PAGE - within % PAGE) as u64;
        while len < limit && pages.holds(within + len as usize) == mapped {
            len += PAGE as u64;
        }
        Extent { len: len.min(limit), mapped }
    }

    fn describe(&self) -> String {
        format!("ram, {}", format_size(self.geometry.bytes()))
    }
}

#[cfg(test)]
mod tests;
