//! The system under test and everything that is known about it: world, nodes, connections, datagram queue pairs.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use everywire_verbs::{LocalRoute, Path, PathLink, Wire};

use super::Options;
use super::connection::Connection;
use super::datagram::Datagrams;
use super::end::Place;
use super::node::Node;
use super::plan::Plan;
use super::random::Dice;
use super::wire::{Traits, traits};
use crate::checkers::Violation;
use crate::checkers::shadow::Outcome;
use crate::world::{HostConfig, HostId, World};
use crate::{ensure, violation};

/// Receive work requests have this bit in their token.
pub const RECV_BIT: u64 = 1 << 63;

/// A cable of InfiniBand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// A host's.
    Host(usize),
    /// One of those between the switches.
    Trunk(u8),
}

fn subnet_up(world: &World) -> Result<(), Violation> {
    let up = world.ib_up(BRING_UP);
    ensure!(up, "the subnet manager has not brought the subnet up within {BRING_UP:?}");
    Ok(())
}

/// How long a subnet may take to come up.
const BRING_UP: Duration = Duration::from_secs(60);

/// Whose queue pair a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A connection's end.
    End { connection: usize, side: usize },
    /// A host's datagram queue pair.
    Datagram { host: usize },
}

/// What a run did, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Send work requests posted.
    pub sends: usize,
    /// Receive work requests posted.
    pub receives: usize,
    /// Completions polled.
    pub completions: usize,
    /// Work requests that were bound to fail.
    pub bad: usize,
    /// Connections that were torn down and made anew.
    pub reconnects: usize,
    /// By [`super::ops::Kind`]: sends posted.
    pub by_kind: [usize; super::ops::KINDS],
}

/// A claim on a node's memory that is settled when no frame can be under way to it any more.
#[derive(Debug)]
pub struct Late {
    /// When.
    pub at: Duration,
    /// What.
    pub place: Place,
    /// As what.
    pub outcome: Outcome,
}

/// Everything.
pub struct Rig {
    /// What the seed stands for.
    pub plan: Plan,
    /// The dice.
    pub dice: Dice,
    /// The world.
    pub world: World,
    /// By host: its present life.
    pub nodes: Vec<Node>,
    /// Connected pairs.
    pub connections: Vec<Connection>,
    /// Datagram queue pairs and flows.
    pub datagrams: Datagrams,
    /// By host and number: whose a live queue pair is.
    pub owners: BTreeMap<(usize, u32), Owner>,
    /// Claims to settle later.
    pub late: VecDeque<Late>,
    /// The next token.
    pub next_id: u64,
    /// The next node's number.
    pub next_node: u64,
    /// Numbers.
    pub tally: Tally,
    /// Kills still to come.
    pub kills_left: usize,
    /// Partitions still to come.
    pub partitions_left: usize,
    /// Resets still to come.
    pub resets_left: usize,
    /// InfiniBand's cables that are out, and until when.
    pub pulled: Vec<(Duration, Cable)>,
    /// Print what is posted and what completes.
    pub trace: bool,
}

impl Rig {
    /// Sets everything up.
    pub fn new(plan: Plan, options: &Options) -> Result<Rig, Violation> {
        let dice = Dice::new(plan.seed ^ 0x6469_6365);
        let world = World::new(plan.seed);
        for &ip in &plan.ips {
            let mut config = match plan.wire {
                Wire::RoceV1 => HostConfig::roce_v1(ip),
                Wire::InfiniBand => HostConfig::infiniband(ip),
                Wire::Iwarp => HostConfig::iwarp(ip),
                Wire::RoceV2 => HostConfig::new(ip),
            };
            config.link = plan.link;
            config.udp_checksum = plan.udp_checksum;
            config.device.iwarp.rfc7306 = plan.rfc7306;
            config.stream_cuts = true;
            let host = world.add_host(config);
            world.set_faults(host, plan.faults);
        }
        if let Some(path) = &options.capture {
            std::fs::File::create(path)
                .and_then(|file| world.capture(Box::new(std::io::BufWriter::new(file))))
                .map_err(|e| violation!("capturing to {}: {e}", path.display()))?;
        }
        subnet_up(&world)?;
        let mut rig = Rig {
            dice,
            world,
            nodes: Vec::new(),
            connections: Vec::new(),
            datagrams: Datagrams::default(),
            owners: BTreeMap::new(),
            late: VecDeque::new(),
            next_id: 0,
            next_node: 0,
            tally: Tally::default(),
            kills_left: plan.kills,
            partitions_left: plan.partitions,
            resets_left: plan.resets,
            pulled: Vec::new(),
            plan,
            trace: options.trace,
        };
        for host in 0..rig.plan.ips.len() {
            let node = rig.new_node(host)?;
            rig.nodes.push(node);
        }
        for host in 0..rig.plan.ips.len() {
            rig.open_datagrams(host)?;
        }
        for index in 0..rig.plan.connections.len() {
            let connection = rig.connect(index)?;
            rig.connections.push(connection);
        }
        Ok(rig)
    }

    /// Programs connect once their port is active: every cable is plugged in, and the subnet manager has seen it.
    pub fn all_ports_up(&mut self) -> Result<(), Violation> {
        if self.plan.wire == Wire::InfiniBand {
            self.plug_in(Duration::MAX);
            subnet_up(&self.world)?;
        }
        Ok(())
    }

    /// What the wire has and lacks.
    pub fn traits(&self) -> &'static Traits {
        traits(self.plan.wire, self.plan.rfc7306)
    }

    /// Sets up a host that has just been started.
    pub fn new_node(&mut self, host: usize) -> Result<Node, Violation> {
        self.next_node += 1;
        Node::new(&self.world, HostId(host), self.next_node)
    }

    /// The way from a host to another.
    pub fn path(&self, from: usize, to: usize) -> Path {
        let path = Path::new(self.plan.ips[from], self.plan.ips[to], everywire_verbs::DEFAULT_SOURCE_PORT);
        match self.plan.wire {
            Wire::RoceV1 => path.over(PathLink::Grh),
            Wire::RoceV2 | Wire::Iwarp => path,
            Wire::InfiniBand => {
                let [slid, dlid] = [from, to].map(|host| self.nodes[host].device.port().lid);
                let route = LocalRoute { slid, dlid, grh: true, ..LocalRoute::default() };
                Path { src: self.address(from), dst: self.address(to), ..path }.over(PathLink::Lrh(route))
            }
        }
    }

    /// What packets of a host say that it is: its address, or its GID.
    pub fn address(&self, host: usize) -> IpAddr {
        match self.plan.wire {
            Wire::InfiniBand => self.nodes[host].device.gids()[0].ip,
            _ => self.plan.ips[host],
        }
    }

    /// Prints a line, if that was asked for.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12.3?} {}", self.world.elapsed(), what());
        }
    }

    /// What every host and link counted, where that is not zero.
    pub fn counters(&self) -> String {
        let mut text = String::from("counters\n");
        for (host, node) in self.nodes.iter().enumerate() {
            let device: Vec<_> = node.device.counters().iter().filter(|c| c.1 > 0).collect();
            let nic = self.world.nic_counters(HostId(host));
            text += &format!("host {host}: {nic:?}\n  {device:?}\n  {:?}\n", node.device.cm_counters());
        }
        for (link, direction, counters) in self.world.with_network(|n| n.counters().collect::<Vec<_>>()) {
            text += &format!("{link:?} {direction:?}: {counters:?}\n");
        }
        text
    }

    /// A new token.
    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Settles a claim at a place, if the place still exists, and gives the slot back.
    pub fn settle(&mut self, place: Place, outcome: Outcome) -> Result<(), Violation> {
        let node = &mut self.nodes[place.host];
        if node.number == place.node {
            node.settle(place.slot, outcome)?;
            node.areas[place.area].give_back(place.slot);
        }
        Ok(())
    }

    /// Gives a slot back in which nothing was written.
    pub fn give_back(&mut self, place: Place) {
        let node = &mut self.nodes[place.host];
        if node.number == place.node {
            node.areas[place.area].give_back(place.slot);
        }
    }

    /// Settles what has waited long enough.
    pub fn settle_late(&mut self) -> Result<(), Violation> {
        let now = self.world.elapsed();
        while self.late.front().is_some_and(|late| late.at <= now) {
            let Some(late) = self.late.pop_front() else { break };
            self.settle(late.place, late.outcome)?;
        }
        Ok(())
    }
}
