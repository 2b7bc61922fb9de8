//! `cargo xtask mutants`: breaks one check at a time in a copy of the tree, and wants the simulator, or a test, to notice.
//!
//! The list is crates/sim/mutants.toml. Each mutant is built and runs the workload's seeds until one fails or the seeds are through, or
//! the test that the list names; one that survives is an error, for then nothing would notice the same mistake made in earnest. The copy
//! lives under the target folder, and its build is kept from one mutant to the next.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::shell;

/// Seeds that a mutant must survive to count as not noticed.
const SEEDS: &str = "1000";
/// A mutant may also make the simulation hang; then this ends it.
const RUN_LIMIT: Duration = Duration::from_secs(900);
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// What of the workspace the simulator's build reads.
const TREE: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", "crates", "fuzz", "xtask"];

#[derive(Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    file: String,
    find: String,
    replace: String,
    why: String,
    /// The wire that the workload runs over; RoCE v2 if there is none.
    wire: Option<String>,
    /// What is run instead of the workload: the words behind `cargo test`.
    test: Option<Vec<String>>,
}

/// What became of a mutant.
pub struct End<'a> {
    pub name: &'a str,
    pub why: &'a str,
    pub seconds: u64,
    /// How it was noticed; `None` if it was not.
    pub noticed: Option<String>,
}

/// `cargo xtask mutants [NAME…]`: all of them, or those whose names begin with a NAME.
pub fn main(args: &[String]) -> Result<(), String> {
    let (mut all, mut survivors) = (0, Vec::new());
    run(args, &mut |end| {
        all += 1;
        match end.noticed {
            Some(how) => println!("caught    {:<22} {:>4} s  {how}", end.name, end.seconds),
            None => {
                println!("SURVIVED  {:<22} {:>4} s  {}", end.name, end.seconds, end.why);
                survivors.push(end.name.to_owned());
            }
        }
    })?;
    println!("{} of {all} caught", all - survivors.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("nothing noticed: {}", survivors.join(", "))) }
}

/// Tries the mutants named, or all, and hands over what became of each.
pub fn run(names: &[String], each: &mut dyn FnMut(End<'_>)) -> Result<(), String> {
    let mutants = select(names)?;
    let scratch = shell::target().join("mutants");
    let tree = scratch.join("tree");
    copy_tree(&tree)?;
    for mutant in &mutants {
        let started = Instant::now();
        let noticed = try_one(mutant, &tree, &scratch)?;
        let seconds = started.elapsed().as_secs();
        each(End { name: &mutant.name, why: &mutant.why, seconds, noticed });
    }
    Ok(())
}

fn select(names: &[String]) -> Result<Vec<Mutant>, String> {
    let path = shell::root().join("crates/sim/mutants.toml");
    let list: List = toml::from_str(&read(&path)?).map_err(|e| format!("{}: {e}", path.display()))?;
    if let Some(unknown) = names.iter().find(|name| list.mutant.iter().all(|m| !m.name.starts_with(*name))) {
        return Err(format!("{} has no mutant {unknown:?}", path.display()));
    }
    Ok(list
        .mutant
        .into_iter()
        .filter(|m| names.is_empty() || names.iter().any(|n| m.name.starts_with(n)))
        .collect())
}

/// How the mutant was noticed; `None` if it was not.
fn try_one(mutant: &Mutant, tree: &Path, scratch: &Path) -> Result<Option<String>, String> {
    let path = tree.join(&mutant.file);
    let original = read(&path)?;
    let mutated = apply(mutant, &original)?;
    write(&path, &mutated)?;
    let verdict = build_and_run(mutant, tree, scratch);
    write(&path, &original)?;
    verdict
}

fn apply(mutant: &Mutant, text: &str) -> Result<String, String> {
    match text.matches(&mutant.find).count() {
        1 => Ok(text.replacen(&mutant.find, &mutant.replace, 1)),
        n => Err(format!("mutant {}: its text occurs {n} times in {}, not once", mutant.name, mutant.file)),
    }
}

fn build_and_run(mutant: &Mutant, tree: &Path, scratch: &Path) -> Result<Option<String>, String> {
    let target = scratch.join("build");
    let cargo = |command: &str| {
        let mut cargo = shell::cargo();
        cargo.args([command, "--profile", "soak"]).current_dir(tree);
        cargo.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cap-lints=allow");
        cargo
    };
    let (mut build, mut run);
    if let Some(test) = &mutant.test {
        (build, run) = (cargo("test"), cargo("test"));
        build.arg("--no-run").args(test);
        run.args(test);
    } else {
        (build, run) = (cargo("build"), Command::new(target.join("soak/examples/soak")));
        build.args(["--package", "everywire-sim", "--example", "soak"]);
        run.args(["--any", "--count", SEEDS, "--jobs", "2"]);
        run.args(mutant.wire.iter().flat_map(|wire| ["--wire", wire]));
    }
    let log = scratch.join(format!("{}.log", mutant.name));
    let built = shell::run(&mut build, &log, BUILD_LIMIT)?;
    if !built.ok() {
        return Err(format!("mutant {} does not build:\n{}", mutant.name, built.tail(20)));
    }
    let ran = shell::run(&mut run, &log, RUN_LIMIT)?;
    match ran.code {
        Some(0) if mutant.test.is_some() && !any_test_passed(&ran.output) => {
            Err(format!("mutant {}: no test ran:\n{}", mutant.name, ran.tail(20)))
        }
        Some(0) => Ok(None),
        Some(_) => Ok(Some(first_word(&ran.output, mutant.test.is_some()))),
        None => Ok(Some(format!("it hung: not through after {} s", RUN_LIMIT.as_secs()))),
    }
}

/// Whether a word of the list chose a test at all.
fn any_test_passed(output: &str) -> bool {
    output.lines().any(|l| l.starts_with("test result: ok. ") && !l.contains("ok. 0 passed"))
}

/// What an output says first of what was noticed: a seed, or the name of a test.
fn first_word(output: &str, of_test: bool) -> String {
    let mut lines = output.lines();
    let first = match of_test {
        true => lines.find(|line| line.ends_with(" FAILED")),
        false => lines.find(|line| line.contains("seed") || line.contains("panicked")),
    };
    first.unwrap_or("failed").chars().take(140).collect()
}

/// Brings the copy up to date. Files that are the same are left alone, so that they are not built again.
fn copy_tree(to: &Path) -> Result<(), String> {
    let root = shell::root();
    let mut wanted = Vec::new();
    for name in TREE {
        list(&root.join(name), &mut wanted)?;
    }
    for from in &wanted {
        let inside = from.strip_prefix(&root).map_err(|e| e.to_string())?;
        let copy = to.join(inside);
        let bytes = fs::read(from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        if fs::read(&copy).is_ok_and(|old| old == bytes) {
            continue;
        }
        make_folder(copy.parent().unwrap_or(to))?;
        fs::write(&copy, bytes).map_err(|e| format!("cannot write {}: {e}", copy.display()))?;
    }
    // A file that the workspace no longer has must not be in the copy either.
    let mut present = Vec::new();
    list(to, &mut present)?;
    for copy in present {
        let inside = copy.strip_prefix(to).map_err(|e| e.to_string())?;
        if !root.join(inside).exists() {
            fs::remove_file(&copy).map_err(|e| format!("cannot remove {}: {e}", copy.display()))?;
        }
    }
    Ok(())
}

/// Every file under a path.
fn list(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    if path.is_file() {
        files.push(path.to_path_buf());
        return Ok(());
    }
    if !path.is_dir() {
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    for entry in entries {
        let entry = entry.map_err(|e| e.to_string())?;
        if entry.file_name() != "target" || path.ends_with("src") {
            list(&entry.path(), files)?;
        }
    }
    Ok(())
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|e| format!("cannot make {}: {e}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies_and_changes_something() {
        let all = select(&[]).unwrap();
        assert!(all.len() >= 20);
        for mutant in &all {
            let text = read(&shell::root().join(&mutant.file)).unwrap();
            assert_ne!(apply(mutant, &text).unwrap(), text, "{}", mutant.name);
        }
        assert!(select(&["no such mutant".into()]).is_err());
    }

    #[test]
    fn a_test_that_is_not_there_notices_nothing() {
        let result =
            |passed| format!("\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured\n");
        assert!(any_test_passed(&(result(0) + &result(12))) && !any_test_passed(&result(0)));
    }
}
