//! The passive side: REQ in, the program's verdict, REP or REJ out, RTU in.
//!
//! Read first: IBTA volume 1 §12.9.7.2, §12.9.8.3 (repeated and stale requests) and table 110 (reject reasons).

use std::time::Instant;

use everywire_wire::cm::{RejReason, Req, ReqPath, Rtu, TransportService};
use everywire_wire::{Gid, Lid, Lrh, Mtu, Qpn};

use super::config::{CmConfig, MAX_SERVICE_TIMEOUT, REJ_INFO, REJ_PRIVATE_DATA, REP_PRIVATE_DATA, cm_time};
use super::conn::ReqIdentity;
use super::events::{CmCallError, CmEvent};
use super::message::{self, Reject, Rejected, check_private};
use super::state::{Act, Input, State, step};
use super::types::{
    AcceptParams, CommId, DisconnectCause, EstablishedBy, Failure, ListenerId, QpParams, Request, Transport,
};
use super::{Cm, MadPath};
use crate::ib::{LocalRoute, PathLink};

impl Cm {
    /// What [`Cm::accept`] with `p` will negotiate: bring the queue pair to RTR (better RTS) with it, then accept.
    pub fn accept_params(&mut self, id: CommId, p: &AcceptParams) -> Result<QpParams, CmCallError> {
        self.allowed(id, Input::Accept, "accept")?;
        let limit = self.config.max_responder_resources;
        let conn = self.conns.get(id).ok_or(CmCallError::UnknownId(id))?;
        let mut params = conn.params;
        params.max_rd_atomic = p.initiator_depth.min(params.max_rd_atomic);
        params.max_dest_rd_atomic = p.responder_resources.min(params.max_dest_rd_atomic).min(limit);
        Ok(params)
    }

    /// Accepts a request: sends REP. The queue pair must be in RTR or RTS already.
    ///
    /// Ends in exactly one of [`CmEvent::Established`], [`CmEvent::Rejected`], [`CmEvent::Failed`] and
    /// [`CmEvent::Disconnected`].
    pub fn accept(&mut self, now: Instant, id: CommId, p: &AcceptParams) -> Result<QpParams, CmCallError> {
        check_private("REP", REP_PRIVATE_DATA, &p.private_data)?;
        if p.qpn.get() < 2 || p.qpn == Qpn::MULTICAST {
            return Err(CmCallError::InvalidQpn(p.qpn));
        }
        let step = self.allowed(id, Input::Accept, "accept")?;
        let params = self.accept_params(id, p)?;
        let conn = self.conns.get_mut(id).ok_or(CmCallError::UnknownId(id))?;
        conn.qpn = Some(p.qpn);
        conn.params = params;
        let mad = message::rep(&self.config, conn, p);
        self.send_and_wait(now, id, mad);
        self.settle(now, id, step.next);
        Ok(params)
    }

    /// Rejects a request (passive) or a reply (active).
    pub fn reject(&mut self, now: Instant, id: CommId, reject: &Reject<'_>) -> Result<(), CmCallError> {
        check_private("REJ", REJ_PRIVATE_DATA, reject.private_data)?;
        check_private("REJ's additional information", REJ_INFO, reject.info)?;
        let step = self.allowed(id, Input::Reject, "reject")?;
        self.send_rej(id, reject);
        self.settle(now, id, step.next);
        Ok(())
    }

    /// Asks the peer for `service_timeout` (4.096 µs × 2^n, at most 24) more time to answer its REQ or REP.
    pub fn ask_for_time(&mut self, now: Instant, id: CommId, service_timeout: u8) -> Result<(), CmCallError> {
        let step = self.allowed(id, Input::AskForTime, "ask for time")?;
        self.send_mra(now, id, service_timeout, step.next);
        Ok(())
    }

    /// A packet arrived on the connection's queue pair: it is established, whatever became of the RTU.
    pub fn data_arrived(&mut self, now: Instant, id: CommId) {
        let Some(state) = self.state(id) else { return };
        let step = step(state, Input::Data);
        if step.act == Act::Established {
            self.established(now, id, EstablishedBy::Data, Vec::new(), step.next);
        }
    }

    pub(super) fn established(
        &mut self,
        now: Instant,
        id: CommId,
        by: EstablishedBy,
        private_data: Vec<u8>,
        next: Option<State>,
    ) {
        self.conns.disarm(id);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.last = None;
        }
        self.settle(now, id, next);
        self.tell(id, CmEvent::Established { id, by, private_data });
    }

    pub(super) fn on_rtu(&mut self, now: Instant, from: MadPath, rtu: &Rtu) {
        let Some(id) = self.find_pair(&from, rtu.remote_comm_id, rtu.local_comm_id) else { return };
        let Some(state) = self.state(id) else { return };
        let step = step(state, Input::Rtu);
        match step.act {
            Act::Established => {
                self.established(now, id, EstablishedBy::Rtu, rtu.private_data.to_vec(), step.next);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    pub(super) fn send_rej(&mut self, id: CommId, reject: &Reject<'_>) {
        if let Some(conn) = self.conns.get(id) {
            let (path, mad) = (conn.path, message::rej(conn, reject));
            self.counters.rejected += 1;
            self.send(path, mad);
        }
    }

    pub(super) fn send_mra(&mut self, now: Instant, id: CommId, service_timeout: u8, next: Option<State>) {
        let service_timeout = service_timeout.min(MAX_SERVICE_TIMEOUT);
        let Some(conn) = self.conns.get_mut(id) else { return };
        let mad = message::mra(conn, service_timeout);
        conn.last = Some(mad.clone());
        let path = conn.path;
        let at = now + cm_time(service_timeout) + conn.interval * (u32::from(conn.retries) + 1);
        self.send(path, mad);
        self.conns.arm(id, at);
        self.settle(now, id, next);
    }

    /// The program was too slow: the peer must not wait any longer either.
    pub(super) fn too_late(&mut self, id: CommId) {
        self.send_rej(id, &Reject::consumer(&[]));
        self.counters.timed_out += 1;
        self.tell(id, CmEvent::Failed { id, failure: Failure::NotAnswered });
    }

    pub(super) fn on_req(&mut self, now: Instant, from: MadPath, tid: u64, req: &Req) {
        let identity = ReqIdentity {
            tid,
            qpn: req.local_qpn,
            psn: req.starting_psn,
            alternate_path: !req.alternate.local_gid.is_zero(),
        };
        if let Some(id) = self.conns.by_remote_id(from.remote, req.local_comm_id) {
            return self.on_known_req(now, from, id, identity, req);
        }
        if let Some(old) = self.conns.by_remote_qpn(from.remote, req.local_qpn) {
            // IBTA §12.9.8.3.1: the peer's queue pair cannot have two connections; the old one is over.
            self.counters.stale += 1;
            self.went_stale(now, old);
            return self.refuse(from, tid, req, RejReason::StaleConnection, &[]);
        }
        match self.admit(&from, req) {
            Ok(admitted) => self.new_request(now, from, identity, req, admitted),
            Err((reason, info)) => self.refuse(from, tid, req, reason, &info),
        }
    }

    /// A REQ whose communication id is known: the same one again, or a new life of the peer.
    fn on_known_req(&mut self, now: Instant, from: MadPath, id: CommId, identity: ReqIdentity, req: &Req) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.req != Some(identity) {
            if conn.state == State::Timewait {
                // The peer has started over and came to the same id: its old connection cannot come back.
                self.conns.forget_remote_id(id);
                return self.on_req(now, from, identity.tid, req);
            }
            if matches!(conn.state, State::Established | State::DreqSent) {
                self.counters.stale += 1;
                self.went_stale(now, id);
                return self.refuse(from, identity.tid, req, RejReason::StaleConnection, &[]);
            }
            return self.refuse(from, identity.tid, req, RejReason::DuplicateLocalCommId, &[]);
        }
        self.counters.duplicates += 1;
        let step = step(conn.state, Input::DuplicateReq);
        match step.act {
            Act::SendMra if conn.state == State::ReqMraSent => self.repeat(id),
            Act::SendMra => self.send_mra(now, id, self.config.service_timeout, step.next),
            Act::Repeat => self.repeat(id),
            Act::AnswerStale => self.refuse(from, identity.tid, req, RejReason::StaleConnection, &[]),
            _ => {}
        }
    }

    /// Whether a new REQ can be offered to a program at all; else the reason of table 110 and its information.
    fn admit(&mut self, from: &MadPath, req: &Req) -> Result<Admitted, (RejReason, Vec<u8>)> {
        let refuse = |reason| Err((reason, Vec::new()));
        let transport = match req.transport_service {
            TransportService::Rc => Transport::Rc,
            TransportService::Uc => Transport::Uc,
            _ => return refuse(RejReason::InvalidTransportService),
        };
        if req.rdc_exists {
            return refuse(RejReason::RdcDoesNotExist);
        }
        let Some(path_mtu) = Mtu::from_code(req.path_mtu) else {
            return refuse(RejReason::InvalidPathMtu);
        };
        if path_mtu > self.config.max_mtu {
            // IBTA table 110: the information is the largest MTU that would do.
            return Err((RejReason::InvalidPathMtu, vec![self.config.max_mtu.code()]));
        }
        if req.local_qpn.get() < 2 || req.local_qpn == Qpn::MULTICAST {
            self.counters.malformed += 1;
            return refuse(RejReason::UnsupportedRequest);
        }
        if let Err(refused) = self.check_ends(from, req) {
            self.counters.wrong_gid += 1;
            return Err(refused);
        }
        let Some(listener) = self.listeners.find(req.service_id, from.local) else {
            self.counters.no_listener += 1;
            return refuse(RejReason::InvalidServiceId);
        };
        if self.live() >= self.config.max_connections {
            self.counters.table_full += 1;
            return refuse(RejReason::NoResources);
        }
        if !self.listeners.take_place(listener) {
            self.counters.backlog_full += 1;
            return refuse(RejReason::NoResources);
        }
        Ok(Admitted { listener, transport, path_mtu })
    }

    /// Whether the path in a REQ is between the ends that its packet came from and went to.
    fn check_ends(&self, from: &MadPath, req: &Req) -> Result<(), (RejReason, Vec<u8>)> {
        let routed = is_routed(&req.primary);
        if let PathLink::Lrh(route) = from.link
            && !routed
        {
            // IBTA table 110: the information is the LID that would do.
            if req.primary.remote_lid != route.slid {
                return Err((RejReason::PrimaryLidRejected, route.slid.0.to_be_bytes().to_vec()));
            }
            if req.primary.local_lid != route.dlid {
                return Err((RejReason::UnsupportedRequest, Vec::new()));
            }
            return Ok(());
        }
        if from.link.is_infiniband() && from.link.lead_len() == Lrh::LEN {
            // A path by GIDs only, in a packet that has none.
            return Err((RejReason::UnsupportedRequest, Vec::new()));
        }
        let (local, remote) = (Gid::from(from.local), Gid::from(from.remote));
        if req.primary.remote_gid != local {
            return Err((RejReason::PrimaryGidRejected, local.0.to_vec()));
        }
        // Packets will come from and go to this address; it must be the one that asks.
        if req.primary.local_gid != remote {
            return Err((RejReason::UnsupportedRequest, Vec::new()));
        }
        Ok(())
    }

    fn new_request(
        &mut self,
        now: Instant,
        from: MadPath,
        identity: ReqIdentity,
        req: &Req,
        admitted: Admitted,
    ) {
        let Admitted { listener, transport, path_mtu } = admitted;
        let id = self.fresh_id();
        let mut params = request_params(from, req, path_mtu);
        params.ack_timeout = self.config.peer_ack_timeout(params.ack_timeout);
        params.rq_psn = self.fresh_psn();
        let mut conn = self.new_conn(id, State::ReqReceived, params, identity.tid);
        conn.path = from;
        conn.req = Some(identity);
        conn.pending_on = Some(listener);
        conn.interval = CmConfig::retry_interval(req.local_response_timeout, params.ack_timeout);
        conn.retries = req.max_cm_retries.min(15);
        self.conns.insert(conn);
        self.conns.learn_remote(id, req.local_comm_id, req.local_qpn);
        self.wait_for_program(now, id);
        let request = Request {
            id,
            listener,
            path: from,
            service_id: req.service_id,
            transport,
            peer_guid: req.local_ca_guid,
            peer_qpn: req.local_qpn,
            path_mtu,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            private_data: req.private_data.to_vec(),
        };
        self.tell(id, CmEvent::Request(Box::new(request)));
    }

    /// Rejects a REQ that has no record here.
    pub(super) fn refuse(&mut self, from: MadPath, tid: u64, req: &Req, reason: RejReason, info: &[u8]) {
        self.counters.rejected += 1;
        let answer = Rejected { remote_id: req.local_comm_id, local_id: 0, of: message::OF_REQ };
        self.send(from, message::stateless_rej(tid, answer, reason, info));
    }

    /// A new REQ or REP shows that `id` is not connected at its peer any more.
    pub(super) fn went_stale(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.conns.get(id) else { return };
        let (state, path) = (conn.state, conn.path);
        let step = step(state, Input::Stale);
        if step.act != Act::WentStale {
            return;
        }
        if matches!(state, State::ReqReceived | State::ReqMraSent) {
            self.tell(id, CmEvent::Failed { id, failure: Failure::Stale });
        } else {
            if let Some(mad) = self.conns.get(id).and_then(|conn| message::dreq(conn, &[])) {
                self.send(path, mad);
            }
            self.tell_disconnected(id, DisconnectCause::Stale, Vec::new());
        }
        self.settle(now, id, step.next);
    }
}

/// A REQ that a program may be asked about.
struct Admitted {
    listener: ListenerId,
    transport: Transport,
    path_mtu: Mtu,
}

/// Whether a path leaves the subnet: then its LIDs mean nothing here, and Linux writes the permissive one.
fn is_routed(path: &ReqPath) -> bool {
    !path.subnet_local && path.local_lid == Lid::PERMISSIVE && path.remote_lid == Lid::PERMISSIVE
}

/// What a REQ says about the queue pair that will answer it (IBTA §12.9.10).
fn request_params(from: MadPath, req: &Req, path_mtu: Mtu) -> QpParams {
    let primary = &req.primary;
    let path = match from.link {
        PathLink::Udp | PathLink::Grh => from,
        // Back by the router that it came by.
        PathLink::Lrh(_) if is_routed(primary) => from,
        PathLink::Lrh(_) => MadPath {
            link: PathLink::Lrh(LocalRoute {
                slid: primary.remote_lid,
                dlid: primary.local_lid,
                sl: primary.sl,
                grh: !primary.subnet_local,
                static_rate: primary.packet_rate,
            }),
            local: primary.remote_gid.to_ip(),
            remote: primary.local_gid.to_ip(),
            ..from
        },
    };
    QpParams {
        path,
        dest_qpn: req.local_qpn,
        // IBTA §12.7.31: the Starting PSN is where its receiver begins to transmit.
        sq_psn: req.starting_psn,
        rq_psn: everywire_wire::Psn::new(0),
        path_mtu,
        pkey: req.pkey,
        max_rd_atomic: req.responder_resources,
        max_dest_rd_atomic: req.initiator_depth,
        ack_timeout: req.primary.local_ack_timeout,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        flow_label: req.primary.flow_label,
        traffic_class: req.primary.traffic_class,
        hop_limit: req.primary.hop_limit,
    }
}
