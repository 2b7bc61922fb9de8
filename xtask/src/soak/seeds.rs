//! The items `seeds` and `wires`: the simulator's main workload (crates/sim/examples/soak.rs), a thousand seeds a line, as many
//! side by side as there are processors.

use std::time::{Duration, Instant};

use super::report::Row;
use crate::shell;

const SEEDS_A_LINE: u64 = 1000;
/// Lines over RoCE v2, and over each other wire.
const LINES: u64 = 10;
const LINES_OF_A_WIRE: u64 = 1;
/// The other wires, as the workload has them: iWARP as it is between any two, and with what RFC 7306 adds.
const OTHER_WIRES: [&str; 4] = ["rocev1", "ib", "iwarp", "iwarp7306"];
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

pub fn roce_v2(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let lines = (0..LINES).map(|line| (span(line), ("rocev2", line))).collect();
    run(super::chosen(names, lines)?, each)
}

pub fn other_wires(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let of_wire =
        |wire| (0..LINES_OF_A_WIRE).map(move |line| (format!("{wire} {}", span(line)), (wire, line)));
    run(super::chosen(names, OTHER_WIRES.into_iter().flat_map(of_wire).collect())?, each)
}

/// The seeds of a line.
fn span(line: u64) -> String {
    let from = line * SEEDS_A_LINE;
    format!("{from} to {}", from + SEEDS_A_LINE - 1)
}

fn run(lines: Vec<(String, (&str, u64))>, each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    for (name, (wire, line)) in lines {
        let started = Instant::now();
        let from = line * SEEDS_A_LINE;
        let mut soak = shell::cargo();
        soak.args(["run", "--quiet", "--profile", "soak", "--package", "everywire-sim", "--example", "soak"]);
        soak.args(["--", "--from", &from.to_string(), "--count", &SEEDS_A_LINE.to_string(), "--jobs", &jobs]);
        soak.args(["--wire", wire]);
        let log = super::logs().join(format!("seeds-{wire}-{from}.log"));
        let done = shell::run(&mut soak, &log, LIMIT)?;
        let figures = done.output.lines().rev().find(|l| l.contains(" work requests, ")).unwrap_or_default();
        let figures = figures.split(" in ").next().unwrap_or_default().to_owned();
        let failure = (!done.ok()).then(|| {
            let first = done.output.lines().find(|l| l.starts_with("seed ") || l.contains("panicked"));
            first.map_or_else(|| done.tail(1).trim().to_owned(), str::to_owned)
        });
        each(Row { name, seconds: started.elapsed().as_secs(), figures, failure });
    }
    Ok(())
}
