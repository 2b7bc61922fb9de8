//! A connection of the device's on a socket of smoltcp's, and how long its peer may owe something.
//!
//! Read RFC 9293 §3.8.3 (the user timeout) first. smoltcp's own timeout ends quiet connections as well; it is for handshakes only.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, State};

/// How long TCP waits for a peer that acknowledges nothing of what was sent (RFC 9293 §3.8.3), or that does not say its own
/// end after ours, before it resets the connection. A connection without either may be quiet for ever.
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Our end and the peer's.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// A connection of the device.
pub(super) struct Conn {
    pub(super) socket: SocketHandle,
    /// The handshake is over.
    pub(super) open: bool,
    /// The device has heard of the peer's end.
    pub(super) eof: bool,
    /// The device wants its end said once everything is sent.
    pub(super) closing: bool,
    /// Bytes that the socket has no room for yet.
    pub(super) waiting: VecDeque<u8>,
    /// Bytes that the socket has taken.
    pub(super) written: usize,
    /// While the peer owes something: what it had done when it last did anything, and when it is given up.
    pub(super) owed: Option<((State, usize), Instant)>,
    pub(super) ends: Option<Ends>,
}

impl Conn {
    /// A connection with its ends is open.
    pub(super) fn new(socket: SocketHandle, ends: Option<Ends>) -> Conn {
        Conn {
            socket,
            open: ends.is_some(),
            eof: false,
            closing: false,
            waiting: VecDeque::new(),
            written: 0,
            owed: None,
            ends,
        }
    }

    /// Aborts the socket of a peer that has owed something for too long.
    pub(super) fn check_peer(&mut self, now: Instant, socket: &mut Socket<'_>) {
        let begins = !self.open; // the handshake has smoltcp's own deadline
        let state = socket.state();
        if begins || state == State::Closed || (socket.send_queue() == 0 && !self.closing) {
            self.owed = None;
            return;
        }
        let done = (state, self.written - socket.send_queue());
        match self.owed {
            Some((then, until)) if then == done => {
                if until <= now {
                    socket.abort();
                }
            }
            _ => self.owed = Some((done, now + USER_TIMEOUT)),
        }
    }
}

/// A socket whose connection the device has forgotten.
pub(super) struct Dying {
    pub(super) socket: SocketHandle,
    pub(super) ends: Option<Ends>,
    /// When it goes whatever the peer says.
    pub(super) until: Instant,
}
