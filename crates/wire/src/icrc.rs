//! The invariant CRC: CRC-32 over what no router may change, at the end of every RoCE and InfiniBand packet.
//!
//! Read IBTA §7.8.1 and annexes A16, A17 first. Eight bytes of ones stand in for the LRH that RoCE lacks; fields that change on the
//! way (IPv4 TOS, TTL, checksum; IPv6 traffic class, flow label, hop limit; UDP checksum; BTH byte 4) count as ones. The
//! result is written little-endian. The IPv4 Identification and flags are *not* masked: see [`HiddenId`] for a receiver
//! that cannot see them. Nothing here allocates.

mod gf2;
mod hidden_id;

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Bth;
use crate::lrh::{Lnh, Lrh};
use crate::roce::{ICRC_LEN, ROCE_UDP_PORT};

pub use hidden_id::{HiddenFields, HiddenId};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const GRH_LEN: usize = 40;

/// CRC-32 of eight bytes of ones, which begin every RoCE ICRC.
const CRC_OF_EIGHT_ONES: u32 = 0x2144_df1c;

/// Bytes of ones that a sum from a zero register begins with.
const ONES: usize = 4;

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
    icrc(&masked_v4(net, bth_to_pad.len()), bth_to_pad)
}

/// The ICRC of a RoCE v2 packet over IPv6; `bth_to_pad` is the UDP payload without its last four bytes.
#[inline]
pub fn icrc_v6(net: &IcrcV6, bth_to_pad: &[u8]) -> u32 {
    icrc(&masked_v6(net, bth_to_pad.len()), bth_to_pad)
}

/// The ICRC of a RoCE v1 packet; `bth_to_pad` is what follows the GRH, without the last four bytes.
#[inline]
pub fn icrc_grh(grh: &[u8; GRH_LEN], bth_to_pad: &[u8]) -> u32 {
    icrc(&masked_grh(grh), bth_to_pad)
}

/// The ICRC of an InfiniBand packet; `lrh_to_pad` begins with its LRH and ends before the ICRC. `None` for a raw packet,
/// which has none, and for one too short to hold the headers that its LRH announces.
///
/// Inside the subnet the LRH counts but for the virtual lane; with a GRH the whole LRH counts as ones, since routers
/// write another (IBTA §7.8.1).
pub fn icrc_ib(lrh_to_pad: &[u8]) -> Option<u32> {
    let (lrh, rest) = lrh_to_pad.split_first_chunk::<{ Lrh::LEN }>()?;
    match Lnh::from_code(lrh[1]) {
        Lnh::IbaLocal if rest.len() >= Bth::LEN => {
            let mut hasher = IcrcHasher::lrh(lrh);
            hasher.update(rest);
            Some(hasher.finish())
        }
        Lnh::IbaGlobal => {
            let (grh, bth_to_pad) = rest.split_first_chunk::<GRH_LEN>()?;
            (bth_to_pad.len() >= Bth::LEN).then(|| icrc_grh(grh, bth_to_pad))
        }
        _ => None,
    }
}

#[inline]
fn icrc<const N: usize>(masked_headers: &[u8; N], bth_to_pad: &[u8]) -> u32 {
    if let Some(icrc) = icrc_of_short(masked_headers, bth_to_pad) {
        return icrc;
    }
    let mut hasher = IcrcHasher::begin(masked_headers);
    hasher.update(bth_to_pad);
    hasher.finish()
}

/// Everything that a short packet's ICRC covers, in one piece with zeros before it, so that the vector instructions take it
/// in one go: zeros leave a zero register as it is. `None` if it is longer.
#[inline]
fn icrc_of_short<const N: usize>(masked_headers: &[u8; N], bth_to_pad: &[u8]) -> Option<u32> {
    const ROOM: usize = 2 * SHORT;
    // A register of ones turns the first four of the eight bytes of ones into zeros, which need not be there.
    let len = ONES + N + bth_to_pad.len();
    if len > ROOM || bth_to_pad.len() < Bth::LEN {
        return None;
    }
    let mut covered = [0; ROOM];
    let at = ROOM - len;
    covered[at..at + ONES].fill(0xff);
    covered[at + ONES..at + ONES + N].copy_from_slice(masked_headers);
    covered[at + ONES + N..].copy_from_slice(bth_to_pad);
    covered[at + ONES + N + BTH_MASKED_BYTE] = 0xff;
    let from = if len <= SHORT { ROOM - SHORT } else { 0 };
    let mut hasher = crc32fast::Hasher::new_with_initial(!0);
    hasher.update(&covered[from..]);
    Some(hasher.finalize())
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
        IcrcHasher::begin(&masked_v4(net, payload_len))
    }

    /// For RoCE v2 over IPv6. `payload_len` counts from the BTH to the end of the pad, without the ICRC.
    #[inline]
    pub fn v6(net: &IcrcV6, payload_len: usize) -> IcrcHasher {
        IcrcHasher::begin(&masked_v6(net, payload_len))
    }

    /// For RoCE v1: the Global Routing Header as it stands on the wire.
    #[inline]
    pub fn grh(grh: &[u8; GRH_LEN]) -> IcrcHasher {
        IcrcHasher::begin(&masked_grh(grh))
    }

    /// For an InfiniBand packet without GRH.
    #[inline]
    pub fn lrh(lrh: &[u8; Lrh::LEN]) -> IcrcHasher {
        let mut masked = *lrh;
        masked[0] |= 0xf0;
        IcrcHasher { crc: crc32(0, &masked), seen: 0 }
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

/// Below this, crc32fast goes byte by byte where it could take eight; from here on it has vector instructions.
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

/// IPv4 and UDP headers with TOS, TTL and the checksums as ones.
#[inline]
fn masked_v4(net: &IcrcV4, payload_len: usize) -> [u8; IPV4_LEN + UDP_LEN] {
    let udp_len = (UDP_LEN + payload_len + ICRC_LEN) as u16;
    let [len0, len1] = (udp_len.wrapping_add(IPV4_LEN as u16)).to_be_bytes();
    let ([id0, id1], [f0, f1]) = (net.id.to_be_bytes(), net.flags_frag.to_be_bytes());
    let mut prefix = [0; IPV4_LEN + UDP_LEN];
    prefix[..12].copy_from_slice(&[0x45, 0xff, len0, len1, id0, id1, f0, f1, 0xff, 17, 0xff, 0xff]);
    prefix[12..16].copy_from_slice(&net.src.octets());
    prefix[16..20].copy_from_slice(&net.dst.octets());
    prefix[20..28].copy_from_slice(&masked_udp(net.src_port, udp_len));
    prefix
}

/// IPv6 and UDP headers with traffic class, flow label, hop limit and checksum as ones.
#[inline]
fn masked_v6(net: &IcrcV6, payload_len: usize) -> [u8; IPV6_LEN + UDP_LEN] {
    let udp_len = (UDP_LEN + payload_len + ICRC_LEN) as u16;
    let [len0, len1] = udp_len.to_be_bytes();
    let mut prefix = [0; IPV6_LEN + UDP_LEN];
    prefix[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, len0, len1, 17, 0xff]);
    prefix[8..24].copy_from_slice(&net.src.octets());
    prefix[24..40].copy_from_slice(&net.dst.octets());
    prefix[40..48].copy_from_slice(&masked_udp(net.src_port, udp_len));
    prefix
}

/// A Global Routing Header with traffic class, flow label and hop limit as ones.
#[inline]
fn masked_grh(grh: &[u8; GRH_LEN]) -> [u8; GRH_LEN] {
    let mut prefix = *grh;
    prefix[0] |= 0x0f;
    prefix[1..4].fill(0xff);
    prefix[7] = 0xff;
    prefix
}

#[inline]
fn masked_udp(src_port: u16, udp_len: u16) -> [u8; UDP_LEN] {
    let ([s0, s1], [d0, d1]) = (src_port.to_be_bytes(), ROCE_UDP_PORT.to_be_bytes());
    let [l0, l1] = udp_len.to_be_bytes();
    [s0, s1, d0, d1, l0, l1, 0xff, 0xff]
}

#[cfg(test)]
mod tests;
