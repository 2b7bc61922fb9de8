//! `everywire demo`: every row verified, and what is said when an address is taken.

mod common;

use std::time::{Duration, Instant};

use common::{Server, device, run};

/// Wires that need nothing but an address, and InfiniBand on a fabric of the demo's own.
const WIRES: [&str; 3] = ["rocev2", "iwarp", "ib"];

#[test]
fn every_row_is_verified() {
    let result = run(&["demo", "--json", "--seconds", "0.1"]).expect(0).json();
    assert_eq!(result["verified"], true);
    let rows = result["rows"].as_array().unwrap();
    let left_out = result["left_out"].as_array().unwrap();
    let rocev1 = left_out.is_empty().then_some("rocev1");
    if rocev1.is_none() {
        assert_eq!((left_out.len(), &left_out[0]["wire"]), (1, &"rocev1".into()));
        everywire_testkit::skipped(format_args!("RoCE v1: {}", left_out[0]["why"]));
    }
    for wire in WIRES.into_iter().chain(rocev1) {
        for part in [
            "RC WRITE",
            "RC READ",
            "RC SEND",
            "NVMe write",
            "NVMe read",
            "iSER write",
            "iSER read",
            "SRP write",
            "SRP read",
        ] {
            let is_it = |row: &&serde_json::Value| {
                row["wire"] == wire && row["protocol"].as_str().unwrap().starts_with(part)
            };
            let row = rows.iter().find(is_it).unwrap_or_else(|| panic!("no {wire} {part}: {result}"));
            assert_eq!(row["verified"], true, "{row}");
            for key in ["bytes_verified", "gb_per_s", "iops", "p50_us", "p99_us"] {
                assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {row}");
            }
        }
    }
}

#[test]
fn a_table_for_people() {
    let outcome = run(&["demo", "--seconds", "0.1"]).expect(0);
    let text = outcome.text();
    let said = text.lines().filter(|line| line.contains("left out: ")).count();
    let wires = WIRES.len() + usize::from(said == 0);
    assert_eq!(text.lines().count(), 1 + 9 * wires + said, "{text}");
    assert!(text.starts_with("wire "), "{text}");
    assert_eq!(outcome.stderr, "", "quiet in a pipe");
    let refused = run(&["demo", "--device", "rocev1:eth0/10.97.0.1"]).expect(2);
    assert!(refused.stderr.contains("everywire perf"), "{}", refused.stderr);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let _other = Server::start(&["perf", "--listen", "--device", &device(1)]);
    let outcome = run(&["demo", "--device", &device(1)]).expect(1);
    assert!(outcome.stderr.contains("cannot open a device at"), "{}", outcome.stderr);
}

#[test]
fn an_address_of_another_host_is_wrong_usage() {
    let outcome = run(&["demo", "--device", "rocev2:203.0.113.9", "--seconds", "0.1"]).expect(2);
    assert!(outcome.stderr.contains("not an address of this host"), "{}", outcome.stderr);
}

#[test]
fn the_target_does_not_outlive_a_demo_that_was_killed() {
    let address = format!("{}:4791", common::ip(2));
    let is_taken = || std::net::UdpSocket::bind(&address).is_err();
    let until = |taken: bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_taken() != taken {
            assert!(Instant::now() < deadline, "{address} taken: {}", !taken);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut demo = common::program(&["demo", "--device", &device(2), "--seconds", "30"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until(true);
    demo.kill().unwrap();
    demo.wait().unwrap();
    until(false);
}
