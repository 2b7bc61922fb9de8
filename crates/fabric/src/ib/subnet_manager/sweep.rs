//! Finding what is there: from the manager's own port outwards, by directed routes.
//!
//! Read IBTA §14.4.2 (sweeping) first. A sweep asks who is at the end of each path, what it is, how its ports are, and goes on
//! through every port of a switch that has a link; both ends of a link need one probe only. A light sweep asks every switch
//! whether anything has changed, and is followed by a whole one if so. What is found takes the old inventory's place at
//! once, when nothing is left to ask.

use std::collections::BTreeSet;
use std::time::Instant;

use everywire_wire::Guid;
use everywire_wire::mad::status;
use everywire_wire::smp::codes::{capability, port_state};
use everywire_wire::smp::{MAX_HOPS, NodeDescription, NodeInfo, PortInfo, Smp, SwitchInfo, attribute};

use super::config::MAX_NODES;
use super::election::SmState;
use super::inventory::{Inventory, Node};
use super::requests::{Path, Purpose, Request};
use super::{Sm, SmEvent};

/// What the manager is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing.
    Idle,
    /// Asking nodes and ports.
    Discovery,
    /// Asking the other managers.
    Managers,
    /// Writing attributes and tables.
    Configure,
    /// Ports to ARMED.
    Arm,
    /// Ports to ACTIVE.
    Activate,
}

impl Sm {
    /// Starts over with an empty inventory.
    pub(super) fn begin_sweep(&mut self, _now: Instant) {
        if self.state == SmState::NotActive {
            return;
        }
        self.requests.clear();
        self.found = Inventory::default();
        self.phase = Phase::Discovery;
        self.sweep_again = false;
        self.trap_sweep = None;
        self.next_sweep = None;
        let own: Path = Path::from([]);
        self.requests.push(Request::get(&own, attribute::NODE_INFO, 0, Purpose::Discover(None)));
    }

    /// Goes on to the next phase when nothing is left of the present one.
    pub(super) fn advance(&mut self, now: Instant) {
        while self.requests.is_idle() {
            match self.phase {
                Phase::Idle if self.sweep_again => self.begin_sweep(now),
                Phase::Idle => return,
                Phase::Discovery => self.ask_managers(),
                Phase::Managers => self.elect(now),
                Phase::Configure => self.arm(),
                Phase::Arm => self.activate(),
                Phase::Activate => self.finish(now),
            }
        }
    }

    fn finish(&mut self, now: Instant) {
        self.phase = Phase::Idle;
        self.reregister = false;
        self.schedule(now, self.config.sweep_interval);
        let switches = self.map.graph.switches.len();
        let end_ports = self.map.graph.endports.len();
        self.tell(SmEvent::SubnetUp { switches, end_ports, engine: self.engine });
    }

    /// A response to one of our requests.
    pub(super) fn answered(&mut self, now: Instant, request: Request, smp: &Smp) {
        if smp.status() & status::BUSY != 0 {
            // "Not now": it is sent again when its time is over (IBTA §13.4.7).
            return self.requests.put_back(smp.header.transaction_id, request);
        }
        let ok = smp.status() == 0;
        if !ok && !matches!(request.purpose, Purpose::Manager(_) | Purpose::Poll(_)) {
            return self.refused(&request, smp.status());
        }
        match request.purpose {
            Purpose::Discover(from) => self.discovered(from, &request.path, smp),
            Purpose::Description(node) => {
                if let (Some(node), Ok(text)) =
                    (self.found.nodes.get_mut(&node), NodeDescription::parse(&smp.data))
                {
                    node.description = text;
                }
            }
            Purpose::Renamed(node) => {
                if let (Some(node), Ok(text)) =
                    (self.known.nodes.get_mut(&node), NodeDescription::parse(&smp.data))
                {
                    node.description = text;
                }
            }
            Purpose::Switch(node) => self.found_switch(node, smp),
            Purpose::Port(node, port) => self.found_port(node, port, smp),
            Purpose::Light(node) => {
                let changed = SwitchInfo::parse(&smp.data).is_ok_and(|info| info.port_state_change);
                if changed && self.known.nodes.contains_key(&node) {
                    self.sweep(now);
                }
            }
            Purpose::Set(..) | Purpose::State(..) => self.settled(request, smp),
            Purpose::Manager(_) | Purpose::Poll(_) | Purpose::Control(..) => {
                self.manager_answered(now, request, smp);
            }
        }
    }

    /// A request that nobody answered in time, each of its tries.
    pub(super) fn unanswered(&mut self, now: Instant, request: Request) {
        match request.purpose {
            Purpose::Discover(Some((node, port))) => {
                if let Some(port) = self.found.port_mut(node, port) {
                    port.silent = true;
                }
                let name = self.found.nodes.get(&node).map(Node::name).unwrap_or_default();
                self.warn(format!("nobody answers behind port {port} of {name} ({node}), which has a link"));
            }
            Purpose::Light(_) => self.sweep(now),
            Purpose::Manager(guid) => _ = self.others.remove(&guid),
            Purpose::Poll(_) => self.poll_missed(now),
            _ => {
                self.must_retry = true;
                self.warn(format!(
                    "no answer to {} of attribute {:#06x}, modifier {:#x}, along path {:?}",
                    if request.data.is_some() { "Set" } else { "Get" },
                    request.attribute,
                    request.modifier,
                    request.path
                ));
            }
        }
    }

    fn refused(&mut self, request: &Request, status: u16) {
        self.must_retry = true;
        self.warn(format!(
            "status {status:#06x} to attribute {:#06x}, modifier {:#x}, from the node at path {:?}",
            request.attribute, request.modifier, request.path
        ));
    }

    fn discovered(&mut self, from: Option<(Guid, u8)>, path: &Path, smp: &Smp) {
        let Ok(info) = NodeInfo::parse(&smp.data) else { return };
        let (guid, entry) = (info.node_guid, info.local_port_num);
        if guid.0 == 0 || entry > info.num_ports {
            return self.warn(format!(
                "the node at path {path:?} says GUID {guid}, port {entry} of {}",
                info.num_ports
            ));
        }
        if !self.found.nodes.contains_key(&guid) {
            if self.found.nodes.len() >= MAX_NODES {
                return self.warn(format!("more than {MAX_NODES} nodes: {guid} is left out"));
            }
            let node = Node::new(info, path.clone());
            let is_switch = node.is_switch();
            self.found.nodes.insert(guid, node);
            let purpose = Purpose::Description(guid);
            self.requests.push(Request::get(path, attribute::NODE_DESCRIPTION, 0, purpose));
            if is_switch {
                self.requests.push(Request::get(path, attribute::SWITCH_INFO, 0, Purpose::Switch(guid)));
            }
        }
        let is_switch = self.found.nodes[&guid].is_switch();
        if let Some(port) = self.found.port_mut(guid, entry)
            && !is_switch
            && !port.known
        {
            (port.guid, port.path) = (info.port_guid, path.clone());
            let purpose = Purpose::Port(guid, entry);
            self.requests.push(Request::get(path, attribute::PORT_INFO, u32::from(entry), purpose));
        }
        if let Some(from) = from {
            self.found.link(from, (guid, entry));
        }
    }

    fn found_switch(&mut self, guid: Guid, smp: &Smp) {
        let master = self.state == SmState::Master;
        let (Some(node), Ok(info)) = (self.found.nodes.get_mut(&guid), SwitchInfo::parse(&smp.data)) else {
            return;
        };
        node.switch = Some(info);
        let path = node.path.clone();
        if master && info.port_state_change {
            // Cleared before the ports are read, so that what changes after that is seen by the next light sweep.
            let mut data = [0; 64];
            info.emit(&mut data);
            self.requests.push(Request::set(&path, attribute::SWITCH_INFO, 0, data, Purpose::Set(guid, 0)));
        }
        for port in 0..=node.info.num_ports {
            let purpose = Purpose::Port(guid, port);
            self.requests.push(Request::get(&path, attribute::PORT_INFO, u32::from(port), purpose));
        }
    }

    fn found_port(&mut self, guid: Guid, number: u8, smp: &Smp) {
        let Some(node) = self.found.nodes.get_mut(&guid) else { return };
        let (is_switch, is_own) = (node.is_switch(), node.path.is_empty());
        let (Some(port), Ok(info)) = (node.ports.get_mut(usize::from(number)), PortInfo::parse(&smp.data))
        else {
            return;
        };
        (port.info, port.known) = (info, true);
        let leads_on = number > 0 && (is_switch || is_own) && info.port_state > port_state::DOWN;
        if !leads_on || port.peer.is_some() || port.path.len() >= MAX_HOPS {
            return;
        }
        let path: Path = port.path.iter().copied().chain([number]).collect();
        let purpose = Purpose::Discover(Some((guid, number)));
        self.requests.push(Request::get(&path, attribute::NODE_INFO, 0, purpose));
    }

    fn ask_managers(&mut self) {
        self.phase = Phase::Managers;
        let own = self.config.guid;
        let mut seen = BTreeSet::new();
        for (_, _, port) in self.found.end_ports() {
            if port.info.capability_mask & capability::IS_SM != 0 && port.guid != own {
                seen.insert(port.guid);
                let purpose = Purpose::Manager(port.guid);
                self.requests.push(Request::get(&port.path, attribute::SM_INFO, 0, purpose));
            }
        }
        self.others.retain(|guid, _| seen.contains(guid));
        self.handovers.retain(|guid| seen.contains(&guid));
    }

    /// What a timer asks for: a light sweep of a master, a poll of a standby.
    pub(super) fn look_for_changes(&mut self, now: Instant) {
        self.next_sweep = None;
        match self.state {
            SmState::Master => {
                self.act_count = self.act_count.wrapping_add(1);
                let silent = self.known.nodes.values().any(|node| node.ports.iter().any(|port| port.silent));
                if silent || self.map.graph.switches.is_empty() || self.must_retry || self.is_handing_over() {
                    return self.begin_sweep(now);
                }
                for (guid, node) in self.known.nodes.iter().filter(|(_, node)| node.is_switch()) {
                    let purpose = Purpose::Light(*guid);
                    self.requests.push(Request::get(&node.path, attribute::SWITCH_INFO, 0, purpose));
                }
                // A manager may have been started anew at its port, with another priority: no trap tells of that.
                for (guid, other) in &self.others {
                    let purpose = Purpose::Manager(*guid);
                    self.requests.push(Request::get(&other.path, attribute::SM_INFO, 0, purpose));
                }
                self.schedule(now, self.config.sweep_interval);
            }
            SmState::Standby => self.poll_master(now),
            SmState::Discovering => self.begin_sweep(now),
            SmState::NotActive => {}
        }
    }

    /// The new inventory takes the old one's place; what is gone and what has come is told.
    pub(super) fn take_over_inventory(&mut self) {
        let old = std::mem::replace(&mut self.known, std::mem::take(&mut self.found));
        let mut events = Vec::new();
        for (guid, node) in &old.nodes {
            for (number, port) in node.ports.iter().enumerate().filter(|(_, port)| port.is_linked()) {
                let (from, Some(to)) = ((*guid, number as u8), port.peer) else { continue };
                let still =
                    self.known.port(from.0, from.1).is_some_and(|p| p.is_linked() && p.peer == Some(to));
                if !still && from < to {
                    events.push(SmEvent::LinkLost { from, to });
                }
            }
        }
        let guids = |inventory: &Inventory| -> BTreeSet<Guid> {
            inventory.end_ports().filter(|(.., port)| port.guid.0 != 0).map(|(.., port)| port.guid).collect()
        };
        let (before, after) = (guids(&old), guids(&self.known));
        events.extend(before.difference(&after).map(|guid| SmEvent::PortLost(*guid)));
        events.extend(after.difference(&before).map(|guid| SmEvent::PortUp(*guid)));
        events.into_iter().for_each(|event| self.tell(event));
        self.ports_changed =
            (before.difference(&after).copied().collect(), after.difference(&before).copied().collect());
    }
}
