//! `everywire fabric`: a fabric that is just starting, ends under its programs, or comes back.

mod common;

use std::time::{Duration, Instant};

use common::{Scratch, Server, fabric_of_two, run};

fn ring(name: &str) -> (String, [String; 5]) {
    let name = format!("{name}-{}", std::process::id());
    let topology = format!("{}/../../examples/ring.toml", env!("CARGO_MANIFEST_DIR"));
    let args = ["fabric", "run", &topology, "--name", &name].map(str::to_owned);
    (name, args)
}

/// Hosts h1 and so on, for a topology.
fn hosts(count: usize) -> String {
    (1..=count).map(|n| format!("[[host]]\nname = \"h{n}\"\n")).collect()
}

fn start(args: &[String; 5]) -> Server {
    Server::start_until(&args.each_ref().map(String::as_str), "ready")
}

/// `everywire fabric run X & everywire fabric show X`: the second may be first.
#[test]
fn whoever_asks_for_a_fabric_that_starts_waits_for_it() {
    let (name, args) = ring("starting");
    let starter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        start(&args)
    });
    assert!(run(&["fabric", "show", &name]).expect(0).text().contains("h12"));
    run(&["fabric", "link", "down", &name, "s1/1"]).expect(0);
    drop(starter.join().expect("a fabric"));
}

/// Where nobody is, is known at once; who only does not answer is waited for, not for minutes and not in silence.
#[test]
fn a_peer_that_is_absent_or_silent_is_told_soon() {
    let (_fabric, [mine, theirs]) = fabric_of_two("absent");
    let name = theirs.trim_start_matches("ib:").trim_end_matches("/h2/1");
    let began = Instant::now();
    let absent = run(&["ping", "10.77.0.2", "--device", &mine]).expect(3);
    let words = format!("no program is attached to port h2/1 of fabric {name}");
    assert!(absent.stderr.contains(&words), "{}", absent.stderr);
    assert!(absent.stderr.contains("10.77.0.1") && absent.stderr.contains("10.77.0.2:7174"), "both ends");
    let absent = run(&["perf", "write", "10.77.0.2", "--device", &mine]).expect(3);
    assert!(absent.stderr.contains(&words), "{}", absent.stderr);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());

    let server = Server::start(&["ping", "--listen", "--persistent", "--device", &theirs]);
    server.signal("STOP");
    let began = Instant::now();
    let silent = run(&["ping", "10.77.0.2", "--device", &mine]).expect(3);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let waiting = silent.stderr.lines().next().unwrap_or_default();
    for word in ["waiting for an answer", "10.77.0.1", "10.77.0.2:7174"] {
        assert!(waiting.contains(word), "no {word}: {}", silent.stderr);
    }
    for word in
        ["connecting 10.77.0.1", "to 10.77.0.2:7174", "within the 10000 ms", "transmissions, one every"]
    {
        assert!(silent.stderr.contains(word), "no {word}: {}", silent.stderr);
    }
}

/// The fabric ends: clients do so at once, servers go on with the next one of its name.
#[test]
fn servers_outlive_their_fabric_and_clients_do_not() {
    const NQN: &str = "nqn.2026-11.example:disk";
    let (name, args) = ring("outlived");
    let mut fabric = start(&args);
    let device = |host: u8| format!("ib:{name}/h{host}/1");
    let listener = Server::start(&["ping", "--listen", "--persistent", "--device", &device(2)]);
    let export = format!("{NQN}=ram:4MiB");
    let target = Server::start(&["serve", "--device", &device(3), "--nvme", &export]);
    let waiting = [device(5), device(6)].map(|device| {
        std::thread::spawn(move || {
            let ping = ["ping", "10.77.0.2", "--device", &device, "-C", "1000000", "--interval", "5"];
            let bench = ["nvme", "bench", "10.77.0.3", "--device", &device, "--seconds", "60"];
            let outcome = run(if device.contains("/h5/") { &ping[..] } else { &bench[..] });
            (outcome, Instant::now())
        })
    });
    std::thread::sleep(Duration::from_secs(2));
    let ended = Instant::now();
    fabric.signal("TERM");
    assert!(fabric.wait().success());
    for client in waiting {
        let (outcome, at) = client.join().expect("an outcome");
        let outcome = outcome.expect(3);
        assert!(outcome.stderr.contains("the port is gone: the fabric ends"), "{}", outcome.stderr);
        assert!(at - ended < Duration::from_secs(3), "{:?}", at - ended);
    }
    for server in [&listener, &target] {
        server.says(&["the port is gone"]);
    }
    let _fabric = start(&args);
    for server in [&listener, &target] {
        server.says(&["attached again"]);
    }
    run(&["ping", "10.77.0.2", "--device", &device(5), "-C", "3"]).expect(0);
    let found = run(&["nvme", "discover", "10.77.0.3", "--device", &device(6)]).expect(0);
    assert!(found.text().contains(NQN), "{}", found.text());
    assert_eq!(listener.lines_with("WARN").len(), 1);
}

/// A measurement's second process takes another port than the subnet manager's and leaves it in order; and a program that is
/// killed at the manager's port does not take the manager with it.
#[test]
fn the_subnet_manager_outlives_programs_at_its_port() {
    let name = format!("manager-{}", std::process::id());
    let topology = format!("{}/../../examples/fat-tree-16.toml", env!("CARGO_MANIFEST_DIR"));
    let fabric = Server::start_until(&["fabric", "run", &topology, "--name", &name], "ready");
    let device = |host: u8| format!("ib:{name}/h{host}/1");
    run(&["perf", "write", "--device", &device(3), "--seconds", "0.2"]).expect(0);
    fabric.says(&["h2/1: process", "it has left"]);
    let bench = ["nvme", "bench", "--device", &device(3), "--seconds", "0.2"];
    let bench = run(&bench).expect(0);
    assert!(!bench.stderr.contains("standard input"), "{}", bench.stderr);
    assert_eq!(fabric.lines_with("h1/1: process"), Vec::<String>::new());
    assert_eq!(fabric.lines_with("without a word"), Vec::<String>::new());

    let listen = ["ping", "--listen", "--persistent", "--device", &device(1)];
    let mut listener = Server::start(&listen);
    listener.signal("KILL");
    listener.wait();
    fabric.says(&["h1/1", "has ended without a word; the link stays up, since the subnet manager is there"]);
    let _listener = Server::start(&listen);
    run(&["ping", "10.77.0.1", "--device", &device(3), "-C", "3"]).expect(0);
}

/// Two switches without a cable between them: whoever the subnet manager cannot reach is named, and no longer once it can.
#[test]
fn hosts_without_a_way_are_named() {
    let scratch = Scratch::new("islands");
    let file = scratch.file("islands.toml");
    let hosts = hosts(4);
    let links = "links = [\"h1 - s1/1\", \"h2 - s1/2\", \"h3 - s2/1\", \"h4 - s2/2\"]\n";
    let switches = "[[switch]]\nname = \"s1\"\nports = 4\n[[switch]]\nname = \"s2\"\nports = 4\n";
    std::fs::write(&file, format!("{links}{hosts}{switches}")).expect("a file can be written");
    let name = format!("islands-{}", std::process::id());
    let fabric = Server::start_until(&["fabric", "run", &file, "--name", &name], "no way from");
    fabric.says(&["WARN", "no way from the subnet manager to: h3/1, h4/1"]);
    for what in [&file, &name] {
        let shown = run(&["fabric", "show", what]).expect(0).text();
        assert!(shown.contains("no way from the subnet manager to: h3/1, h4/1"), "{shown}");
        assert!(shown.lines().filter(|line| line.ends_with("no way")).count() == 2, "{shown}");
    }
    run(&["fabric", "link", "down", &name, "h2/1"]).expect(0);
    fabric.says(&["no way from the subnet manager to: h2/1, h3/1, h4/1"]);
    run(&["fabric", "link", "up", &name, "h2/1"]).expect(0);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(fabric.lines_with("no way from").len(), 3, "once for each change");
}

/// A manager that is cut off leaves ports active, and questions for the way without an answer: it is the manager who is told of.
#[test]
fn a_silent_subnet_manager_is_told_as_such() {
    let scratch = Scratch::new("silent");
    let file = scratch.file("three.toml");
    let hosts = hosts(3);
    let links = "sm = \"h1/1\"\nlinks = [\"h1 - s1/1\", \"h2 - s1/2\", \"h3 - s1/3\"]\n";
    std::fs::write(&file, format!("{links}{hosts}[[switch]]\nname = \"s1\"\nports = 4\n")).expect("a file");
    let name = format!("silent-{}", std::process::id());
    let _fabric = Server::start_until(&["fabric", "run", &file, "--name", &name], "ready");
    let device = |host: u8| format!("ib:{name}/h{host}/1");
    let _listener = Server::start(&["ping", "--listen", "--persistent", "--device", &device(3)]);
    run(&["ping", "10.77.0.3", "--device", &device(2), "-C", "1"]).expect(0);
    run(&["fabric", "link", "down", &name, "h1/1"]).expect(0);
    let began = Instant::now();
    for client in
        [&["ping", "10.77.0.3"][..], &["perf", "write", "10.77.0.3"], &["nvme", "discover", "10.77.0.3"]]
    {
        let silent = run(&[client, &["--device", &device(2)]].concat()).expect(3);
        assert!(
            silent.stderr.contains("the subnet manager does not answer"),
            "{client:?}: {}",
            silent.stderr
        );
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    // It looks round as soon as its own cable is back.
    run(&["fabric", "link", "up", &name, "h1/1"]).expect(0);
    run(&["ping", "10.77.0.3", "--device", &device(2), "-C", "1"]).expect(0);
}

/// Who was a member of a group when the fabric ended is one again when the next of its name is there.
#[test]
fn members_of_a_group_join_again_with_the_next_fabric() {
    const GROUP: &str = "239.1.2.3";
    let (name, args) = ring("members");
    let mut fabric = start(&args);
    let device = |host: u8| format!("ib:{name}/h{host}/1");
    let members = [2, 9].map(|host| {
        Server::start_until(
            &["ping", "--multicast", GROUP, "--listen", "--device", &device(host)],
            "member of",
        )
    });
    let answers = |from: u8| {
        let ask = [
            "ping",
            "--multicast",
            GROUP,
            "--device",
            &device(from),
            "-C",
            "10",
            "--interval",
            "100",
            "--json",
        ];
        run(&ask).json()["members"].as_array().map(Vec::len)
    };
    assert_eq!(answers(5), Some(2));
    fabric.signal("TERM");
    assert!(fabric.wait().success());
    members.iter().for_each(|member| _ = member.says(&["the port is gone"]));
    let _fabric = start(&args);
    members.iter().for_each(|member| _ = member.says(&["attached again"]));
    let until = Instant::now() + Duration::from_secs(30);
    while answers(6) != Some(2) {
        assert!(Instant::now() < until, "not all are members again");
    }
}
