//! Paths that go up towards the roots, then down, and never up again: no cycle of channels can close.
//!
//! Every link has one upper end: the switch of lower rank (hops from the nearest root), then the one nearer to the lowest
//! root where two roots are linked, then the lower GUID. A switch that can reach a destination by going down only does so,
//! because it cannot know whether the packet came from above; others go up by the shortest way. Read Schroeder et al.,
//! "Autonet" (1991) first. Without roots, switches from which nearly all hosts are equally far are taken, else the middle.

use everywire_wire::Guid;

use super::choice::Balancer;
use super::graph::{Destination, FAR, Graph};
use super::tables::Tables;

/// Of all hosts, the share (in percent) that must be at one distance from a root, and that no other distance may exceed.
const ROOT_MOST: u64 = 90;
const ROOT_REST: u64 = 5;

/// Tables by up/down from the given roots.
pub(super) fn tables(graph: &Graph, roots: &[Guid], messages: &mut Vec<String>) -> Tables {
    let mut known: Vec<u32> = roots.iter().filter_map(|guid| graph.switch_by_guid(*guid)).collect();
    for missing in roots.iter().filter(|guid| graph.switch_by_guid(**guid).is_none()) {
        messages.push(format!("up/down: root {missing} is no switch of this subnet"));
    }
    if known.is_empty() && !graph.switches.is_empty() {
        known = find_roots(graph, messages);
    }
    let order = Order::new(graph, &known);
    walk(graph, &order, |balancer, _, at, candidates, destinations| {
        destinations.iter().for_each(|d| balancer.spread(at, candidates, d));
    })
}

/// Tables by an order of switches: goes over all pairs of a switch and a switch with destinations. At the second itself the way
/// ends; elsewhere `choose` gives the destinations their ports out of the best that there are, each with the switch behind it.
pub(super) fn walk(
    graph: &Graph,
    order: &Order,
    mut choose: impl FnMut(&mut Balancer, &Reach, u32, &mut [(u8, u32)], &[Destination]),
) -> Tables {
    let mut balancer = Balancer::new(graph);
    let mut candidates = Vec::new();
    for (target, destinations) in graph.destinations().iter().enumerate() {
        if destinations.is_empty() {
            continue;
        }
        let reach = Reach::new(graph, order, target as u32);
        for at in 0..graph.switches.len() as u32 {
            if at == target as u32 {
                destinations.iter().for_each(|d| balancer.arrive(at, d));
                continue;
            }
            reach.candidates(graph, order, at, &mut candidates);
            choose(&mut balancer, &reach, at, &mut candidates, destinations);
        }
    }
    balancer.into_tables()
}

/// Switches that see one distance to most hosts, as the top of a tree does; else the switch in the middle.
fn find_roots(graph: &Graph, messages: &mut Vec<String>) -> Vec<u32> {
    let hosts = graph.endports_per_switch();
    let total: u64 = hosts.iter().map(|n| u64::from(*n)).sum();
    let mut roots = Vec::new();
    let mut middle = (u16::MAX, u64::MAX, Guid(u64::MAX), 0u32);
    for (index, switch) in graph.switches.iter().enumerate() {
        let mut by_distance = Vec::new();
        let (mut farthest, mut sum) = (0, 0u64);
        for (distance, count) in graph.distances(&[index as u32]).into_iter().zip(&hosts) {
            if distance == FAR {
                continue;
            }
            let slot = usize::from(distance);
            by_distance.resize(by_distance.len().max(slot + 1), 0u64);
            by_distance[slot] += u64::from(*count);
            farthest = farthest.max(distance);
            sum += u64::from(distance);
        }
        let above = |percent| by_distance.iter().filter(|n| **n * 100 > total * percent).count();
        if above(ROOT_MOST) == 1 && above(ROOT_REST) == 1 && total > 0 {
            roots.push(index as u32);
        }
        middle = middle.min((farthest, sum, switch.guid, index as u32));
    }
    // A single switch with all the hosts sees one distance too, and is its own root.
    if roots.is_empty() {
        let chosen = &graph.switches[middle.3 as usize];
        messages.push(format!("up/down: no switch stands out as a root; {} is taken", chosen.label()));
        return vec![middle.3];
    }
    roots
}

/// Which end of each link is the upper one.
pub(super) struct Order {
    /// Place of each switch; lower is further up.
    place: Vec<u32>,
    /// Switches from the top down.
    from_top: Vec<u32>,
}

impl Order {
    /// By hops from the roots.
    pub fn new(graph: &Graph, roots: &[u32]) -> Order {
        Order::by_rank(graph, &graph.distances(roots), roots)
    }

    /// By ranks, 0 for the top.
    pub fn by_rank(graph: &Graph, rank: &[u16], roots: &[u32]) -> Order {
        let first = roots.iter().copied().min_by_key(|r| graph.switches[*r as usize].guid);
        let from_first = graph.distances(first.as_slice());
        let mut from_top: Vec<u32> = (0..graph.switches.len() as u32).collect();
        from_top.sort_by_key(|&s| {
            let s = s as usize;
            let among_roots = if rank[s] == 0 { from_first[s] } else { 0 };
            (rank[s], among_roots, graph.switches[s].guid)
        });
        let mut place = vec![0; from_top.len()];
        for (at, switch) in from_top.iter().enumerate() {
            place[*switch as usize] = at as u32;
        }
        Order { place, from_top }
    }

    /// Whether the way from one switch to its neighbour goes up.
    pub fn is_up(&self, from: u32, to: u32) -> bool {
        self.place[to as usize] < self.place[from as usize]
    }
}

/// Hops from every switch to one of them.
pub(super) struct Reach {
    /// Going down only.
    down: Vec<u16>,
    /// As the tables will send: down where that is possible, else up.
    total: Vec<u16>,
}

impl Reach {
    /// Hops to `target`. Two passes over the links: from the bottom for ways down, from the top for ways up.
    pub fn new(graph: &Graph, order: &Order, target: u32) -> Reach {
        let mut down = vec![FAR; graph.switches.len()];
        down[target as usize] = 0;
        for &at in order.from_top.iter().rev().filter(|s| **s != target) {
            let below = graph.switches[at as usize].neighbours().filter(|(_, n, _)| !order.is_up(at, *n));
            let best = below.map(|(_, n, _)| down[n as usize]).min().unwrap_or(FAR);
            down[at as usize] = best.saturating_add(1);
        }
        let mut total = down.clone();
        for &at in order.from_top.iter().filter(|s| down[**s as usize] == FAR) {
            let above = graph.switches[at as usize].neighbours().filter(|(_, n, _)| order.is_up(at, *n));
            let best = above.map(|(_, n, _)| total[n as usize]).min().unwrap_or(FAR);
            total[at as usize] = best.saturating_add(1);
        }
        Reach { down, total }
    }

    /// Whether `at` reaches the target by going down only.
    pub fn goes_down(&self, at: u32) -> bool {
        self.down[at as usize] != FAR
    }

    /// The best ports at a switch, each with the switch behind it; none where there is no way.
    pub fn candidates(&self, graph: &Graph, order: &Order, at: u32, out: &mut Vec<(u8, u32)>) {
        out.clear();
        let (hops, up) = match self.goes_down(at) {
            true => (&self.down, false),
            false => (&self.total, true),
        };
        let here = hops[at as usize];
        if here == FAR || here == 0 {
            return;
        }
        let better = graph.switches[at as usize]
            .neighbours()
            .filter(|(_, n, _)| order.is_up(at, *n) == up && hops[*n as usize] == here - 1);
        out.extend(better.map(|(port, n, _)| (port, n)));
    }
}
