//! `everywire perf` with its second process: every operation and service that exists, shortly.

mod common;

use common::run;

fn measure(args: &[&str]) -> serde_json::Value {
    let all = [&["perf"], args, &["-D", "0.2", "--json"]].concat();
    let result = run(&all).expect(0).json();
    for key in ["gbit_per_s", "msg_per_s", "p50_us", "p99_us"] {
        assert!(result[key].as_f64().is_some_and(|value| value > 0.0), "{args:?}: {key}: {result}");
    }
    result
}

#[test]
fn bandwidth_of_every_operation() {
    for operation in ["write", "read", "send", "atomic"] {
        measure(&[operation, "--depth", "16"]);
    }
    measure(&["write", "-q", "8", "--size", "4096", "--depth", "4"]);
}

#[test]
fn latency_of_every_operation() {
    for operation in ["write", "read", "send", "atomic"] {
        measure(&[operation, "--latency"]);
    }
}

#[test]
fn unreliable_services_say_what_was_lost() {
    let sent = measure(&["send", "--transport", "ud", "--depth", "8"]);
    assert!(sent["lost"].as_f64().is_some(), "{sent}");
    let sent = measure(&["send", "--transport", "uc", "--depth", "8", "--size", "8192"]);
    assert!(sent["lost"].as_f64().is_some(), "{sent}");
    measure(&["write", "--transport", "uc", "--depth", "8"]);
    measure(&["send", "--transport", "ud", "--latency"]);
}

#[test]
fn the_baseline_gives_a_ratio() {
    let result = measure(&["write", "--baseline"]);
    assert!(result["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{result}");
    assert!(result["baseline"]["gbit_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{result}");
    // Messages of several packets count as messages on both sides: Gbit/s and messages/s have the same ratio.
    for args in [&["read", "--size", "65536"][..], &["read", "--latency", "--size", "10000"], &["send"]] {
        let result = measure(&[args, &["--baseline"]].concat());
        let of = |value: &serde_json::Value, key: &str| value[key].as_f64().unwrap_or_default();
        let by_bytes = of(&result, "gbit_per_s") / of(&result["baseline"], "gbit_per_s");
        let by_messages = of(&result, "msg_per_s") / of(&result["baseline"], "msg_per_s");
        assert!((by_bytes / by_messages - 1.0).abs() < 0.01, "{args:?}: {result}");
    }
}

#[test]
fn what_does_not_exist_is_wrong_usage() {
    for (args, word) in [
        (&["read", "--transport", "uc"][..], "UC has WRITE and SEND"),
        (&["write", "--transport", "ud"], "UD has SEND"),
        (&["atomic", "--size", "16"], "8 bytes"),
        (&["send", "--transport", "ud", "--size", "5000"], "one packet"),
        (&["write", "--seconds", "0"], "more than 0"),
        (&["send", "--latency", "--size", "8192", "--baseline", "-D", "0.1"], "one packet"),
    ] {
        let outcome = run(&[&["perf"], args].concat()).expect(2);
        assert!(outcome.stderr.contains(word), "{args:?}: {}", outcome.stderr);
    }
}
