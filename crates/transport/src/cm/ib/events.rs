//! What the connection manager reports, and why it refuses a call.
//!
//! Every attempt ends in exactly one event, every established connection in exactly one `Disconnected`, every time-wait in
//! exactly one `TimewaitExit`, unless the program has abandoned it. No behaviour here.

use everywire_wire::Qpn;

use super::state::State;
use super::types::{
    CommId, DisconnectCause, EstablishedBy, Failure, ListenerId, Rejection, Reply, Request, SidrAnswer,
};
use crate::mad::MadPath;

/// Something the program must hear.
#[derive(Clone, Debug)]
pub enum CmEvent {
    /// A peer wants to connect: accept or reject.
    Request(Box<Request>),
    /// A peer accepted our REQ: establish or reject.
    Reply(Box<Reply>),
    /// The peer accepted and is ready (passive side).
    Established {
        /// The connection.
        id: CommId,
        /// What showed it.
        by: EstablishedBy,
        /// The RTU's private data, 224 bytes; empty when data was faster.
        private_data: Vec<u8>,
    },
    /// The peer rejected. The attempt is over.
    Rejected {
        /// The connection.
        id: CommId,
        /// Its words.
        rejection: Box<Rejection>,
    },
    /// The attempt is over without an answer.
    Failed {
        /// The connection.
        id: CommId,
        /// Why.
        failure: Failure,
    },
    /// The connection is over. Sent exactly once for every connection that was accepted on both sides.
    Disconnected {
        /// The connection.
        id: CommId,
        /// Why.
        cause: DisconnectCause,
        /// The DREQ's or DREP's private data; empty without one.
        private_data: Vec<u8>,
    },
    /// The QPN may be used again. Sent exactly once for every time-wait the program did not abandon.
    TimewaitExit {
        /// The connection, gone after this.
        id: CommId,
        /// Our queue pair number.
        qpn: Qpn,
    },
    /// A peer asks for a UD queue pair: answer with [`sidr_reply`](super::Cm::sidr_reply).
    SidrRequest {
        /// The exchange.
        id: CommId,
        /// The listener it was addressed to.
        listener: ListenerId,
        /// Where it came from.
        path: MadPath,
        /// Always 216 bytes.
        private_data: Vec<u8>,
    },
    /// The answer to our SIDR request.
    SidrReply {
        /// The exchange, over now.
        id: CommId,
        /// The answer.
        answer: Box<SidrAnswer>,
    },
    /// Our SIDR request got no answer, or the program did not answer the peer's in time.
    SidrFailed {
        /// The exchange, over now.
        id: CommId,
        /// Why.
        failure: Failure,
    },
}

impl CmEvent {
    /// The connection or exchange it is about.
    pub fn id(&self) -> CommId {
        match self {
            CmEvent::Request(request) => request.id,
            CmEvent::Reply(reply) => reply.id,
            CmEvent::Established { id, .. }
            | CmEvent::Rejected { id, .. }
            | CmEvent::Failed { id, .. }
            | CmEvent::Disconnected { id, .. }
            | CmEvent::TimewaitExit { id, .. }
            | CmEvent::SidrRequest { id, .. }
            | CmEvent::SidrReply { id, .. }
            | CmEvent::SidrFailed { id, .. } => *id,
        }
    }
}

/// A call that the connection manager refuses: the caller's mistake, or a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmCallError {
    /// No such connection or exchange; it may have ended meanwhile.
    #[error("no connection with communication id {0}")]
    UnknownId(CommId),
    /// The connection is not in a state that allows the call.
    #[error("{call} is not possible in state {state} of connection {id}")]
    WrongState {
        /// The connection.
        id: CommId,
        /// What was asked.
        call: &'static str,
        /// Where the connection is.
        state: State,
    },
    /// More private data than the message can carry.
    #[error("{given} bytes of private data, but a {message} carries at most {limit}")]
    PrivateDataTooLong {
        /// The message.
        message: &'static str,
        /// Its limit, bytes.
        limit: usize,
        /// What was given, bytes.
        given: usize,
    },
    /// Somebody listens there already.
    #[error("service id {service_id:#018x} is already being listened on")]
    ServiceInUse {
        /// The service id.
        service_id: u64,
    },
    /// A table is full.
    #[error("all {limit} {what} are in use")]
    Full {
        /// The table's entries.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A queue pair number that cannot be connected.
    #[error("queue pair {0} cannot be connected")]
    InvalidQpn(Qpn),
}
