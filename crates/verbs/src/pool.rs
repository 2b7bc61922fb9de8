//! Data buffers for commands: one registered region, handed out by a buddy allocator, so that every buffer is contiguous
//! and no command registers memory.
//!
//! For programs of one thread, as targets and initiators of storage are. Whoever finds the pool empty is told when a buffer
//! comes back. What a buffer is for, and how long a peer may reach it, is its owner's to know.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use everywire_transport::ib::Remote;
use everywire_transport::memory::{Access, Sge};

use crate::error::VerbsError;
use crate::mr::MemoryRegion;
use crate::pd::Pd;
use crate::rt::Notify;

/// Smallest buffer, in bytes.
const BLOCK: usize = 4096;

/// A pool on one protection domain.
pub struct BufferPool {
    region: MemoryRegion,
    blocks: RefCell<Buddy>,
    starving: RefCell<Vec<Notify>>,
    in_use: Cell<usize>,
}

/// Free blocks by order. A list may hold entries that were merged away since; `free_order` tells.
struct Buddy {
    /// For each block: order + 1 if a free run starts here, else 0.
    free_order: Vec<u8>,
    lists: Vec<Vec<u32>>,
}

impl Buddy {
    fn new(count: usize, max_order: usize) -> Self {
        let mut buddy = Self { free_order: vec![0; count], lists: vec![Vec::new(); max_order + 1] };
        for start in (0..count).step_by(1 << max_order).rev() {
            buddy.put(start as u32, max_order);
        }
        buddy
    }

    fn put(&mut self, start: u32, order: usize) {
        self.free_order[start as usize] = order as u8 + 1;
        self.lists[order].push(start);
    }

    fn pop(&mut self, order: usize) -> Option<u32> {
        while let Some(start) = self.lists[order].pop() {
            if usize::from(self.free_order[start as usize]) == order + 1 {
                self.free_order[start as usize] = 0;
                return Some(start);
            }
        }
        None
    }

    fn take(&mut self, order: usize) -> Option<u32> {
        for from in order..self.lists.len() {
            if let Some(start) = self.pop(from) {
                for split in (order..from).rev() {
                    self.put(start + (1 << split), split);
                }
                return Some(start);
            }
        }
        None
    }

    fn give(&mut self, mut start: u32, mut order: usize) {
        while order + 1 < self.lists.len() {
            let buddy = start ^ (1 << order);
            if usize::from(self.free_order[buddy as usize]) != order + 1 {
                break;
            }
            self.free_order[buddy as usize] = 0;
            start = start.min(buddy);
            order += 1;
        }
        self.put(start, order);
    }
}

impl BufferPool {
    /// A pool of at least `bytes`, in buffers of up to `max` bytes; both are rounded up to powers of two of at least 4 KiB.
    ///
    /// # Errors
    /// The device has no room for the region, or refuses `access`.
    pub fn new(pd: &Pd, bytes: usize, max: usize, access: Access) -> Result<Rc<Self>, VerbsError> {
        let max = max.next_power_of_two().max(BLOCK);
        let len = bytes.max(max).next_multiple_of(max);
        let region = pd.register(len, access)?;
        let max_order = (max / BLOCK).trailing_zeros() as usize;
        let blocks = RefCell::new(Buddy::new(len / BLOCK, max_order));
        Ok(Rc::new(Self { region, blocks, starving: RefCell::default(), in_use: Cell::new(0) }))
    }

    /// A buffer of at least `len` bytes; `None` when there is none now.
    pub fn take(self: &Rc<Self>, len: usize) -> Option<PoolBuf> {
        let order = len.div_ceil(BLOCK).next_power_of_two().trailing_zeros() as usize;
        let start = self.blocks.borrow_mut().take(order)?;
        self.in_use.set(self.in_use.get() + (BLOCK << order));
        Some(PoolBuf { pool: self.clone(), start, order })
    }

    /// Bytes that are handed out.
    pub fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// The region that all buffers are of.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Asks to be notified when a buffer comes back. One call is one notification.
    pub fn wait(&self, notify: &Notify) {
        self.starving.borrow_mut().push(notify.clone());
    }
}

/// A buffer of the pool; it goes back when dropped.
pub struct PoolBuf {
    pool: Rc<BufferPool>,
    start: u32,
    order: usize,
}

impl PoolBuf {
    /// Where it starts in the pool's region.
    pub fn at(&self) -> usize {
        self.start as usize * BLOCK
    }

    /// A segment of `len` bytes from byte `offset` of the buffer.
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        let at = self.at() + offset;
        self.pool.region.sge(at..at + len as usize)
    }

    /// Its byte `offset` as a peer addresses it.
    pub fn remote(&self, offset: usize) -> Remote {
        self.pool.region.remote(self.at() + offset)
    }

    /// Its pool.
    pub fn pool(&self) -> &Rc<BufferPool> {
        &self.pool
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        self.pool.blocks.borrow_mut().give(self.start, self.order);
        self.pool.in_use.set(self.pool.in_use.get() - (BLOCK << self.order));
        // All of them: one that has gone meanwhile must not swallow the notification.
        self.pool.starving.borrow_mut().drain(..).for_each(|waiting| waiting.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_split_and_merge() {
        let mut buddy = Buddy::new(16, 3);
        let a = buddy.take(0).expect("free");
        let b = buddy.take(2).expect("free");
        let c = buddy.take(3).expect("free");
        assert!(buddy.take(3).is_none());
        assert!(b.is_multiple_of(4) && c.is_multiple_of(8));
        buddy.give(a, 0);
        buddy.give(b, 2);
        buddy.give(c, 3);
        assert!(buddy.take(3).is_some() && buddy.take(3).is_some() && buddy.take(0).is_none());
    }

    #[test]
    fn no_two_buffers_overlap_and_lists_stay_bounded() {
        let mut buddy = Buddy::new(64, 4);
        let mut held: Vec<(u32, usize)> = Vec::new();
        let mut seed = 12345u32;
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let order = (seed >> 16) as usize % 5;
            if seed >> 31 == 0 {
                if let Some(start) = buddy.take(order) {
                    let overlaps = |&(s, o): &(u32, usize)| s < start + (1 << order) && start < s + (1 << o);
                    assert!(!held.iter().any(overlaps));
                    held.push((start, order));
                }
            } else if !held.is_empty() {
                let (start, order) = held.swap_remove((seed >> 8) as usize % held.len());
                buddy.give(start, order);
            }
        }
        held.drain(..).for_each(|(start, order)| buddy.give(start, order));
        assert_eq!((0..4).filter(|_| buddy.take(4).is_some()).count(), 4);
        // Stale entries are dropped as allocations pass them.
        assert!(buddy.lists.iter().map(Vec::len).sum::<usize>() < 100_000);
    }
}
