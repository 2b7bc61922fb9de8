//! The item `speed`: `everywire perf` with its baseline in the same run, against the goals of docs/performance.md; the memory
//! of 10,000 idle connections; and what `everywire demo` measures over every wire.
//!
//! A machine is noisy: each is run three times, all values are shown, and the best of the product counts against the best of
//! the baseline. CI runs the same shorter, and only a fall to half of a goal fails it.

use std::process::Command;
use std::time::{Duration, Instant};

use super::report::Row;
use super::storage;
use crate::interop;
use crate::shell;
use crate::test::{Outcome, Tally};

/// What a ratio of product to baseline must be.
#[derive(Clone, Copy)]
enum Goal {
    /// Rates.
    AtLeast(f64),
    /// Times.
    AtMost(f64),
}

impl Goal {
    fn met(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(goal) => value >= goal,
            Goal::AtMost(goal) => value <= goal,
        }
    }

    /// The better of two.
    fn better(self, a: f64, b: f64) -> f64 {
        match self {
            Goal::AtLeast(_) => a.max(b),
            Goal::AtMost(_) => a.min(b),
        }
    }

    /// Half as good.
    fn eased(self) -> Goal {
        match self {
            Goal::AtLeast(goal) => Goal::AtLeast(goal / 2.0),
            Goal::AtMost(goal) => Goal::AtMost(goal * 2.0),
        }
    }

    fn text(self) -> String {
        match self {
            Goal::AtLeast(goal) => format!("at least {goal}"),
            Goal::AtMost(goal) => format!("at most {goal}"),
        }
    }
}

/// A line with a ratio: its name, the arguments of `everywire perf`, the goal, and whether CI measures it.
type Ratio = (&'static str, &'static [&'static str], Goal, bool);

const RATIOS: [Ratio; 4] = [
    (
        "iwarp-write-1MiB",
        &["write", "--size", "1048576", "--baseline", "--device", "iwarp"],
        Goal::AtLeast(0.8),
        true,
    ),
    (
        "iwarp-ping-pong",
        &["send", "--latency", "--size", "64", "--baseline", "--device", "iwarp"],
        Goal::AtMost(1.4),
        true,
    ),
    ("rocev2-write-64KiB", &["write", "--baseline"], Goal::AtLeast(0.85), false),
    ("rocev2-ping-pong", &["send", "--latency", "--size", "64", "--baseline"], Goal::AtMost(1.3), false),
];
/// Measurements at least, and at most while a goal is missed.
const RUNS: (usize, usize) = (3, 3);
const RUNS_IN_CI: (usize, usize) = (1, 9);
/// Idle connections, of each wire, and in CI.
const CONNECTIONS: &str = "10000";
const CONNECTIONS_IN_CI: &str = "1000";
const LIMIT: Duration = Duration::from_secs(10 * 60);

pub fn run(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let ratios = RATIOS.iter().map(|line| (line.0.to_owned(), Some(line)));
    let others = ["idle-connections", "every-wire"].map(|name| (name.to_owned(), None));
    let lines = super::chosen(names, ratios.chain(others).collect())?;
    interop::build_program()?;
    for (name, ratio) in lines {
        let started = Instant::now();
        let outcome = match ratio {
            Some(&(_, args, goal, _)) => best_of(args, goal, "2", RUNS),
            None if name == "every-wire" => every_wire(),
            None => idle(CONNECTIONS),
        };
        let (figures, failure) = outcome.unwrap_or_else(|why| (String::new(), Some(why)));
        each(Row { name, seconds: started.elapsed().as_secs(), figures, failure });
    }
    Ok(())
}

/// What `cargo xtask test` measures.
pub fn sample() -> Result<Outcome, String> {
    let mut tally = Tally::default();
    let mut judge = |name: &str, outcome: Result<(String, Option<String>), String>| {
        let (figures, failure) = outcome.unwrap_or_else(|why| (String::new(), Some(why)));
        println!("    {name:20} {figures} {}", failure.as_deref().unwrap_or("ok"));
        tally.add(Tally::one(failure.is_none()));
    };
    for (name, args, goal, _) in RATIOS.iter().filter(|line| line.3) {
        judge(name, best_of(args, goal.eased(), "0.5", RUNS_IN_CI));
    }
    judge("idle-connections", idle(CONNECTIONS_IN_CI));
    judge("fabric-hops", hops());
    let (storage, left_out) = storage::sample();
    for (name, outcome) in storage {
        judge(name, outcome);
    }
    for line in &left_out {
        println!("    skipped {line}");
        tally.skipped += 1;
        tally.failed += crate::test::beside_the_list(line);
    }
    Ok(Outcome::Counted(tally))
}

/// The fabric's hops a second, for two seconds, against half of its goal; the whole is the item `fabric`.
fn hops() -> Result<(String, Option<String>), String> {
    let mut cargo = shell::cargo();
    cargo.args(["run", "--quiet", "--release", "--package", "everywire-fabric", "--example", "hops"]);
    let done =
        shell::run(cargo.args(["--", "2", "--at-least", "1"]), &super::logs().join("hops.log"), LIMIT)?;
    let figures = done.output.lines().find(|l| l.contains(" million hops/s")).unwrap_or_default();
    Ok((figures.to_owned(), (!done.ok()).then(|| done.tail(1).trim().to_owned())))
}

/// The program's standard output.
pub(super) fn everywire(args: &[&str]) -> Result<String, String> {
    let program = shell::target().join("release/everywire");
    let log = super::logs().join(format!("speed-{}.log", args.join("-").replace('/', "_")));
    let done = shell::run(Command::new(program).args(args), &log, LIMIT)?;
    if done.ok() {
        Ok(done.output)
    } else {
        Err(format!("everywire {}: {}", args.join(" "), done.tail(3).trim()))
    }
}

/// A program's one JSON object.
pub(super) fn json(output: &str) -> Result<serde_json::Value, String> {
    let start = output.find('{').unwrap_or(0);
    serde_json::from_str(&output[start..]).map_err(|e| format!("{e}: {output}"))
}

/// Measures for so many seconds, `runs.0` times, and up to `runs.1` times until the goal is met: the best value of the product
/// against the best of the baseline, since a disturbed baseline would make any product look well. Figures and failure.
fn best_of(
    args: &[&str],
    goal: Goal,
    seconds: &str,
    runs: (usize, usize),
) -> Result<(String, Option<String>), String> {
    let (key, unit) = match goal {
        Goal::AtLeast(_) => ("gbit_per_s", "Gbit/s"),
        Goal::AtMost(_) => ("p50_us", "us"),
    };
    let (mut values, mut best, mut met) = (Vec::new(), None, false);
    while values.len() < runs.0 || (values.len() < runs.1 && !met) {
        let value = json(&everywire(&[&["perf"], args, &["--seconds", seconds, "--json"]].concat())?)?;
        let of =
            |value: &serde_json::Value| value[key].as_f64().ok_or_else(|| format!("no {key} in {value}"));
        let (ours, raw) = (of(&value)?, of(&value["baseline"])?);
        values.push(format!("{:.2} ({ours:.1}/{raw:.1})", ours / raw));
        let (a, b) = best.map_or((ours, raw), |(a, b)| (goal.better(a, ours), goal.better(b, raw)));
        (best, met) = (Some((a, b)), goal.met(a / b));
    }
    let of_best = best.map_or(0.0, |(a, b)| a / b);
    let figures = format!("{of_best:.2}, goal {}; {} {unit}", goal.text(), values.join(", "));
    Ok((figures, (!met).then(|| format!("misses {}", goal.text()))))
}

/// Memory of idle connections on one thread, over iWARP and RC.
fn idle(connections: &str) -> Result<(String, Option<String>), String> {
    let value = json(&everywire(&["perf", "--connections", connections, "--json"])?)?;
    let rows: Vec<String> = value["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            format!("{} {} bytes each", row["wire"].as_str().unwrap_or_default(), row["bytes_per_connection"])
        })
        .collect();
    let failure = (rows.len() != 2).then(|| format!("not two wires in {value}"));
    Ok((format!("{connections}: {}", rows.join(", ")), failure))
}

/// GB/s of RC WRITE as the demo measures it; four wires, and every row of its table compared byte by byte.
fn every_wire() -> Result<(String, Option<String>), String> {
    let output = everywire(&["demo"])?;
    let rows: Vec<String> = output
        .lines()
        .filter(|line| line.contains("RC WRITE"))
        .filter_map(|line| {
            Some(format!("{} {}", line.split(' ').next()?, line.split_whitespace().rev().nth(3)?))
        })
        .collect();
    let failure =
        (rows.len() != 4).then(|| format!("{} of 4 wires: {}", rows.len(), output.replace('\n', "; ")));
    Ok((format!("RC WRITE 64 KiB, GB/s: {}", rows.join(", ")), failure))
}
