//! How many links lie between every two hosts.

use std::collections::BTreeMap;
use std::fmt::Write;

use everywire_net::fabric_host::snapshot::Snapshot;
use serde_json::{Map, Value};

/// A table, and how often each length occurs.
pub fn path_table(snapshot: &Snapshot) -> String {
    let lengths = snapshot.path_lengths();
    let names: Vec<&str> = snapshot.hosts().map(|node| node.name.as_str()).collect();
    let wide = names.iter().map(|name| name.len()).max().unwrap_or(1).max(2);
    let by = if snapshot.running { "by the switches' tables" } else { "by the shortest ways" };
    let routed = snapshot.nodes.iter().any(|node| node.router);
    let by = if routed { format!("{by}, from subnet to subnet by routers") } else { by.to_owned() };
    let mut out =
        format!("links from the first port of each host to that of each other, {by}\n\n{:wide$}", "");
    for name in &names {
        let _ = write!(out, " {name:>wide$}");
    }
    out.push('\n');
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    let mut apart = 0;
    for (from, (name, row)) in names.iter().zip(&lengths).enumerate() {
        let _ = write!(out, "{name:wide$}");
        for (to, length) in row.iter().enumerate() {
            let text = length.map_or_else(|| "-".to_owned(), |links| links.to_string());
            let _ = write!(out, " {text:>wide$}");
            match length {
                _ if from == to => {}
                Some(links) => *counts.entry(*links).or_default() += 1,
                None => apart += 1,
            }
        }
        out.push('\n');
    }
    out.push('\n');
    for (links, pairs) in counts {
        let _ = writeln!(out, "{links} links: {pairs} pairs");
    }
    if apart > 0 {
        let _ = writeln!(out, "no way: {apart} pairs");
    }
    out
}

/// `{ from: { to: links or null } }`.
pub fn path_json(snapshot: &Snapshot) -> Value {
    let names: Vec<&str> = snapshot.hosts().map(|node| node.name.as_str()).collect();
    let row = |row: Vec<Option<u32>>| -> Map<String, Value> {
        names.iter().zip(row).map(|(name, links)| ((*name).to_owned(), Value::from(links))).collect()
    };
    let rows = snapshot.path_lengths().into_iter().map(row);
    names.iter().zip(rows).map(|(name, row)| ((*name).to_owned(), Value::Object(row))).collect()
}
