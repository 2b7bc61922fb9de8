//! Subscriptions and the reports that follow from them.
//!
//! Read IBTA §13.4.11 (event forwarding) and §15.2.5.12 first. Notices of nodes, and those of the manager itself about GIDs
//! and groups (traps 64 to 67), go to every subscriber whose InformInfo fits, again until it answers or is given up.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use everywire_wire::mad::method;
use everywire_wire::notice::{InformInfo, Notice, Report, TrapGid, kind, producer, trap};
use everywire_wire::sa::{InformInfoRecord, Record, SaMad, attribute, status};
use everywire_wire::{Gid, Lid, Mad};

use super::super::config::{MAX_REPORTS, MAX_SUBSCRIPTIONS, SmConfig};
use super::super::inventory::Owner;
use super::{Address, Answer, GsiAddress, Records, Sm, SmMad};

#[derive(Debug, Clone, Copy)]
struct Subscription {
    gid: Gid,
    number: u16,
    to: GsiAddress,
    info: InformInfo,
}

#[derive(Debug)]
struct Pending {
    to: GsiAddress,
    mad: Box<Mad>,
    tries: u8,
    deadline: Instant,
}

/// Subscriptions, and reports on their way.
#[derive(Debug)]
pub(super) struct Reports {
    timeout: Duration,
    max_tries: u8,
    subscriptions: Vec<Subscription>,
    next_id: u64,
    open: BTreeMap<u64, Pending>,
    ready: VecDeque<u64>,
    /// Reports that found no room.
    pub lost: u64,
}

impl Reports {
    pub fn new(config: &SmConfig) -> Reports {
        Reports {
            timeout: config.timeout,
            max_tries: config.retries.saturating_add(1),
            subscriptions: Vec::new(),
            next_id: 0,
            open: BTreeMap::new(),
            ready: VecDeque::new(),
            lost: 0,
        }
    }

    /// A subscriber has its report.
    pub fn answered(&mut self, transaction_id: u64) {
        self.open.remove(&transaction_id);
    }

    fn send(&mut self, now: Instant, to: GsiAddress, report: &Report) {
        if self.open.len() >= MAX_REPORTS {
            self.lost += 1;
            return;
        }
        self.next_id += 1;
        let mad = SaMad::with_record(method::REPORT, report, 0, self.next_id).to_mad();
        let deadline = now + self.timeout;
        self.open.insert(self.next_id, Pending { to, mad: Box::new(mad), tries: 1, deadline });
        self.ready.push_back(self.next_id);
    }

    pub fn poll_transmit(&mut self, now: Instant) -> Option<SmMad> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(pending) = self.open.get_mut(&id) {
                pending.deadline = now + self.timeout;
                return Some(SmMad { address: Address::Gsi(pending.to), mad: *pending.mad });
            }
        }
        None
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.open.values().map(|pending| pending.deadline).min()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        let max_tries = self.max_tries;
        self.open.retain(|_, pending| pending.deadline > now || pending.tries < max_tries);
        for (id, pending) in self.open.iter_mut().filter(|(_, pending)| pending.deadline <= now) {
            pending.tries += 1;
            pending.deadline = now + self.timeout;
            self.ready.push_back(*id);
        }
    }

    pub fn remove_ports(&mut self, gone: &[Gid]) {
        self.subscriptions.retain(|s| !gone.contains(&s.gid));
    }
}

impl Sm {
    /// SubnAdmSet(InformInfo): subscribes or ends it.
    pub(super) fn subscribe(&mut self, from: GsiAddress, request: &SaMad) -> Answer {
        let info = InformInfo::parse(&request.data).map_err(|_| status::REQ_INVALID)?;
        let asker = self.map.owner(from.lid).ok_or(status::REQ_INVALID)?;
        let port = self.known.port(asker.node, asker.port).ok_or(status::REQ_INVALID)?;
        let gid = self.gid(port.guid);
        // The subscriber's queue pair: the one it asks from, unless it names another.
        let named = info.qpn.get() != 0;
        let to = GsiAddress { qpn: if named { info.qpn } else { from.qpn }, ..from };
        let same = |s: &Subscription| {
            s.gid == gid && s.to.qpn == to.qpn && InformInfo { subscribe: 1, ..info } == s.info
        };
        let subscriptions = &mut self.sa.reports.subscriptions;
        match (info.subscribe, subscriptions.iter().position(same)) {
            (1, Some(_)) => {}
            (1, None) if subscriptions.len() >= MAX_SUBSCRIPTIONS => return Err(status::NO_RESOURCES),
            (1, None) => {
                let own = subscriptions.iter().filter(|s| s.gid == gid);
                let number = own.map(|s| s.number + 1).max().unwrap_or(0);
                subscriptions.push(Subscription { gid, number, to, info });
            }
            (0, Some(at)) => _ = subscriptions.swap_remove(at),
            _ => return Err(status::REQ_INVALID),
        }
        Ok(Records::one(&info))
    }

    /// Sends a notice to all who subscribed to it.
    pub(in super::super) fn report(&mut self, now: Instant, notice: Notice, issuer_gid: Gid) {
        let report = Report { notice, issuer_gid };
        let to: Vec<GsiAddress> = self
            .sa
            .reports
            .subscriptions
            .iter()
            .filter(|s| wants(&s.info, &notice) && self.may_know(s, &notice))
            .map(|s| s.to)
            .collect();
        to.into_iter().for_each(|to| self.sa.reports.send(now, to, &report));
    }

    /// A notice of the manager itself about a port's or group's GID.
    pub(super) fn report_gid(&mut self, now: Instant, number: u16, gid: Gid) {
        let own = self.lids.get(&self.config.guid).copied().unwrap_or_default();
        let mut notice = Notice::generic(kind::SUBNET_MANAGEMENT, producer::CLASS_MANAGER, number, own);
        TrapGid { reserved: [0; 6], gid }.emit(&mut notice.details);
        self.report(now, notice, self.gid(self.config.guid));
    }

    /// A subscription to one GID or a range of LIDs hears of those only.
    fn may_know(&self, s: &Subscription, notice: &Notice) -> bool {
        let about = TrapGid::parse(&notice.details).map(|t| t.gid).unwrap_or_default();
        let is_gid = matches!(notice.trap_number, trap::GID_IN_SERVICE..=trap::MULTICAST_GROUP_DELETED);
        let lid = if is_gid { self.lid_of_gid(about) } else { Some(notice.issuer_lid) };
        if !s.info.gid.is_zero() {
            let issuer = self.map.owner(notice.issuer_lid);
            return if is_gid { s.info.gid == about } else { issuer == self.port_of_gid(s.info.gid) };
        }
        let (first, last) = (s.info.lid_range_begin, s.info.lid_range_end);
        first == Lid::PERMISSIVE || lid.is_some_and(|lid| (first..=last.max(first)).contains(&lid))
    }

    fn lid_of_gid(&self, gid: Gid) -> Option<Lid> {
        let owner: Owner = self.port_of_gid(gid)?;
        self.lids_of(owner).first().copied()
    }

    /// Answers a query for subscriptions, of trusted askers only (IBTA §15.4.1.2).
    pub(super) fn subscriptions(&self, request: &SaMad) -> Answer {
        if !self.trusts(request) {
            return Err(status::REQ_DENIED);
        }
        let all = self.sa.reports.subscriptions.iter().map(|s| InformInfoRecord {
            subscriber_gid: s.gid,
            subscriber_enum: s.number,
            inform_info: s.info,
            ..InformInfoRecord::default()
        });
        Records::matching(request, all)
    }
}

/// Whether an InformInfo asks for a notice (IBTA §13.4.8.3).
fn wants(info: &InformInfo, notice: &Notice) -> bool {
    (info.is_generic != 0) == notice.is_generic
        && (info.notice_type == kind::ALL || info.notice_type == u16::from(notice.notice_type))
        && (info.trap_number == trap::ALL || info.trap_number == notice.trap_number)
        && (info.producer_type == producer::ALL || info.producer_type == notice.producer_type)
}

/// The attribute of reports.
const _: () = assert!(<Report as Record>::ATTRIBUTE == attribute::NOTICE);
