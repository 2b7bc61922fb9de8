//! A TCP connection on which MPA's start-up frames are exchanged, from either side.
//!
//! Read RFC 5044 §7.1. This only gives both sides one face; what follows from a frame is `mpa`'s.

use std::net::SocketAddr;
use std::time::Instant;

use everywire_transport::cm::iwarp::{Initiator, MpaEvent, Responder, StreamError};

use super::ListenerId;

/// A TCP connection to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) traffic_class: u8,
    /// Ask with revision 2 (RFC 6581).
    pub(super) enhanced: bool,
}

/// A connection on which MPA's frames are exchanged.
pub(crate) enum Starting {
    /// We have asked.
    Asking { mpa: Initiator, dial: Dial },
    /// The peer asks.
    Answering { mpa: Responder, listener: ListenerId, local: SocketAddr, peer: SocketAddr },
}

impl Starting {
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Starting::Asking { mpa, .. } => mpa.poll_timeout(),
            Starting::Answering { mpa, .. } => mpa.poll_timeout(),
        }
    }

    pub(super) fn handle_stream(&mut self, now: Instant, bytes: &[u8]) -> usize {
        match self {
            Starting::Asking { mpa, .. } => mpa.handle_stream(now, bytes),
            Starting::Answering { mpa, .. } => mpa.handle_stream(now, bytes),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match self {
            Starting::Asking { mpa, .. } => mpa.handle_timeout(now),
            Starting::Answering { mpa, .. } => mpa.handle_timeout(now),
        }
    }

    /// By the peer's FIN, or for what TCP says.
    pub(super) fn closed(&mut self, cause: Option<StreamError>) {
        match self {
            Starting::Asking { mpa, .. } => mpa.closed(cause),
            Starting::Answering { mpa, .. } => mpa.closed(cause),
        }
    }

    pub(super) fn poll(&mut self) -> (Option<Vec<u8>>, Option<MpaEvent>) {
        match self {
            Starting::Asking { mpa, .. } => (mpa.poll_transmit(), mpa.poll_event()),
            Starting::Answering { mpa, .. } => (mpa.poll_transmit(), mpa.poll_event()),
        }
    }
}
