//! TCP in a capture: each direction's bytes in their order, whatever the order of the segments.
//!
//! Read RFC 9293 §3.1 and §3.4 first. A direction is followed from its SYN, or from a segment that its user knows as a
//! beginning. What was captured twice counts once; what is missing stops the direction for good, since nobody sends it again
//! for a capture.

use std::net::SocketAddr;

use everywire_wire::eth::EthHeader;
use everywire_wire::ip::IpHeader;

/// IANA's number of TCP.
const PROTOCOL_TCP: u8 = 6;
const HEADER_LEN: usize = 20;
/// Bytes that wait for an earlier segment, at most, a direction.
const MAX_AHEAD: usize = 1 << 20;

/// A TCP segment of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// Sequence number of the first byte.
    pub seq: u32,
    pub syn: bool,
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The segment in an Ethernet frame; `None` where there is none that is whole.
    pub fn parse(frame: &'a [u8]) -> Option<Segment<'a>> {
        let eth = EthHeader::parse(frame).ok()?;
        let rest = frame.get(eth.header_len()..)?;
        let ip = IpHeader::parse(rest).ok()?;
        let fragment = matches!(ip, IpHeader::V4(h) if h.is_fragment());
        if eth.ethertype != ip.ethertype() || ip.protocol() != PROTOCOL_TCP || fragment {
            return None;
        }
        let packet = rest.get(ip.header_len()..)?.get(..ip.payload_len())?;
        let header: &[u8; HEADER_LEN] = packet.first_chunk()?;
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let payload = packet.get(usize::from(header[12] >> 4) * 4..)?;
        Some(Segment {
            src: (ip.src(), port(0)).into(),
            dst: (ip.dst(), port(2)).into(),
            seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            syn: header[13] & 2 != 0,
            payload,
        })
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Direction {
    /// The next byte's sequence number, once the beginning was seen.
    next: Option<u32>,
    /// Segments that came before their time.
    ahead: Vec<(u32, Vec<u8>)>,
}

impl Direction {
    /// Whether its beginning was seen.
    pub fn is_followed(&self) -> bool {
        self.next.is_some()
    }

    /// Begins at a SYN's sequence number.
    pub fn begin(&mut self, syn: u32) {
        *self = Direction { next: Some(syn.wrapping_add(1)), ahead: Vec::new() };
    }

    /// Takes a segment in, and appends to `out` what is in order now.
    pub fn take(&mut self, seq: u32, payload: &[u8], out: &mut Vec<u8>) {
        let Some(mut next) = self.next else { return };
        append(&mut next, seq, payload, out);
        if seq.wrapping_sub(next) as i32 > 0 {
            let waiting: usize = self.ahead.iter().map(|a| a.1.len()).sum();
            if waiting + payload.len() <= MAX_AHEAD {
                self.ahead.push((seq, payload.to_vec()));
            }
        }
        // Each round takes at least one segment out.
        while let Some(at) = self.ahead.iter().position(|a| a.0.wrapping_sub(next) as i32 <= 0) {
            let (seq, bytes) = self.ahead.swap_remove(at);
            append(&mut next, seq, &bytes, out);
        }
        self.next = Some(next);
    }
}

/// Appends what of the segment is new, if it joins on.
fn append(next: &mut u32, seq: u32, payload: &[u8], out: &mut Vec<u8>) {
    let known = next.wrapping_sub(seq);
    if known as i32 >= 0
        && let Some(new) = payload.get(known as usize..)
    {
        out.extend_from_slice(new);
        *next = next.wrapping_add(new.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_in_any_order_and_twice() {
        // The sequence numbers wrap in the middle.
        let mut direction = Direction::default();
        direction.begin(u32::MAX - 4);
        let mut out = Vec::new();
        for (seq, bytes) in
            [(1u32, &b"fgh"[..]), (u32::MAX - 3, b"ab"), (u32::MAX - 3, b"abcde"), (0, b"efg"), (4, b"i")]
        {
            direction.take(seq, bytes, &mut out);
        }
        assert_eq!(out, b"abcdefghi");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut direction = Direction::default();
        direction.begin(0);
        let mut out = Vec::new();
        for i in 0..40u32 {
            direction.take(1000 + i * 65_000, &[0; 65_000], &mut out);
        }
        assert!(out.is_empty());
        assert!(direction.ahead.iter().map(|a| a.1.len()).sum::<usize>() <= MAX_AHEAD);
    }
}
