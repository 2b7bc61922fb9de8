//! Data buffers for commands: one registered region, handed out by a buddy allocator, so that every buffer is contiguous
//! and no command registers memory. Whoever finds it empty is told when a buffer comes back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use everywire_block::{IoBuf, IoMemory};
use everywire_verbs::rt::Notify;
use everywire_verbs::{MemoryRegion, Pd, Sge, VerbsError};

use super::region::io_memory;

/// Smallest buffer, in bytes.
const BLOCK: usize = 4096;

/// A pool on one protection domain.
pub(super) struct DataPool {
    region: MemoryRegion,
    memory: Arc<dyn IoMemory>,
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

impl DataPool {
    /// A pool of at least `bytes`, in buffers of up to `max` bytes (a power of two of at least 4 KiB).
    pub(super) fn new(pd: &Pd, bytes: usize, max: usize) -> Result<Rc<Self>, VerbsError> {
        let max = max.next_power_of_two().max(BLOCK);
        let len = bytes.max(max).next_multiple_of(max);
        let region = pd.register(len, pd.device().read_sink_access())?;
        let max_order = (max / BLOCK).trailing_zeros() as usize;
        let blocks = RefCell::new(Buddy::new(len / BLOCK, max_order));
        Ok(Rc::new(Self {
            memory: io_memory(&region),
            region,
            blocks,
            starving: RefCell::default(),
            in_use: Cell::new(0),
        }))
    }

    /// A buffer of at least `len` bytes; `None` when there is none now.
    pub(super) fn take(self: &Rc<Self>, len: usize) -> Option<DataBuf> {
        let order = len.div_ceil(BLOCK).next_power_of_two().trailing_zeros() as usize;
        let start = self.blocks.borrow_mut().take(order)?;
        self.in_use.set(self.in_use.get() + (BLOCK << order));
        Some(DataBuf { pool: self.clone(), start, order })
    }

    /// Bytes that are handed out.
    pub(super) fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// Asks to be notified when a buffer comes back. One call is one notification.
    pub(super) fn wait(&self, notify: &Notify) {
        self.starving.borrow_mut().push(notify.clone());
    }
}

/// A buffer of the pool; it goes back when dropped.
pub(super) struct DataBuf {
    pool: Rc<DataPool>,
    start: u32,
    order: usize,
}

impl DataBuf {
    fn at(&self) -> usize {
        self.start as usize * BLOCK
    }

    /// A segment of `len` bytes from byte `offset` of the buffer.
    pub(super) fn sge(&self, offset: usize, len: u32) -> Sge {
        let at = self.at() + offset;
        self.pool.region.sge(at..at + len as usize)
    }

    /// Its first `len` bytes for a backend.
    pub(super) fn io(&self, len: usize) -> IoBuf {
        IoBuf::new(self.pool.memory.clone(), self.at(), len)
    }
}

impl Drop for DataBuf {
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
