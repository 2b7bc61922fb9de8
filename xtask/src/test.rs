//! `cargo xtask test`: everything that this machine can check, in the order in which a failure is cheapest.
//!
//! Each step keeps its whole output under target/test/, prints one line, and on failure the end of that output.
//! A step that cannot run here says why and counts as skipped. A skip that docs/skips.md does not list fails. What libtest says of each failed test comes once more at the
//! end, where whoever sees only the end of a long log finds it; the last line is `N passed, N failed, N skipped`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::interop;
use crate::shell::{self, Finished};
use crate::skips;
use crate::soak;

/// How many tests a step ran, or why it did not run.
pub enum Outcome {
    Counted(Tally),
    LeftOut(String),
}

/// Tests by their end.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Tally {
    /// One check that passed or failed.
    pub fn one(ok: bool) -> Self {
        Tally { passed: usize::from(ok), failed: usize::from(!ok), skipped: 0 }
    }

    /// Adds another step's ends.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// A compile on two cores from nothing stays far below this.
const STEP_LIMIT: Duration = Duration::from_secs(20 * 60);

type Step = (&'static str, fn() -> Result<Outcome, String>);

const STEPS: &[Step] = &[
    ("format", || check("format", shell::cargo().args(["fmt", "--all", "--check"]))),
    ("clippy", || {
        let flags = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
        check("clippy", shell::cargo().args(flags))
    }),
    ("tidy", || check("tidy", shell::cargo().args(["xtask", "tidy"]))),
    ("build", || {
        check("build", shell::cargo().args(["build", "--quiet", "--release", "--package", "everywire-cli"]))
    }),
    ("unit", || {
        let apart = ["--exclude", "everywire-sim", "--exclude", "everywire-fuzz"];
        suite("unit", &[&["--workspace", "--lib", "--bins", "--tests"], &apart[..]].concat())
    }),
    ("simulation", || suite("simulation", &["--package", "everywire-sim", "--lib", "--tests"])),
    ("mutants", mutants),
    ("fuzz", || suite("fuzz", &["--package", "everywire-fuzz", "--lib", "--tests"])),
    ("doctests", || suite("doctests", &["--workspace", "--doc"])),
    ("examples", examples),
    ("speed", soak::speed::sample),
    ("interop", interop::sample),
    ("opensm", interop::opensm::sample),
];

/// Runs the steps; `cargo xtask test STEP…` runs only those named.
pub fn main(args: &[String]) -> Result<(), String> {
    let known: Vec<&str> = STEPS.iter().map(|s| s.0).collect();
    if let Some(unknown) = args.iter().find(|a| !known.contains(&a.as_str())) {
        return Err(format!("no step is called {unknown:?}; the steps are: {}", known.join(", ")));
    }
    let mut total = Tally::default();
    let mut left_out = Vec::new();
    for (name, step) in STEPS.iter().filter(|s| args.is_empty() || args.iter().any(|a| a == s.0)) {
        let started = Instant::now();
        let outcome = step().unwrap_or_else(|why| {
            println!("    {why}");
            Outcome::Counted(Tally::one(false))
        });
        let seconds = started.elapsed().as_secs();
        match outcome {
            Outcome::Counted(t) => {
                let end = if t.failed == 0 { "ok" } else { "FAILED" };
                println!(
                    "{name:10} {end}: {} passed, {} failed, {} skipped ({seconds} s)",
                    t.passed, t.failed, t.skipped
                );
                total.add(t);
            }
            Outcome::LeftOut(why) => {
                println!("{name:10} left out: {why}");
                total.skipped += 1;
                total.failed += beside_the_list(&format!("{name}: {why}"));
                left_out.push(format!("{name} ({why})"));
            }
        }
    }
    if !left_out.is_empty() {
        println!("left out: {}", left_out.join("; "));
    }
    for line in FAILURES.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("    {line}");
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if total.failed == 0 { Ok(()) } else { Err(format!("logs are in {}", logs().display())) }
}

/// What failed tests printed, for the end.
static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The most lines that one failed test is shown with: its first half and its last.
const SHOWN: usize = 40;

/// What libtest prints of each failed test, without its long middle.
fn failures(output: &str) -> Vec<String> {
    let mut tests: Vec<Vec<&str>> = Vec::new();
    let mut inside = false;
    for line in output.lines() {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            inside = true;
            tests.push(Vec::new());
        } else if line == "failures:" {
            inside = false;
        }
        if let (true, Some(test)) = (inside && !line.is_empty(), tests.last_mut()) {
            test.push(line);
        }
    }
    let short = |test: Vec<&str>| -> Vec<String> {
        let cut = test.len().saturating_sub(SHOWN);
        let head = if cut == 0 { test.len() } else { SHOWN / 2 };
        let middle = (cut > 0).then(|| format!("… {cut} lines …"));
        let (head, rest) = test.split_at(head);
        let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        [owned(head), middle.into_iter().collect(), owned(&rest[cut..])].concat()
    };
    tests.into_iter().flat_map(short).collect()
}

fn logs() -> PathBuf {
    shell::target().join("test")
}

fn run(name: &str, command: &mut Command) -> Result<Finished, String> {
    let done = shell::run(command, &logs().join(format!("{name}.log")), STEP_LIMIT)?;
    if !done.ok() {
        print!("{}", done.tail(60));
    }
    Ok(done)
}

/// A step that is one check: the exit code decides.
fn check(name: &str, command: &mut Command) -> Result<Outcome, String> {
    Ok(Outcome::Counted(Tally::one(run(name, command)?.ok())))
}

/// A step that runs libtest binaries: their own counts decide, but for tests that say that they left something out
/// (crates/testkit), which libtest counts as passed.
fn suite(name: &str, flags: &[&str]) -> Result<Outcome, String> {
    let skips = logs().join(format!("{name}.skips"));
    let _ = std::fs::remove_file(&skips);
    let mut cargo = shell::cargo();
    cargo.args(["test", "--no-fail-fast"]).args(flags).env("EVERYWIRE_SKIPS", &skips);
    let done = run(name, &mut cargo)?;
    FAILURES.lock().unwrap_or_else(PoisonError::into_inner).extend(failures(&done.output));
    let mut tally = count(&done.output);
    let skips = std::fs::read_to_string(&skips).unwrap_or_default();
    let left_out = skips::ignored(&done.output) + &skips;
    for line in left_out.lines() {
        println!("    skipped {line}");
    }
    let skipped = skipped(&skips);
    tally.passed = tally.passed.saturating_sub(skipped);
    tally.skipped += skipped;
    tally.failed += beside_the_list(&left_out);
    if !done.ok() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok(Outcome::Counted(tally))
}

/// How many of the lines `name: reason` are skips that nobody has given a reason for; tells of each.
pub fn beside_the_list(lines: &str) -> usize {
    let unlisted = skips::unlisted(lines);
    for line in &unlisted {
        println!("    skipped, which docs/skips.md does not list: {line}");
    }
    unlisted.len()
}

/// Adds up libtest's lines: `test result: ok. 11 passed; 0 failed; 1 ignored; …`.
fn count(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter(|l| l.starts_with("test result:")) {
        let number = |what: &str| -> usize {
            let before = line.find(what).map_or("", |at| line[..at].trim_end());
            before.rsplit([' ', '.']).next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        tally.add(Tally {
            passed: number(" passed"),
            failed: number(" failed"),
            skipped: number(" ignored"),
        });
    }
    tally
}

/// How many tests the lines `test: reason` speak of.
fn skipped(lines: &str) -> usize {
    lines.lines().filter_map(|l| l.split_once(": ")).map(|l| l.0).collect::<HashSet<_>>().len()
}

/// A sample of the mutants; `cargo xtask soak mutants` tries all. The first takes a build, each more a few seconds.
fn mutants() -> Result<Outcome, String> {
    let mut tally = Tally::default();
    crate::mutants::run(&["icrc".into(), "duplicate-request".into()], &mut |end| {
        if end.noticed.is_none() {
            println!("    mutant {}: nothing noticed: {}", end.name, end.why);
        }
        tally.add(Tally::one(end.noticed.is_some()));
    })?;
    Ok(Outcome::Counted(tally))
}

/// Every example of the facade crate, run to its end.
fn examples() -> Result<Outcome, String> {
    let folder = shell::root().join("crates/everywire/examples");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    let mut tally = Tally::default();
    for name in names {
        let log = format!("example-{name}");
        let done =
            run(&log, shell::cargo().args(["run", "--quiet", "--package", "everywire", "--example", &name]))?;
        if !done.ok() {
            println!("    example {name} failed");
        }
        tally.add(Tally::one(done.ok()));
    }
    Ok(Outcome::Counted(tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_counts_add_up() {
        let out = "x\ntest result: ok. 11 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                   test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let tally = count(out);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (12, 3, 2));
    }

    #[test]
    fn failed_tests_are_found_and_cut() {
        let long: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let out = format!(
            "test a ... FAILED\nfailures:\n\n---- a stdout ----\nthread 'a' panicked\n\n---- b stdout ----\n{long}\n\n\
             failures:\n    a\n    b\n\ntest result: FAILED. 1 passed; 2 failed\n"
        );
        let shown = failures(&out);
        assert_eq!(shown[..3], ["---- a stdout ----", "thread 'a' panicked", "---- b stdout ----"]);
        assert_eq!(shown.len(), 2 + SHOWN + 1);
        assert_eq!(shown[2 + SHOWN / 2], "… 61 lines …");
        assert_eq!(shown.last().map(String::as_str), Some("line 99"));
        assert!(failures("test a ... ok\n").is_empty());
    }

    #[test]
    fn a_test_that_leaves_out_two_things_is_one_skipped() {
        assert_eq!(skipped("a::b: no tshark\na::b: no capinfos\nc: ::1 is not free\n"), 2);
        assert_eq!(skipped(""), 0);
    }
}
