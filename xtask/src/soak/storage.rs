//! The item `storage`: iSER beside what it must be compared with, each pair in the same run: tgt (Debian's user-space
//! iSCSI target) over TCP with our own initiator, NVMe over RDMA, and bare RC READs.
//!
//! RAM disks of 256 MiB on loopback, target and initiator in processes of their own. As in `speed`: three runs, all values
//! shown, the best of the product over the best of what it is compared with.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::report::Row;
use super::speed::{everywire, json};
use crate::interop;
use crate::shell;

/// The name of tgt's target.
const IQN: &str = "iqn.2026-11.net.everywire:tgt";
/// Bytes of its logical unit, as of those that `bench` serves to itself.
const DISK: u64 = 256 << 20;
const RUNS: usize = 3;
/// Of one measurement.
const SECONDS: &str = "2";
/// The same in CI.
const RUNS_IN_CI: usize = 2;
const SECONDS_IN_CI: &str = "1";
const NO_TGTD: &str = "no tgtd: install Debian's package tgt";
/// Where tgtd has its socket for tgtadm.
const SOCKET: &str = "TGT_IPC_SOCKET";
/// How long tgt may take to be there.
const START: Duration = Duration::from_secs(30);

const RANDOM: [&str; 6] = ["--rw", "randread", "--block-size", "4KiB", "--depth", "32"];
const LARGE: [&str; 6] = ["--rw", "read", "--block-size", "1MiB", "--depth", "16"];
const READ: [&str; 6] = ["perf", "read", "--size", "1048576", "--depth", "16"];

/// A line.
struct Line {
    name: &'static str,
    load: &'static [&'static str],
    other: Other,
    /// What the product's rate over the other's must be at least.
    goal: f64,
}

/// What a line is compared with.
enum Other {
    /// The same load by iSCSI over TCP on tgt.
    Tgt,
    /// The same load by NVMe over RDMA.
    Nvme,
    /// RC READs of the same size.
    RcRead,
}

const LINES: [Line; 3] = [
    Line { name: "iser-4KiB-tgt", load: &RANDOM, other: Other::Tgt, goal: 4.0 },
    Line { name: "iser-4KiB-nvme", load: &RANDOM, other: Other::Nvme, goal: 0.9 },
    Line { name: "iser-1MiB-read", load: &LARGE, other: Other::RcRead, goal: 0.8 },
];

/// The whole.
pub fn run(names: &[String], each: &mut dyn FnMut(Row)) -> Result<(), String> {
    let lines = super::chosen(names, LINES.iter().map(|line| (line.name.to_owned(), line)).collect())?;
    interop::build_program()?;
    for (name, line) in lines {
        let started = Instant::now();
        let outcome = line.measure(RUNS, SECONDS, line.goal);
        let (figures, failure) = outcome.unwrap_or_else(|why| (String::new(), Some(why)));
        each(Row { name, seconds: started.elapsed().as_secs(), figures, failure });
    }
    Ok(())
}

/// What `cargo xtask test` measures of it: half of each goal, in short runs; the names of lines with their figures and failures,
/// and what was left out.
pub fn sample() -> (Vec<(&'static str, Figures)>, Vec<String>) {
    let (mut measured, mut left_out) = (Vec::new(), Vec::new());
    for line in &LINES {
        if matches!(line.other, Other::Tgt) && !shell::have("tgtd") {
            left_out.push(format!("speed: {NO_TGTD}"));
            continue;
        }
        measured.push((line.name, line.measure(RUNS_IN_CI, SECONDS_IN_CI, line.goal / 2.0)));
    }
    (measured, left_out)
}

/// Figures, and how they miss a goal.
type Figures = Result<(String, Option<String>), String>;

impl Line {
    /// Measures so many times for so many seconds.
    fn measure(&self, runs: usize, seconds: &str, goal: f64) -> Figures {
        let tgt = matches!(self.other, Other::Tgt).then(Tgt::start).transpose()?;
        let (mut values, mut best) = (Vec::new(), (0.0_f64, 0.0_f64));
        for _ in 0..runs {
            let ours = rate(&[&["iscsi", "bench"], self.load].concat(), seconds)?;
            let other = match self.other {
                Other::Tgt => {
                    let portal = tgt.as_ref().map(|tgt| tgt.portal.as_str()).unwrap_or_default();
                    rate(&[&["iscsi", "bench", portal, IQN, "--lun", "1"], self.load].concat(), seconds)?
                }
                Other::Nvme => rate(&[&["nvme", "bench"], self.load].concat(), seconds)?,
                Other::RcRead => rate(&READ, seconds)?,
            };
            values.push(format!("{:.2} ({ours:.3}/{other:.3})", ours / other));
            best = (best.0.max(ours), best.1.max(other));
        }
        let met = best.0 >= goal * best.1;
        let figures = format!("{:.2}, goal at least {goal}; {} GB/s", best.0 / best.1, values.join(", "));
        Ok((figures, (!met).then(|| format!("misses at least {goal}"))))
    }
}

/// 10^9 bytes a second that a bench of the program gives.
fn rate(args: &[&str], seconds: &str) -> Result<f64, String> {
    let value = json(&everywire(&[args, &["--seconds", seconds, "--json"]].concat())?)?;
    let bytes = value["gb_per_s"].as_f64().or_else(|| value["gbit_per_s"].as_f64().map(|bits| bits / 8.0));
    bytes.ok_or_else(|| format!("no rate in {value}"))
}

/// A running tgtd with one logical unit in memory; it ends with this value.
struct Tgt {
    daemon: Child,
    /// ADDRESS:PORT.
    portal: String,
    /// What its logical unit lies on, and the socket by which tgtadm finds it and no other.
    folder: PathBuf,
}

impl Tgt {
    fn start() -> Result<Tgt, String> {
        if !shell::have("tgtd") {
            return Err(NO_TGTD.to_owned());
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.map_err(|e| format!("no free port: {e}"))?.port();
        let portal = format!("127.0.0.1:{port}");
        let folder = PathBuf::from(format!("/dev/shm/everywire-tgt-{port}"));
        let disk = folder.join("disk");
        fs::create_dir(&folder)
            .and_then(|()| File::create(&disk)?.set_len(DISK))
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut command = Command::new("tgtd");
        command.args(["-f", "--iscsi", &format!("portal={portal}")]).env(SOCKET, folder.join("s"));
        let daemon = shell::spawn(&mut command, &super::logs().join("tgtd.log"))?;
        let tgt = Tgt { daemon, portal, folder };
        let path = disk.display().to_string();
        tgt.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN])?;
        tgt.admin(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &path])?;
        tgt.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
        Ok(tgt)
    }

    /// One command of tgtadm; again while the daemon is not there yet.
    fn admin(&self, args: &[&str]) -> Result<(), String> {
        let until = Instant::now() + START;
        loop {
            let mut command = Command::new("tgtadm");
            command.args(["--lld", "iscsi"]).args(args).env(SOCKET, self.folder.join("s"));
            let done = shell::run(&mut command, &super::logs().join("tgtadm.log"), START)?;
            if done.ok() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(format!("tgtadm {}: {}", args.join(" "), done.tail(3).trim()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        shell::kill_group(&self.daemon);
        // Reaped, so that its port is free again.
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
