//! Frames of a raw port: how they are put together, with their tags, and what is read from them.
//!
//! Read first: IBTA annexes A16 and A17, IEEE 802.1Q §9.3. Sockets and neighbours are in `port.rs`.

use std::net::{IpAddr, SocketAddr};

use everywire_fabric::pcapng::Direction;
use everywire_wire::eth::{EthHeader, Ethertype, VlanTag};
use everywire_wire::grh::{Grh, NEXT_HEADER_IBA};
use everywire_wire::ip::{IpHeader, Ipv4Header, Ipv6Header, PROTOCOL_UDP};
use everywire_wire::udp::UdpHeader;
use everywire_wire::{MacAddr, UdpFrame};

use super::neighbour::Link;
use crate::capture::{Capture, flow_label};
use crate::udp::{Outgoing, Received};

/// struct virtio_net_hdr, without the buffer count.
pub(super) const VNET: usize = 10;

/// Which 802.1Q tag frames get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagging {
    /// VLAN; 0 for a tag that carries a priority only.
    pub vid: u16,
    /// Priority, 0 to 7; `None`: the upper three bits of the traffic class.
    pub priority: Option<u8>,
}

impl Tagging {
    fn tag(self, traffic_class: u8) -> VlanTag {
        let tag = VlanTag::for_traffic_class(self.vid, traffic_class);
        VlanTag { priority: self.priority.unwrap_or(tag.priority), ..tag }
    }
}

/// What every frame of a port has in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) mac: MacAddr,
    pub(super) local: IpAddr,
    pub(super) vlan: Option<Tagging>,
}

/// Bytes of an Ethernet header before the place of a tag.
const ADDRESSES: usize = 12;
/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_UDP_L4: a train of UDP datagrams.
pub(super) const GSO_UDP_L4: u8 = 5;
/// Where the checksum is in a UDP header.
const UDP_CHECKSUM_AT: usize = 6;

impl Sender {
    /// All of a train of RoCE v2 as one frame without a tag, to be cut by whoever must: the interface, or the kernel before it,
    /// which numbers the datagrams 0, 1, 2 … and sums them (virtio, §5.1.6.2 of its specification).
    pub(super) fn train(&self, item: &Outgoing<'_>, mac: MacAddr, segment: usize) -> Vec<u8> {
        let mut bytes = self.frame(item, Link::Mac(mac), 0, item.bytes);
        let udp = bytes.len() - item.bytes.len() - UdpHeader::LEN;
        let length = (UdpHeader::LEN + item.bytes.len()) as u32;
        let sum = |ip: IpAddr| -> u32 {
            let words =
                |octets: &[u8]| octets.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            match ip {
                IpAddr::V4(v4) => words(&v4.octets()),
                IpAddr::V6(v6) => words(&v6.octets()),
            }
        };
        // The pseudo-header's sum, not complemented: whoever cuts the train adds the rest.
        let mut pseudo = sum(self.local) + sum(item.dst.ip()) + u32::from(PROTOCOL_UDP) + length;
        while pseudo > 0xffff {
            pseudo = (pseudo & 0xffff) + (pseudo >> 16);
        }
        bytes[udp + UDP_CHECKSUM_AT..][..2].copy_from_slice(&(pseudo as u16).to_be_bytes());
        let start = udp - VNET;
        (bytes[0], bytes[1]) = (NEEDS_CSUM, GSO_UDP_L4);
        let fields = [start + UdpHeader::LEN, segment, start, UDP_CHECKSUM_AT];
        for (to, value) in bytes[2..VNET].chunks_exact_mut(2).zip(fields) {
            to.copy_from_slice(&(value as u16).to_ne_bytes());
        }
        bytes
    }

    /// One packet of `item` as a frame, behind an empty virtio header.
    pub(super) fn frame(&self, item: &Outgoing<'_>, link: Link, id: u16, payload: &[u8]) -> Vec<u8> {
        let dst = if let Link::Mac(mac) = link { mac } else { MacAddr([0; 6]) };
        let vlan = self.vlan.map(|vlan| vlan.tag(item.tos));
        let eth = EthHeader { dst, src: self.mac, vlan, ethertype: Ethertype::ROCE_V1 };
        if item.roce_v1 {
            let mut bytes = vec![0; VNET + eth.header_len()];
            eth.emit(&mut bytes[VNET..]);
            bytes.extend_from_slice(payload);
            return bytes;
        }
        let ip = match (self.local, item.dst.ip()) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpHeader::V6(Ipv6Header {
                traffic_class: item.tos,
                flow_label: flow_label(item.dst),
                payload_len: 0,
                next_header: PROTOCOL_UDP,
                hop_limit: item.ttl,
                src,
                dst,
            }),
            (src, dst) => IpHeader::V4(Ipv4Header {
                tos: item.tos,
                total_len: 0,
                id,
                flags_frag: Ipv4Header::DF,
                ttl: item.ttl,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                src: v4(src),
                dst: v4(dst),
            }),
        };
        let mut frame = UdpFrame {
            eth,
            ip,
            // No UDP checksum, as Linux' RoCE has none: the ICRC protects more.
            udp: UdpHeader { src_port: item.src_port, dst_port: item.dst.port(), length: 0, checksum: 0 },
            payload,
            trailer: &[],
        };
        frame.fill_lengths_and_checksums();
        let mut bytes = vec![0; VNET];
        frame.emit(&mut bytes);
        bytes
    }
}

/// The destination of GRH to ICRC and padding; `None` if that is no packet (annex A16.4).
pub(super) fn destination_v1(packet: &[u8]) -> Option<IpAddr> {
    let (grh, rest) = packet.split_first_chunk::<{ Grh::LEN }>()?;
    let grh = Grh::parse(grh).ok()?;
    let shaped = grh.ip_version == 6
        && grh.next_header == NEXT_HEADER_IBA
        && usize::from(grh.payload_len) <= rest.len();
    shaped.then(|| grh.dgid.to_ip())
}

/// GRH to ICRC, as it was received.
pub(super) fn received_v1(packet: &[u8]) -> Received<'_> {
    let nobody = SocketAddr::from(([0; 4], 0));
    Received {
        src: nobody,
        dst: nobody.ip(),
        tos: 0,
        ttl: 0,
        segment: 0,
        ip_id: None,
        bytes: packet,
        roce_v1: true,
    }
}

fn v4(ip: IpAddr) -> std::net::Ipv4Addr {
    match ip {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(v6) => v6.to_ipv4_mapped().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED),
    }
}

/// A datagram, or a train of segments of this size, as it was received.
pub(super) fn received<'a>(frame: &UdpFrame<'a>, segment: usize) -> Received<'a> {
    let ip_id = match frame.ip {
        IpHeader::V4(header) => Some(header.id),
        IpHeader::V6(_) => None,
    };
    Received {
        src: frame.src(),
        dst: frame.ip.dst(),
        tos: frame.ip.traffic_class(),
        ttl: frame.ip.hop_limit(),
        segment,
        ip_id,
        bytes: frame.payload,
        roce_v1: false,
    }
}

/// A frame is written as it was on the wire: with the tag that the kernel has taken out.
pub(super) fn capture_whole(capture: &mut Capture, bytes: &[u8], tag: Option<VlanTag>) {
    let split = bytes.split_at_checked(ADDRESSES).zip(tag);
    let Some(((addresses, rest), tag)) = split else {
        return capture.frame(Direction::Inbound, bytes, None);
    };
    let [vlan, tci] = [Ethertype::VLAN.0, tag.tci()].map(u16::to_be_bytes);
    capture.frame(Direction::Inbound, &[addresses, &vlan, &tci, rest].concat(), None);
}

/// The same; a train is written as the datagrams that it stands for.
pub(super) fn capture_received(
    capture: &mut Capture,
    bytes: &[u8],
    tag: Option<VlanTag>,
    frame: &UdpFrame<'_>,
    received: &Received<'_>,
) {
    if received.segment == 0 {
        return capture_whole(capture, bytes, tag);
    }
    let mut whole = Vec::new();
    for (index, payload) in received.segments().enumerate() {
        let mut one = UdpFrame { payload, trailer: &[], ..*frame };
        one.eth.vlan = tag.or(one.eth.vlan);
        if let IpHeader::V4(header) = &mut one.ip {
            header.id = header.id.wrapping_add(index as u16);
        }
        one.fill_lengths_and_checksums();
        whole.clear();
        one.emit(&mut whole);
        capture.frame(Direction::Inbound, &whole, None);
    }
}
