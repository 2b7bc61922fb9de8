//! The program as an iSCSI target, judged by libiscsi's `iscsi-test-cu` (Debian's libiscsi-bin), where it is installed.
//!
//! On blocks of 512 B and of 4 KiB. Every test must pass; what it skips must stand in `libiscsi-skips.txt` with its reason. Its own sources are
//! https://github.com/sahlberg/libiscsi, `test-tool`.

mod common;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Scratch, Server, ip};

const NAME: &str = "iqn.2026-11.example:judged";
const SKIPS: &str = include_str!("libiscsi-skips.txt");
/// Tests that Debian 12's libiscsi has.
const TESTS: usize = 615;
/// The reference: Debian 12's tgt (1.0.85) skips 205 of them.
const SKIPS_OF_TGT: usize = 205;
/// How long all of them may take on a busy machine; one sleeps for minutes in sum.
const PATIENCE: Duration = Duration::from_secs(600);

/// A target with a disk that can be ejected, one that takes long to sanitize, and one that cannot be written, with blocks of
/// `block` bytes. The first has fewer than 65,536 blocks of 4 KiB: on more, `WriteSame16.Unmap` writes 256 MiB in one command,
/// whatever MAXIMUM TRANSFER LENGTH says.
fn target(name: &str, at: u8, block: u32) -> (Scratch, Server, String) {
    let scratch = Scratch::new(name);
    let image = scratch.file("read-only.img");
    let file = std::fs::File::create(&image).expect("a file");
    file.set_len(64 << 20).expect("room");
    let config = scratch.file("target.toml");
    let text = format!(
        "[iscsi]\nportals = [\"{0}\"]\nping = 600\n[[iscsi.target]]\nname = \"{NAME}\"\n\
         [[iscsi.target.lun]]\nbackend = \"ram:192MiB,bs={block}\"\nremovable = true\n\
         [[iscsi.target.lun]]\nbackend = \"null:64TiB,bs={block}\"\n\
         [[iscsi.target.lun]]\nbackend = \"file:{image},ro,bs={block}\"\n",
        ip(at)
    );
    std::fs::write(&config, text).expect("a file");
    let server = Server::start(&["serve", &config]);
    let url = format!("iscsi://{}:3260/{NAME}", ip(at));
    (scratch, server, url)
}

/// What it says; `None`, in words, where it is not installed.
fn judge(args: &[&str]) -> Option<String> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let scratch = Scratch::new(&format!("judge-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    let log = scratch.file("log");
    let out = std::fs::File::create(&log).expect("a file");
    let mut command = Command::new("iscsi-test-cu");
    let both = out.try_clone().expect("a handle");
    let mut child = match command.args(args).stdin(Stdio::null()).stdout(out).stderr(both).spawn() {
        Ok(child) => child,
        Err(e) => {
            everywire_testkit::skipped(format_args!("iscsi-test-cu (Debian: libiscsi-bin): {e}"));
            return None;
        }
    };
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("a child can be waited for").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child can be killed");
            panic!("iscsi-test-cu {args:?} did not end:\n{}", std::fs::read_to_string(&log).expect("a log"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(String::from_utf8_lossy(&std::fs::read(&log).expect("a log")).into_owned())
}

/// Tests that ran and failed, from its summary.
fn summary(log: &str) -> (usize, usize) {
    let line = log.lines().find(|line| line.trim_start().starts_with("tests ")).expect(log);
    let numbers: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (numbers[1], numbers[3])
}

/// Skips as `Suite.Test` and the reason given.
fn skips(log: &str) -> Vec<(String, String)> {
    let (mut suite, mut test, mut found) = ("", "", Vec::new());
    for line in log.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name;
        } else if let Some((name, _)) = line.strip_prefix("Test: ").and_then(|rest| rest.split_once(" ...")) {
            test = name;
        }
        if let Some((_, why)) = line.split_once("[SKIPPED]") {
            found.push((format!("{suite}.{test}"), why.trim().to_owned()));
        }
    }
    found
}

/// Whether a skip stands in the list.
fn is_listed(test: &str, why: &str) -> bool {
    let entries = SKIPS.lines().filter(|line| !line.starts_with('#'));
    entries.filter_map(|line| line.split_once(": ")).any(|(name, rest)| {
        let fits = name == test || name.strip_suffix('*').is_some_and(|suite| test.starts_with(suite));
        fits && rest.split(": ").next().is_some_and(|words| why.contains(words))
    })
}

#[track_caller]
fn passes(log: &str, tests: usize) -> usize {
    assert_eq!(summary(log), (tests, 0), "{log}");
    let skips = skips(log);
    for (test, why) in &skips {
        assert!(is_listed(test, why), "{test} is skipped ({why}), which libiscsi-skips.txt does not explain");
    }
    skips.len()
}

/// All of them, on a unit that two paths lead to.
fn every_test(name: &str, at: u8, block: u32) {
    let (_scratch, _server, url) = target(name, at, block);
    let disk = format!("{url}/0");
    let Some(log) = judge(&["--dataloss", &disk, &disk]) else { return };
    let skipped = passes(&log, TESTS);
    assert!(skipped < SKIPS_OF_TGT, "{skipped} skips");
    println!("{TESTS} tests of iscsi-test-cu pass with {block} B blocks, {skipped} lines of skips");
    let Some(log) = judge(&["--dataloss", "--test=ALL.ReadOnly", &format!("{url}/2")]) else { return };
    passes(&log, 1);
}

#[test]
fn every_test_of_libiscsi_passes() {
    every_test("libiscsi", 1, 512);
}

#[test]
fn every_test_of_libiscsi_passes_on_4_kib_blocks() {
    every_test("libiscsi-4k", 4, 4096);
}

/// Those that SANITIZE, but for `Reset`, which needs a medium that takes long.
#[test]
fn sanitize() {
    let (_scratch, _server, url) = target("sanitize", 2, 512);
    let disk = format!("{url}/0");
    let tests = [
        "BlockErase",
        "BlockEraseReserved",
        "CryptoErase",
        "CryptoEraseReserved",
        "ExitFailureMode",
        "InvalidServiceAction",
        "Overwrite",
        "OverwriteReserved",
        "Readonly",
        "Reservations",
    ];
    for test in tests {
        let test = format!("--test=ALL.Sanitize.{test}");
        let Some(log) = judge(&["--dataloss", "--allow-sanitize", &test, &disk]) else { return };
        passes(&log, 1);
    }
}

/// SANITIZE goes on through ABORT TASK, ABORT TASK SET, every reset and the loss of the session.
#[test]
#[ignore = "sleeps for a minute"]
fn sanitize_through_resets() {
    let (_scratch, _server, url) = target("resets", 3, 512);
    let args = ["--dataloss", "--allow-sanitize", "--test=ALL.Sanitize.Reset", &format!("{url}/1")];
    let Some(log) = judge(&args) else { return };
    passes(&log, 1);
}
