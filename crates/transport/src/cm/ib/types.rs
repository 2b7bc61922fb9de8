//! What goes into the connection manager's calls and comes out of its events.
//!
//! Read first: IBTA volume 1 §12.7 (parameters) and §12.9.10 (who sets which queue pair attribute from what). Values are from
//! this side's point of view: `initiator_depth` is what *our* queue pair may have outstanding. No behaviour here.

use std::fmt;
use std::net::IpAddr;

use everywire_wire::cm::{RejReason, SidrStatus};
use everywire_wire::{Gid, Guid, Mtu, PKey, Psn, QKey, Qpn};

use super::state::State;
use crate::mad::MadPath;

/// A connection, or a SIDR exchange: its local communication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A service somebody listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The transport service a REQ asks for (IBTA §12.7.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
}

/// Where and how to listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenParams {
    /// The service id; for rdma_cm the port space and the port.
    pub service_id: u64,
    /// The address it is offered on, or all of them.
    pub local: Option<IpAddr>,
    /// Requests that may wait for an answer, at most [`MAX_BACKLOG`](super::MAX_BACKLOG).
    pub backlog: usize,
}

/// An active connection attempt.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// From where to where.
    pub path: MadPath,
    /// Our GID and the peer's, where the path has LIDs; otherwise its addresses are the GIDs.
    pub gids: Option<[Gid; 2]>,
    /// The service id asked for.
    pub service_id: u64,
    /// The transport service.
    pub transport: Transport,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The partition.
    pub pkey: PKey,
    /// The path MTU both sides will use.
    pub path_mtu: Mtu,
    /// READs and atomics the peer may have outstanding with us.
    pub responder_resources: u8,
    /// READs and atomics we want to have outstanding with the peer.
    pub initiator_depth: u8,
    /// Whether our responder grants end-to-end credits.
    pub flow_control: bool,
    /// Transport retries for both sides, 0–7.
    pub retry_count: u8,
    /// How often the peer may retry when we are not ready to receive, 0–7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Local ACK timeout, 4.096 µs × 2^n, for both sides; `None` takes what the configuration gives.
    pub ack_timeout: Option<u8>,
    /// Flow label of the path, 20 bits.
    pub flow_label: u32,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// At most 92 bytes.
    pub private_data: Vec<u8>,
}

/// How a request is accepted.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// Our queue pair.
    pub qpn: Qpn,
    /// READs and atomics the peer may have outstanding with us; lowered to what it asked for.
    pub responder_resources: u8,
    /// READs and atomics we want to have outstanding; lowered to what the peer offered.
    pub initiator_depth: u8,
    /// Whether our responder grants end-to-end credits.
    pub flow_control: bool,
    /// How often the peer may retry when we are not ready to receive, 0–7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// At most 196 bytes.
    pub private_data: Vec<u8>,
}

/// Everything a connected queue pair needs to know, as negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParams {
    /// The peer's address.
    pub path: MadPath,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The first PSN we send: the peer's Starting PSN.
    pub sq_psn: Psn,
    /// The first PSN the peer sends: our Starting PSN.
    pub rq_psn: Psn,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// The partition.
    pub pkey: PKey,
    /// READs and atomics we may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding with us.
    pub max_dest_rd_atomic: u8,
    /// Local ACK timeout: 4.096 µs × 2^n.
    pub ack_timeout: u8,
    /// Transport retries, 0–7.
    pub retry_count: u8,
    /// RNR retries, 0–7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// A peer's REQ, for the program to answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The connection that [`accept`](super::Cm::accept) or [`reject`](super::Cm::reject) answers.
    pub id: CommId,
    /// The listener it was addressed to.
    pub listener: ListenerId,
    /// Where it came from.
    pub path: MadPath,
    /// The service id asked for.
    pub service_id: u64,
    /// The transport service.
    pub transport: Transport,
    /// The peer adapter's GUID.
    pub peer_guid: Guid,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The path MTU the peer chose.
    pub path_mtu: Mtu,
    /// READs and atomics the peer wants to have outstanding: the most our responder needs to serve.
    pub responder_resources: u8,
    /// READs and atomics the peer serves: the most we may have outstanding.
    pub initiator_depth: u8,
    /// Whether the peer's responder grants end-to-end credits.
    pub flow_control: bool,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries the peer grants us.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Always 92 bytes: the wire does not say how many were meant.
    pub private_data: Vec<u8>,
}

/// A peer's REP: the queue pair can go to RTS, then [`establish`](super::Cm::establish).
#[derive(Clone, Debug)]
pub struct Reply {
    /// The connection.
    pub id: CommId,
    /// What was negotiated.
    pub params: QpParams,
    /// The peer adapter's GUID.
    pub peer_guid: Guid,
    /// Whether the peer's responder grants end-to-end credits.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Always 196 bytes: the wire does not say how many were meant.
    pub private_data: Vec<u8>,
}

/// A REJ from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why, by the standard's name.
    pub reason: RejReason,
    /// Additional information, its meaning given by the reason (IBTA table 110); up to 72 bytes.
    pub info: Vec<u8>,
    /// Always 148 bytes.
    pub private_data: Vec<u8>,
}

/// Why a connection attempt ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing came back in `tries` transmissions of the message this state waits on.
    TimedOut {
        /// The state it waited in.
        state: State,
        /// Transmissions in all.
        tries: u8,
    },
    /// The network says that nobody is at that address and port.
    Unreachable,
    /// The program did not answer while the peer was waiting.
    NotAnswered,
    /// A newer request showed that the peer has given this one up.
    Stale,
}

/// How an established (or half-established) connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisconnectCause {
    /// The peer sent DREQ.
    Peer,
    /// We sent DREQ, and the peer confirmed or did the same.
    Local,
    /// We sent DREQ and never heard of the peer again.
    TimedOut,
    /// The peer's queue pair belongs to a newer connection: it was restarted.
    Stale,
    /// The peer rejected the established connection.
    Rejected(RejReason),
}

/// What made a passive connection established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstablishedBy {
    /// The peer's RTU.
    Rtu,
    /// A packet on the queue pair; the RTU was late or lost.
    Data,
}

/// What to ask with SIDR.
#[derive(Clone, Debug)]
pub struct SidrParams {
    /// From where to where.
    pub path: MadPath,
    /// The service id asked for.
    pub service_id: u64,
    /// The partition.
    pub pkey: PKey,
    /// At most 216 bytes.
    pub private_data: Vec<u8>,
}

/// An answer to a SIDR request.
#[derive(Clone, Debug)]
pub struct SidrAnswer {
    /// The verdict; the two fields below mean something with [`SidrStatus::Valid`] only.
    pub status: SidrStatus,
    /// The service's queue pair.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
    /// At most 136 bytes; always 136 when received.
    pub private_data: Vec<u8>,
}

impl SidrAnswer {
    /// An answer without a queue pair.
    pub fn refusal(status: SidrStatus) -> SidrAnswer {
        SidrAnswer { status, qpn: Qpn::new(0), qkey: QKey(0), private_data: Vec::new() }
    }
}
