//! A few hundred seeds of the workload, and that a seed replays.

use super::*;

/// `EVERYWIRE_SEED=N` runs that seed alone; `EVERYWIRE_SEEDS=N` runs seeds 0 to N-1.
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn seeds_pass() {
    let (first, count) = match from_environment("EVERYWIRE_SEED") {
        Some(seed) => (seed, 1),
        None => (0, from_environment("EVERYWIRE_SEEDS").unwrap_or(200)),
    };
    let mut total = Tally::default();
    for seed in first..first + count {
        match run(seed, &Options::default()) {
            Ok(report) => {
                assert!(report.tally.sends + report.tally.receives >= DEFAULT_TARGET);
                for (sum, n) in total.by_kind.iter_mut().zip(report.tally.by_kind) {
                    *sum += n;
                }
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    if count >= 20 {
        assert!(total.by_kind.iter().all(|&n| n > 0), "an operation never came: {total:?}");
    }
}

fn seeds_pass_over(wire: Wire, rfc7306: bool) {
    let options = Options { wire, rfc7306, ..Options::default() };
    for seed in 0..30 {
        if let Err(failure) = run(seed, &options) {
            panic!("{failure}");
        }
    }
}

/// The same work in frames of RoCE v1.
#[test]
fn seeds_pass_over_roce_v1() {
    seeds_pass_over(Wire::RoceV1, false);
}

/// The same work on an InfiniBand subnet that our own manager has brought up; not a credit is lost on the way.
#[test]
fn seeds_pass_over_infiniband() {
    seeds_pass_over(Wire::InfiniBand, false);
}

/// The same work, less what iWARP lacks, on simulated TCP, whose streams come in pieces of any length and are reset.
#[test]
fn seeds_pass_over_iwarp() {
    seeds_pass_over(Wire::Iwarp, false);
}

/// The same with atomics and immediate data.
#[test]
fn seeds_pass_over_iwarp_with_rfc7306() {
    seeds_pass_over(Wire::Iwarp, true);
}

#[test]
fn a_seed_replays_to_the_last_bit_and_another_does_not() {
    for seed in [3, 17, 40] {
        let again = || run(seed, &Options::default()).expect("the seed passes");
        assert_eq!(again(), again());
        let other = run(seed + 1, &Options::default()).expect("the seed passes");
        assert_ne!(again().digest, other.digest);
    }
}
