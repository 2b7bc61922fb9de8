//! What a port tells of its sockets: counters, and news of paths.

use std::net::IpAddr;

/// What happened to datagrams at the sockets, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// System calls that sent something.
    pub send_calls: u64,
    /// Pieces (datagrams or trains) sent.
    pub sent_pieces: u64,
    /// System calls that received something.
    pub recv_calls: u64,
    /// Pieces (datagrams or trains) received.
    pub received_pieces: u64,
    /// Datagrams lost on a full receive buffer (SO_RXQ_OVFL).
    pub receive_overflows: u64,
    /// Datagrams longer than any RoCE packet, dropped.
    pub truncated: u64,
    /// Frames of a raw port that are no packets: headers or lengths that contradict each other or the frame.
    pub malformed: u64,
    /// Frames of a raw port to other addresses than its own, which other devices on the interface may have.
    pub not_ours: u64,
    /// Times that the send buffer was full or the kernel out of buffers; the work was kept.
    pub send_blocked: u64,
    /// Pieces too large for the path, dropped; the device is told the path's MTU, which its queue pairs cannot change to.
    pub too_big: u64,
    /// Pieces that a firewall or policy refused, dropped.
    pub refused: u64,
    /// Pieces without a route, dropped; the device is told.
    pub no_route: u64,
    /// Pieces dropped for another error.
    pub send_errors: u64,
    /// Answers that a destination cannot be reached (ICMP), passed to the device.
    pub unreachable: u64,
    /// Trains taken apart because the kernel would not (no GSO).
    pub trains_cut: u64,
}

/// Something about a path that the device must know.
#[derive(Clone, Debug)]
pub enum PathEvent {
    /// Datagrams to `dst` do not arrive.
    Unreachable {
        /// The destination.
        dst: IpAddr,
        /// The answer as an errno: ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EACCES ….
        errno: i32,
        /// The same in words.
        why: String,
    },
    /// The path to `dst` takes IP packets of at most `mtu` bytes.
    Mtu {
        /// The destination.
        dst: IpAddr,
        /// Bytes of IP packet.
        mtu: usize,
    },
}
