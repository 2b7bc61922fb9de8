//! Which subnet a port is in, and by which routers subnets reach each other: what routers and subnet managers are told.
//!
//! Read IBTA §19.2.4 (routers) first. Ways go over the fewest routers; equal ones are told in the plan's order, so that whoever
//! finds one gone has the next.

use std::collections::{HashMap, VecDeque};

use super::{NodeRef, Plan, PortRef};

/// From a subnet toward another: by which router it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Index of the subnet that it leads to in the end, as [`Plan::all_subnets`] counts.
    pub to: usize,
    /// The port of the first router in the subnet where the way begins.
    pub port: PortRef,
    /// Routers on the way.
    pub routers: usize,
}

/// Subnets and the ways between them.
#[derive(Debug)]
pub struct Subnets {
    of: HashMap<PortRef, usize>,
    /// By the subnet where it begins.
    hops: Vec<Vec<Hop>>,
}

impl Subnets {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Subnets {
        let mut of = HashMap::new();
        let mut cables = HashMap::new();
        for link in &plan.links {
            let [a, b] = link.ends;
            cables.insert(a, b);
            cables.insert(b, a);
        }
        for (index, subnet) in plan.all_subnets().enumerate() {
            flood(plan, &cables, subnet.sm, index, &mut of);
        }
        let count = plan.all_subnets().count();
        let hops = ways(&legs(plan, &of), count);
        Subnets { of, hops }
    }

    /// The subnet of a port, if a subnet manager reaches it.
    pub fn at(&self, port: PortRef) -> Option<usize> {
        self.of.get(&port).copied()
    }

    /// The first steps of the shortest ways from a subnet to all others that can be reached.
    pub fn from(&self, subnet: usize) -> &[Hop] {
        self.hops.get(subnet).map_or(&[], Vec::as_slice)
    }
}

/// Everything that links lead to from a port without crossing a router is in one subnet.
fn flood(
    plan: &Plan,
    cables: &HashMap<PortRef, PortRef>,
    from: PortRef,
    subnet: usize,
    of: &mut HashMap<PortRef, usize>,
) {
    let mut todo = vec![from];
    while let Some(port) = todo.pop() {
        if of.contains_key(&port) {
            continue;
        }
        of.insert(port, subnet);
        todo.extend(cables.get(&port));
        if let NodeRef::Switch(index) = port.node {
            let ports = 0..=plan.switches[index].ports;
            todo.extend(ports.map(|number| PortRef { port: number, ..port }));
        }
    }
}

fn routers(plan: &Plan) -> impl Iterator<Item = (NodeRef, u8)> + '_ {
    let hosts = plan.hosts.iter().enumerate().filter(|(_, host)| host.router);
    hosts.map(|(index, host)| (NodeRef::Host(index), host.ports))
}

/// Ports by subnet of each router that are in one.
fn legs(plan: &Plan, of: &HashMap<PortRef, usize>) -> Vec<Vec<(usize, PortRef)>> {
    let leg = |port: PortRef| Some((*of.get(&port)?, port));
    let of_router = |(node, ports)| (1..=ports).filter_map(|port| leg(PortRef { node, port })).collect();
    routers(plan).map(of_router).collect()
}

/// Routers from every subnet to one, breadth first.
fn distances(legs: &[Vec<(usize, PortRef)>], to: usize, count: usize) -> Vec<Option<usize>> {
    let mut far = vec![None; count];
    far[to] = Some(0);
    let mut todo = VecDeque::from([(to, 0)]);
    while let Some((here, distance)) = todo.pop_front() {
        for leg in legs.iter().filter(|leg| leg.iter().any(|(at, _)| *at == here)) {
            for (next, _) in leg {
                if far[*next].is_none() {
                    far[*next] = Some(distance + 1);
                    todo.push_back((*next, distance + 1));
                }
            }
        }
    }
    far
}

/// The first steps of all shortest ways between subnets, by where they begin.
fn ways(legs: &[Vec<(usize, PortRef)>], count: usize) -> Vec<Vec<Hop>> {
    let mut all = vec![Vec::new(); count];
    for to in 0..count {
        let far = distances(legs, to, count);
        for leg in legs {
            let Some(nearest) = leg.iter().filter_map(|(at, _)| far[*at]).min() else { continue };
            for (from, port) in leg {
                if far[*from] == Some(nearest + 1) {
                    all[*from].push(Hop { to, port: *port, routers: nearest + 1 });
                }
            }
        }
    }
    all
}
