//! What can go wrong on one direction of a link: loss, duplication, bit corruption, reordering, jitter, partition.
//!
//! Each decision comes from a generator seeded per direction, so that faults on one link do not shift those on another.
//! Corruption flips one bit after the Ethernet header, where no FCS sees it (as a faulty switch memory does): it is what
//! a RoCE ICRC is for. Addresses are left alone, since a switch that learned a wrong one would be deaf for minutes.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::clock::nanos;

/// A probability in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Never.
    pub const NEVER: Ppm = Ppm(0);
    /// Always.
    pub const ALWAYS: Ppm = Ppm(1_000_000);

    /// `n` per cent.
    pub const fn percent(n: u32) -> Ppm {
        Ppm(n * 10_000)
    }
}

/// The faults of one direction of a link. The default is a perfect wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// A frame vanishes.
    pub loss: Ppm,
    /// A frame arrives twice; the second copy up to [`Faults::late_by`] later.
    pub duplicate: Ppm,
    /// One bit of a frame is flipped.
    pub corrupt: Ppm,
    /// A frame is held back by up to [`Faults::late_by`] while later ones pass it.
    pub reorder: Ppm,
    /// The longest time by which a reordered or duplicated frame is late.
    pub late_by: Duration,
    /// Extra delay of every frame, uniform from zero to this; order is kept.
    pub jitter: Duration,
    /// Nothing passes at all.
    pub partition: bool,
}

impl Faults {
    /// A perfect wire.
    pub const NONE: Faults = Faults {
        loss: Ppm::NEVER,
        duplicate: Ppm::NEVER,
        corrupt: Ppm::NEVER,
        reorder: Ppm::NEVER,
        late_by: Duration::ZERO,
        jitter: Duration::ZERO,
        partition: false,
    };
}

/// What happens to one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The frame is dropped; the rest of the verdict is then meaningless.
    pub drop: Option<DropCause>,
    /// The bit to flip, counted from the first bit after the Ethernet header.
    pub flip_bit: Option<usize>,
    /// Extra delay under which frames keep their order.
    pub jitter: Duration,
    /// Extra delay of this frame alone, so that later ones pass it.
    pub hold: Option<Duration>,
    /// A copy arrives this much after the original.
    pub copy_after: Option<Duration>,
}

/// Why a fault dropped a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCause {
    /// Random loss.
    Loss,
    /// The link is partitioned.
    Partition,
}

/// Seeded decisions for one direction of a link.
#[derive(Debug, Clone)]
pub struct FaultSource {
    rng: ChaCha8Rng,
}

impl FaultSource {
    /// A source whose decisions follow from `seed` alone.
    pub fn new(seed: u64) -> Self {
        FaultSource { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Decides about one frame of `len` bytes after its Ethernet header.
    pub fn judge(&mut self, faults: &Faults, len: usize) -> Verdict {
        let mut verdict =
            Verdict { drop: None, flip_bit: None, jitter: Duration::ZERO, hold: None, copy_after: None };
        if faults.partition {
            verdict.drop = Some(DropCause::Partition);
            return verdict;
        }
        if self.chance(faults.loss) {
            verdict.drop = Some(DropCause::Loss);
            return verdict;
        }
        if len > 0 && self.chance(faults.corrupt) {
            verdict.flip_bit = Some(self.below(len as u64 * 8) as usize);
        }
        verdict.jitter = self.up_to(faults.jitter);
        if self.chance(faults.reorder) {
            verdict.hold = Some(self.up_to(faults.late_by));
        }
        if self.chance(faults.duplicate) {
            verdict.copy_after = Some(self.up_to(faults.late_by));
        }
        verdict
    }

    fn chance(&mut self, p: Ppm) -> bool {
        // A fault that is off draws nothing, so that switching one fault on leaves the decisions of the others alone
        // until it strikes.
        p.0 > 0 && self.below(1_000_000) < u64::from(p.0)
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = nanos(most);
        if most == 0 { Duration::ZERO } else { Duration::from_nanos(self.below(most.saturating_add(1))) }
    }

    /// Uniform below `n`, by the widening multiply; zero when `n` is zero.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_wire_does_nothing() {
        let mut source = FaultSource::new(1);
        for _ in 0..1000 {
            let v = source.judge(&Faults::NONE, 64);
            assert_eq!(
                v,
                Verdict { drop: None, flip_bit: None, jitter: Duration::ZERO, hold: None, copy_after: None }
            );
        }
    }

    #[test]
    fn rates_are_what_was_asked_for() {
        let mut source = FaultSource::new(7);
        let faults = Faults {
            loss: Ppm::percent(10),
            corrupt: Ppm::percent(5),
            reorder: Ppm::percent(20),
            duplicate: Ppm::percent(2),
            late_by: Duration::from_micros(9),
            jitter: Duration::from_nanos(100),
            partition: false,
        };
        let (mut lost, mut flipped, mut held, mut copied, mut passed) = (0, 0, 0, 0, 0);
        for _ in 0..100_000 {
            let v = source.judge(&faults, 100);
            if v.drop == Some(DropCause::Loss) {
                lost += 1;
                continue;
            }
            passed += 1;
            assert!(v.jitter <= faults.jitter);
            assert!(v.flip_bit.is_none_or(|bit| bit < 800));
            assert!(v.hold.is_none_or(|d| d <= faults.late_by));
            flipped += u32::from(v.flip_bit.is_some());
            held += u32::from(v.hold.is_some());
            copied += u32::from(v.copy_after.is_some());
        }
        // Five standard deviations of the binomial distribution.
        let near = |n: u32, of: u32, p: f64| {
            let mean = f64::from(of) * p;
            (f64::from(n) - mean).abs() < 5.0 * (mean * (1.0 - p)).sqrt()
        };
        assert!(near(lost, 100_000, 0.10));
        assert!(near(flipped, passed, 0.05));
        assert!(near(held, passed, 0.20));
        assert!(near(copied, passed, 0.02));
    }

    #[test]
    fn a_partition_passes_nothing_and_a_seed_decides_everything() {
        let cut = Faults { partition: true, ..Faults::NONE };
        assert_eq!(FaultSource::new(3).judge(&cut, 64).drop, Some(DropCause::Partition));
        let noisy = Faults { loss: Ppm::percent(50), corrupt: Ppm::percent(50), ..Faults::NONE };
        let run = |seed| {
            let mut s = FaultSource::new(seed);
            (0..64).map(|_| s.judge(&noisy, 64)).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
