//! The variant CRC: CRC-16 over a whole InfiniBand packet on one link, its last two bytes.
//!
//! Read IBTA §7.8.2 first: polynomial x^16 + x^12 + x^3 + x + 1, register of ones at the start, bits of each byte from the
//! least significant on, result complemented. It covers LRH to ICRC; like the ICRC it is written least significant byte
//! first. A switch that puts a packet on another virtual lane changes four bits of byte 0, so [`vl_changed`] gives the new
//! sum from the old one without reading the packet: the sum is linear, and only the distance to the end counts.

use crate::WireError;
use std::sync::LazyLock;

use crc_fast::{CrcParams, checksum_with_params};

use crate::field::head;
use crate::lrh::Lrh;

/// Bytes of a VCRC.
pub const VCRC_LEN: usize = 2;

/// Bytes of the shortest packet, VCRC included: five words and the VCRC (IBTA §7.7.8).
pub const MIN_PACKET_LEN: usize = 5 * 4 + VCRC_LEN;

/// The polynomial without x^16, reflected: 0x100b read from the other end.
const POLY: u16 = 0xd008;

/// From this length on, a sum by carry-less multiplication is faster than one by tables.
const LONG: usize = 128;

/// The same for crc-fast, which has vector instructions: polynomial, ones at the start, reflected, nothing at the end (the
/// last is a check value, which it does not use).
static PARAMS: LazyLock<CrcParams> = LazyLock::new(|| CrcParams::new("VCRC", 16, 0x100b, 0xffff, true, 0, 0));

/// Bytes that one step of a short sum takes.
const SLICES: usize = 16;

/// `TABLES[k][b]`: byte `b` at distance k + 1 bytes, reduced.
static TABLES: [[u16; 256]; SLICES] = tables();

/// By length in words: what bit 7 of byte 0 adds to the sum of a packet that long.
static TOP_BIT_OF_FIRST_BYTE: [u16; Lrh::MAX_PKT_LEN as usize + 1] = top_bit_of_first_byte();

const fn tables() -> [[u16; 256]; SLICES] {
    let mut t = [[0; 256]; SLICES];
    let mut b = 0;
    while b < 256 {
        let mut v = b as u16;
        let mut k = 0;
        while k < SLICES {
            v = times_x_8(v);
            t[k][b] = v;
            k += 1;
        }
        b += 1;
    }
    t
}

const fn top_bit_of_first_byte() -> [u16; Lrh::MAX_PKT_LEN as usize + 1] {
    let mut t = [0; Lrh::MAX_PKT_LEN as usize + 1];
    // One word: the bit has its own byte and three more to go.
    let mut v = 0x80;
    let mut words = 1;
    while words < t.len() {
        let mut byte = 0;
        while byte < 4 {
            v = times_x_8(v);
            byte += 1;
        }
        t[words] = v;
        words += 1;
    }
    t
}

/// A register after one bit of zero.
const fn times_x(a: u16) -> u16 {
    (a >> 1) ^ (POLY & (a & 1).wrapping_neg())
}

/// A register after one byte of zeros.
const fn times_x_8(mut a: u16) -> u16 {
    let mut bit = 0;
    while bit < 8 {
        a = times_x(a);
        bit += 1;
    }
    a
}

/// The VCRC of `lrh_to_icrc`; `to_le_bytes()` is what stands on the wire.
#[inline]
pub fn vcrc(lrh_to_icrc: &[u8]) -> u16 {
    let mut hasher = VcrcHasher::new();
    hasher.update(lrh_to_icrc);
    hasher.finish()
}

/// Sums a packet that comes in pieces.
#[derive(Debug, Clone)]
pub struct VcrcHasher {
    register: u16,
}

impl Default for VcrcHasher {
    fn default() -> Self {
        VcrcHasher::new()
    }
}

impl VcrcHasher {
    /// Before the first byte.
    #[inline]
    pub const fn new() -> VcrcHasher {
        VcrcHasher { register: !0 }
    }

    /// The next piece. Any split is right.
    pub fn update(&mut self, bytes: &[u8]) {
        if bytes.len() >= LONG {
            let mut params = *PARAMS;
            params.init_algorithm = self.register.into();
            self.register = checksum_with_params(params, bytes) as u16;
            return;
        }
        let mut register = self.register;
        let (chunks, rest) = bytes.as_chunks::<SLICES>();
        for chunk in chunks {
            let [r0, r1] = register.to_le_bytes();
            let mut sum = TABLES[SLICES - 1][usize::from(chunk[0] ^ r0)];
            sum ^= TABLES[SLICES - 2][usize::from(chunk[1] ^ r1)];
            for (k, byte) in chunk.iter().enumerate().skip(2) {
                sum ^= TABLES[SLICES - 1 - k][usize::from(*byte)];
            }
            register = sum;
        }
        for byte in rest {
            register = register >> 8 ^ TABLES[0][usize::from(register as u8 ^ byte)];
        }
        self.register = register;
    }

    /// The VCRC of what came in.
    #[inline]
    pub const fn finish(self) -> u16 {
        !self.register
    }
}

/// The VCRC after the virtual lane of a packet of `pkt_len` words ([`Lrh::pkt_len`]) has changed and nothing else has.
#[inline]
pub fn vl_changed(vcrc: u16, pkt_len: u16, from: u8, to: u8) -> u16 {
    let changed = (from ^ to) & 0x0f;
    // Bit 3 of the lane is bit 7 of the byte, the last of its four to enter the register; each bit before it went in one
    // step earlier.
    let mut term = TOP_BIT_OF_FIRST_BYTE[usize::from(pkt_len & Lrh::MAX_PKT_LEN)];
    let mut delta = 0;
    for bit in (0..4).rev() {
        delta ^= term & u16::from(changed >> bit & 1).wrapping_neg();
        term = times_x(term);
    }
    vcrc ^ delta
}

/// Why a packet is not fit for a link.
fn invalid(what: &'static str, value: u64) -> WireError {
    WireError::Invalid { what, value }
}

/// Whether `packet`, LRH to VCRC, is as long as its LRH says and ends in the right VCRC; gives the LRH.
pub fn check_packet(packet: &[u8]) -> Result<Lrh, WireError> {
    let lrh = check_length(packet)?;
    let (covered, end) = packet.split_at(packet.len() - VCRC_LEN);
    let found = u16::from_le_bytes([end[0], end[1]]);
    if found != vcrc(covered) {
        return Err(invalid("VCRC", found.into()));
    }
    Ok(lrh)
}

/// Whether `packet`, LRH to VCRC, is as long as its LRH says; gives the LRH.
#[inline]
pub fn check_length(packet: &[u8]) -> Result<Lrh, WireError> {
    head::<MIN_PACKET_LEN>("InfiniBand packet", packet)?;
    let lrh = Lrh::parse(packet)?;
    if lrh.packet_bytes() != packet.len() {
        return Err(invalid("LRH packet length", lrh.pkt_len.into()));
    }
    Ok(lrh)
}

/// Writes the VCRC into the last two bytes of `packet`, which is LRH to VCRC.
///
/// # Panics
/// If `packet` is shorter than a VCRC: it is the caller's own buffer, never the network's.
pub fn seal(packet: &mut [u8]) {
    let covered = packet.len() - VCRC_LEN;
    let sum = vcrc(&packet[..covered]);
    packet[covered..].copy_from_slice(&sum.to_le_bytes());
}

/// Moves a whole packet to another virtual lane and corrects its VCRC.
///
/// # Panics
/// If `packet` is shorter than [`MIN_PACKET_LEN`].
pub fn rewrite_vl(packet: &mut [u8], vl: u8) {
    let (from, at) = (packet[0] >> 4, packet.len() - VCRC_LEN);
    let words = (at / 4) as u16;
    let old = u16::from_le_bytes([packet[at], packet[at + 1]]);
    packet[0] = packet[0] & 0x0f | vl << 4;
    packet[at..].copy_from_slice(&vl_changed(old, words, from, vl).to_le_bytes());
}

#[cfg(test)]
mod tests;
