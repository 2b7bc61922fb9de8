//! Spanning trees of multicast groups: which ports of which switches copy a group's packets.
//!
//! Read IBTA §18.2.4.3.3 first. A tree is rooted at the switch with the fewest hops to the members, reaches each member's
//! switch by a shortest way from there, and has nothing else; a packet follows its links away from where it came in.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{FAR, Graph};

/// Of the members' switches, how many are looked at to find the middle.
const SAMPLE: usize = 32;

/// Output ports of a group, by switch. A packet leaves by all of them but the one it came in by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MulticastTree {
    /// By index of the switch; port 0 for the switch itself.
    pub ports: BTreeMap<u32, BTreeSet<u8>>,
    /// Hops of every switch from the root, which alone has 0; empty before the first member.
    hops: Vec<u16>,
    /// Switches that have been tied to the root.
    joined: BTreeSet<u32>,
}

/// The tree of a group whose members are the given end ports, each with whether it receives or only sends. Members without a
/// switch, or without a way to the others, get no part in it.
pub fn tree(graph: &Graph, members: impl IntoIterator<Item = (u32, bool)>) -> MulticastTree {
    let members: Vec<(u32, bool)> = members.into_iter().collect();
    let at: BTreeSet<u32> =
        members.iter().filter_map(|(member, _)| place(graph, *member)).map(|at| at.0).collect();
    let mut tree = MulticastTree::default();
    if let Some(root) = centre(graph, &at) {
        tree.hops = graph.distances(&[root]);
        tree.joined.insert(root);
    }
    for (member, receives) in members {
        tree.add(graph, member, receives);
    }
    tree
}

impl MulticastTree {
    /// One member more, by a shortest way to the root. Takes as many steps as that has hops, so that the tree of a large group
    /// is not grown anew for each that joins.
    pub fn add(&mut self, graph: &Graph, member: u32, receives: bool) {
        let Some((mut here, port)) = place(graph, member) else { return };
        if self.hops.is_empty() {
            self.hops = graph.distances(&[here]);
            self.joined.insert(here);
        }
        if self.hops.get(here as usize).is_none_or(|hops| *hops == FAR) {
            return;
        }
        self.ports.entry(here).or_default().extend(receives.then_some(port));
        while self.joined.insert(here) {
            let next = self.hops[here as usize] - 1;
            let mut above = graph.switches[here as usize].neighbours();
            let Some((port, above, remote)) = above.find(|(_, n, _)| self.hops[*n as usize] == next) else {
                break;
            };
            self.ports.entry(here).or_default().insert(port);
            self.ports.entry(above).or_default().insert(remote);
            here = above;
        }
    }
}

fn place(graph: &Graph, member: u32) -> Option<(u32, u8)> {
    graph.endports.get(member as usize)?.at
}

/// The switch with the fewest hops to the members' switches, or to a sample of them, the lowest GUID among equals.
fn centre(graph: &Graph, at: &BTreeSet<u32>) -> Option<u32> {
    let mut sum = vec![0u64; graph.switches.len()];
    for &member in at.iter().step_by(at.len().div_ceil(SAMPLE).max(1)) {
        for (total, hops) in sum.iter_mut().zip(graph.distances(&[member])) {
            *total += u64::from(hops);
        }
    }
    let best = (0..sum.len()).min_by_key(|s| (sum[*s], graph.switches[*s].guid))?;
    (!at.is_empty()).then_some(best as u32)
}
