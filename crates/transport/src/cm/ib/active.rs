//! The active side: REQ out, REP in, RTU out.
//!
//! Read first: IBTA volume 1 §12.9.7.1 and §12.9.10 (what of REQ and REP goes into which queue pair attribute).

use std::time::Instant;

use everywire_wire::cm::{RejReason, Rep};
use everywire_wire::{Gid, Psn, Qpn};

use super::config::{
    MAX_MRAS, MAX_PEER_ACK_TIMEOUT, MAX_SERVICE_TIMEOUT, REQ_PRIVATE_DATA, RTU_PRIVATE_DATA, ack_timeout,
    cm_time,
};
use super::events::{CmCallError, CmEvent};
use super::message::{self, Rejected, check_private};
use super::state::{Act, Input, State, step};
use super::types::{CommId, ConnectParams, Failure, QpParams, Reply};
use super::{Cm, MadPath};

impl Cm {
    /// Sends REQ. Ends in exactly one of [`CmEvent::Reply`], [`CmEvent::Rejected`] and [`CmEvent::Failed`].
    pub fn connect(&mut self, now: Instant, p: &ConnectParams) -> Result<CommId, CmCallError> {
        check_private("REQ", REQ_PRIVATE_DATA, &p.private_data)?;
        if p.qpn.get() < 2 || p.qpn == Qpn::MULTICAST {
            return Err(CmCallError::InvalidQpn(p.qpn));
        }
        if self.live() >= self.config.max_connections {
            return Err(CmCallError::Full { what: "connections", limit: self.config.max_connections });
        }
        let id = self.fresh_id();
        let rq_psn = self.fresh_psn();
        let [local, remote] = p.gids.map_or([p.path.local, p.path.remote], |gids| gids.map(Gid::to_ip));
        let params = QpParams {
            path: MadPath { local, remote, ..p.path },
            dest_qpn: Qpn::new(0),
            sq_psn: Psn::new(0),
            rq_psn,
            path_mtu: p.path_mtu,
            pkey: p.pkey,
            max_rd_atomic: p.initiator_depth,
            max_dest_rd_atomic: p.responder_resources,
            ack_timeout: self.config.request_ack_timeout(p),
            retry_count: p.retry_count.min(7),
            rnr_retry_count: p.rnr_retry_count.min(7),
            flow_label: p.flow_label & 0xf_ffff,
            traffic_class: p.traffic_class,
            hop_limit: p.hop_limit,
        };
        let tid = self.tid(id);
        let mut conn = self.new_conn(id, State::ReqSent, params, tid);
        conn.path = p.path;
        conn.qpn = Some(p.qpn);
        self.conns.insert(conn);
        let mad = message::req(&self.config, id, tid, p, rq_psn);
        self.send_and_wait(now, id, mad);
        Ok(id)
    }

    /// Sends RTU: the queue pair is in RTS.
    pub fn establish(&mut self, now: Instant, id: CommId, private_data: &[u8]) -> Result<(), CmCallError> {
        check_private("RTU", RTU_PRIVATE_DATA, private_data)?;
        let step = self.allowed(id, Input::Establish, "establish")?;
        self.conns.disarm(id);
        if let Some(conn) = self.conns.get_mut(id) {
            let mad = message::rtu(conn, private_data);
            // Kept: a repeated REP is answered with the same RTU (IBTA §12.9.7.1).
            conn.last = Some(mad.clone());
            let path = conn.path;
            self.send(path, mad);
        }
        self.settle(now, id, step.next);
        Ok(())
    }

    /// REP, or a repetition of it.
    pub(super) fn on_rep(&mut self, now: Instant, from: MadPath, tid: u64, rep: &Rep) {
        let id = CommId(rep.remote_comm_id);
        let Some(conn) = self.conns.get(id) else {
            // The attempt is over; a peer that waits for RTU must learn it.
            self.counters.stray += 1;
            let answer =
                Rejected { remote_id: rep.local_comm_id, local_id: rep.remote_comm_id, of: message::OF_REP };
            return self.send(from, message::stateless_rej(tid, answer, RejReason::InvalidCommId, &[]));
        };
        if !Cm::same_peer(conn, &from) {
            self.counters.wrong_source += 1;
            return;
        }
        let step = step(conn.state, Input::Rep);
        let same = conn.remote_id.is_none_or(|known| known == rep.local_comm_id);
        match step.act {
            Act::TakeReply => self.take_reply(now, id, rep),
            Act::Repeat if same => {
                self.counters.duplicates += 1;
                self.repeat(id);
            }
            Act::AnswerLateRep => {
                let answer = Rejected { remote_id: rep.local_comm_id, local_id: id.0, of: message::OF_REP };
                self.send(from, message::stateless_rej(tid, answer, RejReason::InvalidCommId, &[]));
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn take_reply(&mut self, now: Instant, id: CommId, rep: &Rep) {
        if rep.local_qpn.get() < 2 || rep.local_qpn == Qpn::MULTICAST {
            self.counters.malformed += 1;
            return;
        }
        let Some(conn) = self.conns.get(id) else { return };
        // The peer connects this queue pair to us anew: what it was connected to before is over.
        if let Some(old) = self.conns.by_remote_qpn(conn.path.remote, rep.local_qpn)
            && old != id
        {
            self.went_stale(now, old);
        }
        self.conns.learn_remote(id, rep.local_comm_id, rep.local_qpn);
        let limit = self.config.max_responder_resources;
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.last = None;
        conn.mras = 0;
        let p = &mut conn.params;
        // IBTA §12.7.31: the Starting PSN is where its receiver begins to transmit.
        p.sq_psn = rep.starting_psn;
        p.max_rd_atomic = p.max_rd_atomic.min(rep.responder_resources);
        // A careless peer takes more than was offered: serve it as far as the adapter can.
        p.max_dest_rd_atomic = p.max_dest_rd_atomic.max(rep.initiator_depth.min(limit));
        p.rnr_retry_count = rep.rnr_retry_count;
        // The peer's ACK delay must not make ours endless either; what the program asked for stays.
        let most = p.ack_timeout.max(MAX_PEER_ACK_TIMEOUT);
        p.ack_timeout = ack_timeout(rep.target_ack_delay, p.ack_timeout.saturating_sub(1)).min(most);
        let reply = Reply {
            id,
            params: *p,
            peer_guid: rep.local_ca_guid,
            flow_control: rep.end_to_end_flow_control,
            srq: rep.srq,
            private_data: rep.private_data.to_vec(),
        };
        self.wait_for_program(now, id);
        self.settle(now, id, Some(State::RepReceived));
        self.tell(id, CmEvent::Reply(Box::new(reply)));
    }

    /// MRA: the peer needs more time (IBTA §12.9.8.6).
    pub(super) fn wait_longer(&mut self, now: Instant, id: CommId, service_timeout: u8, next: Option<State>) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.mras >= MAX_MRAS {
            self.counters.unexpected += 1;
            return;
        }
        conn.mras += 1;
        let at = now + cm_time(service_timeout.min(MAX_SERVICE_TIMEOUT)) + conn.interval;
        self.conns.arm(id, at);
        self.settle(now, id, next);
    }

    /// The last retransmission was not answered.
    pub(super) fn give_up(&mut self, id: CommId) {
        let Some(conn) = self.conns.get(id) else { return };
        let failure = Failure::TimedOut { state: conn.state, tries: conn.retries.saturating_add(1) };
        self.send_timeout_rej(id);
        self.counters.timed_out += 1;
        self.tell(id, CmEvent::Failed { id, failure });
    }

    /// REJ with reason 4 and our GUID, so that the peer finds its half without knowing its id from us.
    pub(super) fn send_timeout_rej(&mut self, id: CommId) {
        if let Some(conn) = self.conns.get(id) {
            let (path, mad) = (conn.path, message::rej_timeout(conn, self.config.node_guid));
            self.send(path, mad);
        }
    }
}
