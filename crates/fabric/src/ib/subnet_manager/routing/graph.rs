//! The graph that routing works on: switches, the links between them, and the end ports at them.
//!
//! Indices, not GUIDs, name switches and end ports, so that the engines are loops over vectors. Built by the manager from
//! what its sweep found, by [`crate::ib::topology`] from a description, and by tests.

use std::collections::VecDeque;

use everywire_wire::{Guid, Lid};

/// What is at the other end of a switch's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Peer {
    /// Nothing that works.
    #[default]
    None,
    /// A switch.
    Switch {
        /// Index in [`Graph::switches`].
        switch: u32,
        /// Its port.
        port: u8,
    },
    /// An end port, by its index in [`Graph::endports`].
    Endport(u32),
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Node GUID.
    pub guid: Guid,
    /// For messages.
    pub name: String,
    /// Of port 0.
    pub lid: Lid,
    /// By port number; entry 0 is not used.
    pub peers: Vec<Peer>,
}

impl Switch {
    /// Ports with a switch at the other end: port, switch, its port.
    pub fn neighbours(&self) -> impl Iterator<Item = (u8, u32, u8)> + '_ {
        self.peers.iter().enumerate().filter_map(|(port, peer)| match peer {
            Peer::Switch { switch, port: remote } => Some((port as u8, *switch, *remote)),
            _ => None,
        })
    }

    /// How messages call it.
    pub fn label(&self) -> String {
        format!("switch {} ({})", self.name, self.guid)
    }
}

/// A port of a channel adapter or router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endport {
    /// Port GUID.
    pub guid: Guid,
    /// Base LID; 0 for none yet.
    pub lid: Lid,
    /// It answers to 2^LMC LIDs.
    pub lmc: u8,
    /// The switch and port that it is linked to.
    pub at: Option<(u32, u8)>,
}

impl Endport {
    /// Its LIDs.
    pub fn lids(&self) -> impl Iterator<Item = u16> + use<> {
        let (base, count) = (self.lid.0, if self.lid.0 == 0 { 0 } else { 1u16 << self.lmc });
        (0..count).map(move |offset| base.saturating_add(offset))
    }
}

/// Switches and end ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Graph {
    /// In any order.
    pub switches: Vec<Switch>,
    /// In any order.
    pub endports: Vec<Endport>,
}

/// No way there.
pub(super) const FAR: u16 = u16::MAX;

impl Graph {
    /// The highest LID in use, 0 for none.
    pub fn top_lid(&self) -> u16 {
        let switches = self.switches.iter().map(|s| s.lid.0);
        let endports = self.endports.iter().filter_map(|e| e.lids().last());
        switches.chain(endports).max().unwrap_or(0)
    }

    /// The switch with a node GUID.
    pub fn switch_by_guid(&self, guid: Guid) -> Option<u32> {
        self.switches.iter().position(|s| s.guid == guid).map(|i| i as u32)
    }

    /// Hops from the nearest of `from` to every switch, [`FAR`] where there is no way.
    pub(super) fn distances(&self, from: &[u32]) -> Vec<u16> {
        let mut hops = vec![FAR; self.switches.len()];
        let mut queue = VecDeque::new();
        for &switch in from {
            hops[switch as usize] = 0;
            queue.push_back(switch);
        }
        while let Some(switch) = queue.pop_front() {
            let next = hops[switch as usize] + 1;
            for (_, neighbour, _) in self.switches[switch as usize].neighbours() {
                if hops[neighbour as usize] == FAR {
                    hops[neighbour as usize] = next;
                    queue.push_back(neighbour);
                }
            }
        }
        hops
    }

    /// End ports at each switch.
    pub(super) fn endports_per_switch(&self) -> Vec<u32> {
        let mut count = vec![0; self.switches.len()];
        for (switch, _) in self.endports.iter().filter_map(|e| e.at) {
            count[switch as usize] += 1;
        }
        count
    }

    /// Every LID that is routed to, by switch: for each, in ascending order of their first, the LIDs of port 0 and of the
    /// end ports there.
    pub(super) fn destinations(&self) -> Vec<Vec<Destination>> {
        let mut all: Vec<Vec<Destination>> = vec![Vec::new(); self.switches.len()];
        for (switch, list) in self.switches.iter().zip(&mut all) {
            if switch.lid.0 != 0 {
                list.push(Destination { base: switch.lid.0, count: 1, port: 0, ordinal: 0 });
            }
        }
        for endport in self.endports.iter().filter(|e| e.lid.0 != 0) {
            if let Some((switch, port)) = endport.at {
                let count = endport.lids().count() as u16;
                all[switch as usize].push(Destination { base: endport.lid.0, count, port, ordinal: 0 });
            }
        }
        for list in &mut all {
            // Places at a leaf go by port, so that all leaves of a regular tree agree on them.
            list.sort_by_key(|d| d.port);
            let mut ordinal = 0;
            for destination in list.iter_mut().filter(|d| d.port != 0) {
                destination.ordinal = ordinal;
                ordinal += u32::from(destination.count);
            }
        }
        all
    }
}

/// LIDs of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Destination {
    /// First LID.
    pub base: u16,
    /// How many.
    pub count: u16,
    /// Port of the last switch on the way; 0 for the switch itself.
    pub port: u8,
    /// Place of the first LID among those of the end ports at the switch.
    pub ordinal: u32,
}
