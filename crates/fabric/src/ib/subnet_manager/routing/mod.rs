//! Routing engines as pure graph code: from a graph of switches to forwarding tables, without any MAD.
//!
//! [`route`] runs the engine that is asked for and says which one it ended with and why; [`Tables`] are the linear
//! forwarding tables of all switches, [`loops::credit_loops`] searches them for cycles of buffers that wait for each other,
//! [`multicast::tree`] gives the spanning tree of a group. Read IBTA §18.2.4.3 (forwarding) and Duato, "A new theory of
//! deadlock-free adaptive routing" (the channel dependency graph) first. Who is told the tables is the manager's affair.

mod choice;
mod fat_tree;
mod graph;
pub mod loops;
mod min_hop;
pub mod multicast;
mod tables;
mod up_down;

use everywire_wire::Guid;

pub use graph::{Endport, Graph, Peer, Switch};
pub use loops::{Cycle, credit_loops};
pub use multicast::{MulticastTree, tree};
pub use tables::{NO_PATH, RouteError, Tables};

/// How paths are chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RoutingEngine {
    /// Shortest paths, balanced. May have credit loops, which are named.
    #[default]
    MinHop,
    /// Shortest paths that never turn up after having gone down from a root: no credit loops.
    UpDown {
        /// Node GUIDs of the root switches; none: they are looked for.
        roots: Vec<Guid>,
    },
    /// As up/down by the levels of a fat tree, destinations spread over the ways up by their place at their leaf.
    FatTree {
        /// Node GUIDs of the top switches; none: levels are counted from the switches with hosts.
        roots: Vec<Guid>,
    },
}

impl RoutingEngine {
    /// Its name in messages and options.
    pub fn name(&self) -> &'static str {
        match self {
            RoutingEngine::MinHop => "min-hop",
            RoutingEngine::UpDown { .. } => "up/down",
            RoutingEngine::FatTree { .. } => "fat-tree",
        }
    }
}

/// What routing a graph gave.
#[derive(Debug, Clone)]
pub struct Routed {
    /// The tables.
    pub tables: Tables,
    /// The engine that made them, which is another than asked for where the graph does not suit that one.
    pub engine: &'static str,
    /// What somebody should know: why another engine was taken, roots that were found, ports that cannot be reached.
    pub messages: Vec<String>,
}

/// Tables for a graph by an engine.
///
/// Fat-tree falls back to up/down where the graph is no fat tree, because that too has no credit loops. Linear in the
/// number of links times the number of switches.
pub fn route(graph: &Graph, engine: &RoutingEngine) -> Routed {
    let mut messages = Vec::new();
    let (tables, engine) = match engine {
        RoutingEngine::MinHop => (min_hop::tables(graph), "min-hop"),
        RoutingEngine::UpDown { roots } => (up_down::tables(graph, roots, &mut messages), "up/down"),
        RoutingEngine::FatTree { roots } => match fat_tree::tables(graph, roots) {
            Ok(tables) => (tables, "fat-tree"),
            Err(why) => {
                messages.push(format!("fat-tree: {why}; up/down is used instead"));
                (up_down::tables(graph, roots, &mut messages), "up/down")
            }
        },
    };
    let lost = tables.unreachable_pairs(graph);
    if lost > 0 {
        messages.push(format!("{engine}: {lost} pairs of end ports have no path"));
    }
    Routed { tables, engine, messages }
}

#[cfg(test)]
mod tests;
