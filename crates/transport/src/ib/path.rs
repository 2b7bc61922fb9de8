//! Where a queue pair's packets go: the address vector, in RoCE v2's terms.
//!
//! Read IBTA vol. 1 annex A17 (RoCE v2). The InfiniBand form (LID, SL) joins when that wire does. Routes, next hops and
//! MAC addresses are the driver's affair and do not appear here.

use std::net::IpAddr;

/// First UDP source port that flow labels map to: RoCE v2 draws source ports from the dynamic range.
pub const FIRST_SOURCE_PORT: u16 = 0xc000;

/// An address vector on RoCE v2. `src` and `dst` are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
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
        Path { src, dst, scope_id: 0, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0 }
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
