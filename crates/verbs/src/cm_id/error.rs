//! How connecting fails, and how connections end: both addresses, the step, the reason by the standard's name and number.
//!
//! Read DESIGN §4 (errors carry blame). [`CmError::errno`] gives what librdmacm would report, positive.

use std::fmt;
use std::net::SocketAddr;

use everywire_transport::cm::ib::{CmCallError, DisconnectCause};
use everywire_transport::cm::iwarp::{Failure, MpaError};
use everywire_wire::Mtu;
use everywire_wire::cm::{RejReason, SidrStatus};

use crate::config::DeviceConfig;
use crate::error::VerbsError;
use crate::route::RouteError;
use crate::stream::StreamError;
use everywire_transport::iwarp::StreamFault;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CmStep {
    /// Binding an address and listening on it.
    Listen,
    /// Finding the way to the peer.
    ResolveRoute,
    /// Waiting for the answer to a connection request.
    Connect,
    /// Accepting a request, until the peer is ready.
    Accept,
    /// Asking for a datagram service.
    ResolveService,
}

impl CmStep {
    fn as_str(self) -> &'static str {
        match self {
            CmStep::Listen => "listening",
            CmStep::ResolveRoute => "resolving the route",
            CmStep::Connect => "connecting",
            CmStep::Accept => "accepting",
            CmStep::ResolveService => "resolving the datagram service",
        }
    }
}

/// Why it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmErrorKind {
    /// The peer rejected (IBTA §12.6.7.2).
    #[error("rejected by the peer: {reason}. {}{}", reason.description(), super::events::most(*reason, info, *asked_mtu))]
    Rejected {
        /// Its reason.
        reason: RejReason,
        /// Additional information, whose meaning the reason gives; up to 72 bytes.
        info: Vec<u8>,
        /// The path MTU that our request asked for; `None` where requests have none.
        asked_mtu: Option<Mtu>,
        /// The peer program's private data: 148 bytes, or none.
        private_data: Vec<u8>,
    },
    /// The peer gave no datagram service (IBTA §12.11.2.3).
    #[error("refused by the peer: {status}. {}", status.description())]
    NoService {
        /// Its status.
        status: SidrStatus,
        /// The peer program's private data: 136 bytes.
        private_data: Vec<u8>,
    },
    /// The port is gone, and the peer with it.
    #[error("the port is gone")]
    PortLost,
    /// Nothing came back.
    #[error("no answer to {tries} transmissions")]
    TimedOut {
        /// How often the message was sent.
        tries: u8,
    },
    /// The time the caller gave is over.
    #[error("not done within the {millis} ms that were given")]
    Deadline {
        /// The time given, in milliseconds.
        millis: u64,
    },
    /// The same, and nothing has come back till then.
    #[error(
        "no answer within the {millis} ms that were given, to {tries} transmissions, one every {every_millis} ms"
    )]
    Silence {
        /// The time given, in milliseconds.
        millis: u64,
        /// How often the message was sent.
        tries: u8,
        /// Milliseconds between two transmissions.
        every_millis: u64,
    },
    /// The TCP connection below an iWARP connection could not be made, or ended.
    #[error("{0}")]
    Stream(StreamError),
    /// The exchange of MPA's start-up frames failed.
    #[error("{0}")]
    Mpa(Failure),
    /// Our own start-up frame could not be made.
    #[error("{0}")]
    MpaRefused(MpaError),
    /// The network reports that nobody is there.
    #[error("the network reports that the peer cannot be reached")]
    Unreachable,
    /// The device's own interface is down, has no carrier, or was deleted.
    #[error("this device's own interface {interface} is down or gone")]
    LinkDown {
        /// Its name.
        interface: String,
    },
    /// The peer's host answers that nobody has the port of RoCE v2 open (ICMP port unreachable).
    #[error(
        "nobody at that address speaks RoCE v2: its UDP port 4791 is closed (ICMP port unreachable); is the program running?"
    )]
    PortUnreachable,
    /// There is no way there.
    #[error("{0}")]
    Route(RouteError),
    /// The request was answered too late: the peer had stopped waiting.
    #[error("the peer was waiting for an answer and has stopped")]
    NotAnsweredInTime,
    /// The peer started anew with the same queue pair.
    #[error("the peer has started over and given up this request")]
    Superseded,
    /// The connection ended before it was established.
    #[error("the connection ended before it was established: {0}")]
    Closed(DisconnectReason),
    /// Somebody else uses that address and port.
    #[error("the address and port are in use")]
    AddressInUse,
    /// Not an address of this device.
    #[error("not an address of device {device}")]
    NotOurAddress {
        /// The device's name.
        device: String,
    },
    /// A link-local address without its interface.
    #[error("a link-local address needs an interface (address%interface)")]
    NoScope,
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
    /// The queue pair cannot be used for this connection.
    #[error("{0}")]
    Qp(String),
    /// The queue pair or address handle was refused by the device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection manager refused.
    #[error("{0}")]
    Refused(CmCallError),
}

impl CmErrorKind {
    /// Whether it says that there is no way to the peer.
    pub(super) fn is_no_way(&self) -> bool {
        let route = |error: &RouteError| {
            matches!(error, RouteError::NoRoute | RouteError::NotOurSource | RouteError::System(_))
        };
        matches!(self, CmErrorKind::Unreachable) || matches!(self, CmErrorKind::Route(error) if route(error))
    }
}

impl From<StreamError> for CmErrorKind {
    fn from(error: StreamError) -> CmErrorKind {
        match error {
            StreamError::AddressInUse => CmErrorKind::AddressInUse,
            error => CmErrorKind::Stream(error),
        }
    }
}

/// A failed attempt to listen, connect, accept or resolve.
#[derive(Clone, PartialEq, Eq)]
pub struct CmError(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    step: CmStep,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    /// The addresses as a person writes them.
    who: String,
    kind: CmErrorKind,
}

impl CmError {
    pub(crate) fn new(
        config: &DeviceConfig,
        step: CmStep,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
        kind: CmErrorKind,
    ) -> CmError {
        let name = |addr: SocketAddr| match addr.port() {
            // Not bound yet, so there is none to be told.
            0 => addr.ip().to_string(),
            _ => with_interface(config, addr),
        };
        let who = match (local, remote) {
            (Some(local), Some(remote)) if step == CmStep::Accept => {
                format!("{} on {}", name(remote), name(local))
            }
            (Some(local), Some(remote)) => format!("{} to {}", name(local), name(remote)),
            (Some(local), None) => format!("on {}", name(local)),
            (None, Some(remote)) => format!("to {}", name(remote)),
            (None, None) => config.name.clone(),
        };
        CmError(Box::new(Inner { step, local, remote, who, kind }))
    }

    /// What was being done.
    pub fn step(&self) -> CmStep {
        self.0.step
    }

    /// Our address, as far as it was known.
    pub fn local(&self) -> Option<SocketAddr> {
        self.0.local
    }

    /// The peer's address.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.0.remote
    }

    /// Why.
    pub fn kind(&self) -> &CmErrorKind {
        &self.0.kind
    }

    /// The peer's reason, if it rejected.
    pub fn reject_reason(&self) -> Option<RejReason> {
        match self.0.kind {
            CmErrorKind::Rejected { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Whether nobody listens there, as far as the peer or the network can tell: REJ 8, SIDR status 1, a refused TCP
    /// connection, a port that ICMP calls unreachable, a port of a fabric that nobody has brought up, or that no program is attached to, an
    /// interface of our own that is down. Somebody may come.
    pub fn is_nobody_there(&self) -> bool {
        match &self.0.kind {
            CmErrorKind::Rejected { reason, .. } => *reason == RejReason::InvalidServiceId,
            CmErrorKind::NoService { status, .. } => *status == SidrStatus::UnsupportedServiceId,
            CmErrorKind::Stream(error) => *error == StreamError::Refused,
            CmErrorKind::Route(error) => matches!(
                error,
                RouteError::PortDown
                    | RouteError::NoLink(_)
                    | RouteError::NoProgram(_)
                    | RouteError::NoPath { .. }
                    | RouteError::Administrator(_)
            ),
            CmErrorKind::Unreachable | CmErrorKind::PortUnreachable | CmErrorKind::LinkDown { .. } => true,
            _ => false,
        }
    }

    /// Whether the peer takes the queue pair for one that it is still connected with (REJ 10): another one may do.
    pub fn is_stale(&self) -> bool {
        self.reject_reason() == Some(RejReason::StaleConnection)
    }

    /// The number librdmacm would report, positive.
    pub fn errno(&self) -> i32 {
        match &self.0.kind {
            CmErrorKind::Rejected { .. } | CmErrorKind::NoService { .. } | CmErrorKind::PortUnreachable => {
                111
            }
            CmErrorKind::TimedOut { .. }
            | CmErrorKind::Deadline { .. }
            | CmErrorKind::Silence { .. }
            | CmErrorKind::NotAnsweredInTime => 110,
            CmErrorKind::Route(RouteError::NoAnswer | RouteError::NoAdministrator) => 110,
            CmErrorKind::LinkDown { .. } => 100,
            CmErrorKind::Unreachable | CmErrorKind::PortLost | CmErrorKind::Route(_) => 113,
            CmErrorKind::Stream(error) => error.errno(),
            CmErrorKind::Mpa(Failure::Timeout { .. }) => 110,
            CmErrorKind::Mpa(Failure::Closed { cause, .. }) => cause.map_or(104, StreamError::errno),
            CmErrorKind::Mpa(_) => 71,
            CmErrorKind::MpaRefused(_) => 22,
            CmErrorKind::Superseded | CmErrorKind::Closed(_) => 104,
            CmErrorKind::AddressInUse => 98,
            CmErrorKind::NotOurAddress { .. } => 99,
            CmErrorKind::NoScope | CmErrorKind::PrivateDataTooLong { .. } | CmErrorKind::Qp(_) => 22,
            CmErrorKind::Verbs(error) => error.errno(),
            CmErrorKind::Refused(CmCallError::Full { .. }) => 12,
            CmErrorKind::Refused(_) => 22,
        }
    }
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.0.step.as_str(), self.0.who, self.0.kind)
    }
}

impl fmt::Debug for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmError({self})")
    }
}

impl std::error::Error for CmError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            CmErrorKind::Verbs(error) => Some(error),
            CmErrorKind::Route(error) => Some(error),
            _ => None,
        }
    }
}

/// An address with the name of its interface where the device knows it, as it was given: `[fe80::1%eth0]:4420`.
pub(crate) fn with_interface(config: &DeviceConfig, addr: SocketAddr) -> String {
    if let SocketAddr::V6(v6) = addr
        && v6.scope_id() != 0
        && let Some(gid) = config.gids.iter().find(|gid| gid.scope_id == v6.scope_id())
        && let Some(name) = &gid.interface
    {
        return format!("[{}%{name}]:{}", v6.ip(), v6.port());
    }
    addr.to_string()
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectReason {
    /// This side disconnected, and the peer confirmed or did the same.
    Local,
    /// The peer disconnected.
    Peer,
    /// This side disconnected and the peer never answered.
    TimedOut,
    /// The port is gone, and the peer with it.
    PortLost,
    /// The peer was restarted: its queue pair belongs to a newer connection.
    Stale,
    /// The peer rejected the established connection.
    Rejected(RejReason),
    /// The TCP connection below it is gone.
    Stream(StreamError),
    /// The stream below it did not end in good order: a TERMINATE message of either side (RFC 5040 §4.8), or a FIN amid a
    /// message.
    Broken(StreamFault),
}

impl DisconnectReason {
    pub(crate) fn from_cause(cause: &DisconnectCause) -> DisconnectReason {
        match cause {
            DisconnectCause::Peer => DisconnectReason::Peer,
            DisconnectCause::Local => DisconnectReason::Local,
            DisconnectCause::TimedOut => DisconnectReason::TimedOut,
            DisconnectCause::Stale => DisconnectReason::Stale,
            DisconnectCause::Rejected(reason) => DisconnectReason::Rejected(*reason),
        }
    }

    /// The status of librdmacm's DISCONNECTED event: 0, or -ETIMEDOUT for a peer that never answered.
    pub fn status(self) -> i32 {
        match self {
            DisconnectReason::TimedOut => -110,
            _ => 0,
        }
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisconnectReason::Local => f.write_str("disconnected by this side"),
            DisconnectReason::Peer => f.write_str("disconnected by the peer"),
            DisconnectReason::TimedOut => f.write_str("disconnected, and the peer never answered"),
            DisconnectReason::PortLost => f.write_str("the port is gone"),
            DisconnectReason::Stale => f.write_str("the peer was restarted"),
            DisconnectReason::Rejected(reason) => write!(f, "the peer rejected it: {reason}"),
            DisconnectReason::Stream(error) => write!(f, "{error}"),
            DisconnectReason::Broken(fault) => write!(f, "{fault}"),
        }
    }
}
