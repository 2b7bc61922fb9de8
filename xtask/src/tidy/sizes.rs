//! Sizes by a ratchet. A file over 400 lines (its tests not counted) or a function over 100 must be on file in
//! xtask/ratchet.toml with its size, and may only shrink; over 800 lines no file passes at all.
//!
//! `tidy --write` records today's sizes: what grew shows in the diff, for the reviewer to refuse.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::source::is_test_path;
use super::{Tracked, lexer};

const FILE_SOFT: usize = 400;
const FILE_HARD: usize = 800;
const FUNCTION: usize = 100;
const RATCHET: &str = "xtask/ratchet.toml";

#[derive(Default, Deserialize, Serialize)]
struct Ratchet {
    #[serde(default)]
    files: BTreeMap<String, usize>,
    #[serde(default)]
    functions: BTreeMap<String, usize>,
}

/// Findings about sizes; with `write`, records today's sizes first.
pub fn check(root: &Path, files: &[Tracked], write: bool) -> Result<Vec<String>, String> {
    let today = measure(files);
    let path = root.join(RATCHET);
    if write {
        let text = toml::to_string(&today).map_err(|e| e.to_string())?;
        let head = "# Files over 400 lines and functions over 100, which may only shrink: `cargo xtask tidy --write`.\n";
        std::fs::write(&path, format!("{head}{text}")).map_err(|e| format!("{RATCHET}: {e}"))?;
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let known: Ratchet = toml::from_str(&text).map_err(|e| format!("{RATCHET}: {e}"))?;
    Ok(compare(&today, &known))
}

fn measure(files: &[Tracked]) -> Ratchet {
    let mut today = Ratchet::default();
    for file in files.iter().filter(|f| f.path.ends_with(".rs") && !is_test_path(&f.path)) {
        let blanked = lexer::blank(&file.text);
        let tests = lexer::test_spans(&blanked);
        let in_tests: usize = tests.iter().map(|s| file.text[s.clone()].lines().count()).sum();
        let lines = file.text.lines().count() - in_tests;
        if lines > FILE_SOFT {
            today.files.insert(file.path.clone(), lines);
        }
        for function in lexer::functions(&blanked) {
            let lines = file.text[function.span.clone()].lines().count();
            if lines > FUNCTION && !tests.iter().any(|s| s.contains(&function.span.start)) {
                today.functions.insert(format!("{}::{}", file.path, function.name), lines);
            }
        }
    }
    today
}

fn compare(today: &Ratchet, known: &Ratchet) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, lines) in &today.files {
        match known.files.get(path) {
            _ if *lines > FILE_HARD => {
                findings.push(format!("{path}: {lines} lines without tests; the limit is {FILE_HARD}"))
            }
            Some(was) if lines > was => {
                findings.push(format!("{path}: grew from {was} to {lines} lines; split it"))
            }
            Some(_) => {}
            None => findings
                .push(format!("{path}: {lines} lines without tests, over {FILE_SOFT} and not in {RATCHET}")),
        }
    }
    for (name, lines) in &today.functions {
        match known.functions.get(name) {
            Some(was) if lines <= was => {}
            _ => findings.push(format!("{name}: {lines} lines; a function has at most {FUNCTION}")),
        }
    }
    let gone = known.files.keys().filter(|k| !today.files.contains_key(*k));
    let gone = gone.chain(known.functions.keys().filter(|k| !today.functions.contains_key(*k)));
    findings.extend(gone.map(|k| format!("{RATCHET}: {k} is small now; take it off the list")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: String) -> Tracked {
        Tracked { path: path.into(), text }
    }

    #[test]
    fn tests_do_not_count_and_growth_is_found() {
        let body = "// x\n".repeat(390);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// y\n".repeat(500));
        assert!(measure(&[file("a.rs", body.clone() + &tests)]).files.is_empty());
        let today = measure(&[file("a.rs", "// x\n".repeat(500))]);
        assert_eq!(today.files["a.rs"], 500);
        assert_eq!(compare(&today, &Ratchet::default()).len(), 1);
        let mut known = Ratchet::default();
        known.files.insert("a.rs".into(), 500);
        assert!(compare(&today, &known).is_empty());
        known.files.insert("a.rs".into(), 499);
        assert_eq!(compare(&today, &known).len(), 1);
        let huge = measure(&[file("a.rs", "// x\n".repeat(801))]);
        known.files.insert("a.rs".into(), 801);
        assert_eq!(compare(&huge, &known).len(), 1);
    }

    #[test]
    fn long_functions_are_found() {
        let text = format!("fn long() {{\n{}}}\n", "    x();\n".repeat(100));
        assert_eq!(measure(&[file("a.rs", text)]).functions["a.rs::long"], 102);
    }
}
