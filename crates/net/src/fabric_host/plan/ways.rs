//! Which ports of hosts a subnet manager can reach at all: over cables and switches, since hosts and routers pass no MADs on.

use std::collections::{BTreeMap, BTreeSet};

use super::{NodeRef, Plan, PortRef};

impl Plan {
    /// Ports of hosts and routers that no subnet manager has a way to, over the links for which `plugged` holds. A port
    /// without a cable counts where its host has none at all.
    pub fn without_way(&self, plugged: impl Fn(usize) -> bool) -> Vec<PortRef> {
        let links = self.links.iter().enumerate().flat_map(|(index, link)| {
            let [a, b] = link.ends;
            [(a, (index, b)), (b, (index, a))]
        });
        let peers: BTreeMap<PortRef, (usize, PortRef)> = links.collect();
        let mut reached: BTreeSet<PortRef> = BTreeSet::new();
        let mut switches: BTreeSet<NodeRef> = BTreeSet::new();
        let mut next: Vec<PortRef> = self.all_subnets().map(|subnet| subnet.sm).collect();
        let far = |port: PortRef| peers.get(&port).filter(|(link, _)| plugged(*link)).map(|(_, peer)| *peer);
        let mut enter = next.clone();
        next.retain(|port| matches!(port.node, NodeRef::Host(_)));
        reached.extend(next.iter().copied());
        enter.retain(|port| matches!(port.node, NodeRef::Switch(_)));
        enter.extend(next.into_iter().filter_map(far));
        while let Some(port) = enter.pop() {
            match port.node {
                NodeRef::Host(_) => drop(reached.insert(port)),
                NodeRef::Switch(_) if !switches.insert(port.node) => {}
                NodeRef::Switch(_) => {
                    let ports = (1..=self.ports_of(port.node)).map(|number| PortRef { port: number, ..port });
                    enter.extend(ports.filter_map(far));
                }
            }
        }
        let hosts = self.hosts.iter().enumerate().flat_map(|(index, host)| {
            let node = NodeRef::Host(index);
            let ports = (1..=host.ports).map(move |port| PortRef { node, port });
            let cabled = ports.clone().filter(|port| peers.contains_key(port)).count();
            ports.filter(|port| cabled == 0 || peers.contains_key(port)).collect::<Vec<_>>()
        });
        hosts.filter(|port| !reached.contains(port)).collect()
    }
}
