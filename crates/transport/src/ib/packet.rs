//! What a queue pair knows of an arriving packet beside its bytes, and the packets it builds.
//!
//! Read IBTA vol. 1 §9.2 and annex A17. The ICRC has been checked and the destination queue pair found before a packet
//! gets here.

use std::net::IpAddr;

/// Bytes of the GRH that lead every datagram's receive buffer (IBTA §11.4.1.2).
pub const GRH_LEN: usize = 40;

/// The network headers of an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// Who sent it.
    pub src: IpAddr,
    /// The address it was sent to: ours, or a multicast group.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 Identification; 0 where a UDP socket hides it.
    pub ip_id: u16,
    /// Bytes of the UDP payload: BTH to ICRC.
    pub udp_payload_len: u16,
}
