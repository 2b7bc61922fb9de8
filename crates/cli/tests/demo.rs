//! `everywire demo`: every row verified, and what is said when an address is taken.

mod common;

use std::time::{Duration, Instant};

use common::{Server, device, run};

#[test]
fn every_row_is_verified() {
    let result = run(&["demo", "--json", "--seconds", "0.1"]).expect(0).json();
    assert_eq!(result["verified"], true);
    let rows = result["rows"].as_array().unwrap();
    for part in ["RC WRITE", "RC READ", "RC SEND", "NVMe write", "NVMe read"] {
        let row = rows.iter().find(|row| row["protocol"].as_str().unwrap().starts_with(part));
        let row = row.unwrap_or_else(|| panic!("no row of {part}: {result}"));
        assert_eq!((row["wire"].as_str(), row["verified"].as_bool()), (Some("rocev2"), Some(true)), "{row}");
        for key in ["bytes_verified", "gb_per_s", "iops", "p50_us", "p99_us"] {
            assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {row}");
        }
    }
}

#[test]
fn a_table_for_people() {
    let outcome = run(&["demo", "--seconds", "0.1"]).expect(0);
    let text = outcome.text();
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.starts_with("wire "), "{text}");
    assert_eq!(outcome.stderr, "", "quiet in a pipe");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let _other = Server::start(&["perf", "--listen", "--device", &device(1)]);
    let outcome = run(&["demo", "--device", &device(1)]).expect(1);
    assert!(outcome.stderr.contains("cannot open a device at"), "{}", outcome.stderr);
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
