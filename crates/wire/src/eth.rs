//! Ethernet II headers, with or without one 802.1Q tag.
//!
//! Read IEEE 802.3 §3 and 802.1Q §9 first. RoCE needs the tag for its priority (PCP), by which PFC pauses traffic. The
//! frame check sequence is the adapter's business and is never among the bytes here; 802.1ad double tags are not taken
//! apart (their Ethertype is shown).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::WireError;
use crate::field::{array, get16, head, head_mut, put, put16};
use crate::roce::ROCE_V1_ETHERTYPE;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Everyone on the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// The group bit is set (broadcast included).
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The group address onto which an IP multicast address maps: RFC 1112 §6.4 (IPv4), RFC 2464 §7 (IPv6).
    pub fn for_multicast(group: IpAddr) -> MacAddr {
        match group {
            IpAddr::V4(v4) => {
                let [_, b, c, d] = v4.octets();
                MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(v6) => {
                let [.., a, b, c, d] = v6.octets();
                MacAddr([0x33, 0x33, a, b, c, d])
            }
        }
    }

    /// The link-local IPv6 address made from this one: RFC 4291 appendix A.
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::new(
            0xfe80,
            0,
            0,
            0,
            u16::from_be_bytes([a ^ 2, b]),
            u16::from_be_bytes([c, 0xff]),
            u16::from_be_bytes([0xfe, d]),
            u16::from_be_bytes([e, f]),
        )
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddr({self})")
    }
}

/// What an Ethernet frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ethertype(pub u16);

impl Ethertype {
    /// IPv4.
    pub const IPV4: Ethertype = Ethertype(0x0800);
    /// Address resolution for IPv4.
    pub const ARP: Ethertype = Ethertype(0x0806);
    /// 802.1Q tag.
    pub const VLAN: Ethertype = Ethertype(0x8100);
    /// IPv6.
    pub const IPV6: Ethertype = Ethertype(0x86dd);
    /// MAC control: pause and PFC frames.
    pub const MAC_CONTROL: Ethertype = Ethertype(0x8808);
    /// RoCE v1: a GRH follows.
    pub const ROCE_V1: Ethertype = Ethertype(ROCE_V1_ETHERTYPE);
}

/// 802.1Q tag control information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VlanTag {
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop eligible.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits; 0 carries a priority only.
    pub vid: u16,
}

impl VlanTag {
    /// Bytes that a tag adds to a frame.
    pub const LEN: usize = 4;

    /// The tag of a packet with this traffic class: its priority is the class's upper three bits (RFC 2474 §4.2.2).
    pub const fn for_traffic_class(vid: u16, traffic_class: u8) -> VlanTag {
        VlanTag { priority: traffic_class >> 5, drop_eligible: false, vid }
    }

    /// From the 16 bits on the wire.
    #[inline]
    pub const fn from_tci(tci: u16) -> VlanTag {
        VlanTag { priority: (tci >> 13) as u8, drop_eligible: tci & 0x1000 != 0, vid: tci & 0x0fff }
    }

    /// The 16 bits on the wire.
    #[inline]
    pub const fn tci(self) -> u16 {
        (self.priority as u16 & 7) << 13 | (self.drop_eligible as u16) << 12 | self.vid & 0x0fff
    }
}

/// Ethernet II header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EthHeader {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// 802.1Q tag, if there is one.
    pub vlan: Option<VlanTag>,
    /// What follows the header. Below 0x600 it is an 802.3 length.
    pub ethertype: Ethertype,
}

impl EthHeader {
    /// Bytes without a tag.
    pub const LEN: usize = 14;

    /// The longest header that is modelled.
    pub const MAX_LEN: usize = EthHeader::LEN + VlanTag::LEN;

    /// Reads the header at the start of a frame; [`EthHeader::header_len`] says where its payload begins.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<EthHeader, WireError> {
        let b = head::<{ EthHeader::LEN }>("Ethernet header", frame)?;
        let (dst, src) = (MacAddr(array(b, 0)), MacAddr(array(b, 6)));
        let ethertype = Ethertype(get16(b, 12));
        if ethertype != Ethertype::VLAN {
            return Ok(EthHeader { dst, src, vlan: None, ethertype });
        }
        let b = head::<{ EthHeader::MAX_LEN }>("802.1Q tag", frame)?;
        let vlan = Some(VlanTag::from_tci(get16(b, 14)));
        Ok(EthHeader { dst, src, vlan, ethertype: Ethertype(get16(b, 16)) })
    }

    /// Bytes on the wire: 14, or 18 with a tag.
    #[inline]
    pub const fn header_len(&self) -> usize {
        if self.vlan.is_some() { EthHeader::MAX_LEN } else { EthHeader::LEN }
    }

    /// Writes the header at the start of `out`. Panics where `out` is shorter than [`EthHeader::header_len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<12>("Ethernet header", out);
        put(b, 0, &self.dst.0);
        put(b, 6, &self.src.0);
        match self.vlan {
            None => put16(out, 12, self.ethertype.0),
            Some(tag) => {
                put16(out, 12, Ethertype::VLAN.0);
                put16(out, 14, tag.tci());
                put16(out, 16, self.ethertype.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tagged_and_untagged() {
        let tagged = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0x00, 0x70, 0x64, 0x08, 0x00];
        let h = EthHeader::parse(&tagged).unwrap();
        assert_eq!(h.vlan, Some(VlanTag { priority: 3, drop_eligible: true, vid: 100 }));
        assert_eq!((h.ethertype, h.header_len()), (Ethertype::IPV4, 18));
        let mut out = [0; 18];
        h.emit(&mut out);
        assert_eq!(out, tagged);
        assert!(EthHeader::parse(&tagged[..17]).is_err());

        let mut plain = tagged;
        plain[12..14].copy_from_slice(&[0x89, 0x15]);
        let h = EthHeader::parse(&plain[..14]).unwrap();
        assert_eq!((h.ethertype, h.vlan, h.header_len()), (Ethertype::ROCE_V1, None, 14));
    }

    #[test]
    fn group_addresses() {
        // RFC 1112 §6.4 drops the top bit of the second byte; RFC 2464 §7 keeps the last four bytes.
        let mac = MacAddr::for_multicast("224.129.2.3".parse().unwrap());
        assert_eq!(mac.to_string(), "01:00:5e:01:02:03");
        let mac = MacAddr::for_multicast("ff02::1:ff12:3456".parse().unwrap());
        assert_eq!(mac.to_string(), "33:33:ff:12:34:56");
        assert!(mac.is_multicast() && MacAddr::BROADCAST.is_multicast());
        let mac = MacAddr([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]);
        assert_eq!(mac.link_local().to_string(), "fe80::5054:ff:fe12:3456");
    }
}
