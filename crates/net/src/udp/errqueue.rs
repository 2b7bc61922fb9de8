//! The error queue of a UDP socket: which destination cannot be reached, and which path takes only smaller datagrams.
//!
//! Read first: ip(7) on IP_RECVERR, `struct sock_extended_err`. A UDP send succeeds long before a router or the peer
//! answers "unreachable"; the kernel keeps that answer, with the destination of the datagram that caused it, here.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::recv::socket_addr;
use crate::sockopt::{self, Control};

/// Most errors taken from one socket at a time.
const MAX_ERRORS: usize = 64;

/// One entry of the error queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathError {
    /// Where the datagram was going.
    pub dst: SocketAddr,
    /// What became of it, as an errno: ECONNREFUSED, EHOSTUNREACH, EMSGSIZE ….
    pub errno: i32,
    /// With EMSGSIZE: the MTU of the path, in bytes of IP packet.
    pub mtu: Option<usize>,
    /// Whether a host on the way, or the peer, said so (ICMP), not this kernel.
    pub from_network: bool,
}

impl PathError {
    /// The errno in words.
    pub fn text(&self) -> String {
        let who = if self.from_network { "reported by the network (ICMP)" } else { "reported by this host" };
        format!("{}, {who}", io::Error::from_raw_os_error(self.errno))
    }
}

/// Takes what is in the error queue of `fd`.
pub fn drain(fd: BorrowedFd<'_>, mut each: impl FnMut(PathError)) {
    for _ in 0..MAX_ERRORS {
        match take(fd) {
            Some(Some(error)) => each(error),
            Some(None) => {}
            None => return,
        }
    }
}

/// One entry: `None` if the queue is empty, `Some(None)` for one that says nothing of a path.
fn take(fd: BorrowedFd<'_>) -> Option<Option<PathError>> {
    // SAFETY: all-zero bytes are valid for these C structures.
    let (mut name, mut header): (libc::sockaddr_in6, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut control = Control::EMPTY;
    let mut payload = [0u8; 64]; // the start of the datagram comes back too; it is not used
    let mut vector = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = mem::size_of_val(&name) as libc::socklen_t;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr();
    header.msg_controllen = sockopt::CONTROL_LEN as _;
    // SAFETY: the header points at live locals of the lengths that it gives.
    let result =
        unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if result < 0 {
        return None;
    }
    let dst = if header.msg_namelen == 0 { None } else { socket_addr(&name) };
    let found = control.messages(header.msg_controllen).find_map(|(level, kind, value)| {
        let ours = matches!(
            (level, kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        if ours { sockopt::read::<libc::sock_extended_err>(value) } else { None }
    });
    let (Some(dst), Some(error)) = (dst, found) else { return Some(None) };
    let errno = error.ee_errno as i32;
    Some(Some(PathError {
        dst,
        errno,
        mtu: (errno == libc::EMSGSIZE).then_some(error.ee_info as usize),
        from_network: matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6),
    }))
}
