//! `everywire` over RoCE v1 between two network namespaces. It needs CAP_NET_ADMIN and CAP_NET_RAW; without, it says so and
//! passes.

mod common;

use common::netns::Namespaces;
use common::{Scratch, Server, run_command, tshark_finds_nothing};
use serde_json::{Value, json};

#[test]
fn ping_and_its_capture() {
    let Some(pair) = Namespaces::pair("p") else { return };
    let scratch = Scratch::new("rocev1");
    let capture = scratch.file("rocev1.pcapng");
    let device = "rocev1:eth0/10.97.0.1,vlan=7,priority=3";
    let listen = ["ping", "--listen", "--device", device];
    let _server = Server::start_command(pair.everywire(0, &listen), "listening on");
    let client = ["ping", "10.97.0.1", "--device", "rocev1:eth0/10.97.0.2,vlan=7,priority=5", "-C", "3"];
    let args = [&client[..], &["-S", "5000", "--json", "--capture", &capture]].concat();
    let said = run_command(pair.everywire(1, &args), Vec::new()).expect(0).json();
    assert_eq!((&said["turns"], &said["verified"]), (&3.into(), &true.into()));
    let decoded = common::run(&["decode", "--json", &capture]).expect(0);
    let frames: Vec<Value> = decoded.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(frames.len() > 20, "{}", decoded.text());
    for frame in &frames {
        assert_eq!(frame["icrc"], "good", "{frame}");
        assert!(frame["grh"]["sgid"].as_str().unwrap().starts_with("::ffff:10.97.0."), "{frame}");
        // As on the wire, though the kernel takes the tag out of what it hands over.
        let priority = if frame["src"] == "10.97.0.2" { 5 } else { 3 };
        assert_eq!(
            (&frame["vlan"]["vid"], &frame["vlan"]["priority"]),
            (&7.into(), &priority.into()),
            "{frame}"
        );
    }
    tshark_finds_nothing(&capture, "_ws.malformed or !infiniband", "infiniband", 10);
}

/// A member answers whoever asks the group, by frames of RoCE v1 and by UDP.
#[test]
fn a_group_is_asked_for_its_members() {
    let Some(pair) = Namespaces::pair("m") else { return };
    for (wire, mgid) in [("rocev1:eth0/", "ff0e::ffff:efc0:7"), ("rocev2:", "::ffff:239.192.0.7")] {
        let [member, asker] = [1, 2].map(|n| format!("{wire}10.97.0.{n}"));
        let group = ["ping", "--multicast", "239.192.0.7", "--device"];
        let listen = pair.everywire(0, &[&group[..], &[&member, "--listen"]].concat());
        let _server = Server::start_command(listen, "member of");
        let ask = [&group[..], &[&asker, "--json", "-C", "3", "--interval", "20"]].concat();
        let said = run_command(pair.everywire(1, &ask), Vec::new()).expect(0).json();
        assert_eq!(said["members"], json!(["10.97.0.1"]), "{wire}: {said}");
        assert_eq!((&said["mgid"], &said["sent"], &said["answers"]), (&mgid.into(), &3.into(), &3.into()));
    }
}
