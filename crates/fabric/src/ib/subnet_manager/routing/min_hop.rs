//! Shortest paths, balanced over equal ones. Rings and tori get credit loops by it.

use super::choice::Balancer;
use super::graph::{FAR, Graph};
use super::tables::Tables;

/// Tables of shortest paths.
pub(super) fn tables(graph: &Graph) -> Tables {
    let mut balancer = Balancer::new(graph);
    let mut candidates = Vec::new();
    for (target, destinations) in graph.destinations().iter().enumerate() {
        if destinations.is_empty() {
            continue;
        }
        let hops = graph.distances(&[target as u32]);
        for (at, switch) in graph.switches.iter().enumerate() {
            let here = hops[at];
            if here == 0 {
                destinations.iter().for_each(|d| balancer.arrive(at as u32, d));
                continue;
            }
            if here == FAR {
                continue;
            }
            candidates.clear();
            let nearer = switch.neighbours().filter(|(_, n, _)| hops[*n as usize] == here - 1);
            candidates.extend(nearer.map(|(port, n, _)| (port, n)));
            destinations.iter().for_each(|d| balancer.spread(at as u32, &candidates, d));
        }
    }
    balancer.into_tables()
}
