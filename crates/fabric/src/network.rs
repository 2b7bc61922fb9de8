//! The network: host ports and switches joined by links, and one heap of what happens next.
//!
//! Drive it like everything else: [`Network::send_frame`] and [`Network::schedule`] put things in, [`Network::poll`]
//! hands out what arrived by now, [`Network::poll_timeout`] says when to come back. Events at the same nanosecond happen in
//! the order in which they were made, so a run depends on nothing but its inputs and the seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::clock::{SimTime, VirtualClock};
use crate::ethernet::switch::{Forward, LearningSwitch, SwitchConfig};
use crate::faults::Faults;
use crate::link::{Link, LinkCounters, LinkParams};

/// A host's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub usize);

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub usize);

/// A link, both directions of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// What a link can end at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A host's port.
    Host(PortId),
    /// A switch, which gives the link its next port number.
    Switch(SwitchId),
}

/// A direction of a link, by the order in which its ends were given to [`Network::connect`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first end to the second.
    Forth,
    /// From the second end to the first.
    Back,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Direction; 2] = [Direction::Forth, Direction::Back];
}

/// A change to a link at a time to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// New faults, the partition flag among them.
    Faults(Faults),
    /// Cut (true) or heal (false); the other faults stay.
    Partition(bool),
    /// New properties.
    Params(LinkParams),
}

/// A frame that arrived at a host's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Where.
    pub port: PortId,
    /// When.
    pub at: Instant,
    /// The frame, from the destination address on, without FCS.
    pub frame: Vec<u8>,
}

/// Why a network could not be built as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A host's port takes one link.
    #[error("port {0:?} already has a link")]
    PortInUse(PortId),
    /// No such node in this network.
    #[error("{0:?} is not in this network")]
    Unknown(Node),
}

/// An end of a link: a node and the node's port number.
#[derive(Debug, Clone, Copy)]
struct End {
    node: Node,
    port: usize,
}

#[derive(Debug)]
struct Wire {
    ends: [End; 2],
    /// By [`Direction`]: forth, back.
    links: [Link; 2],
}

#[derive(Debug)]
struct Switch {
    forwarding: LearningSwitch,
    /// By port number: the link and the direction that leads away from the switch.
    ports: Vec<(LinkId, Direction)>,
}

#[derive(Debug)]
enum Event {
    /// The last bit of a frame reaches the far end of a link.
    Arrive {
        link: LinkId,
        direction: Direction,
        frame: Vec<u8>,
    },
    /// A switch has made up its mind and queues the frame.
    Egress {
        link: LinkId,
        direction: Direction,
        frame: Vec<u8>,
    },
    Change {
        link: LinkId,
        direction: Direction,
        change: Change,
    },
}

#[derive(Debug)]
struct Queued {
    at: SimTime,
    sequence: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
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
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Hosts, switches and links in virtual time.
#[derive(Debug)]
pub struct Network {
    clock: VirtualClock,
    seed: u64,
    /// By port: the link and the direction that leads away from the host.
    hosts: Vec<Option<(LinkId, Direction)>>,
    switches: Vec<Switch>,
    wires: Vec<Wire>,
    queue: BinaryHeap<Reverse<Queued>>,
    sequence: u64,
}

impl Network {
    /// An empty network whose virtual time starts at `base` and whose faults follow from `seed`.
    pub fn new(base: Instant, seed: u64) -> Self {
        Network {
            clock: VirtualClock::new(base),
            seed,
            hosts: Vec::new(),
            switches: Vec::new(),
            wires: Vec::new(),
            queue: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// Adds a host's port.
    pub fn add_host(&mut self) -> PortId {
        self.hosts.push(None);
        PortId(self.hosts.len() - 1)
    }

    /// Adds a switch.
    pub fn add_switch(&mut self, config: SwitchConfig) -> SwitchId {
        self.switches.push(Switch { forwarding: LearningSwitch::new(config), ports: Vec::new() });
        SwitchId(self.switches.len() - 1)
    }

    /// Joins two nodes by a link.
    pub fn connect(&mut self, a: Node, b: Node, params: LinkParams) -> Result<LinkId, TopologyError> {
        self.check_free(a)?;
        self.check_free(b)?;
        if let (Node::Host(port), true) = (a, a == b) {
            return Err(TopologyError::PortInUse(port));
        }
        let id = LinkId(self.wires.len());
        let ends = [self.attach(a, id, Direction::Forth), self.attach(b, id, Direction::Back)];
        // Odd multipliers keep the generators of the directions apart.
        let seed_of = |n: u64| self.seed ^ (2 * id.0 as u64 + n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let links = [Link::new(params, seed_of(0)), Link::new(params, seed_of(1))];
        self.wires.push(Wire { ends, links });
        Ok(id)
    }

    /// One direction of a link, to read.
    pub fn link(&self, link: LinkId, direction: Direction) -> Option<&Link> {
        Some(&self.wires.get(link.0)?.links[direction as usize])
    }

    /// One direction of a link, to change at once.
    pub fn link_mut(&mut self, link: LinkId, direction: Direction) -> Option<&mut Link> {
        Some(&mut self.wires.get_mut(link.0)?.links[direction as usize])
    }

    /// A switch's forwarding, to read.
    pub fn switch(&self, switch: SwitchId) -> Option<&LearningSwitch> {
        Some(&self.switches.get(switch.0)?.forwarding)
    }

    /// The counters of every link and direction, in order.
    pub fn counters(&self) -> impl Iterator<Item = (LinkId, Direction, LinkCounters)> + '_ {
        self.wires
            .iter()
            .enumerate()
            .flat_map(|(i, wire)| Direction::BOTH.map(|d| (LinkId(i), d, wire.links[d as usize].counters())))
    }

    /// Sends a frame from a host's port. A port without a link drops it.
    pub fn send_frame(&mut self, now: Instant, port: PortId, frame: Vec<u8>) {
        let now = self.clock.sim_time(now);
        if let Some(Some((link, direction))) = self.hosts.get(port.0).copied() {
            self.transmit(now, link, direction, frame);
        }
    }

    /// Makes a change happen at `at` (at once when that is past).
    pub fn schedule(&mut self, at: Instant, link: LinkId, direction: Direction, change: Change) {
        let at = self.clock.sim_time(at);
        self.push(at, Event::Change { link, direction, change });
    }

    /// The next frame that has reached a host by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Delivery> {
        let now = self.clock.sim_time(now);
        while self.queue.peek().is_some_and(|Reverse(next)| next.at <= now) {
            let Some(Reverse(Queued { at, event, .. })) = self.queue.pop() else { break };
            self.clock.advance_to(at);
            if let Some(delivery) = self.happen(at, event) {
                return Some(delivery);
            }
        }
        self.clock.advance_to(now);
        None
    }

    /// When the next thing happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse(next)| self.clock.instant(next.at))
    }

    fn happen(&mut self, at: SimTime, event: Event) -> Option<Delivery> {
        match event {
            Event::Arrive { link, direction, frame } => {
                let to = self.wires[link.0].ends[1 - direction as usize];
                match to.node {
                    Node::Host(port) => return Some(Delivery { port, at: self.clock.instant(at), frame }),
                    Node::Switch(switch) => self.forward(at, switch, to.port, frame),
                }
            }
            Event::Egress { link, direction, frame } => self.transmit(at, link, direction, frame),
            Event::Change { link, direction, change } => {
                if let Some(link) = self.link_mut(link, direction) {
                    match change {
                        Change::Faults(faults) => link.set_faults(faults),
                        Change::Partition(cut) => link.set_partition(cut),
                        Change::Params(params) => link.set_params(params),
                    }
                }
            }
        }
        None
    }

    fn forward(&mut self, at: SimTime, switch: SwitchId, in_port: usize, frame: Vec<u8>) {
        let Switch { forwarding, ports } = &mut self.switches[switch.0];
        let leaves = at.after(forwarding.config().latency);
        let out: Vec<usize> = match forwarding.forward(at, in_port, &frame) {
            Forward::To(port) => vec![port],
            Forward::Flood => (0..ports.len()).filter(|&p| p != in_port).collect(),
            Forward::Drop => return,
        };
        let Some((&last, rest)) = out.split_last() else { return };
        for &port in rest {
            let (link, direction) = self.switches[switch.0].ports[port];
            self.push(leaves, Event::Egress { link, direction, frame: frame.clone() });
        }
        let (link, direction) = self.switches[switch.0].ports[last];
        self.push(leaves, Event::Egress { link, direction, frame });
    }

    fn transmit(&mut self, now: SimTime, link: LinkId, direction: Direction, frame: Vec<u8>) {
        let arrivals = self.wires[link.0].links[direction as usize].offer(now, frame);
        for arrival in arrivals.into_iter().flatten() {
            self.push(arrival.at, Event::Arrive { link, direction, frame: arrival.frame });
        }
    }

    fn push(&mut self, at: SimTime, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse(Queued { at, sequence: self.sequence, event }));
    }

    fn check_free(&self, node: Node) -> Result<(), TopologyError> {
        match node {
            Node::Host(port) => match self.hosts.get(port.0) {
                None => Err(TopologyError::Unknown(node)),
                Some(Some(_)) => Err(TopologyError::PortInUse(port)),
                Some(None) => Ok(()),
            },
            Node::Switch(switch) if switch.0 >= self.switches.len() => Err(TopologyError::Unknown(node)),
            Node::Switch(_) => Ok(()),
        }
    }

    fn attach(&mut self, node: Node, link: LinkId, away: Direction) -> End {
        match node {
            Node::Host(port) => {
                self.hosts[port.0] = Some((link, away));
                End { node, port: 0 }
            }
            Node::Switch(switch) => {
                let ports = &mut self.switches[switch.0].ports;
                ports.push((link, away));
                End { node, port: ports.len() - 1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::faults::Ppm;

    fn mac(n: u8) -> [u8; 6] {
        [2, 0, 0, 0, 0, n]
    }

    fn frame(to: u8, from: u8, tag: u8) -> Vec<u8> {
        let mut f = [mac(to), mac(from)].concat();
        f.extend([0x88, 0xb5, tag]);
        f.resize(60, 0);
        f
    }

    /// Hosts 0, 1 and 2 around one switch; 0 ns to serialise, 1 µs a link, 500 ns in the switch.
    fn star(seed: u64) -> (Network, Vec<PortId>, Vec<LinkId>, Instant) {
        let base = Instant::now();
        let mut net = Network::new(base, seed);
        let switch = net.add_switch(SwitchConfig::default());
        let params = LinkParams { bandwidth: 0, ..LinkParams::DEFAULT };
        let ports: Vec<_> = (0..3).map(|_| net.add_host()).collect();
        let links = ports
            .iter()
            .map(|&p| net.connect(Node::Host(p), Node::Switch(switch), params).unwrap())
            .collect();
        (net, ports, links, base)
    }

    fn drain(net: &mut Network) -> Vec<Delivery> {
        let mut all = Vec::new();
        while let Some(at) = net.poll_timeout() {
            while let Some(d) = net.poll(at) {
                assert_eq!(d.at, at);
                all.push(d);
            }
        }
        all
    }

    #[test]
    fn a_frame_crosses_the_switch_and_floods_only_once() {
        let (mut net, ports, _, base) = star(1);
        net.send_frame(base, ports[0], frame(1, 0, 7));
        let got = drain(&mut net);
        assert_eq!(got.iter().map(|d| d.port).collect::<Vec<_>>(), [ports[1], ports[2]]);
        assert_eq!(got[0].at, base + Duration::from_nanos(2_500));
        assert_eq!(got[0].frame, frame(1, 0, 7));
        let now = base + Duration::from_micros(10);
        net.send_frame(now, ports[1], frame(0, 1, 8));
        assert_eq!(drain(&mut net).len(), 1);
        net.send_frame(now, ports[0], frame(1, 0, 9));
        assert_eq!(drain(&mut net).iter().map(|d| d.port).collect::<Vec<_>>(), [ports[1]]);
    }

    #[test]
    fn events_at_the_same_nanosecond_happen_in_the_order_they_were_made() {
        let (mut net, ports, _, base) = star(1);
        for tag in 0..50 {
            net.send_frame(base, ports[0], frame(1, 0, tag));
        }
        let tags: Vec<_> =
            drain(&mut net).iter().filter(|d| d.port == ports[1]).map(|d| d.frame[14]).collect();
        assert_eq!(tags, (0..50).collect::<Vec<u8>>());
    }

    #[test]
    fn partitions_are_scheduled_by_direction_and_heal() {
        let (mut net, ports, links, base) = star(1);
        let us = |n| base + Duration::from_micros(n);
        net.schedule(us(10), links[1], Direction::Back, Change::Partition(true));
        net.schedule(us(20), links[1], Direction::Back, Change::Partition(false));
        for t in [0, 12, 30] {
            net.send_frame(us(t), ports[0], frame(1, 0, t as u8));
            net.send_frame(us(t), ports[1], frame(0, 1, t as u8));
            // Poll up to well before the next send, so that each is judged in its own time.
            while net.poll_timeout().is_some_and(|next| next <= us(t + 5)) {
                let at = net.poll_timeout().unwrap();
                while net.poll(at).is_some() {}
            }
        }
        let counters: Vec<_> = net.counters().collect();
        assert_eq!(counters[2].0, links[1]);
        assert_eq!(counters[2].2.partitioned, 0);
        assert_eq!(counters[3].2.partitioned, 1);
        assert_eq!(counters[3].2.delivered, 2);
    }

    #[test]
    fn the_seed_decides_the_run() {
        let run = |seed| {
            let (mut net, ports, links, base) = star(seed);
            let faults = Faults {
                loss: Ppm::percent(10),
                duplicate: Ppm::percent(10),
                corrupt: Ppm::percent(10),
                reorder: Ppm::percent(10),
                late_by: Duration::from_micros(50),
                ..Faults::NONE
            };
            for link in links {
                for direction in Direction::BOTH {
                    net.link_mut(link, direction).unwrap().set_faults(faults);
                }
            }
            for i in 0..200u64 {
                let to = if i % 2 == 0 { 1 } else { 2 };
                net.send_frame(base + Duration::from_nanos(i * 300), ports[0], frame(to, 0, i as u8));
            }
            drain(&mut net).into_iter().map(|d| (d.port, d.at - base, d.frame)).collect::<Vec<_>>()
        };
        assert_eq!(run(42), run(42));
        assert_ne!(run(42), run(43));
    }

    #[test]
    fn a_topology_mistake_is_named() {
        let (mut net, ports, _, base) = star(1);
        let lonely = net.add_host();
        net.send_frame(base, lonely, frame(1, 0, 0));
        assert!(net.poll_timeout().is_none());
        let (a, b) = (Node::Host(ports[0]), Node::Host(lonely));
        assert_eq!(net.connect(a, b, LinkParams::DEFAULT), Err(TopologyError::PortInUse(ports[0])));
        let missing = Node::Switch(SwitchId(9));
        assert_eq!(net.connect(b, missing, LinkParams::DEFAULT), Err(TopologyError::Unknown(missing)));
        assert_eq!(net.connect(b, b, LinkParams::DEFAULT), Err(TopologyError::PortInUse(lonely)));
    }
}
