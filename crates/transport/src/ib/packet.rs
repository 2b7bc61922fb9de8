//! What a queue pair knows of an arriving packet beside its bytes, and the packets it builds.
//!
//! Read IBTA vol. 1 §9.2 and annex A17. The ICRC has been checked and the destination queue pair found before a packet
//! gets here.

use std::net::IpAddr;

use everywire_wire::grh::{Grh, NEXT_HEADER_IBA};
use everywire_wire::{Gid, Ieth, ImmDt, Opcode, Reth, RocePacket};

use super::path::{LocalRoute, Path, PathLink};
use super::wr::SendOp;

/// Bytes of the GRH that lead every datagram's receive buffer (IBTA §11.4.1.2).
pub const GRH_LEN: usize = 40;

/// The network headers of an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// What it had before its BTH. Of an LRH: the LIDs and the service level as they arrived, whether a GRH followed.
    pub link: PathLink,
    /// Who sent it; unspecified where there was no GRH.
    pub src: IpAddr,
    /// The address it was sent to: ours, or a multicast group; unspecified where there was no GRH.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 Identification; 0 where a UDP socket hides it.
    pub ip_id: u16,
    /// Bytes of the UDP payload: BTH to ICRC.
    pub udp_payload_len: u16,
    /// Flow label of a GRH; 0 for IPv4, and where a UDP socket hides it.
    pub flow_label: u32,
    /// Low bits of the LID it was sent to, as many as our port's LMC; 0 on Ethernet.
    pub dlid_path_bits: u8,
}

impl PacketMeta {
    /// Whether it may come from the peer at the end of `path` (IBTA C9-44): the same GID, and on InfiniBand the LID that
    /// our packets go to. A packet without GRH says nothing of GIDs.
    #[inline]
    pub fn is_from_peer_of(&self, path: &Path) -> bool {
        match (&self.link, &path.link) {
            (PathLink::Lrh(came), PathLink::Lrh(goes)) => {
                came.slid == goes.dlid && (!came.grh || !goes.grh || self.src == path.dst)
            }
            (came, goes) => self.src == path.dst && came == goes,
        }
    }

    /// The LRH's contents, if there was one.
    pub fn local_route(&self) -> Option<&LocalRoute> {
        match &self.link {
            PathLink::Lrh(route) => Some(route),
            PathLink::Udp | PathLink::Grh => None,
        }
    }

    /// Whether the 40 bytes before a datagram mean something: not for an InfiniBand packet without GRH.
    pub fn has_grh(&self) -> bool {
        self.local_route().is_none_or(|route| route.grh)
    }
}

/// Difference between a UC opcode and the RC opcode of the same operation.
pub(super) const UC_BIT: u8 = 0x20;

/// The RC opcode of one packet of a SEND or WRITE (IBTA §9.2.1).
pub(super) fn message_opcode(op: &SendOp, first: bool, last: bool) -> Opcode {
    let (first_op, middle, [last_op, only]) = match op {
        SendOp::Send => {
            (Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, [Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY])
        }
        SendOp::SendImm(_) => (
            Opcode::RC_SEND_FIRST,
            Opcode::RC_SEND_MIDDLE,
            [Opcode::RC_SEND_LAST_IMM, Opcode::RC_SEND_ONLY_IMM],
        ),
        SendOp::SendInv(_) => (
            Opcode::RC_SEND_FIRST,
            Opcode::RC_SEND_MIDDLE,
            [Opcode::RC_SEND_LAST_INV, Opcode::RC_SEND_ONLY_INV],
        ),
        SendOp::WriteImm { .. } => (
            Opcode::RC_WRITE_FIRST,
            Opcode::RC_WRITE_MIDDLE,
            [Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY_IMM],
        ),
        _ => {
            (Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, [Opcode::RC_WRITE_LAST, Opcode::RC_WRITE_ONLY])
        }
    };
    match (first, last) {
        (true, true) => only,
        (true, false) => first_op,
        (false, false) => middle,
        (false, true) => last_op,
    }
}

/// Adds the extended headers that the opcode calls for.
pub(super) fn extend(packet: &mut RocePacket<'_>, op: &SendOp, length: u32) {
    let opcode = packet.bth.opcode;
    match *op {
        SendOp::Write { remote } | SendOp::WriteImm { remote, .. } if opcode.has_reth() => {
            packet.reth = Some(Reth { va: remote.addr, rkey: remote.rkey, length });
        }
        _ => {}
    }
    match *op {
        SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } if opcode.has_immdt() => {
            packet.immdt = Some(ImmDt(imm))
        }
        SendOp::SendInv(rkey) if opcode.has_ieth() => packet.ieth = Some(Ieth { rkey }),
        _ => {}
    }
}

/// The 40 bytes that lead a datagram's receive: the GRH as it came; or on RoCE v2 zeros and the IPv4 header, or the IPv6
/// header, rebuilt from what the socket tells. What a socket hides is zero (Identification, flow label).
pub fn grh_of(meta: &PacketMeta) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    if meta.link != PathLink::Udp {
        if meta.has_grh() {
            grh_header(meta).emit(&mut grh);
        }
        return grh;
    }
    let udp_len = meta.udp_payload_len.saturating_add(UDP_LEN);
    match (meta.src, meta.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = &mut grh[20..];
            let [len0, len1] = udp_len.saturating_add(20).to_be_bytes();
            let [id0, id1] = meta.ip_id.to_be_bytes();
            // DF is what every RoCE sender sets.
            header[..10].copy_from_slice(&[
                0x45,
                meta.traffic_class,
                len0,
                len1,
                id0,
                id1,
                0x40,
                0,
                meta.hop_limit,
                UDP_PROTOCOL,
            ]);
            header[12..16].copy_from_slice(&src.octets());
            header[16..20].copy_from_slice(&dst.octets());
            let sum = ipv4_checksum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            grh[0] = 0x60 | meta.traffic_class >> 4;
            grh[1] = meta.traffic_class << 4;
            grh[4..6].copy_from_slice(&udp_len.to_be_bytes());
            grh[6] = UDP_PROTOCOL;
            grh[7] = meta.hop_limit;
            grh[8..24].copy_from_slice(&src.octets());
            grh[24..40].copy_from_slice(&dst.octets());
        }
        _ => {}
    }
    grh
}

fn grh_header(meta: &PacketMeta) -> Grh {
    Grh {
        ip_version: 6,
        traffic_class: meta.traffic_class,
        flow_label: meta.flow_label,
        payload_len: meta.udp_payload_len,
        next_header: NEXT_HEADER_IBA,
        hop_limit: meta.hop_limit,
        sgid: Gid::from(meta.src),
        dgid: Gid::from(meta.dst),
    }
}

const UDP_LEN: u16 = 8;
const UDP_PROTOCOL: u8 = 17;

/// RFC 1071, over a header whose checksum field is still zero.
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grh_of_an_ipv4_datagram_holds_its_header() {
        // The header of an ICMP-era example: RFC 1071's sum checked by adding up to 0xffff.
        let meta = PacketMeta {
            link: PathLink::Udp,
            src: "192.168.77.11".parse().unwrap(),
            dst: "192.168.77.12".parse().unwrap(),
            traffic_class: 2,
            hop_limit: 64,
            ip_id: 0x1234,
            udp_payload_len: 100,
            flow_label: 0,
            dlid_path_bits: 0,
        };
        let grh = grh_of(&meta);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..30], [0x45, 2, 0, 128, 0x12, 0x34, 0x40, 0, 64, 17]);
        assert_eq!(grh[32..40], [192, 168, 77, 11, 192, 168, 77, 12]);
        let words: u32 = grh[20..].chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
        assert_eq!((words & 0xffff) + (words >> 16), 0xffff);
    }

    #[test]
    fn grh_of_an_ipv6_datagram_is_its_header() {
        let meta = PacketMeta {
            link: PathLink::Udp,
            src: "fd77::1".parse().unwrap(),
            dst: "fd77::2".parse().unwrap(),
            traffic_class: 0xab,
            hop_limit: 3,
            ip_id: 0,
            udp_payload_len: 24,
            flow_label: 0,
            dlid_path_bits: 0,
        };
        let grh = grh_of(&meta);
        assert_eq!(grh[..8], [0x6a, 0xb0, 0, 0, 0, 32, 17, 3]);
        assert_eq!(grh[8..10], [0xfd, 0x77]);
        assert_eq!(grh[39], 2);
    }
}
