//! A small random number generator for test inputs: SplitMix64, seeded by number and name.
//!
//! Not for anything that an attacker may guess. It is here so that a smoke run is the same on every machine and with every
//! version of every dependency.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each name and seed.
    pub fn for_name(name: &str, seed: u64) -> Rng {
        // FNV-1a.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Rng(hash ^ seed)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`; 0 where `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next_u64() % end as u64) as usize }
    }

    /// A random byte, of the values at which code tends to break more often than not.
    pub fn byte(&mut self) -> u8 {
        const EDGES: [u8; 8] = [0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff, 0x0f, 0xf0];
        if self.below(2) == 0 { EDGES[self.below(EDGES.len())] } else { self.next_u64() as u8 }
    }
}
