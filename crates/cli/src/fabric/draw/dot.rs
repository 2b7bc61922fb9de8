//! The graph, in graphviz's language: `everywire fabric show FABRIC --format dot | dot -Tpdf`.

use std::fmt::Write;

use everywire_net::fabric_host::snapshot::{Snapshot, State};

use super::levels;

/// Draws it. Names need no escapes: a plan has letters, digits, '-', '_' and '.' only; they are quoted all the same.
pub fn dot(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "graph \"{}\" {{", snapshot.name);
    let _ = writeln!(
        out,
        "  rankdir=BT; node [fontname=\"sans-serif\"]; edge [fontname=\"sans-serif\", fontsize=8];"
    );
    for node in &snapshot.nodes {
        let shape = if node.router {
            "diamond"
        } else if node.switch {
            "box"
        } else {
            "ellipse"
        };
        let lids: Vec<String> =
            node.end_ports.iter().filter(|port| port.lid != 0).map(|port| port.lid.to_string()).collect();
        let lid = if lids.is_empty() { String::new() } else { format!("\\nLID {}", lids.join(", ")) };
        let _ = writeln!(out, "  \"{0}\" [shape={shape}, label=\"{0}{lid}\"];", node.name);
    }
    let levels = levels(snapshot);
    for level in 0..=levels.iter().copied().max().unwrap_or(0) {
        let at = snapshot.nodes.iter().zip(&levels).filter(|(_, at)| **at == level);
        let names: String = at.map(|(node, _)| format!(" \"{}\";", node.name)).collect();
        let _ = writeln!(out, "  {{ rank=same;{names} }}");
    }
    for link in &snapshot.links {
        let [a, b] = &link.ends;
        let worst = if a.state == State::Active { b.state } else { a.state };
        let style = match worst {
            State::Down => ", style=dotted, color=red",
            State::Init | State::Armed => ", style=dashed",
            State::Planned | State::Active => "",
        };
        let _ = writeln!(
            out,
            "  \"{}\" -- \"{}\" [taillabel=\"{}\", headlabel=\"{}\", tooltip=\"{}\"{style}];",
            a.node, b.node, a.port, b.port, link.rate
        );
    }
    out.push_str("}\n");
    out
}
