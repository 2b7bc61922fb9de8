//! `everywire ping`: two processes, what the wire carried, and how failures are told.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Scratch, Server, device, fabric_of_two, ip, run, tshark_finds_nothing};

#[test]
fn two_processes_and_their_capture() {
    let scratch = Scratch::new("ping");
    let capture = scratch.file("ping.pcapng");
    let _server = Server::start(&["ping", "--listen", "--persistent", "--device", &device(1)]);
    let args =
        ["ping", &ip(1), "--device", &device(2), "-C", "7", "-S", "9000", "--json", "--capture", &capture];
    let result = run(&args).expect(0).json();
    assert_eq!(result["turns"], 7);
    assert_eq!(result["verified"], true);
    assert!(result["p50_us"].as_f64().unwrap() > 0.0);
    let outcome = run(&["decode", &capture]).expect(0);
    assert!(outcome.stderr.contains(" 0 with a bad ICRC, 0 malformed"), "{}", outcome.stderr);
    let text = outcome.text();
    // 9000 bytes at path MTU 4096 are three packets each way, and one advertisement a buffer.
    assert_eq!(text.matches("RC RDMA Write First").count(), 7);
    assert_eq!(text.matches("RC RDMA Read Response Last").count(), 7);
    assert!(text.contains("message=DREQ"), "the client disconnects");
    tshark_finds_nothing(&capture, "_ws.malformed", "infiniband", 7 * 8);
}

/// Markers are part of what CRCs sum (RFC 5044 §4.3): tshark calls them good as well, of the FPDUs that it follows.
#[test]
fn markers_in_a_capture() {
    let scratch = Scratch::new("ping-markers");
    let capture = scratch.file("ping.pcapng");
    let (near, far) = (format!("iwarp:{},markers", ip(19)), format!("iwarp:{},markers", ip(18)));
    let _server = Server::start(&["ping", "--listen", "--device", &far]);
    run(&["ping", &ip(18), "--device", &near, "-C", "7", "-S", "9000", "--capture", &capture]).expect(0);
    let outcome = run(&["decode", &capture]).expect(0);
    assert!(outcome.stderr.contains(" 0 with a bad ICRC, 0 malformed"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(", 0 FPDUs with a wrong CRC"), "{}", outcome.stderr);
    assert!(outcome.text().matches("RDMA Read Response").count() >= 7, "{}", outcome.text());
    tshark_finds_nothing(&capture, "_ws.malformed", "iwarp_mpa.marker_fpduptr", 1);
    if let Ok(output) = Command::new("tshark").args(["-r", &capture, "-O", "iwarp_mpa"]).output() {
        let text = String::from_utf8_lossy(&output.stdout);
        // Of an FPDU that ends right before a marker it sums that one too, which RFC 5044 §4.3 gives to the next: no word on "Bad".
        assert!(text.contains("Good CRC32"), "{text}");
    }
}

/// The same turns over iWARP and InfiniBand; what was on the wire is in order, says `decode`, and tshark finds nothing malformed.
#[test]
fn every_other_wire() {
    let (_fabric, [mine, theirs]) = fabric_of_two("ping");
    let (near, far) = (format!("iwarp:{}", ip(9)), format!("iwarp:{}", ip(8)));
    for (wire, device, peer, address) in
        [("iwarp", near, far, ip(8)), ("ib", mine, theirs, "10.77.0.2".to_owned())]
    {
        let scratch = Scratch::new(&format!("ping-{wire}"));
        let capture = scratch.file("ping.pcapng");
        let _server = Server::start(&["ping", "--listen", "--device", &peer]);
        let args = ["ping", &address, "--device", &device, "-C", "7", "-S", "9000", "--json"];
        let result = run(&[&args[..], &["--capture", &capture]].concat()).expect(0).json();
        assert_eq!((&result["turns"], &result["verified"]), (&7.into(), &true.into()), "{wire}");
        let outcome = run(&["decode", &capture]).expect(0);
        assert!(outcome.stderr.contains(" 0 with a bad ICRC, 0 malformed"), "{}", outcome.stderr);
        assert!(outcome.text().lines().count() > 7 * 6, "{wire}: {}", outcome.text());
        let protocol = if wire == "iwarp" { "iwarp_ddp_rdmap" } else { "infiniband" };
        tshark_finds_nothing(&capture, "_ws.malformed", protocol, 7 * 5);
    }
}

#[test]
fn a_port_nobody_listens_on_is_a_rejection_with_its_reason() {
    let server = Server::start(&["ping", "--listen", "--persistent", "--device", &device(3)]);
    server.says(&[&format!("ping: listening on {}:7174, device {}", ip(3), device(3))]);
    let outcome = run(&["ping", &format!("{}:9", ip(3)), "--device", &device(4)]).expect(3);
    assert!(outcome.stderr.contains("invalid service ID (8)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(&ip(4)) && outcome.stderr.contains(&format!("{}:9", ip(3))), "both ends");
}

#[test]
fn an_address_where_nothing_runs_is_told_as_such() {
    let outcome = run(&["ping", &ip(5), "--device", &device(6)]).expect(3);
    for words in ["UDP port 4791 is closed", "is the program running?", "it was tried for 1."] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
}

#[test]
fn an_address_in_use_names_its_owner() {
    let server = Server::start(&["ping", "--listen", "--persistent", "--device", &device(7)]);
    let outcome = run(&["ping", "--listen", "--device", &device(7)]).expect(1);
    assert!(outcome.stderr.contains("cannot open a device at"), "{}", outcome.stderr);
    drop(server);
}

/// Whoever loses his peer is told how, not that his requests were flushed; and nobody is told of a port 0.
#[test]
fn a_lost_peer_is_told_as_lost() {
    for wire in ["iwarp", "rocev2"] {
        let (near, far) = (format!("{wire}:{}", ip(11)), format!("{wire}:{}", ip(10)));
        let server = Server::start(&["ping", "--listen", "--persistent", "--device", &far]);
        let client =
            std::thread::spawn(move || run(&["ping", &ip(10), "--device", &near, "-C", "100", "-i", "50"]));
        server.says(&["rdma-ping-2"]);
        drop(server);
        let outcome = client.join().expect("the client").expect(3);
        for word in ["Flushed", "flushed", ":0 "] {
            assert!(!outcome.stderr.contains(word), "{wire}: {}", outcome.stderr);
        }
        let lost = match wire {
            "iwarp" => "the connection was lost: ",
            _ => "the peer is lost: it has acknowledged nothing for ",
        };
        assert!(outcome.stderr.contains(lost), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(": in turn "), "{}", outcome.stderr);
    }
    let outcome = run(&["ping", &ip(12), "--device", &format!("iwarp:{}", ip(13))]).expect(3);
    assert!(!outcome.stderr.contains(":0 "), "{}", outcome.stderr);
}

/// What InfiniBand's administrator refuses is told in words: a group without members as elsewhere, with the exit code of the
/// network's doing.
#[test]
fn what_the_subnet_administrator_refuses_is_told_in_words() {
    let (_fabric, [mine, theirs]) = fabric_of_two("refused");
    let nobody = run(&["ping", "--multicast", "239.9.9.9", "--device", &mine, "-C", "1"]).expect(3);
    assert!(nobody.stderr.contains("the group has no member in this subnet"), "{}", nobody.stderr);
    let _listener = Server::start(&["ping", "--listen", "--persistent", "--device", &theirs]);
    let fabric = theirs.trim_start_matches("ib:").trim_end_matches("/h2/1");
    run(&["fabric", "link", "down", fabric, "h2/1"]).expect(0);
    std::thread::sleep(Duration::from_secs(2));
    let no_way = run(&["ping", "10.77.0.2", "--device", &mine]).expect(3);
    let named = format!("no path in this subnet to port h2/1 of fabric {fabric} with GID fe80::");
    assert!(no_way.stderr.contains(&named), "{}", no_way.stderr);
}

/// A listener that waits for the next message of a client finds out that it was killed, in half a minute and by name: by its
/// own questions, or iWARP's by TCP.
#[test]
fn a_killed_client_is_noticed() {
    let (_fabric, [mine, theirs]) = fabric_of_two("killed");
    let sockets = |wire: &str| (format!("{wire}:{}", ip(16)), format!("{wire}:{}", ip(17)), ip(17));
    for (near, far, address) in [sockets("rocev2"), sockets("iwarp"), (mine, theirs, "10.77.0.2".to_owned())]
    {
        let server = Server::start(&["ping", "--listen", "--persistent", "--device", &far]);
        let args = ["ping", &address, "--device", &near, "-C", "100", "-i", "60000"];
        let mut client = Server::start_until(&args, "turn=0");
        // It has said nothing for longer than a question takes, and is not lost for that.
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(server.lines_with("lost"), Vec::<String>::new());
        client.signal("KILL");
        client.wait();
        let killed = Instant::now();
        server.says(
            &["ping: ", " is lost after 1 turn"]
                .map(|word| if near.starts_with("iwarp") { "left after 1 turn" } else { word }),
        );
        assert!(killed.elapsed() < Duration::from_secs(30), "{near}: {:?}", killed.elapsed());
        if !near.starts_with("iwarp") {
            server.says(&["everywire: ping ", "the peer is lost: it has acknowledged nothing for "]);
        }
    }
}

/// The README and the help agree on what the program ends with.
#[test]
fn exit_codes_are_told_alike() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README").to_lowercase();
    let help = run(&["--help"]).expect(0).text();
    let codes = [
        "success",
        "failure here",
        "wrong usage or configuration",
        "the peer or the network",
        "data mismatch",
    ];
    for (code, meaning) in codes.into_iter().enumerate() {
        assert!(readme.contains(&format!("\n| {code} | {meaning}")), "{code} in the README");
        assert!(help.contains(&format!("{code} {meaning}")), "{code} in {help}");
    }
}

#[test]
fn wrong_usage_is_2() {
    run(&["ping"]).expect(2);
    run(&["ping", "fe80::1"]).expect(2);
    run(&["ping", "127.0.0.1", "--size", "70000"]).expect(2);
    let outcome = run(&["ping", "127.0.0.1", "--device", "127.0.0.2"]).expect(2);
    assert!(outcome.stderr.contains("rocev2:127.0.0.2"), "{}", outcome.stderr);
    let outcome = run(&["ping", "127.0.0.1", "--device", "rocev2:203.0.113.9"]).expect(2);
    assert!(outcome.stderr.contains("everywire devices"), "{}", outcome.stderr);
    let outcome = run(&["ping", "--multicast", "239.1.2.3", "--device", "iwarp:127.0.0.1"]).expect(2);
    assert!(outcome.stderr.contains("has no datagrams"), "{}", outcome.stderr);
    let outcome = run(&["ping", "127.0.0.1", "--device", "rocev1:nosuch0/10.0.0.1"]).expect(2);
    assert!(outcome.stderr.contains("no interface \"nosuch0\""), "{}", outcome.stderr);
    let outcome = run(&["ping", "--listen", "--device", "iwarp:203.0.113.9"]).expect(2);
    assert!(outcome.stderr.contains("203.0.113.9"), "{}", outcome.stderr);
}

#[test]
fn a_reader_that_left_is_no_failure() {
    let mut child = common::program(&["devices"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
