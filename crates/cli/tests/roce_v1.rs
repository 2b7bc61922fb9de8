//! `everywire` over RoCE v1 between two network namespaces. It needs CAP_NET_ADMIN and CAP_NET_RAW; without, it says so and
//! passes.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::Scratch;

/// Two namespaces with a veth pair, gone when dropped.
struct Pair([String; 2]);

impl Pair {
    fn new(tag: &str) -> Option<Pair> {
        let pid = std::process::id();
        let (a, b) = (format!("ewcli-{tag}a{pid}"), format!("ewcli-{tag}b{pid}"));
        let script = format!(
            "set -e; ip netns add {a}; ip netns add {b}
             ip -n {a} link add eth0 type veth peer name eth0 netns {b}
             ip -n {a} addr add 10.97.0.1/24 dev eth0; ip -n {b} addr add 10.97.0.2/24 dev eth0
             ip -n {a} link set eth0 up; ip -n {b} link set eth0 up; ip -n {a} link set lo up; ip -n {b} link set lo up"
        );
        let pair = Pair([a, b]);
        match Command::new("sh").args(["-c", &script]).output() {
            Ok(output) if output.status.success() => Some(pair),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                everywire_testkit::skipped(format_args!("no network namespaces here: {said}"));
                None
            }
            Err(error) => {
                everywire_testkit::skipped(format_args!("sh: {error}"));
                None
            }
        }
    }

    /// The program, in one of the namespaces.
    fn everywire(&self, end: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[end], env!("CARGO_BIN_EXE_everywire")]).args(args);
        command
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn ping_and_its_capture() {
    let Some(pair) = Pair::new("p") else { return };
    let scratch = Scratch::new("rocev1");
    let capture = scratch.file("rocev1.pcapng");
    let device = "rocev1:eth0/10.97.0.1,vlan=7,priority=3";
    let mut server = pair
        .everywire(0, &["ping", "--listen", "--device", device])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let client = ["ping", "10.97.0.1", "--device", "rocev1:eth0/10.97.0.2,vlan=7,priority=5", "-C", "3"];
    let args = [&client[..], &["-S", "5000", "--json", "--capture", &capture]].concat();
    let mut result = None;
    for _ in 0..50 {
        let output = pair.everywire(1, &args).output().unwrap();
        if output.status.success() {
            result = Some(output);
            break;
        }
        std::thread::sleep(Duration::from_millis(100)); // the server is not there yet
    }
    let result = result.expect("the server answers within five seconds");
    let _ = server.kill();
    let _ = server.wait();
    let said: serde_json::Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!((&said["turns"], &said["verified"]), (&3.into(), &true.into()));
    let decoded = common::run(&["decode", "--json", &capture]).expect(0);
    let frames: Vec<serde_json::Value> =
        decoded.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(frames.len() > 20, "{}", decoded.text());
    for frame in &frames {
        assert_eq!(frame["icrc"], "good", "{frame}");
        assert!(frame["grh"]["sgid"].as_str().unwrap().starts_with("::ffff:10.97.0."), "{frame}");
        // The kernel takes the tag out of what it hands over.
        let sent = frame["src"] == "10.97.0.2";
        assert_eq!(
            frame["vlan"]["priority"],
            if sent { 5.into() } else { serde_json::Value::Null },
            "{frame}"
        );
    }
    let tshark = Command::new("tshark")
        .args(["-r", &capture, "--disable-protocol", "rpcordma", "-Y", "_ws.malformed or !infiniband"])
        .output();
    match tshark {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), ""),
        Err(e) => everywire_testkit::skipped(format_args!("tshark: {e}")),
    }
}

/// A member answers whoever asks the group, by frames of RoCE v1 and by UDP.
#[test]
fn a_group_is_asked_for_its_members() {
    let Some(pair) = Pair::new("m") else { return };
    for (wire, mgid) in [("rocev1:eth0/", "ff0e::ffff:efc0:7"), ("rocev2:", "::ffff:239.192.0.7")] {
        let [member, asker] = [1, 2].map(|n| format!("{wire}10.97.0.{n}"));
        let group = ["ping", "--multicast", "239.192.0.7", "--device"];
        let mut server = pair
            .everywire(0, &[&group[..], &[&member, "--listen"]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ask = [&group[..], &[&asker, "--json", "-C", "3", "--interval", "20"]].concat();
        let mut said = serde_json::Value::Null;
        for _ in 0..20 {
            let output = pair.everywire(1, &ask).output().unwrap();
            if output.status.success() {
                said = serde_json::from_slice(&output.stdout).unwrap();
                break;
            }
        }
        let _ = server.kill();
        let _ = server.wait();
        assert_eq!(said["members"], serde_json::json!(["10.97.0.1"]), "{wire}: {said}");
        assert_eq!((&said["mgid"], &said["sent"], &said["answers"]), (&mgid.into(), &3.into(), &3.into()));
    }
}
