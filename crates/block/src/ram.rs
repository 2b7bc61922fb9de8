//! The RAM backend: sparse, in chunks of 2 MiB that exist only while something non-zero may be in them.
//!
//! A chunk keeps one bit for each 4 KiB page that may hold data; write-zeroes and discard clear bits, and a chunk with
//! none left is freed. Every command completes at once. Memory is the only store: flush does nothing, and there is no
//! volatile cache to advertise because nothing here survives a power failure anyway.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::backend::{Backend, Extent, Geometry, IoBuf, IoFuture, IoResult};
use crate::buffer::Chunk;
use crate::error::{BlockError, BlockOp};
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
    slots: Box<[RwLock<Slot>]>,
}

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
                let chunk = Chunk::zeroed(CHUNK as usize);
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
mod tests {
    use super::*;
    use crate::buffer::SharedBuffer;

    fn done(future: IoFuture<IoResult>) -> IoResult {
        future.into_ready().unwrap_or_else(|_| panic!("RAM completes at once"))
    }

    fn read(ram: &RamBackend, offset: u64, len: usize) -> Vec<u8> {
        let buf = SharedBuffer::new(vec![0xee; len]);
        done(ram.read(offset, &buf.io())).expect("in range");
        buf.to_vec()
    }

    fn write(ram: &RamBackend, offset: u64, bytes: &[u8]) {
        done(ram.write(offset, &SharedBuffer::new(bytes.to_vec()).io(), false)).expect("in range");
    }

    #[test]
    fn fresh_reads_zero_and_takes_no_memory() {
        let ram = RamBackend::new(512, (8 << 20) / 512).expect("fits");
        assert_eq!(read(&ram, 4096, 8192), vec![0; 8192]);
        assert_eq!(ram.allocated_chunks(), 0);
    }

    #[test]
    fn bytes_come_back_across_a_chunk_border() {
        let ram = RamBackend::new(512, (8 << 20) / 512).expect("fits");
        let bytes: Vec<u8> = (0..65536u32).map(|i| (i * 7 + i / 256) as u8).collect();
        write(&ram, CHUNK - 1024, &bytes);
        assert_eq!(read(&ram, CHUNK - 1024, 65536), bytes);
        assert_eq!(read(&ram, CHUNK - 1536, 512), vec![0; 512]);
        assert_eq!(ram.allocated_chunks(), 2);
    }

    #[test]
    fn piecewise_zeroing_frees_the_chunk() {
        let ram = RamBackend::new(512, (4 << 20) / 512).expect("fits");
        write(&ram, 0, &[1; 8192]);
        done(ram.write_zeroes(0, 4096, true)).expect("in range");
        assert_eq!(ram.allocated_chunks(), 1);
        assert_eq!(read(&ram, 4096, 4096), vec![1; 4096]);
        done(ram.discard(4096, 4096)).expect("in range");
        assert_eq!(ram.allocated_chunks(), 0);
        // Half a page zeroed leaves the page's other half alone.
        write(&ram, 0, &[2; 4096]);
        done(ram.write_zeroes(512, 1024, true)).expect("in range");
        let page = read(&ram, 0, 4096);
        assert!(page[..512].iter().all(|&b| b == 2) && page[1536..].iter().all(|&b| b == 2));
        assert!(page[512..1536].iter().all(|&b| b == 0));
    }

    #[test]
    fn out_of_range_and_wrap_are_refused() {
        let ram = RamBackend::new(4096, 16).expect("fits");
        let buf = SharedBuffer::new(vec![0; 8192]);
        assert!(matches!(done(ram.read(65536 - 4096, &buf.io())), Err(BlockError::OutOfRange { .. })));
        assert!(matches!(
            done(ram.write(u64::MAX - 4095, &buf.io(), false)),
            Err(BlockError::OutOfRange { .. })
        ));
        assert!(matches!(done(ram.write_zeroes(4096, u64::MAX, true)), Err(BlockError::OutOfRange { .. })));
        assert!(matches!(done(ram.read(512, &buf.io())), Err(BlockError::Misaligned { .. })));
        assert!(done(ram.read(65536 - 8192, &buf.io())).is_ok());
        assert!(RamBackend::new(512, u64::MAX).is_err());
    }

    #[test]
    fn two_writers_on_one_chunk_both_land() {
        let ram = Arc::new(RamBackend::new(512, (2 << 20) / 512).expect("fits"));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let ram = ram.clone();
                scope.spawn(move || {
                    for i in 0..64u64 {
                        write(&ram, (i * 4 + thread) * 512, &[thread as u8 + 1; 512]);
                    }
                });
            }
        });
        for i in 0..256u64 {
            assert_eq!(read(&ram, i * 512, 512), vec![(i % 4) as u8 + 1; 512]);
        }
    }
}
