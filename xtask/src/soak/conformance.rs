//! The item `conformance`: the suite for verbs over every wire in simulation, with and without loss, and on sockets with every
//! driver. A line is one of the tests that hold a matrix; the whole matrix, with what is left out and why, is in its log. Every
//! combination of flags is run, where CI takes one of eight on sockets.

use std::time::{Duration, Instant};

use super::report::Row;
use crate::shell;

/// A line: its name, and the package and test.
const LINES: [(&str, &str, &str); 4] = [
    ("simulation", "everywire-sim", "every_wire"),
    ("simulation-loss", "everywire-sim", "every_wire_with_loss"),
    ("sockets", "everywire-net", "every_wire_with_every_driver"),
    ("raw-ethernet", "everywire-net", "every_raw_wire"),
];
const LIMIT: Duration = Duration::from_secs(60 * 60);

pub fn run(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let lines = LINES.map(|(name, package, test)| (name.to_owned(), (package, test)));
    for (name, (package, test)) in super::chosen(names, lines.into())? {
        let started = Instant::now();
        let mut cargo = shell::cargo();
        cargo.args(["test", "--quiet", "--profile", "soak", "--package", package, "--test", "conformance"]);
        cargo.args(["--", "--exact", test, "--nocapture"]).env("EVERYWIRE_CONFORM_THIN", "1");
        let done = shell::run(&mut cargo, &super::logs().join(format!("conformance-{name}.log")), LIMIT)?;
        let figures = passed(&done.output);
        let failure = if !done.ok() {
            let first = done.output.lines().find(|l| l.contains(" cases failed:") || l.contains("panicked"));
            Some(first.map_or_else(|| done.tail(1).trim().to_owned(), str::to_owned))
        } else if figures.is_empty() {
            let why = done.output.lines().find(|l| l.starts_with("skipped: "));
            Some(why.unwrap_or("no matrix was printed").to_owned())
        } else {
            None
        };
        each(Row { name, seconds: started.elapsed().as_secs(), figures, failure });
    }
    Ok(())
}

/// Cases passed by run, of the matrix that a test prints: runs across, groups of cases down, cells two spaces apart that
/// begin with the number passed.
fn passed(output: &str) -> String {
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let mut lines = output.lines().skip_while(|l| !l.starts_with("   "));
    let runs = cells(lines.next().unwrap_or_default());
    let mut counts = vec![0usize; runs.len()];
    for line in lines {
        let row = cells(line);
        if row.len() != runs.len() + 1 {
            break;
        }
        for (count, cell) in counts.iter_mut().zip(&row[1..]) {
            let digits: String = cell.chars().take_while(char::is_ascii_digit).collect();
            *count += digits.parse::<usize>().unwrap_or(0);
        }
    }
    let each: Vec<String> = runs.iter().zip(counts).map(|(run, count)| format!("{run} {count}")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_added_up() {
        let text = "\nrunning 1 test\n               RoCE v2 Thread  iWARP Task                \n\
                    attributes     3               3                         \n\
                    UC operations  20, 1 FAILED    -, 40 left out [1]        \n[1] iWARP has no UC\n";
        assert_eq!(passed(text), "RoCE v2 Thread 23, iWARP Task 3");
        assert_eq!(passed("test result: ok"), "");
    }
}
