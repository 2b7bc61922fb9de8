//! Tests of the engines on rings, tori and fat trees.
//!
//! Path lengths must be those that OpenSM 3.3.23 gives (`opensm_hops.txt`); loops are searched for in all of them.

use super::*;
use crate::ib::topology::Topology;

fn check_all_pairs(graph: &Graph, tables: &Tables) {
    for from in 0..graph.endports.len() as u32 {
        for to in &graph.endports {
            for lid in to.lids() {
                let path = tables.path(graph, from, everywire_wire::Lid(lid)).unwrap();
                let (last, port) = *path.last().unwrap();
                assert_eq!(Some((last, port)), to.at);
            }
        }
    }
}

fn shapes() -> Vec<(&'static str, Topology)> {
    vec![
        ("ring of 4", Topology::ring(4).unwrap()),
        ("ring of 7", Topology::ring(7).unwrap()),
        ("torus 3x3", Topology::torus(3, 3).unwrap()),
        ("torus 4x4", Topology::torus(4, 4).unwrap()),
        ("torus 5x3", Topology::torus(5, 3).unwrap()),
        ("fat tree 16/8", Topology::fat_tree(16, 8).unwrap()),
        ("fat tree 16/4", Topology::fat_tree(16, 4).unwrap()),
        ("fat tree 10/4", Topology::fat_tree(10, 4).unwrap()),
    ]
}

#[test]
fn up_down_and_fat_tree_reach_everyone_and_have_no_loop() {
    for (name, shape) in shapes() {
        for lmc in [0, 2] {
            let graph = shape.graph(lmc);
            let root = graph.switches[graph.switches.len() / 2].guid;
            for engine in [
                RoutingEngine::UpDown { roots: vec![] },
                RoutingEngine::UpDown { roots: vec![root] },
                RoutingEngine::FatTree { roots: vec![] },
            ] {
                let routed = route(&graph, &engine);
                check_all_pairs(&graph, &routed.tables);
                let cycle = credit_loops(&graph, &routed.tables);
                assert_eq!(cycle, None, "{name} {engine:?}");
                let is_tree = name.starts_with("fat");
                let want = match engine {
                    RoutingEngine::FatTree { .. } if is_tree => "fat-tree",
                    _ => "up/down",
                };
                assert_eq!(routed.engine, want, "{name}: {:?}", routed.messages);
            }
        }
    }
}

#[test]
fn min_hop_is_shortest_and_names_its_loop() {
    for (name, shape) in shapes() {
        let graph = shape.graph(0);
        let routed = route(&graph, &RoutingEngine::MinHop);
        check_all_pairs(&graph, &routed.tables);
        for from in 0..graph.endports.len() as u32 {
            let hops = graph.distances(&[graph.endports[from as usize].at.unwrap().0]);
            for to in &graph.endports {
                let path = routed.tables.path(&graph, from, to.lid).unwrap();
                assert_eq!(path.len() as u16 - 1, hops[to.at.unwrap().0 as usize]);
            }
        }
        let cycle = credit_loops(&graph, &routed.tables);
        // Where every way round has two hops or more in each direction there must be one; elsewhere ties decide.
        if !matches!(name, "ring of 7" | "torus 5x3") {
            continue;
        }
        let cycle = cycle.unwrap_or_else(|| panic!("{name} by min-hop has a loop"));
        // Each channel ends where the next begins.
        for (i, (switch, port)) in cycle.channels.iter().enumerate() {
            let next = cycle.channels[(i + 1) % cycle.channels.len()].0;
            let peer = graph.switches[*switch as usize].peers[usize::from(*port)];
            assert!(matches!(peer, Peer::Switch { switch, .. } if switch == next));
        }
        assert!(cycle.to_string().starts_with("s"), "{cycle}");
    }
}

#[test]
fn a_ring_by_min_hop_waits_all_the_way_round() {
    let graph = Topology::ring(5).unwrap().graph(0);
    let routed = route(&graph, &RoutingEngine::MinHop);
    let cycle = credit_loops(&graph, &routed.tables).unwrap();
    assert_eq!(cycle.channels.len(), 5);
}

#[test]
fn a_fat_tree_spreads_a_leafs_hosts_over_its_ways_up() {
    let graph = Topology::fat_tree(16, 8).unwrap().graph(0);
    let tables = route(&graph, &RoutingEngine::FatTree { roots: vec![] }).tables;
    for switch in 0..4u32 {
        // Hosts of another leaf: all by different ports up (5 to 8).
        for leaf in (0..4u32).filter(|l| *l != switch) {
            let there = graph.endports.iter().filter(|e| e.at.unwrap().0 == leaf);
            let mut ports: Vec<u8> = there.map(|e| tables.port(switch, e.lid)).collect();
            ports.sort();
            assert_eq!(ports, [5, 6, 7, 8]);
        }
    }
}

#[test]
fn min_hop_balances_and_lids_of_one_port_go_different_ways() {
    let graph = Topology::fat_tree(16, 8).unwrap().graph(2);
    let tables = route(&graph, &RoutingEngine::MinHop).tables;
    let mut load = [0u32; 9];
    for endport in graph.endports.iter().filter(|e| e.at.unwrap().0 != 0) {
        let mut ports: Vec<u8> = endport.lids().map(|l| tables.port(0, everywire_wire::Lid(l))).collect();
        ports.iter().for_each(|p| load[usize::from(*p)] += 1);
        ports.sort();
        assert_eq!(ports, [5, 6, 7, 8]);
    }
    assert_eq!(load[5..], [12, 12, 12, 12]);
}

#[test]
fn a_fat_tree_with_a_link_gone_still_reaches_everyone() {
    let mut shape = Topology::fat_tree(16, 8).unwrap();
    // The links of leaf 1 to two spines, then those of leaf 2 to the other two: nothing above both any more.
    shape.links.retain(|((a, _), (b, _))| !matches!((*a, *b), (0, 4 | 5)));
    let graph = shape.graph(0);
    let routed = route(&graph, &RoutingEngine::FatTree { roots: vec![] });
    assert_eq!(routed.engine, "fat-tree");
    check_all_pairs(&graph, &routed.tables);
    shape.links.retain(|((a, _), (b, _))| !matches!((*a, *b), (1, 6 | 7)));
    let graph = shape.graph(0);
    let routed = route(&graph, &RoutingEngine::FatTree { roots: vec![] });
    assert_eq!(routed.engine, "up/down", "{:?}", routed.messages);
    check_all_pairs(&graph, &routed.tables);
    assert_eq!(credit_loops(&graph, &routed.tables), None);
}

#[test]
fn roots_that_are_not_there_are_named() {
    let graph = Topology::ring(5).unwrap().graph(0);
    let routed = route(&graph, &RoutingEngine::UpDown { roots: vec![everywire_wire::Guid(77)] });
    assert!(routed.messages[0].contains("0000:0000:0000:004d"), "{:?}", routed.messages);
    check_all_pairs(&graph, &routed.tables);
}

#[test]
fn multicast_trees_reach_all_members_once() {
    for (name, shape) in shapes() {
        let graph = shape.graph(0);
        for members in [vec![0, 1], vec![0, 2, 3], (0..graph.endports.len() as u32).collect()] {
            let tree = tree(&graph, members.iter().map(|m| (*m, true)));
            for &from in &members {
                let mut reached = Vec::new();
                flood(&graph, &tree, graph.endports[from as usize].at.unwrap(), &mut reached);
                reached.sort();
                let want: Vec<u32> = members.iter().copied().filter(|m| *m != from).collect();
                assert_eq!(reached, want, "{name}");
            }
        }
    }
    assert_eq!(tree(&Topology::ring(3).unwrap().graph(0), []), MulticastTree::default());
}

/// Follows a packet that comes in at a switch's port; panics if it runs in circles.
fn flood(graph: &Graph, tree: &MulticastTree, at: (u32, u8), reached: &mut Vec<u32>) {
    assert!(reached.len() < 1000);
    for &port in tree.ports.get(&at.0).into_iter().flatten().filter(|p| **p != at.1) {
        match graph.switches[at.0 as usize].peers[usize::from(port)] {
            Peer::Switch { switch, port } => flood(graph, tree, (switch, port), reached),
            Peer::Endport(endport) => reached.push(endport),
            Peer::None => panic!("a dead port is in the tree"),
        }
    }
}

/// The shape, engine and engine in place that a line of the file names.
fn parse_case(line: &str) -> (Topology, RoutingEngine, &str) {
    let (case, used) = line.split_once(" used=").unwrap();
    let parts: Vec<&str> = case.split('|').map(str::trim).collect();
    let words: Vec<&str> = parts[0].split(' ').collect();
    let n: Vec<usize> = words[1..].iter().map(|w| w.parse().unwrap()).collect();
    let shape = match words[0] {
        "ring" => Topology::ring(n[0]),
        "torus" => Topology::torus(n[0], n[1]),
        "fat_tree" => Topology::fat_tree(n[0], n[1]),
        other => panic!("{other}"),
    };
    let hex = |text: &str| everywire_wire::Guid(u64::from_str_radix(text, 16).unwrap());
    let roots = parts[2].split(',').filter(|r| *r != "-").map(hex).collect();
    let engine = match parts[1] {
        "minhop" => RoutingEngine::MinHop,
        "updn" => RoutingEngine::UpDown { roots },
        _ => RoutingEngine::FatTree { roots },
    };
    (shape.unwrap(), engine, used)
}

#[test]
fn path_lengths_are_those_of_opensm() {
    let mut lines = include_str!("opensm_hops.txt").lines().filter(|l| !l.starts_with('#')).peekable();
    let mut cases = 0;
    while let Some(line) = lines.next() {
        let (shape, engine, used) = parse_case(line);
        let graph = shape.graph(0);
        let routed = route(&graph, &engine);
        let ours = routed.engine.replace("/down", "dn").replace("-hop", "hop").replace("fat-", "f");
        assert!(ours == used || used == "minhop", "{line}: {ours}");
        for from in 0..graph.endports.len() as u32 {
            let hops = graph.endports.iter().map(|to| {
                let path = routed.tables.path(&graph, from, to.lid);
                path.map_or('-', |p| char::from_digit(p.len() as u32 - 1, 36).unwrap())
            });
            assert_eq!(hops.collect::<String>(), lines.next().unwrap(), "{line}, from host {}", from + 1);
        }
        cases += 1;
    }
    assert_eq!(cases, 40);
}
