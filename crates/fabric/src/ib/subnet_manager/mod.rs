//! The subnet manager: it finds what is there, gives every port its LID and every switch its tables, and keeps them right.
//!
//! Sans-IO: [`Sm::handle_mad`] takes what arrives on QP0 and QP1 of the manager's port, [`Sm::poll_transmit`] gives what is
//! to be sent, [`Sm::poll_timeout`] says when to call [`Sm::handle_timeout`]; after each call drain `poll_transmit` and
//! `poll_event`. Read IBTA §14 first, then [`sweep`] (finding), [`setup`] (configuring), [`election`] (several managers),
//! [`sa`] (answering ports). [`routing`] is the graph code, usable without any MAD.
#![allow(rustdoc::private_intra_doc_links)]

pub mod config;
mod election;
mod hosted;
mod inventory;
mod keys;
pub mod lanes;
mod lids;
mod requests;
pub mod routing;
mod sa;
mod setup;
mod sweep;
mod traps;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use everywire_wire::mad::{MadHeader, class, method};
use everywire_wire::smp::{Smp, attribute};
use everywire_wire::{Gid, Guid, Lid, Mad, PKey, Qpn};

pub use config::{Partition, SmConfig};
pub use election::SmState;
pub use hosted::HostedSm;
pub use lanes::LaneTables;
pub use routing::RoutingEngine;

use election::{Handovers, OtherSm};
use inventory::{Inventory, Map};
use requests::Requests;
use routing::Tables;
use setup::Shadow;
use sweep::Phase;

/// Where a MAD goes to or comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// QP0 of a LID; permissive: by the directed route in the MAD.
    Smi(Lid),
    /// QP1.
    Gsi(GsiAddress),
}

/// A queue pair that talks to QP1 of the manager's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GsiAddress {
    /// LID of its port.
    pub lid: Lid,
    /// The queue pair.
    pub qpn: Qpn,
    /// Service level.
    pub sl: u8,
    /// Partition.
    pub pkey: PKey,
    /// GID of its port where the packet had a GRH.
    pub gid: Option<Gid>,
}

/// A MAD and its other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmMad {
    /// From or to.
    pub address: Address,
    /// The MAD.
    pub mad: Mad,
}

/// What somebody may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmEvent {
    /// Every link that works is active and every table in place.
    SubnetUp {
        /// Switches.
        switches: usize,
        /// End ports of adapters.
        end_ports: usize,
        /// The engine that made the tables.
        engine: &'static str,
    },
    /// A link that was there is gone.
    LinkLost {
        /// One end: node and port.
        from: (Guid, u8),
        /// The other end.
        to: (Guid, u8),
    },
    /// A port is there that was not.
    PortUp(Guid),
    /// A port is gone.
    PortLost(Guid),
    /// The manager is in another state.
    State(SmState),
    /// The tables have a credit loop: the channels of it.
    CreditLoop(String),
    /// Something to know or mend: who, what, which rule.
    Warning(String),
}

/// A subnet manager with its subnet administration.
#[derive(Debug)]
pub struct Sm {
    config: SmConfig,
    state: SmState,
    act_count: u32,
    requests: Requests,
    answers: VecDeque<SmMad>,
    events: VecDeque<SmEvent>,
    events_lost: u64,
    phase: Phase,
    /// A sweep is wanted after this one.
    sweep_again: bool,
    next_sweep: Option<Instant>,
    /// A trap asked for a sweep; not before then.
    trap_sweep: Option<Instant>,
    /// When the next trap may start a sweep.
    trap_sweep_from: Option<Instant>,
    /// Until when a LID's traps of one number about wrong keys are not told of again.
    key_warnings: BTreeMap<(Lid, u16), Instant>,
    /// Nodes as they answer now, while a sweep is on.
    found: Inventory,
    /// Nodes as of the last sweep.
    known: Inventory,
    map: Map,
    tables: Tables,
    engine: &'static str,
    lids: BTreeMap<Guid, Lid>,
    shadows: BTreeMap<Guid, Shadow>,
    others: BTreeMap<Guid, OtherSm>,
    handovers: Handovers,
    /// The manager that a standby watches.
    watched: Guid,
    polls_missed: u8,
    /// Something was refused or not answered: the next look is a whole sweep.
    must_retry: bool,
    /// Port GUIDs that the last sweep found gone, and new.
    ports_changed: (Vec<Guid>, Vec<Guid>),
    /// Ports that a new master asks to register again.
    reregister: bool,
    sa: sa::Administrator,
}

impl Sm {
    /// A manager that has not looked around yet; call [`Sm::start`].
    pub fn new(config: SmConfig, seed: u64) -> Sm {
        let requests = Requests::new(&config, seed as u32 ^ (seed >> 32) as u32);
        let lids = config.lids.iter().copied().collect();
        Sm {
            sa: sa::Administrator::new(&config),
            config,
            state: SmState::Discovering,
            act_count: 0,
            requests,
            answers: VecDeque::new(),
            events: VecDeque::new(),
            events_lost: 0,
            phase: Phase::Idle,
            sweep_again: false,
            next_sweep: None,
            trap_sweep: None,
            trap_sweep_from: None,
            key_warnings: BTreeMap::new(),
            found: Inventory::default(),
            known: Inventory::default(),
            map: Map::default(),
            tables: Tables::default(),
            engine: "",
            lids,
            shadows: BTreeMap::new(),
            others: BTreeMap::new(),
            handovers: Handovers::default(),
            watched: Guid(0),
            polls_missed: 0,
            must_retry: false,
            ports_changed: Default::default(),
            reregister: true,
        }
    }

    /// Begins with the first sweep.
    pub fn start(&mut self, now: Instant) {
        self.begin_sweep(now);
    }

    /// Takes a MAD that arrived on QP0 or QP1 of the manager's port. What is no business of a manager is ignored.
    pub fn handle_mad(&mut self, now: Instant, from: SmMad) {
        match from.address {
            Address::Gsi(address) => self.handle_gsi(now, address, &from.mad),
            Address::Smi(lid) => {
                if let Ok(smp) = Smp::from_mad(&from.mad) {
                    self.handle_smp(now, lid, smp);
                }
            }
        }
        self.advance(now);
    }

    fn handle_smp(&mut self, now: Instant, from: Lid, smp: Smp) {
        match (smp.header.method, smp.header.attribute_id) {
            (method::GET_RESP, _) => {
                if let Some(request) = self.requests.answered_by(&smp) {
                    self.answered(now, request, &smp);
                }
            }
            (method::TRAP, attribute::NOTICE) => self.handle_trap(now, from, &smp),
            (method::GET | method::SET, attribute::SM_INFO) => self.handle_sm_info(now, from, smp),
            _ => {}
        }
    }

    fn handle_gsi(&mut self, now: Instant, from: GsiAddress, mad: &Mad) {
        let Ok(header) = MadHeader::parse(mad) else { return };
        if header.mgmt_class == class::SUBN_ADM {
            self.administer(now, from, mad);
        }
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SmMad> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        self.requests.poll_transmit(now).or_else(|| self.sa.poll_transmit(now))
    }

    /// When to call [`Sm::handle_timeout`] at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let trap_sweep = self.trap_sweep.filter(|_| self.phase == Phase::Idle);
        let all = [self.requests.poll_timeout(), self.next_sweep, trap_sweep, self.sa.poll_timeout()];
        all.into_iter().flatten().min()
    }

    /// Does what is due: sends again, gives up, looks for changes.
    pub fn handle_timeout(&mut self, now: Instant) {
        for request in self.requests.handle_timeout(now) {
            self.unanswered(now, request);
        }
        self.sa.handle_timeout(now);
        if self.trap_sweep.is_some_and(|at| at <= now) && self.phase == Phase::Idle {
            self.begin_trap_sweep(now);
        }
        if self.next_sweep.is_some_and(|at| at <= now) && self.phase == Phase::Idle {
            self.look_for_changes(now);
        }
        self.advance(now);
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<SmEvent> {
        self.events.pop_front()
    }

    /// Events that nobody fetched in time.
    pub fn events_lost(&self) -> u64 {
        self.events_lost
    }

    /// Its state.
    pub fn state(&self) -> SmState {
        self.state
    }

    /// Whether nothing is being looked at or changed.
    pub fn is_idle(&self) -> bool {
        let wanted = self.sweep_again || self.trap_sweep.is_some();
        self.phase == Phase::Idle && !wanted && self.requests.is_idle()
    }

    /// The LID of every port GUID that ever had one, to be kept for the next start.
    pub fn lids(&self) -> impl Iterator<Item = (Guid, Lid)> + '_ {
        self.lids.iter().map(|(guid, lid)| (*guid, *lid))
    }

    /// The subnet as routed last, and its tables.
    pub fn routes(&self) -> (&routing::Graph, &Tables) {
        (&self.map.graph, &self.tables)
    }

    /// Asks for a sweep, as a trap does.
    pub fn sweep(&mut self, now: Instant) {
        if self.phase == Phase::Idle {
            self.begin_sweep(now);
        } else {
            self.sweep_again = true;
        }
    }

    /// When a sweep is due again.
    fn schedule(&mut self, now: Instant, after: Duration) {
        self.next_sweep = Some(now + after);
    }

    fn tell(&mut self, event: SmEvent) {
        if self.events.len() < config::MAX_EVENTS {
            self.events.push_back(event);
        } else {
            self.events_lost += 1;
        }
    }

    fn warn(&mut self, text: String) {
        self.tell(SmEvent::Warning(text));
    }

    fn answer(&mut self, address: Address, mad: Mad) {
        if self.answers.len() < config::MAX_ANSWERS {
            self.answers.push_back(SmMad { address, mad });
        }
    }
}

/// A GID from its halves.
fn gid_of(prefix: u64, guid: Guid) -> Gid {
    Gid((u128::from(prefix) << 64 | u128::from(guid.0)).to_be_bytes())
}

#[cfg(test)]
mod tests;
