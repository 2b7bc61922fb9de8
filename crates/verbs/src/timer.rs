//! When which QP wants to be called: a heap that is corrected lazily.
//!
//! Timers of reliable transports move all the time, nearly always later. So each QP has at most one live entry; moving a
//! deadline later touches nothing, and the entry is put right when it comes to the top. No operation looks at more than
//! the entries that are due, whatever the number of QPs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Deadlines of slots.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    /// By slot: the deadline wanted, and when the slot's live entry is due.
    slots: Vec<Wanted>,
}

#[derive(Clone, Copy, Default)]
struct Wanted {
    deadline: Option<Instant>,
    entry: Option<Instant>,
}

impl Timers {
    /// Says when `slot` wants to be called, or that it does not.
    pub(crate) fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        let index = slot as usize;
        if index >= self.slots.len() {
            if deadline.is_none() {
                return;
            }
            self.slots.resize(index + 1, Wanted::default());
        }
        let wanted = &mut self.slots[index];
        wanted.deadline = deadline;
        let Some(deadline) = deadline else { return };
        if wanted.entry.is_none_or(|entry| deadline < entry) {
            wanted.entry = Some(deadline); // an older, later entry is now stale
            self.heap.push(Reverse((deadline, slot)));
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(&Reverse((due, slot))) = self.heap.peek() {
            let wanted = &mut self.slots[slot as usize];
            if wanted.entry != Some(due) {
                self.heap.pop(); // stale: an earlier entry was pushed after it
                continue;
            }
            match wanted.deadline {
                Some(deadline) if deadline == due => return Some(due),
                Some(deadline) => {
                    self.heap.pop();
                    wanted.entry = Some(deadline);
                    self.heap.push(Reverse((deadline, slot)));
                }
                None => {
                    self.heap.pop();
                    wanted.entry = None;
                }
            }
        }
        None
    }

    /// Takes out the next slot whose deadline is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        if self.next()? > now {
            return None;
        }
        let Reverse((_, slot)) = self.heap.pop()?;
        self.slots[slot as usize] = Wanted::default();
        Some(slot)
    }

    /// Entries in the heap, live and stale.
    #[cfg(test)]
    fn entries(&self) -> usize {
        self.heap.len()
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
        assert_eq!(timers.entries(), 0);
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
        assert_eq!(timers.entries(), 10_000, "no entry was added for a deadline that moved later");
        assert_eq!(timers.next(), Some(base + Duration::from_millis(49)));
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
