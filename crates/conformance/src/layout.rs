//! Where a message lies in memory: scatter/gather lists of every shape, and the image of the memory around them.
//!
//! A layout never fills its window: there are guard bytes before it, after it and in the gaps between its segments, and
//! [`Layout::image`] says what the whole window must look like. So one comparison sees both a wrong byte and a byte too
//! many.

use everywire_verbs::{LKey, MemoryRegion, Sge};

/// Guard bytes on either side of a message.
pub(crate) const GUARD: usize = 64;
/// What guard bytes hold.
pub(crate) const GUARD_BYTE: u8 = 0xa5;
/// A key that no region has: index 0 is never given out.
pub(crate) const NO_KEY: u32 = 0x0000_00ee;
/// Offsets at which segments start that are to be unaligned, and the gap after each.
const ODD: usize = 3;

/// How a message is cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// No segment at all; only for messages of no bytes.
    None,
    /// One, aligned.
    One,
    /// One, at an odd address.
    Odd,
    /// Two of different length, with a gap between them.
    Two,
    /// As many as the queue pair allows, some of them of length zero, one of these under a key that does not exist.
    Most,
}

impl Shape {
    /// All shapes that hold bytes.
    pub(crate) const ALL: [Shape; 4] = [Shape::One, Shape::Odd, Shape::Two, Shape::Most];
}

/// A message's place in a region.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// For work requests.
    pub(crate) sges: Vec<Sge>,
    /// Offset and length of each segment that has bytes, in order.
    spans: Vec<(usize, usize)>,
    /// The window: all spans and the guards.
    start: usize,
    end: usize,
}

impl Layout {
    /// `length` bytes in `region`, from about `at`, in at most `most` segments.
    pub(crate) fn new(region: &MemoryRegion, at: usize, length: usize, shape: Shape, most: usize) -> Layout {
        let mut layout = Layout { sges: Vec::new(), spans: Vec::new(), start: at, end: at };
        let mut next = at + GUARD;
        for (index, piece) in pieces(length, shape, most).into_iter().enumerate() {
            if piece == 0 {
                let lkey = if index == 0 { LKey(NO_KEY) } else { region.lkey() };
                layout.sges.push(Sge { addr: region.addr() + next as u64, length: 0, lkey });
                continue;
            }
            if shape != Shape::One {
                next += ODD;
            }
            layout.sges.push(region.sge(next..next + piece));
            layout.spans.push((next, piece));
            next += piece;
        }
        layout.end = next + GUARD;
        layout
    }

    /// Offset of the first byte of a message in one piece.
    pub(crate) fn first(&self) -> usize {
        self.spans.first().map_or(self.start + GUARD, |span| span.0)
    }

    /// What the window looks like with these bytes in it, from the message's start on; without, guards everywhere.
    fn image(&self, data: &[u8]) -> Vec<u8> {
        let mut image = vec![GUARD_BYTE; self.end - self.start];
        let mut rest = data;
        for &(at, length) in &self.spans {
            let (now, later) = rest.split_at(length.min(rest.len()));
            image[at - self.start..at - self.start + now.len()].copy_from_slice(now);
            rest = later;
        }
        image
    }

    /// Writes guards, and these bytes into the segments.
    pub(crate) fn fill(&self, region: &MemoryRegion, data: &[u8]) -> Result<(), String> {
        let written = region.write_at(self.start, &self.image(data));
        written.map_err(|error| error.to_string())
    }

    /// What is wrong with the window, if it is not what these bytes make of it. The first `skip` bytes may be anything.
    pub(crate) fn check(&self, region: &MemoryRegion, data: &[u8], skip: usize) -> Result<(), String> {
        let mut got =
            region.read_vec(self.start, self.end - self.start).map_err(|error| error.to_string())?;
        let want = self.image(data);
        let mut left = skip;
        for &(at, length) in &self.spans {
            let free = left.min(length);
            let from = at - self.start;
            got[from..from + free].copy_from_slice(&want[from..from + free]);
            left -= free;
        }
        let Some(wrong) = got.iter().zip(&want).position(|(got, want)| got != want) else { return Ok(()) };
        let at = self.start + wrong;
        let inside = self.spans.iter().any(|&(start, length)| (start..start + length).contains(&at));
        let place = if inside { "in the message" } else { "outside it" };
        Err(format!(
            "memory at {at} ({place}, which starts at {}) is {:#04x}, but it must be {:#04x}",
            self.first(),
            got[wrong],
            want[wrong]
        ))
    }
}

/// The lengths of the segments.
fn pieces(length: usize, shape: Shape, most: usize) -> Vec<usize> {
    match shape {
        Shape::None => Vec::new(),
        Shape::One | Shape::Odd => vec![length],
        Shape::Two => {
            let first = (length * 2 / 3) | usize::from(length > 1);
            vec![first.min(length), length - first.min(length)]
        }
        Shape::Most => {
            // A zero at the front, one in the middle and one at the end; the bytes spread over the others.
            let full = most.saturating_sub(3).max(1);
            let share = length / full;
            let mut pieces = vec![share; full];
            pieces[full - 1] += length - share * full;
            if most >= 4 {
                pieces.insert(0, 0);
                pieces.insert(pieces.len() / 2, 0);
                pieces.push(0);
            }
            pieces
        }
    }
}

/// Bytes that differ by place and by `seed`.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_and_keep_to_the_limit() {
        for length in [0, 1, 3, 4, 29, 1023, 1 << 20] {
            for shape in Shape::ALL {
                for most in [1, 2, 4, 32] {
                    let pieces = pieces(length, shape, most);
                    assert_eq!(pieces.iter().sum::<usize>(), length, "{shape:?} {most}");
                    let limit = if shape == Shape::Two { most.max(2) } else { most.max(1) };
                    assert!(pieces.len() <= limit, "{shape:?} {most}: {}", pieces.len());
                }
            }
        }
    }

    #[test]
    fn patterns_differ() {
        assert_ne!(pattern(8, 1), pattern(8, 2));
        assert_eq!(pattern(3, 1), pattern(8, 1)[..3]);
    }
}
