//! Spanning trees of multicast groups: which ports of which switches copy a group's packets.
//!
//! Read IBTA §18.2.4.3.3 first. A tree is rooted at the switch with the fewest hops to the members, reaches each member's
//! switch by a shortest way from there, and has nothing else; a packet follows its links away from where it came in.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{FAR, Graph};

/// Output ports of a group, by switch. A packet leaves by all of them but the one it came in by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MulticastTree {
    /// By index of the switch; port 0 for the switch itself.
    pub ports: BTreeMap<u32, BTreeSet<u8>>,
}

/// The tree of a group whose members are the given end ports, each with whether it receives or only sends. Members without a
/// switch, or without a way to the others, get no part in it.
pub fn tree(graph: &Graph, members: impl IntoIterator<Item = (u32, bool)>) -> MulticastTree {
    let mut at: BTreeMap<u32, BTreeSet<u8>> = BTreeMap::new();
    for (member, receives) in members {
        if let Some((switch, port)) = graph.endports.get(member as usize).and_then(|e| e.at) {
            at.entry(switch).or_default().extend(receives.then_some(port));
        }
    }
    let mut result = MulticastTree { ports: at.clone() };
    let Some((root, hops)) = centre(graph, &at) else { return result };
    let mut joined: BTreeSet<u32> = [root].into();
    for &leaf in at.keys() {
        let mut here = leaf;
        if hops[here as usize] == FAR {
            result.ports.remove(&leaf);
            continue;
        }
        while joined.insert(here) {
            let next = hops[here as usize] - 1;
            let up = graph.switches[here as usize].neighbours().find(|(_, n, _)| hops[*n as usize] == next);
            let Some((port, above, remote)) = up else { break };
            result.ports.entry(here).or_default().insert(port);
            result.ports.entry(above).or_default().insert(remote);
            here = above;
        }
    }
    result
}

/// The switch with the fewest hops to all members' switches, the lowest GUID among equals, and the hops from it.
fn centre(graph: &Graph, at: &BTreeMap<u32, BTreeSet<u8>>) -> Option<(u32, Vec<u16>)> {
    let mut sum = vec![0u64; graph.switches.len()];
    for &member in at.keys() {
        for (total, hops) in sum.iter_mut().zip(graph.distances(&[member])) {
            *total += u64::from(hops);
        }
    }
    let best = (0..sum.len()).min_by_key(|s| (sum[*s], graph.switches[*s].guid))?;
    (!at.is_empty()).then(|| (best as u32, graph.distances(&[best as u32])))
}
