//! What goes into an MPA start-up and comes out of it.
//!
//! Read RFC 5044 §7.1 and RFC 6581 §9 first. Depths are from this side's point of view: `ord` is what *our* queue pair may have
//! outstanding. No behaviour here.

use std::time::Duration;

use bitflags::bitflags;
use everywire_wire::WireError;
use everywire_wire::mpa::{Enhanced, StartFrame};
use everywire_wire::rdmap::LlpError;

use super::stream_error::StreamError;
use crate::iwarp::{ConnId, Rtr, StreamParams, refusal};

/// How long a start-up may take on the peer's side, unless configured: Linux siw waits as long.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of private data in an enhanced (revision 2) start-up.
pub const MAX_PRIVATE_DATA: usize = StartFrame::MAX_PRIVATE_DATA - Enhanced::LEN;

bitflags! {
    /// Ready-to-receive frames (RFC 6581 §9).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RtrSet: u8 {
        /// An FPDU without a DDP segment.
        const SEND = 1;
        /// A WRITE of no bytes.
        const WRITE = 2;
        /// A READ of no bytes.
        const READ = 4;
    }
}

impl RtrSet {
    /// Whether it has this one.
    pub fn has(self, rtr: Rtr) -> bool {
        self.contains(match rtr {
            Rtr::Send => RtrSet::SEND,
            Rtr::Write => RtrSet::WRITE,
            Rtr::Read => RtrSet::READ,
        })
    }

    /// The one to use of several: a WRITE touches nothing and needs no answer.
    pub fn choose(self) -> Option<Rtr> {
        [Rtr::Write, Rtr::Read, Rtr::Send].into_iter().find(|rtr| self.has(*rtr))
    }
}

/// What an initiator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorConfig {
    /// Revision 2 of MPA, with depths and models negotiated (RFC 6581); else revision 1.
    pub enhanced: bool,
    /// Ask for CRCs. If either end asks, both use them.
    pub crc: bool,
    /// Ask for markers in what we receive.
    pub markers: bool,
    /// READs our queue pair can hold as responder.
    pub ird: u16,
    /// READs our queue pair wants outstanding.
    pub ord: u16,
    /// Ask for the peer-to-peer model, with any of these frames. Revision 2 only.
    pub peer_to_peer: Option<RtrSet>,
    /// The upper layer's bytes, at most [`MAX_PRIVATE_DATA`] (512 in revision 1).
    pub private_data: Vec<u8>,
    /// How long to wait for the reply.
    pub timeout: Duration,
    /// How long to wait after the reply before the connection is up, unless the peer sends first. Zero is right by the
    /// standards; Linux's siw does not notice what comes while it is still busy accepting.
    pub pause: Duration,
}

impl Default for InitiatorConfig {
    fn default() -> InitiatorConfig {
        InitiatorConfig {
            enhanced: true,
            crc: true,
            markers: false,
            ird: 16,
            ord: 16,
            peer_to_peer: None,
            private_data: Vec::new(),
            timeout: START_TIMEOUT,
            pause: Duration::ZERO,
        }
    }
}

/// What a responder is ready to do, whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Ask for CRCs even where the initiator does not.
    pub crc: bool,
    /// Ask for markers in what we receive.
    pub markers: bool,
    /// Ready-to-receive frames taken.
    pub rtr: RtrSet,
    /// How long to wait for the request, from the first moment.
    pub timeout: Duration,
}

impl Default for ResponderConfig {
    fn default() -> ResponderConfig {
        ResponderConfig { crc: true, markers: false, rtr: RtrSet::all(), timeout: START_TIMEOUT }
    }
}

/// A request that has arrived, for the upper layer to accept or reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The upper layer's bytes.
    pub private_data: Vec<u8>,
    /// Revision of MPA, 1 or 2.
    pub revision: u8,
    /// It has RFC 6581's block.
    pub enhanced: bool,
    /// The initiator asks for CRCs.
    pub crc: bool,
    /// The initiator asks for markers.
    pub markers: bool,
    /// READs that the initiator can hold: a bound of our ORD. `None` if it did not say.
    pub ird: Option<u16>,
    /// READs that the initiator wants outstanding: what our IRD should be. `None` if it did not say.
    pub ord: Option<u16>,
    /// The peer-to-peer model is asked for.
    pub peer_to_peer: bool,
    /// Its frames that the initiator offers.
    pub rtr: RtrSet,
}

/// The upper layer's yes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptParams {
    /// READs our queue pair can hold as responder.
    pub ird: u16,
    /// READs our queue pair wants outstanding.
    pub ord: u16,
    /// The upper layer's bytes.
    pub private_data: Vec<u8>,
}

/// What both ends agree on once start-up is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Bytes of the peer's upper layer: of the reply at the initiator, of the request at the responder.
    pub private_data: Vec<u8>,
    /// Revision of MPA in use.
    pub revision: u8,
    /// CRCs both ways.
    pub crc: bool,
    /// The peer wants markers.
    pub markers_send: bool,
    /// We wanted markers.
    pub markers_receive: bool,
    /// READs held as responder.
    pub ird: u16,
    /// READs outstanding as requester.
    pub ord: u16,
    /// Whether we began.
    pub initiator: bool,
    /// Peer to peer: the frame that the initiator sends first.
    pub rtr: Option<Rtr>,
}

impl Agreed {
    /// The first and last FPDU of the stream, a TERMINATE message, with which an initiator ends what it has just agreed on;
    /// the stream is to be closed behind it. RFC 6581 §8 has [`LlpError::Catastrophic`] for what fails on this side and
    /// [`LlpError::InsufficientIrd`] and [`LlpError::NoMatchingRtr`] for what the reply says. `None` at a responder, which
    /// sends no FPDU before it has received one (RFC 5044 §7.1).
    pub fn refusal(&self, error: LlpError) -> Option<Vec<u8>> {
        self.initiator.then(|| refusal(self.crc, self.markers_send, error))
    }

    /// What the queue pair starts with. `max_fpdu_payload` is its field in [`StreamParams`].
    pub fn stream(&self, conn: ConnId, max_fpdu_payload: usize) -> StreamParams {
        StreamParams {
            conn,
            crc: self.crc,
            markers_send: self.markers_send,
            markers_receive: self.markers_receive,
            ird: self.ird,
            ord: self.ord,
            max_fpdu_payload,
            initiator: self.initiator,
            rtr: self.rtr,
        }
    }
}

/// Whose fault a failed start-up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The peer broke the protocol.
    PeerBroke,
    /// The peer is fine and can't do what we need.
    PeerIncompatible,
    /// Neither: the connection or the time ended.
    Connection,
}

/// Why a start-up failed. The stream is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The bytes are no start frame.
    #[error("invalid MPA start frame: {0}")]
    Frame(#[from] WireError),
    /// A revision that we don't speak.
    #[error("MPA revision {revision} was asked for, but 1 and 2 are spoken here")]
    Revision {
        /// Of the peer.
        revision: u8,
    },
    /// A revision 2 frame flagged as enhanced without room for the block.
    #[error("an enhanced MPA start frame without its four bytes of IRD and ORD (RFC 6581 §9)")]
    NoEnhancedBlock,
    /// A reply in another revision or model than the request.
    #[error("the MPA reply is of revision {revision}, the request was of revision 2 (RFC 6581)")]
    Downgraded {
        /// Of the reply.
        revision: u8,
    },
    /// Bytes behind the request, which the initiator may send only after the reply.
    #[error("{bytes} bytes came behind the MPA request, before its reply (RFC 5044 §7.1)")]
    Early {
        /// How many.
        bytes: usize,
    },
    /// The initiator's READs are more than the responder can hold, or the other way round.
    #[error("insufficient IRD: the responder wants {ord} READs outstanding, we can hold {ird} (RFC 6581 §9)")]
    InsufficientIrd {
        /// Asked for.
        ord: u16,
        /// Offered.
        ird: u16,
    },
    /// No ready-to-receive frame in common.
    #[error("no ready-to-receive frame in common (RFC 6581 §9)")]
    NoMatchingRtr,
    /// No frame in time.
    #[error("no {what} within {timeout:?}")]
    Timeout {
        /// "MPA request" or "MPA reply".
        what: &'static str,
        /// How long was waited.
        timeout: Duration,
    },
    /// The stream ended first.
    #[error("no whole {what}: {}", ended(*.cause))]
    Closed {
        /// "MPA request" or "MPA reply".
        what: &'static str,
        /// `None`: by the peer's FIN. Else what TCP says.
        cause: Option<StreamError>,
        /// So ends who speaks revision 1 only: with a FIN and without a word to a request of revision 2.
        older: bool,
    },
}

fn ended(cause: Option<StreamError>) -> String {
    cause.map_or_else(|| String::from("the peer closed the TCP connection"), |error| error.to_string())
}

impl Failure {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Failure::Frame(_) | Failure::NoEnhancedBlock | Failure::Early { .. } => Blame::PeerBroke,
            Failure::Revision { .. }
            | Failure::Downgraded { .. }
            | Failure::InsufficientIrd { .. }
            | Failure::NoMatchingRtr => Blame::PeerIncompatible,
            Failure::Timeout { .. } | Failure::Closed { .. } => Blame::Connection,
        }
    }

    /// What the responder is told of a reply that the initiator cannot live with (RFC 6581 §8). An invalid start frame
    /// ([`LlpError::StartFrame`]) is not in the list: its connection is closed at once (RFC 5044 §8, code 4).
    pub(super) fn llp_error(&self) -> Option<LlpError> {
        match self {
            Failure::InsufficientIrd { .. } => Some(LlpError::InsufficientIrd),
            Failure::NoMatchingRtr => Some(LlpError::NoMatchingRtr),
            _ => None,
        }
    }

    /// Whether a peer that speaks only revision 1 of MPA behaves like this: a new connection with
    /// [`InitiatorConfig::enhanced`] off may succeed.
    pub fn try_revision_1(&self) -> bool {
        matches!(self, Failure::Downgraded { .. } | Failure::Closed { older: true, .. })
    }
}

/// What happens during a start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpaEvent {
    /// At the responder: a request waits for [`Responder::accept`](super::Responder::accept) or
    /// [`reject`](super::Responder::reject).
    Request(Request),
    /// Done: start the queue pair with the stream's next byte. Send what `poll_transmit` has first.
    Accepted(Agreed),
    /// At the initiator: the peer's upper layer said no.
    Rejected {
        /// Its bytes.
        private_data: Vec<u8>,
    },
    /// It failed; send what `poll_transmit` still has, then close.
    Failed(Failure),
}

/// Misuse of a start-up by its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaError {
    /// Too much private data.
    #[error("{length} bytes of private data, but the start frame has room for {limit}")]
    PrivateDataTooLong {
        /// Given.
        length: usize,
        /// Allowed.
        limit: usize,
    },
    /// There is no request to answer.
    #[error("there is no MPA request to answer")]
    NoRequest,
    /// Peer to peer needs revision 2.
    #[error("the peer-to-peer model needs revision 2 of MPA")]
    NeedsEnhanced,
}
