//! The subnet: nodes and links, the heap of what happens next, and the calls that drive it.
//!
//! Sans-IO, as everything here: [`Subnet::send`] and [`Subnet::send_smp`] put packets in, [`Subnet::poll`] hands out what has
//! happened by `now`, [`Subnet::poll_timeout`] says when to come back; each call is followed by draining `poll`. In
//! virtual time `now` is the simulator's, in real time the wall clock's. The same calls and seed give the same run.
//!
//! Switches store and forward: a packet is passed on only after its last bit is in and its VCRC is known to be right, so
//! no damaged packet travels further. A cut-through switch would be faster by the time of a packet on the wire at each hop
//! and would have to pass damaged packets on, marked as bad (IBTA §7.8.2); buffers and credits would be the same, since
//! a packet occupies a whole packet's worth of blocks in both.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use everywire_wire::smp::codes::port_state;
use everywire_wire::{Guid, MAD_LEN, Mad};

use super::agent::AgentState;
use super::audit::{CreditFault, Ledger};
use super::capture::Tap;
use super::config::{
    HcaConfig, LinkId, LinkParams, MAX_HCA_PORTS, MAX_NODES, MAX_PREFIX_ROUTES, MAX_ROUTER_PORTS,
    MAX_SWITCH_PORTS, NodeId, PortId, PrefixRoute, RouterConfig, SubnetOptions, SwitchConfig, TopologyError,
};
use super::counters::Counters;
use super::events::{Events, Next};
use super::hca::{Credit, IbPort};
use super::node::{Kind, Node, Switch};
use super::packet::{Packet, Slab};
use super::port::{Cable, PACKET_OVERHEAD, Port};
use super::router::Router;
use crate::clock::{SimTime, VirtualClock, nanos};
use crate::faults::FaultSource;

/// What has happened.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A packet for the adapter's queue pairs.
    Deliver {
        /// Where.
        port: PortId,
        /// When its last bit was in.
        at: Instant,
        /// LRH to VCRC.
        packet: Bytes,
        /// Switches that it came through.
        hops: u8,
        /// The buffer that it occupies, to give back with [`Subnet::consume`]; only of adapters that hold theirs.
        credit: Option<Credit>,
    },
    /// A MAD for the subnet manager of a port: a response to one of its own, a trap, or SMInfo.
    Smp {
        /// Where it runs.
        port: PortId,
        /// When it arrived.
        at: Instant,
        /// The MAD.
        mad: Box<[u8; MAD_LEN]>,
        /// LID that it came from; permissive for a directed route.
        slid: everywire_wire::Lid,
    },
    /// A port of an adapter has changed its state or was told something new.
    PortChanged {
        /// Which.
        port: PortId,
        /// What holds now.
        values: Box<IbPort>,
    },
    /// A send queue that was full has room again.
    Room {
        /// Of which port.
        port: PortId,
        /// For which service level.
        sl: u8,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LinkRecord {
    pub ends: [u32; 2],
    pub params: LinkParams,
    /// Not pulled by hand.
    pub plugged: bool,
}

/// Nodes and links of one InfiniBand subnet, or of several that routers join.
#[derive(Debug)]
pub struct Subnet {
    pub(super) clock: VirtualClock,
    pub(super) options: SubnetOptions,
    pub(super) seed: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) ports: Vec<Port>,
    pub(super) links: Vec<LinkRecord>,
    pub(super) packets: Slab<Packet>,
    /// Copies of multicast packets that still occupy the buffer they came into.
    pub(super) copies: Slab<u32>,
    pub(super) events: Events,
    pub(super) out: VecDeque<Event>,
    /// By port: decides which packets its wire damages.
    pub(super) faults: Vec<Option<Box<FaultSource>>>,
    pub(super) ledger: Option<Box<Ledger>>,
    pub(super) tap: Option<Box<dyn Tap>>,
    pub(super) forwarded: u64,
}

impl Subnet {
    /// An empty subnet whose virtual time starts at `base`.
    pub fn new(base: Instant, seed: u64, options: SubnetOptions) -> Subnet {
        Subnet {
            clock: VirtualClock::new(base),
            options,
            seed,
            nodes: Vec::new(),
            ports: Vec::new(),
            links: Vec::new(),
            packets: Slab::default(),
            copies: Slab::default(),
            events: Events::default(),
            out: VecDeque::new(),
            faults: Vec::new(),
            ledger: options.audit.then(Box::default),
            tap: None,
            forwarded: 0,
        }
    }

    /// Adds a channel adapter; its ports are down until they have links.
    pub fn add_hca(&mut self, config: HcaConfig) -> Result<NodeId, TopologyError> {
        let kind = Kind::Hca { holds_receives: config.holds_receives };
        self.add_node(kind, config.guid, config.ports, MAX_HCA_PORTS, &config.name)
    }

    /// Adds a switch.
    pub fn add_switch(&mut self, config: SwitchConfig) -> Result<NodeId, TopologyError> {
        let kind = Kind::Switch(Box::new(Switch::new(nanos(config.latency))));
        self.add_node(kind, config.guid, config.ports, MAX_SWITCH_PORTS, &config.name)
    }

    /// Adds a router. With it one value of this type holds several subnets, which have nothing but routers in common.
    pub fn add_router(&mut self, config: RouterConfig) -> Result<NodeId, TopologyError> {
        let known = |route: &PrefixRoute| (1..=config.ports).contains(&route.port);
        if config.routes.len() > MAX_PREFIX_ROUTES || !config.routes.iter().all(known) {
            return Err(TopologyError::Routes);
        }
        let kind = Kind::Router(Box::new(Router::new(nanos(config.latency), config.routes)));
        self.add_node(kind, config.guid, config.ports, MAX_ROUTER_PORTS, &config.name)
    }

    fn add_node(
        &mut self,
        kind: Kind,
        guid: Guid,
        ports: u8,
        most: u8,
        name: &str,
    ) -> Result<NodeId, TopologyError> {
        if ports == 0 || ports > most {
            return Err(TopologyError::Ports { most, asked: ports });
        }
        if self.nodes.len() == MAX_NODES {
            return Err(TopologyError::TooManyNodes);
        }
        let guids = |node: &Node| node.guid.0..=node.guid.0 + node.own_guids();
        let node = Node {
            kind,
            guid,
            first_port: self.ports.len() as u32,
            ports,
            powered: true,
            agent: AgentState::new(name),
        };
        let (new, id) = (guids(&node), self.nodes.len() as u32);
        if self.nodes.iter().map(guids).any(|old| old.start() <= new.end() && new.start() <= old.end()) {
            return Err(TopologyError::GuidInUse(guid));
        }
        let is_switch = node.switch().is_some();
        for number in 0..=ports {
            let guid = if is_switch { guid } else { Guid(guid.0 + u64::from(number)) };
            let inputs = if is_switch { usize::from(ports) + 1 } else { 1 };
            self.ports.push(Port::new(id, number, is_switch, guid, inputs));
            self.faults.push(None);
        }
        self.nodes.push(node);
        Ok(NodeId(id))
    }

    /// Joins two ports; the link comes up, to state Init, at the next [`Subnet::poll`].
    pub fn connect(&mut self, a: PortId, b: PortId, params: LinkParams) -> Result<LinkId, TopologyError> {
        let ends = [self.external(a)?, self.external(b)?];
        for (id, end) in [(a, ends[0]), (b, ends[1])] {
            if self.ports[end as usize].cable.is_some() || ends[0] == ends[1] {
                return Err(TopologyError::PortInUse(id));
            }
        }
        if !matches!(params.vls, 1 | 2 | 4 | 8 | 15) {
            return Err(TopologyError::Lanes(params.vls));
        }
        let least = (params.mtu.bytes() + PACKET_OVERHEAD).next_multiple_of(super::credits::BLOCK);
        if params.buffer < least {
            return Err(TopologyError::Buffer { asked: params.buffer, least });
        }
        let link = self.links.len() as u32;
        for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            self.ports[end as usize].plug(Cable::new(peer, link, params));
        }
        self.links.push(LinkRecord { ends, params, plugged: true });
        self.set_bit_errors(LinkId(link), params.bit_errors)?;
        self.raise_link(self.clock.elapsed(), LinkId(link));
        Ok(LinkId(link))
    }

    /// The next thing that has happened by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Event> {
        let now = self.clock.sim_time(now);
        loop {
            if let Some(event) = self.out.pop_front() {
                return Some(event);
            }
            let Some((at, next)) = self.events.pop(now) else { break };
            self.clock.advance_to(at);
            self.happen(at, next);
        }
        self.clock.advance_to(now);
        None
    }

    /// When the next thing happens. `None` while packets are in flight means that they wait for each other for ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.out.is_empty() {
            return Some(self.clock.now());
        }
        self.events.next_at().map(|at| self.clock.instant(at))
    }

    #[inline]
    fn happen(&mut self, now: SimTime, next: Next) {
        match next {
            Next::Arrive { port, packet, epoch } => self.arrive(now, port, packet, epoch),
            Next::Sent { port, epoch } => self.sent(now, port, epoch),
            Next::FlowControl { port, epoch, vl, fctbs, fccl } => {
                self.flow_control(now, port, epoch, vl, fctbs, fccl);
            }
            Next::Refresh { port, epoch, vl } => self.refresh_credits(now, port, epoch, vl),
            Next::Wake { port } => self.wake(now, port),
            Next::Loopback { port, packet } => self.loop_back(now, port, packet),
            Next::Sample { node } => self.take_sample(now, node),
            Next::Router { node } => self.router_timeout(now, node),
            Next::Agent { node } => self.agent_timeout(now, node),
        }
    }

    /// Packets that are in a queue or on a wire.
    pub fn in_flight(&self) -> usize {
        self.packets.len()
    }

    /// Packets that switches have looked up and queued, copies each counted.
    pub fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// The books of every lane in every direction, whether they balance (see [`super::audit`]).
    ///
    /// Errors: the first fault that was found since the subnet exists, if it was made with
    /// [`SubnetOptions::audit`]; the state of this moment is checked in any case.
    pub fn check_credits(&self) -> Result<(), CreditFault> {
        super::audit::check(self)
    }

    /// What a port has counted.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        Some(self.ports[self.index(port)? as usize].counters)
    }

    /// The two ends of a link.
    pub fn ends(&self, link: LinkId) -> Option<[PortId; 2]> {
        Some(self.links.get(link.0 as usize)?.ends.map(|end| self.port_id(end)))
    }

    /// What a link was made with.
    pub fn params(&self, link: LinkId) -> Option<LinkParams> {
        self.links.get(link.0 as usize).map(|link| link.params)
    }

    /// Logical state of a port, one of [`port_state`].
    pub fn state(&self, port: PortId) -> u8 {
        self.index(port).map_or(port_state::DOWN, |index| self.ports[index as usize].state)
    }

    /// Number of links.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// A MAD from a subnet manager (or another SMA's peer) on a port's QP0. See [`super::agent`].
    pub fn send_smp(&mut self, now: Instant, port: PortId, dlid: everywire_wire::Lid, mad: &Mad) -> bool {
        let now = self.enter(now);
        match self.index(port) {
            Some(index) => self.originate_smp(now, index, dlid, mad),
            None => false,
        }
    }

    /// Time goes on to `now`, if that is later.
    pub(super) fn enter(&self, now: Instant) -> SimTime {
        self.clock.sim_time(now).max(self.clock.elapsed())
    }

    /// Index of a port, management ports of switches included.
    pub(super) fn index(&self, port: PortId) -> Option<u32> {
        let node = self.nodes.get(port.node.0 as usize)?;
        let least = if node.switch().is_some() { 0 } else { 1 };
        (port.port >= least && port.port <= node.ports).then(|| node.port(port.port))
    }

    fn external(&self, port: PortId) -> Result<u32, TopologyError> {
        self.index(port).filter(|_| port.port > 0).ok_or(TopologyError::UnknownPort(port))
    }

    pub(super) fn port_id(&self, index: u32) -> PortId {
        let port = &self.ports[index as usize];
        PortId { node: NodeId(port.node), port: port.number }
    }

    pub(super) fn node_of(&self, port: u32) -> &Node {
        &self.nodes[self.ports[port as usize].node as usize]
    }
}

impl Node {
    /// How many GUIDs above its own a node uses.
    fn own_guids(&self) -> u64 {
        if self.switch().is_some() { 0 } else { self.ports.into() }
    }
}
