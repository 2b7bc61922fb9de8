//! The real dependency graph, as `cargo metadata` reports it, against the table of allowed edges in
//! ARCHITECTURE.md, and the sans-IO crates against a list of crates that would give them a clock or a socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::source::SANS_IO;
use crate::shell;

/// Crates that bring a socket, a clock, a thread or the operating system's entropy.
const WORLDLY: &[&str] =
    &["tokio", "mio", "socket2", "rustix", "libc", "nix", "rand", "getrandom", "io-uring"];

/// The head of the table in ARCHITECTURE.md.
const TABLE: &str = "| crate | may use | its tests may also use |";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

/// What one row of the table allows.
#[derive(Default)]
struct Allowed {
    always: BTreeSet<String>,
    in_tests: BTreeSet<String>,
}

/// Every edge that the table does not allow, and every crate that the table does not know.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let page =
        std::fs::read_to_string(root.join("ARCHITECTURE.md")).map_err(|e| format!("ARCHITECTURE.md: {e}"))?;
    let table = parse(&page)?;
    let mut findings = Vec::new();
    for package in packages()? {
        let from = short(&package.name);
        let Some(allowed) = table.get(from) else {
            findings.push(format!("ARCHITECTURE.md: no row for the crate {from}"));
            continue;
        };
        for dependency in &package.dependencies {
            findings.extend(judge(from, allowed, dependency));
        }
    }
    Ok(findings)
}

fn judge(from: &str, allowed: &Allowed, dependency: &Dependency) -> Option<String> {
    let to = short(&dependency.name);
    let in_tests = dependency.kind.as_deref() == Some("dev");
    if dependency.path.is_none() {
        let bad = SANS_IO.contains(&from) && !in_tests && WORLDLY.contains(&to);
        return bad.then(|| format!("crates/{from}: a sans-IO crate must not depend on {to}"));
    }
    let fine = to == from || allowed.always.contains(to) || (in_tests && allowed.in_tests.contains(to));
    (!fine).then(|| format!("crates/{from}: the edge {from} -> {to} is not in ARCHITECTURE.md's table"))
}

fn packages() -> Result<Vec<Package>, String> {
    let out = shell::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let metadata: Metadata =
        serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(metadata.packages)
}

fn short(name: &str) -> &str {
    name.strip_prefix("everywire-").unwrap_or(name)
}

/// Rows such as ``| `sim` | verbs, fabric, wire | nothing |``.
fn parse(page: &str) -> Result<BTreeMap<String, Allowed>, String> {
    let start = page.find(TABLE).ok_or(format!("ARCHITECTURE.md has no table {TABLE:?}"))?;
    let mut table = BTreeMap::new();
    for row in page[start..].lines().skip(2).take_while(|l| l.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, always, in_tests] = cells[..] else {
            return Err(format!("ARCHITECTURE.md: odd row {row:?}"));
        };
        let names = |cell: &str| -> BTreeSet<String> {
            cell.split(',')
                .map(|n| n.trim().trim_matches('`').to_owned())
                .filter(|n| n != "nothing")
                .collect()
        };
        let allowed = Allowed { always: names(always), in_tests: names(in_tests) };
        table.insert(name.trim_matches('`').to_owned(), allowed);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str, kind: Option<&str>, ours: bool) -> Dependency {
        Dependency { name: name.into(), kind: kind.map(Into::into), path: ours.then(String::new) }
    }

    #[test]
    fn the_table_decides() {
        let page = format!("x\n\n{TABLE}\n|---|---|---|\n| `verbs` | transport, wire | sim |\n\ny\n");
        let table = parse(&page).unwrap();
        let row = &table["verbs"];
        assert!(judge("verbs", row, &dependency("everywire-wire", None, true)).is_none());
        assert!(judge("verbs", row, &dependency("everywire-sim", Some("dev"), true)).is_none());
        assert!(judge("verbs", row, &dependency("everywire-sim", None, true)).is_some());
        assert!(judge("verbs", row, &dependency("everywire-net", None, true)).is_some());
        assert!(judge("verbs", row, &dependency("tokio", None, false)).is_some());
        assert!(judge("verbs", row, &dependency("tokio", Some("dev"), false)).is_none());
    }
}
