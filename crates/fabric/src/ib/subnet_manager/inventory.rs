//! What a sweep has found: nodes, their ports, and what is linked to what.
//!
//! Two of these live at a time: the one that answers queries, and the one that a sweep in progress fills. [`Map`] is the
//! same as a graph for routing, with the way back from LIDs and GUIDs.

use std::collections::BTreeMap;

use everywire_wire::smp::codes::{node_type, port_state};
use everywire_wire::smp::{NodeDescription, NodeInfo, PortInfo, SwitchInfo};
use everywire_wire::{Guid, Lid};

use super::requests::Path;
use super::routing::{Endport, Graph, Peer, Switch};

/// A port of a node.
#[derive(Debug, Clone)]
pub(super) struct Port {
    /// GUID of an end port; of a switch's external port that of the switch.
    pub guid: Guid,
    /// As it was read, or answered to the last write.
    pub info: PortInfo,
    /// Whether `info` has been read.
    pub known: bool,
    /// How to get to it.
    pub path: Path,
    /// Node and port at the other end.
    pub peer: Option<(Guid, u8)>,
    /// Linked, but nobody answered.
    pub silent: bool,
}

impl Port {
    /// A link that works, and known neighbour.
    pub fn is_linked(&self) -> bool {
        self.known && self.info.port_state > port_state::DOWN && self.peer.is_some()
    }
}

/// A node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// As seen from the port that was found first.
    pub info: NodeInfo,
    pub description: NodeDescription,
    pub path: Path,
    pub switch: Option<SwitchInfo>,
    /// By number; 0 of an adapter is never used.
    pub ports: Vec<Port>,
}

impl Node {
    pub fn new(info: NodeInfo, path: Path) -> Node {
        let port = Port {
            guid: Guid(0),
            info: PortInfo::default(),
            known: false,
            path: path.clone(),
            peer: None,
            silent: false,
        };
        let mut ports = vec![port; usize::from(info.num_ports) + 1];
        if info.node_type == node_type::SWITCH {
            ports.iter_mut().for_each(|p| p.guid = info.port_guid);
        }
        Node { info, description: NodeDescription::default(), path, switch: None, ports }
    }

    pub fn is_switch(&self) -> bool {
        self.info.node_type == node_type::SWITCH
    }

    pub fn name(&self) -> String {
        self.description.name()
    }

    /// Ports that have LIDs: port 0 of a switch, each port of others that was found.
    pub fn end_ports(&self) -> impl Iterator<Item = (u8, &Port)> {
        let is_switch = self.is_switch();
        let numbered = self.ports.iter().enumerate();
        numbered
            .filter(move |(n, port)| (*n == 0) == is_switch && port.known)
            .map(|(n, port)| (n as u8, port))
    }

    /// The end port that stands for a port: itself, or port 0 on a switch.
    pub fn end_port_of(&self, port: u8) -> Option<&Port> {
        self.ports.get(if self.is_switch() { 0 } else { usize::from(port) })
    }
}

/// All nodes, by node GUID.
#[derive(Debug, Clone, Default)]
pub(super) struct Inventory {
    pub nodes: BTreeMap<Guid, Node>,
}

impl Inventory {
    pub fn port(&self, node: Guid, port: u8) -> Option<&Port> {
        self.nodes.get(&node)?.ports.get(usize::from(port))
    }

    pub fn port_mut(&mut self, node: Guid, port: u8) -> Option<&mut Port> {
        self.nodes.get_mut(&node)?.ports.get_mut(usize::from(port))
    }

    /// All end ports: node GUID, number, port.
    pub fn end_ports(&self) -> impl Iterator<Item = (Guid, u8, &Port)> {
        self.nodes.iter().flat_map(|(guid, node)| node.end_ports().map(|(n, port)| (*guid, n, port)))
    }

    /// Ties two ports together, both ways. Ports that they were tied to before are free again.
    pub fn link(&mut self, a: (Guid, u8), b: (Guid, u8)) {
        for (from, to) in [(a, b), (b, a)] {
            let old = self.port_mut(from.0, from.1).and_then(|port| {
                port.silent = false;
                port.peer.replace(to)
            });
            if let Some((node, port)) = old.filter(|old| *old != to)
                && let Some(port) = self.port_mut(node, port)
            {
                port.peer = None;
            }
        }
    }
}

/// The owner of a LID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub node: Guid,
    pub port: u8,
}

/// The inventory as a graph.
#[derive(Debug, Clone, Default)]
pub(super) struct Map {
    pub graph: Graph,
    /// By node GUID.
    pub switch_index: BTreeMap<Guid, u32>,
    /// Node GUIDs by index of the switch.
    pub switch_guids: Vec<Guid>,
    /// By port GUID: index among the graph's end ports, and where it is.
    pub endports: BTreeMap<Guid, (u32, Owner)>,
    /// By LID.
    pub owners: Vec<Option<Owner>>,
}

impl Map {
    /// From the inventory and the LIDs given to port GUIDs.
    pub fn new(inventory: &Inventory, lids: &BTreeMap<Guid, Lid>, lmc: u8) -> Map {
        let mut map = Map::default();
        let lid_of = |guid: Guid| lids.get(&guid).copied().unwrap_or_default();
        for (guid, node) in inventory.nodes.iter().filter(|(_, node)| node.is_switch()) {
            map.switch_index.insert(*guid, map.switch_guids.len() as u32);
            map.switch_guids.push(*guid);
            let peers = vec![Peer::None; node.ports.len()];
            let lid = lid_of(node.info.port_guid);
            map.graph.switches.push(Switch { guid: *guid, name: node.name(), lid, peers });
        }
        for (node, number, port) in inventory.end_ports() {
            let lid = lid_of(port.guid);
            let is_switch = inventory.nodes[&node].is_switch();
            map.own(lid, if is_switch { 0 } else { lmc }, Owner { node, port: number });
            if is_switch {
                continue;
            }
            let index = map.graph.endports.len() as u32;
            map.endports.insert(port.guid, (index, Owner { node, port: number }));
            let switch = port.peer.filter(|_| port.is_linked());
            let at = switch.and_then(|(peer, n)| Some((*map.switch_index.get(&peer)?, n)));
            map.graph.endports.push(Endport { guid: port.guid, lid, lmc, at });
            if let Some((switch, n)) = at {
                map.graph.switches[switch as usize].peers[usize::from(n)] = Peer::Endport(index);
            }
        }
        map.link_switches(inventory);
        map
    }

    fn link_switches(&mut self, inventory: &Inventory) {
        for (index, guid) in self.switch_guids.iter().enumerate() {
            for (number, port) in inventory.nodes[guid].ports.iter().enumerate().skip(1) {
                if let Some((peer, port)) = port.peer.filter(|_| port.is_linked())
                    && let Some(&switch) = self.switch_index.get(&peer)
                {
                    self.graph.switches[index].peers[number] = Peer::Switch { switch, port };
                }
            }
        }
    }

    fn own(&mut self, lid: Lid, lmc: u8, owner: Owner) {
        if lid.0 == 0 {
            return;
        }
        let end = usize::from(lid.0) + (1 << lmc);
        self.owners.resize(self.owners.len().max(end), None);
        self.owners[usize::from(lid.0)..end].fill(Some(owner));
    }

    /// Who answers to a LID.
    pub fn owner(&self, lid: Lid) -> Option<Owner> {
        self.owners.get(usize::from(lid.0)).copied().flatten()
    }
}
