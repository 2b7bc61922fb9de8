//! What the fuzz targets share: the [`target!`] macro, a seeded smoke run, and seeds from the captures.
//!
//! A target is a test that must hold for any bytes. Plain `cargo test` runs each on a fixed number of inputs from a fixed
//! seed, so that it is quick and repeatable, and on every crash on file; `cargo bolero` hands the same test to a real
//! fuzzer. The targets are in `tests/`, one file a crate under test; `README.md` says how to add and run them.
#![forbid(unsafe_code)]

pub mod captures;
mod generate;
mod rng;

// `cargo bolero` builds this crate's own (empty) test binary too, which must find the fuzzing engine to link.
#[cfg(all(test, fuzzing))]
use bolero as _;
use std::path::PathBuf;

use generate::Generator;
pub use rng::Rng;

/// Inputs that the smoke run gives to each target, unless `EVERYWIRE_FUZZ_ITERATIONS` says otherwise.
pub const ITERATIONS: u64 = 20_000;

/// Declares a fuzz target: a name, well-formed inputs to start from (any `Vec<Vec<u8>>`, an empty one too), and a test for
/// any bytes, which panics when it finds a bug.
///
/// ```ignore
/// everywire_fuzz::target!(bth, captures::roce_payloads(), |bytes| {
///     let _ = Bth::parse(bytes);
/// });
/// ```
#[macro_export]
macro_rules! target {
    ($name:ident, $seeds:expr, |$bytes:ident| $body:expr) => {
        #[test]
        fn $name() {
            let test = |$bytes: &[u8]| $body;
            let check = bolero::check!();
            if $crate::is_smoke_run() {
                let corpus =
                    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/__fuzz__/", stringify!($name), "/corpus");
                $crate::smoke_run(stringify!($name), &$seeds, corpus, test);
            }
            // Under `cargo bolero` the fuzzer's inputs; in a smoke run what is on file (crashes, corpus).
            check.with_iterations(0).for_each(test);
        }
    };
}

/// Whether this is not a run of `cargo bolero`.
pub fn is_smoke_run() -> bool {
    !cfg!(fuzzing)
}

/// Runs `test` on inputs made from `seeds`; `EVERYWIRE_FUZZ_SEED` varies them. With `EVERYWIRE_FUZZ_WRITE_CORPUS` set, first
/// writes the seeds to `corpus`, for `cargo bolero` to start from.
pub fn smoke_run(name: &str, seeds: &[Vec<u8>], corpus: &str, test: impl Fn(&[u8])) {
    if std::env::var_os("EVERYWIRE_FUZZ_WRITE_CORPUS").is_some() {
        write_corpus(seeds, corpus.into());
    }
    let seed = number_from_environment("EVERYWIRE_FUZZ_SEED").unwrap_or(0);
    let iterations = number_from_environment("EVERYWIRE_FUZZ_ITERATIONS").unwrap_or(ITERATIONS);
    let mut generator = Generator::new(Rng::for_name(name, seed), seeds);
    for seed in seeds {
        run_one(name, seed, &test);
    }
    for _ in 0..iterations {
        run_one(name, generator.next_input(), &test);
    }
}

/// Shows the input when the test panics.
fn run_one(name: &str, input: &[u8], test: &impl Fn(&[u8])) {
    struct Report<'a>(&'a str, &'a [u8]);
    impl Drop for Report<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let hex: String = self.1.iter().map(|b| format!("{b:02x}")).collect();
                eprintln!("fuzz target {}: failed on {} bytes: {hex}", self.0, self.1.len());
            }
        }
    }
    let report = Report(name, input);
    test(input);
    drop(report);
}

fn write_corpus(seeds: &[Vec<u8>], dir: PathBuf) {
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for (i, seed) in seeds.iter().enumerate() {
        let path = dir.join(format!("seed-{i:04}"));
        std::fs::write(&path, seed).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}
