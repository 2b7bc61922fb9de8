//! Direct Data Placement: the header of every segment of an iWARP stream.
//!
//! Read RFC 5041 §4. A segment is tagged (it names memory: STag and offset) or untagged (it names a queue, a message in it
//! and an offset in that message). The second byte, and four more of an untagged header, belong to RDMAP ([`crate::rdmap`]).
//! Nothing here says whether a segment is welcome.

use crate::field::{get32, get64, head, head_mut, put32, put64};
use crate::{RKey, WireError};

/// DDP version of RFC 5041.
pub const VERSION: u8 = 1;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;

/// Where the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DdpTarget {
    /// The tagged buffer model.
    Tagged {
        /// The buffer's steering tag.
        stag: RKey,
        /// Tagged offset of the payload's first byte.
        to: u64,
    },
    /// The untagged buffer model.
    Untagged {
        /// The four bytes that belong to the upper layer.
        ulp: [u8; 4],
        /// Queue number.
        qn: u32,
        /// Message sequence number, from 1.
        msn: u32,
        /// Offset of the payload in the message.
        mo: u32,
    },
}

/// Header of a DDP segment (RFC 5041 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DdpHeader {
    /// L: last segment of its message.
    pub last: bool,
    /// Four reserved bits; sent as zero.
    pub reserved: u8,
    /// DV, two bits: [`VERSION`].
    pub version: u8,
    /// The byte that belongs to the upper layer: RDMAP's control field.
    pub ulp: u8,
    /// Tagged or untagged, with its fields.
    pub target: DdpTarget,
}

impl DdpHeader {
    /// Bytes of a tagged header.
    pub const TAGGED_LEN: usize = 14;
    /// Bytes of an untagged header.
    pub const UNTAGGED_LEN: usize = 18;

    /// Bytes of this header.
    #[inline]
    pub fn header_len(&self) -> usize {
        match self.target {
            DdpTarget::Tagged { .. } => DdpHeader::TAGGED_LEN,
            DdpTarget::Untagged { .. } => DdpHeader::UNTAGGED_LEN,
        }
    }

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<DdpHeader, WireError> {
        let control = head::<2>("DDP header", bytes)?;
        let target = if control[0] & TAGGED != 0 {
            let b = head::<{ DdpHeader::TAGGED_LEN }>("tagged DDP header", bytes)?;
            DdpTarget::Tagged { stag: RKey(get32(b, 2)), to: get64(b, 6) }
        } else {
            let b = head::<{ DdpHeader::UNTAGGED_LEN }>("untagged DDP header", bytes)?;
            DdpTarget::Untagged {
                ulp: [b[2], b[3], b[4], b[5]],
                qn: get32(b, 6),
                msn: get32(b, 10),
                mo: get32(b, 14),
            }
        };
        Ok(DdpHeader {
            last: control[0] & LAST != 0,
            reserved: control[0] >> 2 & 0x0f,
            version: control[0] & 3,
            ulp: control[1],
            target,
        })
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`DdpHeader::header_len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let control = (self.last as u8) << 6 | (self.reserved & 0x0f) << 2 | self.version & 3;
        match self.target {
            DdpTarget::Tagged { stag, to } => {
                let b = head_mut::<{ DdpHeader::TAGGED_LEN }>("tagged DDP header", out);
                (b[0], b[1]) = (control | TAGGED, self.ulp);
                put32(b, 2, stag.0);
                put64(b, 6, to);
            }
            DdpTarget::Untagged { ulp, qn, msn, mo } => {
                let b = head_mut::<{ DdpHeader::UNTAGGED_LEN }>("untagged DDP header", out);
                (b[0], b[1]) = (control, self.ulp);
                b[2..6].copy_from_slice(&ulp);
                put32(b, 6, qn);
                put32(b, 10, msn);
                put32(b, 14, mo);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Laid out by hand from RFC 5041 §4.1 and §4.2.
    #[test]
    fn fields_are_where_the_standard_puts_them() {
        let tagged = [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let target = DdpTarget::Tagged { stag: RKey(0x0102_0304), to: 0x0506_0708_090a_0b0c };
        let header = DdpHeader { last: true, reserved: 0, version: 1, ulp: 0x40, target };
        assert_eq!(DdpHeader::parse(&tagged), Ok(header));
        let untagged = [0x01, 0x43, 1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
        let target = DdpTarget::Untagged { ulp: [1, 2, 3, 4], qn: 1, msn: 2, mo: 3 };
        let header = DdpHeader { last: false, reserved: 0, version: 1, ulp: 0x43, target };
        assert_eq!(DdpHeader::parse(&untagged), Ok(header));
        let mut out = [0; 18];
        header.emit(&mut out);
        assert_eq!(out, untagged);
    }

    #[test]
    fn a_byte_short() {
        let error = |what, need, have| Err(WireError::Truncated { what, need, have });
        assert_eq!(DdpHeader::parse(&[0x81; 13]), error("tagged DDP header", 14, 13));
        assert_eq!(DdpHeader::parse(&[0x01; 17]), error("untagged DDP header", 18, 17));
        assert_eq!(DdpHeader::parse(&[0x01]), error("DDP header", 2, 1));
    }
}
