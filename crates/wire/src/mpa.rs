//! Marker PDU Aligned Framing: what iWARP puts between TCP and DDP.
//!
//! Read RFC 5044 §4 (FPDUs, markers, CRC) and §7 (start-up), then RFC 6581 §9 (the enhanced start-up). A connection begins
//! with one start frame each way ([`start`]) and goes on as FPDUs: a length, a DDP segment, padding to four bytes and a
//! CRC32C, through which runs a marker every 512 bytes of the stream if the receiver asked for them. This module knows
//! single frames only: who may send what, and where in the stream a marker falls, is the transport's business.

pub mod start;

use crate::WireError;
use crate::field::{array, get16, put, put16};

pub use start::{Enhanced, StartFrame, StartKind};

/// Bytes of the ULPDU_Length field.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field.
pub const CRC_LEN: usize = 4;
/// Longest ULPDU (RFC 5044 §5: what still fits its length field, framed, in one IP datagram).
pub const MAX_ULPDU: usize = 64_768;
/// Bytes of the stream from one marker to the next, markers included (RFC 5044 §4.3).
pub const MARKER_INTERVAL: u64 = 512;

/// Padding that brings a length field and a ULPDU to a multiple of four.
#[inline]
pub const fn pad_len(ulpdu: usize) -> usize {
    (LENGTH_LEN + ulpdu).wrapping_neg() & 3
}

/// Bytes of an FPDU without markers: length, ULPDU, padding, CRC.
#[inline]
pub const fn fpdu_len(ulpdu: usize) -> usize {
    LENGTH_LEN + ulpdu + pad_len(ulpdu) + CRC_LEN
}

/// The longest ULPDU whose FPDU fits one TCP segment of `emss` bytes, markers included (RFC 5044 §5, MULPDU).
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { 4 * emss.div_ceil(MARKER_INTERVAL as usize) } else { 0 };
    let fits = emss.saturating_sub(LENGTH_LEN + CRC_LEN + markers + emss % 4);
    if fits > MAX_ULPDU { MAX_ULPDU } else { fits }
}

/// One FPDU without markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// The DDP segment.
    pub ulpdu: &'a [u8],
    /// Padding, 0 to 3 bytes; senders set it to zero.
    pub pad: &'a [u8],
    /// The CRC field; zero where CRCs are not in use.
    pub crc: [u8; CRC_LEN],
}

impl<'a> Fpdu<'a> {
    /// Reads the FPDU at the start of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Fpdu<'a>, WireError> {
        let head = crate::field::head::<LENGTH_LEN>("FPDU", bytes)?;
        let len = usize::from(get16(head, 0));
        let need = fpdu_len(len);
        let Some(whole) = bytes.get(..need) else {
            return Err(WireError::Truncated { what: "FPDU", need, have: bytes.len() });
        };
        let (ulpdu, rest) = whole[LENGTH_LEN..].split_at(len);
        let (pad, crc) = rest.split_at(pad_len(len));
        Ok(Fpdu { ulpdu, pad, crc: array(crc, 0) })
    }

    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        fpdu_len(self.ulpdu.len())
    }

    /// Whether it carries no DDP segment: the ready-to-receive frame of RFC 6581 §9.
    pub fn is_empty(&self) -> bool {
        self.ulpdu.is_empty()
    }

    /// Appends it to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.ulpdu.len() as u16).to_be_bytes());
        out.extend_from_slice(self.ulpdu);
        out.extend_from_slice(self.pad);
        out.extend_from_slice(&self.crc);
    }

    /// The CRC that the CRC field should hold.
    pub fn computed_crc(&self) -> [u8; CRC_LEN] {
        let mut sum = Crc32c::new();
        sum.update(&(self.ulpdu.len() as u16).to_be_bytes());
        sum.update(self.ulpdu);
        sum.update(self.pad);
        sum.finish()
    }
}

/// A marker: where the FPDU that it stands in, or right before, begins (RFC 5044 §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Marker {
    /// Sent as zero, ignored.
    pub reserved: u16,
    /// Bytes of the stream from the FPDU's length field to this marker; 0 right before an FPDU. A multiple of four.
    pub fpdu_ptr: u16,
}

impl Marker {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the marker at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Marker, WireError> {
        let b = crate::field::head::<{ Marker::LEN }>("MPA marker", bytes)?;
        Ok(Marker { reserved: get16(b, 0), fpdu_ptr: get16(b, 2) })
    }

    /// Writes it at the start of `out`. Panics where `out` is shorter than [`Marker::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let b = crate::field::head_mut::<{ Marker::LEN }>("MPA marker", out);
        put16(b, 0, self.reserved);
        put16(b, 2, self.fpdu_ptr);
    }
}

/// CRC32C in pieces, as MPA sends it (RFC 5044 §4.4: as iSCSI's, the complement, low byte first).
#[derive(Clone, Debug)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}

impl Crc32c {
    /// Of no bytes so far.
    #[inline]
    pub fn new() -> Crc32c {
        Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Takes more bytes in.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC field.
    #[inline]
    pub fn finish(&self) -> [u8; CRC_LEN] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

/// The CRC field over `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> [u8; CRC_LEN] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Writes the CRC of all before it into the last four bytes of an FPDU.
pub fn seal(fpdu: &mut [u8]) {
    let at = fpdu.len() - CRC_LEN;
    let crc = crc32c(&fpdu[..at]);
    put(fpdu, at, &crc);
}

#[cfg(test)]
mod tests;
