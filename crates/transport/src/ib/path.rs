//! Where a queue pair's packets go: the address vector, for every wire of the InfiniBand family.
//!
//! Read IBTA vol. 1 §11.2.2.1 (address vectors), annexes A16 (RoCE v1) and A17 (RoCE v2). GIDs are written as the IP
//! addresses that they are in form; an InfiniBand path adds LIDs and a service level. Routes, next hops and MAC addresses
//! are the driver's affair and do not appear here.

use std::net::IpAddr;

use everywire_wire::Lid;
use everywire_wire::grh::Grh;
use everywire_wire::lrh::Lrh;
use everywire_wire::vcrc::VCRC_LEN;

/// First UDP source port that flow labels map to: RoCE v2 draws source ports from the dynamic range.
pub const FIRST_SOURCE_PORT: u16 = 0xc000;

/// The headers that packets have before their BTH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathLink {
    /// IP and UDP, which are the driver's to write: RoCE v2.
    #[default]
    Udp,
    /// A GRH: RoCE v1. The Ethernet header before it is the driver's to write.
    Grh,
    /// An LRH and, where it says so, a GRH; a VCRC at the end: InfiniBand.
    Lrh(LocalRoute),
}

impl PathLink {
    /// Whether packets begin with an LRH.
    pub fn is_infiniband(&self) -> bool {
        matches!(self, PathLink::Lrh(_))
    }

    /// Bytes before the BTH that are the transport's to write.
    #[inline]
    pub fn lead_len(&self) -> usize {
        match self {
            PathLink::Udp => 0,
            PathLink::Grh => Grh::LEN,
            PathLink::Lrh(route) => Lrh::LEN + if route.grh { Grh::LEN } else { 0 },
        }
    }

    /// Bytes after the ICRC that are the transport's to write.
    #[inline]
    pub fn tail_len(&self) -> usize {
        if self.is_infiniband() { VCRC_LEN } else { 0 }
    }
}

/// What an LRH needs to know (IBTA §7.7). The virtual lane is the port's to choose, by its SL-to-VL table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalRoute {
    /// One of our port's LIDs: its base and the path bits.
    pub slid: Lid,
    /// The peer's LID, the router's, or a multicast one.
    pub dlid: Lid,
    /// Service level, 0–15.
    pub sl: u8,
    /// Whether packets have a GRH: to other subnets and to groups they must.
    pub grh: bool,
    /// Inter-packet delay by the SA's rate code; 0 for the port's own rate.
    pub static_rate: u8,
}

/// An address vector. `src` and `dst` are of one family on RoCE v2; on the other wires they are GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// What packets have before their BTH.
    pub link: PathLink,
    /// Our address (the source GID).
    pub src: IpAddr,
    /// The peer's address (the destination GID), or a multicast group.
    pub dst: IpAddr,
    /// Interface index for link-local addresses; 0 otherwise.
    pub scope_id: u32,
    /// UDP source port: the flow's entropy for equal-cost paths.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
}

impl Path {
    /// A path between two addresses with the defaults Linux uses: hop limit 64, everything else zero.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Path {
        let link = PathLink::Udp;
        Path { link, src, dst, scope_id: 0, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }

    /// The same through other headers.
    #[must_use]
    pub fn over(mut self, link: PathLink) -> Path {
        self.link = link;
        self
    }

    /// What the LRH needs, on InfiniBand.
    pub fn local_route(&self) -> Option<&LocalRoute> {
        match &self.link {
            PathLink::Lrh(route) => Some(route),
            PathLink::Udp | PathLink::Grh => None,
        }
    }

    /// Whether both addresses are IPv4.
    pub fn is_v4(&self) -> bool {
        self.src.is_ipv4() && self.dst.is_ipv4()
    }
}

/// The UDP source port for a flow label, in 0xc000..=0xffff: equal labels give equal ports.
pub fn source_port_for_flow_label(flow_label: u32) -> u16 {
    let label = flow_label & 0x000f_ffff;
    let folded = (label & 0x3fff) ^ (label >> 14);
    FIRST_SOURCE_PORT | folded as u16
}

/// A flow label for a pair of queue pair numbers, the same from both ends (0 is never given).
pub fn flow_label_for(local_qpn: u32, remote_qpn: u32) -> u32 {
    let product = u64::from(local_qpn).wrapping_mul(u64::from(remote_qpn));
    let folded = (product ^ (product >> 20) ^ (product >> 40)) as u32 & 0x000f_ffff;
    folded.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand from IBTA annex A17's recommendation as Linux's `rdma_flow_label_to_udp_sport` follows it.
    #[test]
    fn source_ports_come_from_flow_labels() {
        for (label, port) in [
            (0, 0xc000),
            (1, 0xc001),
            (0x3fff, 0xffff),
            (0x4000, 0xc001),
            (0xf_ffff, 0xffc0),
            (0x10_0001, 0xc001),
        ] {
            assert_eq!(source_port_for_flow_label(label), port, "{label:#x}");
        }
    }

    #[test]
    fn flow_labels_are_the_same_from_both_ends() {
        // 0x11 * 0x22 = 0x242; 0x123456 * 0x654321 = 0x7336BF94116, folded at 20 and 40 bits.
        assert_eq!(flow_label_for(0x11, 0x22), 0x242);
        let product = 0x12_3456u64 * 0x65_4321;
        assert_eq!(product, 0x733_6bf9_4116);
        assert_eq!(flow_label_for(0x12_3456, 0x65_4321), 0x9_4116 ^ 0x3_36bf ^ 0x7);
        assert_eq!(flow_label_for(0x65_4321, 0x12_3456), flow_label_for(0x12_3456, 0x65_4321));
        assert_eq!(flow_label_for(0, 5), 1, "never 0");
    }
}
