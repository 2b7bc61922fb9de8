//! UDP headers and their checksum over both IP versions.
//!
//! Read RFC 768 and RFC 8200 §8.1 first. RoCE v2 senders may leave the checksum zero (IBTA annex A17; RFC 6935 allows it
//! over IPv6), since the ICRC protects more; the receiver here accepts both.

use std::net::IpAddr;

use crate::WireError;
use crate::field::{get16, head, head_mut, put16};
use crate::ip::{Checksum, PROTOCOL_UDP};

/// UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct UdpHeader {
    /// Source port; RoCE v2 puts the flow's entropy here.
    pub src_port: u16,
    /// Destination port; 4791 for RoCE v2.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// Checksum as on the wire; 0 means none.
    pub checksum: u16,
}

impl UdpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header at the start of `bytes`. A length below 8 is refused; the checksum is not verified.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<UdpHeader, WireError> {
        let b = head::<{ UdpHeader::LEN }>("UDP header", bytes)?;
        let length = get16(b, 4);
        if usize::from(length) < UdpHeader::LEN {
            return Err(WireError::Invalid { what: "UDP length", value: u64::from(length) });
        }
        Ok(UdpHeader { src_port: get16(b, 0), dst_port: get16(b, 2), length, checksum: get16(b, 6) })
    }

    /// Writes the header at the start of `out`, checksum as given. Panics where `out` is shorter than [`UdpHeader::LEN`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ UdpHeader::LEN }>("UDP header", out);
        put16(b, 0, self.src_port);
        put16(b, 2, self.dst_port);
        put16(b, 4, self.length);
        put16(b, 6, self.checksum);
    }

    /// The checksum that the datagram should have if it has one; never 0.
    pub fn expected_checksum(&self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> u16 {
        let mut sum = Checksum::new();
        for ip in [src, dst] {
            match ip {
                IpAddr::V4(a) => sum.add(&a.octets()),
                IpAddr::V6(a) => sum.add(&a.octets()),
            }
        }
        let [l0, l1] = self.length.to_be_bytes();
        sum.add(&[0, PROTOCOL_UDP, l0, l1]);
        let mut header = [0; UdpHeader::LEN];
        UdpHeader { checksum: 0, ..*self }.emit(&mut header);
        sum.add(&header);
        sum.add(payload);
        // RFC 768: a sum of zero is sent as ones, since zero says that there is none.
        match sum.finish() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_datagram() {
        // Worked out by hand from RFC 768.
        let header = UdpHeader { src_port: 0x1000, dst_port: 0x2000, length: 10, checksum: 0 };
        let sum = header.expected_checksum([1, 0, 2, 0].into(), [3, 0, 4, 0].into(), &[0xab, 0xcd]);
        // 0100 + 0200 + 0300 + 0400 + 0011 + 000a + 1000 + 2000 + 000a + abcd = e5f2
        assert_eq!(sum, !0xe5f2);
    }

    #[test]
    fn a_length_below_eight_is_refused() {
        assert!(UdpHeader::parse(&[0, 1, 0, 2, 0, 7, 0, 0]).is_err());
        assert!(UdpHeader::parse(&[0, 1, 0, 2, 0, 8, 0, 0]).is_ok());
    }
}
