//! Whole Ethernet frames with a UDP datagram in them: what raw drivers, the simulated fabric and the decoder handle.
//!
//! Read IBTA annex A17.3 first. [`UdpFrame`] takes a frame apart in one call and puts it together again, bit for bit, the
//! Ethernet padding included; for a RoCE v2 frame it also knows what its ICRC should be.

mod roce_v1;

use std::net::SocketAddr;

use crate::WireError;
use crate::eth::EthHeader;
use crate::icrc::{IcrcV4, IcrcV6, icrc_v4, icrc_v6};
use crate::ip::{IpHeader, PROTOCOL_UDP};
use crate::roce::{ICRC_LEN, ROCE_UDP_PORT};
use crate::udp::UdpHeader;

pub use roce_v1::{RoceV1Frame, destination_gid, roce_v1_payload};

/// A UDP datagram in an Ethernet frame, headers by value, payload by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpFrame<'a> {
    /// Ethernet header.
    pub eth: EthHeader,
    /// IP header.
    pub ip: IpHeader,
    /// UDP header.
    pub udp: UdpHeader,
    /// UDP payload.
    pub payload: &'a [u8],
    /// What follows the IP packet: Ethernet padding.
    pub trailer: &'a [u8],
}

impl<'a> UdpFrame<'a> {
    /// Takes a frame apart.
    ///
    /// Errors: not IPv4 or IPv6, not UDP, a fragment, lengths that contradict each other or the frame.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<UdpFrame<'a>, WireError> {
        let eth = EthHeader::parse(frame)?;
        let rest = &frame[eth.header_len()..];
        let ip = IpHeader::parse(rest)?;
        if eth.ethertype != ip.ethertype() {
            return Err(WireError::Invalid { what: "Ethertype", value: u64::from(eth.ethertype.0) });
        }
        if ip.protocol() != PROTOCOL_UDP {
            return Err(WireError::Invalid { what: "IP protocol", value: u64::from(ip.protocol()) });
        }
        if let IpHeader::V4(h) = ip
            && h.is_fragment()
        {
            return Err(WireError::Invalid { what: "IPv4 fragment", value: u64::from(h.flags_frag) });
        }
        let rest = &rest[ip.header_len()..];
        let (have, need) = (rest.len(), ip.payload_len());
        let Some((packet, trailer)) = rest.split_at_checked(need) else {
            return Err(WireError::Truncated { what: "IP packet", need, have });
        };
        let udp = UdpHeader::parse(packet)?;
        if usize::from(udp.length) != packet.len() {
            return Err(WireError::Invalid { what: "UDP length", value: u64::from(udp.length) });
        }
        Ok(UdpFrame { eth, ip, udp, payload: &packet[UdpHeader::LEN..], trailer })
    }

    /// Bytes of the frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        let headers = self.eth.header_len() + self.ip.header_len() + UdpHeader::LEN;
        headers + self.payload.len() + self.trailer.len()
    }

    /// Appends the frame to `out`, lengths and checksums as given.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.reserve(self.frame_len());
        let mut headers = [0; EthHeader::MAX_LEN + crate::ip::Ipv6Header::LEN + UdpHeader::LEN];
        let ip_at = self.eth.header_len();
        let udp_at = ip_at + self.ip.header_len();
        self.eth.emit(&mut headers);
        self.ip.emit(&mut headers[ip_at..]);
        self.udp.emit(&mut headers[udp_at..]);
        out.extend_from_slice(&headers[..udp_at + UdpHeader::LEN]);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(self.trailer);
    }

    /// Sets every length and checksum from what is there. A zero UDP checksum stays zero.
    pub fn fill_lengths_and_checksums(&mut self) {
        self.udp.length = (UdpHeader::LEN + self.payload.len()) as u16;
        self.eth.ethertype = self.ip.ethertype();
        match &mut self.ip {
            IpHeader::V4(h) => {
                h.total_len = self.udp.length + crate::ip::Ipv4Header::LEN as u16;
                *h = h.with_checksum();
            }
            IpHeader::V6(h) => h.payload_len = self.udp.length,
        }
        if self.udp.checksum != 0 {
            self.udp.checksum = self.udp.expected_checksum(self.ip.src(), self.ip.dst(), self.payload);
        }
    }

    /// Source address and port. IPv6 scopes are not in a frame: 0.
    #[inline]
    pub fn src(&self) -> SocketAddr {
        (self.ip.src(), self.udp.src_port).into()
    }

    /// Destination address and port.
    #[inline]
    pub fn dst(&self) -> SocketAddr {
        (self.ip.dst(), self.udp.dst_port).into()
    }

    /// Goes to the RoCE v2 port.
    #[inline]
    pub fn is_roce(&self) -> bool {
        self.udp.dst_port == ROCE_UDP_PORT
    }

    /// The ICRC that the payload should end in, little-endian; `None` where the payload is too short to have one.
    pub fn expected_icrc(&self) -> Option<[u8; ICRC_LEN]> {
        let (covered, _) = self.payload.split_last_chunk::<ICRC_LEN>()?;
        let src_port = self.udp.src_port;
        let icrc = match self.ip {
            IpHeader::V4(h) => {
                let net = IcrcV4 { src: h.src, dst: h.dst, id: h.id, flags_frag: h.flags_frag, src_port };
                icrc_v4(&net, covered)
            }
            IpHeader::V6(h) => icrc_v6(&IcrcV6 { src: h.src, dst: h.dst, src_port }, covered),
        };
        Some(icrc.to_le_bytes())
    }

    /// Whether the payload ends in the right ICRC.
    pub fn icrc_is_right(&self) -> bool {
        self.expected_icrc().is_some_and(|icrc| self.payload.ends_with(&icrc))
    }
}
