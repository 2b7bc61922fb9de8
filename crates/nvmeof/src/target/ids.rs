//! Names of queues and controllers inside a target, and maps by them.
//!
//! They count up and are never reused, so a stale one finds nothing. Hosts cannot choose them, so the maps need no hash that
//! withstands attack, which is what makes the several lookups of each command cheap.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A queue of an association, for as long as its connection lives. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(u64);

/// A controller, within the whole target. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ControllerKey(u64);

impl QueueId {
    pub(super) fn new(count: u64) -> Self {
        Self(count)
    }
}

impl ControllerKey {
    pub(super) fn new(count: u64) -> Self {
        Self(count)
    }
}

/// A map by one of these.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Spreads a counter over the bits that a hash table looks at.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, id: u64) {
        // 2^64 divided by the golden ratio; the product's high bits depend on every bit of the number.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
    }
}
