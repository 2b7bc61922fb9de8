//! Tests of the manager on simulated subnets: bring-up, queries, groups, links that go, several managers.

use std::time::{Duration, Instant};

use everywire_wire::sa::SaMad;
use everywire_wire::smp::codes::port_state;
use everywire_wire::{Guid, Lid, QKey};

use super::*;
use crate::ib::mad_packet::MadRoute;
use crate::ib::topology::Topology;
use crate::ib::{Event, LinkId, LinkParams, NodeId, PortId, Subnet, SubnetOptions};

mod administration;
mod bring_up;
mod managers;
mod queries;
mod traps;

/// A subnet of some shape with managers at some hosts, in virtual time.
struct Bench {
    subnet: Subnet,
    shape: Topology,
    nodes: Vec<NodeId>,
    links: Vec<LinkId>,
    managers: Vec<HostedSm>,
    now: Instant,
    events: Vec<SmEvent>,
    /// Data packets that arrived: port, packet.
    delivered: Vec<(PortId, Vec<u8>)>,
}

impl Bench {
    fn new(shape: Topology) -> Bench {
        let now = Instant::now();
        let options = SubnetOptions { audit: true, ..SubnetOptions::default() };
        let subnet = Subnet::of_shape(now, 1, options, &shape, LinkParams::DEFAULT).unwrap();
        let nodes = (0..shape.nodes.len() as u32).map(NodeId).collect();
        let links = (0..shape.links.len() as u32).map(LinkId).collect();
        let (managers, events, delivered) = (Vec::new(), Vec::new(), Vec::new());
        Bench { subnet, shape, nodes, links, managers, now, events, delivered }
    }

    /// A manager at the `n`-th host, as `change` wants it.
    fn manage(&mut self, n: usize, change: impl FnOnce(&mut SmConfig)) -> usize {
        let node = self.shape.hosts().nth(n).unwrap();
        let mut config = SmConfig::new(Guid(self.shape.nodes[node].guid.0 + 1));
        change(&mut config);
        let port = PortId { node: self.nodes[node], port: 1 };
        let sm = Sm::new(config, 7 + n as u64);
        self.managers.push(HostedSm::start(self.now, sm, port, &mut self.subnet));
        self.managers.len() - 1
    }

    /// A manager at port 0 of the `n`-th switch.
    fn manage_in_switch(&mut self, n: usize) -> usize {
        let node = self.shape.switches().nth(n).unwrap();
        let sm = Sm::new(SmConfig::new(self.shape.nodes[node].guid), 7);
        let port = PortId { node: self.nodes[node], port: 0 };
        self.managers.push(HostedSm::start(self.now, sm, port, &mut self.subnet));
        self.managers.len() - 1
    }

    fn up(shape: Topology, change: impl FnOnce(&mut SmConfig)) -> Bench {
        let mut bench = Bench::new(shape);
        bench.manage(0, change);
        bench.run(Duration::from_secs(2));
        assert!(bench.is_up(), "{:?}", bench.events);
        bench
    }

    fn is_up(&self) -> bool {
        self.events.iter().any(|event| matches!(event, SmEvent::SubnetUp { .. }))
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while let Some(event) = self.subnet.poll(self.now) {
                let now = self.now;
                let taken = self.managers.iter_mut().any(|sm| sm.handle_event(now, &event));
                if let (false, Event::Deliver { port, packet, .. }) = (taken, event) {
                    self.delivered.push((port, packet.to_vec()));
                }
                self.drive();
            }
            self.drive();
            let managers = self.managers.iter().filter_map(HostedSm::poll_timeout);
            let next = managers.chain(self.subnet.poll_timeout()).min();
            match next.filter(|at| *at <= end) {
                Some(at) => self.now = at.max(self.now),
                None => break,
            }
        }
        self.now = end;
        self.subnet.check_credits().unwrap();
    }

    fn drive(&mut self) {
        for manager in &mut self.managers {
            manager.drive(self.now, &mut self.subnet);
            self.events.extend(std::iter::from_fn(|| manager.sm.poll_event()));
        }
    }

    fn host(&self, n: usize) -> PortId {
        PortId { node: self.nodes[self.shape.hosts().nth(n).unwrap()], port: 1 }
    }

    fn hosts(&self) -> usize {
        self.shape.hosts().count()
    }

    fn lid(&self, n: usize) -> Lid {
        self.subnet.port_values(self.host(n)).unwrap().lid
    }

    /// Every host sends a packet to every other; all must arrive. Returns the most hops.
    fn all_pairs(&mut self) {
        self.delivered.clear();
        let hosts = self.hosts();
        for from in 0..hosts {
            for to in (0..hosts).filter(|to| *to != from) {
                // Class 0x0a is nobody's, so that the packet is the host's.
                let mut mad = [0; 256];
                (mad[0], mad[1], mad[8], mad[9]) = (1, 0x0a, from as u8, to as u8);
                let packet = MadRoute::services(self.lid(from), self.lid(to), 0).packet(&mad);
                self.subnet.send(self.now, self.host(from), packet).unwrap();
            }
            self.run(Duration::from_millis(1));
        }
        assert_eq!(self.delivered.len(), hosts * (hosts - 1));
        for (port, packet) in &self.delivered {
            let (_, mad) = MadRoute::parse(packet).unwrap();
            assert_eq!(*port, self.host(usize::from(mad[9])));
        }
    }

    /// Asks subnet administration from a host, and gives the answer's segments.
    fn ask(&mut self, from: usize, mad: SaMad) -> Vec<SaMad> {
        self.delivered.clear();
        let sm_lid = self.subnet.port_values(self.host(from)).unwrap().sm_lid;
        let route = MadRoute { qkey: QKey::GSI, ..MadRoute::services(self.lid(from), sm_lid, 0) };
        self.subnet.send(self.now, self.host(from), route.packet(&mad.to_mad())).unwrap();
        let mut answers: Vec<SaMad> = Vec::new();
        for _ in 0..1000 {
            self.run(Duration::from_millis(1));
            let Some(answer) = self.delivered.pop() else { return answers };
            self.delivered.clear();
            let (route, mad) = MadRoute::parse(&answer.1).unwrap();
            let answer = SaMad::from_mad(&mad).unwrap();
            answers.push(answer);
            if answer.rmpp.active {
                // One segment at a time: the window ends with the next.
                let mut ack = answer;
                ack.rmpp.rmpp_type = everywire_wire::mad::rmpp::ACK;
                ack.rmpp.data2 = answer.rmpp.data1 + 1;
                let packet = route.reversed().packet(&ack.to_mad());
                self.subnet.send(self.now, self.host(from), packet).unwrap();
            }
            if !answer.rmpp.active || answer.rmpp.last {
                self.run(Duration::from_millis(1));
                return answers;
            }
        }
        panic!("the answer has no end");
    }

    fn warnings(&self) -> Vec<&str> {
        let mut texts = Vec::new();
        for event in &self.events {
            if let SmEvent::Warning(text) = event {
                texts.push(text.as_str());
            }
        }
        texts
    }
}
