//! Local Route Header: the eight bytes by which an InfiniBand packet finds its way inside a subnet.
//!
//! Read IBTA §7.7 first. What follows is told by [`Lnh`]: a GRH, a BTH, or a raw packet. A packet on a link is
//! LRH .. ICRC and then the VCRC ([`crate::vcrc`]); [`Lrh::pkt_len`] counts words up to the VCRC, which is not in it. All
//! bits are kept, reserved ones as well. No judgement here of LIDs or virtual lanes.

use crate::field::{get16, head, head_mut, put16};
use crate::{Lid, WireError};

/// What follows the LRH (IBTA §7.7.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lnh {
    /// Raw, Ethertype.
    RawEthertype,
    /// Raw, IPv6.
    RawIpv6,
    /// A BTH: the packet stays in the subnet.
    #[default]
    IbaLocal,
    /// A GRH and then a BTH.
    IbaGlobal,
}

impl Lnh {
    /// The two bits that stand for it.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// From the low two bits.
    #[inline]
    pub const fn from_code(code: u8) -> Lnh {
        match code & 3 {
            0 => Lnh::RawEthertype,
            1 => Lnh::RawIpv6,
            2 => Lnh::IbaLocal,
            _ => Lnh::IbaGlobal,
        }
    }
}

/// Local Route Header (IBTA §7.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lrh {
    /// Virtual lane, 4 bits: the one header field that changes from link to link.
    pub vl: u8,
    /// Link version, 4 bits; 0.
    pub lver: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Two reserved bits after the service level.
    pub reserved2: u8,
    /// What follows.
    pub lnh: Lnh,
    /// Destination.
    pub dlid: Lid,
    /// Five reserved bits before the length.
    pub reserved5: u8,
    /// Words of four bytes from the first byte of this header to the last before the VCRC, 11 bits.
    pub pkt_len: u16,
    /// Source.
    pub slid: Lid,
}

impl Lrh {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Virtual lane of subnet management.
    pub const VL_SUBNET_MANAGEMENT: u8 = 15;

    /// The largest length, in words.
    pub const MAX_PKT_LEN: u16 = 0x7ff;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Lrh, WireError> {
        let b = head::<{ Lrh::LEN }>("LRH", bytes)?;
        let length = get16(b, 4);
        Ok(Lrh {
            vl: b[0] >> 4,
            lver: b[0] & 0x0f,
            sl: b[1] >> 4,
            reserved2: b[1] >> 2 & 3,
            lnh: Lnh::from_code(b[1]),
            dlid: Lid(get16(b, 2)),
            reserved5: (length >> 11) as u8,
            pkt_len: length & Lrh::MAX_PKT_LEN,
            slid: Lid(get16(b, 6)),
        })
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`Lrh::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ Lrh::LEN }>("LRH", out);
        b[0] = self.vl << 4 | self.lver & 0x0f;
        b[1] = self.sl << 4 | (self.reserved2 & 3) << 2 | self.lnh.code();
        put16(b, 2, self.dlid.0);
        put16(b, 4, u16::from(self.reserved5) << 11 | self.pkt_len & Lrh::MAX_PKT_LEN);
        put16(b, 6, self.slid.0);
    }

    /// Bytes of the whole packet, VCRC included, as the header tells it.
    #[inline]
    pub const fn packet_bytes(&self) -> usize {
        self.pkt_len as usize * 4 + crate::vcrc::VCRC_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        // The header of the sample packet of IBTA §7.8.3: 14 words to the ICRC.
        let bytes = [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2];
        let lrh = Lrh::parse(&bytes).unwrap();
        assert_eq!((lrh.vl, lrh.lver, lrh.sl, lrh.lnh), (7, 0, 1, Lnh::IbaLocal));
        assert_eq!((lrh.dlid, lrh.slid, lrh.pkt_len), (Lid(0x375c), Lid(0x17d2), 14));
        assert_eq!(lrh.packet_bytes(), 58);
        let mut out = [0; 8];
        lrh.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn every_bit_is_kept() {
        for bit in 0..64 {
            let bytes = (1u64 << bit).to_be_bytes();
            let mut out = [0; 8];
            Lrh::parse(&bytes).unwrap().emit(&mut out);
            assert_eq!(out, bytes);
        }
        assert!(Lrh::parse(&[0; 7]).is_err());
    }
}
