//! The packet socket of a raw port: its filter, its buffers, what it has dropped. packet(7).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use crate::route::Interface;
use crate::sockopt;
use crate::udp::{PortOptions, ROCE_V2_PORT};

const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;

pub(super) fn packet_socket(interface: &Interface, options: &PortOptions) -> io::Result<Socket> {
    // No protocol until the filter stands, so that nothing else gets in.
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
    let fd = socket.as_fd();
    sockopt::attach_filter(fd, &roce_filter())?;
    sockopt::set(fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1i32)?;
    sockopt::set(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1i32)?;
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

/// Passes unfragmented UDP to port 4791, IPv4 and IPv6, and nothing else.
fn roce_filter() -> [libc::sock_filter; 16] {
    const LDH_ABS: u16 = 0x28;
    const LDB_ABS: u16 = 0x30;
    const LDH_IND: u16 = 0x48;
    const LDX_IMM: u16 = 0x01;
    const LDX_MSH: u16 = 0xb1;
    const JA: u16 = 0x05;
    const JEQ: u16 = 0x15;
    const JSET: u16 = 0x45;
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    [
        op(LDH_ABS, 12),                          // 0: Ethertype
        jump(JEQ, 0x0800, 0, 6),                  // 1: IPv4, else 8
        op(LDB_ABS, 23),                          // 2: protocol
        jump(JEQ, 17, 0, 11),                     // 3: UDP, else 15
        op(LDH_ABS, 20),                          // 4: flags and fragment offset
        jump(JSET, 0x3fff, 9, 0),                 // 5: a fragment, 15
        op(LDX_MSH, 14),                          // 6: X = length of the IPv4 header
        op(JA, 4),                                // 7: to 12
        jump(JEQ, 0x86dd, 0, 6),                  // 8: IPv6, else 15
        op(LDB_ABS, 20),                          // 9: next header
        jump(JEQ, 17, 0, 4),                      // 10: UDP, else 15
        op(LDX_IMM, 40),                          // 11: X = length of the IPv6 header
        op(LDH_IND, 16),                          // 12: destination port
        jump(JEQ, u32::from(ROCE_V2_PORT), 0, 1), // 13: RoCE v2, else 15
        op(sockopt::BPF_RET_K, u32::MAX),         // 14: pass, uncut
        op(sockopt::BPF_RET_K, 0),                // 15: drop
    ]
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
