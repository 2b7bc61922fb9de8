//! SIDR: which UD queue pair and Q_Key serve a service id.
//!
//! Read first: IBTA volume 1 §12.11. One request, one reply; either may be lost, then the request is repeated. A reply is not
//! kept: a repeated request after it is asked of the program again.
//!
//! States: `Asked` SIDR_REQ is out · `Asking` the program must answer a peer's request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_wire::cm::{SidrRep, SidrReq, SidrStatus};

use super::config::{CmConfig, MAX_SIDR, SIDR_REP_PRIVATE_DATA, SIDR_REQ_PRIVATE_DATA};
use super::events::{CmCallError, CmEvent};
use super::message::{self, check_private};
use super::types::{CommId, Failure, ListenerId, SidrAnswer, SidrParams};
use super::{Cm, MadPath};
use crate::mad::MAD_LEN;

/// An exchange.
#[derive(Debug)]
struct Sidr {
    path: MadPath,
    side: Side,
    deadline: Instant,
}

#[derive(Debug)]
enum Side {
    /// Ours: the request, to send again.
    Asked { mad: Box<[u8; MAD_LEN]>, interval: Duration, retries: u8, retries_left: u8 },
    /// The peer's.
    Asking { remote_id: u32, tid: u64, service_id: u64, listener: ListenerId },
}

/// All exchanges.
#[derive(Debug, Default)]
pub(super) struct Sidrs {
    by_id: BTreeMap<CommId, Sidr>,
    by_remote: BTreeMap<(IpAddr, u32), CommId>,
    timers: BTreeSet<(Instant, CommId)>,
}

impl Sidrs {
    pub fn contains(&self, id: CommId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub fn next_timer(&self) -> Option<(Instant, CommId)> {
        self.timers.first().copied()
    }

    pub fn footprint(&self) -> usize {
        self.by_id.len() + self.by_remote.len() + self.timers.len()
    }

    /// How often a request of ours has been sent, and how long after one another.
    pub fn unanswered(&self, id: CommId) -> Option<(u8, Duration)> {
        match self.by_id.get(&id)?.side {
            Side::Asked { interval, retries, retries_left, .. } => {
                Some(((retries - retries_left).saturating_add(1), interval))
            }
            Side::Asking { .. } => None,
        }
    }

    fn insert(&mut self, id: CommId, sidr: Sidr) {
        self.timers.insert((sidr.deadline, id));
        if let Side::Asking { remote_id, .. } = sidr.side {
            self.by_remote.insert((sidr.path.remote, remote_id), id);
        }
        self.by_id.insert(id, sidr);
    }

    fn remove(&mut self, id: CommId) -> Option<Sidr> {
        let sidr = self.by_id.remove(&id)?;
        self.timers.remove(&(sidr.deadline, id));
        if let Side::Asking { remote_id, .. } = sidr.side {
            self.by_remote.remove(&(sidr.path.remote, remote_id));
        }
        Some(sidr)
    }
}

impl Cm {
    /// Sends SIDR_REQ. Ends in exactly one of [`CmEvent::SidrReply`] and [`CmEvent::SidrFailed`].
    pub fn sidr_request(&mut self, now: Instant, p: &SidrParams) -> Result<CommId, CmCallError> {
        check_private("SIDR_REQ", SIDR_REQ_PRIVATE_DATA, &p.private_data)?;
        if self.sidrs.by_id.len() >= MAX_SIDR {
            return Err(CmCallError::Full { what: "SIDR exchanges", limit: MAX_SIDR });
        }
        let id = self.fresh_id();
        let mad = message::sidr_req(id, self.tid(id), p);
        let interval = CmConfig::retry_interval(self.config.response_timeout, 0);
        let retries = self.config.max_retries.min(15);
        self.send(p.path, mad.clone());
        let side = Side::Asked { mad, interval, retries, retries_left: retries };
        self.sidrs.insert(id, Sidr { path: p.path, side, deadline: now + interval });
        Ok(id)
    }

    /// Answers a peer's SIDR request.
    pub fn sidr_reply(&mut self, id: CommId, answer: &SidrAnswer) -> Result<(), CmCallError> {
        check_private("SIDR_REP", SIDR_REP_PRIVATE_DATA, &answer.private_data)?;
        let asking = matches!(self.sidrs.by_id.get(&id), Some(Sidr { side: Side::Asking { .. }, .. }));
        if !asking {
            return Err(CmCallError::UnknownId(id));
        }
        self.answer_sidr(id, answer);
        Ok(())
    }

    fn answer_sidr(&mut self, id: CommId, answer: &SidrAnswer) {
        let Some(sidr) = self.sidrs.remove(id) else { return };
        if let Side::Asking { remote_id, tid, service_id, listener } = sidr.side {
            self.listeners.free_place(listener);
            self.send(sidr.path, message::sidr_rep(tid, remote_id, service_id, answer));
        }
    }

    pub(super) fn on_sidr_req(&mut self, now: Instant, from: MadPath, tid: u64, req: &SidrReq) {
        if self.sidrs.by_remote.contains_key(&(from.remote, req.request_id)) {
            self.counters.duplicates += 1;
            return;
        }
        let Some(listener) = self.listeners.find(req.service_id, from.local) else {
            self.counters.no_listener += 1;
            return self.refuse_sidr(from, tid, req, SidrStatus::UnsupportedServiceId);
        };
        if self.sidrs.by_id.len() >= MAX_SIDR {
            self.counters.table_full += 1;
            return self.refuse_sidr(from, tid, req, SidrStatus::NoQp);
        }
        if !self.listeners.take_place(listener) {
            self.counters.backlog_full += 1;
            return self.refuse_sidr(from, tid, req, SidrStatus::NoQp);
        }
        let id = self.fresh_id();
        let side = Side::Asking { remote_id: req.request_id, tid, service_id: req.service_id, listener };
        // The peer's patience is not in the message: assume our own.
        let interval = CmConfig::retry_interval(self.config.response_timeout, 0);
        let deadline = now + interval * (u32::from(self.config.max_retries.min(15)) + 1);
        self.sidrs.insert(id, Sidr { path: from, side, deadline });
        let private_data = req.private_data.to_vec();
        self.events.push_back(CmEvent::SidrRequest { id, listener, path: from, private_data });
    }

    fn refuse_sidr(&mut self, from: MadPath, tid: u64, req: &SidrReq, status: SidrStatus) {
        self.counters.rejected += 1;
        self.send(from, message::sidr_rep(tid, req.request_id, req.service_id, &SidrAnswer::refusal(status)));
    }

    pub(super) fn on_sidr_rep(&mut self, from: MadPath, rep: &SidrRep) {
        let id = CommId(rep.request_id);
        match self.sidrs.by_id.get(&id) {
            Some(Sidr { side: Side::Asked { .. }, path, .. })
                if (path.remote, path.local) == (from.remote, from.local) =>
            {
                self.sidrs.remove(id);
                let answer = SidrAnswer {
                    status: rep.status,
                    qpn: rep.qpn,
                    qkey: rep.qkey,
                    private_data: rep.private_data.to_vec(),
                };
                self.events.push_back(CmEvent::SidrReply { id, answer: Box::new(answer) });
            }
            Some(Sidr { side: Side::Asked { .. }, .. }) => self.counters.wrong_source += 1,
            _ => self.counters.stray += 1,
        }
    }

    pub(super) fn on_sidr_timer(&mut self, now: Instant, id: CommId) {
        let Some(mut sidr) = self.sidrs.remove(id) else { return };
        let failure = match &mut sidr.side {
            Side::Asked { mad, interval, retries_left, .. } if *retries_left > 0 => {
                *retries_left -= 1;
                sidr.deadline = now + *interval;
                self.counters.retransmitted += 1;
                self.send(sidr.path, mad.clone());
                return self.sidrs.insert(id, sidr);
            }
            Side::Asked { retries, .. } => Cm::sidr_timed_out(*retries),
            Side::Asking { listener, .. } => {
                self.listeners.free_place(*listener);
                Failure::NotAnswered
            }
        };
        self.counters.timed_out += 1;
        self.events.push_back(CmEvent::SidrFailed { id, failure });
    }

    /// The program lets go of an exchange.
    pub(super) fn sidr_abandon(&mut self, id: CommId) {
        self.answer_sidr(id, &SidrAnswer::refusal(SidrStatus::Rejected));
    }

    pub(super) fn sidr_unreachable(&mut self, remote: IpAddr) {
        let asked = |sidr: &Sidr| sidr.path.remote == remote && matches!(sidr.side, Side::Asked { .. });
        let ids: Vec<CommId> = self.sidrs.by_id.iter().filter(|(_, s)| asked(s)).map(|(id, _)| *id).collect();
        for id in ids {
            self.sidrs.remove(id);
            self.events.push_back(CmEvent::SidrFailed { id, failure: Failure::Unreachable });
        }
    }
}
