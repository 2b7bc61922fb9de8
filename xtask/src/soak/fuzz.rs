//! Long fuzzing: the smoke runs of every fuzz target, but for a time instead of a number of inputs, and on other inputs:
//! the day's date is their seed. Built as tests are, so that overflow and debug assertions are findings.
//!
//! Read fuzz/README.md first; coverage-guided fuzzing is `cargo bolero`'s, not done here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::report::Row;
use super::{logs, report};
use crate::shell;

/// Seconds a target.
const SECONDS: u64 = 30;
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Where the targets are: in a package of their own, and in modules `fuzz` beside parsers that a crate keeps to itself.
const RUNS: [&[&str]; 2] = [
    &["--package", "everywire-fuzz"],
    &["--package", "everywire-net", "--package", "everywire-cli", "--", "fuzz::"],
];

/// Runs every target whose name begins with one of `names`, several side by side; all for none.
pub fn run(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let found = logs().join("fuzz.found");
    let _ = std::fs::remove_file(&found);
    let seed = report::today().replace('-', "");
    let mut broken = Vec::new();
    for (number, run) in RUNS.iter().enumerate() {
        let mut cargo = shell::cargo();
        cargo.args(["test", "--no-fail-fast", "--lib", "--bins", "--tests"]).args(*run);
        cargo.env("EVERYWIRE_FUZZ_SECONDS", SECONDS.to_string()).env("EVERYWIRE_FUZZ_SEED", &seed);
        cargo.env("EVERYWIRE_FUZZ_ONLY", names.join(" ")).env("EVERYWIRE_FUZZ_REPORT", &found);
        let done = shell::run(&mut cargo, &logs().join(format!("fuzz-{number}.log")), LIMIT)?;
        if !done.ok() {
            broken.push(done.tail(30));
        }
    }
    let ends = ends(&std::fs::read_to_string(&found).unwrap_or_default());
    let seen = ends.values().any(|end| end.1.is_some());
    let none = ends.is_empty();
    for (name, (inputs, failure)) in ends {
        let failure = failure.map(|input| format!("seed {seed}, input {input}"));
        each(Row { name, seconds: SECONDS, figures: inputs, failure });
    }
    match broken.first() {
        Some(log) if !seen => Err(format!("cargo test failed:\n{log}")),
        _ if none => Err("no fuzz target ran".into()),
        _ => Ok(()),
    }
}

/// By target: how many inputs it had, and the one that it failed on. Lines are `NAME ok INPUTS` and `NAME failed HEX`.
fn ends(text: &str) -> BTreeMap<String, (String, Option<String>)> {
    let mut ends = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, end, value] = words[..] else { continue };
        let value = value.to_owned();
        let end = if end == "ok" { (value, None) } else { (String::new(), Some(value)) };
        ends.insert(name.to_owned(), end);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_target() {
        let ends = ends("bth ok 17\ngrh failed 00ff\n");
        assert_eq!(ends["bth"], ("17".into(), None));
        assert_eq!(ends["grh"], (String::new(), Some("00ff".into())));
    }
}
