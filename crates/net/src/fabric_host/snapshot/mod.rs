//! What a fabric looks like at a moment: what `everywire fabric show` draws, as data that travels as JSON.
//!
//! A plan gives one too, of a fabric that does not run yet: then there are no LIDs, no tables, and no states.

mod paths;
pub(super) mod running;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::{Engine, Layout, LinkRate, NodeRef, Plan, PortRef};

/// State of a port (PortInfo:PortState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not running: only planned.
    Planned,
    /// No link.
    Down,
    /// A link, and no configuration.
    Init,
    /// Configured, not to be used yet.
    Armed,
    /// In use.
    Active,
}

impl State {
    /// From PortInfo's number.
    pub fn from_code(code: u8) -> State {
        match code {
            2 => State::Init,
            3 => State::Armed,
            4 => State::Active,
            _ => State::Down,
        }
    }

    /// As `iblinkinfo` writes it.
    pub fn name(self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::Down => "Down",
            State::Init => "Initialize",
            State::Armed => "Armed",
            State::Active => "Active",
        }
    }
}

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// Name of the node.
    pub node: String,
    /// Port number.
    pub port: u8,
    /// State of this port.
    pub state: State,
}

/// A cable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Its ends.
    pub ends: [LinkEnd; 2],
    /// Width and speed.
    pub rate: LinkRate,
    /// Largest payload.
    pub mtu: u16,
    /// Data virtual lanes.
    pub vls: u8,
    /// Propagation delay, in microseconds.
    pub delay_us: f64,
    /// Link-level retry.
    #[serde(default)]
    pub retry: bool,
    /// Packets in a million of which the wire flips a bit.
    #[serde(default)]
    pub bit_errors_ppm: u32,
}

impl Link {
    /// Whether packets may pass.
    pub fn is_up(&self) -> bool {
        self.ends.iter().all(|end| !matches!(end.state, State::Down))
    }
}

/// A port that has a LID of its own: a host's, or a switch's port 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndPort {
    /// Port number.
    pub port: u8,
    /// Its GUID, in hexadecimal.
    pub guid: String,
    /// Base LID; 0 for none.
    pub lid: u16,
    /// LID mask control.
    pub lmc: u8,
    /// State.
    pub state: State,
    /// The address that stands for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ip: Option<std::net::IpAddr>,
    /// Whether the subnet manager has no way to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_way: bool,
    /// The process that is attached to it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub process: Option<i32>,
}

/// A host or switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it is a switch.
    pub switch: bool,
    /// Whether it is a router between subnets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub router: bool,
    /// Its GUID, in hexadecimal.
    pub guid: String,
    /// Ports, a switch's port 0 not counted.
    pub ports: u8,
    /// Ports with LIDs.
    pub end_ports: Vec<EndPort>,
    /// Of a running switch: port by LID, 255 for none; from LID 0 on.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub forwarding: Vec<u8>,
}

/// A fabric at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub running: bool,
    /// The port where the subnet manager is; empty for none of ours.
    pub sm: String,
    /// How routes are made.
    pub engine: Engine,
    /// Names of the root switches, as the plan has them.
    pub roots: Vec<String>,
    /// What the subnet manager warns of: a credit loop, say.
    pub warnings: Vec<String>,
    /// How it is drawn.
    pub layout: Layout,
    /// Hosts, then switches.
    pub nodes: Vec<Node>,
    /// Cables.
    pub links: Vec<Link>,
}

/// A number of 64 bits as tools print GUIDs.
pub fn hex(guid: u64) -> String {
    format!("{guid:#018x}")
}

impl Snapshot {
    /// Of a plan that does not run.
    pub fn of_plan(plan: &Plan) -> Snapshot {
        let nodes = plan.nodes().map(|node| planned_node(plan, node)).collect();
        let end = |end: PortRef| LinkEnd {
            node: plan.name_of(end.node).to_owned(),
            port: end.port,
            state: State::Planned,
        };
        let links = plan.links.iter().map(|link| Link {
            ends: link.ends.map(end),
            rate: link.shape.rate,
            mtu: link.shape.mtu.bytes() as u16,
            vls: link.shape.vls,
            delay_us: link.shape.delay.as_secs_f64() * 1e6,
            retry: link.shape.retry,
            bit_errors_ppm: link.shape.bit_errors_ppm,
        });
        let mut snapshot = Snapshot {
            name: plan.name.clone(),
            running: false,
            sm: plan.all_subnets().map(|subnet| plan.port_name(subnet.sm)).collect::<Vec<_>>().join(" and "),
            engine: plan.engine,
            roots: plan.roots.iter().map(|index| plan.switches[*index].name.clone()).collect(),
            warnings: Vec::new(),
            layout: plan.layout,
            links: links.collect(),
            nodes,
        };
        snapshot.mark_ways(plan, &plan.without_way(|_| true));
        snapshot
    }

    /// Notes which ports of hosts the subnet manager has no way to.
    fn mark_ways(&mut self, plan: &Plan, without: &[PortRef]) {
        for (node, picture) in plan.nodes().zip(&mut self.nodes) {
            for port in &mut picture.end_ports {
                port.no_way = without.contains(&PortRef { node, port: port.port });
            }
        }
    }

    /// Ports of hosts that the subnet manager has no way to: `HOST/PORT`.
    pub fn without_way(&self) -> Vec<String> {
        let ports = self.nodes.iter().flat_map(|node| node.end_ports.iter().map(move |port| (node, port)));
        ports
            .filter(|(_, port)| port.no_way)
            .map(|(node, port)| format!("{}/{}", node.name, port.port))
            .collect()
    }

    /// Hosts, routers not among them.
    pub fn hosts(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.switch && !node.router)
    }

    /// Switches.
    pub fn switches(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.switch)
    }

    /// Where each node is in `nodes`.
    pub fn index(&self) -> BTreeMap<&str, usize> {
        self.nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect()
    }

    /// For each node its links that are up: own port, link, and the node at the other end with its port.
    pub fn neighbours(&self) -> Vec<Vec<Neighbour>> {
        let index = self.index();
        let mut out = vec![Vec::new(); self.nodes.len()];
        for (number, link) in self.links.iter().enumerate().filter(|(_, link)| link.is_up()) {
            let [a, b] = &link.ends;
            let (Some(&x), Some(&y)) = (index.get(a.node.as_str()), index.get(b.node.as_str())) else {
                continue;
            };
            out[x].push(Neighbour { port: a.port, link: number, node: y, peer_port: b.port });
            out[y].push(Neighbour { port: b.port, link: number, node: x, peer_port: a.port });
        }
        out.iter_mut().for_each(|list| list.sort_by_key(|neighbour| neighbour.port));
        out
    }
}

/// A link as one of its nodes sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Own port.
    pub port: u8,
    /// Place in [`Snapshot::links`].
    pub link: usize,
    /// The node at the other end.
    pub node: usize,
    /// Its port.
    pub peer_port: u8,
}

fn planned_node(plan: &Plan, node: NodeRef) -> Node {
    let planned = |port, guid: u64, ip| EndPort {
        port,
        guid: hex(guid),
        lid: 0,
        lmc: 0,
        state: State::Planned,
        ip,
        no_way: false,
        process: None,
    };
    let (guid, end_ports) = match node {
        NodeRef::Host(index) => {
            let host = &plan.hosts[index];
            let guid = host.guid.0;
            let port = |port: u8| {
                planned(port, guid + u64::from(port), host.ips.get(usize::from(port) - 1).copied())
            };
            (guid, (1..=host.ports).map(port).collect())
        }
        NodeRef::Switch(index) => {
            let guid = plan.switches[index].guid.0;
            (guid, vec![planned(0, guid, None)])
        }
    };
    Node {
        name: plan.name_of(node).to_owned(),
        switch: matches!(node, NodeRef::Switch(_)),
        router: matches!(node, NodeRef::Host(index) if plan.hosts[index].router),
        guid: hex(guid),
        ports: plan.ports_of(node),
        end_ports,
        forwarding: Vec::new(),
    }
}
