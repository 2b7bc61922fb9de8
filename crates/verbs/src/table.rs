//! Tables of objects behind ids that name one object only, ever (as far as 32 bits go).
//!
//! An id is a slot and the slot's generation, so that a stale handle or packet misses instead of reaching the next
//! tenant. Freed slots are reused in the order they were freed, and not before [`REUSE_DISTANCE`] others have been. Tables
//! grow as they fill, up to the limit of the device's attributes.

use std::collections::VecDeque;

/// How many freed slots are kept aside before one is used again, while the table may still grow.
const REUSE_DISTANCE: usize = 64;

/// Bits of an id that are the slot.
const SLOT_BITS: u32 = 20;

/// The most entries any table can have.
pub(crate) const MAX_ENTRIES: u32 = 1 << SLOT_BITS;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A bounded table of `T`.
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    live: usize,
    max: usize,
}

impl<T> Table<T> {
    /// A table of at most `max` entries.
    pub(crate) fn new(max: u32) -> Table<T> {
        Table { slots: Vec::new(), free: VecDeque::new(), live: 0, max: max.min(MAX_ENTRIES) as usize }
    }

    /// Takes a value in; `None` if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        if self.live >= self.max {
            return None;
        }
        let grow = self.slots.len() < self.max && self.free.len() < REUSE_DISTANCE;
        let slot = if grow {
            self.slots.push(Slot { generation: 0, value: None });
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        let entry = &mut self.slots[slot as usize];
        entry.value = Some(value);
        self.live += 1;
        Some((entry.generation << SLOT_BITS) | slot)
    }

    /// The value of an id.
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slots.get((id % MAX_ENTRIES) as usize)?;
        if slot.generation == id >> SLOT_BITS { slot.value.as_ref() } else { None }
    }

    /// The value of an id, to change.
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((id % MAX_ENTRIES) as usize)?;
        if slot.generation == id >> SLOT_BITS { slot.value.as_mut() } else { None }
    }

    /// Takes a value out; its id never finds anything again until the generations have gone round.
    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        self.get(id)?;
        let slot = &mut self.slots[(id % MAX_ENTRIES) as usize];
        slot.generation = (slot.generation + 1) % (1 << (32 - SLOT_BITS));
        self.free.push_back(id % MAX_ENTRIES);
        self.live -= 1;
        slot.value.take()
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_ids_miss() {
        let mut table = Table::new(2);
        let a = table.insert('a').unwrap();
        let b = table.insert('b').unwrap();
        assert_eq!(table.insert('c'), None, "the limit holds");
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        let c = table.insert('c').unwrap();
        assert_ne!(a, c);
        assert_eq!((table.get(a), table.get(b), table.get(c)), (None, Some(&'b'), Some(&'c')));
        *table.get_mut(c).unwrap() = 'd';
        assert_eq!(table.remove(c), Some('d'));
        assert_eq!(table.len(), 1);
        assert_eq!(table.get(u32::MAX), None);
    }

    #[test]
    fn slots_rest_before_reuse() {
        let mut table = Table::new(1000);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let id = table.insert(()).unwrap();
            assert!(seen.insert(id), "an id came back");
            table.remove(id);
        }
        assert!(table.slots.len() <= REUSE_DISTANCE + 1, "and the table stays small");
    }
}
