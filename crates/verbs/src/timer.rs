//! When which QP wants to be called: a heap that is corrected lazily.
//!
//! Timers of reliable transports move all the time, nearly always later. Each QP has at most one entry. Moving a deadline
//! later touches nothing: the entry is put right when it comes to the top. Moving it earlier lifts the entry. No operation
//! looks at more than O(log n) entries beside those that are due, whatever the number of QPs.

use std::time::Instant;

/// Where a slot has no entry.
const NOWHERE: u32 = u32::MAX;

/// Deadlines of slots.
#[derive(Default)]
pub(crate) struct Timers {
    /// A binary heap: the parent of entry `i` is `(i - 1) / 2` and not later than it.
    heap: Vec<Entry>,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Not later than the slot's deadline.
    due: Instant,
    slot: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    deadline: Option<Instant>,
    /// Where its entry is.
    at: u32,
}

impl Timers {
    /// Says when `slot` wants to be called, or that it does not.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        let index = slot as usize;
        if index >= self.slots.len() {
            if deadline.is_none() {
                return;
            }
            self.slots.resize(index + 1, Slot { deadline: None, at: NOWHERE });
        }
        let place = &mut self.slots[index];
        if place.deadline == deadline {
            return; // most calls: a message more does not move a timer that runs
        }
        place.deadline = deadline;
        let Some(due) = deadline else { return };
        if place.at == NOWHERE {
            let at = self.heap.len();
            self.heap.push(Entry { due, slot });
            self.lift(at);
        } else if due < self.heap[place.at as usize].due {
            let at = place.at as usize;
            self.heap[at].due = due;
            self.lift(at);
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(&Entry { due, slot }) = self.heap.first() {
            match self.slots[slot as usize].deadline {
                Some(deadline) if deadline == due => return Some(due),
                Some(deadline) => {
                    self.heap[0].due = deadline;
                    self.sink(0);
                }
                None => self.remove_first(),
            }
        }
        None
    }

    /// Takes out the next slot whose deadline is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        if self.next()? > now {
            return None;
        }
        let slot = self.heap.first()?.slot;
        self.slots[slot as usize].deadline = None;
        self.remove_first();
        Some(slot)
    }

    fn remove_first(&mut self) {
        if self.heap.is_empty() {
            return;
        }
        let first = self.heap.swap_remove(0);
        self.slots[first.slot as usize].at = NOWHERE;
        if !self.heap.is_empty() {
            self.sink(0);
        }
    }

    /// Moves an entry up to where its parent is not later. Of equal deadlines the lower slot comes first, so that runs
    /// replay.
    fn lift(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].key() <= entry.key() {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    /// Moves an entry down to where its children are not earlier.
    fn sink(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let left = 2 * at + 1;
            let children = left..(left + 2).min(self.heap.len());
            let Some(child) = children.min_by_key(|child| self.heap[*child].key()) else { break };
            if entry.key() <= self.heap[child].key() {
                break;
            }
            self.put(at, self.heap[child]);
            at = child;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: Entry) {
        self.heap[at] = entry;
        self.slots[entry.slot as usize].at = at as u32;
    }
}

impl Entry {
    fn key(&self) -> (Instant, u32) {
        (self.due, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn deadlines_come_in_order_and_move() {
        let base = Instant::now();
        let at = |ms| Some(base + Duration::from_millis(ms));
        let mut timers = Timers::default();
        timers.set(1, at(10));
        timers.set(2, at(20));
        timers.set(3, at(30));
        timers.set(1, at(25)); // later
        timers.set(3, at(5)); // earlier
        timers.set(2, None);
        assert_eq!(timers.next(), at(5));
        assert_eq!(timers.pop_due(base), None);
        let late = at(100).unwrap();
        assert_eq!(timers.pop_due(late), Some(3));
        assert_eq!(timers.pop_due(late), Some(1));
        assert_eq!(timers.pop_due(late), None);
        assert_eq!(timers.next(), None);
        assert!(timers.heap.is_empty());
    }

    #[test]
    fn one_entry_a_slot_however_its_deadline_moves() {
        // A busy connection: a retry timer far away, an acknowledgement timer that is set and cleared all the time.
        let base = Instant::now();
        let mut timers = Timers::default();
        for turn in 0..10_000 {
            let now = base + Duration::from_micros(10 * turn);
            timers.set(3, Some(now + Duration::from_micros(20)));
            timers.set(3, Some(now + Duration::from_millis(67)));
            assert_eq!(timers.next(), Some(now + Duration::from_millis(67)));
            assert_eq!(timers.heap.len(), 1);
        }
    }

    #[test]
    fn moving_later_costs_nothing() {
        let base = Instant::now();
        let mut timers = Timers::default();
        for slot in 0..10_000 {
            timers.set(slot, Some(base + Duration::from_millis(1)));
        }
        for ms in 2..50 {
            for slot in 0..10_000 {
                timers.set(slot, Some(base + Duration::from_millis(ms)));
            }
        }
        assert_eq!(timers.next(), Some(base + Duration::from_millis(49)));
        assert_eq!(timers.heap.len(), 10_000);
        for slot in 0..10_000 {
            timers.set(slot, None);
        }
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn against_a_plain_scan() {
        let base = Instant::now();
        let mut timers = Timers::default();
        let mut model = [None; 50];
        let mut seed = 1u64;
        for step in 0..20_000u64 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let slot = (seed >> 33) as usize % model.len();
            let wanted = match seed >> 60 {
                0..4 => None,
                _ => Some(base + Duration::from_micros(step + (seed >> 40) % 1000)),
            };
            timers.set(slot as u32, wanted);
            model[slot] = wanted;
            assert_eq!(timers.next(), model.iter().flatten().min().copied());
            let now = base + Duration::from_micros(step);
            while let Some(due) = timers.pop_due(now) {
                assert!(model[due as usize].take().unwrap() <= now);
            }
            assert!(model.iter().flatten().all(|&deadline| deadline > now));
        }
    }
}
