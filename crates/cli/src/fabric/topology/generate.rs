//! Shapes that are described by a few numbers: fat tree, ring, torus, as `everywire_fabric::ib::topology` makes them.
//!
//! Hosts are `h1` and on; switches are named by their place: `leaf1`, `spine1`, `core1` in a fat tree, `s1` in a ring, `s1x2`
//! (column, row) in a torus. Each host has one port. What a topology file limits more than a shape is checked here, by key.

use everywire_fabric::ib::topology::{ShapeError, Topology};
use everywire_net::fabric_host::plan::{
    Engine, HostPlan, Layout, LinkPlan, LinkShape, MAX_NODES, MAX_SWITCH_PORTS, NodeRef, Plan, PortRef,
    SwitchPlan,
};
use everywire_verbs::Guid;

use super::file::{Generate, within};

/// Adds the shape to a plan that is still empty.
pub fn generate(what: &Generate, link: LinkShape, plan: &mut Plan) -> Result<(), String> {
    let wrong = |key: &str| {
        let key = key.to_owned();
        move |error: ShapeError| format!("{key}: {error}")
    };
    let shape = match *what {
        Generate::FatTree { hosts, radix } => {
            let key = "generate.fat_tree";
            let hosts = count(key, "hosts", hosts)?;
            let radix = u8::try_from(count(key, "radix", radix)?).unwrap_or(u8::MAX);
            check_fat_tree(key, hosts, radix)?;
            (plan.engine, plan.layout) = (Engine::FatTree, Layout::Levels);
            Topology::fat_tree(hosts, radix.into()).map_err(wrong(key))?
        }
        Generate::Ring { switches, hosts_per_switch } => {
            let key = "generate.ring";
            let switches = count(key, "switches", switches)?;
            let hosts_per_switch = count(key, "hosts_per_switch", hosts_per_switch)?;
            if switches < 3 {
                return Err(format!("{key}.switches: {switches}; a ring has at least 3"));
            }
            check_hosts(key, switches, hosts_per_switch, 2)?;
            (plan.engine, plan.layout) = (Engine::UpDown, Layout::Circle);
            Topology::ring_with(switches, hosts_per_switch).map_err(wrong(key))?
        }
        Generate::Torus { columns, rows, hosts_per_switch } => {
            let key = "generate.torus";
            let (columns, rows) = (count(key, "columns", columns)?, count(key, "rows", rows)?);
            let hosts_per_switch = count(key, "hosts_per_switch", hosts_per_switch)?;
            for (name, value) in [("columns", columns), ("rows", rows)] {
                if value < 3 {
                    return Err(format!("{key}.{name}: {value}; a torus has at least 3 in each dimension"));
                }
            }
            check_hosts(key, columns.saturating_mul(rows), hosts_per_switch, 4)?;
            (plan.engine, plan.layout) = (Engine::UpDown, Layout::Grid(columns));
            Topology::torus_with(columns, rows, hosts_per_switch).map_err(wrong(key))?
        }
    };
    take_over(&shape, link, plan);
    Ok(())
}

/// The shape's nodes and links become the plan's. GUIDs are given later, by place.
fn take_over(shape: &Topology, link: LinkShape, plan: &mut Plan) {
    let mut places = Vec::new();
    for node in &shape.nodes {
        let (name, ports, guid) = (node.name.clone(), node.ports, Guid(0));
        if node.is_switch {
            places.push(NodeRef::Switch(plan.switches.len()));
            plan.switches.push(SwitchPlan { name, ports, guid });
        } else {
            places.push(NodeRef::Host(plan.hosts.len()));
            plan.hosts.push(HostPlan { name, ports, guid, ips: Vec::new(), router: false });
        }
    }
    let end = |(node, port): (usize, u8)| PortRef { node: places[node], port };
    plan.links.extend(shape.links.iter().map(|(a, b)| LinkPlan { ends: [end(*a), end(*b)], shape: link }));
    let roots = shape.roots.iter().filter_map(|root| match places[*root] {
        NodeRef::Switch(index) => Some(index),
        _ => None,
    });
    plan.roots.extend(roots);
}

/// No more than a fabric has nodes.
fn count(key: &str, name: &str, value: i64) -> Result<usize, String> {
    within(&format!("{key}.{name}"), value, 0..=MAX_NODES as i64)
}

/// Two levels hold radix² / 2 hosts, three radix³ / 4.
fn check_fat_tree(key: &str, hosts: usize, radix: u8) -> Result<(), String> {
    if radix < 4 || !radix.is_multiple_of(2) || radix > MAX_SWITCH_PORTS {
        return Err(format!("{key}.radix: {radix} is no even number from 4 to {MAX_SWITCH_PORTS}"));
    }
    let half = usize::from(radix) / 2;
    let most = (half * half * usize::from(radix)).min(MAX_NODES);
    if hosts < 2 || hosts > most {
        return Err(format!(
            "{key}.hosts: {hosts} is not 2 to {most}, what three levels of radix {radix} hold"
        ));
    }
    Ok(())
}

fn check_hosts(key: &str, switches: usize, hosts: usize, links: usize) -> Result<(), String> {
    let most = usize::from(MAX_SWITCH_PORTS) - links;
    if hosts > most {
        return Err(format!("{key}.hosts_per_switch: {hosts} is more than {most}, the ports of a switch"));
    }
    if hosts == 0 {
        return Err(format!("{key}.hosts_per_switch: 0; a fabric needs hosts"));
    }
    if switches.saturating_mul(hosts + 1) > MAX_NODES {
        return Err(format!("{key}: more than {MAX_NODES} hosts and switches, the most of a fabric"));
    }
    Ok(())
}
