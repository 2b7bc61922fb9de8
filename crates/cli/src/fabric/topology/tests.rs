//! What topologies say and what is refused, with what words.

use everywire_net::fabric_host::plan::{MAX_NODES, Speed, VlWeight, Width};
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
    let mut lacking = Vec::new();
    for (text, words) in [
        ("colour = 1", &["line 1", "\"colour\" is no key", "engine"][..]),
        (
            "\n[[host]]\nname = \"h\"\nprots = 1",
            &["line 4", "\"prots\" is no key of [host]", "name, ports, guid"],
        ),
        ("[[host]]\nname = \"h\"\nports = \"two\"", &["line 3", "host.ports: \"two\"", "from 1 to 2"]),
        ("[[host]]\nname = \"h\"\nports = 300", &["host.ports: 300", "1 to 2"]),
        ("[[host]]\nname = \"h\"\nip = \"10.0.0\"", &["line 3", "host.ip: \"10.0.0\"", "192.0.2.1"]),
        ("[[host]]\nname = 7", &["line 2", "host.name: 7", "in quotes"]),
        ("[[host]]\nports = 1\n", &["line 1", "host needs the key \"name\""]),
        ("[[switch]]\nname = \"s\"\n", &["line 1", "switch needs the key \"ports\"", "1 to 64"]),
        ("[host]\nname = \"h\"", &["line 1", "host: ", "[[host]]"]),
        ("host = 3", &["line 1", "host: 3", "[[host]]"]),
        ("defaults = \"fast\"", &["line 1", "defaults: \"fast\"", "[defaults]"]),
        ("links = [\n  \"a - b\",\n  5,\n]", &["line 3", "links: 5", "h1/1 - s1/3"]),
        ("links = \"a - b\"", &["line 1", "links: \"a - b\"", "a list of cables"]),
        ("[[link]]\nends = [\"a\"]", &["line 2", "link.ends", "a list of two ports"]),
        (
            "[generate]\nfat_tree = { hosts = \"x\", radix = 8 }",
            &["line 2", "generate.fat_tree.hosts: \"x\"", "number"],
        ),
        ("[generate]\nfat_tree = { hosts = 16 }", &["line 2", "generate.fat_tree needs the key \"radix\""]),
        ("[generate]\ncube = { hosts = 16 }", &["line 2", "cube", "fat_tree"]),
        ("generate = 5", &["line 1", "generate: 5", "fat_tree = { hosts = 16, radix = 8 }"]),
        ("engine = 5", &["line 1", "engine: 5", "minhop"]),
        ("layout = \"round\"", &["line 1", "layout: \"round\"", "circle"]),
        ("sm_priority = -1", &["sm_priority: -1", "0 to 15"]),
        ("[defaults]\nrate = 4", &["line 2", "defaults.rate: 4", "HDR"]),
        ("[[partition]]\npkey = 70000", &["partition.pkey: 70000", "0x7ffe"]),
        ("name = \"unclosed", &["line 1", "unclosed"]),
        ("", &["host", "at least one"]),
        ("[[host]]\nname = \"a b\"", &["host.name", "a b", "31"]),
        ("[[host]]\nname = \"h\"\nports = 9", &["host.ports: 9", "1 to 2"]),
        ("[[host]]\nname = \"h\"\nguid = \"0\"", &["host.guid", "16 hexadecimal"]),
        ("[[host]]\nname = \"h\"\nip = \"0.0.0.0\"", &["host.ip", "0.0.0.0"]),
        ("[[host]]\nname = \"h\"\nip = [\"10.0.0.1\", \"10.0.0.2\"]", &["2 addresses", "1 port"]),
        (&format!("{host}{host}"), &["host.name", "h1", "a host in line 2 and a host in line 4"]),
        (
            &format!("{host}[[switch]]\nports = 2\nname = \"h1\""),
            &["switch.name", "a host in line 2 and a switch in line 5"],
        ),
        (
            "generate.ring = { switches = 3 }\n[[host]]\nname = \"h2\"",
            &["host.name", "\"h2\"", "host 2 and host 4"],
        ),
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
        (&format!("defaults.retry = 1\n{host}"), &["defaults.retry: 1", "true or false"]),
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
        for word in ["struct", "enum", "variant", "u8", "usize", "sequence", "OneOrMore"] {
            assert!(!error.contains(word), "{error}");
        }
        if !words.iter().all(|word| error.contains(word)) {
            lacking.push(format!("{text}\n{error}\nlacks one of {words:?}"));
        }
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n\n"));
}

/// A file with every key there is, and what becomes of each.
#[test]
fn every_key_reaches_the_plan() {
    let plan = plan(
        "name = \"all\"\nsm = \"a\"\nsm_key = \"0x5\"\nsm_priority = 9\ngid_prefix = \"0xfec0000000000007\"\n\
         engine = \"updn\"\nroots = [\"s1\"]\nlmc = 2\nsl = 3\nlayout = { grid = { columns = 2 } }\n\
         links = [\"a - s1/1\", \"r/1 - s1/3\", \"r/2 - s2/2\"]\n\
         [defaults]\nrate = \"4xEDR\"\ndelay_us = 0.5\nmtu = 1024\nvls = 8\nretry = true\nbit_errors_ppm = 7\n\
         [qos]\nsl2vl = [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15]\nvlarb_high = \"3:9\"\n\
         vlarb_low = \"0:1, 1:2,2:255\"\nhigh_limit = 255\n\
         [[subnet]]\nsm = \"b/1\"\ngid_prefix = \"0xfec0000000000008\"\n\
         [[router]]\nname = \"r\"\nports = 2\nguid = \"0x77\"\n\
         [[host]]\nname = \"a\"\nip = \"192.0.2.1\"\nguid = \"0x11\"\n\
         [[host]]\nname = \"b\"\nports = 2\nip = [\"192.0.2.2\", \"192.0.2.3\"]\nguid = \"0x21\"\n\
         [[switch]]\nname = \"s1\"\nports = 4\nguid = \"0x31\"\n[[switch]]\nname = \"s2\"\nports = 3\n\
         [[link]]\nends = [\"b/1\", \"s2/1\"]\nrate = \"1xSDR\"\ndelay_us = 2.0\nmtu = 256\nvls = 1\nretry = false\n\
         bit_errors_ppm = 1\n\
         [[partition]]\npkey = 0x12\nfull = [\"a\"]\nlimited = [\"b/2\"]\nsl = 4\n",
    );
    let port = |name: &str| plan.port(name).unwrap();
    assert_eq!((plan.name.as_str(), plan.sm, plan.sm_key, plan.sm_priority), ("all", port("a"), Some(5), 9));
    assert_eq!(
        (plan.gid_prefix, plan.engine, &plan.roots[..]),
        (0xfec0_0000_0000_0007, Engine::UpDown, &[0][..])
    );
    assert_eq!((plan.lmc, plan.sl, plan.layout), (2, 3, Layout::Grid(2)));
    let shape = |link: usize| {
        let LinkShape { rate, delay, mtu, vls, retry, bit_errors_ppm } = plan.links[link].shape;
        ((rate.width, rate.speed, delay.as_nanos()), (mtu.bytes(), vls, retry, bit_errors_ppm))
    };
    assert_eq!(shape(0), ((Width::X4, Speed::Edr, 500), (1024, 8, true, 7)));
    assert_eq!(shape(3), ((Width::X1, Speed::Sdr, 2000), (256, 1, false, 1)));
    let ends = |link: usize| plan.links[link].ends;
    assert_eq!((ends(1), ends(3)), ([port("r/1"), port("s1/3")], [port("b/1"), port("s2/1")]));
    let lanes = plan.lanes.as_ref().unwrap();
    let weights = |of: &[VlWeight]| of.iter().map(|entry| (entry.vl, entry.weight)).collect::<Vec<_>>();
    assert_eq!((&lanes.sl2vl[..5], lanes.sl2vl[15], lanes.high_limit), (&[0, 1, 2, 3, 0][..], 15, 255));
    let low = weights(lanes.low.as_ref().unwrap());
    assert_eq!((weights(&lanes.high), low), (vec![(3, 9)], vec![(0, 1), (1, 2), (2, 255)]));
    assert_eq!(plan.subnets, [SubnetPlan { sm: port("b/1"), gid_prefix: 0xfec0_0000_0000_0008 }]);
    let nodes: Vec<_> =
        plan.hosts.iter().map(|host| (host.name.as_str(), host.ports, host.guid.0, host.router)).collect();
    assert_eq!(nodes, [("a", 1, 0x11, false), ("b", 2, 0x21, false), ("r", 2, 0x77, true)]);
    assert_eq!(plan.hosts[1].ips, ["192.0.2.2", "192.0.2.3"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    let switches: Vec<_> = plan.switches.iter().map(|switch| (switch.name.as_str(), switch.ports)).collect();
    assert_eq!((switches, plan.switches[0].guid), (vec![("s1", 4), ("s2", 3)], Guid(0x31)));
    let partition = PartitionPlan { pkey: 0x12, full: vec![port("a")], limited: vec![port("b/2")], sl: 4 };
    assert_eq!(plan.partitions, [partition]);
}

/// Also what no byte holds: the range is the key's, not that of a type.
#[test]
fn numbers_out_of_range_are_told_by_key_and_range() {
    let host = "[[host]]\nname = \"h1\"\n";
    let qos = |text: &str| format!("[qos]\n{text}\n{host}");
    let all = "sl2vl = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]";
    for (text, words) in [
        (format!("lmc = 300\n{host}"), "lmc: 300 is not 0 to 7"),
        (format!("lmc = -1\n{host}"), "lmc: -1 is not 0 to 7"),
        (format!("sl = 16\n{host}"), "sl: 16 is not 0 to 15"),
        (format!("sm_priority = -1\n{host}"), "sm_priority: -1 is not 0 to 15"),
        (format!("sm_priority = 1000\n{host}"), "sm_priority: 1000 is not 0 to 15"),
        (format!("gid_prefix = \"0xfec0\"\n{host}"), "gid_prefix: \"0xfec0\" is none: 16 hexadecimal digits"),
        (format!("gid_prefix = \"0xff00000000000000\"\n{host}"), "gid_prefix: 0xff00000000000000"),
        (format!("{host}ports = 0"), "host.ports: 0 is not 1 to 2"),
        (format!("{host}ports = 256"), "host.ports: 256 is not 1 to 2"),
        (format!("{host}[[switch]]\nname = \"s\"\nports = 65"), "switch.ports: 65 is not 1 to 64"),
        (format!("{host}[[router]]\nname = \"r\"\nports = 17"), "router.ports: 17 is not 1 to 16"),
        (format!("{host}[[partition]]\npkey = 70000"), "partition.pkey: 70000 is none of 0x0001 to 0x7ffe"),
        (format!("{host}[[partition]]\npkey = 0"), "partition.pkey: 0x0000 is none of 0x0001 to 0x7ffe"),
        (format!("{host}[[partition]]\npkey = 1\nsl = 16"), "partition.sl: 16 is not 0 to 15"),
        (format!("{host}[defaults]\nvls = 300"), "defaults: vls: 300 is none of 1, 2, 4, 8, 15"),
        (format!("{host}[defaults]\nmtu = 65536"), "defaults: mtu: 65536 is none of 256"),
        (format!("{host}[defaults]\nbit_errors_ppm = -3"), "bit_errors_ppm: -3 is not 0 to 1000000"),
        (format!("{host}[defaults]\ndelay_us = 1e9"), "delay_us: 1000000000 is not 0 to 100000"),
        ("generate.fat_tree = { hosts = -1, radix = 4 }".into(), "fat_tree.hosts: -1 is not 0 to 4096"),
        ("generate.fat_tree = { hosts = 4, radix = 260 }".into(), "radix"),
        ("generate.ring = { switches = -4 }".into(), "ring.switches: -4 is not 0 to"),
        ("generate.torus = { columns = 3, rows = 5000 }".into(), "torus.rows: 5000 is not 0 to"),
        (
            "layout.grid.columns = -1\ngenerate.ring = { switches = 4 }".into(),
            "grid.columns: -1 is not 1 to 4",
        ),
        (qos("sl2vl = [0, 1]"), "qos.sl2vl: 2 lanes; 16 are needed"),
        (qos(&all.replace('1', "16")), "qos.sl2vl: 16 is not 0 to 15"),
        (qos(&format!("{all}\nhigh_limit = 256")), "qos.high_limit: 256 is not 0 to 255"),
        (qos(&format!("{all}\nvlarb_low = \"0:256\"")), "qos.vlarb_low: \"0:256\" is no LANE:WEIGHT"),
        (qos(&format!("{all}\nvlarb_high = \"15:1\"")), "qos.vlarb_high: 15 is no data lane: 0 to 14"),
        (
            qos(&format!("{all}\nvlarb_high = \"{}\"", "0:1,".repeat(65))),
            "qos.vlarb_high: 65 entries; a table has at most 64",
        ),
        (qos(&format!("{all}\nvlarb_low = \"0:9,1:0\"")), "qos.vlarb_low: lane 1 of SL 1 has no weight"),
        (qos("colour = 1"), "line 2: \"colour\" is no key of [qos]; the keys there are sl2vl, vlarb_high"),
    ] {
        let error = refused(&text);
        assert!(error.contains(words), "{text}\n{error}\nlacks {words:?}");
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
