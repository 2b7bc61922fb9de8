//! Which of several equally good ports a LID gets: the least used, LIDs of one port over different ways.

use super::graph::{Destination, Graph};
use super::tables::Tables;

/// Counts how many LIDs each port of each switch has, and fills tables.
pub(super) struct Balancer {
    tables: Tables,
    load: Vec<Vec<u32>>,
}

impl Balancer {
    pub fn new(graph: &Graph) -> Balancer {
        let load = graph.switches.iter().map(|s| vec![0; s.peers.len()]).collect();
        Balancer { tables: Tables::empty(graph), load }
    }

    pub fn into_tables(self) -> Tables {
        self.tables
    }

    /// The last switch sends all LIDs of the destination to its port.
    pub fn arrive(&mut self, switch: u32, destination: &Destination) {
        for offset in 0..destination.count {
            self.set(switch, destination, offset, destination.port);
        }
    }

    /// Gives each LID of the destination one of the `candidates` (port, switch behind it) at a switch.
    ///
    /// LIDs of switches do not count as load: next to no traffic goes there.
    pub fn spread(&mut self, switch: u32, candidates: &[(u8, u32)], destination: &Destination) {
        let mut used: Vec<(u8, u32)> = Vec::new();
        for offset in 0..destination.count {
            let load = &self.load[switch as usize];
            let best = candidates.iter().min_by_key(|(port, neighbour)| {
                let same_node = used.iter().filter(|(_, n)| n == neighbour).count();
                let same_port = used.iter().filter(|(p, _)| p == port).count();
                (same_node, same_port, load[usize::from(*port)], *port)
            });
            let Some(&(port, neighbour)) = best else { return };
            if destination.count > 1 {
                used.push((port, neighbour));
            }
            self.take(switch, destination, offset, port);
        }
    }

    /// Gives one LID of the destination a port, and counts it.
    pub fn take(&mut self, switch: u32, destination: &Destination, offset: u16, port: u8) {
        self.load[switch as usize][usize::from(port)] += u32::from(destination.port != 0);
        self.set(switch, destination, offset, port);
    }

    fn set(&mut self, switch: u32, destination: &Destination, offset: u16, port: u8) {
        let lid = usize::from(destination.base) + usize::from(offset);
        if let Some(entry) = self.tables.lfts[switch as usize].get_mut(lid) {
            *entry = port;
        }
    }
}
