//! What the fuzz targets share: the [`target!`] macro, a seeded smoke run, and seeds from the captures.
//!
//! A target is a test that must hold for any bytes. Plain `cargo test` runs each on a fixed number of inputs from a fixed
//! seed, so that it is quick and repeatable, and on every crash on file; `cargo bolero` hands the same test to a real
//! fuzzer. The targets are in `tests/`, one file a crate under test, and beside parsers that a crate keeps to itself;
//! `README.md` says how to add and run them.
#![forbid(unsafe_code)]

pub mod captures;
mod generate;
mod rng;

// `cargo bolero` builds this crate's own (empty) test binary too, which must find the fuzzing engine to link.
#[cfg(all(test, fuzzing))]
use bolero as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use generate::Generator;
pub use rng::Rng;

/// Inputs that the smoke run gives to each target, unless `EVERYWIRE_FUZZ_ITERATIONS` says otherwise.
pub const ITERATIONS: u64 = 20_000;

/// Declares a fuzz target: a name, well-formed inputs to start from (any `Vec<Vec<u8>>`, an empty one too), and a test for
/// any bytes, which panics when it finds a bug.
///
/// ```text
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
            let check = bolero::check!(name = stringify!($name));
            if $crate::is_smoke_run() {
                let corpus = $crate::corpus(env!("CARGO_MANIFEST_DIR"), file!(), stringify!($name));
                $crate::smoke_run(stringify!($name), &$seeds, &corpus, test);
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

/// Where `cargo bolero` looks for the corpus of the target `name` in `file`, which is relative to a folder above `manifest`.
pub fn corpus(manifest: &str, file: &str, name: &str) -> PathBuf {
    let source = Path::new(manifest).ancestors().map(|folder| folder.join(file)).find(|path| path.exists());
    let folder =
        source.and_then(|path| Some(path.parent()?.to_path_buf())).unwrap_or_else(|| manifest.into());
    folder.join("__fuzz__").join(name).join("corpus")
}

/// Runs `test` on inputs made from `seeds`. README.md lists the variables of the environment that change what is run.
pub fn smoke_run(name: &str, seeds: &[Vec<u8>], corpus: &Path, test: impl Fn(&[u8])) {
    if std::env::var_os("EVERYWIRE_FUZZ_WRITE_CORPUS").is_some() {
        write_corpus(seeds, corpus);
    }
    let only = std::env::var("EVERYWIRE_FUZZ_ONLY").unwrap_or_default();
    if !only.trim().is_empty() && !only.split_whitespace().any(|word| name.starts_with(word)) {
        return;
    }
    let seed = number_from_environment("EVERYWIRE_FUZZ_SEED").unwrap_or(0);
    let enough = Enough::from_environment();
    let mut generator = Generator::new(Rng::for_name(name, seed), seeds);
    for seed in seeds {
        run_one(name, seed, &test);
    }
    let mut inputs = 0;
    while !enough.of(inputs) {
        run_one(name, generator.next_input(), &test);
        inputs += 1;
    }
    report(format_args!("{name} ok {inputs}"));
}

/// When a smoke run ends.
struct Enough {
    iterations: u64,
    end: Option<Instant>,
}

impl Enough {
    fn from_environment() -> Enough {
        let iterations = number_from_environment("EVERYWIRE_FUZZ_ITERATIONS").unwrap_or(ITERATIONS);
        let seconds = number_from_environment("EVERYWIRE_FUZZ_SECONDS");
        Enough { iterations, end: seconds.map(|s| Instant::now() + Duration::from_secs(s)) }
    }

    /// The clock is looked at now and then only: a look takes as long as a short test.
    fn of(&self, inputs: u64) -> bool {
        match self.end {
            Some(end) => inputs.is_multiple_of(64) && Instant::now() >= end,
            None => inputs >= self.iterations,
        }
    }
}

/// Adds a line to the file that `EVERYWIRE_FUZZ_REPORT` names.
fn report(line: std::fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os("EVERYWIRE_FUZZ_REPORT") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Shows the input when the test panics.
fn run_one(name: &str, input: &[u8], test: &impl Fn(&[u8])) {
    struct Report<'a>(&'a str, &'a [u8]);
    impl Drop for Report<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let hex: String = self.1.iter().map(|b| format!("{b:02x}")).collect();
                eprintln!("fuzz target {}: failed on {} bytes: {hex}", self.0, self.1.len());
                report(format_args!("{} failed {hex}", self.0));
            }
        }
    }
    let report = Report(name, input);
    test(input);
    drop(report);
}

fn write_corpus(seeds: &[Vec<u8>], dir: &Path) {
    std::fs::create_dir_all(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for (i, seed) in seeds.iter().enumerate() {
        let path = dir.join(format!("seed-{i:04}"));
        std::fs::write(&path, seed).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}
