//! Well-known shapes of InfiniBand subnets as plain data: ring, torus, fat tree.
//!
//! Used by tests, examples and `everywire fabric`; [`super::subnet_manager::routing`] routes them without a subnet
//! ([`Topology::graph`]). Names and GUIDs follow from a node's place, so that a shape is the same everywhere.

use everywire_wire::{Guid, Lid};

use super::subnet_manager::routing::{Endport, Graph, Peer, Switch};

/// The most ports of a switch.
const MAX_RADIX: usize = 254;
/// The most nodes of a shape: there are no more unicast LIDs.
const MAX_NODES: usize = 0xbfff;
/// GUID of the first host; every host has 16.
const HOST_GUIDS: u64 = 0x0200_0000_0001_0000;
/// GUID of the first switch.
const SWITCH_GUIDS: u64 = 0x0200_0000_0f00_0000;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name, and node description.
    pub name: String,
    /// Node GUID; port n of a host has this plus n.
    pub guid: Guid,
    /// A switch, or else a host.
    pub is_switch: bool,
    /// External ports.
    pub ports: u8,
}

/// A link between two ports, each a node's index and the port's number.
pub type Link = ((usize, u8), (usize, u8));

/// Nodes and links.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// In order of their making; switches and hosts may mix.
    pub nodes: Vec<Node>,
    /// Each port occurs at most once.
    pub links: Vec<Link>,
    /// Indices of the switches at the top of a tree.
    pub roots: Vec<usize>,
}

/// Why there is no such shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShapeError(String);

impl Topology {
    /// Adds a switch with so many ports and gives its index.
    pub fn add_switch(&mut self, name: String, ports: u8) -> usize {
        let guid = Guid(SWITCH_GUIDS + self.switches().count() as u64 + 1);
        self.nodes.push(Node { name, guid, is_switch: true, ports });
        self.nodes.len() - 1
    }

    /// Adds a host with one port, named by its number, and links it to a switch's port.
    pub fn add_host(&mut self, switch: (usize, u8)) -> usize {
        let number = self.hosts().count() as u64;
        let (name, guid) = (format!("h{}", number + 1), Guid(HOST_GUIDS + 16 * number));
        self.nodes.push(Node { name, guid, is_switch: false, ports: 1 });
        let host = self.nodes.len() - 1;
        self.links.push(((host, 1), switch));
        host
    }

    /// Indices of the switches.
    pub fn switches(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].is_switch)
    }

    /// Indices of the hosts.
    pub fn hosts(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|n| !self.nodes[*n].is_switch)
    }

    /// `n` switches in a ring, one host at each: [`Topology::ring_with`].
    ///
    /// # Errors
    /// Fewer than three switches, or more than there are LIDs.
    pub fn ring(n: usize) -> Result<Topology, ShapeError> {
        Topology::ring_with(n, 1)
    }

    /// `n` switches in a ring, so many hosts at each: port 1 leads on, port 2 back, the others to the hosts.
    ///
    /// # Errors
    /// Fewer than three switches, no hosts, or more of them than switches have ports or there are LIDs.
    pub fn ring_with(n: usize, hosts: usize) -> Result<Topology, ShapeError> {
        if n < 3 {
            return Err(ShapeError(format!("a ring has at least 3 switches, not {n}")));
        }
        let ports = ports_of(n, hosts, 2)?;
        let mut shape = Topology::default();
        (1..=n).for_each(|i| _ = shape.add_switch(format!("s{i}"), ports));
        shape.links.extend((0..n).map(|i| ((i, 1), ((i + 1) % n, 2))));
        shape.add_hosts(n, 3..=ports);
        Ok(shape)
    }

    /// `x` times `y` switches in a torus, one host at each: [`Topology::torus_with`].
    ///
    /// # Errors
    /// A side shorter than three, or more nodes than there are LIDs.
    pub fn torus(x: usize, y: usize) -> Result<Topology, ShapeError> {
        Topology::torus_with(x, y, 1)
    }

    /// `x` times `y` switches in a torus, so many hosts at each: ports 1 and 2 lead on and back along x, 3 and 4 along y, the
    /// others to the hosts.
    ///
    /// # Errors
    /// A side shorter than three, no hosts, or more of them than switches have ports or there are LIDs.
    pub fn torus_with(x: usize, y: usize, hosts: usize) -> Result<Topology, ShapeError> {
        if x < 3 || y < 3 {
            return Err(ShapeError(format!("a torus has sides from 3 on, not {x} by {y}")));
        }
        let switches = x.saturating_mul(y);
        let ports = ports_of(switches, hosts, 4)?;
        let mut shape = Topology::default();
        (0..switches).for_each(|i| _ = shape.add_switch(format!("s{}x{}", i % x + 1, i / x + 1), ports));
        for i in 0..switches {
            let (column, row) = (i % x, i / x);
            shape.links.push(((i, 1), (row * x + (column + 1) % x, 2)));
            shape.links.push(((i, 3), ((row + 1) % y * x + column, 4)));
        }
        shape.add_hosts(switches, 5..=ports);
        Ok(shape)
    }

    /// A host at each of these ports of the first `switches` nodes.
    fn add_hosts(&mut self, switches: usize, ports: std::ops::RangeInclusive<u8>) {
        for switch in 0..switches {
            ports.clone().for_each(|port| _ = self.add_host((switch, port)));
        }
    }

    /// A fat tree of switches with `radix` ports each, half of them up: of two levels where that is enough for the hosts,
    /// else of three.
    ///
    /// # Errors
    /// An odd radix, no host, or more hosts than three levels take.
    pub fn fat_tree(hosts: usize, radix: usize) -> Result<Topology, ShapeError> {
        if !radix.is_multiple_of(2) || !(2..=MAX_RADIX).contains(&radix) {
            return Err(ShapeError(format!(
                "switches have an even number of ports up to {MAX_RADIX}, not {radix}"
            )));
        }
        let half = radix / 2;
        let most = (2 * half * half * half).min(MAX_NODES / 2);
        match hosts {
            0 => Err(ShapeError("a fat tree has at least one host".into())),
            n if n <= half * radix => Ok(Topology::two_levels(hosts, radix)),
            n if n <= most => Ok(Topology::three_levels(hosts, radix)),
            n => {
                Err(ShapeError(format!("switches of {radix} ports make a fat tree of {most} hosts, not {n}")))
            }
        }
    }

    /// As many spines as a leaf has ways up, each linked to every leaf once.
    fn two_levels(hosts: usize, radix: usize) -> Topology {
        let half = radix / 2;
        let leaves = hosts.div_ceil(half);
        let spines = if leaves == 1 { 0 } else { half };
        let mut shape = Topology::default();
        (1..=leaves).for_each(|i| _ = shape.add_switch(format!("leaf{i}"), radix as u8));
        (1..=spines).for_each(|i| _ = shape.add_switch(format!("spine{i}"), radix as u8));
        for leaf in 0..leaves {
            let up = |spine: usize| ((leaf, (half + spine + 1) as u8), (leaves + spine, (leaf + 1) as u8));
            shape.links.extend((0..spines).map(up));
        }
        shape.roots = if spines == 0 { vec![0] } else { (leaves..leaves + spines).collect() };
        (0..hosts).for_each(|i| _ = shape.add_host((i / half, (i % half + 1) as u8)));
        shape
    }

    /// Pods of up to `radix / 2` leaves below `radix / 2` spines; spine n of every pod reaches the cores of group n, as in
    /// Al-Fares et al. (2008).
    fn three_levels(hosts: usize, radix: usize) -> Topology {
        let half = radix / 2;
        let leaves = hosts.div_ceil(half);
        let spines = leaves.div_ceil(half) * half;
        let mut shape = Topology::default();
        let (spine, core) = (leaves, leaves + spines);
        for (name, count) in [("leaf", leaves), ("spine", spines), ("core", half * half)] {
            (1..=count).for_each(|i| _ = shape.add_switch(format!("{name}{i}"), radix as u8));
        }
        for leaf in 0..leaves {
            let (pod, down) = (leaf / half, (leaf % half + 1) as u8);
            let up = |n: usize| ((leaf, (half + n + 1) as u8), (spine + pod * half + n, down));
            shape.links.extend((0..half).map(up));
        }
        for at in 0..spines {
            let (pod, group) = (at / half, at % half);
            let up =
                |n: usize| ((spine + at, (half + n + 1) as u8), (core + group * half + n, (pod + 1) as u8));
            shape.links.extend((0..half).map(up));
        }
        shape.roots = (core..core + half * half).collect();
        (0..hosts).for_each(|i| _ = shape.add_host((i / half, (i % half + 1) as u8)));
        shape
    }

    /// The graph that routing works on, with LIDs given from 1 on: hosts first, then switches.
    pub fn graph(&self, lmc: u8) -> Graph {
        let mut graph = Graph::default();
        let mut place = vec![0u32; self.nodes.len()];
        for (node, place) in self.nodes.iter().zip(&mut place) {
            if node.is_switch {
                *place = graph.switches.len() as u32;
                let peers = vec![Peer::None; usize::from(node.ports) + 1];
                graph.switches.push(Switch { guid: node.guid, name: node.name.clone(), lid: Lid(0), peers });
            } else {
                *place = graph.endports.len() as u32;
                let guid = Guid(node.guid.0 + 1);
                graph.endports.push(Endport { guid, lid: Lid(0), lmc, at: None });
            }
        }
        for &(a, b) in &self.links {
            for ((node, port), (peer, peer_port)) in [(a, b), (b, a)] {
                let at = place[node] as usize;
                match (self.nodes[node].is_switch, self.nodes[peer].is_switch) {
                    (true, true) => {
                        let peer = Peer::Switch { switch: place[peer], port: peer_port };
                        graph.switches[at].peers[usize::from(port)] = peer;
                    }
                    (true, false) => graph.switches[at].peers[usize::from(port)] = Peer::Endport(place[peer]),
                    (false, true) => graph.endports[at].at = Some((place[peer], peer_port)),
                    (false, false) => {}
                }
            }
        }
        let step = 1u16 << lmc;
        let lids = graph.endports.iter_mut().map(|e| &mut e.lid);
        lids.zip(1..).for_each(|(lid, n)| *lid = Lid(n * step));
        let first = (graph.endports.len() as u16 + 1) * step;
        graph.switches.iter_mut().zip(first..).for_each(|(switch, lid)| switch.lid = Lid(lid));
        graph
    }
}

/// Ports of each of so many switches with hosts and links to others.
fn ports_of(switches: usize, hosts: usize, links: usize) -> Result<u8, ShapeError> {
    let ports = hosts.saturating_add(links);
    if hosts == 0 || ports > MAX_RADIX {
        return Err(ShapeError(format!("a switch has 1 to {} hosts, not {hosts}", MAX_RADIX - links)));
    }
    if switches.saturating_mul(hosts + 1) > MAX_NODES {
        return Err(ShapeError(format!(
            "{switches} switches with {hosts} hosts each are more than {MAX_NODES}"
        )));
    }
    Ok(ports as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_one_link_and_shapes_have_the_right_size() {
        let shapes = [
            (Topology::ring(5).unwrap(), 5, 5, 10),
            (Topology::torus(4, 3).unwrap(), 12, 12, 36),
            (Topology::ring_with(4, 3).unwrap(), 4, 12, 16),
            (Topology::torus_with(3, 3, 2).unwrap(), 9, 18, 36),
            (Topology::fat_tree(16, 8).unwrap(), 8, 16, 32),
            (Topology::fat_tree(16, 4).unwrap(), 20, 16, 48),
            (Topology::fat_tree(3, 8).unwrap(), 1, 3, 3),
        ];
        for (shape, switches, hosts, links) in shapes {
            assert_eq!((shape.switches().count(), shape.hosts().count()), (switches, hosts));
            assert_eq!(shape.links.len(), links);
            let mut ends: Vec<_> = shape.links.iter().flat_map(|(a, b)| [*a, *b]).collect();
            assert!(ends.iter().all(|(n, p)| (1..=shape.nodes[*n].ports).contains(p)), "{ends:?}");
            ends.sort();
            ends.dedup();
            assert_eq!(ends.len(), 2 * links);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Topology::ring(2).is_err() && Topology::torus(2, 3).is_err());
        assert!(Topology::fat_tree(0, 4).is_err() && Topology::fat_tree(17, 4).is_err());
        assert!(Topology::fat_tree(4, 5).is_err());
        assert!(Topology::torus(usize::MAX, usize::MAX).is_err());
        assert!(Topology::ring_with(3, 0).is_err() && Topology::ring_with(3, 300).is_err());
    }
}
