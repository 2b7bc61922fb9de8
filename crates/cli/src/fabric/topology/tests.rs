//! What topologies say and what is refused, with what words.

use everywire_net::fabric_host::plan::{MAX_NODES, Speed, Width};
use everywire_net::fabric_host::snapshot::Snapshot;

use super::*;

fn plan(text: &str) -> Plan {
    parse(text, "t.toml", "t").unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    parse(text, "t.toml", "t").expect_err(text).to_string()
}

/// The examples at the project's root.
fn example(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    read(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_examples_are_what_their_comments_say() {
    let tree = example("fat-tree-16.toml");
    assert_eq!((tree.hosts.len(), tree.switches.len(), tree.links.len()), (16, 8, 16 + 4 * 4));
    assert_eq!((tree.name.as_str(), tree.roots.len(), tree.engine), ("fat-tree-16", 4, Engine::FatTree));
    assert_eq!(tree.hosts[1].ips, ["10.77.0.2".parse::<IpAddr>().unwrap()]);
    let ring = example("ring.toml");
    assert_eq!((ring.hosts.len(), ring.switches.len(), ring.links.len()), (12, 6, 18));
    assert_eq!(ring.sm, PortRef { node: ring.node("s1").unwrap(), port: 0 });
    let two = example("two-managers.toml");
    assert_eq!((two.sm_key, two.sm_priority, two.hosts.len(), two.links.len()), (Some(1), 3, 4, 6));
    let torus = example("torus.toml");
    assert_eq!((torus.hosts.len(), torus.switches.len(), torus.links.len()), (16, 16, 16 + 32));
    assert_eq!(torus.sm, PortRef { node: torus.node("h1").unwrap(), port: 1 });
    let office = example("written-out.toml");
    assert_eq!((office.name.as_str(), office.hosts.len(), office.links.len()), ("office", 3, 6));
    let fast = office.links[4].shape;
    assert_eq!((fast.rate.width, fast.rate.speed, fast.mtu), (Width::X4, Speed::Edr, Mtu::M2048));
    assert_eq!((fast.delay, fast.vls), (Duration::from_nanos(500), 4));
    assert_eq!(office.links[5].shape.delay, Duration::from_nanos(200), "defaults where nothing is said");
    assert_eq!(office.partitions[0].limited.len(), 2);
}

#[test]
fn a_link_may_have_bit_errors_and_retry_and_says_so() {
    let plan = plan(
        "links = [\"h1 - s1/1\"]\n[defaults]\nbit_errors_ppm = 250\n[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n\
         [[switch]]\nname = \"s1\"\nports = 2\n[[link]]\nends = [\"h2\", \"s1/2\"]\nretry = true\nbit_errors_ppm = 10\n",
    );
    let [a, b] = [plan.links[0].shape, plan.links[1].shape];
    assert_eq!((a.retry, a.bit_errors_ppm, b.retry, b.bit_errors_ppm), (false, 250, true, 10));
    let text = crate::fabric::draw::text(&Snapshot::of_plan(&plan));
    let line = |port: &str| text.lines().find(|line| line.contains(port)).unwrap().trim_end().to_owned();
    assert!(line("1 - h1/1").ends_with("4xQDR, bit errors 250 ppm"), "{text}");
    assert!(line("2 - h2/1").ends_with("4xQDR, retry, bit errors 10 ppm"), "{text}");
}

/// Links between hosts, as anybody can count them on paper.
#[test]
fn generated_shapes_have_the_distances_of_their_names() {
    let lengths = |text: &str| -> Vec<u32> {
        let mut all: Vec<u32> =
            Snapshot::of_plan(&plan(text)).path_lengths().concat().into_iter().flatten().collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(lengths("generate.fat_tree = { hosts = 16, radix = 8 }"), [0, 2, 4]);
    assert_eq!(lengths("generate.fat_tree = { hosts = 16, radix = 4 }"), [0, 2, 4, 6]);
    assert_eq!(lengths("generate.ring = { switches = 6 }"), [0, 3, 4, 5]);
    assert_eq!(lengths("generate.torus = { columns = 4, rows = 4 }"), [0, 3, 4, 5, 6]);
    let all = Snapshot::of_plan(&plan("generate.fat_tree = { hosts = 16, radix = 4 }")).path_lengths();
    assert!(all.concat().iter().all(Option::is_some), "everybody reaches everybody");
}

#[test]
fn mistakes_are_told_with_key_value_and_limit() {
    let host = "[[host]]\nname = \"h1\"\n";
    let pair = "[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[switch]]\nname = \"s1\"\nports = 2\n";
    for (text, words) in [
        ("colour = 1", &["unknown field `colour`", "line 1"][..]),
        ("", &["host", "at least one"]),
        ("[[host]]\nname = \"a b\"", &["host.name", "a b", "31"]),
        ("[[host]]\nname = \"h\"\nports = 9", &["host.ports: 9", "1 to 2"]),
        ("[[host]]\nname = \"h\"\nguid = \"0\"", &["host.guid", "16 hexadecimal"]),
        ("[[host]]\nname = \"h\"\nip = \"0.0.0.0\"", &["host.ip", "0.0.0.0"]),
        ("[[host]]\nname = \"h\"\nip = [\"10.0.0.1\", \"10.0.0.2\"]", &["2 addresses", "1 ports"]),
        (&format!("{host}{host}"), &["host.name", "h1", "two nodes"]),
        (&format!("lmc = 8\n{host}"), &["lmc: 8", "7"]),
        (&format!("sm = \"x/1\"\n{host}"), &["sm", "x", "h1"]),
        (&format!("sm_priority = 16\n{host}"), &["sm_priority: 16", "15"]),
        (&format!("sm_key = \"0\"\n{host}"), &["sm_key", "16 hexadecimal"]),
        (&format!("sm = \"s1/2\"\n{pair}"), &["sm", "s1/2", "port 0"]),
        (&format!("roots = [\"h1\"]\n{host}"), &["roots", "h1", "host"]),
        (&format!("links = [\"h1/1 s1/1\"]\n{pair}"), &["links", "h1/1 - s1/3"]),
        (&format!("links = [\"h1 - s1\"]\n{pair}"), &["which port of s1"]),
        (&format!("links = [\"h1 - s1/3\"]\n{pair}"), &["s1/3", "1 to 2"]),
        (&format!("links = [\"h1 - s1/1\", \"h2 - s1/1\"]\n{pair}"), &["s1/1 has a link already"]),
        (&format!("links = [\"s1/1 - s1/2\"]\n{pair}"), &["both ends are at s1"]),
        (&format!("defaults.mtu = 1500\n{host}"), &["defaults", "mtu: 1500", "4096"]),
        (&format!("defaults.vls = 3\n{host}"), &["defaults", "vls: 3", "15"]),
        (&format!("defaults.rate = \"5x\"\n{host}"), &["rate", "5x", "4xQDR"]),
        (&format!("defaults.delay_us = -1.0\n{host}"), &["delay_us: -1", "100000"]),
        (&format!("defaults.bit_errors_ppm = 1000001\n{host}"), &["bit_errors_ppm: 1000001", "1000000"]),
        (&format!("defaults.retry = 1\n{host}"), &["retry", "boolean"]),
        (&format!("engine = \"best\"\n{host}"), &["best", "minhop"]),
        (&format!("layout.grid.columns = 0\n{host}"), &["layout.grid.columns: 0"]),
        ("generate.fat_tree = { hosts = 16, radix = 5 }", &["radix: 5", "even"]),
        ("generate.fat_tree = { hosts = 17, radix = 4 }", &["hosts: 17", "16"]),
        ("generate.ring = { switches = 2 }", &["switches: 2", "3"]),
        ("generate.ring = { switches = 3, hosts_per_switch = 63 }", &["hosts_per_switch: 63", "62"]),
        ("generate.torus = { columns = 100, rows = 100 }", &[&MAX_NODES.to_string()]),
        ("generate.torus = { columns = 3, rows = 2 }", &["rows: 2", "3"]),
        (&format!("[[partition]]\npkey = 0x8001\n{host}"), &["partition.pkey: 0x8001", "0x7ffe"]),
        (&format!("[[partition]]\npkey = 1\nfull = [\"s1/1\"]\n{pair}"), &["s1/1", "switch"]),
    ] {
        let error = refused(text);
        assert!(error.starts_with("t.toml: "), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{text}\n{error}\nlacks one of {words:?}");
    }
}

#[test]
fn addresses_and_guids_that_are_given_are_left_to_nobody_else() {
    let plan = plan(
        "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\nip = \"10.77.0.1\"\nguid = \"0002:c903:0000:0001\"\n",
    );
    assert_eq!(plan.hosts[0].ips, ["10.77.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(plan.hosts[1].guid, Guid(0x0002_c903_0000_0001));
    let twice = "[[host]]\nname = \"a\"\nguid = \"0x10\"\n[[host]]\nname = \"b\"\nguid = \"0x11\"\n";
    assert!(refused(twice).contains("of a and of b"));
}
