//! The day's report: one section an item, one table line for each thing that was run, with its commit and its figures.
//!
//! The file is read back before it is written, so that a later, partial run replaces its own lines and leaves the others.
//! It names the machine's class and the versions of what took part, never the machine.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

/// One thing that was run.
pub struct Row {
    pub name: String,
    pub seconds: u64,
    pub figures: String,
    pub failure: Option<String>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.failure.as_deref().map_or("ok".to_owned(), |why| format!("FAILED: {why}"));
        write!(f, "{:34} {} ({} s) {}", self.name, end, self.seconds, self.figures)
    }
}

/// Most characters of a cell.
const CELL: usize = 240;
const COLUMNS: usize = 5;

struct Section {
    name: &'static str,
    about: &'static str,
    heads: [&'static str; 2],
    rows: Vec<[String; COLUMNS]>,
}

/// The report in memory.
pub struct Page {
    path: PathBuf,
    date: String,
    /// What is being run: the commit when the run began.
    commit: String,
    machine: String,
    sections: Vec<Section>,
}

/// The date, UTC, as in the report's name.
pub fn today() -> String {
    say("date", &["-u", "+%F"])
}

impl Page {
    /// Today's report, as it stands, with these sections: name, what it is, heads of its first and fourth column.
    pub fn open(sections: &[(&'static str, &'static str, [&'static str; 2])]) -> Result<Page, String> {
        let date = today();
        let path = shell::root().join(format!("docs/soak/{date}.md"));
        let section = |&(name, about, heads)| Section { name, about, heads, rows: Vec::new() };
        let sections = sections.iter().map(section).collect();
        let mut page = Page { path, date, commit: commit(), machine: machine(), sections };
        page.read()?;
        Ok(page)
    }

    /// Takes over what the file says; another run may have added to it.
    fn read(&mut self) -> Result<(), String> {
        if self.path.exists() {
            let text =
                std::fs::read_to_string(&self.path).map_err(|e| format!("{}: {e}", self.path.display()))?;
            for section in &mut self.sections {
                section.rows = rows(&text, section.name);
            }
        }
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a line into a section, in the place of the one of that name, and writes the file.
    pub fn add(&mut self, section: &str, row: Row) -> Result<(), String> {
        self.read()?;
        let end = row.failure.map_or("passed".to_owned(), |why| format!("FAILED: {why}"));
        let cells = [row.name, self.commit.clone(), row.seconds.to_string(), row.figures, end]
            .map(|cell| cell_of(&cell));
        let Some(section) = self.sections.iter_mut().find(|s| s.name == section) else {
            return Err(format!("the report has no section {section}"));
        };
        match section.rows.iter_mut().find(|old| old[0] == cells[0]) {
            Some(old) => *old = cells,
            None => section.rows.push(cells),
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&self.path, self.text()));
        written.map_err(|e| format!("{}: {e}", self.path.display()))
    }

    fn text(&self) -> String {
        let mut page = format!("# Soak of {}\n\n{}\n", self.date, self.machine);
        for Section { name, about, heads, rows } in &self.sections {
            let _ = write!(page, "\n## {name}\n\n{about}\n\n");
            if rows.is_empty() {
                let _ = writeln!(page, "Not run: `cargo xtask soak {name}`.");
                continue;
            }
            let _ = writeln!(page, "| {} | commit | seconds | {} | result |", heads[0], heads[1]);
            let _ = writeln!(page, "|---|---|---|---|---|");
            for row in rows {
                let _ = writeln!(page, "| {} |", row.join(" | "));
            }
            let passed = rows.iter().filter(|row| row[4] == "passed").count();
            let _ = write!(page, "\n{passed} passed, {} failed.\n", rows.len() - passed);
        }
        page
    }
}

/// The table lines of a section in a report's text.
fn rows(text: &str, section: &str) -> Vec<[String; COLUMNS]> {
    let heading = format!("## {section}");
    let lines = text.lines().skip_while(|l| *l != heading).skip(1).take_while(|l| !l.starts_with("## "));
    let table = lines.filter(|l| l.starts_with("| ")).skip(1);
    table
        .filter_map(|line| {
            let inner = line.strip_prefix("| ")?.strip_suffix(" |")?;
            let cells: Vec<String> = inner.split(" | ").map(str::to_owned).collect();
            cells.try_into().ok()
        })
        .collect()
}

/// On one line, without what would end the cell.
fn cell_of(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "/").chars().take(CELL).collect()
}

/// What the machine is like, and the versions of what takes part.
fn machine() -> String {
    let field = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kib: u64 = field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    let version = |program: &str| {
        let text = say(program, &["--version"]);
        let words = text.split_whitespace().collect::<Vec<_>>();
        let end =
            words.iter().position(|w| w.starts_with(|c: char| c.is_ascii_digit())).map_or(0, |at| at + 1);
        words[..end].join(" ")
    };
    let release = say("uname", &["-r"]);
    let parts = [
        format!("{cores} cores ({})", field("/proc/cpuinfo", "model name")),
        format!("{} GiB", kib >> 20),
        format!("Linux {}", release.split('-').next().unwrap_or_default()),
        format!("guests Linux {}", guest_kernel()),
        version("rustc"),
        version("qemu-system-x86_64"),
        version("tshark"),
    ];
    parts.join("; ") + "."
}

/// The kernel that apt gives a guest (interop/build-guest.sh).
fn guest_kernel() -> String {
    let depends = say("apt-cache", &["depends", "linux-image-amd64"]);
    let name = depends.lines().find_map(|l| l.split_once("Depends: linux-image-"));
    name.map_or_else(|| "unknown".into(), |(_, version)| version.trim().to_owned())
}

/// The commit, with a + if the tree has changes beyond the reports.
fn commit() -> String {
    let changed = say("git", &["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/soak"]);
    say("git", &["rev-parse", "--short", "HEAD"]) + if changed.is_empty() { "" } else { "+" }
}

/// What a command prints; empty if it cannot be had.
fn say(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).current_dir(shell::root()).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let row = |name: &str| [name, "abc", "3", "17", "passed"].map(str::to_owned);
        let section = |name, rows| Section { name, about: "About.", heads: ["case", "packets"], rows };
        let sections = vec![section("a", vec![row("x"), row("y")]), section("b", vec![])];
        let page = Page {
            path: PathBuf::new(),
            date: "2026-01-01".into(),
            commit: "abc".into(),
            machine: String::new(),
            sections,
        };
        let text = page.text();
        assert_eq!(rows(&text, "a"), [row("x"), row("y")]);
        assert!(rows(&text, "b").is_empty());
        assert!(text.contains("2 passed, 0 failed."));
        assert_eq!(cell_of("a | b\nc"), "a / b c");
    }
}
