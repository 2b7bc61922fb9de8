//! `cargo xtask soak`: the long matrices, and a dated report of them under docs/soak/.
//!
//! The report says what ran, on which kernel and processor, how long each case took, and how it ended.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::interop::{self, Report};
use crate::shell;

/// Seeds of the simulation's main workload, and how long they may take.
const SEEDS: &str = "10000";
const SEEDS_LIMIT: Duration = Duration::from_secs(6 * 60 * 60);

/// `cargo xtask soak [NAME…]`: the simulation and every interop case whose name begins with a NAME; all for none.
pub fn main(args: &[String]) -> Result<(), String> {
    let cases: Vec<String> = args.iter().filter(|a| *a != "simulation").cloned().collect();
    let mut reports = Vec::new();
    if args.is_empty() || cases.len() < args.len() {
        reports.push(simulation()?);
    }
    if args.is_empty() || !cases.is_empty() {
        if let Some(why) = interop::cannot() {
            return Err(why);
        }
        interop::build_program()?;
        reports.extend(interop::run(&interop::select(&cases)?)?);
    }
    let failed = reports.iter().filter(|r| r.failure.is_some()).count();
    let end = format!("{} passed, {failed} failed, 0 skipped", reports.len() - failed);
    let path = write(&reports, &end)?;
    println!("report: {}\n{end}", path.display());
    if failed == 0 { Ok(()) } else { Err("the soak failed".into()) }
}

/// The main workload under faults and kills, seed after seed.
fn simulation() -> Result<Report, String> {
    let started = Instant::now();
    let run = ["run", "--quiet", "--release", "--package", "everywire-sim", "--example", "soak", "--"];
    let log = shell::target().join("soak/simulation.log");
    let done = shell::run(shell::cargo().args(run).args(["--count", SEEDS]), &log, SEEDS_LIMIT)?;
    print!("{}", done.tail(5));
    let failure = (!done.ok()).then(|| done.tail(1).trim().to_owned());
    Ok(Report { name: format!("simulation, {SEEDS} seeds"), seconds: started.elapsed().as_secs(), failure })
}

fn write(reports: &[Report], end: &str) -> Result<PathBuf, String> {
    let date = say("date", &["-u", "+%F %H:%M UTC"]);
    let mut page = format!("# Soak of {date}\n\nCommit {}, host {}.\n\n", commit(), host());
    page += "| case | seconds | end |\n|---|---|---|\n";
    for report in reports {
        let end = report.failure.as_deref().map_or("passed", |why| why.lines().next().unwrap_or("failed"));
        let _ = writeln!(page, "| {} | {} | {end} |", report.name, report.seconds);
    }
    let _ = writeln!(page, "\n{end}");
    let folder = shell::root().join("docs/soak");
    let path = folder.join(format!("{}.md", say("date", &["-u", "+%F-%H%M"])));
    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, page)).map_err(|e| e.to_string())?;
    Ok(path)
}

fn commit() -> String {
    say("git", &["rev-parse", "--short", "HEAD"])
}

fn host() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("Linux {}, {cores} cores", say("uname", &["-r"]))
}

/// A command's one line of output; empty if it cannot be had.
fn say(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).current_dir(shell::root()).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}
