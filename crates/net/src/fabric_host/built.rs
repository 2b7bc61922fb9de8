//! The subnet that a plan becomes, and which of its nodes is which of the plan's.
//!
//! Nodes are added in the plan's order, hosts first, so that a number is enough to find one in the other.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use everywire_fabric::ib::{
    HcaConfig, LinkId, LinkParams, NodeId, PortId, PrefixRoute, RouterConfig, Subnet, SubnetOptions,
    SwitchConfig, VcrcCheck,
};

use everywire_fabric::faults::Ppm;
use everywire_wire::Gid;

use super::plan::{LinkShape, NodeRef, Plan, PortRef, Subnets};
use super::seat::port_guid;

/// Bytes of each lane's receive buffer at both ends of a link.
const BUFFER: usize = 64 << 10;

/// A subnet and its plan.
#[derive(Debug)]
pub(super) struct Built {
    pub plan: Plan,
    pub subnet: Subnet,
    /// Links in the plan's order.
    pub links: Vec<LinkId>,
    /// Whether nobody has pulled this cable.
    pub plugged: Vec<bool>,
    /// Ports at which programs are attached.
    pub attached: BTreeSet<PortId>,
    /// Ports where subnet managers of ours are.
    pub managers: BTreeSet<PortId>,
}

impl Built {
    /// Builds it.
    ///
    /// # Errors
    /// The plan breaks its own rules, or the subnet's.
    pub(super) fn new(plan: Plan, base: Instant, seed: u64) -> io::Result<Built> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        plan.check().map_err(wrong)?;
        // What attached programs send is theirs to sum right; the first switch looks.
        let options = SubnetOptions { vcrc: VcrcCheck::FirstHop, ..SubnetOptions::default() };
        let mut subnet = Subnet::new(base, seed, options);
        let subnets = Subnets::of(&plan);
        for (index, host) in plan.hosts.iter().enumerate() {
            let (guid, ports, name) = (host.guid, host.ports, host.name.clone());
            if host.router {
                let added = subnet.add_router(RouterConfig {
                    routes: routes(&plan, &subnets, index),
                    ..RouterConfig::new(guid, ports, &name)
                });
                added.map_err(|e| wrong(format!("router {name}: {e}")))?;
                continue;
            }
            let config = HcaConfig { guid, ports, name, holds_receives: true };
            subnet.add_hca(config).map_err(|e| wrong(format!("host {}: {e}", host.name)))?;
        }
        for switch in &plan.switches {
            let config = SwitchConfig::new(switch.guid, switch.ports, &switch.name);
            subnet.add_switch(config).map_err(|e| wrong(format!("switch {}: {e}", switch.name)))?;
        }
        let mut built = Built {
            links: Vec::new(),
            plugged: vec![true; plan.links.len()],
            attached: BTreeSet::new(),
            managers: BTreeSet::new(),
            plan,
            subnet,
        };
        for link in built.plan.links.clone() {
            let [a, b] = link.ends.map(|end| built.port_id(end));
            let id = built.subnet.connect(a, b, params(&link.shape)).map_err(|e| {
                let [a, b] = link.ends.map(|end| built.plan.port_name(end));
                wrong(format!("link {a} - {b}: {e}"))
            })?;
            built.links.push(id);
        }
        Ok(built)
    }

    /// A port of the plan in the subnet.
    pub(super) fn port_id(&self, port: PortRef) -> PortId {
        let node = match port.node {
            NodeRef::Host(index) => index,
            NodeRef::Switch(index) => self.plan.hosts.len() + index,
        };
        PortId { node: NodeId(node as u32), port: port.port }
    }

    /// A port of the subnet in the plan.
    pub(super) fn port_ref(&self, port: PortId) -> PortRef {
        let (index, hosts) = (port.node.0 as usize, self.plan.hosts.len());
        let node = if index < hosts { NodeRef::Host(index) } else { NodeRef::Switch(index - hosts) };
        PortRef { node, port: port.port }
    }

    /// `NODE/PORT` of a port of the subnet.
    pub(super) fn name(&self, port: PortId) -> String {
        self.plan.port_name(self.port_ref(port))
    }

    /// Ports of hosts.
    pub(super) fn host_ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let hosts = self.plan.hosts.iter().enumerate().filter(|(_, host)| !host.router);
        hosts.flat_map(|(index, host)| {
            (1..=host.ports).map(move |port| PortId { node: NodeId(index as u32), port })
        })
    }

    /// GUID of a host's port.
    pub(super) fn guid(&self, port: PortId) -> u64 {
        match self.port_ref(port).node {
            NodeRef::Host(index) => self.plan.hosts[index].guid.0 + u64::from(port.port),
            NodeRef::Switch(index) => self.plan.switches[index].guid.0,
        }
    }

    /// The link at a port.
    pub(super) fn link_at(&self, port: PortId) -> Option<usize> {
        self.plan.peer(self.port_ref(port)).map(|(link, _)| link)
    }
}

/// A router's ways to the subnets that none of its ports is in: by the next router of the way.
fn routes(plan: &Plan, subnets: &Subnets, router: usize) -> Vec<PrefixRoute> {
    let node = NodeRef::Host(router);
    let ports = (1..=plan.hosts[router].ports).map(|port| PortRef { node, port });
    let own: Vec<(PortRef, usize)> = ports.filter_map(|port| Some((port, subnets.at(port)?))).collect();
    let prefixes: Vec<u64> = plan.all_subnets().map(|subnet| subnet.gid_prefix).collect();
    let beyond = (0..prefixes.len()).filter(|to| own.iter().all(|(_, at)| at != to));
    beyond
        .filter_map(|to| {
            let ways = own.iter().filter_map(|(port, at)| {
                let hop = subnets.from(*at).iter().find(|hop| hop.to == to && hop.port.node != node)?;
                Some((hop.routers, *port, *at, hop.port))
            });
            let (_, port, at, next) = ways.min_by_key(|way| way.0)?;
            let next = u128::from(prefixes[at]) << 64 | u128::from(port_guid(plan, next).0);
            Some(PrefixRoute { prefix: prefixes[to], port: port.port, next: Gid(next.to_be_bytes()) })
        })
        .collect()
}

fn params(shape: &LinkShape) -> LinkParams {
    LinkParams {
        width: shape.rate.width,
        speed: shape.rate.speed,
        delay: shape.delay,
        mtu: shape.mtu,
        vls: shape.vls,
        buffer: BUFFER,
        retry: shape.retry,
        bit_errors: Ppm(shape.bit_errors_ppm),
    }
}
