//! Bytes that say where they belong: a function of a seed and of their offset, so that a block in a wrong place is found as
//! surely as a wrong bit, and nothing has to be kept to compare with.

use std::fmt;

/// The first byte that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its offset.
    pub at: u64,
    /// What is there.
    pub got: u8,
    /// What was written.
    pub want: u8,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} came back as {:#04x}, {:#04x} was written", self.at, self.got, self.want)
    }
}

/// `len` bytes from `offset`, which is a multiple of 8.
pub fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let words = (offset / 8)..;
    let mut out: Vec<u8> = Vec::with_capacity(len + 8);
    for word in words.take(len.div_ceil(8)) {
        out.extend(mix(seed.wrapping_add(word)).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Whether these are [`bytes`].
pub fn compare(seed: u64, offset: u64, got: &[u8]) -> Result<(), Difference> {
    let want = bytes(seed, offset, got.len());
    if got == want {
        return Ok(());
    }
    let at = got.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(0);
    Err(Difference { at: offset + at as u64, got: got[at], want: want[at] })
}

/// The finisher of splitmix64 (Steele, Lea, Flood 2014).
fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_or_changed_bytes_are_found() {
        let good = bytes(7, 4096, 1001);
        assert_eq!(compare(7, 4096, &good), Ok(()));
        assert!(compare(7, 0, &good).is_err(), "in another place");
        assert!(compare(8, 4096, &good).is_err(), "of another run");
        let mut bad = good.clone();
        bad[1000] ^= 1;
        assert_eq!(compare(7, 4096, &bad), Err(Difference { at: 5096, got: bad[1000], want: good[1000] }));
    }
}
