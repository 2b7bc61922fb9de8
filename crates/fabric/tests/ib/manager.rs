//! A subnet manager for tests: it knows the shape beforehand and writes what routing has computed, by directed route.
//!
//! Everything it does is a MAD from the QP0 of one host, so it is also the first test of the agents.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use everywire_fabric::ib::subnet_manager::routing::{Graph, RoutingEngine, Tables, route};
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{Event, NodeId, PortId, Subnet};
use everywire_wire::Lid;
use everywire_wire::mad::method;
use everywire_wire::smp::codes::port_state;
use everywire_wire::smp::{LinearForwardingTable, NodeInfo, PortInfo, Smp, SwitchInfo, attribute};

/// A node's index in the shape and the ports that lead to it from the manager's host.
type Route = (usize, Vec<u8>);

pub struct Manager {
    pub port: PortId,
    pub now: Instant,
    transaction: u64,
    pub m_key: u64,
    /// What happened meanwhile and was no answer.
    pub aside: Vec<Event>,
}

impl Manager {
    pub fn new(port: PortId, now: Instant) -> Manager {
        Manager { port, now, transaction: 0, m_key: 0, aside: Vec::new() }
    }

    /// Sends an SMP and waits for its answer for at most ten virtual milliseconds.
    pub fn transact(&mut self, subnet: &mut Subnet, dlid: Lid, mut smp: Smp) -> Option<Smp> {
        self.transaction += 1;
        smp.header.transaction_id = self.transaction;
        smp.m_key = self.m_key;
        let deadline = self.now + Duration::from_millis(10);
        if !subnet.send_smp(self.now, self.port, dlid, &smp.to_mad()) {
            return None;
        }
        loop {
            while let Some(event) = subnet.poll(self.now) {
                match event {
                    Event::Smp { port, mad, .. } if port == self.port => {
                        let answer = Smp::from_mad(&mad).unwrap();
                        if answer.header.transaction_id == self.transaction
                            && answer.header.method == method::GET_RESP
                        {
                            return Some(answer);
                        }
                        self.aside.push(Event::Smp { port, at: self.now, mad, slid: Lid(0) });
                    }
                    other => self.aside.push(other),
                }
            }
            self.now = subnet.poll_timeout().filter(|at| *at <= deadline)?;
        }
    }

    pub fn ask(
        &mut self,
        subnet: &mut Subnet,
        method: u8,
        id: u16,
        modifier: u32,
        path: &[u8],
        data: &[u8],
    ) -> Option<Smp> {
        let mut smp = Smp::directed(method, id, modifier, 0, path);
        smp.data[..data.len()].copy_from_slice(data);
        self.transact(subnet, Lid::PERMISSIVE, smp)
    }

    pub fn get(&mut self, subnet: &mut Subnet, id: u16, modifier: u32, path: &[u8]) -> [u8; 64] {
        let answer = self.ask(subnet, method::GET, id, modifier, path, &[]).expect("an answer");
        assert_eq!(answer.status(), 0, "get {id:#x} {modifier:#x} at {path:?}");
        answer.data
    }

    pub fn set(&mut self, subnet: &mut Subnet, id: u16, modifier: u32, path: &[u8], data: &[u8]) -> [u8; 64] {
        let answer = self.ask(subnet, method::SET, id, modifier, path, data).expect("an answer");
        assert_eq!(answer.status(), 0, "set {id:#x} {modifier:#x} at {path:?}");
        answer.data
    }

    /// Reads a PortInfo, changes it and writes it back.
    pub fn change_port(
        &mut self,
        subnet: &mut Subnet,
        path: &[u8],
        number: u8,
        change: impl FnOnce(&mut PortInfo),
    ) -> PortInfo {
        let data = self.get(subnet, attribute::PORT_INFO, number.into(), path);
        let mut info = PortInfo::parse(&data).unwrap();
        (info.port_state, info.port_physical_state) = (0, 0);
        (info.link_width_enabled, info.link_speed_enabled) = (0, 0);
        change(&mut info);
        let mut data = [0; 64];
        info.emit(&mut data);
        PortInfo::parse(&self.set(subnet, attribute::PORT_INFO, number.into(), path, &data)).unwrap()
    }
}

/// The shortest way to every node from a host.
pub fn routes(shape: &Topology, from: usize) -> Vec<Route> {
    let mut found: Vec<Route> = vec![(from, Vec::new())];
    let mut seen = vec![false; shape.nodes.len()];
    seen[from] = true;
    let mut queue = VecDeque::from([(from, Vec::new())]);
    while let Some((node, path)) = queue.pop_front() {
        if node != from && !shape.nodes[node].is_switch {
            continue;
        }
        for &(a, b) in &shape.links {
            for ((here, port), (there, _)) in [(a, b), (b, a)] {
                if here == node && !seen[there] {
                    seen[there] = true;
                    let mut longer: Vec<u8> = path.clone();
                    longer.push(port);
                    found.push((there, longer.clone()));
                    queue.push_back((there, longer));
                }
            }
        }
    }
    found
}

/// Brings a shape up from its first host: LIDs, tables, every port to Active. Gives LIDs and tables.
pub fn bring_up(
    subnet: &mut Subnet,
    shape: &Topology,
    engine: &RoutingEngine,
    now: Instant,
) -> (Manager, Graph, Tables) {
    let host = shape.hosts().next().unwrap();
    let mut manager = Manager::new(PortId { node: NodeId(host as u32), port: 1 }, now);
    subnet.set_sm(now, manager.port, true);
    let graph = shape.graph(0);
    let tables = route(&graph, engine).tables;
    let routes = routes(shape, host);
    assert_eq!(routes.len(), shape.nodes.len());
    for (node, path) in &routes {
        let info = NodeInfo::parse(&manager.get(subnet, attribute::NODE_INFO, 0, path)).unwrap();
        assert_eq!(info.node_guid, shape.nodes[*node].guid);
        set_lids(&mut manager, subnet, &graph, &info, path);
        if let Some(switch) = graph.switch_by_guid(info.node_guid) {
            write_tables(&mut manager, subnet, &tables.lfts[switch as usize], path);
        }
    }
    for state in [port_state::ARMED, port_state::ACTIVE] {
        for (node, path) in &routes {
            for &(a, b) in &shape.links {
                for (_, port) in [a, b].into_iter().filter(|end| end.0 == *node) {
                    let info = manager.change_port(subnet, path, port, |info| info.port_state = state);
                    assert!(info.port_state >= state);
                }
            }
        }
    }
    (manager, graph, tables)
}

fn set_lids(manager: &mut Manager, subnet: &mut Subnet, graph: &Graph, info: &NodeInfo, path: &[u8]) {
    let sm_lid = graph.endports[0].lid;
    let switch = graph.switch_by_guid(info.node_guid).map(|n| graph.switches[n as usize].lid);
    let endport = graph.endports.iter().find(|e| e.guid == info.port_guid).map(|e| e.lid);
    let lid = switch.or(endport).expect("in the graph");
    let number = if switch.is_some() { 0 } else { info.local_port_num };
    manager.change_port(subnet, path, number, |port| (port.lid, port.master_sm_lid) = (lid, sm_lid));
}

fn write_tables(manager: &mut Manager, subnet: &mut Subnet, lft: &[u8], path: &[u8]) {
    let mut info = SwitchInfo::parse(&manager.get(subnet, attribute::SWITCH_INFO, 0, path)).unwrap();
    info.linear_fdb_top = lft.len() as u16 - 1;
    info.port_state_change = true;
    let mut data = [0; 64];
    info.emit(&mut data);
    manager.set(subnet, attribute::SWITCH_INFO, 0, path, &data);
    for (block, entries) in lft.chunks(64).enumerate() {
        let mut table = LinearForwardingTable { ports: [255; 64] };
        table.ports[..entries.len()].copy_from_slice(entries);
        let mut data = [0; 64];
        table.emit(&mut data);
        manager.set(subnet, attribute::LINEAR_FORWARDING_TABLE, block as u32, path, &data);
    }
}
