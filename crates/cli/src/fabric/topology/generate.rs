//! Shapes that are described by a few numbers: fat tree, ring, torus.
//!
//! Hosts are `h1` and on; switches are named by their place: `leaf1`, `spine1`, `core1` in a fat tree, `s1` in a ring, `s1x2`
//! (column, row) in a torus. Each host has one port. Host ports come first on every switch.

use everywire_net::fabric_host::plan::{
    Engine, HostPlan, Layout, LinkPlan, LinkShape, MAX_NODES, MAX_SWITCH_PORTS, NodeRef, Plan, PortRef,
    SwitchPlan,
};
use everywire_verbs::Guid;

use super::file::Generate;

/// Adds the shape to a plan that is still empty.
pub fn generate(what: &Generate, shape: LinkShape, plan: &mut Plan) -> Result<(), String> {
    let mut maker = Maker { plan, shape };
    match *what {
        Generate::FatTree { hosts, radix } => fat_tree(&mut maker, hosts, radix),
        Generate::Ring { switches, hosts_per_switch } => ring(&mut maker, switches, hosts_per_switch),
        Generate::Torus { columns, rows, hosts_per_switch } => {
            torus(&mut maker, columns, rows, hosts_per_switch)
        }
    }
}

struct Maker<'a> {
    plan: &'a mut Plan,
    shape: LinkShape,
}

impl Maker<'_> {
    fn switch(&mut self, name: String, ports: u8) -> usize {
        self.plan.switches.push(SwitchPlan { name, ports, guid: Guid(0) });
        self.plan.switches.len() - 1
    }

    /// A host at this port of this switch.
    fn host(&mut self, switch: usize, port: u8) {
        let name = format!("h{}", self.plan.hosts.len() + 1);
        self.plan.hosts.push(HostPlan { name, ports: 1, guid: Guid(0), ips: Vec::new(), router: false });
        let host = PortRef { node: NodeRef::Host(self.plan.hosts.len() - 1), port: 1 };
        self.link(host, PortRef { node: NodeRef::Switch(switch), port });
    }

    fn link(&mut self, a: PortRef, b: PortRef) {
        self.plan.links.push(LinkPlan { ends: [a, b], shape: self.shape });
    }

    fn between(&mut self, (a, port_a): (usize, usize), (b, port_b): (usize, usize)) {
        let end = |switch, port| PortRef { node: NodeRef::Switch(switch), port: port as u8 };
        self.link(end(a, port_a), end(b, port_b));
    }
}

/// Two levels while they suffice (radix² / 2 hosts), else three (radix³ / 4): half of a switch's ports go down, half up.
fn fat_tree(maker: &mut Maker<'_>, hosts: usize, radix: u8) -> Result<(), String> {
    let key = "generate.fat_tree";
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
    let two_levels = hosts <= half * usize::from(radix);
    let leaves = hosts.div_ceil(half);
    let leaf: Vec<usize> = (1..=leaves).map(|n| maker.switch(format!("leaf{n}"), radix)).collect();
    for host in 0..hosts {
        maker.host(leaf[host / half], (host % half + 1) as u8);
    }
    if two_levels {
        let spine: Vec<usize> = (1..=half).map(|n| maker.switch(format!("spine{n}"), radix)).collect();
        for (l, &from) in leaf.iter().enumerate() {
            for (s, &to) in spine.iter().enumerate() {
                maker.between((from, half + 1 + s), (to, l + 1));
            }
        }
        maker.plan.roots = spine;
    } else {
        three_levels(maker, &leaf, half, radix);
    }
    (maker.plan.engine, maker.plan.layout) = (Engine::FatTree, Layout::Levels);
    Ok(())
}

/// Pods of `half` leaves under `half` spines; spine s of every pod reaches the cores of group s.
fn three_levels(maker: &mut Maker<'_>, leaf: &[usize], half: usize, radix: u8) {
    let mut spines = Vec::new();
    for (pod, leaves) in leaf.chunks(half).enumerate() {
        for s in 0..half {
            let spine = maker.switch(format!("spine{}", pod * half + s + 1), radix);
            for (l, &from) in leaves.iter().enumerate() {
                maker.between((from, half + 1 + s), (spine, l + 1));
            }
            spines.push(spine);
        }
    }
    let core: Vec<usize> = (1..=half * half).map(|n| maker.switch(format!("core{n}"), radix)).collect();
    for (index, &spine) in spines.iter().enumerate() {
        let (pod, s) = (index / half, index % half);
        for c in 0..half {
            maker.between((spine, half + 1 + c), (core[s * half + c], pod + 1));
        }
    }
    maker.plan.roots = core;
}

fn check_hosts(key: &str, switches: usize, hosts: usize, links: usize) -> Result<u8, String> {
    let ports = hosts.saturating_add(links);
    if ports > usize::from(MAX_SWITCH_PORTS) {
        let most = usize::from(MAX_SWITCH_PORTS) - links;
        return Err(format!("{key}.hosts_per_switch: {hosts} is more than {most}, the ports of a switch"));
    }
    if hosts == 0 {
        return Err(format!("{key}.hosts_per_switch: 0; a fabric needs hosts"));
    }
    if switches.saturating_mul(hosts + 1) > MAX_NODES {
        return Err(format!("{key}: more than {MAX_NODES} hosts and switches, the most of a fabric"));
    }
    Ok(ports as u8)
}

fn ring(maker: &mut Maker<'_>, switches: usize, hosts: usize) -> Result<(), String> {
    let key = "generate.ring";
    if switches < 3 {
        return Err(format!("{key}.switches: {switches}; a ring has at least 3"));
    }
    let ports = check_hosts(key, switches, hosts, 2)?;
    let ring: Vec<usize> = (1..=switches).map(|n| maker.switch(format!("s{n}"), ports)).collect();
    for &switch in &ring {
        (1..=hosts).for_each(|port| maker.host(switch, port as u8));
    }
    // To the next one by the first port after the hosts', from the one before by the second.
    for (index, &from) in ring.iter().enumerate() {
        maker.between((from, hosts + 1), (ring[(index + 1) % switches], hosts + 2));
    }
    (maker.plan.engine, maker.plan.layout) = (Engine::UpDown, Layout::Circle);
    Ok(())
}

fn torus(maker: &mut Maker<'_>, columns: usize, rows: usize, hosts: usize) -> Result<(), String> {
    let key = "generate.torus";
    for (name, value) in [("columns", columns), ("rows", rows)] {
        if value < 3 {
            return Err(format!("{key}.{name}: {value}; a torus has at least 3 in each dimension"));
        }
    }
    let ports = check_hosts(key, columns.saturating_mul(rows), hosts, 4)?;
    let name = |index: usize| format!("s{}x{}", index % columns + 1, index / columns + 1);
    let grid: Vec<usize> = (0..columns * rows).map(|index| maker.switch(name(index), ports)).collect();
    for &switch in &grid {
        (1..=hosts).for_each(|port| maker.host(switch, port as u8));
    }
    // Right, left, down, up, in this order after the hosts' ports.
    for (index, &from) in grid.iter().enumerate() {
        let (x, y) = (index % columns, index / columns);
        maker.between((from, hosts + 1), (grid[y * columns + (x + 1) % columns], hosts + 2));
        maker.between((from, hosts + 3), (grid[(y + 1) % rows * columns + x], hosts + 4));
    }
    (maker.plan.engine, maker.plan.layout) = (Engine::UpDown, Layout::Grid(columns));
    Ok(())
}
