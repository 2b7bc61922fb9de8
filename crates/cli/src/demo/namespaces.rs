//! RoCE v1 between two network namespaces with a veth pair: this program again in the one, its target in the other.
//!
//! Namespaces come by unshare(1) and last as long as their processes, so that nothing is left behind whatever happens. It takes
//! CAP_SYS_ADMIN and CAP_NET_ADMIN, or a kernel that grants them in user namespaces, and iproute2; where that is missing the wire is
//! left out, and the table says why.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::pattern::Difference;
use super::{Args, Row, places::Places};
use crate::error::{CliError, print};

/// How long a process may take to be in its namespace.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the pair's largest frame: each takes its own way through the kernel, so a path MTU of 4096 makes a quarter of the frames
/// that Ethernet's usual 1500 would (docs/performance.md).
const LINK_MTU: usize = 9000;
/// Ways to a namespace: as root, and as anybody where the kernel allows it.
const WAYS: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];

/// Rows from inside, or why there are none.
pub fn rows(seconds: Duration) -> Result<Result<Vec<Row>, String>, CliError> {
    let mut why = String::new();
    let Some(way) =
        WAYS.into_iter().find(|way| match finish(Command::new("unshare").args(*way).arg("true")) {
            Ok(()) => true,
            Err(e) => {
                why = e;
                false
            }
        })
    else {
        return Ok(Err(format!("no network namespace: {why}")));
    };
    let program = std::env::current_exe().map_err(|e| CliError::failed(format_args!("own program: {e}")))?;
    let output = Command::new("unshare")
        .args(way)
        .arg(program)
        .args(["demo", "--json", "--in-namespace", "--seconds", &seconds.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| CliError::failed(format_args!("cannot start unshare: {e}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(CliError::failed(format_args!("RoCE v1 in a network namespace: {}", said.trim())));
    }
    let said: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| CliError::failed(format_args!("RoCE v1 in a network namespace: {e}")))?;
    match said["left_out"][0]["why"].as_str() {
        Some(why) => Ok(Err(why.to_owned())),
        None => Ok(Ok(said["rows"].as_array().into_iter().flatten().map(row).collect())),
    }
}

/// A row that was printed; one that is not verified ends its process in an error.
fn row(value: &Value) -> Row {
    let number = |key: &str| value[key].as_f64().unwrap_or_default();
    let nothing = Difference { at: 0, got: 0, want: 0 };
    Row {
        wire: "rocev1",
        protocol: value["protocol"].as_str().unwrap_or_default().to_owned(),
        verified: value["bytes_verified"].as_u64().ok_or(nothing),
        gb_per_s: number("gb_per_s"),
        iops: number("iops"),
        p50_us: number("p50_us"),
        p99_us: number("p99_us"),
    }
}

/// The process inside: makes the other namespace and prints its rows.
pub fn inside(args: &Args) -> Result<(), CliError> {
    match Other::new() {
        Ok(other) => {
            let places = Places::in_namespace(
                "rocev1:eth0/10.97.0.1".to_owned(),
                "rocev1:eth0/10.97.0.2".to_owned(),
                other.0.id(),
            );
            let rows = super::rows_of("rocev1", &places, Duration::from_secs_f64(args.seconds))?;
            super::show(&rows, &[], true)
        }
        Err(why) => print(json!({"left_out": [{"wire": "rocev1", "why": why}]})),
    }
}

/// The commands that make the pair and bring it up, on both sides.
fn setup(pid: &str) -> Vec<(&'static str, String)> {
    let there = |words: &str| ("nsenter", format!("--target {pid} --net ip {words}"));
    let here = |words: &str| ("ip", words.to_owned());
    let up = format!("link set eth0 mtu {LINK_MTU} up");
    vec![
        here(&format!("link add eth0 type veth peer name eth0 netns {pid}")),
        here("addr add 10.97.0.2/24 dev eth0"),
        here(&up),
        here("link set lo up"),
        there("addr add 10.97.0.1/24 dev eth0"),
        there(&up),
        there("link set lo up"),
    ]
}

/// The process that the other namespace lives by; both end with the value, or when this process does.
struct Other(Child);

impl Other {
    fn new() -> Result<Other, String> {
        let child = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut other = Other(child);
        let pid = other.0.id().to_string();
        other.wait_until_it_is_there(&pid)?;
        for (program, words) in setup(&pid) {
            finish(Command::new(program).args(words.split(' ')))?;
        }
        Ok(other)
    }

    fn wait_until_it_is_there(&mut self, pid: &str) -> Result<(), String> {
        let namespace_of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let until = Instant::now() + PATIENCE;
        while namespace_of(pid).is_none_or(|theirs| Some(theirs) == namespace_of("self")) {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(format!("unshare ended with {status}"));
            }
            if Instant::now() > until {
                return Err(format!("no second network namespace within {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

/// Runs a command to its end; in words what went wrong.
fn finish(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(match said.trim() {
        "" => format!("{program}: {}", output.status),
        said => said.replace('\n', "; "),
    })
}

#[cfg(test)]
mod tests {
    use everywire_verbs::Mtu;

    use super::*;

    /// Both ends: the path MTU is the smaller one's.
    #[test]
    fn the_pair_takes_the_largest_path_mtu() {
        assert_eq!(Mtu::largest_in(LINK_MTU), Some(Mtu::M4096));
        let commands = setup("7");
        let wide = commands.iter().filter(|(_, words)| words.ends_with("link set eth0 mtu 9000 up"));
        assert_eq!(wide.map(|(program, _)| *program).collect::<Vec<_>>(), ["ip", "nsenter"]);
    }
}
