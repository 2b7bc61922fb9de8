//! Global Routing Header: 40 bytes, an IPv6 header in form.
//!
//! Read IBTA §8.3 first, and annex A17.4.5 for what a UD receiver finds in the 40 bytes before its data when the packet
//! came over IPv4. RoCE v1 frames begin with one; RoCE v2 ones have an IP header in its place.

use crate::field::{array, get16, get32, head, head_mut, put, put16, put32};
use crate::ip::{IpHeader, Ipv4Header};
use crate::{Gid, WireError};

/// Next header value that says that a BTH follows.
pub const NEXT_HEADER_IBA: u8 = 0x1b;

/// Global Routing Header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grh {
    /// 6, four bits.
    pub ip_version: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes from the BTH to the ICRC, both included.
    pub payload_len: u16,
    /// [`NEXT_HEADER_IBA`].
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub sgid: Gid,
    /// Destination.
    pub dgid: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Reads the header at the start of `bytes`. Nothing is judged: a UD consumer may find any bytes here.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Grh, WireError> {
        let b = head::<{ Grh::LEN }>("GRH", bytes)?;
        let word = get32(b, 0);
        Ok(Grh {
            ip_version: (word >> 28) as u8,
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            payload_len: get16(b, 4),
            next_header: b[6],
            hop_limit: b[7],
            sgid: Gid(array(b, 8)),
            dgid: Gid(array(b, 24)),
        })
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`Grh::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ Grh::LEN }>("GRH", out);
        let version_and_class = u32::from(self.ip_version) << 28 | u32::from(self.traffic_class) << 20;
        put32(b, 0, version_and_class | self.flow_label & 0xf_ffff);
        put16(b, 4, self.payload_len);
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        put(b, 8, &self.sgid.0);
        put(b, 24, &self.dgid.0);
    }

    /// The 40 bytes that a UD receiver of RoCE v2 finds before its data: an IPv6 header as it is, an IPv4 one in the last 20
    /// bytes (annex A17.4.5.2), after zeros as Linux has them.
    pub fn area_for(ip: &IpHeader) -> [u8; Grh::LEN] {
        let mut area = [0; Grh::LEN];
        match ip {
            IpHeader::V4(h) => h.emit(&mut area[Grh::LEN - Ipv4Header::LEN..]),
            IpHeader::V6(h) => h.emit(&mut area),
        }
        area
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        let mut bytes: [u8; 40] = core::array::from_fn(|i| i as u8);
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0x00, 0x20, 0x1b, 0x40]);
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!((grh.ip_version, grh.traffic_class, grh.flow_label), (6, 0xab, 0x12345));
        assert_eq!((grh.payload_len, grh.next_header, grh.hop_limit), (32, NEXT_HEADER_IBA, 64));
        assert_eq!((grh.sgid.0[0], grh.dgid.0[15]), (8, 39));
        let mut out = [0; 40];
        grh.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
