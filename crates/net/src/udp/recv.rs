//! Receiving: many datagrams, and many trains of datagrams (UDP GRO), in one system call, into buffers that are reused.
//!
//! Read first: recvmmsg(2), udp(7) on UDP_GRO, facts about what batching is worth in docs/performance.md.
//! A train is handed over as one piece with the size of its segments; [`Received::segments`] cuts it.
//!
//! It does not look into the datagrams.

use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use everywire_wire::eth::VlanTag;

use crate::sockopt::{self, Control};

/// Largest datagram, or train of datagrams, that the kernel hands over in one piece; with room for the headers that a
/// packet socket adds.
pub const MAX_TRAIN: usize = 65_536 + 128;

const UDP_GRO: i32 = 104;

/// One datagram, or a train of them, as it was received.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub src: SocketAddr,
    /// The address that it was sent to.
    pub dst: IpAddr,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Size of each datagram of a train; the last may be shorter. 0: not a train.
    pub segment: usize,
    /// IPv4 Identification of the first datagram, where the driver sees it; those of a train count up from it.
    pub ip_id: Option<u16>,
    /// UDP payload; of RoCE v1, GRH to ICRC and padding.
    pub bytes: &'a [u8],
    /// RoCE v1: there were no IP and no UDP, and the fields above are zero.
    pub roce_v1: bool,
}

impl<'a> Received<'a> {
    /// The datagrams, one by one.
    pub fn segments(&self) -> std::slice::Chunks<'a, u8> {
        let size = if self.segment == 0 { self.bytes.len() } else { self.segment };
        self.bytes.chunks(size.max(1))
    }
}

/// Buffers for one recvmmsg.
pub struct RecvBatch {
    buffers: Box<[u8]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    filled: usize,
    /// Pieces that the next call asks for.
    asked: usize,
    full: bool,
    /// Datagrams that were longer than a buffer, and so of no use.
    pub truncated: u64,
}

// SAFETY: the raw pointers in `headers` and `vectors` point into the boxes beside them and are used only by `receive`,
// which has the batch to itself.
unsafe impl Send for RecvBatch {}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch").field("slots", &self.headers.len()).field("filled", &self.filled).finish()
    }
}

impl RecvBatch {
    /// Room for `slots` datagrams or trains.
    pub fn new(slots: usize) -> RecvBatch {
        // SAFETY: all-zero bytes are valid for these C structures (null pointers, no addresses).
        let (name, vector, header): (libc::sockaddr_in6, libc::iovec, libc::mmsghdr) =
            unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        let mut batch = RecvBatch {
            buffers: vec![0; slots * MAX_TRAIN].into_boxed_slice(),
            names: vec![name; slots].into_boxed_slice(),
            controls: vec![Control::EMPTY; slots].into_boxed_slice(),
            vectors: vec![vector; slots].into_boxed_slice(),
            headers: vec![header; slots].into_boxed_slice(),
            filled: 0,
            asked: 1,
            full: false,
            truncated: 0,
        };
        for slot in 0..slots {
            batch.arm(slot);
        }
        batch
    }

    /// Receives what is there, without waiting, and returns how many pieces there are; what was received before is gone.
    ///
    /// After a call that found little the next asks for little: a second look in vain costs a tenth of a microsecond.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; a pending error of the socket (ECONNREFUSED and so on), whose cause is in its
    /// error queue.
    pub fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // Only what the last call changed is set anew: a program that spins here mostly finds nothing.
        for slot in 0..std::mem::take(&mut self.filled) {
            self.arm(slot);
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: every header points at a live name, vector, buffer and control space of the lengths it gives, all owned
        // by `self` and touched by nobody else during the call. Not through the C library's functions, which are
        // cancellation points and make two atomic operations each.
        let count = unsafe {
            if self.asked == 1 {
                let header = &raw mut self.headers[0].msg_hdr;
                let len = libc::syscall(libc::SYS_recvmsg, fd, header, flags);
                self.headers[0].msg_len = len.max(0) as u32;
                if len < 0 { -1 } else { 1 }
            } else {
                let no_timeout = ptr::null_mut::<libc::timespec>();
                let (headers, asked) = (self.headers.as_mut_ptr(), self.asked as libc::c_uint);
                libc::syscall(libc::SYS_recvmmsg, fd, headers, asked, flags, no_timeout)
            }
        };
        if count < 0 {
            self.asked = 1;
            return Err(io::Error::last_os_error());
        }
        self.filled = count as usize;
        self.full = self.filled == self.asked;
        self.asked = if self.full { self.headers.len().min(self.asked * 4) } else { self.filled.max(1) };
        Ok(self.filled)
    }

    /// Whether the last call received all that it asked for, so that there may be more.
    pub fn was_full(&self) -> bool {
        self.full
    }

    /// Makes a slot ready to receive.
    fn arm(&mut self, slot: usize) {
        self.vectors[slot] = libc::iovec {
            iov_base: self.buffers[slot * MAX_TRAIN..].as_mut_ptr().cast(),
            iov_len: MAX_TRAIN,
        };
        let header = &mut self.headers[slot].msg_hdr;
        header.msg_name = ptr::from_mut(&mut self.names[slot]).cast();
        header.msg_namelen = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        header.msg_iov = ptr::from_mut(&mut self.vectors[slot]);
        header.msg_iovlen = 1;
        header.msg_control = self.controls[slot].as_mut_ptr();
        header.msg_controllen = sockopt::CONTROL_LEN as _;
        header.msg_flags = 0;
    }

    /// The pieces of the last [`RecvBatch::receive`]; what was cut short is counted and left out. Gives the number of
    /// datagrams that the kernel has dropped on a full receive buffer since the socket's last batch.
    ///
    /// `dst` is the address that the socket is bound to, and so what every one of them was sent to; `overflows` is the
    /// kernel's count for that socket (SO_RXQ_OVFL) as of its last batch, 0 before the first.
    pub fn for_each(&mut self, dst: IpAddr, overflows: &mut u32, mut each: impl FnMut(Received<'_>)) -> u64 {
        let mut lost = 0;
        for slot in 0..self.filled {
            let header = &self.headers[slot];
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                self.truncated += 1;
                continue;
            }
            let Some(src) = socket_addr(&self.names[slot]) else { continue };
            let bytes = &self.buffers[slot * MAX_TRAIN..][..(header.msg_len as usize).min(MAX_TRAIN)];
            let mut received =
                Received { src, dst, tos: 0, ttl: 0, segment: 0, ip_id: None, bytes, roce_v1: false };
            for (level, kind, value) in self.controls[slot].messages(header.msg_hdr.msg_controllen) {
                if (level, kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) {
                    if let Some(total) = sockopt::read::<u32>(value) {
                        lost += u64::from(total.wrapping_sub(*overflows));
                        *overflows = total;
                    }
                } else {
                    note(&mut received, level, kind, value);
                }
            }
            each(received);
        }
        lost
    }
}

impl RecvBatch {
    /// The pieces of the last [`RecvBatch::receive`] as bytes only, for sockets whose addresses are no Internet ones; with the
    /// 802.1Q tag that the kernel has taken out of each, where the socket is to be told (PACKET_AUXDATA).
    pub fn for_each_frame(&mut self, mut each: impl FnMut(&[u8], Option<VlanTag>)) {
        for slot in 0..self.filled {
            let header = &self.headers[slot];
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                self.truncated += 1;
                continue;
            }
            let mut messages = self.controls[slot].messages(header.msg_hdr.msg_controllen);
            let aux =
                messages.find(|(level, kind, _)| (*level, *kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA));
            let bytes = &self.buffers[slot * MAX_TRAIN..][..(header.msg_len as usize).min(MAX_TRAIN)];
            each(bytes, aux.and_then(|(_, _, value)| vlan_tag(value)));
        }
    }
}

/// The tag in a tpacket_auxdata, if the frame had one.
fn vlan_tag(aux: &[u8]) -> Option<VlanTag> {
    const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
    // Behind the status: the length, what of it was captured, and where the link and network headers are.
    const TCI_AT: usize = 4 + 4 + 4 + 2 + 2;
    let status: u32 = sockopt::read(aux)?;
    let tci = aux.get(TCI_AT..)?.first_chunk().copied().map(u16::from_ne_bytes)?;
    (status & TP_STATUS_VLAN_VALID != 0).then(|| VlanTag::from_tci(tci))
}

fn note(received: &mut Received<'_>, level: i32, kind: i32, value: &[u8]) {
    match (level, kind) {
        (libc::SOL_UDP, UDP_GRO) => {
            received.segment = sockopt::read::<i32>(value).unwrap_or(0).max(0) as usize
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => received.tos = value.first().copied().unwrap_or(0),
        (libc::IPPROTO_IP, libc::IP_TTL) => received.ttl = sockopt::read::<i32>(value).unwrap_or(0) as u8,
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            received.tos = sockopt::read::<i32>(value).unwrap_or(0) as u8;
        }
        (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            received.ttl = sockopt::read::<i32>(value).unwrap_or(0) as u8;
        }
        _ => {}
    }
}

/// A socket address as the kernel wrote it, IPv4 or IPv6.
pub(crate) fn socket_addr(name: &libc::sockaddr_in6) -> Option<SocketAddr> {
    match i32::from(name.sin6_family) {
        libc::AF_INET6 => Some(SocketAddr::V6(SocketAddrV6::new(
            Ipv6Addr::from(name.sin6_addr.s6_addr),
            u16::from_be(name.sin6_port),
            name.sin6_flowinfo,
            name.sin6_scope_id,
        ))),
        libc::AF_INET => {
            // SAFETY: a sockaddr_in6 is larger than a sockaddr_in, is initialised, and holds one by its family.
            let v4: libc::sockaddr_in = unsafe { ptr::from_ref(name).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        _ => None,
    }
}
