//! The invariant CRC: CRC-32 over what no router may change, at the end of every RoCE packet.
//!
//! Read IBTA §7.8.1 and annexes A16, A17 first. Eight bytes of ones stand in for the absent LRH; fields that change on the
//! way (IPv4 TOS, TTL, checksum; IPv6 traffic class, flow label, hop limit; UDP checksum; BTH byte 4) count as ones. The
//! result is written little-endian. The IPv4 Identification and flags are *not* masked: see [`HiddenId`] for a receiver
//! that cannot see them. Nothing here allocates.

mod gf2;
mod hidden_id;

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Bth;
use crate::roce::{ICRC_LEN, ROCE_UDP_PORT};

pub use hidden_id::{HiddenFields, HiddenId};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const GRH_LEN: usize = 40;

/// CRC-32 of eight bytes of ones, which begin every RoCE ICRC.
const CRC_OF_EIGHT_ONES: u32 = 0x2144_df1c;

/// The byte of the BTH with FECN, BECN and reserved bits.
const BTH_MASKED_BYTE: usize = 4;

/// IPv4 "don't fragment" in the flags and fragment offset word.
pub const FLAGS_DF: u16 = 0x4000;

/// What the ICRC of a RoCE v2 packet over IPv4 depends on beside the packet itself. The header has no options, and the
/// UDP destination port is 4791.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcrcV4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset; [`FLAGS_DF`] for "don't fragment".
    pub flags_frag: u16,
    /// UDP source port.
    pub src_port: u16,
}

/// What the ICRC of a RoCE v2 packet over IPv6 depends on beside the packet itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcrcV6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// UDP source port.
    pub src_port: u16,
}

/// The ICRC of a RoCE v2 packet over IPv4; `bth_to_pad` is the UDP payload without its last four bytes.
#[inline]
pub fn icrc_v4(net: &IcrcV4, bth_to_pad: &[u8]) -> u32 {
    let mut hasher = IcrcHasher::v4(net, bth_to_pad.len());
    hasher.update(bth_to_pad);
    hasher.finish()
}

/// The ICRC of a RoCE v2 packet over IPv6; `bth_to_pad` is the UDP payload without its last four bytes.
#[inline]
pub fn icrc_v6(net: &IcrcV6, bth_to_pad: &[u8]) -> u32 {
    let mut hasher = IcrcHasher::v6(net, bth_to_pad.len());
    hasher.update(bth_to_pad);
    hasher.finish()
}

/// The ICRC of a RoCE v1 packet; `bth_to_pad` is what follows the GRH, without the last four bytes.
#[inline]
pub fn icrc_grh(grh: &[u8; GRH_LEN], bth_to_pad: &[u8]) -> u32 {
    let mut hasher = IcrcHasher::grh(grh);
    hasher.update(bth_to_pad);
    hasher.finish()
}

/// An ICRC in the making: give it the bytes from the BTH to the pad, in as many pieces as is convenient, so that copying
/// and summing can share the cache. The bytes that were given must add up to the length that was announced.
#[derive(Debug, Clone)]
pub struct IcrcHasher {
    crc: u32,
    /// Bytes from the BTH on that were given, counted until the masked byte is behind us.
    seen: usize,
}

impl IcrcHasher {
    /// For RoCE v2 over IPv4. `payload_len` counts from the BTH to the end of the pad, without the ICRC.
    #[inline]
    pub fn v4(net: &IcrcV4, payload_len: usize) -> IcrcHasher {
        let udp_len = (UDP_LEN + payload_len + ICRC_LEN) as u16;
        let [len0, len1] = (udp_len.wrapping_add(IPV4_LEN as u16)).to_be_bytes();
        let ([id0, id1], [f0, f1]) = (net.id.to_be_bytes(), net.flags_frag.to_be_bytes());
        let mut prefix = [0; IPV4_LEN + UDP_LEN];
        // TOS, TTL and header checksum as ones.
        prefix[..12].copy_from_slice(&[0x45, 0xff, len0, len1, id0, id1, f0, f1, 0xff, 17, 0xff, 0xff]);
        prefix[12..16].copy_from_slice(&net.src.octets());
        prefix[16..20].copy_from_slice(&net.dst.octets());
        prefix[20..28].copy_from_slice(&masked_udp(net.src_port, udp_len));
        IcrcHasher::begin(&prefix)
    }

    /// For RoCE v2 over IPv6. `payload_len` counts from the BTH to the end of the pad, without the ICRC.
    #[inline]
    pub fn v6(net: &IcrcV6, payload_len: usize) -> IcrcHasher {
        let udp_len = (UDP_LEN + payload_len + ICRC_LEN) as u16;
        let [len0, len1] = udp_len.to_be_bytes();
        let mut prefix = [0; IPV6_LEN + UDP_LEN];
        // Traffic class, flow label and hop limit as ones.
        prefix[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, len0, len1, 17, 0xff]);
        prefix[8..24].copy_from_slice(&net.src.octets());
        prefix[24..40].copy_from_slice(&net.dst.octets());
        prefix[40..48].copy_from_slice(&masked_udp(net.src_port, udp_len));
        IcrcHasher::begin(&prefix)
    }

    /// For RoCE v1: the Global Routing Header as it stands on the wire.
    #[inline]
    pub fn grh(grh: &[u8; GRH_LEN]) -> IcrcHasher {
        let mut prefix = *grh;
        // Traffic class, flow label and hop limit as ones.
        prefix[0] |= 0x0f;
        prefix[1..4].fill(0xff);
        prefix[7] = 0xff;
        IcrcHasher::begin(&prefix)
    }

    #[inline]
    fn begin(masked_headers: &[u8]) -> IcrcHasher {
        IcrcHasher { crc: crc32(CRC_OF_EIGHT_ONES, masked_headers), seen: 0 }
    }

    /// The next piece. Any split is right; it is fastest when the first piece has the whole BTH and no piece is tiny.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let rest = if self.seen > BTH_MASKED_BYTE { bytes } else { self.update_bth(bytes) };
        self.crc = crc32(self.crc, rest);
    }

    /// Takes bytes of the BTH, at least as far as its masked byte if they reach it, and returns the others.
    #[inline]
    fn update_bth<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (start, rest) = bytes.split_at(bytes.len().min(Bth::LEN));
        let mut masked = [0; Bth::LEN];
        let masked = &mut masked[..start.len()];
        masked.copy_from_slice(start);
        if let Some(byte) = masked.get_mut(BTH_MASKED_BYTE - self.seen) {
            *byte = 0xff;
        }
        self.crc = crc32(self.crc, masked);
        self.seen += start.len();
        rest
    }

    /// The ICRC; `to_le_bytes()` is what stands on the wire.
    #[inline]
    pub fn finish(self) -> u32 {
        self.crc
    }
}

/// Below this, crc32fast goes byte by byte where it could take eight; above, it has vector instructions.
const SHORT: usize = 128;

/// Continues a finished CRC-32 over more bytes.
#[inline]
fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < SHORT {
        return !gf2::shift_in(!crc, bytes);
    }
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

#[inline]
fn masked_udp(src_port: u16, udp_len: u16) -> [u8; UDP_LEN] {
    let ([s0, s1], [d0, d1]) = (src_port.to_be_bytes(), ROCE_UDP_PORT.to_be_bytes());
    let [l0, l1] = udp_len.to_be_bytes();
    [s0, s1, d0, d1, l0, l1, 0xff, 0xff]
}

#[cfg(test)]
mod tests;
