//! A host's network interface: datagrams of the device to Ethernet frames, and back.
//!
//! It does what a kernel's IP stack does for a RoCE v2 socket: segments a train (IP identification counting from 0 and "don't fragment" set, as
//! Linux does for an unconnected socket with GSO), finds the destination's MAC address in a static neighbour table, filters by
//! address, and checks lengths and checksums on the way in. It never looks past UDP: a bad ICRC is the device's business.

use std::collections::BTreeSet;
use std::net::IpAddr;

use everywire_verbs::{PathLink, Transmit};
use everywire_wire::eth::{EthHeader, Ethertype, MacAddr, VlanTag};
use everywire_wire::frame::{UdpFrame, destination_gid, roce_v1_payload};
use everywire_wire::ip::{IpHeader, Ipv4Header, Ipv6Header, PROTOCOL_UDP};
use everywire_wire::udp::UdpHeader;

/// Why a frame was not handed to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NicCounters {
    /// Frames sent.
    pub sent: u64,
    /// Frames received, those dropped included.
    pub received: u64,
    /// Dropped: addressed to another MAC or IP address (a flooded frame, say) or to another port.
    pub not_for_us: u64,
    /// Dropped: malformed Ethernet, IP or UDP, or a bad IP or UDP checksum.
    pub malformed: u64,
    /// Not sent: no neighbour has the address.
    pub no_neighbour: u64,
    /// Not sent: longer than the interface's MTU.
    pub too_long: u64,
}

/// One interface.
#[derive(Debug, Clone)]
pub struct Nic {
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Its IP MTU, in bytes.
    pub mtu: usize,
    /// Whether UDP checksums are sent. RoCE v2 adapters send none; Linux sockets do.
    pub udp_checksum: bool,
    /// The VLAN whose tag frames have, if any; their priority comes from the traffic class.
    pub vlan: Option<u16>,
    /// Multicast groups joined.
    pub groups: BTreeSet<IpAddr>,
    /// What happened.
    pub counters: NicCounters,
}

/// A frame to send, or one that stays on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// To the wire.
    Wire(Vec<u8>),
    /// To this host itself.
    Loopback(Vec<u8>),
}

impl Nic {
    /// An interface with no groups.
    pub fn new(mac: MacAddr, ips: Vec<IpAddr>, mtu: usize, udp_checksum: bool) -> Self {
        Nic {
            mac,
            ips,
            mtu,
            udp_checksum,
            vlan: None,
            groups: BTreeSet::new(),
            counters: NicCounters::default(),
        }
    }

    /// The frames of a transmit of the device; `neighbour` finds the MAC address of a unicast address.
    pub fn frames(
        &mut self,
        tx: &Transmit,
        neighbour: impl Fn(IpAddr) -> Option<MacAddr>,
        out: &mut Vec<Outgoing>,
    ) {
        let dst = tx.dst.ip();
        let to = if dst.is_multicast() { Some(MacAddr::for_multicast(dst)) } else { neighbour(dst) };
        let Some(to) = to else {
            self.counters.no_neighbour += 1;
            return;
        };
        for (index, payload) in tx.segments().enumerate() {
            let frame = match tx.link {
                PathLink::Udp => self.frame(tx, to, index, payload),
                PathLink::Grh => self.roce_v1_frame(tx, to, payload),
                PathLink::Lrh(_) => None, // no way out of an Ethernet interface
            };
            let Some(frame) = frame else { continue };
            self.counters.sent += 1;
            if to == self.mac {
                out.push(Outgoing::Loopback(frame));
                continue;
            }
            if self.groups.contains(&dst) {
                out.push(Outgoing::Loopback(frame.clone()));
            }
            out.push(Outgoing::Wire(frame));
        }
    }

    fn frame(&mut self, tx: &Transmit, to: MacAddr, index: usize, payload: &[u8]) -> Option<Vec<u8>> {
        let ip = match (tx.src, tx.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpHeader::V4(Ipv4Header {
                tos: tx.traffic_class,
                total_len: 0,
                id: index as u16,
                flags_frag: Ipv4Header::DF,
                ttl: tx.hop_limit,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                src,
                dst,
            }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpHeader::V6(Ipv6Header {
                traffic_class: tx.traffic_class,
                flow_label: tx.flow_label,
                payload_len: 0,
                next_header: PROTOCOL_UDP,
                hop_limit: tx.hop_limit,
                src,
                dst,
            }),
            _ => {
                self.counters.no_neighbour += 1;
                return None;
            }
        };
        if ip.header_len() + UdpHeader::LEN + payload.len() > self.mtu {
            self.counters.too_long += 1;
            return None;
        }
        let checksum = u16::from(self.udp_checksum); // anything but zero asks for one
        let udp = UdpHeader { src_port: tx.src_port, dst_port: tx.dst.port(), length: 0, checksum };
        let eth = self.eth(tx, to, ip.ethertype());
        let mut frame = UdpFrame { eth, ip, udp, payload, trailer: &[] };
        frame.fill_lengths_and_checksums();
        let mut bytes = Vec::with_capacity(frame.frame_len());
        frame.emit(&mut bytes);
        Some(bytes)
    }

    fn eth(&self, tx: &Transmit, to: MacAddr, ethertype: Ethertype) -> EthHeader {
        let vlan = self.vlan.map(|vid| VlanTag::for_traffic_class(vid, tx.traffic_class));
        EthHeader { dst: to, src: self.mac, vlan, ethertype }
    }

    /// GRH to ICRC, in a frame of type 0x8915.
    fn roce_v1_frame(&mut self, tx: &Transmit, to: MacAddr, packet: &[u8]) -> Option<Vec<u8>> {
        if packet.len() > self.mtu {
            self.counters.too_long += 1;
            return None;
        }
        let eth = self.eth(tx, to, Ethertype::ROCE_V1);
        let mut bytes = vec![0; eth.header_len()];
        eth.emit(&mut bytes);
        bytes.extend_from_slice(packet);
        Some(bytes)
    }

    /// Takes a frame apart; `None` (counted) when there is no good RoCE packet for this host in it.
    pub fn accept<'a>(&mut self, frame: &'a [u8]) -> Option<Accepted<'a>> {
        self.counters.received += 1;
        let eth = EthHeader::parse(frame).ok();
        // A tag without a VLAN carries a priority only.
        let same_vlan = |eth: &EthHeader| eth.vlan.map_or(0, |tag| tag.vid) == self.vlan.unwrap_or(0);
        let ours = |eth: &EthHeader| same_vlan(eth) && (eth.dst == self.mac || eth.dst.is_multicast());
        if eth.is_some_and(|eth| !ours(&eth)) {
            self.counters.not_for_us += 1;
            return None;
        }
        if let Some(payload) = roce_v1_payload(frame) {
            let gid = destination_gid(payload).map(|gid| gid.to_ip());
            if gid.is_some_and(|gid| self.ips.contains(&gid) || self.groups.contains(&gid)) {
                return Some(Accepted::RoceV1(payload));
            }
            self.counters.not_for_us += 1;
            return None;
        }
        let Some(parsed) = UdpFrame::parse(frame).ok().filter(checksums_are_right) else {
            self.counters.malformed += 1;
            return None;
        };
        let dst = parsed.ip.dst();
        if !parsed.is_roce() || !(self.ips.contains(&dst) || self.groups.contains(&dst)) {
            self.counters.not_for_us += 1;
            return None;
        }
        Some(Accepted::Datagram(parsed))
    }
}

/// What an interface takes out of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted<'a> {
    /// RoCE v2.
    Datagram(UdpFrame<'a>),
    /// RoCE v1: GRH to ICRC, and padding.
    RoceV1(&'a [u8]),
}

fn checksums_are_right(frame: &UdpFrame<'_>) -> bool {
    if let IpHeader::V4(header) = frame.ip
        && header.checksum != header.expected_checksum()
    {
        return false;
    }
    let UdpHeader { checksum, .. } = frame.udp;
    checksum == 0 || checksum == frame.udp.expected_checksum(frame.ip.src(), frame.ip.dst(), frame.payload)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use everywire_wire::roce::ROCE_UDP_PORT;

    use super::*;

    const ME: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn nic(mac: MacAddr, ip: &str, udp_checksum: bool) -> Nic {
        Nic::new(mac, vec![ip.parse().unwrap()], 1500, udp_checksum)
    }

    fn transmit(src: &str, dst: &str, segment: Option<usize>, buf: Vec<u8>) -> Transmit {
        Transmit {
            link: everywire_verbs::PathLink::Udp,
            src: src.parse().unwrap(),
            src_port: 50_000,
            dst: SocketAddr::new(dst.parse().unwrap(), ROCE_UDP_PORT),
            traffic_class: 0x02,
            hop_limit: 64,
            flow_label: 0x12345,
            segment,
            buf: buf.into(),
        }
    }

    #[test]
    fn a_train_becomes_frames_that_the_peer_takes_apart() {
        for (src, dst, checksum) in [("10.0.0.1", "10.0.0.2", false), ("fd00::1", "fd00::2", true)] {
            let (mut a, mut b) = (nic(ME, src, checksum), nic(PEER, dst, checksum));
            let buf: Vec<u8> = (0..250).collect();
            let mut out = Vec::new();
            a.frames(&transmit(src, dst, Some(100), buf.clone()), |_| Some(PEER), &mut out);
            let mut got = Vec::new();
            for (index, outgoing) in out.iter().enumerate() {
                let Outgoing::Wire(frame) = outgoing else { panic!("{outgoing:?}") };
                let Some(Accepted::Datagram(parsed)) = b.accept(frame) else { panic!("no good frame") };
                if let IpHeader::V4(header) = parsed.ip {
                    assert_eq!((usize::from(header.id), header.flags_frag), (index, 0x4000));
                }
                assert_eq!(parsed.src().port(), 50_000);
                got.extend_from_slice(parsed.payload);
            }
            assert_eq!((out.len(), got), (3, buf));
        }
    }

    #[test]
    fn bad_and_foreign_frames_are_counted() {
        let (mut a, mut b) = (nic(ME, "10.0.0.1", true), nic(PEER, "10.0.0.2", true));
        let mut out = Vec::new();
        a.frames(&transmit("10.0.0.1", "10.0.0.2", None, vec![7; 60]), |_| Some(PEER), &mut out);
        a.frames(&transmit("10.0.0.1", "10.0.0.9", None, vec![7; 60]), |_| None, &mut out);
        a.frames(&transmit("10.0.0.1", "10.0.0.2", None, vec![7; 1473]), |_| Some(PEER), &mut out);
        assert_eq!((a.counters.sent, a.counters.no_neighbour, a.counters.too_long), (1, 1, 1));
        let [Outgoing::Wire(good)] = &out[..] else { panic!("{out:?}") };
        // Every single flipped bit of the IP and UDP headers and the payload is seen, except in fields that a checksum of zero switches off.
        for bit in 14 * 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(b.accept(&bad).is_none(), "bit {bit}");
        }
        assert!(a.accept(good).is_none(), "another MAC address");
        assert!(nic(PEER, "10.0.0.3", true).accept(good).is_none(), "another IP address");
        assert!(b.accept(&good[..20]).is_none());
        assert!(b.accept(good).is_some());
    }

    #[test]
    fn what_a_host_sends_to_itself_and_to_its_groups_comes_back() {
        let mut a = nic(ME, "10.0.0.1", false);
        let mut out = Vec::new();
        a.frames(&transmit("10.0.0.1", "10.0.0.1", None, vec![1; 20]), |_| Some(ME), &mut out);
        assert!(matches!(&out[..], [Outgoing::Loopback(_)]));
        let group: IpAddr = "239.1.2.3".parse().unwrap();
        a.groups.insert(group);
        out.clear();
        a.frames(&transmit("10.0.0.1", "239.1.2.3", None, vec![1; 20]), |_| None, &mut out);
        let [Outgoing::Loopback(frame), Outgoing::Wire(_)] = &out[..] else { panic!("{out:?}") };
        assert!(a.accept(frame).is_some());
        a.groups.clear();
        assert!(a.accept(frame).is_none());
    }
}
