//! A subnet from a shape: every node and link of a [`Topology`] at once.

use std::time::{Duration, Instant};

use super::config::{HcaConfig, LinkParams, NodeId, PortId, SubnetOptions, SwitchConfig, TopologyError};
use super::subnet::Subnet;
use super::topology::Topology;

impl Subnet {
    /// A subnet of a shape's nodes, numbered as there, with links that are all alike.
    ///
    /// Errors: a port that two links name, or a switch of more than [`super::config::MAX_SWITCH_PORTS`] ports.
    pub fn of_shape(
        base: Instant,
        seed: u64,
        options: SubnetOptions,
        shape: &Topology,
        link: LinkParams,
    ) -> Result<Subnet, TopologyError> {
        let mut subnet = Subnet::new(base, seed, options);
        for node in &shape.nodes {
            let (guid, ports, name) = (node.guid, node.ports, node.name.clone());
            if node.is_switch {
                let latency = Duration::from_nanos(100);
                subnet.add_switch(SwitchConfig { guid, ports, name, latency })?;
            } else {
                subnet.add_hca(HcaConfig { guid, ports, name, holds_receives: false })?;
            }
        }
        for &(a, b) in &shape.links {
            let [a, b] = [a, b].map(|(node, port)| PortId { node: NodeId(node as u32), port });
            subnet.connect(a, b, link)?;
        }
        Ok(subnet)
    }
}
