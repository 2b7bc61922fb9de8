//! What an iWARP queue pair is told about itself, its stream and what becomes of it.
//!
//! Read RFC 5044 §7 (what start-up agrees on) and RFC 6581 first. The values come from the start-up in `cm::iwarp`; this file
//! only names them and their limits.

use everywire_wire::rdmap::TermError;

use crate::ib::attr::MAX_RD_ATOMIC;

/// A TCP connection of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ConnId(pub u64);

/// Largest DDP segment to send where FPDUs need not fit a TCP segment: 16 KiB of payload behind a tagged header.
///
/// RFC 5044 §5 bounds a segment by the MSS so that hardware finds FPDUs in single TCP segments. A receiver that reads the
/// stream in order has no use for that: Linux siw takes any length up to the 16-bit field's, and sends more than an MSS
/// itself where the kernel segments. Headers, sums and checks are then paid once in 16 KiB. Not larger, because the FPDU at
/// the end of a read is buffered until it is whole: of a 256 KiB read that is one in sixteen.
pub const LARGE_ULPDU: usize = 16 * 1024 + everywire_wire::ddp::DdpHeader::TAGGED_LEN;

/// Smallest MULPDU (RFC 5041 §5.1 expects the lower layer to carry at least 128 bytes).
pub const MIN_ULPDU: usize = 128;

/// What a device's iWARP queue pairs do beyond RFC 5040.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IwarpConfig {
    /// Atomics and RDMA WRITE with immediate data (RFC 7306). Both ends must have it: Linux siw has not.
    pub rfc7306: bool,
    /// The sink of a READ needs `REMOTE_WRITE`, as RFC 5040 §5.2 and hardware have it (cases IW-06). Off, the device grants
    /// its own READs the right: `LOCAL_WRITE` is enough, as on InfiniBand.
    pub strict_read_sink: bool,
}

impl Default for IwarpConfig {
    fn default() -> IwarpConfig {
        IwarpConfig { rfc7306: false, strict_read_sink: true }
    }
}

/// The frame with which the initiator of a peer-to-peer connection says that it is ready (RFC 6581 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rtr {
    /// An FPDU without a DDP segment (the flag that others call "Send").
    Send,
    /// An RDMA WRITE of no bytes.
    Write,
    /// An RDMA READ of no bytes.
    Read,
}

/// What start-up has agreed on: with this a queue pair moves to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamParams {
    /// The connection, for the driver.
    pub conn: ConnId,
    /// CRCs are sent and checked.
    pub crc: bool,
    /// The peer wants markers.
    pub markers_send: bool,
    /// We asked for markers.
    pub markers_receive: bool,
    /// READs and atomics held as responder.
    pub ird: u16,
    /// READs and atomics outstanding as requester.
    pub ord: u16,
    /// Longest DDP segment to send, header included: [`everywire_wire::mpa::mulpdu`] of the MSS, or [`LARGE_ULPDU`].
    pub max_fpdu_payload: usize,
    /// We began the connection. The other end sends nothing before the first FPDU has arrived (RFC 5044 §7.1).
    pub initiator: bool,
    /// Peer to peer: the first frame from the initiator.
    pub rtr: Option<Rtr>,
}

impl StreamParams {
    /// Largest IRD and ORD a queue pair uses.
    pub const MAX_DEPTH: u16 = MAX_RD_ATOMIC as u16;
}

/// What the stream tells a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// This many more bytes of what [`Qp::poll_transmit`](super::Qp::poll_transmit) gave have been taken by the socket.
    Written(usize),
    /// The peer sends no more.
    Eof,
    /// The connection is gone.
    Reset,
}

/// How the driver shall end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Close {
    /// With a FIN, once everything given has been written.
    Graceful,
    /// With a RST.
    Abort,
}

/// Why a stream has not ended in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StreamFault {
    /// We found an error; the TERMINATE message says so to the peer.
    #[error("terminated by this side: {0}")]
    Ours(TermError),
    /// The peer's TERMINATE message.
    #[error("terminated by the peer: {0}")]
    Peers(TermError),
    /// The peer's FIN came before the last byte of what it had begun.
    #[error("the peer ended its stream in the middle of an FPDU or a message")]
    CutShort,
}
