//! `everywire fabric`: a subnet that runs, programs that come and go on its ports, cables that are pulled.

mod common;

use std::time::{Duration, Instant};

use common::{Scratch, Server, run, tshark_finds_nothing};
use serde_json::Value;

/// The example, under a name of this test's own.
fn fabric(name: &str, more: &[&str]) -> (Server, String) {
    let name = format!("{name}-{}", std::process::id());
    let topology = format!("{}/../../examples/ring.toml", env!("CARGO_MANIFEST_DIR"));
    let args = [&["fabric", "run", &topology, "--name", &name], more].concat();
    (Server::start_until(&args, "ready"), name)
}

fn show(name: &str) -> Value {
    run(&["fabric", "show", name, "--format", "json", "--paths"]).expect(0).json()
}

/// State of a host's port.
fn state(shown: &Value, host: &str) -> String {
    let nodes = shown["nodes"].as_array().expect("nodes");
    let node = nodes.iter().find(|node| node["name"] == host).expect("the host");
    node["end_ports"][0]["state"].as_str().expect("a state").to_owned()
}

#[track_caller]
fn becomes(name: &str, host: &str, wanted: &str) {
    let until = Instant::now() + Duration::from_secs(30);
    while state(&show(name), host) != wanted {
        assert!(Instant::now() < until, "{host} is not {wanted}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn programs_talk_over_it_and_it_ends_in_order() {
    let (mut server, name) = fabric("talk", &[]);
    let scratch = Scratch::new("fabric");
    let capture = scratch.file("h1.pcapng");
    let shown = show(&name);
    assert!(shown["running"].as_bool().expect("a bool") && state(&shown, "h12") == "active");
    // A ring of six switches with two hosts each: two links to the neighbour, five to the far side.
    assert_eq!((&shown["paths"]["h1"]["h2"], &shown["paths"]["h1"]["h7"]), (&2.into(), &5.into()));
    let (mine, theirs) = (format!("ib:{name}/h1/1"), format!("ib:{name}/h7/1"));
    let listener = Server::start(&["ping", "--listen", "--persistent", "--device", &theirs]);
    let args =
        ["ping", "10.77.0.7", "--device", &mine, "-C", "9", "-S", "9000", "--json", "--capture", &capture];
    let result = run(&args).expect(0).json();
    assert_eq!((&result["turns"], &result["verified"]), (&9.into(), &true.into()));
    assert!(std::fs::metadata(&capture).expect("a capture").len() > 9 * 9000);
    let refused = run(&["ping", "10.77.0.7", "--device", &theirs]).expect(1);
    assert!(refused.stderr.contains(&format!("taken by process {}", listener.id())), "{}", refused.stderr);
    let nowhere = run(&["ping", "10.77.9.9", "--device", &mine]).expect(3);
    assert!(nowhere.stderr.contains("10.77.9.9"), "{}", nowhere.stderr);
    server.signal("TERM");
    assert!(server.wait().success());
    let gone = run(&["fabric", "show", &name]).expect(1);
    assert!(gone.stderr.contains("no fabric named"), "{}", gone.stderr);
}

/// Every packet on every link, from the sweep on: `decode` knows the classes of MADs and finds both sums right, and tshark
/// finds nothing malformed.
#[test]
fn its_capture_is_decoded() {
    let scratch = Scratch::new("fabric-links");
    let capture = scratch.file("links.pcapng");
    let (mut server, name) = fabric("links", &["--capture", &capture]);
    let theirs = format!("ib:{name}/h7/1");
    let _listener = Server::start(&["ping", "--listen", "--device", &theirs]);
    // Not the host of the subnet manager, whose questions to the administrator cross no link.
    let mine = format!("ib:{name}/h4/1");
    run(&["ping", "10.77.0.7", "--device", &mine, "-C", "2", "-S", "5000"]).expect(0);
    server.signal("TERM");
    assert!(server.wait().success());
    let outcome = run(&["decode", "--json", &capture]).expect(0);
    let (mut seen, mut counts) = (0, std::collections::BTreeMap::<&str, usize>::new());
    for line in outcome.text().lines() {
        let packet: Value = serde_json::from_str(line).expect("an object");
        assert_eq!((&packet["vcrc"], &packet["icrc"]), (&"good".into(), &"good".into()), "{packet}");
        seen += 1;
        for class in ["smp", "sa", "cm"] {
            *counts.entry(class).or_default() += usize::from(packet.get(class).is_some());
        }
        assert_eq!(packet["bth"]["dest_qp"] == "0x000000", packet.get("smp").is_some(), "{packet}");
    }
    assert!(counts.values().all(|count| *count > 0), "{counts:?} of {seen}");
    let lines = run(&["decode", &capture]).expect(0);
    for word in ["NodeInfo", "PortInfo", "PathRecord", "message=REQ", "RC RDMA Write First", "VCRC good"] {
        assert!(lines.text().contains(word), "no {word}");
    }
    assert!(lines.stderr.contains(&format!(" {seen} InfiniBand, 0 with a bad VCRC")), "{}", lines.stderr);
    tshark_finds_nothing(&capture, "_ws.malformed or !infiniband", "infiniband", 10);
}

#[test]
fn a_dead_process_is_a_link_down_and_the_next_one_brings_it_up() {
    let (server, name) = fabric("dead", &[]);
    let device = format!("ib:{name}/h3/1");
    let mut listener = Server::start(&["ping", "--listen", "--persistent", "--device", &device]);
    listener.signal("KILL");
    listener.wait();
    server.says(&["h3/1", "has ended without a word"]);
    becomes(&name, "h3", "down");
    let _again = Server::start(&["ping", "--listen", "--persistent", "--device", &device]);
    becomes(&name, "h3", "active");
    let mine = format!("ib:{name}/h4/1");
    run(&["ping", "10.77.0.3", "--device", &mine, "-C", "3"]).expect(0);
    becomes(&name, "h4", "active"); // it has left in order
}

#[test]
fn a_cable_is_pulled_and_put_back() {
    let (server, name) = fabric("cable", &["--engine", "minhop"]);
    let lengths = |name: &str| show(name)["paths"]["h1"]["h3"].clone();
    assert_eq!(lengths(&name), 3);
    server.says(&["WARN subnet manager at s1:", "credit loop"]);
    // The switches' ports: the next switch at 1, the one before at 2, hosts at 3 and 4.
    run(&["fabric", "link", "down", &name, "s1/1"]).expect(0);
    let until = Instant::now() + Duration::from_secs(30);
    while lengths(&name) != 7 {
        assert!(Instant::now() < until, "not routed the other way round: {}", lengths(&name));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(run(&["fabric", "show", &name]).expect(0).text().contains("links down: s1/1 - s2/2"));
    let elsewhere = run(&["fabric", "link", "up", &name, "s1/1 - s3/2"]).expect(2);
    assert!(elsewhere.stderr.contains("that of s1/1 goes to s2/2"), "{}", elsewhere.stderr);
    let no_cable = run(&["fabric", "link", "up", &name, "s1/1 s2/2"]).expect(2);
    assert!(no_cable.stderr.contains("as in \"h1/1\" or \"h1/1 - s1/1\""), "{}", no_cable.stderr);
    // As it is shown, in quotes or not, and from either end.
    run(&["fabric", "link", "down", &name, "s1/1", "-", "s2/2"]).expect(0);
    let up = run(&["fabric", "link", "up", &name, "s2/2 - s1/1"]).expect(0).text();
    assert_eq!(up, "link at s2/2 - s1/1 is up\n");
    let again = run(&["fabric", "link", "up", &name, "s2/2 - s1/1"]).expect(0).text();
    assert_eq!(again, "link at s2/2 - s1/1 is up, as it was\n");
    server.says(&["the cable at s2/2 is back"]);
    assert_eq!(server.lines_with("is back").len(), 1, "told once");
    while lengths(&name) != 3 {
        assert!(Instant::now() < until, "not back");
        std::thread::sleep(Duration::from_millis(50));
    }
    let wrong = run(&["fabric", "link", "down", &name, "s1/9"]).expect(2);
    assert!(wrong.stderr.contains("s1/9"), "{}", wrong.stderr);
    let wrong = run(&["fabric", "link", "down", &name, "spine9/1"]).expect(2);
    for words in ["\"spine9\" is no host or switch", "hosts h1, h2", "switches s1, s2"] {
        assert!(wrong.stderr.contains(words), "{words}: {}", wrong.stderr);
    }
    let wrong = run(&["ping", "10.77.0.1", "--device", &format!("ib:{name}/h99/1")]).expect(2);
    assert!(wrong.stderr.contains("\"h99\" is no host or switch"), "{}", wrong.stderr);
    let wrong = run(&["ping", "10.77.0.1", "--device", &format!("ib:{name}/h1/1,path=4")]).expect(2);
    assert!(wrong.stderr.contains("path bits 4: the port has LMC 0"), "{}", wrong.stderr);
    // One's own cable.
    run(&["fabric", "link", "down", &name, "h12/1"]).expect(0);
    let pulled = run(&["ping", "10.77.0.1", "--device", &format!("ib:{name}/h12/1")]).expect(3);
    let words = format!("port ib:{name}/h12/1 has no link: its cable is pulled");
    assert!(pulled.stderr.contains(&words), "{}", pulled.stderr);
    let waited = pulled.stderr.lines().next().unwrap_or_default();
    assert!(waited.contains("the port has no link") && waited.contains("waited 3s"), "{}", pulled.stderr);
}

#[test]
fn a_name_is_taken_once_and_mistakes_are_usage() {
    let (_server, name) = fabric("taken", &["--no-sm"]);
    let topology = format!("{}/../../examples/ring.toml", env!("CARGO_MANIFEST_DIR"));
    let second = run(&["fabric", "run", &topology, "--name", &name]).expect(1);
    assert!(second.stderr.contains("runs already (process"), "{}", second.stderr);
    run(&["fabric", "run", "nosuch.toml"]).expect(2);
    let unnamed = run(&["fabric", "run", &topology, "--ibsim", ""]).expect(2);
    assert!(unnamed.stderr.contains("as in `--ibsim sim`"), "{}", unnamed.stderr);
    assert!(run(&["fabric", "--help"]).expect(0).text().contains("Fabrics are per user"));
    run(&["fabric", "run", &topology, "--name", "a/b"]).expect(2);
    run(&["ping", "10.77.0.1", "--device", "ib:fabric"]).expect(2);
}

/// Two subnets with a manager each: programs talk through the router, whose packets tshark finds nothing wrong with.
#[test]
fn programs_talk_through_a_router() {
    let name = format!("routed-{}", std::process::id());
    let topology = format!("{}/../../examples/two-subnets.toml", env!("CARGO_MANIFEST_DIR"));
    let scratch = Scratch::new("routed");
    let capture = scratch.file("links.pcapng");
    let run_it = ["fabric", "run", &topology, "--name", &name, "--capture", &capture];
    let mut server = Server::start_until(&run_it, "ready");
    let text = run(&["fabric", "show", &name]).expect(0).text();
    assert!(text.contains("\nrouters\n  r1/1") && text.contains("at a1/1 and b1/1"), "{text}");
    let paths = run(&["fabric", "show", &name, "--paths"]).expect(0).text();
    assert!(paths.contains("a1  0  2  4  4\n") && paths.contains("4 links: 8 pairs"), "{paths}");
    for manager in ["a1/1", "b1/1"] {
        server.says(&[&format!("subnet manager at {manager}: the subnet is up: 1 switch, 3 ports of hosts")]);
    }
    let (mine, theirs) = (format!("ib:{name}/a2/1"), format!("ib:{name}/b2/1"));
    let _listener = Server::start(&["ping", "--listen", "--persistent", "--device", &theirs]);
    let args = ["ping", "10.78.0.2", "--device", &mine, "-C", "9", "-S", "9000", "--json"];
    let result = run(&args).expect(0).json();
    assert_eq!((&result["turns"], &result["verified"]), (&9.into(), &true.into()));
    let refused = run(&["ping", "10.78.0.2", "--device", &format!("ib:{name}/r1/1")]).expect(2);
    assert!(refused.stderr.contains("a router's port"), "{}", refused.stderr);
    server.signal("TERM");
    assert!(server.wait().success());
    tshark_finds_nothing(&capture, "_ws.malformed or !infiniband", "infiniband", 10);
}

/// Three subnets in a row: each manager and each router knows which router leads on, and hops count down at both.
#[test]
fn programs_talk_through_two_routers() {
    let name = format!("row-{}", std::process::id());
    let topology = format!("{}/../../examples/three-subnets.toml", env!("CARGO_MANIFEST_DIR"));
    let mut server = Server::start_until(&["fabric", "run", &topology, "--name", &name], "ready");
    assert_eq!(show(&name)["paths"]["a2"]["c2"], 6);
    for (from, to, ip) in [("a2", "c2", "10.79.0.2"), ("c2", "b2", "10.78.0.2"), ("b2", "a2", "10.77.0.2")] {
        let (mine, theirs) = (format!("ib:{name}/{from}/1"), format!("ib:{name}/{to}/1"));
        let _listener = Server::start(&["ping", "--listen", "--persistent", "--device", &theirs]);
        let args = ["ping", ip, "--device", &mine, "-C", "9", "-S", "9000", "--json"];
        let result = run(&args).expect(0).json();
        assert_eq!((&result["turns"], &result["verified"]), (&9.into(), &true.into()), "{from} to {to}");
    }
    server.signal("TERM");
    assert!(server.wait().success());
}

/// A message at the ibsim door that is none is told of with both sockets' names.
#[test]
fn a_stranger_at_the_ibsim_door_is_told_of() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let door = format!("door-{}", std::process::id());
    let (server, _) = fabric("strange", &["--ibsim", &door]);
    let own = format!("stranger-{}", std::process::id());
    let named = |name: &str| SocketAddr::from_abstract_name(name).expect("a name");
    let socket = UnixDatagram::bind_addr(&named(&own)).expect("a socket");
    socket.send_to_addr(b"GET / HTTP/1.1", &named(&format!("{door}:ctl\0"))).expect("a door");
    server.says(&["WARN", &own, &format!("{door}:ctl"), &format!("process {}", std::process::id())]);
}
