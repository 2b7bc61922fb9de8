//! Pictures of the examples: graphviz and a parser of XML take them, and what a person looks for is there.

use std::io::Write;
use std::process::{Command, Stdio};

use everywire_net::fabric_host::snapshot::{Snapshot, State};

use super::*;
use crate::fabric::plan_of;

fn example(name: &str) -> Snapshot {
    let path = format!("{}/../../examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    Snapshot::of_plan(&plan_of(&path).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn the_table_has_every_cable_and_names_what_is_down() {
    let mut tree = example("fat-tree-16");
    let table = text(&tree);
    for words in
        ["16 hosts, 8 switches, 32 links", "at h1/1", "routing ftree", "level 2", "spine4/4", "10.77.0.16"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    let up = table.matches("planned").count();
    assert_eq!(up, 16 + 2 * 16 + 16, "a host's cable is shown at both ends, as is one between switches");
    tree.links[5].ends[0].state = State::Down;
    assert!(text(&tree).contains("links down: leaf"), "{}", text(&tree));
    assert!(path_table(&tree).contains("2 links: 48 pairs\n4 links: 192 pairs\n"));
    assert_eq!(path_json(&tree)["h1"]["h16"], 4);
}

/// A router is a way, and no host: four columns, and eight pairs whose ways cross it.
#[test]
fn ways_lead_through_routers() {
    let table = path_table(&example("two-subnets"));
    for line in ["   a1 a2 b1 b2\n", "a1  0  2  4  4\n", "2 links: 4 pairs\n4 links: 8 pairs\n"] {
        assert!(table.contains(line), "{line:?}: {table}");
    }
    assert!(!table.contains("no way"), "{table}");
    // Two routers in a row: host, switch, router, switch, router, switch, host.
    assert_eq!(path_json(&example("three-subnets"))["a2"]["c2"], 6);
    let mut apart = example("two-subnets");
    apart.links[5].ends[0].state = State::Down;
    assert!(path_table(&apart).contains("no way: 8 pairs"), "{}", path_table(&apart));
}

#[test]
fn graphviz_takes_the_graph() {
    for name in ["fat-tree-16", "ring", "torus", "written-out"] {
        let graph = dot(&example(name));
        let child = Command::new("dot").arg("-Tplain").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return everywire_testkit::skipped(format_args!("dot: {error}")),
        };
        child.stdin.take().expect("a pipe").write_all(graph.as_bytes()).expect("dot reads");
        let out = child.wait_with_output().expect("dot ends");
        assert!(out.status.success(), "{name}");
        let edges =
            String::from_utf8_lossy(&out.stdout).lines().filter(|line| line.starts_with("edge ")).count();
        assert_eq!(edges, example(name).links.len(), "{name}");
    }
}

#[test]
fn the_picture_has_every_node_apart_and_every_cable() {
    for name in ["fat-tree-16", "ring", "torus", "written-out"] {
        let snapshot = example(name);
        let picture = svg(&snapshot);
        assert_eq!(picture.matches("<g><title>").count(), snapshot.nodes.len(), "{name}");
        assert_eq!(picture.matches("<path ").count(), snapshot.links.len(), "{name}");
        assert_eq!(picture.matches('<').count(), picture.matches('>').count(), "{name}");
        let mut boxes: Vec<&str> = picture.lines().filter_map(|line| line.split("<rect ").nth(1)).collect();
        let all = boxes.len();
        boxes.sort_unstable();
        boxes.dedup();
        assert_eq!(boxes.len(), all, "{name}: two nodes in one place");
    }
}
