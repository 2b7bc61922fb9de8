//! `--capture FILE` of an iWARP device: its TCP connections as Ethernet frames in a pcapng file, live.
//!
//! Sockets show bytes, not segments, so segments are put together: a handshake, data of at most the MSS, acknowledgements that
//! follow at once, the end. Sequence numbers are right and begin at 0, so that a dissector puts the stream together; a segment
//! begins with an FPDU wherever a burst does. What was on the wire (retransmissions, window, options) is not shown.

use std::collections::HashMap;
use std::net::SocketAddr;

use everywire_fabric::pcapng::Direction;
use everywire_verbs::{ConnEvent, ConnId, StreamBurst};

use everywire_wire::eth::EthHeader;
use everywire_wire::mpa;
use everywire_wire::tcp::{PROTOCOL_TCP, TcpHeader};

use crate::capture::{Capture, ip_header_of, made_up_mac};

/// Longest payload of a segment: with its headers it fits an IPv4 datagram.
const MAX_PAYLOAD: usize = 65_000;
/// Shortest, where the kernel tells nonsense.
const MIN_PAYLOAD: usize = 256;

const FIN: u8 = TcpHeader::FIN;
const SYN: u8 = TcpHeader::SYN;
const RST: u8 = TcpHeader::RST;
const PSH: u8 = TcpHeader::PSH;
const ACK: u8 = TcpHeader::ACK;
/// A window that never closes.
const WINDOW: u16 = u16::MAX;

/// A connection as the file shows it.
#[derive(Debug)]
struct Shown {
    local: SocketAddr,
    peer: SocketAddr,
    payload: usize,
    /// Next sequence numbers.
    ours: u32,
    theirs: u32,
    /// Which ends were said: ours, the peer's.
    ended: (bool, bool),
}

/// The capture of a device's connections.
#[derive(Debug)]
pub(crate) struct StreamCapture {
    file: Capture,
    shown: HashMap<ConnId, Shown>,
    /// Destinations of connections that are being made.
    dialled: HashMap<ConnId, SocketAddr>,
    bytes: Vec<u8>,
    frame: Vec<u8>,
}

impl StreamCapture {
    pub(crate) fn new(file: Capture) -> StreamCapture {
        StreamCapture {
            file,
            shown: HashMap::new(),
            dialled: HashMap::new(),
            bytes: Vec::new(),
            frame: Vec::new(),
        }
    }

    /// Connections that it remembers.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.shown.len() + self.dialled.len()
    }

    pub(crate) fn flush(&mut self) {
        self.file.flush();
    }

    /// We connect.
    pub(crate) fn dialled(&mut self, conn: ConnId, dst: SocketAddr) {
        self.dialled.insert(conn, dst);
    }

    /// A connection was established, by us or by the peer.
    pub(crate) fn opened(
        &mut self,
        conn: ConnId,
        local: SocketAddr,
        peer: SocketAddr,
        mss: usize,
        by_us: bool,
    ) {
        let payload = mss.clamp(MIN_PAYLOAD, MAX_PAYLOAD);
        self.shown.insert(conn, Shown { local, peer, payload, ours: 0, theirs: 0, ended: (false, false) });
        let (first, second) = match by_us {
            true => (Direction::Outbound, Direction::Inbound),
            false => (Direction::Inbound, Direction::Outbound),
        };
        self.segment(conn, first, SYN, &[]);
        self.segment(conn, second, SYN | ACK, &[]);
        self.segment(conn, first, ACK, &[]);
    }

    /// Bytes were given to the socket.
    pub(crate) fn sent(&mut self, conn: ConnId, burst: &StreamBurst) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        burst.copy_to(0, &mut bytes);
        let mut rest = &bytes[..];
        // An FPDU a segment, as long as their lengths make sense: with markers between they do not.
        for _ in 0..burst.fpdus() {
            let fpdu = rest.first_chunk().map(|length| mpa::fpdu_len(u16::from_be_bytes(*length).into()));
            let Some((fpdu, behind)) = fpdu.and_then(|length| rest.split_at_checked(length)) else { break };
            self.data(conn, Direction::Outbound, fpdu);
            rest = behind;
        }
        self.data(conn, Direction::Outbound, rest);
        self.bytes = bytes;
    }

    /// Bytes came.
    pub(crate) fn received(&mut self, conn: ConnId, bytes: &[u8]) {
        self.data(conn, Direction::Inbound, bytes);
    }

    fn data(&mut self, conn: ConnId, direction: Direction, bytes: &[u8]) {
        let Some(payload) = self.shown.get(&conn).map(|shown| shown.payload) else { return };
        let mut pieces = bytes.chunks(payload).peekable();
        while let Some(piece) = pieces.next() {
            let push = if pieces.peek().is_none() { PSH } else { 0 };
            self.segment(conn, direction, ACK | push, piece);
        }
    }

    /// Something happened to a connection.
    pub(crate) fn event(&mut self, conn: ConnId, event: &ConnEvent) {
        match event {
            ConnEvent::Connected { local, mss } => {
                if let Some(peer) = self.dialled.remove(&conn) {
                    self.opened(conn, *local, peer, *mss, true);
                }
            }
            ConnEvent::Failed(_) => drop(self.dialled.remove(&conn)),
            ConnEvent::Eof => self.end(conn, Direction::Inbound),
            ConnEvent::Reset(_) => {
                self.segment(conn, Direction::Inbound, RST | ACK, &[]);
                self.shown.remove(&conn);
            }
            ConnEvent::Written(_) => {}
        }
    }

    /// We say our end.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        self.end(conn, Direction::Outbound);
    }

    /// One end is said; a connection that both have ended is forgotten, as the device forgets it.
    fn end(&mut self, conn: ConnId, direction: Direction) {
        self.segment(conn, direction, FIN | ACK, &[]);
        let Some(shown) = self.shown.get_mut(&conn) else { return };
        match direction {
            Direction::Outbound => shown.ended.0 = true,
            Direction::Inbound => shown.ended.1 = true,
        }
        if shown.ended == (true, true) {
            self.shown.remove(&conn);
        }
    }

    /// We reset it.
    pub(crate) fn reset(&mut self, conn: ConnId) {
        self.segment(conn, Direction::Outbound, RST | ACK, &[]);
        self.shown.remove(&conn);
        self.dialled.remove(&conn);
    }

    fn segment(&mut self, conn: ConnId, direction: Direction, flags: u8, payload: &[u8]) {
        let Some(shown) = self.shown.get_mut(&conn) else { return };
        let (src, dst, seq, ack) = match direction {
            Direction::Outbound => (shown.local, shown.peer, &mut shown.ours, shown.theirs),
            Direction::Inbound => (shown.peer, shown.local, &mut shown.theirs, shown.ours),
        };
        let ack = if flags & ACK == 0 { 0 } else { ack };
        frame(&mut self.frame, (src, dst), (*seq, ack), flags, payload);
        self.file.frame(direction, &self.frame, None);
        // SYN and FIN count as a byte each.
        let counted = u32::from(flags & (SYN | FIN) != 0);
        *seq = seq.wrapping_add(payload.len() as u32).wrapping_add(counted);
    }
}

/// A segment in a frame: MAC addresses are made up from the IP addresses, lengths and checksums are right.
fn frame(out: &mut Vec<u8>, ends: (SocketAddr, SocketAddr), numbers: (u32, u32), flags: u8, payload: &[u8]) {
    out.clear();
    let ((src, dst), (seq, ack)) = (ends, numbers);
    let ips = (src.ip(), dst.ip());
    let Some(ip) = ip_header_of(ips, PROTOCOL_TCP, TcpHeader::LEN + payload.len()) else { return };
    let eth = EthHeader {
        dst: made_up_mac(dst.ip()),
        src: made_up_mac(src.ip()),
        vlan: None,
        ethertype: ip.ethertype(),
    };
    let mut tcp = TcpHeader {
        src_port: src.port(),
        dst_port: dst.port(),
        seq,
        ack,
        header_len: TcpHeader::LEN as u8,
        flags,
        window: WINDOW,
        checksum: 0,
        urgent: 0,
    };
    tcp.checksum = tcp.expected_checksum(ips.0, ips.1, payload);
    let ip_at = eth.header_len();
    let tcp_at = ip_at + ip.header_len();
    out.resize(tcp_at + TcpHeader::LEN, 0);
    eth.emit(out);
    ip.emit(&mut out[ip_at..]);
    tcp.emit(&mut out[tcp_at..]);
    out.extend_from_slice(payload);
}
