//! What the tests of several crates share: how a test says that it left something out.
//!
//! libtest knows no "skipped": a test that finds its judge missing returns, and counts as passed. So it says so here, and
//! `cargo xtask test` takes it out of the passed and lists it with its reason. Only ever a dev-dependency.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file that takes a line, `test: reason`, for each thing left out.
pub const SKIPS: &str = "EVERYWIRE_SKIPS";

/// Says that the running test leaves something out, and why.
///
/// # Panics
/// If the file that [`SKIPS`] names can't be written: then nobody would hear of it.
pub fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let line = line(thread.name().unwrap_or("a test"), &reason.to_string());
    print!("skipped: {line}");
    let Some(path) = std::env::var_os(SKIPS) else { return };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// One line, whatever the reason holds. libtest names a test's thread after it.
fn line(test: &str, reason: &str) -> String {
    format!("{test}: {}\n", reason.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_reason() {
        assert_eq!(line("a::b", "no tshark\n  here"), "a::b: no tshark here\n");
    }
}
