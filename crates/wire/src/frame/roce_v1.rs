//! Ethernet frames of RoCE v1: a GRH in place of IP and UDP.
//!
//! Read IBTA annex A16 first. [`RoceV1Frame`] takes a frame apart and puts it together again, bit for bit, padding included.
//! Which GIDs are welcome, and what the packet means, is for others to say.

use crate::WireError;
use crate::eth::{EthHeader, Ethertype};
use crate::field::array;
use crate::grh::{Grh, NEXT_HEADER_IBA};
use crate::icrc::icrc_grh;
use crate::roce::ICRC_LEN;

/// A RoCE v1 frame, headers by value, packet by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceV1Frame<'a> {
    /// Ethernet header.
    pub eth: EthHeader,
    /// Global Routing Header.
    pub grh: Grh,
    /// BTH to ICRC.
    pub packet: &'a [u8],
    /// What follows the packet: Ethernet padding.
    pub trailer: &'a [u8],
}

impl<'a> RoceV1Frame<'a> {
    /// Takes a frame apart.
    ///
    /// Errors: another Ethertype, no GRH that a BTH follows, a payload longer than the frame.
    pub fn parse(frame: &'a [u8]) -> Result<RoceV1Frame<'a>, WireError> {
        let eth = EthHeader::parse(frame)?;
        if eth.ethertype != Ethertype::ROCE_V1 {
            return Err(WireError::Invalid { what: "Ethertype", value: u64::from(eth.ethertype.0) });
        }
        let rest = &frame[eth.header_len()..];
        let grh = Grh::parse(rest)?;
        if grh.ip_version != 6 {
            return Err(WireError::Invalid { what: "GRH IP version", value: u64::from(grh.ip_version) });
        }
        if grh.next_header != NEXT_HEADER_IBA {
            return Err(WireError::Invalid { what: "GRH next header", value: u64::from(grh.next_header) });
        }
        let (have, need) = (rest.len() - Grh::LEN, usize::from(grh.payload_len));
        let Some((packet, trailer)) = rest[Grh::LEN..].split_at_checked(need) else {
            return Err(WireError::Truncated { what: "GRH payload", need, have });
        };
        Ok(RoceV1Frame { eth, grh, packet, trailer })
    }

    /// Appends the frame to `out`, the GRH's length as given.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut headers = [0; EthHeader::MAX_LEN + Grh::LEN];
        let grh_at = self.eth.header_len();
        self.eth.emit(&mut headers);
        self.grh.emit(&mut headers[grh_at..]);
        out.extend_from_slice(&headers[..grh_at + Grh::LEN]);
        out.extend_from_slice(self.packet);
        out.extend_from_slice(self.trailer);
    }

    /// GRH to ICRC of a frame that was parsed, as its receiver judges it.
    pub fn grh_to_icrc<'b>(&self, frame: &'b [u8]) -> &'b [u8] {
        let at = self.eth.header_len();
        frame.get(at..at + Grh::LEN + self.packet.len()).unwrap_or_default()
    }

    /// The ICRC that the packet should end in, little-endian; `None` where it is too short to have one.
    pub fn expected_icrc(&self) -> Option<[u8; ICRC_LEN]> {
        let (covered, _) = self.packet.split_last_chunk::<ICRC_LEN>()?;
        let mut grh = [0; Grh::LEN];
        self.grh.emit(&mut grh);
        Some(icrc_grh(&grh, covered).to_le_bytes())
    }

    /// Whether the packet ends in the right ICRC.
    pub fn icrc_is_right(&self) -> bool {
        self.expected_icrc().is_some_and(|icrc| self.packet.ends_with(&icrc))
    }
}

/// The payload of an Ethernet frame that is RoCE v1 by its Ethertype: what follows the header.
pub fn roce_v1_payload(frame: &[u8]) -> Option<&[u8]> {
    let eth = EthHeader::parse(frame).ok()?;
    (eth.ethertype == Ethertype::ROCE_V1).then(|| &frame[eth.header_len()..])
}

/// The destination GID of GRH to ICRC, if there is one.
pub fn destination_gid(grh_to_icrc: &[u8]) -> Option<crate::Gid> {
    (grh_to_icrc.len() >= Grh::LEN).then(|| crate::Gid(array(grh_to_icrc, 24)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A READ request between two link-local GIDs, put together by hand from annex A16: 14 + 40 + 12 + 16 + 4 bytes.
    fn frame() -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x89, 0x15];
        f.extend([0x60, 0, 0, 0, 0, 32, 0x1b, 64]);
        f.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
        f.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2]);
        f.extend([0x0c, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0x80, 0, 0, 9]);
        f.extend([0; 16]);
        f.extend([0xaa; 4]);
        f
    }

    #[test]
    fn frames_come_back_bit_for_bit_with_their_padding() {
        let mut bytes = frame();
        bytes.extend([0; 3]);
        let parsed = RoceV1Frame::parse(&bytes).unwrap();
        assert_eq!((parsed.packet.len(), parsed.trailer), (32, &[0; 3][..]));
        assert_eq!(parsed.grh_to_icrc(&bytes), &bytes[14..86]);
        assert!(!parsed.icrc_is_right());
        let mut out = Vec::new();
        parsed.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(destination_gid(&bytes[14..]).unwrap().to_string(), "fe80::ff:fe00:2");
    }

    #[test]
    fn what_is_no_roce_v1_is_refused() {
        let good = frame();
        for (at, byte) in [(12, 0x08), (14, 0x40), (20, 17), (19, 33)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(RoceV1Frame::parse(&bad).is_err(), "byte {at}");
        }
        for len in 0..good.len() {
            assert!(RoceV1Frame::parse(&good[..len]).is_err(), "{len} bytes");
        }
    }
}
