//! Our program as the cases run it: `serve`, which must end well, and `attach`, whose disk the guest has as /dev/nbd0.

use std::time::Duration;

use rustix::process::Signal;

use crate::interop::bench::Bench;
use crate::interop::lab::{Background, Family, HOST, address};

const LIMIT: Duration = Duration::from_secs(300);

/// SIGTERM must end it with exit code 0, and its log, which is part of the interface, must hold none of these words.
fn end(program: Background, what: &str, never: &[&str]) -> Result<(), String> {
    program.signal(Signal::TERM);
    let (code, output) = program.end(Duration::from_secs(30));
    match output.lines().find(|line| never.iter().any(|word| line.contains(word))) {
        Some(line) => Err(format!("{what} logged: {line}")),
        None if code != Some(0) => Err(format!("{what}: exit {code:?} after SIGTERM:\n{output}")),
        None => Ok(()),
    }
}

/// Ends a target of ours.
pub fn end_serve(target: Background) -> Result<(), String> {
    end(target, "serve", &["ERROR", "panicked"])
}

/// What went wrong, with what the target said.
pub fn with_words_of(target: &Background, why: &str) -> String {
    format!("{why}\nserve said:\n{}", target.output())
}

/// Runs work on /dev/nbd0, which is what `attach` (its arguments without --nbd) reaches; at the end the first `mib` MiB of the
/// guest's RAM disk must be the same.
pub fn attached(
    bench: &Bench,
    attach: &[&str],
    mib: u32,
    work: impl Fn(&Background) -> Result<(), String>,
) -> Result<(), String> {
    // NBD goes by IPv4 whatever the case's family: the wire under test is the one to the target.
    let door = address(HOST, Family::V4).to_string();
    let mut server = bench.everywire("attach", &[attach, &["--nbd", &door]].concat())?;
    let outcome = server
        .wait_for("listening on", LIMIT)
        .and_then(|()| bench.a.ok(&format!("bash /lab/nbd-attach.sh {door}")))
        .and_then(|_| work(&server))
        .and_then(|()| bench.a.ok(&format!("bash /lab/same-bytes.sh /dev/nbd0 /dev/ram0 {mib}")))
        .map_err(|why| format!("{why}\nattach said:\n{}", server.output()));
    let detached = bench.a.ok("nbd-client -d /dev/nbd0");
    let ended = end(server, "attach", &["ERROR", "failed", "panicked"]);
    outcome.and(detached).and(ended)
}
