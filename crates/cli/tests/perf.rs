//! `everywire perf` with its second process: every operation and service that exists, shortly.

mod common;

use common::netns::Namespaces;
use common::{Server, fabric_of_two, ip, run, run_command};

fn measure(args: &[&str]) -> serde_json::Value {
    let all = [&["perf"], args, &["-D", "0.2", "--json"]].concat();
    let result = run(&all).expect(0).json();
    judge(args, &result);
    result
}

/// Something was measured.
fn judge(args: &[&str], result: &serde_json::Value) {
    for key in ["gbit_per_s", "msg_per_s", "p50_us", "p99_us"] {
        assert!(result[key].as_f64().is_some_and(|value| value > 0.0), "{args:?}: {key}: {result}");
    }
}

#[test]
fn bandwidth_of_every_operation() {
    for operation in ["write", "read", "send", "atomic"] {
        measure(&[operation, "--depth", "16"]);
    }
    measure(&["write", "-q", "8", "--size", "4096", "--depth", "4"]);
}

/// Of a connection, over this wire of sockets. iWARP has no atomics unless both ends ask for them (RFC 7306).
#[test]
fn every_wire_of_sockets() {
    for wire in ["rocev2", "iwarp"] {
        let device = format!("{wire}:{}", ip(1));
        let _server = Server::start(&["perf", "--listen", "--device", &device]);
        for operation in ["write", "read", "send"] {
            measure(&[operation, &ip(1), "--device", wire, "--depth", "16"]);
            measure(&[operation, &ip(1), "--device", wire, "--latency"]);
        }
    }
    for (args, word) in [
        (&["atomic"][..], "iWARP"),
        (&["send", "--transport", "ud"], "iWARP"),
        (&["write", "--transport", "uc"], "iWARP"),
    ] {
        let device = format!("iwarp:{}", ip(2));
        let _server = Server::start(&["perf", "--listen", "--device", &device]);
        let peer = ip(2);
        let all = [&["perf"], args, &[&peer, "--device", "iwarp", "-D", "0.1"]].concat();
        let refused = run(&all);
        assert!(refused.code != Some(0) && refused.stderr.contains(word), "{args:?}: {}", refused.stderr);
    }
}

/// What there is of a wire that has all services: its operations, each as bandwidth and as latency.
const ALL_SERVICES: [&[&str]; 7] = [
    &["write"],
    &["read"],
    &["send"],
    &["atomic"],
    &["write", "--transport", "uc"],
    &["send", "--transport", "uc"],
    &["send", "--transport", "ud"],
];

/// The same over InfiniBand, atomics and unreliable services too.
#[test]
fn infiniband() {
    let (_fabric, [mine, theirs]) = fabric_of_two("perf");
    let _server = Server::start(&["perf", "--listen", "--device", &theirs]);
    for test in ALL_SERVICES {
        measure(&[test, &["10.77.0.2", "--device", &mine, "--depth", "16"]].concat());
        measure(&[test, &["10.77.0.2", "--device", &mine, "--latency"]].concat());
    }
}

/// And in frames of RoCE v1, where that is allowed.
#[test]
fn rocev1() {
    let Some(pair) = Namespaces::pair("q") else { return };
    let listen = ["perf", "--listen", "--device", "rocev1:eth0/10.97.0.1"];
    let _server = Server::start_command(pair.everywire(0, &listen), "listening on");
    let device = ["10.97.0.1", "--device", "rocev1:eth0/10.97.0.2", "-D", "0.2", "--json"];
    for test in ALL_SERVICES {
        for how in [&["--depth", "16"][..], &["--latency"]] {
            let args = [&["perf"], test, &device, how].concat();
            let result = run_command(pair.everywire(1, &args), Vec::new()).expect(0).json();
            judge(&args, &result);
        }
    }
}

/// Without a peer, the second process is on the wire that was named, with its options; or both commands are told.
#[test]
fn the_second_process_is_on_the_same_wire() {
    let (_fabric, [mine, _]) = fabric_of_two("second");
    for (operation, device) in [
        ("write", format!("rocev2:{}", ip(5))),
        ("write", format!("iwarp:{}", ip(5))),
        // Atomics go over iWARP only where both ends ask for them.
        ("atomic", format!("iwarp:{},rfc7306", ip(5))),
        ("read", "iwarp:::1".to_owned()),
        ("atomic", mine),
    ] {
        measure(&[operation, "--device", &device]);
    }
    let ipv6 = run(&["perf", "write", "--device", "rocev2:::1", "-D", "0.1"]);
    assert!(ipv6.code == Some(0) || ipv6.code == Some(2) && ipv6.stderr.contains("IPv6"), "{ipv6:?}");
    let raw = run(&["perf", "write", "--device", "rocev2-raw:lo/127.0.0.1"]).expect(2);
    assert!(raw.stderr.contains("everywire perf --listen --device rocev2-raw:INTERFACE/ADDRESS"), "{raw:?}");
    assert!(raw.stderr.contains("everywire perf write ADDRESS --device rocev2-raw:lo/127.0.0.1"), "{raw:?}");
}

/// RFC 7306 at one end only is known before the first atomic: who asks is told what the other end lacks.
#[test]
fn atomics_of_one_end_are_refused_with_words() {
    let (near, far) = (format!("iwarp:{},rfc7306", ip(16)), format!("iwarp:{}", ip(15)));
    let server = Server::start(&["perf", "--listen", "--device", &far]);
    server.says(&[&format!("listening on {}:18515, device {far}", ip(15))]);
    let outcome = run(&["perf", "atomic", &ip(15), "--device", &near]).expect(3);
    let words = format!("no atomics at this end: start it with --device {far},rfc7306");
    assert!(outcome.stderr.contains(&format!("It says: {words}")), "{}", outcome.stderr);
    server.says(&["perf client", &words]);
}

/// Neither does a killed client stay for ever, whatever it did: nobody disconnects for it.
#[test]
fn a_killed_client_is_noticed() {
    for (n, test) in [(20, &["write"][..]), (22, &["send"]), (24, &["send", "--latency"])] {
        let server = Server::start(&["perf", "--listen", "--device", &format!("rocev2:{}", ip(n))]);
        let (peer, device) = (ip(n), format!("rocev2:{}", ip(n + 1)));
        let args = [&["perf"], test, &[&peer, "--device", &device, "-D", "60"]].concat();
        let mut client = common::program(&args).spawn().expect("the program starts");
        std::thread::sleep(std::time::Duration::from_secs(3));
        client.kill().expect("a child can be killed");
        client.wait().expect("a child can be waited for");
        server.says(&["perf client ", "the peer is lost: it has acknowledged nothing"]);
    }
}

/// Nor on an unreliable connection, where nothing is acknowledged; one that is still there is not taken for lost.
#[test]
fn a_killed_client_of_an_unreliable_connection_is_noticed() {
    let (_fabric, [mine, theirs]) = fabric_of_two("unreliable");
    let sockets = |n| (format!("rocev2:{}", ip(n + 1)), format!("rocev2:{}", ip(n)), ip(n));
    let places = [sockets(30), (mine, theirs, "10.77.0.2".to_owned())];
    for ((near, far, peer), operation) in places.iter().flat_map(|place| [(place, "write"), (place, "send")])
    {
        let server = Server::start(&["perf", "--listen", "--device", far]);
        let args = ["perf", operation, peer, "--transport", "uc", "--size", "4096", "--device", near];
        run(&[&args[..], &["-D", "5"]].concat()).expect(0);
        let mut client =
            common::program(&[&args[..], &["-D", "60"]].concat()).spawn().expect("the program starts");
        std::thread::sleep(std::time::Duration::from_secs(2));
        client.kill().expect("a child can be killed");
        client.wait().expect("a child can be waited for");
        server.says(&["perf client ", "the peer is lost: its connection manager is asked: "]);
        assert_eq!(server.lines_with("is lost").len(), 1, "{near} {operation}");
    }
}

/// A server that is told to stop says so and ends well.
#[test]
fn the_server_ends_in_order() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["perf", "--listen", "--device", &format!("rocev2:{}", ip(6))]);
        server.signal(signal);
        server.says(&["perf: stopped by SIG", signal]);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn datagrams_are_as_large_as_the_path_allows_and_what_was_not_timed_is_not_told() {
    let result = measure(&["send", "--transport", "ud"]);
    assert!(result["test"].as_str().is_some_and(|test| test.starts_with("UD SEND 4096 B")), "{result}");
    let result = measure(&["write", "--device", "iwarp", "--baseline"]);
    assert!(result["baseline"]["p50_us"].is_null(), "{result}");
    let text = run(&["perf", "write", "--device", "iwarp", "--baseline", "-D", "0.1"]).expect(0).text();
    assert!(text.contains("raw TCP") && !text.contains(" 0.00 us"), "{text}");
    run(&["perf", "write", "--transport", "uc", "--device", "iwarp"]).expect(2);
}

#[test]
fn idle_connections_and_their_memory() {
    let result = run(&["perf", "--connections", "200", "--json"]).expect(0).json();
    assert_eq!(result["connections"], 200);
    let rows = result["rows"].as_array().expect("rows");
    let wires: Vec<_> = rows.iter().map(|row| row["wire"].as_str().unwrap_or_default()).collect();
    assert_eq!(wires, ["iWARP", "RC over RoCE v2"]);
    for row in rows {
        // A queue pair of four entries and its connection: kilobytes, and never the megabyte of a stack or a ring.
        let bytes = row["bytes_per_connection"].as_u64().expect("a number");
        assert!((500..200_000).contains(&bytes), "{row}");
    }
    let text = run(&["perf", "--connections", "20"]).expect(0).text();
    assert_eq!(text.matches("bytes a connection").count(), 2, "{text}");
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
        (&["atomic", "--device", "iwarp:127.0.0.1"], "name it iwarp:127.0.0.1,rfc7306"),
        (&["send", "--latency", "--size", "8192", "--baseline", "-D", "0.1"], "one packet"),
    ] {
        let outcome = run(&[&["perf"], args].concat()).expect(2);
        assert!(outcome.stderr.contains(word), "{args:?}: {}", outcome.stderr);
    }
}
