//! Fat trees: up/down by levels, with destinations spread over the ways up by their place at their leaf.
//!
//! Destination n of a leaf comes down by the n-th way up, from every other leaf alike (D-mod-k), so that traffic between
//! leaves in any shift permutation shares no link downwards. Read Zahavi, "D-Mod-K routing providing non-blocking traffic
//! for shift permutations on real life fat trees" first. What is no tree of levels is refused, with the link that spoils it.

use everywire_wire::Guid;

use super::choice::Balancer;
use super::graph::{Destination, FAR, Graph};
use super::tables::Tables;
use super::up_down::{Order, walk};

/// Tables of a fat tree, or why the graph is none.
pub(super) fn tables(graph: &Graph, roots: &[Guid]) -> Result<Tables, String> {
    let rank = ranks(graph, roots)?;
    let tops: Vec<u32> = (0..rank.len() as u32).filter(|s| rank[*s as usize] == 0).collect();
    let order = Order::by_rank(graph, &rank, &tops);
    let strides = strides(graph, &rank, &order);
    let tables = walk(graph, &order, |balancer, reach, at, candidates, destinations| {
        if reach.goes_down(at) {
            return destinations.iter().for_each(|d| balancer.spread(at, candidates, d));
        }
        candidates.sort_by_key(|(port, n)| (graph.switches[*n as usize].guid, *port));
        let stride = strides[usize::from(rank[at as usize])];
        destinations.iter().for_each(|d| climb(balancer, at, candidates, d, stride));
    });
    match tables.unreachable_pairs(graph) {
        0 => Ok(tables),
        n => Err(format!("{n} pairs of end ports have no common switch above them")),
    }
}

/// Each LID of a destination goes up by the port that its place at its leaf says.
fn climb(balancer: &mut Balancer, at: u32, ups: &[(u8, u32)], destination: &Destination, stride: u32) {
    if ups.is_empty() {
        return;
    }
    // A switch has no place at a leaf: its own index spreads them.
    let base = if destination.port == 0 { u32::from(destination.base) } else { destination.ordinal };
    for offset in 0..destination.count {
        let place = (base + u32::from(offset)) / stride;
        let (port, _) = ups[place as usize % ups.len()];
        balancer.take(at, destination, offset, port);
    }
}

/// Level of each switch, 0 for the top.
fn ranks(graph: &Graph, roots: &[Guid]) -> Result<Vec<u16>, String> {
    let hosts = graph.endports_per_switch();
    let leaves: Vec<u32> = (0..hosts.len() as u32).filter(|s| hosts[*s as usize] > 0).collect();
    if leaves.is_empty() {
        return Err("no switch has an end port".into());
    }
    let known: Vec<u32> = roots.iter().filter_map(|guid| graph.switch_by_guid(*guid)).collect();
    let rank = if known.is_empty() {
        let height = graph.distances(&leaves);
        let top = height.iter().copied().filter(|h| *h != FAR).max().unwrap_or(0);
        height.into_iter().map(|h| if h == FAR { FAR } else { top - h }).collect()
    } else {
        graph.distances(&known)
    };
    check(graph, &rank, &leaves)?;
    Ok(rank)
}

/// All leaves on one level, and every link between neighbouring levels.
fn check(graph: &Graph, rank: &[u16], leaves: &[u32]) -> Result<(), String> {
    let label = |s: u32| graph.switches[s as usize].label();
    let bottom = rank[leaves[0] as usize];
    if let Some(odd) = leaves.iter().find(|s| rank[**s as usize] != bottom) {
        let (a, b) = (label(leaves[0]), label(*odd));
        return Err(format!("end ports are at different levels, those of {a} and {b}"));
    }
    for (at, switch) in graph.switches.iter().enumerate() {
        if rank[at] == FAR {
            return Err(format!("{} is linked to none of the tree", switch.label()));
        }
        if let Some((_, n, _)) =
            switch.neighbours().find(|(_, n, _)| rank[*n as usize].abs_diff(rank[at]) != 1)
        {
            return Err(format!("{} and {} are linked, which no levels allow", switch.label(), label(n)));
        }
    }
    Ok(())
}

/// By level, how many places at a leaf go up the same way one level below: the product of the ways up on the levels below.
fn strides(graph: &Graph, rank: &[u16], order: &Order) -> Vec<u32> {
    let levels = rank.iter().copied().max().map_or(0, usize::from) + 1;
    let mut ups = vec![1u32; levels];
    for (at, switch) in graph.switches.iter().enumerate() {
        let count = switch.neighbours().filter(|(_, n, _)| order.is_up(at as u32, *n)).count() as u32;
        let level = usize::from(rank[at]);
        ups[level] = ups[level].max(count);
    }
    let mut strides = vec![1u32; levels];
    for level in (0..levels.saturating_sub(1)).rev() {
        strides[level] = strides[level + 1].saturating_mul(ups[level + 1]);
    }
    strides
}
