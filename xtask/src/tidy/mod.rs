//! `cargo xtask tidy`: the rules of the project that no compiler checks.
//!
//! `edges` holds the real dependency graph against ARCHITECTURE.md; `sizes` keeps files and functions small by a
//! ratchet; `source` forbids clocks and sockets in the sans-IO crates, `unsafe` outside its places, unfinished
//! marks and paths of one machine. `lexer` blanks comments and strings so that none of them matches prose.

mod edges;
mod lexer;
mod sizes;
mod source;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// A tracked file: its path from the root, and its text.
struct Tracked {
    path: String,
    text: String,
}

/// Runs every check; the error lists all findings.
pub fn main(args: &[String]) -> Result<(), String> {
    let write = args.iter().any(|a| a == "--write");
    if let Some(unknown) = args.iter().find(|a| *a != "--write") {
        return Err(format!("tidy knows --write, not {unknown:?}"));
    }
    let root = shell::root();
    let files = tracked(&root)?;
    let mut findings = edges::check(&root)?;
    findings.extend(source::check(&root, &files));
    findings.extend(sizes::check(&root, &files, write)?);
    if findings.is_empty() {
        println!("tidy: {} files, nothing to say", files.len());
        return Ok(());
    }
    findings.sort();
    Err(format!("{}\ntidy: {} findings", findings.join("\n"), findings.len()))
}

/// Every file git tracks or would track, as text; binary files are left out.
fn tracked(root: &Path) -> Result<Vec<Tracked>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cannot run git: {e}"))?;
    let paths = if listed.status.success() {
        String::from_utf8_lossy(&listed.stdout).lines().map(PathBuf::from).collect()
    } else {
        // An unpacked source archive has no repository: walk it instead.
        walk(root, Path::new(""))
    };
    let mut files: Vec<Tracked> = paths
        .into_iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(&path)).ok()?;
            Some(Tracked { path: path.to_string_lossy().into_owned(), text })
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

fn walk(root: &Path, below: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root.join(below)) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && entry.file_name() != "target" => found.extend(walk(root, &path)),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}
