//! IPv4 and IPv6 headers as RoCE v2 uses them.
//!
//! Read RFC 791 §3.1, RFC 8200 §3 and IBTA annex A17 first: RoCE v2 packets have no IPv4 options, no extension headers and
//! are never fragmented, so a header with options is refused, and extension headers and fragments are not followed.
//! Checksums are kept as they are; whoever builds a packet asks for the right one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::WireError;
use crate::eth::Ethertype;
use crate::field::{array, get16, get32, head, head_mut, put, put16, put32};

/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// The two low bits of TOS and traffic class (RFC 3168 §5).
pub const ECN_MASK: u8 = 0x03;
/// Not ECN capable.
pub const ECN_NOT_ECT: u8 = 0;
/// ECN capable; what RoCE senders mark packets with.
pub const ECN_ECT0: u8 = 2;
/// Congestion experienced.
pub const ECN_CE: u8 = 3;

/// IPv4 header without options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Three flag bits and the fragment offset; 0x4000 is "don't fragment".
    pub flags_frag: u16,
    /// Time to live.
    pub ttl: u8,
    /// What the payload is.
    pub protocol: u8,
    /// Header checksum as on the wire.
    pub checksum: u16,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4Header {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// "Don't fragment" in [`Ipv4Header::flags_frag`].
    pub const DF: u16 = 0x4000;

    /// Reads the header at the start of `bytes`. The checksum is not verified.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Ipv4Header, WireError> {
        let b = head::<{ Ipv4Header::LEN }>("IPv4 header", bytes)?;
        if b[0] != 0x45 {
            return Err(WireError::Invalid {
                what: "IPv4 version and header length",
                value: u64::from(b[0]),
            });
        }
        Ok(Ipv4Header {
            tos: b[1],
            total_len: get16(b, 2),
            id: get16(b, 4),
            flags_frag: get16(b, 6),
            ttl: b[8],
            protocol: b[9],
            checksum: get16(b, 10),
            src: array(b, 12).into(),
            dst: array(b, 16).into(),
        })
    }

    /// Writes the header at the start of `out`, checksum as given. Panics where `out` is shorter than [`Ipv4Header::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ Ipv4Header::LEN }>("IPv4 header", out);
        b[0] = 0x45;
        b[1] = self.tos;
        put16(b, 2, self.total_len);
        put16(b, 4, self.id);
        put16(b, 6, self.flags_frag);
        b[8] = self.ttl;
        b[9] = self.protocol;
        put16(b, 10, self.checksum);
        put(b, 12, &self.src.octets());
        put(b, 16, &self.dst.octets());
    }

    /// The checksum that the header should have.
    #[inline]
    pub fn expected_checksum(&self) -> u16 {
        let mut b = [0; Ipv4Header::LEN];
        Ipv4Header { checksum: 0, ..*self }.emit(&mut b);
        let mut sum = Checksum::new();
        sum.add(&b);
        sum.finish()
    }

    /// The header with the right checksum.
    #[inline]
    #[must_use]
    pub fn with_checksum(mut self) -> Ipv4Header {
        self.checksum = self.expected_checksum();
        self
    }

    /// More fragments follow, or this is not the first.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.flags_frag & 0x3fff != 0
    }
}

/// IPv6 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_len: u16,
    /// What the payload is.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Ipv6Header, WireError> {
        let b = head::<{ Ipv6Header::LEN }>("IPv6 header", bytes)?;
        let word = get32(b, 0);
        if word >> 28 != 6 {
            return Err(WireError::Invalid { what: "IPv6 version", value: u64::from(word >> 28) });
        }
        Ok(Ipv6Header {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            payload_len: get16(b, 4),
            next_header: b[6],
            hop_limit: b[7],
            src: array(b, 8).into(),
            dst: array(b, 24).into(),
        })
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`Ipv6Header::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ Ipv6Header::LEN }>("IPv6 header", out);
        put32(b, 0, 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff);
        put16(b, 4, self.payload_len);
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        put(b, 8, &self.src.octets());
        put(b, 24, &self.dst.octets());
    }
}

/// An IP header of either version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4Header),
    /// IPv6.
    V6(Ipv6Header),
}

impl IpHeader {
    /// Reads the header at the start of `bytes`; the version is in its first four bits.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<IpHeader, WireError> {
        match head::<1>("IP header", bytes)?[0] >> 4 {
            4 => Ipv4Header::parse(bytes).map(IpHeader::V4),
            6 => Ipv6Header::parse(bytes).map(IpHeader::V6),
            v => Err(WireError::Invalid { what: "IP version", value: u64::from(v) }),
        }
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`IpHeader::header_len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        match self {
            IpHeader::V4(h) => h.emit(out),
            IpHeader::V6(h) => h.emit(out),
        }
    }

    /// 20 or 40.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self {
            IpHeader::V4(_) => Ipv4Header::LEN,
            IpHeader::V6(_) => Ipv6Header::LEN,
        }
    }

    /// Bytes after the header, by the header's own count.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        match self {
            IpHeader::V4(h) => (h.total_len as usize).saturating_sub(Ipv4Header::LEN),
            IpHeader::V6(h) => h.payload_len as usize,
        }
    }

    /// Source address.
    #[inline]
    pub const fn src(&self) -> IpAddr {
        match self {
            IpHeader::V4(h) => IpAddr::V4(h.src),
            IpHeader::V6(h) => IpAddr::V6(h.src),
        }
    }

    /// Destination address.
    #[inline]
    pub const fn dst(&self) -> IpAddr {
        match self {
            IpHeader::V4(h) => IpAddr::V4(h.dst),
            IpHeader::V6(h) => IpAddr::V6(h.dst),
        }
    }

    /// What the payload is.
    #[inline]
    pub const fn protocol(&self) -> u8 {
        match self {
            IpHeader::V4(h) => h.protocol,
            IpHeader::V6(h) => h.next_header,
        }
    }

    /// TOS or traffic class: DSCP and ECN.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            IpHeader::V4(h) => h.tos,
            IpHeader::V6(h) => h.traffic_class,
        }
    }

    /// TTL or hop limit.
    #[inline]
    pub const fn hop_limit(&self) -> u8 {
        match self {
            IpHeader::V4(h) => h.ttl,
            IpHeader::V6(h) => h.hop_limit,
        }
    }

    /// The Ethertype under which it travels.
    #[inline]
    pub const fn ethertype(&self) -> Ethertype {
        match self {
            IpHeader::V4(_) => Ethertype::IPV4,
            IpHeader::V6(_) => Ethertype::IPV6,
        }
    }
}

/// The Internet checksum (RFC 1071) over pieces; each piece but the last must have an even length.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// Nothing added yet.
    pub const fn new() -> Checksum {
        Checksum(0)
    }

    /// Adds a piece; an odd last byte counts as if a zero followed.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        // Sums of 32-bit words are congruent to sums of 16-bit ones modulo 0xffff (RFC 1071 §2), and 2^32 words of 32 bits
        // fit 64.
        let (words, tail) = bytes.as_chunks::<4>();
        self.0 += words.iter().map(|w| u64::from(u32::from_be_bytes(*w))).sum::<u64>();
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        self.0 += u64::from(u32::from_be_bytes(last));
    }

    /// The complement of the folded sum.
    #[inline]
    pub const fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_rfc_1071() {
        // RFC 1071 §3: the sum of this sequence is ddf2.
        let mut sum = Checksum::new();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.finish(), !0xddf2);
    }

    #[test]
    fn pieces_and_odd_tails() {
        let bytes = [1, 2, 3, 4, 5, 6, 7];
        let mut whole = Checksum::new();
        whole.add(&bytes);
        let mut pieces = Checksum::new();
        pieces.add(&bytes[..2]);
        pieces.add(&bytes[2..]);
        assert_eq!(whole.finish(), pieces.finish());
        assert_eq!(whole.finish(), !(0x0102 + 0x0304 + 0x0506 + 0x0700));
    }

    #[test]
    fn options_and_wrong_versions_are_refused() {
        let mut b = [0u8; 40];
        for first in [0x46, 0x44, 0x55] {
            b[0] = first;
            assert!(Ipv4Header::parse(&b).is_err());
        }
        assert!(Ipv6Header::parse(&b).is_err());
        assert!(matches!(IpHeader::parse(&b), Err(WireError::Invalid { value: 5, .. })));
        assert!(IpHeader::parse(&[]).is_err());
    }
}
