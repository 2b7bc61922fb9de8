//! The packet socket of a raw port: its filter, its buffers, what it has dropped. packet(7).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use everywire_wire::MacAddr;
use everywire_wire::eth::Ethertype;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use super::frame::Tagging;
use crate::route::Interface;
use crate::sockopt;
use crate::udp::{PortOptions, ROCE_V2_PORT};

const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;

pub(super) fn packet_socket(
    interface: &Interface,
    options: &PortOptions,
    vlan: Option<Tagging>,
) -> io::Result<Socket> {
    // No protocol until the filter stands, so that nothing else gets in.
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
    let fd = socket.as_fd();
    sockopt::attach_filter(fd, &roce_filter(vlan.map_or(0, |vlan| vlan.vid)))?;
    sockopt::set(fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1i32)?;
    sockopt::set(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1i32)?;
    if vlan.is_some() {
        // Beside each frame the tag that it had: a capture is to show it.
        sockopt::set(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1i32)?;
    }
    let buffer = i32::try_from(options.socket.recv_buffer).unwrap_or(i32::MAX);
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if sockopt::set(fd, libc::SOL_SOCKET, forced, buffer).is_err() {
            let _ = sockopt::set(fd, libc::SOL_SOCKET, plain, buffer);
        }
    }
    socket.bind(&link_address(interface.index))?;
    Ok(socket)
}

/// Whether this process may open raw Ethernet (CAP_NET_RAW).
pub fn permitted() -> bool {
    Socket::new(Domain::PACKET, Type::RAW, None).is_ok()
}

pub(super) fn link_address(interface: u32) -> SockAddr {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut link: libc::sockaddr_ll = unsafe { mem::zeroed() };
    link.sll_family = libc::AF_PACKET as u16;
    link.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    link.sll_ifindex = interface as i32;
    // SAFETY: sockaddr_ll is a socket address type, smaller than the storage.
    unsafe {
        *storage.view_as::<libc::sockaddr_ll>() = link;
        SockAddr::new(storage, mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    }
}

/// The index of the interface that a packet socket is bound to; `None` once that was deleted.
pub(super) fn bound_to(fd: BorrowedFd<'_>) -> Option<u32> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut link: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&link) as libc::socklen_t;
    // SAFETY: the buffer is as long as `len` says, and any bytes are a valid sockaddr_ll.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut link).cast(), &raw mut len) };
    (result == 0).then_some(link.sll_ifindex).and_then(|index| u32::try_from(index).ok())
}

/// Passes RoCE v1, and unfragmented UDP to port 4791, IPv4 and IPv6; of one VLAN, or untagged and with tags that carry only a
/// priority. The kernel has taken the tag out of the frame before the filter sees it.
fn roce_filter(vlan: u16) -> [libc::sock_filter; 21] {
    const LDH_ABS: u16 = 0x28;
    const LDB_ABS: u16 = 0x30;
    const LDH_IND: u16 = 0x48;
    const LDX_IMM: u16 = 0x01;
    const LDX_MSH: u16 = 0xb1;
    const LDW_ABS: u16 = 0x20;
    const AND: u16 = 0x54;
    const JA: u16 = 0x05;
    const JEQ: u16 = 0x15;
    const JSET: u16 = 0x45;
    /// SKF_AD_OFF + SKF_AD_VLAN_TAG: the tag's control information, 0 where there is none.
    const VLAN_TAG: u32 = (-0x1000_i32 + 44) as u32;
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    [
        op(LDW_ABS, VLAN_TAG),                             // 0: tag
        op(AND, 0x0fff),                                   // 1: its VLAN
        jump(JEQ, u32::from(vlan), 0, 17),                 // 2: ours, else 20
        op(LDH_ABS, 12),                                   // 3: Ethertype
        jump(JEQ, u32::from(Ethertype::ROCE_V1.0), 14, 0), // 4: RoCE v1, 19
        jump(JEQ, 0x0800, 0, 6),                           // 5: IPv4, else 12
        op(LDB_ABS, 23),                                   // 6: protocol
        jump(JEQ, 17, 0, 12),                              // 7: UDP, else 20
        op(LDH_ABS, 20),                                   // 8: flags and fragment offset
        jump(JSET, 0x3fff, 10, 0),                         // 9: a fragment, 20
        op(LDX_MSH, 14),                                   // 10: X = length of the IPv4 header
        op(JA, 5),                                         // 11: to 17
        jump(JEQ, 0x86dd, 0, 7),                           // 12: IPv6, else 20
        op(LDB_ABS, 20),                                   // 13: next header
        jump(JEQ, 17, 0, 5),                               // 14: UDP, else 20
        op(LDX_IMM, 40),                                   // 15: X = length of the IPv6 header
        op(JA, 0),                                         // 16: to 17
        op(LDH_IND, 16),                                   // 17: destination port
        jump(JEQ, u32::from(ROCE_V2_PORT), 0, 1),          // 18: RoCE v2, else 20
        op(sockopt::BPF_RET_K, u32::MAX),                  // 19: pass, uncut
        op(sockopt::BPF_RET_K, 0),                         // 20: drop
    ]
}

/// Has the interface pass frames to a group's MAC address, or no longer (PACKET_ADD_MEMBERSHIP).
pub(super) fn membership(fd: BorrowedFd<'_>, interface: u32, mac: MacAddr, join: bool) -> io::Result<()> {
    let name = if join { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    // SAFETY: all-zero bytes are a valid packet_mreq.
    let mut request: libc::packet_mreq = unsafe { mem::zeroed() };
    request.mr_ifindex = interface as i32;
    request.mr_type = libc::PACKET_MR_MULTICAST as u16;
    request.mr_alen = mac.0.len() as u16;
    request.mr_address[..mac.0.len()].copy_from_slice(&mac.0);
    sockopt::set(fd, libc::SOL_PACKET, name, request)
}

/// Frames dropped on a full receive buffer since the last call (PACKET_STATISTICS counts from zero each time).
pub(super) fn packet_drops(fd: BorrowedFd<'_>) -> u64 {
    let mut stats = [0u32; 2]; // packets, drops
    let mut len = mem::size_of_val(&stats) as libc::socklen_t;
    // SAFETY: the buffer is as long as `len` says, and is plain integers.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { u64::from(stats[1]) } else { 0 }
}
