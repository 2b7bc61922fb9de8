//! Credit loops: cycles of link buffers that can each wait for the next, found in the channel dependency graph.
//!
//! A channel is one direction of a link between switches. It depends on another where the tables send some LID over both,
//! one after the other: a packet that waits for room in the second holds room in the first. Tables without a cycle cannot
//! deadlock (Dally and Seitz, 1987). Every entry counts, used or not, and all traffic is taken to share one virtual lane.

use std::fmt;

use everywire_wire::Lid;

use super::graph::{Graph, Peer};
use super::tables::Tables;

/// Channels that wait for each other in turn: each a switch and its output port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// In order; the last waits for the first.
    pub channels: Vec<(u32, u8)>,
    text: String,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A cycle in the tables' channel dependency graph, or `None`: then there is none.
///
/// Takes time proportional to switches times LIDs.
pub fn credit_loops(graph: &Graph, tables: &Tables) -> Option<Cycle> {
    Channels::new(graph, tables).find_cycle().map(|channels| Cycle::new(graph, channels))
}

impl Cycle {
    fn new(graph: &Graph, channels: Vec<(u32, u8)>) -> Cycle {
        let name = |switch: u32| graph.switches[switch as usize].name.as_str();
        let mut text = String::new();
        for (switch, port) in &channels {
            text.push_str(&format!("{}[{port}] -> ", name(*switch)));
        }
        text.push_str(channels.first().map_or("", |(switch, _)| name(*switch)));
        Cycle { channels, text }
    }
}

/// What each channel depends on.
struct Channels<'a> {
    graph: &'a Graph,
    /// First channel of each switch; channels are numbered by switch and port.
    first: Vec<u32>,
    /// For each channel, a bit for each port of the switch at its end.
    next: Vec<[u64; 4]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

impl<'a> Channels<'a> {
    fn new(graph: &'a Graph, tables: &Tables) -> Channels<'a> {
        let mut first = Vec::with_capacity(graph.switches.len());
        let mut count = 0;
        for switch in &graph.switches {
            first.push(count);
            count += switch.peers.len() as u32;
        }
        let mut channels = Channels { graph, first, next: vec![[0; 4]; count as usize] };
        for (at, lft) in tables.lfts.iter().enumerate() {
            channels.add(at as u32, lft, tables);
        }
        channels
    }

    /// The dependencies of one switch's channels.
    fn add(&mut self, at: u32, lft: &[u8], tables: &Tables) {
        let graph = self.graph;
        for (lid, &port) in lft.iter().enumerate() {
            let Some(Peer::Switch { switch: to, .. }) =
                graph.switches[at as usize].peers.get(usize::from(port))
            else {
                continue;
            };
            let onward = tables.port(*to, Lid(lid as u16));
            let peer = graph.switches[*to as usize].peers.get(usize::from(onward));
            if matches!(peer, Some(Peer::Switch { .. })) {
                let channel = self.channel(at, port);
                self.next[channel][usize::from(onward) / 64] |= 1 << (onward % 64);
            }
        }
    }

    fn channel(&self, switch: u32, port: u8) -> usize {
        self.first[switch as usize] as usize + usize::from(port)
    }

    /// Depth first, without recursion: a channel met again while it is open closes a cycle.
    fn find_cycle(&self) -> Option<Vec<(u32, u8)>> {
        let mut marks = vec![Mark::New; self.next.len()];
        for (switch, node) in self.graph.switches.iter().enumerate() {
            for port in 0..node.peers.len() as u8 {
                let start = (switch as u32, port);
                if marks[self.channel(start.0, port)] == Mark::New
                    && let Some(cycle) = self.search(start, &mut marks)
                {
                    return Some(cycle);
                }
            }
        }
        None
    }

    fn search(&self, start: (u32, u8), marks: &mut [Mark]) -> Option<Vec<(u32, u8)>> {
        // Each with the port of the next switch to look at next.
        let mut stack: Vec<((u32, u8), u16)> = vec![(start, 0)];
        marks[self.channel(start.0, start.1)] = Mark::Open;
        while let Some(((switch, port), from)) = stack.last_mut() {
            let channel = self.channel(*switch, *port);
            let Some(onward) =
                (*from..256).find(|p| self.next[channel][usize::from(p / 64)] >> (p % 64) & 1 != 0)
            else {
                marks[channel] = Mark::Done;
                stack.pop();
                continue;
            };
            *from = onward + 1;
            let Some(Peer::Switch { switch: to, .. }) =
                self.graph.switches[*switch as usize].peers.get(usize::from(*port))
            else {
                continue;
            };
            let next = (*to, onward as u8);
            let mark = &mut marks[self.channel(next.0, next.1)];
            match *mark {
                Mark::Done => {}
                Mark::Open => {
                    let begin = stack.iter().position(|(channel, _)| *channel == next)?;
                    return Some(stack[begin..].iter().map(|(channel, _)| *channel).collect());
                }
                Mark::New => {
                    *mark = Mark::Open;
                    stack.push((next, 0));
                }
            }
        }
        None
    }
}
