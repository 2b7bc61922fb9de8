//! `cargo xtask soak`: the long matrices, and a dated report of them under docs/soak/.
//!
//! The report says what ran, on which kernel and processor, how long each case took, and how it ended.

use std::fmt::Write;
use std::process::Command;

use crate::{interop, shell};

/// `cargo xtask soak [NAME…]`: every case whose name begins with a NAME; all of them for none.
pub fn main(args: &[String]) -> Result<(), String> {
    if let Some(why) = interop::cannot() {
        return Err(why);
    }
    let built = shell::cargo().args(["build", "--release", "--package", "everywire-cli"]).status();
    if !built.is_ok_and(|s| s.success()) {
        return Err("the program does not build".into());
    }
    let reports = interop::run(&interop::select(args)?)?;
    let failed = reports.iter().filter(|r| r.failure.is_some()).count();
    let mut page = format!(
        "# Soak of {}\n\nCommit {}, host {}.\n\n",
        say("date", &["-u", "+%F %H:%M UTC"]),
        commit(),
        host()
    );
    page += "| case | seconds | end |\n|---|---|---|\n";
    for report in &reports {
        let end = report.failure.as_deref().map_or("passed", |why| why.lines().next().unwrap_or("failed"));
        let _ = writeln!(page, "| {} | {} | {end} |", report.name, report.seconds);
    }
    let _ = writeln!(page, "\n{} passed, {failed} failed, 0 skipped", reports.len() - failed);
    let folder = shell::root().join("docs/soak");
    let path = folder.join(format!("{}.md", say("date", &["-u", "+%F-%H%M"])));
    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, page)).map_err(|e| e.to_string())?;
    println!("{} passed, {failed} failed, 0 skipped; report: {}", reports.len() - failed, path.display());
    if failed == 0 { Ok(()) } else { Err("the soak failed".into()) }
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
