//! Runs seeds of the main workload: `soak [--from N] [--count N] [--jobs N] [--target N] [--seed N]
//! [--wire rocev2|rocev1|ib|iwarp|iwarp7306] [--capture FILE]`.
//!
//! The exit code is 0 when all passed; a failure prints its seed, and `soak --seed N` (or `EVERYWIRE_SEED=N soak`) replays it, with
//! `--capture FILE` into a pcapng that Wireshark opens. With `--any` it stops at the first failure, which is what a search for mutants wants.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use everywire_sim::workload::{DEFAULT_TARGET, Failure, Options, Report, run};
use everywire_verbs::Wire;

/// iWARP with atomics and immediate data.
const IWARP_7306: &str = "iwarp7306";

struct Arguments {
    from: u64,
    count: u64,
    jobs: u64,
    any: bool,
    verbose: bool,
    options: Options,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed =
        Arguments { from: 0, count: 1000, jobs: 2, any: false, verbose: false, options: Options::default() };
    if let Ok(seed) = std::env::var("EVERYWIRE_SEED") {
        parsed.from = seed.parse().map_err(|e| format!("EVERYWIRE_SEED={seed}: {e}"))?;
        parsed.count = 1;
    }
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--any" {
            parsed.any = true;
            continue;
        }
        if word == "--trace" {
            parsed.options.trace = true;
            continue;
        }
        if word == "--verbose" {
            parsed.verbose = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|e| format!("{word} {value}: {e}"));
        match word.as_str() {
            "--from" => parsed.from = number()?,
            "--count" => parsed.count = number()?,
            "--jobs" => parsed.jobs = number()?.max(1),
            "--target" => parsed.options.target = number()? as usize,
            "--seed" => (parsed.from, parsed.count) = (number()?, 1),
            "--wire" => (parsed.options.wire, parsed.options.rfc7306) = wire(&value)?,
            "--capture" => parsed.options.capture = Some(value.into()),
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(parsed)
}

/// The wire of a name, and whether it has the extensions of RFC 7306.
fn wire(name: &str) -> Result<(Wire, bool), String> {
    if name == IWARP_7306 {
        return Ok((Wire::Iwarp, true));
    }
    let wires = [Wire::RoceV2, Wire::RoceV1, Wire::InfiniBand, Wire::Iwarp];
    let found = wires.into_iter().find(|wire| wire.name() == name).map(|wire| (wire, false));
    found.ok_or_else(|| format!("--wire {name}: one of {}, {IWARP_7306}", wires.map(Wire::name).join(", ")))
}

/// What all jobs share.
#[derive(Default)]
struct Total {
    done: AtomicU64,
    requests: AtomicU64,
    frames: AtomicU64,
    stop: AtomicBool,
    failures: Mutex<Vec<Failure>>,
}

impl Total {
    fn add(&self, result: Result<Report, Failure>, arguments: &Arguments) {
        match result {
            Ok(report) => {
                let requests = (report.tally.sends + report.tally.receives) as u64;
                self.requests.fetch_add(requests, Ordering::Relaxed);
                self.frames.fetch_add(report.frames, Ordering::Relaxed);
                if arguments.verbose {
                    println!("{report:?}");
                }
            }
            Err(failure) => {
                println!("{failure}");
                if arguments.any {
                    self.stop.store(true, Ordering::Relaxed);
                }
                self.failures.lock().unwrap_or_else(|e| e.into_inner()).push(failure);
            }
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("soak: {text} (the least target is {DEFAULT_TARGET} work requests)");
            return ExitCode::from(2);
        }
    };
    let (total, next, started) = (Total::default(), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                while !total.stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= arguments.count {
                        break;
                    }
                    total.add(run(arguments.from + index, &arguments.options), &arguments);
                }
            });
        }
    });
    let failures = total.failures.into_inner().unwrap_or_else(|e| e.into_inner());
    println!(
        "{} seeds, {} work requests, {} frames in {:.1?}: {} failed",
        total.done.into_inner(),
        total.requests.into_inner(),
        total.frames.into_inner(),
        started.elapsed(),
        failures.len()
    );
    ExitCode::from(u8::from(!failures.is_empty()))
}
