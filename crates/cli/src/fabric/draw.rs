//! Pictures of a fabric: a table, a graph, a drawing, and how far hosts are apart.

mod dot;
mod paths;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use dot::dot;
pub use paths::{path_json, path_table};
pub use svg::svg;
pub use text::text;

use everywire_net::fabric_host::snapshot::Snapshot;

/// How high each node is: 0 for hosts, for a switch its distance to the nearest host.
fn levels(snapshot: &Snapshot) -> Vec<usize> {
    let neighbours = snapshot.neighbours();
    let mut level: Vec<Option<usize>> = snapshot.nodes.iter().map(|n| (!n.switch).then_some(0)).collect();
    let mut wave: Vec<usize> = (0..level.len()).filter(|&index| level[index].is_some()).collect();
    let mut height = 0;
    while !wave.is_empty() {
        height += 1;
        let mut next = Vec::new();
        for neighbour in wave.iter().flat_map(|&at| &neighbours[at]) {
            if level[neighbour.node].is_none() {
                level[neighbour.node] = Some(height);
                next.push(neighbour.node);
            }
        }
        wave = next;
    }
    // What no host reaches stands beside the lowest switches.
    level.into_iter().map(|level| level.unwrap_or(1)).collect()
}
