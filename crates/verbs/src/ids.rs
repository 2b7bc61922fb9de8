//! Maps by numbers that need no hash that withstands attack.
//!
//! Either nobody outside chooses the numbers (keys, counters), or so few are in a map at once that all of them in one bucket do no
//! harm (the tags of a connection's commands). Several lookups of each command become cheap by that.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a number.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// A set of numbers.
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

/// Spreads a number over the bits that a hash table looks at: its bucket comes from the low ones, its tag from the high ones.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u16(&mut self, id: u16) {
        self.write_u64(id.into());
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(id.into());
    }

    fn write_u64(&mut self, id: u64) {
        // 2^64 divided by the golden ratio; the product's high bits depend on every bit of the number.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
    }
}
