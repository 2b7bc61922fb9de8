//! A digest of a whole run, so that two runs of one seed can be compared by one number.
//!
//! Not a cryptographic hash: it only has to be fast, the same on every machine, and to change when any input bit or the
//! order of inputs does.

/// Odd constants of the multiply-rotate mix (the golden ratio and a prime).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// An order-sensitive running digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(SEED)
    }
}

impl Digest {
    /// Adds a number.
    pub fn number(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(MULTIPLIER);
    }

    /// Adds bytes and their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.number(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.number(u64::from_le_bytes(last));
    }

    /// The digest of everything added so far.
    pub fn value(&self) -> u64 {
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&[u8]]) -> u64 {
        let mut digest = Digest::default();
        for part in parts {
            digest.bytes(part);
        }
        digest.value()
    }

    #[test]
    fn every_bit_the_order_and_the_cuts_count() {
        let base = [0u8; 21];
        let reference = of(&[&base]);
        for bit in 0..base.len() * 8 {
            let mut changed = base;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&[&changed]), reference);
        }
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_ne!(of(&[b"a", b"b"]), of(&[b"b", b"a"]));
        assert_eq!(of(&[b"a", b"b"]), of(&[b"a", b"b"]));
    }
}
