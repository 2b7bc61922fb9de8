//! Where our subnet manager sits: its configuration out of the plan, its MADs, and what it has to say in words.

use std::time::Instant;

use everywire_fabric::ib::subnet_manager::{HostedSm, Partition, RoutingEngine, Sm, SmConfig, SmEvent};
use everywire_fabric::ib::{Event, PortId};
use everywire_wire::mad::{MadHeader, RmppHeader, class, method, rmpp};
use everywire_wire::{Guid, Mad};

use super::FabricEvent;
use super::built::Built;
use super::plan::{self, NodeRef, Plan, PortRef, SubnetPlan, Subnets};

/// Warnings that are kept for pictures.
const MAX_WARNINGS: usize = 32;

/// Our subnet manager, and where it is.
pub(super) struct Seat {
    hosted: HostedSm,
    engine: plan::Engine,
    warnings: Vec<String>,
    events: Vec<FabricEvent>,
}

impl Seat {
    /// Starts one for every subnet.
    pub(super) fn take_all(built: &mut Built, now: Instant, seed: u64, entropy: u64) -> Vec<Seat> {
        let all: Vec<_> = built.plan.all_subnets().collect();
        all.into_iter().map(|at| Seat::take(built, now, seed, entropy, at)).collect()
    }

    /// Starts it. Who shows the SM_Key is trusted (IBTA §14.4.7): the plan's, or one that nobody knows, made of `entropy`.
    fn take(
        built: &mut Built,
        now: Instant,
        seed: u64,
        entropy: u64,
        SubnetPlan { sm: at, gid_prefix }: SubnetPlan,
    ) -> Seat {
        let port = built.port_id(at);
        let sm = Sm::new(config(&built.plan, entropy, at, gid_prefix), seed);
        let hosted = HostedSm::start(now, sm, port, &mut built.subnet);
        built.managers.insert(port);
        Seat { hosted, engine: built.plan.engine, warnings: Vec::new(), events: Vec::new() }
    }

    /// Where it is.
    pub(super) fn port(&self) -> PortId {
        self.hosted.port()
    }

    /// Whether a MAD of QP1 at its port is its own: what asks subnet administration, and what acknowledges its answers. The
    /// answers that somebody else at the port gets from it are not.
    pub(super) fn wants(&self, mad: &Mad) -> bool {
        let Ok(header) = MadHeader::parse(mad) else { return false };
        if header.mgmt_class != class::SUBN_ADM {
            return false;
        }
        let rmpp = RmppHeader::parse(&mad[MadHeader::LEN..]);
        let acknowledges = rmpp
            .is_ok_and(|rmpp| rmpp.active && matches!(rmpp.rmpp_type, rmpp::ACK | rmpp::STOP | rmpp::ABORT));
        header.method & method::RESPONSE_BIT == 0 || header.method == method::REPORT_RESP || acknowledges
    }

    /// Takes an event that is its own; false for others.
    pub(super) fn handle(&mut self, now: Instant, event: &Event) -> bool {
        self.hosted.handle_event(now, event)
    }

    /// Does what is due, and hears what it has to say; whether there was anything.
    pub(super) fn turn(&mut self, built: &mut Built, now: Instant) -> bool {
        self.hosted.drive(now, &mut built.subnet);
        let mut said = false;
        while let Some(event) = self.hosted.sm.poll_event() {
            said = true;
            let (text, warning) = words(&event, &built.plan);
            if warning && !self.warnings.contains(&text) {
                self.warnings.truncate(MAX_WARNINGS - 1);
                self.warnings.insert(0, text.clone());
            }
            if matches!(event, SmEvent::SubnetUp { .. }) {
                // Tables are new: what was warned of before them may be mended.
                self.warnings.retain(|old| *old == text);
            }
            let at = built.name(self.port());
            // A switch is known by its name alone.
            let at = at.strip_suffix("/0").unwrap_or(&at).to_owned();
            self.events.push(FabricEvent::SubnetManager { at, text, warning });
        }
        said
    }

    /// When to call [`Seat::turn`] at the latest.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.hosted.poll_timeout()
    }

    /// What it has said since.
    pub(super) fn events(&mut self) -> Vec<FabricEvent> {
        std::mem::take(&mut self.events)
    }

    /// How it makes routes.
    pub(super) fn engine(&self) -> plan::Engine {
        self.engine
    }

    /// What it warns of, the latest first.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn config(plan: &Plan, entropy: u64, at: PortRef, gid_prefix: u64) -> SmConfig {
    let roots: Vec<Guid> = plan.roots.iter().map(|index| plan.switches[*index].guid).collect();
    let engine = match plan.engine {
        plan::Engine::MinHop => RoutingEngine::MinHop,
        plan::Engine::UpDown => RoutingEngine::UpDown { roots },
        plan::Engine::FatTree => RoutingEngine::FatTree { roots },
    };
    let base = SmConfig::new(port_guid(plan, at)).secret_sm_key(entropy);
    let sm_key = plan.sm_key.unwrap_or(base.sm_key);
    let mut config =
        SmConfig { engine, lmc: plan.lmc, sm_key, priority: plan.sm_priority, gid_prefix, ..base };
    config.lanes = plan.lanes.clone();
    config.prefix_routes = prefix_routes(plan, at);
    config.partitions.extend(plan.partitions.iter().map(|partition| {
        let member = |full| move |port: &PortRef| (port_guid(plan, *port), full);
        let full = partition.full.iter().map(member(true));
        let members = full.chain(partition.limited.iter().map(member(false))).collect();
        Partition { pkey: partition.pkey, members, others: None, ipoib: false, sl: partition.sl }
    }));
    config.partitions.iter_mut().take(1).for_each(|default| default.sl = plan.sl);
    config
}

/// The routers' ports by which each other subnet is reached, the shortest way first.
fn prefix_routes(plan: &Plan, at: PortRef) -> Vec<(u64, Guid)> {
    let (subnets, all) = (Subnets::of(plan), plan.all_subnets().collect::<Vec<_>>());
    let hops = subnets.at(at).map_or(&[][..], |own| subnets.from(own));
    hops.iter().map(|hop| (all[hop.to].gid_prefix, port_guid(plan, hop.port))).collect()
}

/// GUID of a host's port, or of a switch.
pub(super) fn port_guid(plan: &Plan, port: PortRef) -> Guid {
    match port.node {
        NodeRef::Host(index) => Guid(plan.hosts[index].guid.0 + u64::from(port.port)),
        NodeRef::Switch(index) => plan.switches[index].guid,
    }
}

/// The name of a node or of a host's port, by GUID.
fn name(plan: &Plan, guid: Guid) -> String {
    let switch = plan.switches.iter().find(|switch| switch.guid == guid).map(|switch| switch.name.clone());
    let of_host = |host: &plan::HostPlan| -> Option<String> {
        match guid.0.checked_sub(host.guid.0)? {
            0 => Some(host.name.clone()),
            port if port <= u64::from(host.ports) => Some(format!("{}/{port}", host.name)),
            _ => None,
        }
    };
    switch.or_else(|| plan.hosts.iter().find_map(of_host)).unwrap_or_else(|| guid.to_string())
}

/// In words, and whether it is a warning.
fn words(event: &SmEvent, plan: &Plan) -> (String, bool) {
    match event {
        SmEvent::SubnetUp { switches, end_ports, engine } => (
            format!(
                "the subnet is up: {switches} switch{}, {end_ports} port{} of hosts, routed {engine}",
                if *switches == 1 { "" } else { "es" },
                if *end_ports == 1 { "" } else { "s" },
            ),
            false,
        ),
        SmEvent::LinkLost { from, to } => {
            let end = |(guid, port): (Guid, u8)| format!("{}/{port}", name(plan, guid));
            (format!("the link {} - {} is gone", end(*from), end(*to)), false)
        }
        SmEvent::PortUp(guid) => (format!("{} is there", name(plan, *guid)), false),
        SmEvent::PortLost(guid) => (format!("{} is gone", name(plan, *guid)), false),
        SmEvent::State(state) => (format!("it is {state:?}"), false),
        SmEvent::CreditLoop(text) => (format!("the tables have a credit loop: {text}"), true),
        SmEvent::Warning(text) => (text.clone(), true),
    }
}
