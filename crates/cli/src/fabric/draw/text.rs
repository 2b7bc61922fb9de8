//! The table: each switch with its ports, and who is at the other end; the highest switches first.

use std::fmt::Write;

use everywire_net::fabric_host::snapshot::{EndPort, Link, Neighbour, Node, Snapshot, State};

use super::super::run::list;
use super::levels;
use crate::words::count;

/// Draws it.
pub fn text(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    head(&mut out, snapshot);
    let (levels, neighbours) = (levels(snapshot), snapshot.neighbours());
    let mut switches: Vec<usize> = (0..snapshot.nodes.len()).filter(|&n| snapshot.nodes[n].switch).collect();
    // Stable: within a level in the file's order.
    switches.sort_by_key(|&index| std::cmp::Reverse(levels[index]));
    let mut last = None;
    for index in switches {
        if last != Some(levels[index]) {
            last = Some(levels[index]);
            let _ = writeln!(out, "\nlevel {}", levels[index]);
        }
        switch(&mut out, snapshot, index, &neighbours[index]);
    }
    let ends = || snapshot.nodes.iter().enumerate().filter(|(_, node)| !node.switch);
    if ends().any(|(_, node)| node.router) {
        let _ = writeln!(out, "\nrouters");
        ends()
            .filter(|(_, node)| node.router)
            .for_each(|(at, node)| host(&mut out, snapshot, node, &neighbours[at]));
    }
    let _ = writeln!(out, "\nhosts");
    for (index, node) in ends().filter(|(_, node)| !node.router) {
        host(&mut out, snapshot, node, &neighbours[index]);
    }
    let down: Vec<String> = snapshot
        .links
        .iter()
        .filter(|link| !link.is_up())
        .map(|link| link.ends.each_ref().map(|end| format!("{}/{}", end.node, end.port)).join(" - "))
        .collect();
    if !down.is_empty() {
        let _ = writeln!(out, "\nlinks down: {}", down.join(", "));
    }
    out
}

fn head(out: &mut String, snapshot: &Snapshot) {
    let (hosts, switches) = (snapshot.hosts().count(), snapshot.switches().count());
    let state = if snapshot.running { "running" } else { "not running" };
    let _ = writeln!(
        out,
        "fabric {}, {state}: {}, {}, {}",
        snapshot.name,
        count(hosts, "host", "s"),
        count(switches, "switch", "es"),
        count(snapshot.links.len(), "link", "s")
    );
    let sm = match snapshot.sm.as_str() {
        "" => "none of ours".to_owned(),
        at => format!("at {at}"),
    };
    let roots = match snapshot.roots.len() {
        0 => String::new(),
        _ => format!(", roots {}", snapshot.roots.join(" ")),
    };
    let _ = writeln!(out, "subnet manager {sm}; routing {}{roots}", snapshot.engine.name());
    let without = snapshot.without_way();
    if !without.is_empty() {
        let _ = writeln!(out, "no way from the subnet manager to: {}", list(&without));
    }
    for warning in &snapshot.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
}

fn lid(port: &EndPort) -> String {
    match (port.lid, port.lmc) {
        (0, _) => String::new(),
        (lid, 0) => format!("  LID {lid}"),
        (lid, lmc) => format!("  LID {lid}-{}", lid + (1 << lmc) - 1),
    }
}

fn switch(out: &mut String, snapshot: &Snapshot, index: usize, neighbours: &[Neighbour]) {
    let node = &snapshot.nodes[index];
    let lid = node.end_ports.first().map(lid).unwrap_or_default();
    let _ = writeln!(out, "  {}  {}{lid}, {}", node.name, node.guid, count(node.ports.into(), "port", "s"));
    for neighbour in neighbours {
        let link = &snapshot.links[neighbour.link];
        let peer = format!("{}/{}", snapshot.nodes[neighbour.node].name, neighbour.peer_port);
        let own = link.ends.iter().find(|end| end.node == node.name && end.port == neighbour.port);
        let state = own.map_or(State::Down, |end| end.state).name();
        let _ =
            writeln!(out, "    {:>3} - {peer:<16} {state:<10} {}{}", neighbour.port, link.rate, wire(link));
    }
}

/// What is unlike a good cable.
fn wire(link: &Link) -> String {
    let retry = if link.retry { ", retry" } else { "" };
    match link.bit_errors_ppm {
        0 => retry.to_owned(),
        ppm => format!("{retry}, bit errors {ppm} ppm"),
    }
}

fn host(out: &mut String, snapshot: &Snapshot, node: &Node, neighbours: &[Neighbour]) {
    for port in &node.end_ports {
        let name = format!("{}/{}", node.name, port.port);
        let peer = neighbours.iter().find(|neighbour| neighbour.port == port.port);
        let peer = peer.map_or_else(
            || "no link".to_owned(),
            |peer| format!("{}/{}", snapshot.nodes[peer.node].name, peer.peer_port),
        );
        let ip = port.ip.map(|ip| ip.to_string()).unwrap_or_default();
        let state = if peer == "no link" { "" } else { port.state.name() };
        let process = port.process.map(|pid| format!("  process {pid}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "  {name:<12} {}  {ip:<16} - {peer:<14} {state:<10}{}{process}{}",
            port.guid,
            lid(port),
            if port.no_way { "  no way" } else { "" }
        );
    }
}
