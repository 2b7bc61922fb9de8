//! How many links lie between hosts: by the switches' tables where the fabric runs, by the shortest ways where it does not;
//! between subnets from router to router, by whichever are the fewest links.
//!
//! LIDs mean something within their subnet only (IBTA §4.1.3), so a way across subnets is put together of ways within them.

use std::collections::VecDeque;

use super::{Neighbour, Snapshot};

/// A port: its node's place among the nodes, and its number.
type At = (usize, u8);

impl Snapshot {
    /// Links on the way between the first ports of hosts; `None` where there is no way. Rows and columns are the hosts in
    /// order, routers not among them.
    pub fn path_lengths(&self) -> Vec<Vec<Option<u32>>> {
        let ways = Ways::of(self);
        let places = self.nodes.iter().enumerate().filter(|(_, node)| !node.switch && !node.router);
        let hosts: Vec<At> =
            places.map(|(at, node)| (at, node.end_ports.first().map_or(1, |p| p.port))).collect();
        let row = |&from: &At| {
            let within = ways.from(from);
            let beyond = ways.through_routers(&within);
            hosts
                .iter()
                .map(|&to| within.to(to).or_else(|| beyond.iter().filter_map(|leg| leg.to(to)).min()))
                .collect()
        };
        hosts.iter().map(row).collect()
    }
}

/// What ways there are.
struct Ways<'a> {
    snapshot: &'a Snapshot,
    neighbours: Vec<Vec<Neighbour>>,
    /// Ports of routers.
    routers: Vec<At>,
}

/// The ways from a port within its subnet, behind so many links.
struct Leg<'a> {
    ways: &'a Ways<'a>,
    from: At,
    behind: u32,
    /// Of a fabric that does not run: links to every node.
    shortest: Vec<Option<u32>>,
}

impl<'a> Ways<'a> {
    fn of(snapshot: &'a Snapshot) -> Ways<'a> {
        let nodes = snapshot.nodes.iter().enumerate().filter(|(_, node)| node.router);
        let routers = nodes.flat_map(|(at, node)| node.end_ports.iter().map(move |port| (at, port.port)));
        Ways { snapshot, neighbours: snapshot.neighbours(), routers: routers.collect() }
    }

    fn from(&self, from: At) -> Leg<'_> {
        let shortest = if self.snapshot.running { Vec::new() } else { self.shortest(from) };
        Leg { ways: self, from, behind: 0, shortest }
    }

    /// The legs from routers' other ports, with the links that lie before them.
    fn through_routers(&self, first: &Leg<'_>) -> Vec<Leg<'_>> {
        let mut before: Vec<Option<u32>> = vec![None; self.routers.len()];
        let legs: Vec<Leg<'_>> = self.routers.iter().map(|port| self.from(*port)).collect();
        // A way passes each router once at most.
        for _ in 0..self.routers.len() {
            let reached = |port: &At| {
                let later =
                    legs.iter().zip(&before).filter_map(|(leg, before)| Some((*before)? + leg.to(*port)?));
                first.to(*port).into_iter().chain(later).min()
            };
            let arrivals: Vec<Option<u32>> = self.routers.iter().map(reached).collect();
            let departure = |port: &At| {
                let others = self
                    .routers
                    .iter()
                    .zip(&arrivals)
                    .filter(|(other, _)| other.0 == port.0 && *other != port);
                others.filter_map(|(_, links)| *links).min()
            };
            before = self.routers.iter().map(departure).collect();
        }
        let reached = legs.into_iter().zip(before);
        reached.filter_map(|(leg, behind)| Some(Leg { behind: behind?, ..leg })).collect()
    }

    /// The link at a port.
    fn beyond(&self, (node, port): At) -> Option<&Neighbour> {
        self.neighbours[node].iter().find(|neighbour| neighbour.port == port)
    }

    /// Follows the tables.
    fn walk(&self, from: At, to: At) -> Option<u32> {
        if from == to {
            return Some(0);
        }
        let nodes = &self.snapshot.nodes;
        let lid = nodes[to.0].end_ports.iter().find(|port| port.port == to.1)?.lid;
        let (mut at, mut links) = (self.beyond(from)?.node, 1);
        while at != to.0 {
            let port = *nodes[at].forwarding.get(usize::from(lid))?;
            at = self.beyond((at, port))?.node;
            links += 1;
            if lid == 0 || links > nodes.len() as u32 {
                return None;
            }
        }
        Some(links)
    }

    /// Links to every node by the shortest way from a port that passes through neither host nor router.
    fn shortest(&self, from: At) -> Vec<Option<u32>> {
        let mut found = vec![None; self.snapshot.nodes.len()];
        found[from.0] = Some(0);
        let mut queue = VecDeque::new();
        if let Some(first) = self.beyond(from) {
            found[first.node] = Some(1);
            queue.push_back(first.node);
        }
        while let Some(at) = queue.pop_front() {
            if !self.snapshot.nodes[at].switch {
                continue;
            }
            let next = found[at].map(|links: u32| links + 1);
            for neighbour in &self.neighbours[at] {
                if found[neighbour.node].is_none() {
                    found[neighbour.node] = next;
                    queue.push_back(neighbour.node);
                }
            }
        }
        found
    }
}

impl Leg<'_> {
    /// Links to a port, those before this leg counted in.
    fn to(&self, to: At) -> Option<u32> {
        let links = match self.ways.snapshot.running {
            true => self.ways.walk(self.from, to),
            false if to.0 == self.from.0 && to != self.from => None,
            false => self.shortest[to.0],
        };
        links.map(|links| self.behind + links)
    }
}
