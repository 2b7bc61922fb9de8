//! `everywire devices`: every kind of device that can be opened, and what is no device at all.

mod common;

use common::netns::Namespaces;
use common::{Server, device, ip, run, run_command};
use serde_json::Value;

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

#[test]
fn every_wire_is_listed() {
    let text = run(&["devices"]).expect(0).text();
    assert!(text.contains("rocev2:127.0.0.1 ") && text.contains("iwarp:127.0.0.1 "), "{text}");
    assert!(!text.contains("raw:lo/") && !text.contains("rocev1:lo/"), "loopback is no Ethernet: {text}");
    let Some(pair) = Namespaces::pair("d") else { return };
    let listed =
        objects(&run_command(pair.everywire(0, &["devices", "--json"]), Vec::new()).expect(0).text());
    for name in ["rocev2:10.97.0.1", "rocev2-raw:eth0/10.97.0.1", "rocev1:eth0/10.97.0.1", "iwarp:10.97.0.1"]
    {
        let found =
            listed.iter().find(|one| one["device"] == name).unwrap_or_else(|| panic!("{name}: {listed:?}"));
        assert_eq!(found["interface"], "eth0");
        assert_eq!(found["active_mtu"].is_null(), name.starts_with("iwarp"), "{found}");
    }
}

#[test]
fn ports_of_a_running_fabric_are_listed() {
    let ring = format!("{}/../../examples/ring.toml", env!("CARGO_MANIFEST_DIR"));
    let name = format!("listed-{}", std::process::id());
    let _fabric = Server::start_until(&["fabric", "run", &ring, "--name", &name], "ready");
    let listed = objects(&run(&["devices", "--json"]).expect(0).text());
    let wanted = format!("ib:{name}/h1/1");
    assert!(listed.iter().any(|one| one["device"] == wanted.as_str()), "{listed:?}");
    assert!(run(&["devices"]).expect(0).text().contains(&wanted));
}

/// An iWARP device has no GIDs of a type and no multicast; a RoCE device has both.
#[test]
fn an_iwarp_device_is_shown_as_one() {
    let shown = run(&["devices", "--device", &format!("iwarp:{}", ip(1))]).expect(0).text();
    assert!(shown.contains(&ip(1)), "{shown}");
    for word in ["RoCE", "gids", "mcast", "max_ah"] {
        assert!(!shown.contains(word), "{word}: {shown}");
    }
    let shown = run(&["devices", "--device", &device(1)]).expect(0).text();
    assert!(shown.contains("RoCE v2") && shown.contains("max_mcast_grp"), "{shown}");
}

#[test]
fn a_wrong_name_is_told_every_form() {
    for (name, word) in [
        ("ib", "FABRIC/HOST/PORT is needed"),
        ("rocev1", "INTERFACE/ADDRESS is needed"),
        ("infiniband:h1", "no wire named"),
    ] {
        let said = run(&["devices", "--device", name]).expect(2).stderr;
        assert!(said.contains(word), "{name}: {said}");
        for form in
            ["rocev2:ADDRESS", "rocev2-raw:INTERFACE", "rocev1:INTERFACE", "iwarp:ADDRESS", "ib:FABRIC"]
        {
            assert!(said.contains(form), "{name}: {form}: {said}");
        }
    }
    let said = run(&["ping", &ip(2), "--device", "ib"]).expect(2).stderr;
    assert!(said.contains("FABRIC/HOST/PORT is needed"), "{said}");
}

/// Who has an address is told: the process, or the two devices of one.
#[test]
fn a_clash_is_told() {
    let export = "nqn.2026-11.example:clash=ram:1MiB";
    let server = Server::start(&["serve", "--device", &device(3), "--nvme", export]);
    let said = run(&["serve", "--device", &device(3), "--nvme", export]).expect(1).stderr;
    assert!(said.contains(&format!("held by process {}", server.id())), "{said}");
    let twice = [device(4), format!("rocev2-raw:lo/{}", ip(4))];
    let said =
        run(&["serve", "--device", &twice[0], "--device", &twice[1], "--nvme", export]).expect(2).stderr;
    assert!(twice.iter().all(|name| said.contains(name.as_str())), "{said}");
}

/// Whoever does not speak MPA is told of with both addresses, and counted.
#[test]
fn a_stranger_at_an_iwarp_port_is_told_of() {
    use std::io::{Read, Write};
    let at = format!("{}:4420", ip(5));
    let name = format!("iwarp:{}", ip(5));
    let server = Server::start(&["serve", "--device", &name, "--nvme", "nqn.2026-11.example:s=ram:1MiB"]);
    let mut stream = std::net::TcpStream::connect(&at).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    let _ = stream.read(&mut [0; 1]);
    let own = stream.local_addr().unwrap().to_string();
    server.says(&["WARN", &at, &own, "MPA"]);
    server.signal("TERM");
    server.says(&["counted", "mpa_strangers 1"]);
}
