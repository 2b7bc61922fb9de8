//! Ranges of a region, given out so that operations in flight never share a byte.
//!
//! Neighbouring slots touch: a byte too many lands in somebody else's slot, where the shadow sees it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::random::Dice;

/// A range of bytes in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// First byte, from the start of the region.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Slot {
    /// As a range.
    pub fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// The free ranges of a part of a region.
#[derive(Debug, Clone)]
pub struct Slots {
    free: BTreeMap<usize, usize>,
}

impl Slots {
    /// All of `range` is free.
    pub fn new(range: Range<usize>) -> Self {
        Slots { free: BTreeMap::from([(range.start, range.len())]) }
    }

    /// A slot of `len` bytes at a multiple of `align`, somewhere. Zero bytes are always to be had.
    pub fn take(&mut self, dice: &mut Dice, len: usize, align: usize) -> Option<Slot> {
        let fits = |(&start, &size): (&usize, &usize)| {
            let offset = start.next_multiple_of(align);
            (offset + len <= start + size).then_some((start, size, offset))
        };
        let candidates: Vec<_> = self.free.iter().filter_map(fits).collect();
        if candidates.is_empty() {
            return None;
        }
        let (start, size, lowest) = *dice.pick(&candidates);
        if len == 0 {
            return Some(Slot { offset: lowest, len });
        }
        // At the low or the high end, or anywhere between.
        let highest = (start + size - len) / align * align;
        let offset = match dice.below(3) {
            0 => lowest,
            1 => highest,
            _ => lowest + dice.below((highest - lowest) / align + 1) * align,
        };
        self.free.remove(&start);
        if offset > start {
            self.free.insert(start, offset - start);
        }
        if offset + len < start + size {
            self.free.insert(offset + len, start + size - offset - len);
        }
        Some(Slot { offset, len })
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, slot: Slot) {
        if slot.len == 0 {
            return;
        }
        let (mut offset, mut len) = (slot.offset, slot.len);
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, len + size);
        }
        if let Some(size) = self.free.remove(&(slot.offset + slot.len)) {
            len += size;
        }
        self.free.insert(offset, len);
    }

    /// Free bytes.
    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.free.values().sum()
    }
}

/// How a slot is cut into segments: pieces in the order of the work request, which need not be that of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The whole slot.
    pub slot: Slot,
    /// Its pieces.
    pub pieces: Vec<Slot>,
}

impl Layout {
    /// Cuts a slot into at most `most` pieces at random places and shuffles them.
    pub fn new(dice: &mut Dice, slot: Slot, most: usize) -> Self {
        let count = if dice.chance(1, 2) { 1 } else { dice.between(1, most) };
        let mut cuts: Vec<usize> = (1..count).map(|_| dice.between(0, slot.len)).collect();
        cuts.push(0);
        cuts.push(slot.len);
        cuts.sort_unstable();
        let piece = |pair: &[usize]| Slot { offset: slot.offset + pair[0], len: pair[1] - pair[0] };
        let mut pieces: Vec<Slot> = cuts.windows(2).map(piece).collect();
        dice.shuffle(&mut pieces);
        Layout { slot, pieces }
    }

    /// The message in a slot whose bytes are `slot_bytes`, up to `len` bytes of it.
    pub fn gather(&self, slot_bytes: &[u8], len: usize) -> Vec<u8> {
        let mut message = Vec::with_capacity(len);
        for piece in &self.pieces {
            let at = piece.offset - self.slot.offset;
            let take = piece.len.min(len - message.len());
            message.extend_from_slice(&slot_bytes[at..at + take]);
        }
        message
    }

    /// The bytes of the slot once `message` has landed on `old`.
    pub fn scatter(&self, old: &[u8], message: &[u8]) -> Vec<u8> {
        let mut bytes = old.to_vec();
        let mut rest = message;
        for piece in &self.pieces {
            let at = piece.offset - self.slot.offset;
            let (now, later) = rest.split_at(piece.len.min(rest.len()));
            bytes[at..at + now.len()].copy_from_slice(now);
            rest = later;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_never_overlap_and_come_back_whole() {
        let mut dice = Dice::new(1);
        let mut slots = Slots::new(16..4096);
        for _ in 0..50 {
            let mut taken: Vec<Slot> = Vec::new();
            for _ in 0..40 {
                let (len, align) = (dice.below(300), *dice.pick(&[1, 8]));
                let Some(slot) = slots.take(&mut dice, len, align) else { continue };
                assert_eq!(slot.offset % align, 0);
                assert!(slot.range().start >= 16 && slot.range().end <= 4096);
                let clash =
                    |o: &Slot| o.range().start < slot.range().end && slot.range().start < o.range().end;
                assert!(slot.len == 0 || !taken.iter().any(clash));
                taken.push(slot);
            }
            dice.shuffle(&mut taken);
            for slot in taken {
                slots.give_back(slot);
            }
            assert_eq!(slots.free_bytes(), 4080);
            assert_eq!(slots.free.len(), 1);
        }
    }

    #[test]
    fn a_layout_gathers_what_it_scattered() {
        let mut dice = Dice::new(2);
        for _ in 0..200 {
            let slot = Slot { offset: 100, len: dice.below(50) };
            let layout = Layout::new(&mut dice, slot, 4);
            assert_eq!(layout.pieces.iter().map(|p| p.len).sum::<usize>(), slot.len);
            let message: Vec<u8> = (1..=dice.between(0, slot.len) as u8).collect();
            let bytes = layout.scatter(&vec![0; slot.len], &message);
            assert_eq!(layout.gather(&bytes, message.len()), message);
            assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), message.len());
        }
    }
}
