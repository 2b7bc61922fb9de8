//! Sending: many datagrams, and many trains of equal datagrams (UDP GSO), in one system call.
//!
//! Read first: sendmmsg(2), udp(7) on UDP_SEGMENT. The rules of a train: all segments equal, only the last may be shorter,
//! at most [`MAX_TRAIN_BYTES`] and [`MAX_TRAIN_SEGMENTS`]; the kernel numbers their IPv4 Identification 0, 1, 2 ….
//!
//! It does not decide what an error means; see `port.rs`.

use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::c_int;

use super::socket::DEFAULT_HOP_LIMIT;
use crate::sockopt::Control;

/// Most bytes of UDP payload in one train: an IPv4 packet's 65,535 less its headers.
pub const MAX_TRAIN_BYTES: usize = 65_507;
/// Most segments in one train that every kernel takes (UDP_MAX_SEGMENTS was 64 before it became 128).
pub const MAX_TRAIN_SEGMENTS: usize = 64;
/// Most datagrams or trains in one system call.
pub const MAX_SEND_BATCH: usize = 64;

/// One datagram or train to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Source port: that of the socket to send from.
    pub src_port: u16,
    /// Destination; the scope matters for link-local addresses, and an IPv6 address has its flow label in the flow
    /// information.
    pub dst: SocketAddr,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Size of the segments of a train; `None`: one datagram.
    pub segment: Option<usize>,
    /// UDP payload; of RoCE v1, GRH to ICRC.
    pub bytes: &'a [u8],
    /// RoCE v1: no IP and no UDP. Only raw ports take it.
    pub roce_v1: bool,
}

/// Scratch for one sendmmsg.
pub struct SendBatch {
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Write IPv6 flow labels; a kernel where labels are leased refuses them.
    pub flow_labels: bool,
}

// SAFETY: the raw pointers are written and used only within one call of `send`, which has the scratch to itself.
unsafe impl Send for SendBatch {}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").finish_non_exhaustive()
    }
}

impl Default for SendBatch {
    fn default() -> Self {
        SendBatch::new()
    }
}

impl SendBatch {
    /// Scratch for up to [`MAX_SEND_BATCH`] pieces a call.
    pub fn new() -> SendBatch {
        // SAFETY: all-zero bytes are valid for these C structures (null pointers, no addresses).
        let (name, vector, header): (libc::sockaddr_in6, libc::iovec, libc::mmsghdr) =
            unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        SendBatch {
            names: vec![name; MAX_SEND_BATCH].into_boxed_slice(),
            controls: vec![Control::EMPTY; MAX_SEND_BATCH].into_boxed_slice(),
            vectors: vec![vector; MAX_SEND_BATCH].into_boxed_slice(),
            headers: vec![header; MAX_SEND_BATCH].into_boxed_slice(),
            flow_labels: true,
        }
    }

    /// Sends `items` in order, without waiting, and returns how many left: at least one, and fewer than all if one could
    /// not be sent or if there are more than [`MAX_SEND_BATCH`].
    ///
    /// # Errors
    /// What the kernel said of the first piece.
    pub fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        items: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for item in items.take(MAX_SEND_BATCH) {
            self.prepare(count, &item);
            count += 1;
        }
        self.send_prepared(fd, count)
    }

    /// Sends whole frames through a packet socket that is bound to its interface; else as [`SendBatch::send`].
    ///
    /// # Errors
    /// What the kernel said of the first frame.
    pub fn send_frames<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for frame in frames.take(MAX_SEND_BATCH) {
            self.vectors[count] =
                libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            let header = &mut self.headers[count].msg_hdr;
            header.msg_name = ptr::null_mut();
            header.msg_namelen = 0;
            header.msg_iov = ptr::from_mut(&mut self.vectors[count]);
            header.msg_iovlen = 1;
            header.msg_control = ptr::null_mut();
            header.msg_controllen = 0;
            count += 1;
        }
        self.send_prepared(fd, count)
    }

    /// Every caller has just written the first `count` headers, from payloads that live on in its arguments.
    fn send_prepared(&mut self, fd: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the first `count` headers point at live names, vectors, control space (owned by `self`) and payloads
        // (borrowed by the caller's iterator items); the kernel only reads them and writes msg_len. Not through the C
        // library's functions, which are cancellation points.
        let sent = unsafe {
            if count == 1 {
                let len = libc::syscall(libc::SYS_sendmsg, fd, &raw const self.headers[0].msg_hdr, flags);
                if len < 0 { -1 } else { 1 }
            } else {
                let headers = self.headers.as_mut_ptr();
                libc::syscall(libc::SYS_sendmmsg, fd, headers, count as libc::c_uint, flags)
            }
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    fn prepare(&mut self, slot: usize, item: &Outgoing<'_>) {
        let name_len = write_name(&mut self.names[slot], item.dst);
        if let SocketAddr::V6(v6) = item.dst
            && self.flow_labels
        {
            self.names[slot].sin6_flowinfo = v6.flowinfo().to_be();
        }
        self.vectors[slot] =
            libc::iovec { iov_base: item.bytes.as_ptr().cast_mut().cast(), iov_len: item.bytes.len() };
        let control = &mut self.controls[slot];
        let mut used = 0;
        if let Some(segment) = item.segment.filter(|&segment| segment < item.bytes.len()) {
            used = control.push(used, libc::SOL_UDP, libc::UDP_SEGMENT, segment as u16);
        }
        let (level, tos, ttl) = match item.dst {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        if item.tos != 0 {
            used = control.push(used, level, tos, c_int::from(item.tos));
        }
        if item.ttl != DEFAULT_HOP_LIMIT && item.ttl != 0 {
            used = control.push(used, level, ttl, c_int::from(item.ttl));
        }
        let header = &mut self.headers[slot].msg_hdr;
        header.msg_name = ptr::from_mut(&mut self.names[slot]).cast();
        header.msg_namelen = name_len;
        header.msg_iov = ptr::from_mut(&mut self.vectors[slot]);
        header.msg_iovlen = 1;
        header.msg_control = if used == 0 { ptr::null_mut() } else { control.as_mut_ptr() };
        header.msg_controllen = used as _;
        header.msg_flags = 0;
    }
}

/// Writes a socket address as the kernel wants it and returns its length.
pub(crate) fn write_name(name: &mut libc::sockaddr_in6, addr: SocketAddr) -> libc::socklen_t {
    match addr {
        SocketAddr::V6(v6) => {
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = v6.port().to_be();
            name.sin6_flowinfo = 0;
            name.sin6_addr = libc::in6_addr { s6_addr: v6.ip().octets() };
            name.sin6_scope_id = v6.scope_id();
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
        SocketAddr::V4(v4) => {
            let plain = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_in6 has room for a sockaddr_in and at least its alignment.
            unsafe { ptr::from_mut(name).cast::<libc::sockaddr_in>().write(plain) };
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
    }
}
