//! The driving contract of byte streams: what a driver with TCP owes an iWARP device, beside what `drive` says.
//!
//! - **Commands** of streams ([`Command::StreamConnect`](crate::Command) and its like) are carried out once
//!   [`Drive::poll_stream`] has said false, so that what a connection had to say is ahead of its end.
//! - **In**: [`Drive::accepted`] for a connection that a listening socket took, [`Drive::stream_event`] for what happens to
//!   one, [`Drive::handle_stream`] for its bytes, in order, in pieces of any length.
//! - **Out**: [`Drive::poll_stream`] until false, each time bytes of one connection. What its socket does not take the driver
//!   keeps and sends later; it reports every byte that the socket took with [`ConnEvent::Written`]. Queue pairs bound what
//!   they have outstanding, so that the driver holds little.
//! - After [`Command::StreamClose`](crate::Command) the driver sends what it has, ends its direction, and still tells of the
//!   peer's end ([`ConnEvent::Eof`] or [`ConnEvent::Reset`]), after which the connection is forgotten on both sides. After
//!   [`Command::StreamReset`](crate::Command) and [`ConnEvent::Failed`] it is forgotten at once. A connection whose end both
//!   have said is forgotten by the device even while the driver still has bytes to send: the driver then gives the peer
//!   [`STREAM_CLOSE_TIMEOUT`](crate::STREAM_CLOSE_TIMEOUT) to take them and resets it.

use std::net::SocketAddr;
use std::time::Instant;

pub use everywire_transport::cm::iwarp::StreamError;
use everywire_transport::iwarp::{ConnId, StreamBurst};

use crate::drive::Drive;

/// Names a listening socket of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamListenerId(pub u32);

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    /// [`Command::StreamConnect`](crate::Command) has succeeded.
    Connected {
        /// Our address and port.
        local: SocketAddr,
        /// The largest segment, in bytes (TCP's effective MSS).
        mss: usize,
    },
    /// It could not be made.
    Failed(StreamError),
    /// The socket took so many bytes of what [`Drive::poll_stream`] gave.
    Written(usize),
    /// The peer has sent its last byte.
    Eof,
    /// It is gone: reset by the peer, or given up by TCP.
    Reset(StreamError),
}

impl Drive<'_> {
    /// A listening socket took a connection; `mss` is its largest segment in bytes. `None`: nobody listens
    /// there any more, and the driver resets it. Of connections that have not introduced themselves the device may give up
    /// an older one for it ([`HalfOpen`](crate::HalfOpen)).
    #[must_use = "a connection that is not taken must be reset"]
    pub fn accepted(
        &mut self,
        now: Instant,
        listener: StreamListenerId,
        local: SocketAddr,
        peer: SocketAddr,
        mss: usize,
    ) -> Option<ConnId> {
        let now = self.at(now);
        self.state.stream_accepted(now, listener, local, peer, mss)
    }

    /// Something happened to a connection. One that is known no more is ignored.
    pub fn stream_event(&mut self, now: Instant, conn: ConnId, event: ConnEvent) {
        let now = self.at(now);
        self.state.stream_happened(now, conn, event);
    }

    /// Bytes of a connection arrived, in order.
    #[inline]
    pub fn handle_stream(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let now = self.at(now);
        self.state.stream_bytes(now, conn, bytes);
    }

    /// Fills `out` with bytes of the next connection that has some; false if none has now.
    #[inline]
    pub fn poll_stream(&mut self, now: Instant, out: &mut StreamBurst) -> bool {
        let now = self.at(now);
        self.state.next_stream(now, out)
    }
}
