//! The messages as this engine writes and reads them: fields from records and parameters, nothing of states.
//!
//! Read first: IBTA volume 1 §12.6. Fields that the standard leaves to the sender are as Linux's rdma_cm writes them on RoCE:
//! permissive LIDs and rate 0 (on
//! InfiniBand those of the path), GIDs from the IP addresses, no alternate path. Private data are padded with zeros.

use everywire_wire::cm::{
    self, Apr, AprStatus, CLASS_VERSION, CmMad, CmMessage, Drep, Dreq, FailoverStatus, Lap, Mra, Rej,
    RejReason, Rep, Req, ReqPath, Rtu, SidrRep, SidrReq, TransportService,
};
use everywire_wire::mad::MadHeader;
use everywire_wire::{Gid, Guid, Lid, Psn};

use super::config::CmConfig;
use super::conn::Conn;
use super::events::CmCallError;
use super::state::State;
use super::types::{AcceptParams, CommId, ConnectParams, SidrAnswer, SidrParams, Transport};
use crate::ib::PathLink;
use crate::mad::MAD_LEN;

/// A MAD on its way out.
pub(super) type OutMad = Box<[u8; MAD_LEN]>;

pub(super) use cm::about::{OTHER as OF_OTHER, REP as OF_REP, REQ as OF_REQ};

/// Why a MAD is not a message for this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotForUs {
    /// Another class, version, or a method that is no CM message.
    Foreign,
    /// A CM message that does not exist.
    Malformed,
}

/// Takes a MAD apart.
pub(super) fn parse(mad: &[u8; MAD_LEN]) -> Result<CmMad, NotForUs> {
    let header = MadHeader::parse(mad).map_err(|_| NotForUs::Malformed)?;
    let send = everywire_wire::mad::method::SEND;
    let class = everywire_wire::mad::class::COM_MGT;
    if header.base_version != 1 || header.mgmt_class != class || header.method != send {
        return Err(NotForUs::Foreign);
    }
    let parsed = CmMad::parse(mad).map_err(|_| NotForUs::Malformed)?;
    // Only a REQ of another class version has an answer that its sender can understand.
    if header.class_version != CLASS_VERSION && !matches!(parsed.message, CmMessage::Req(_)) {
        return Err(NotForUs::Foreign);
    }
    Ok(parsed)
}

fn mad(tid: u64, message: impl Into<CmMessage>) -> OutMad {
    Box::new(CmMad::new(tid, message).emit())
}

/// Refuses private data that do not fit; the only length a program can get wrong.
pub(super) fn check_private(message: &'static str, limit: usize, data: &[u8]) -> Result<(), CmCallError> {
    if data.len() > limit {
        return Err(CmCallError::PrivateDataTooLong { message, limit, given: data.len() });
    }
    Ok(())
}

/// `data` in a field of N bytes; callers have checked the length.
fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    let n = data.len().min(N);
    field[..n].copy_from_slice(&data[..n]);
    field
}

/// REQ (IBTA §12.6.5).
pub(super) fn req(config: &CmConfig, id: CommId, tid: u64, p: &ConnectParams, psn: Psn) -> OutMad {
    let [local_gid, remote_gid] = p.gids.unwrap_or([p.path.local, p.path.remote].map(Gid::from));
    let on_ethernet =
        ReqPath { local_lid: Lid::PERMISSIVE, remote_lid: Lid::PERMISSIVE, ..ReqPath::default() };
    let by_link = match p.path.link {
        PathLink::Udp | PathLink::Grh => on_ethernet,
        // Across a router neither end knows the LIDs of the other's subnet; the packet has those that count (as Linux).
        PathLink::Lrh(route) if route.grh => {
            ReqPath { packet_rate: route.static_rate, sl: route.sl, subnet_local: false, ..on_ethernet }
        }
        PathLink::Lrh(route) => ReqPath {
            local_lid: route.slid,
            remote_lid: route.dlid,
            packet_rate: route.static_rate,
            sl: route.sl,
            subnet_local: true,
            ..ReqPath::default()
        },
    };
    let primary = ReqPath {
        local_gid,
        remote_gid,
        flow_label: p.flow_label & 0xf_ffff,
        traffic_class: p.traffic_class,
        hop_limit: p.hop_limit,
        local_ack_timeout: config.request_ack_timeout(p),
        ..by_link
    };
    let message = Req {
        local_comm_id: id.0,
        service_id: p.service_id,
        local_ca_guid: config.node_guid,
        local_qpn: p.qpn,
        responder_resources: p.responder_resources,
        initiator_depth: p.initiator_depth,
        remote_response_timeout: config.response_timeout,
        transport_service: match p.transport {
            Transport::Rc => TransportService::Rc,
            Transport::Uc => TransportService::Uc,
        },
        end_to_end_flow_control: p.flow_control,
        starting_psn: psn,
        local_response_timeout: config.response_timeout,
        retry_count: p.retry_count.min(7),
        pkey: p.pkey,
        path_mtu: p.path_mtu.code(),
        rnr_retry_count: p.rnr_retry_count.min(7),
        max_cm_retries: config.max_retries.min(15),
        srq: p.srq,
        primary,
        private_data: padded(&p.private_data),
        ..Req::default()
    };
    mad(tid, message)
}

/// REP (IBTA §12.6.8). `conn` holds what was negotiated.
pub(super) fn rep(config: &CmConfig, conn: &Conn, p: &AcceptParams) -> OutMad {
    let alternate = conn.req.is_some_and(|req| req.alternate_path);
    let message = Rep {
        local_comm_id: conn.id.0,
        remote_comm_id: conn.remote_id.unwrap_or(0),
        local_qpn: p.qpn,
        starting_psn: conn.params.rq_psn,
        responder_resources: conn.params.max_dest_rd_atomic,
        initiator_depth: conn.params.max_rd_atomic,
        target_ack_delay: config.ack_delay,
        failover_accepted: if alternate { FailoverStatus::NotSupported } else { FailoverStatus::Accepted },
        end_to_end_flow_control: p.flow_control,
        rnr_retry_count: p.rnr_retry_count.min(7),
        srq: p.srq,
        local_ca_guid: config.node_guid,
        private_data: padded(&p.private_data),
        ..Rep::default()
    };
    mad(conn.tid, message)
}

/// RTU (IBTA §12.6.9).
pub(super) fn rtu(conn: &Conn, private_data: &[u8]) -> OutMad {
    let message = Rtu {
        local_comm_id: conn.id.0,
        remote_comm_id: conn.remote_id.unwrap_or(0),
        private_data: padded(private_data),
    };
    mad(conn.tid, message)
}

/// MRA (IBTA §12.6.6), of whatever the connection's state says was received.
pub(super) fn mra(conn: &Conn, service_timeout: u8) -> OutMad {
    let message_mraed = match conn.state {
        State::ReqReceived | State::ReqMraSent => OF_REQ,
        _ => OF_REP,
    };
    let message = Mra {
        local_comm_id: conn.id.0,
        remote_comm_id: conn.remote_id.unwrap_or(0),
        message_mraed,
        service_timeout,
        ..Mra::default()
    };
    mad(conn.tid, message)
}

/// What a REJ says.
#[derive(Clone, Copy, Debug)]
pub struct Reject<'a> {
    /// The reason.
    pub reason: RejReason,
    /// Additional reject information, at most 72 bytes; its meaning depends on the reason.
    pub info: &'a [u8],
    /// At most 148 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Reject<'a> {
    /// The program's own refusal, reason 28, with its private data.
    pub fn consumer(private_data: &'a [u8]) -> Reject<'a> {
        Reject { reason: RejReason::ConsumerReject, info: &[], private_data }
    }

    /// One of the standard's reasons without more words.
    pub fn because(reason: RejReason) -> Reject<'static> {
        Reject { reason, info: &[], private_data: &[] }
    }
}

fn rej_message(reject: &Reject<'_>) -> Rej {
    Rej {
        reason: reject.reason,
        reject_info_length: reject.info.len().min(super::REJ_INFO) as u8,
        ari: padded(reject.info),
        private_data: padded(reject.private_data),
        ..Rej::default()
    }
}

/// REJ (IBTA §12.6.7) for a connection with a record.
pub(super) fn rej(conn: &Conn, reject: &Reject<'_>) -> OutMad {
    // As Linux: the answer to a REQ that was not MRAed gives no id of ours, as it ends here.
    let (local_comm_id, message_rejected) = match conn.state {
        State::ReqReceived => (0, OF_REQ),
        State::ReqMraSent => (conn.id.0, OF_REQ),
        State::RepReceived | State::RepMraSent => (conn.id.0, OF_REP),
        _ => (conn.id.0, OF_OTHER),
    };
    let message = Rej {
        local_comm_id,
        remote_comm_id: conn.remote_id.unwrap_or(0),
        message_rejected,
        ..rej_message(reject)
    };
    mad(conn.tid, message)
}

/// REJ with reason 4 and our GUID, for an answer that never came.
pub(super) fn rej_timeout(conn: &Conn, guid: Guid) -> OutMad {
    rej(conn, &Reject { reason: RejReason::Timeout, info: &guid.0.to_be_bytes(), private_data: &[] })
}

/// The additional information of a REJ, as long as it says and the field allows.
pub(super) fn rej_info(rej: &Rej) -> &[u8] {
    &rej.ari[..usize::from(rej.reject_info_length).min(rej.ari.len())]
}

/// The message a REJ without a record answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejected {
    /// The sender's id.
    pub remote_id: u32,
    /// Our id as the message named it; 0 for a REQ.
    pub local_id: u32,
    /// [`OF_REQ`] or [`OF_REP`].
    pub of: u8,
}

/// REJ for a message that has no record.
pub(super) fn stateless_rej(tid: u64, to: Rejected, reason: RejReason, info: &[u8]) -> OutMad {
    let reject = Reject { reason, info, private_data: &[] };
    let message = Rej {
        local_comm_id: to.local_id,
        remote_comm_id: to.remote_id,
        message_rejected: to.of,
        ..rej_message(&reject)
    };
    mad(tid, message)
}

/// DREQ (IBTA §12.6.10); `None` before the peer's id is known.
pub(super) fn dreq(conn: &Conn, private_data: &[u8]) -> Option<OutMad> {
    let message = Dreq {
        local_comm_id: conn.id.0,
        remote_comm_id: conn.remote_id?,
        remote_qpn: conn.params.dest_qpn,
        private_data: padded(private_data),
        ..Dreq::default()
    };
    Some(mad(conn.own_tid, message))
}

/// DREP (IBTA §12.6.11): the ids come from the DREQ, so it needs no record.
pub(super) fn drep(tid: u64, dreq: &Dreq) -> OutMad {
    let message =
        Drep { local_comm_id: dreq.remote_comm_id, remote_comm_id: dreq.local_comm_id, ..Drep::default() };
    mad(tid, message)
}

/// APR (IBTA §12.8.2).
pub(super) fn apr(tid: u64, lap: &Lap, status: AprStatus) -> OutMad {
    let message = Apr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        status,
        ..Apr::default()
    };
    mad(tid, message)
}

/// SIDR_REQ (IBTA §12.11.1).
pub(super) fn sidr_req(id: CommId, tid: u64, p: &SidrParams) -> OutMad {
    let message = SidrReq {
        request_id: id.0,
        pkey: p.pkey,
        service_id: p.service_id,
        private_data: padded(&p.private_data),
        ..SidrReq::default()
    };
    mad(tid, message)
}

/// SIDR_REP (IBTA §12.11.2).
pub(super) fn sidr_rep(tid: u64, request_id: u32, service_id: u64, answer: &SidrAnswer) -> OutMad {
    let message = SidrRep {
        request_id,
        status: answer.status,
        qpn: answer.qpn,
        service_id,
        qkey: answer.qkey,
        private_data: padded(&answer.private_data),
        ..SidrRep::default()
    };
    mad(tid, message)
}
