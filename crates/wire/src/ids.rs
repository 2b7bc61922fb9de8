//! The numbers by which InfiniBand names things, each its own type.
//!
//! A PSN is not a QPN and an L_Key is not an R_Key: mixing them up does not compile. PSNs compare modulo 2^24 only (IBTA
//! §9.7.2), so [`Psn`] has no `Ord`. Read IBTA §3.5 (addresses), §4.1 (GIDs), §10.9 (keys and partitions) first.
//! Nothing here says whether a number is valid on some device.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits, compared modulo 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK24)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// `n` packets later, wrapping at 2^24.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// `n` packets earlier, wrapping at 0.
    #[inline]
    #[must_use]
    pub const fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// The PSN after this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// How many packets `later` lies after `self`: −2^23 ..= 2^23 − 1.
    #[inline]
    pub const fn distance(self, later: Psn) -> i32 {
        // Shift the 24-bit difference to the top so that its sign bit becomes the word's.
        (later.0.wrapping_sub(self.0) << 8) as i32 >> 8
    }

    /// Strictly earlier than `other`, in the half of the circle before it.
    #[inline]
    pub const fn before(self, other: Psn) -> bool {
        self.distance(other) > 0
    }

    /// Equal to or earlier than `other`.
    #[inline]
    pub const fn at_or_before(self, other: Psn) -> bool {
        self.distance(other) >= 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Queue pair number: 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// QP0, the subnet management interface.
    pub const SMI: Qpn = Qpn(0);
    /// QP1, the general services interface.
    pub const GSI: Qpn = Qpn(1);
    /// The destination QP of multicast packets (IBTA §9.4.1).
    pub const MULTICAST: Qpn = Qpn(MASK24);

    /// Keeps the low 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK24)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Key for local access to registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct LKey(pub u32);

/// Key for remote access to registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RKey(pub u32);

/// Queue key of datagram traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of QP1 (IBTA §13.3.1.1).
    pub const GSI: QKey = QKey(0x8001_0000);

    /// A send work request that names a Q_Key with its high bit set uses the QP's own instead (IBTA §10.2.5).
    #[inline]
    pub const fn is_privileged(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// Partition key: 15 bits of partition and a membership bit (set: full member).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition with full membership.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Full members talk to everyone in the partition, limited ones only to full ones (IBTA §10.9.3).
    #[inline]
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// The partition without the membership bit.
    #[inline]
    pub const fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether a packet with `other` may reach a QP with `self`: same partition, not the invalid one, and not both limited.
    #[inline]
    pub const fn matches(self, other: PKey) -> bool {
        self.base() == other.base() && self.base() != 0 && (self.is_full_member() || other.is_full_member())
    }
}

impl Default for PKey {
    fn default() -> PKey {
        PKey::DEFAULT
    }
}

/// Global identifier: 16 bytes, an IPv6 address in form. RoCE maps IPv4 addresses as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zeros: no GID.
    pub const ZERO: Gid = Gid([0; 16]);

    /// High half of GIDs in a subnet that was given no prefix (IBTA §4.1.1): it means nothing beyond a router.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// The default GID of a port: fe80::/64 and its GUID (IBTA §4.1.1).
    pub const fn link_local(guid: Guid) -> Gid {
        let g = guid.0.to_be_bytes();
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]])
    }

    /// The IP address that this GID stands for; IPv4 when it is an IPv4-mapped one.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The high 64 bits.
    pub const fn subnet_prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The low 64 bits.
    pub const fn interface_id(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    /// In fe80::/10.
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// In ff00::/8, or an IPv4-mapped multicast address.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// All zeros.
    pub fn is_zero(self) -> bool {
        self == Gid::ZERO
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Gid {
        Gid(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Gid {
        Gid(ip.octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// Globally unique identifier of a node, port or system image: an EUI-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    /// As `ibv_devinfo` prints it: `0011:2233:4455:6677`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", v >> 48, v >> 32 & 0xffff, v >> 16 & 0xffff, v & 0xffff)
    }
}

/// Local identifier within an InfiniBand subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// Every port answers to it.
    pub const PERMISSIVE: Lid = Lid(0xffff);

    /// The first LID of multicast groups (IBTA §4.1.3).
    pub const FIRST_MULTICAST: Lid = Lid(0xc000);

    /// Names a port: 1 to 0xbfff.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 < Lid::FIRST_MULTICAST.0
    }

    /// Names a multicast group: 0xc000 to 0xfffe.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0 >= Lid::FIRST_MULTICAST.0 && self.0 != Lid::PERMISSIVE.0
    }
}

/// Path MTU: how many payload bytes one packet carries at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    M256,
    /// 512 bytes.
    M512,
    /// 1024 bytes.
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes.
    M4096,
}

impl Mtu {
    /// Every MTU, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

    /// Bytes that a RoCE v2 packet adds at most to a payload, IP header included: IPv6 40, UDP 8, BTH 12, RETH 16, ImmDt 4,
    /// ICRC 4.
    pub const ROCE_V2_OVERHEAD: usize = 84;

    /// Payload bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// The number that stands for it in MADs and verbs: 1 to 5.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The MTU with this number, if there is one.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Mtu> {
        match code {
            1..=5 => Some(Mtu::ALL[code as usize - 1]),
            _ => None,
        }
    }

    /// The largest MTU whose RoCE v2 packets fit a path with this **IP** MTU (as `ip link` shows it): 1500 gives 1024, 9000
    /// gives 4096. `None` where not even 256 fits.
    pub fn largest_in(udp_path_mtu_bytes: usize) -> Option<Mtu> {
        let room = udp_path_mtu_bytes.saturating_sub(Mtu::ROCE_V2_OVERHEAD);
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() <= room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_and_compares_modulo_2_24() {
        let top = Psn::new(0xff_ffff);
        assert_eq!(top.next(), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), top);
        assert_eq!(Psn::new(0x0100_0005).get(), 5);
        assert_eq!(top.distance(Psn::new(3)), 4);
        assert_eq!(Psn::new(3).distance(top), -4);
        assert!(top.before(Psn::new(0)) && !Psn::new(0).before(top));
        assert!(top.at_or_before(top) && !top.before(top));
        // Exactly half way round counts as earlier (IBTA §9.7.2: the duplicate region is 2^23 long).
        assert_eq!(Psn::new(0).distance(Psn::new(0x80_0000)), -0x80_0000);
        assert_eq!(Psn::new(0).distance(Psn::new(0x7f_ffff)), 0x7f_ffff);
    }

    #[test]
    fn pkeys_match_by_partition_and_membership() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(PKey(0x7fff).matches(PKey::DEFAULT));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)), "partition 0 is invalid");
        assert!(!PKey(0x8001).matches(PKey(0x8002)));
    }

    #[test]
    fn gids_and_addresses() {
        let v4: IpAddr = "10.1.2.3".parse().unwrap();
        let gid = Gid::from(v4);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(gid.to_ip(), v4);
        let gid = Gid::link_local(Guid(0x5054_00ff_fe12_3456));
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe12:3456");
        assert!(gid.is_link_local() && !gid.is_multicast());
        assert_eq!(
            (gid.subnet_prefix(), gid.interface_id()),
            (0xfe80_0000_0000_0000, Guid(0x5054_00ff_fe12_3456))
        );
        assert!(Gid::from("239.1.1.1".parse::<IpAddr>().unwrap()).is_multicast());
        assert_eq!(Guid(0x0011_2233_4455_6677).to_string(), "0011:2233:4455:6677");
    }

    #[test]
    fn mtu_codes_and_fit() {
        assert_eq!(
            Mtu::ALL.map(|m| (m.code(), m.bytes())),
            [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]
        );
        assert_eq!((Mtu::from_code(0), Mtu::from_code(5), Mtu::from_code(6)), (None, Some(Mtu::M4096), None));
        assert_eq!((Mtu::largest_in(1500), Mtu::largest_in(9000)), (Some(Mtu::M1024), Some(Mtu::M4096)));
        assert_eq!((Mtu::largest_in(339), Mtu::largest_in(340)), (None, Some(Mtu::M256)));
    }
}
