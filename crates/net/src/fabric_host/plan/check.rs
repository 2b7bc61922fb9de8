//! The rules of a plan: every error says key, value and limit.
//!
//! What is checked here is what building a subnet relies on; whether all hosts can reach each other is not a rule, since a
//! fabric with a pulled cable is one too.

use std::collections::{HashMap, HashSet};

use everywire_wire::Gid;

use super::{
    DROPS, MAX_DELAY, MAX_HOST_PORTS, MAX_LINKS, MAX_LMC, MAX_NAME, MAX_NODES, MAX_PPM, MAX_ROUTER_PORTS,
    MAX_SL, MAX_SM_PRIORITY, MAX_SUBNETS, MAX_SWITCH_PORTS, MAX_WEIGHTS, NodeRef, Plan, SubnetPlan,
};

impl Plan {
    /// Rules that no part of the plan can break alone.
    ///
    /// # Errors
    /// The key that is wrong, its value, and the limit.
    pub fn check(&self) -> Result<(), String> {
        check_name("name", &self.name)?;
        if self.hosts.is_empty() {
            return Err("host: a fabric needs at least one".to_owned());
        }
        let nodes = self.hosts.len() + self.switches.len();
        if nodes > MAX_NODES {
            return Err(format!("host, switch: {nodes} of them; a fabric has at most {MAX_NODES}"));
        }
        if self.links.len() > MAX_LINKS {
            return Err(format!("link: {} of them; a fabric has at most {MAX_LINKS}", self.links.len()));
        }
        self.check_nodes()?;
        self.check_links()?;
        self.check_subnets()?;
        if self.lmc > MAX_LMC {
            return Err(format!("lmc: {} is more than {MAX_LMC} (IBTA §7.11.1)", self.lmc));
        }
        if self.sm_priority > MAX_SM_PRIORITY {
            let priority = self.sm_priority;
            return Err(format!("sm_priority: {priority} is more than {MAX_SM_PRIORITY} (IBTA §14.2.5.13)"));
        }
        let levels = self.partitions.iter().map(|partition| partition.sl).chain([self.sl]);
        if let Some(sl) = levels.into_iter().find(|sl| *sl > MAX_SL) {
            return Err(format!("sl: {sl} is more than {MAX_SL} (IBTA §7.6.5)"));
        }
        self.check_lanes()?;
        self.check_partitions()
    }

    fn check_lanes(&self) -> Result<(), String> {
        let Some(tables) = &self.lanes else { return Ok(()) };
        if let Some((sl, vl)) = (0..).zip(tables.sl2vl).find(|(_, vl): &(u8, u8)| *vl > DROPS) {
            return Err(format!(
                "qos.sl2vl: {vl} for SL {sl} is no lane: 0 to 14, or {DROPS} to drop (IBTA §7.6.6)"
            ));
        }
        let low = tables.low.as_deref().unwrap_or_default();
        for (key, entries) in [("qos.vlarb_high", tables.high.as_slice()), ("qos.vlarb_low", low)] {
            if entries.len() > MAX_WEIGHTS {
                return Err(format!("{key}: {} entries; a table has at most {MAX_WEIGHTS}", entries.len()));
            }
            if let Some(entry) = entries.iter().find(|entry| entry.vl >= DROPS) {
                return Err(format!("{key}: {} is no data lane: 0 to 14 (IBTA §7.6.9)", entry.vl));
            }
        }
        match tables.starved() {
            Some(sl) => Err(format!(
                "qos.vlarb_low: lane {} of SL {sl} has no weight here nor in qos.vlarb_high: its packets would never leave",
                tables.sl2vl[usize::from(sl)]
            )),
            None => Ok(()),
        }
    }

    fn check_subnets(&self) -> Result<(), String> {
        if self.subnets.len() >= MAX_SUBNETS {
            return Err(format!("subnet: {} more; a fabric has at most {MAX_SUBNETS}", self.subnets.len()));
        }
        let routed = !self.subnets.is_empty() || self.hosts.iter().any(|host| host.router);
        let mut prefixes = HashSet::new();
        for SubnetPlan { sm, gid_prefix: prefix } in self.all_subnets() {
            if matches!(sm.node, NodeRef::Host(index) if self.hosts[index].router) {
                return Err(format!("sm: {} is a router's port", self.port_name(sm)));
            }
            if routed && prefix == Gid::DEFAULT_PREFIX {
                let name = self.port_name(sm);
                return Err(format!(
                    "gid_prefix: the subnet of {name} needs one of its own: link-local GIDs cross no router (IBTA §4.1.1)"
                ));
            }
            if prefix == 0 || prefix >> 56 == 0xff || !prefixes.insert(prefix) {
                return Err(format!("gid_prefix: {prefix:#018x} is taken, zero, or of multicast GIDs"));
            }
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), String> {
        let (mut names, mut guids, mut ips) = (HashMap::new(), HashMap::new(), HashMap::new());
        for node in self.nodes() {
            let name = self.name_of(node);
            let (what, most, guid) = match node {
                NodeRef::Host(index) if self.hosts[index].router => {
                    ("router", MAX_ROUTER_PORTS, self.hosts[index].guid)
                }
                NodeRef::Host(index) => ("host", MAX_HOST_PORTS, self.hosts[index].guid),
                NodeRef::Switch(index) => ("switch", MAX_SWITCH_PORTS, self.switches[index].guid),
            };
            check_name(&format!("{what}.name"), name)?;
            let place = match node {
                NodeRef::Host(index) => format!("{what} {}", index + 1),
                NodeRef::Switch(index) => format!("{what} {}", index + 1),
            };
            if let Some(other) = names.insert(name, place.clone()) {
                return Err(format!(
                    "{what}.name: {name:?} is the name of two nodes: {other} and {place}, made ones counted"
                ));
            }
            let ports = self.ports_of(node);
            if ports == 0 || ports > most {
                return Err(format!("{what}.ports: {ports} for {name}; a {what} has 1 to {most}"));
            }
            if guid.0 == 0 {
                return Err(format!("{what}.guid: 0 for {name} names nothing"));
            }
            // A host's ports have the GUIDs that follow its own.
            let own = if matches!(node, NodeRef::Host(_)) { u64::from(ports) } else { 0 };
            for value in guid.0..=guid.0.saturating_add(own) {
                if let Some(other) = guids.insert(value, name) {
                    return Err(format!(
                        "{what}.guid: {value:#018x} is of {other} and of {name} (a host's ports take the GUIDs after its own)"
                    ));
                }
            }
        }
        for host in &self.hosts {
            if host.ips.len() > usize::from(host.ports) {
                let (name, ips, ports) = (&host.name, host.ips.len(), host.ports);
                let plural = if ports == 1 { "" } else { "s" };
                return Err(format!("host.ip: {ips} addresses for {name}, which has {ports} port{plural}"));
            }
            for ip in &host.ips {
                if ip.is_unspecified() || ip.is_multicast() {
                    return Err(format!("host.ip: {ip} of {} is no address of one host", host.name));
                }
                if let Some(other) = ips.insert(ip, &host.name) {
                    return Err(format!("host.ip: {ip} is of {other} and of {}", host.name));
                }
            }
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), String> {
        let mut used = HashSet::new();
        for link in &self.links {
            let [a, b] = link.ends;
            let text = format!("{} - {}", self.port_name(a), self.port_name(b));
            if a.node == b.node {
                return Err(format!("link {text:?}: both ends are at {}", self.name_of(a.node)));
            }
            for end in link.ends {
                if !used.insert(end) {
                    return Err(format!("link {text:?}: {} has a link already", self.port_name(end)));
                }
            }
            if !matches!(link.shape.vls, 1 | 2 | 4 | 8 | 15) {
                let vls = link.shape.vls;
                return Err(format!("link {text:?}: vls: {vls} is none of 1, 2, 4, 8, 15 (IBTA §14.2.5.6)"));
            }
            if link.shape.bit_errors_ppm > MAX_PPM {
                let ppm = link.shape.bit_errors_ppm;
                return Err(format!("link {text:?}: bit_errors_ppm: {ppm} is more than {MAX_PPM}"));
            }
            if link.shape.delay > MAX_DELAY {
                let delay = link.shape.delay.as_secs_f64() * 1e6;
                return Err(format!(
                    "link {text:?}: delay_us: {delay} is more than {}",
                    MAX_DELAY.as_micros()
                ));
            }
        }
        Ok(())
    }

    fn check_partitions(&self) -> Result<(), String> {
        let mut seen = HashSet::new();
        for partition in &self.partitions {
            let pkey = partition.pkey;
            if pkey == 0 || pkey >= 0x7fff {
                return Err(format!(
                    "partition.pkey: {pkey:#06x} is none of 0x0001 to 0x7ffe (0x7fff is the default partition; the \
                     membership bit is not part of it)"
                ));
            }
            if !seen.insert(pkey) {
                return Err(format!("partition.pkey: {pkey:#06x} is described twice"));
            }
            for port in partition.full.iter().chain(&partition.limited) {
                if matches!(port.node, NodeRef::Switch(_)) {
                    let name = self.port_name(*port);
                    return Err(format!(
                        "partition {pkey:#06x}: {name} is a switch's port; members are host ports"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Names go into paths, device names and NodeDescriptions.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(key: &str, name: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(legal) || name.starts_with('.') {
        return Err(format!("{key}: {name:?} is not 1 to {MAX_NAME} letters, digits, '-', '_' or '.'"));
    }
    Ok(())
}
