//! Inputs for the smoke run: now and then plain noise, mostly well-formed seeds with a few things wrong.
//!
//! Real fuzzers find their own way by coverage; this one goes blind, so it lives off good seeds.

use crate::rng::Rng;

/// Noise is at most this long.
const MAX_NOISE: usize = 512;

/// No input grows beyond this.
const MAX_LEN: usize = 16 * 1024;

/// Most things wrong with one input.
const MAX_MUTATIONS: usize = 6;

/// Makes one input after another, all from one seed.
pub(crate) struct Generator<'a> {
    rng: Rng,
    seeds: &'a [Vec<u8>],
    buffer: Vec<u8>,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(rng: Rng, seeds: &'a [Vec<u8>]) -> Generator<'a> {
        Generator { rng, seeds, buffer: Vec::new() }
    }

    pub(crate) fn next_input(&mut self) -> &[u8] {
        self.buffer.clear();
        if self.seeds.is_empty() || self.rng.below(4) == 0 {
            let len = self.rng.below(MAX_NOISE);
            self.buffer.extend((0..len).map(|_| self.rng.byte()));
        } else {
            let seed = self.rng.below(self.seeds.len());
            self.buffer.extend_from_slice(&self.seeds[seed]);
            for _ in 0..self.rng.below(MAX_MUTATIONS + 1) {
                self.mutate();
            }
            self.buffer.truncate(MAX_LEN);
        }
        &self.buffer
    }

    /// Does one thing to the input. Headers are at the front, so half of the changes are made there.
    fn mutate(&mut self) {
        let len = self.buffer.len();
        let front = if self.rng.below(2) == 0 { len.min(64) } else { len };
        let at = self.rng.below(front);
        match self.rng.below(8) {
            0 if len > 0 => self.buffer[at] ^= 1 << self.rng.below(8),
            1 | 2 if len > 0 => self.buffer[at] = self.rng.byte(),
            3 => self.buffer.truncate(at),
            4 if len > 0 => {
                self.buffer.remove(at);
            }
            5 => {
                let byte = self.rng.byte();
                self.buffer.insert(at, byte);
            }
            6 => {
                let extra = self.rng.below(32);
                self.buffer.extend((0..extra).map(|_| self.rng.byte()));
            }
            _ => self.splice(at),
        }
    }

    /// Copies a piece of another seed over the input.
    fn splice(&mut self, at: usize) {
        let donor = &self.seeds[self.rng.below(self.seeds.len())];
        let from = self.rng.below(donor.len());
        let room = (donor.len() - from).min(self.buffer.len() - at);
        let len = self.rng.below(room + 1);
        self.buffer[at..at + len].copy_from_slice(&donor[from..from + len]);
    }
}
