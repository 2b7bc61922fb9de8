//! `cargo xtask interop`: the Linux kernel as peer. Builds the guest once (interop/build-guest.sh), boots it under
//! QEMU in a network namespace, and runs the cases of `scenarios` one after the other on the same guests. Then those of
//! `opensm`, which have no guest.
//!
//! Guests need root, for the namespace and for building the image; the program under test runs in that namespace on plain
//! UDP and TCP sockets. Logs, captures and kernel logs stay under target/interop/CASE.

mod bench;
mod capture;
mod guest;
mod hang;
mod iwarp;
mod kernel_log;
mod lab;
pub mod opensm;
mod scenarios;
mod wire;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::shell;
use crate::test::{Outcome, Tally};
use bench::Bench;
use scenarios::Case;
use wire::Wire;

/// A case's end, for the soak's report.
pub struct Report {
    pub name: String,
    pub seconds: u64,
    /// Packets captured and judged.
    pub packets: usize,
    pub failure: Option<String>,
}

/// Programs the lab needs, and the Debian package each is in.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("busybox", "busybox-static"),
    ("mke2fs", "e2fsprogs"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("ip", "iproute2"),
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
];

/// `cargo xtask interop [--list | NAME…]`: a NAME selects the case of that name, or all whose names begin with it.
pub fn main(args: &[String]) -> Result<(), String> {
    if args.iter().any(|a| a == "--list") {
        let guests = scenarios::all().into_iter().map(|c| (c.name, c.sample, c.about.to_owned()));
        let opensm = opensm::all().into_iter().map(|c| (c.name, c.sample, c.about));
        for (name, sample, about) in guests.chain(opensm) {
            println!("{name:34} {}{about}", if sample { "" } else { "(soak) " });
        }
        return Ok(());
    }
    let (mut passed, mut failed) = (0, 0);
    run_named(args, &mut |report| match report.failure {
        None => passed += 1,
        Some(_) => failed += 1,
    })?;
    println!("{passed} passed, {failed} failed, 0 skipped");
    if failed == 0 { Ok(()) } else { Err(format!("logs are in {}", folder().display())) }
}

/// Builds the program and runs the cases whose names begin with one of `names`; all of them for no names. Fails if this
/// machine cannot run one of them.
pub fn run_named(names: &[String], each: &mut dyn FnMut(&Report)) -> Result<(), String> {
    let (guests, opensm) = select(names)?;
    let cannot = (!guests.is_empty()).then(cannot).flatten();
    if let Some(why) = cannot.or_else(|| (!opensm.is_empty()).then(opensm::cannot).flatten()) {
        return Err(why);
    }
    build_program()?;
    if !guests.is_empty() {
        run(&guests, None, each)?;
    }
    opensm::run(&opensm, each);
    Ok(())
}

/// Builds the program under test.
pub fn build_program() -> Result<(), String> {
    let built = shell::cargo().args(["build", "--quiet", "--release", "--package", "everywire-cli"]).status();
    if built.is_ok_and(|s| s.success()) { Ok(()) } else { Err("the program does not build".into()) }
}

/// The cases that `cargo xtask test` runs.
pub fn sample() -> Result<Outcome, String> {
    if let Some(why) = cannot() {
        return Ok(Outcome::LeftOut(why));
    }
    let cases: Vec<Case> = scenarios::all().into_iter().filter(|c| c.sample).collect();
    let mut tally = Tally::default();
    run(&cases, Some(capture::SAMPLE), &mut |report| tally.add(Tally::one(report.failure.is_none())))?;
    Ok(Outcome::Counted(tally))
}

/// Why this machine cannot run the lab, if it cannot.
pub fn cannot() -> Option<String> {
    if !shell::is_root() {
        return Some("the lab with Linux guests needs root".into());
    }
    let missing: Vec<&str> = NEEDED.iter().filter(|n| !shell::have(n.0)).map(|n| n.1).collect();
    (!missing.is_empty()).then(|| format!("the lab needs the Debian packages {}", missing.join(" ")))
}

/// The cases whose names begin with one of `names`, with guests and with OpenSM; all of them for no names.
fn select(names: &[String]) -> Result<(Vec<Case>, Vec<opensm::Case>), String> {
    let (guests, opensm) = (scenarios::all(), opensm::all());
    let known: Vec<&str> = guests.iter().map(|c| &*c.name).chain(opensm.iter().map(|c| &*c.name)).collect();
    if let Some(name) = names.iter().find(|n| !known.iter().any(|c| c.starts_with(n.as_str()))) {
        return Err(format!("no case is called {name:?}; see cargo xtask interop --list"));
    }
    let wanted = |case: &str| names.is_empty() || names.iter().any(|n| case.starts_with(n.as_str()));
    Ok((
        guests.into_iter().filter(|c| wanted(&c.name)).collect(),
        opensm.into_iter().filter(|c| wanted(&c.name)).collect(),
    ))
}

/// Runs cases in their order on one bench; after a failure the next case gets a fresh one. Of every case at most `frames`
/// packets a tap are captured.
pub fn run(cases: &[Case], frames: Option<u32>, each: &mut dyn FnMut(&Report)) -> Result<(), String> {
    let image = build_guest()?;
    let program = shell::target().join("release/everywire");
    let mut bench: Option<Bench> = None;
    for case in cases {
        let started = Instant::now();
        let mut once = || {
            let mut running = match bench.take() {
                Some(bench) => bench,
                None => Bench::up(&image, &folder().join("lab"), &program)?,
            };
            let packets = running.run(case, &folder().join(&case.name), frames)?;
            bench = Some(running);
            Ok(packets)
        };
        let mut outcome: Result<usize, String> = once();
        if outcome.is_err() && hung_by_linux(case) {
            println!("    {:34} {LINUX_HUNG} ({} s)", case.name, started.elapsed().as_secs());
            outcome = once().map_err(|why| format!("{LINUX_HUNG}; then: {why}"));
        }
        let seconds = started.elapsed().as_secs();
        let (packets, failure) = match outcome {
            Ok(packets) => (packets, None),
            Err(why) => (0, Some(why)),
        };
        print_end(&case.name, seconds, Some(packets), failure.as_ref());
        each(&Report { name: case.name.clone(), seconds, packets, failure });
    }
    Ok(())
}

/// Said when a case runs a second time.
const LINUX_HUNG: &str =
    "Linux hung: its nvmet waits for a command that its siw never ended; once more on a fresh guest";

/// Whether what failed is Linux's own known hang (interop/README.md); then the case's folder is put aside as NAME.hung, since
/// the case shall run again.
fn hung_by_linux(case: &Case) -> bool {
    let kept = folder().join(&case.name);
    let log = std::fs::read_to_string(kept.join("A.dmesg")).unwrap_or_default();
    if !matches!(case.wire, Wire::Iwarp(_)) || !hang::nvmet_keeps_a_command(&log) {
        return false;
    }
    let aside = folder().join(format!("{}.hung", case.name));
    let _ = std::fs::remove_dir_all(&aside);
    std::fs::rename(&kept, &aside).is_ok()
}

/// A case's line, and under a failure its reasons.
fn print_end(name: &str, seconds: u64, packets: Option<usize>, failure: Option<&String>) {
    let end = match (failure, packets) {
        (Some(_), _) => format!("FAILED ({seconds} s)"),
        (None, Some(packets)) => format!("ok ({seconds} s, {packets} packets)"),
        (None, None) => format!("ok ({seconds} s)"),
    };
    println!("    {name:34} {end}");
    if let Some(why) = failure {
        let lines: String = why.lines().take(60).map(|l| format!("      {l}\n")).collect();
        println!("{}", lines.trim_end());
    }
}

fn folder() -> PathBuf {
    shell::target().join("interop")
}

/// Builds the guest's image, or finds it built.
fn build_guest() -> Result<PathBuf, String> {
    let log = folder().join("build-guest.log");
    let script = shell::root().join("interop/build-guest.sh");
    let done = shell::run(&mut Command::new(script), &log, Duration::from_secs(15 * 60))?;
    if !done.ok() {
        return Err(format!("the guest does not build:\n{}", done.tail(30)));
    }
    let path = done.output.lines().last().unwrap_or_default();
    Ok(PathBuf::from(path.trim()))
}
