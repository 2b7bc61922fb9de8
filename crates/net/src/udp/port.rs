//! The sockets of one device: one that receives on ADDR:4791, a few that only send from ports 49152 and up, one a group.
//!
//! Read first: RoCE v2 (IBTA A17) on the UDP source port as the flow's entropy; ip(7). Replies always come to 4791,
//! whatever port a datagram came from, so a device sends from several ports and receives on one.
//! Sending never loses work silently: what cannot leave now stays with the caller, what never will is counted by cause.
//!
//! It knows nothing of verbs or of what is in a datagram, but for the ICRC that it writes anew if trains must be taken apart.

mod membership;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use everywire_wire::{IcrcV4, icrc_v4};

use super::counters::{PathEvent, PortCounters};
use super::errqueue::{self, PathError};
use super::owner;
use super::recv::{Received, RecvBatch};
use super::send::{Outgoing, SendBatch};
use super::socket::{ROCE_V2_PORT, RoceSocket, Role, SocketOptions, check_device_address};
use crate::error::OpenError;
use crate::route;

/// First port of the dynamic range, which RoCE v2 sends from.
pub const FIRST_SOURCE_PORT: u16 = 49_152;
/// Most send-only sockets of a device.
pub const MAX_SOURCE_PORTS: usize = 64;
/// Most groups of a device.
pub const MAX_GROUPS: usize = 256;
/// How often another random source port is tried.
const PORT_TRIES: u32 = 256;
/// How often a send is tried again that reported an older datagram's error.
const PENDING_ERROR_TRIES: u32 = 8;
/// Bytes of ICRC at the end of every datagram.
const ICRC_LEN: usize = 4;

/// How a device's sockets are made.
#[derive(Clone, Copy, Debug)]
pub struct PortOptions {
    /// Options of each socket.
    pub socket: SocketOptions,
    /// How many source ports, at most [`MAX_SOURCE_PORTS`].
    pub source_ports: usize,
    /// Pieces received in one system call.
    pub recv_slots: usize,
    /// Let the kernel cut trains into datagrams (UDP_SEGMENT).
    pub gso: bool,
}

impl Default for PortOptions {
    fn default() -> Self {
        PortOptions { socket: SocketOptions::default(), source_ports: 8, recv_slots: 16, gso: true }
    }
}

/// The sockets of one device.
#[derive(Debug)]
pub struct UdpPort {
    local: SocketAddr,
    /// Its index, and whether the groups are joined there.
    interface: u32,
    settled: bool,
    main: RoceSocket,
    senders: Vec<RoceSocket>,
    groups: Vec<(IpAddr, RoceSocket)>,
    recv: RecvBatch,
    send: SendBatch,
    options: PortOptions,
    gso: bool,
    counters: PortCounters,
}

impl UdpPort {
    /// Binds `ip`:4791 and the source ports. `entropy` chooses the ports; `interface` is where groups are joined.
    ///
    /// # Errors
    /// Says who owns the address if somebody does, and what to do about the rest.
    pub fn open(
        ip: IpAddr,
        scope_id: u32,
        interface: u32,
        options: &PortOptions,
        entropy: u64,
    ) -> Result<UdpPort, OpenError> {
        check_device_address(ip).map_err(|why| OpenError::Address { ip, why: why.to_owned() })?;
        let local = route::with_scope(ip, ROCE_V2_PORT, scope_id);
        let main =
            RoceSocket::bind(local, Role::Main, &options.socket).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => OpenError::InUse { addr: local, owner: owner::describe(local) },
                io::ErrorKind::AddrNotAvailable => OpenError::NotOurs { ip, source },
                _ => OpenError::System { step: "bind UDP port 4791", ip, source },
            })?;
        main.multicast_through(ip, interface).map_err(|source| OpenError::System {
            step: "choose the multicast interface",
            ip,
            source,
        })?;
        let mut senders = Vec::new();
        let mut random = entropy;
        for _ in 0..options.source_ports.clamp(1, MAX_SOURCE_PORTS) {
            senders.push(bind_sender(local, &options.socket, &mut random)?);
        }
        for sender in &senders {
            sender.multicast_through(ip, interface).map_err(|source| OpenError::System {
                step: "choose the multicast interface",
                ip,
                source,
            })?;
        }
        Ok(UdpPort {
            local,
            interface,
            settled: true,
            main,
            senders,
            groups: Vec::new(),
            recv: RecvBatch::new(options.recv_slots.max(1)),
            send: SendBatch::new(),
            options: *options,
            gso: options.gso,
            counters: PortCounters::default(),
        })
    }

    /// The device's address and port 4791.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The ports that datagrams can leave from.
    pub fn source_ports(&self) -> Vec<u16> {
        self.senders.iter().map(|sender| sender.local_addr().port()).collect()
    }

    /// Receive buffer granted, in the kernel's own accounting.
    pub fn recv_buffer(&self) -> usize {
        self.main.recv_buffer()
    }

    /// Whether trains go to the kernel whole.
    pub fn has_gso(&self) -> bool {
        self.gso
    }

    /// Whether trains come from the kernel whole.
    pub fn has_gro(&self) -> bool {
        self.main.has_gro()
    }

    /// What happened so far.
    pub fn counters(&self) -> PortCounters {
        PortCounters { truncated: self.recv.truncated, ..self.counters }
    }

    /// The socket that sends from port `src_port`.
    pub fn sender(&self, src_port: u16) -> Option<BorrowedFd<'_>> {
        socket_of(&self.main, &self.senders, src_port).map(AsFd::as_fd)
    }

    /// All sockets, to be watched for input, and for errors.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let groups = self.groups.iter().map(|(_, socket)| socket);
        std::iter::once(&self.main).chain(groups).chain(&self.senders).map(AsFd::as_fd)
    }

    /// Receives one batch from the main socket, then from each group's; returns whether there may be more.
    ///
    /// `lost` gets the datagrams dropped on a full buffer since the last call.
    pub fn receive(
        &mut self,
        lost: &mut u64,
        paths: &mut Vec<PathEvent>,
        mut each: impl FnMut(Received<'_>),
    ) -> bool {
        let (mut more, before) = (false, *lost);
        let groups = self.groups.iter_mut().map(|(_, socket)| socket);
        let sockets = std::iter::once(&mut self.main).chain(groups);
        let mut failed = false;
        for socket in sockets {
            match self.recv.receive(socket.as_fd()) {
                Ok(count) => {
                    self.counters.recv_calls += 1;
                    self.counters.received_pieces += count as u64;
                    more |= self.recv.was_full();
                    let dst = socket.local_addr().ip();
                    *lost += self.recv.for_each(dst, socket.overflows(), &mut each);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => more = true,
                // The socket reports, once, an error that a datagram met on its way; the queue says which.
                Err(_) => {
                    failed = true;
                    more = true;
                }
            }
        }
        self.counters.receive_overflows += *lost - before;
        if failed {
            self.drain_errors(paths);
        }
        more
    }

    /// Empties the error queues of all sockets.
    pub fn drain_errors(&mut self, paths: &mut Vec<PathEvent>) {
        let groups = self.groups.iter().map(|(_, socket)| socket);
        for socket in std::iter::once(&self.main).chain(groups).chain(&self.senders) {
            let before = paths.len();
            errqueue::drain(socket.as_fd(), |error| paths.extend(path_event(&error)));
            socket.take_error();
            let unreachable =
                paths[before..].iter().filter(|e| matches!(e, PathEvent::Unreachable { .. })).count();
            self.counters.unreachable += unreachable as u64;
        }
    }

    /// Sends `items` in order and returns how many are done with: sent, or dropped and counted. Fewer than all means that
    /// no more can leave now; a send buffer with room again shows in epoll, buffers of the kernel do not, so try again
    /// within a millisecond.
    pub fn send(&mut self, items: &[Outgoing<'_>], paths: &mut Vec<PathEvent>) -> usize {
        let mut done = 0;
        let mut pending_errors = 0;
        while let Some(first) = items.get(done) {
            let run = items[done..].iter().take_while(|item| item.src_port == first.src_port);
            let fd = match socket_of(&self.main, &self.senders, first.src_port) {
                Some(socket) => socket.as_fd(),
                None => {
                    self.counters.send_errors += 1;
                    done += 1;
                    continue;
                }
            };
            if !self.gso && first.segment.is_some_and(|segment| segment < first.bytes.len()) {
                self.counters.trains_cut += 1;
                if !self.send_cut(first, paths) {
                    self.counters.send_blocked += 1;
                    return done;
                }
                done += 1;
                continue;
            }
            let gso = self.gso;
            let run = run.take_while(|item| gso || item.segment.is_none_or(|s| s >= item.bytes.len()));
            match self.send.send(fd, run.copied()) {
                Ok(sent) => {
                    self.counters.send_calls += 1;
                    self.counters.sent_pieces += sent as u64;
                    pending_errors = 0;
                    done += sent;
                }
                Err(error) => match self.after_error(&error, first, &mut pending_errors, paths) {
                    AfterError::TryAgain => {}
                    AfterError::Dropped => done += 1,
                    AfterError::Blocked => {
                        self.counters.send_blocked += 1;
                        return done;
                    }
                },
            }
        }
        done
    }

    fn after_error(
        &mut self,
        error: &io::Error,
        item: &Outgoing<'_>,
        pending_errors: &mut u32,
        paths: &mut Vec<PathEvent>,
    ) -> AfterError {
        let dst = item.dst.ip();
        match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => return AfterError::Blocked,
            libc::EINTR => return AfterError::TryAgain,
            libc::EMSGSIZE => self.too_big(dst, item.dst, paths),
            libc::EINVAL if self.send.flow_labels && has_flow_label(item.dst) => {
                tracing::info!(local = %self.local, "IPv6 flow labels are leased on this host; sending without");
                self.send.flow_labels = false;
                return AfterError::TryAgain;
            }
            libc::EINVAL | libc::EIO | libc::EOPNOTSUPP if item.segment.is_some() => {
                let segment = item.segment.unwrap_or(0) + route::header_overhead(dst);
                let mtu = self.path_mtu(item.dst);
                if mtu.is_some_and(|mtu| mtu < segment) {
                    self.too_big(dst, item.dst, paths);
                } else {
                    tracing::warn!(local = %self.local, %error, "the kernel takes no UDP trains here; sending one by one");
                    self.gso = false;
                    return AfterError::TryAgain;
                }
            }
            libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO | libc::EHOSTDOWN => {
                // Either an answer to an older datagram, taken now, or there is no route for this one.
                self.drain_errors(paths);
                *pending_errors += 1;
                if *pending_errors <= PENDING_ERROR_TRIES {
                    return AfterError::TryAgain;
                }
                *pending_errors = 0;
                self.counters.no_route += 1;
                let errno = error.raw_os_error().unwrap_or(libc::EHOSTUNREACH);
                paths.push(PathEvent::Unreachable { dst, errno, why: format!("no route: {error}") });
            }
            libc::EPERM | libc::EACCES => {
                if self.counters.refused == 0 {
                    tracing::warn!(local = %self.local, %dst, "this host's firewall refuses to send RoCE v2 (UDP 4791)");
                }
                self.counters.refused += 1;
            }
            _ => {
                if self.counters.send_errors == 0 {
                    tracing::warn!(local = %self.local, %dst, %error, "cannot send a datagram");
                }
                self.counters.send_errors += 1;
            }
        }
        AfterError::Dropped
    }

    fn too_big(&mut self, dst: IpAddr, to: SocketAddr, paths: &mut Vec<PathEvent>) {
        self.counters.too_big += 1;
        if let Some(mtu) = self.path_mtu(to) {
            paths.push(PathEvent::Mtu { dst, mtu });
        }
    }

    fn path_mtu(&self, to: SocketAddr) -> Option<usize> {
        let scope = match to {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        route::resolve(to.ip(), Some(self.local.ip()), scope).ok().map(|path| path.mtu)
    }

    /// Sends a train datagram by datagram: each gets Identification 0 then, so IPv4 ICRCs are written anew.
    ///
    /// Returns whether it is done with; if the buffer is full in the middle, the whole train is sent again later, which
    /// the receiver takes for duplicates.
    fn send_cut(&mut self, train: &Outgoing<'_>, paths: &mut Vec<PathEvent>) -> bool {
        let Some(socket) = socket_of(&self.main, &self.senders, train.src_port) else { return true };
        let size = train.segment.unwrap_or(train.bytes.len()).max(1);
        let mut own = train.bytes.to_vec();
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.local.ip(), train.dst.ip()) {
            for datagram in own.chunks_mut(size) {
                rewrite_icrc(src, dst, train.src_port, datagram);
            }
        }
        let datagrams: Vec<Outgoing<'_>> =
            own.chunks(size).map(|bytes| Outgoing { segment: None, bytes, ..*train }).collect();
        let mut done = 0;
        let mut pending_errors = 0;
        let fd = match socket.as_fd().try_clone_to_owned() {
            Ok(fd) => fd,
            Err(_) => return false,
        };
        while done < datagrams.len() {
            match self.send.send(fd.as_fd(), datagrams[done..].iter().copied()) {
                Ok(sent) => {
                    self.counters.send_calls += 1;
                    self.counters.sent_pieces += sent as u64;
                    done += sent;
                }
                Err(error) => match self.after_error(&error, &datagrams[done], &mut pending_errors, paths) {
                    AfterError::TryAgain => {}
                    AfterError::Dropped => done += 1,
                    AfterError::Blocked => return false,
                },
            }
        }
        true
    }
}

enum AfterError {
    /// The error was an older datagram's, or is out of the way now.
    TryAgain,
    /// This piece will never leave; it was counted.
    Dropped,
    /// Nothing can leave now.
    Blocked,
}

fn socket_of<'a>(main: &'a RoceSocket, senders: &'a [RoceSocket], port: u16) -> Option<&'a RoceSocket> {
    if port == ROCE_V2_PORT {
        return Some(main);
    }
    senders.iter().find(|sender| sender.local_addr().port() == port)
}

fn has_flow_label(to: SocketAddr) -> bool {
    matches!(to, SocketAddr::V6(v6) if v6.flowinfo() != 0)
}

fn rewrite_icrc(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, datagram: &mut [u8]) {
    let Some(covered) = datagram.len().checked_sub(ICRC_LEN) else { return };
    let net = IcrcV4 { src, dst, id: 0, flags_frag: everywire_wire::icrc::FLAGS_DF, src_port };
    let icrc = icrc_v4(&net, &datagram[..covered]);
    datagram[covered..].copy_from_slice(&icrc.to_le_bytes());
}

fn path_event(error: &PathError) -> Option<PathEvent> {
    let dst = error.dst.ip();
    match (error.errno, error.mtu) {
        (libc::EMSGSIZE, Some(mtu)) => Some(PathEvent::Mtu { dst, mtu }),
        (libc::ECONNREFUSED, _) => Some(PathEvent::Unreachable {
            dst,
            errno: error.errno,
            why: format!("nothing listens on UDP port {ROCE_V2_PORT} of {dst} ({})", error.text()),
        }),
        (errno, _) => Some(PathEvent::Unreachable { dst, errno, why: error.text() }),
    }
}

fn bind_sender(
    local: SocketAddr,
    options: &SocketOptions,
    random: &mut u64,
) -> Result<RoceSocket, OpenError> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORT_TRIES {
        // SplitMix64, to spread one seed over the tries.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let port = FIRST_SOURCE_PORT + ((z ^ (z >> 31)) % u64::from(u16::MAX - FIRST_SOURCE_PORT + 1)) as u16;
        let mut addr = local;
        addr.set_port(port);
        match RoceSocket::bind(addr, Role::Sender, options) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
        if last.kind() != io::ErrorKind::AddrInUse {
            break;
        }
    }
    Err(OpenError::SourcePorts { ip: local.ip(), tries: PORT_TRIES, source: last })
}
