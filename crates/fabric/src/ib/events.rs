//! What happens next: one heap of events by nanosecond, and by the order in which they were made within one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::SimTime;

/// Something that happens at a port or node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The last bit of a packet reaches a port.
    Arrive { port: u32, packet: u32, epoch: u32 },
    /// A port has put the last bit of a packet on the wire.
    Sent { port: u32, epoch: u32 },
    /// A flow control packet reaches a port (IBTA §7.9.4.1).
    FlowControl { port: u32, epoch: u32, vl: u8, fctbs: u16, fccl: u16 },
    /// A port sends flow control though nothing was freed.
    Refresh { port: u32, epoch: u32, vl: u8 },
    /// A port looks again whether it can send.
    Wake { port: u32 },
    /// A packet that a port sent to itself is there.
    Loopback { port: u32, packet: u32 },
    /// A node's sampling of counters begins or ends.
    Sample { node: u32 },
    /// A router looks what it has asked for and not been told.
    Router { node: u32 },
    /// An agent of a node has something to repeat.
    Agent { node: u32 },
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    /// Time, then number.
    key: u128,
    event: Next,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Queued>>,
    made: u64,
}

impl Events {
    #[inline]
    pub fn push(&mut self, at: SimTime, event: Next) {
        self.made += 1;
        let key = u128::from(at.as_nanos()) << 64 | u128::from(self.made);
        self.heap.push(Reverse(Queued { key, event }));
    }

    #[inline]
    pub fn next_at(&self) -> Option<SimTime> {
        self.heap.peek().map(|Reverse(next)| SimTime::from_nanos((next.key >> 64) as u64))
    }

    /// The next event if it happens by `now`.
    #[inline]
    pub fn pop(&mut self, now: SimTime) -> Option<(SimTime, Next)> {
        let at = self.next_at()?;
        if at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(next)| (at, next.event))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Next> {
        self.heap.iter().map(|Reverse(queued)| &queued.event)
    }
}
