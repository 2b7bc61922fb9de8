//! Linear forwarding tables of all switches, and walks along them.

use everywire_wire::Lid;

use super::graph::{Graph, Peer};

/// The entry of a LID that a switch has no way to (IBTA §18.2.4.3.1: the packet is dropped).
pub const NO_PATH: u8 = 255;

/// For each switch of a graph the output port of each LID.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    /// By index of the switch, then by LID; all of the same length.
    pub lfts: Vec<Vec<u8>>,
}

/// Why a packet does not arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The sender is linked to no switch.
    #[error("end port {0} has no switch")]
    NoSwitch(u32),
    /// A switch has no entry.
    #[error("{at} has no port for LID {lid}")]
    NoEntry {
        /// The switch.
        at: String,
        /// The destination.
        lid: u16,
    },
    /// An entry names a port without link.
    #[error("{at} sends LID {lid} to port {port}, which has no link")]
    DeadPort {
        /// The switch.
        at: String,
        /// The destination.
        lid: u16,
        /// The port.
        port: u8,
    },
    /// The packet runs in circles.
    #[error("LID {0} runs in circles")]
    Circle(u16),
}

impl Tables {
    /// Tables that know no LID.
    pub fn empty(graph: &Graph) -> Tables {
        let len = usize::from(graph.top_lid()) + 1;
        Tables { lfts: vec![vec![NO_PATH; len]; graph.switches.len()] }
    }

    /// Output port at a switch, [`NO_PATH`] for none.
    pub fn port(&self, switch: u32, lid: Lid) -> u8 {
        let lft = self.lfts.get(switch as usize);
        lft.and_then(|lft| lft.get(usize::from(lid.0))).copied().unwrap_or(NO_PATH)
    }

    /// The switches that a packet from an end port to a LID goes through, each with its output port (0: the switch itself
    /// is the destination).
    ///
    /// # Errors
    /// Where it would not arrive.
    pub fn path(&self, graph: &Graph, from: u32, lid: Lid) -> Result<Vec<(u32, u8)>, RouteError> {
        let endport = graph.endports.get(from as usize);
        let (switch, _) = endport.and_then(|e| e.at).ok_or(RouteError::NoSwitch(from))?;
        self.path_from_switch(graph, switch, lid)
    }

    /// As [`Tables::path`], from a switch on.
    ///
    /// # Errors
    /// Where it would not arrive.
    pub fn path_from_switch(&self, graph: &Graph, from: u32, lid: Lid) -> Result<Vec<(u32, u8)>, RouteError> {
        let (mut path, mut at) = (Vec::new(), from);
        while path.len() <= graph.switches.len() {
            let switch = &graph.switches[at as usize];
            let port = self.port(at, lid);
            if port == NO_PATH {
                return Err(RouteError::NoEntry { at: switch.label(), lid: lid.0 });
            }
            path.push((at, port));
            if port == 0 {
                return Ok(path);
            }
            match switch.peers.get(usize::from(port)) {
                Some(Peer::Switch { switch, .. }) => at = *switch,
                Some(Peer::Endport(_)) => return Ok(path),
                _ => return Err(RouteError::DeadPort { at: switch.label(), lid: lid.0, port }),
            }
        }
        Err(RouteError::Circle(lid.0))
    }

    /// Ordered pairs of end ports with a LID and a switch that have no path by their base LIDs.
    pub fn unreachable_pairs(&self, graph: &Graph) -> usize {
        let per_switch = graph.endports_per_switch();
        let linked = graph.endports.iter().filter(|e| e.lid.0 != 0 && e.at.is_some());
        linked.map(|e| self.switches_that_miss(e.lid).map(|s| per_switch[s] as usize).sum::<usize>()).sum()
    }

    fn switches_that_miss(&self, lid: Lid) -> impl Iterator<Item = usize> + '_ {
        (0..self.lfts.len()).filter(move |s| self.port(*s as u32, lid) == NO_PATH)
    }
}
