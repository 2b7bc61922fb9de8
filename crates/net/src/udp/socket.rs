//! One UDP socket as RoCE v2 needs it: every option that decides what the kernel writes into, and tells of, a datagram.
//!
//! Read first: ip(7), ipv6(7), udp(7); RoCE v2 (IBTA A17) for the port and the ICRC, which covers the IPv4 Identification.
//! An **unconnected** IPv4 socket with IP_PMTUDISC_DO writes Identification 0 and DF, and with UDP_SEGMENT 0, 1, 2 … for
//! the segments: this is what makes a right ICRC possible without privileges, so sockets here are never connected.
//!
//! It does not send or receive; see `send.rs` and `recv.rs`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libc::c_int;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::sockopt;

/// The UDP destination port of RoCE v2.
pub const ROCE_V2_PORT: u16 = 4791;

/// Hop limit and TTL of datagrams that ask for none: what Linux' own RoCE writes.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Socket buffer asked for, in bytes; an unprivileged process gets what `net.core.[rw]mem_max` allows.
pub const DEFAULT_BUFFER: usize = 8 << 20;

/// How often an address in use is tried again, and how long after.
const BIND_AGAIN: u32 = 25;
const BIND_PAUSE: Duration = Duration::from_millis(2);

const IPV6_AUTOFLOWLABEL: c_int = 70;
const IPV6_FLOWINFO_SEND: c_int = 33;
const UDP_NO_CHECK6_RX: c_int = 102;
const UDP_GRO: c_int = 104;
const IP_PMTUDISC_DO: c_int = 2;
const IPV6_MULTICAST_ALL: c_int = 29;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Bound to ADDR:4791: receives everything of the device, and sends what leaves from port 4791.
    Main,
    /// Bound to ADDR:port from 49152 up: sends only; whatever arrives is dropped by a filter.
    Sender,
    /// Bound to (group, 4791): receives one multicast group.
    Group,
}

/// How sockets are made.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Receive buffer asked for, in bytes.
    pub recv_buffer: usize,
    /// Send buffer asked for, in bytes.
    pub send_buffer: usize,
    /// Use CAP_NET_ADMIN, where there is some, to go beyond the system's limit on buffers.
    pub force_buffers: bool,
    /// Let the kernel hand over trains of datagrams in one piece (UDP_GRO).
    pub gro: bool,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            recv_buffer: DEFAULT_BUFFER,
            send_buffer: DEFAULT_BUFFER,
            force_buffers: true,
            gro: true,
        }
    }
}

/// A bound, unconnected, non-blocking UDP socket.
#[derive(Debug)]
pub struct RoceSocket {
    socket: Socket,
    local: SocketAddr,
    gro: bool,
    /// The kernel's count of datagrams lost on its full receive buffer (SO_RXQ_OVFL), as last seen.
    overflows: u32,
}

impl RoceSocket {
    /// Makes and binds one.
    ///
    /// # Errors
    /// What the kernel said of `socket`, of `bind` or of an option without which datagrams would be wrong on the wire.
    /// Options that only make things faster or tell more are best effort.
    pub fn bind(local: SocketAddr, role: Role, options: &SocketOptions) -> io::Result<RoceSocket> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if local.is_ipv6() {
            socket.set_only_v6(true)?;
            v6_options(socket.as_fd())?;
        } else {
            v4_options(socket.as_fd())?;
        }
        let fd = socket.as_fd();
        let mut gro = false;
        if role == Role::Sender {
            sockopt::drop_all_input(fd)?;
        } else {
            gro = options.gro && sockopt::set(fd, libc::SOL_UDP, UDP_GRO, 1 as c_int).is_ok();
            let _ = sockopt::set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1 as c_int);
            set_buffer(fd, options.recv_buffer, options.force_buffers, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        }
        set_buffer(fd, options.send_buffer, options.force_buffers, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        if role == Role::Group {
            // Several devices of one host may be members: each gets its copy.
            socket.set_reuse_address(true)?;
        }
        bind_patiently(&socket, local)?;
        let local = socket.local_addr()?.as_socket().unwrap_or(local);
        Ok(RoceSocket { socket, local, gro, overflows: 0 })
    }

    /// The address that it is bound to, with the port that the kernel chose where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether the kernel coalesces what is received.
    pub fn has_gro(&self) -> bool {
        self.gro
    }

    /// Receive buffer that the kernel granted, in bytes of its own accounting (twice what was asked for).
    pub fn recv_buffer(&self) -> usize {
        self.socket.recv_buffer_size().unwrap_or(0)
    }

    /// Where to keep the kernel's count of lost datagrams, which is the socket's own.
    pub(super) fn overflows(&mut self) -> &mut u32 {
        &mut self.overflows
    }

    /// Becomes a member of the group it is bound to, on the interface with index `interface` (0: the kernel's choice).
    pub fn join(&self, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
        match (group, local) {
            (IpAddr::V4(group), IpAddr::V4(local)) => self.socket.join_multicast_v4(&group, &local),
            (IpAddr::V6(group), _) => self.socket.join_multicast_v6(&group, interface),
            (IpAddr::V4(group), IpAddr::V6(_)) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("an IPv6 device cannot join the IPv4 group {group}"),
            )),
        }
    }

    /// Is a member of a group no more.
    pub fn leave(&self, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
        match (group, local) {
            (IpAddr::V4(group), IpAddr::V4(local)) => self.socket.leave_multicast_v4(&group, &local),
            (IpAddr::V6(group), _) => self.socket.leave_multicast_v6(&group, interface),
            (IpAddr::V4(_), IpAddr::V6(_)) => Ok(()), // never joined
        }
    }

    /// Sends multicast through the interface of `local`, or the one with index `interface` in IPv6, and hears it itself.
    pub fn multicast_through(&self, local: IpAddr, interface: u32) -> io::Result<()> {
        match local {
            IpAddr::V4(local) => self.socket.set_multicast_if_v4(&local),
            IpAddr::V6(_) => self.socket.set_multicast_if_v6(interface),
        }
    }

    /// Takes the pending error of the socket, which else would make the next call fail.
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().ok().flatten()
    }
}

impl AsFd for RoceSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<RoceSocket> for OwnedFd {
    fn from(socket: RoceSocket) -> OwnedFd {
        socket.socket.into()
    }
}

fn v4_options(fd: BorrowedFd<'_>) -> io::Result<()> {
    let level = libc::IPPROTO_IP;
    sockopt::set(fd, level, libc::IP_MTU_DISCOVER, IP_PMTUDISC_DO)?;
    sockopt::set(fd, level, libc::IP_TTL, c_int::from(DEFAULT_HOP_LIMIT))?;
    sockopt::set(fd, level, libc::IP_MULTICAST_TTL, c_int::from(DEFAULT_HOP_LIMIT))?;
    sockopt::set(fd, level, libc::IP_RECVTOS, 1 as c_int)?;
    sockopt::set(fd, level, libc::IP_RECVTTL, 1 as c_int)?;
    sockopt::set(fd, level, libc::IP_RECVERR, 1 as c_int)?;
    // Only groups that this very socket joined.
    sockopt::set(fd, level, libc::IP_MULTICAST_ALL, 0 as c_int)
}

fn v6_options(fd: BorrowedFd<'_>) -> io::Result<()> {
    let level = libc::IPPROTO_IPV6;
    sockopt::set(fd, level, libc::IPV6_MTU_DISCOVER, IP_PMTUDISC_DO)?;
    sockopt::set(fd, level, libc::IPV6_UNICAST_HOPS, c_int::from(DEFAULT_HOP_LIMIT))?;
    sockopt::set(fd, level, libc::IPV6_MULTICAST_HOPS, c_int::from(DEFAULT_HOP_LIMIT))?;
    sockopt::set(fd, level, libc::IPV6_RECVTCLASS, 1 as c_int)?;
    sockopt::set(fd, level, libc::IPV6_RECVHOPLIMIT, 1 as c_int)?;
    sockopt::set(fd, level, libc::IPV6_RECVERR, 1 as c_int)?;
    // The flow label is the queue pair's; by default the kernel would write a hash. Without privileges the kernel takes any
    // label, unless somebody on this host has leased one for himself alone (IPV6_FL_S_EXCL).
    sockopt::set(fd, level, IPV6_AUTOFLOWLABEL, 0 as c_int)?;
    let _ = sockopt::set(fd, level, IPV6_FLOWINFO_SEND, 1 as c_int);
    let _ = sockopt::set(fd, level, IPV6_MULTICAST_ALL, 0 as c_int);
    // Linux' RoCE sends IPv6 with UDP checksum 0, which a socket drops unless told otherwise.
    sockopt::set(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1 as c_int)
}

fn set_buffer(fd: BorrowedFd<'_>, bytes: usize, force: bool, forced: c_int, plain: c_int) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    if !(force && sockopt::set(fd, libc::SOL_SOCKET, forced, bytes).is_ok()) {
        let _ = sockopt::set(fd, libc::SOL_SOCKET, plain, bytes);
    }
}

/// Whether `ip` can be the address of a device, and if not, why.
pub fn check_device_address(ip: IpAddr) -> Result<(), &'static str> {
    match ip {
        _ if ip.is_unspecified() => Err(
            "a device is one address, the GID that its peers know it by; the wildcard is none: name one address of \
                 this host",
        ),
        _ if ip.is_multicast() => Err("this is a multicast group; a device needs a unicast address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => {
            Err("this is the broadcast address; a device needs a unicast address")
        }
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err("this is an IPv4 address in IPv6 notation; give it as IPv4")
        }
        _ => Ok(()),
    }
}

/// Whether addresses of this kind mean nothing without an interface (`fe80::1%eth0`).
pub fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if is_link_local(v6))
}

fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}
/// Binds. RoCE's port of a device that this process has just closed may be held for a moment more: by a child that another
/// thread has forked and that has not come to its exec, which closes what it was born with.
fn bind_patiently(socket: &Socket, local: SocketAddr) -> io::Result<()> {
    let again = if local.port() == ROCE_V2_PORT { BIND_AGAIN } else { 0 };
    for _ in 0..again {
        match socket.bind(&SockAddr::from(local)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(BIND_PAUSE),
            outcome => return outcome,
        }
    }
    socket.bind(&SockAddr::from(local))
}
