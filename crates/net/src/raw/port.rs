//! RoCE v2 and v1 on a packet socket: whole frames, so every header is seen and written, and every ICRC checked in full.
//!
//! Read first: packet(7), `struct virtio_net_hdr` (a virtual interface hands over trains of datagrams as one frame and says so
//! there). The kernel still owns the IP address: a UDP socket that drops everything holds ADDR:4791, so that the kernel
//! answers no datagram with "port unreachable" and no other device opens the same address.
//!
//! It needs CAP_NET_RAW. It does no fragments and no IP options. RoCE v1 frames go to neighbours on the link only.

mod membership;
mod train;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use everywire_fabric::pcapng::Direction;
use everywire_wire::eth::EthHeader;
use everywire_wire::frame::roce_v1_payload;
use everywire_wire::{Gid, MacAddr, UdpFrame};
use socket2::Socket;

use super::frame::{
    GSO_UDP_L4, Sender, Tagging, VNET, capture_received, capture_whole, destination_v1, received, received_v1,
};
use super::neighbour::{Link, Neighbours};
use super::socket::{packet_drops, packet_socket};
use crate::capture::Capture;
use crate::error::OpenError;
use crate::rarely::Rarely;
use crate::route::{self, Interface};
use crate::udp::{Outgoing, PathEvent, PortCounters, PortOptions, ROCE_V2_PORT, Received, RecvBatch};
use crate::udp::{RoceSocket, Role, SendBatch, SocketOptions, describe_owner};

/// The bit beside the GSO type that tells of ECN.
const GSO_ECN: u8 = 0x80;
/// Most datagrams kept for neighbours that are being asked for.
const MAX_WAITING: usize = 1024;
/// Most datagrams to this very device that wait to be received.
const MAX_LOCAL: usize = 4096;

/// A frame, already whole, or a datagram to this device.
type Bytes = Box<[u8]>;

/// A frame that waits for the MAC address of its destination.
#[derive(Debug)]
struct Waiting {
    dst: IpAddr,
    roce_v1: bool,
    frame: Bytes,
}

/// One device on raw Ethernet.
#[derive(Debug)]
pub struct RawPort {
    /// As it is, or was before it was deleted.
    interface: Interface,
    gone: bool,
    local: IpAddr,
    sender: Sender,
    socket: Socket,
    /// Holds ADDR:4791 and the groups.
    holder: RoceSocket,
    options: SocketOptions,
    /// With whether they are RoCE v1's.
    groups: Vec<(IpAddr, bool)>,
    neighbours: Box<Neighbours>,
    /// Datagrams, cut out of their trains, that wait for a neighbour.
    waiting: VecDeque<Waiting>,
    to_self: VecDeque<Bytes>,
    frames: Vec<Vec<u8>>,
    recv: RecvBatch,
    send: SendBatch,
    counters: PortCounters,
    /// Of `counters.malformed`, what the device has not been told.
    untold: u64,
    refused: Rarely,
    /// Whether the kernel takes trains whole.
    gso: bool,
}

impl RawPort {
    /// Opens `interface`, one of whose addresses is `ip`.
    ///
    /// # Errors
    /// No such interface or address, no CAP_NET_RAW, or somebody has the address: in words.
    pub fn open(
        interface: &str,
        ip: IpAddr,
        scope_id: u32,
        options: &PortOptions,
        vlan: Option<Tagging>,
    ) -> Result<RawPort, OpenError> {
        let system = |step| move |source| OpenError::System { step, ip, source };
        let interface =
            route::interface(interface).map_err(|source| OpenError::interface(interface, ip, source))?;
        let socket =
            packet_socket(&interface, options, vlan).map_err(|source| match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    OpenError::NoRawPrivilege { interface: interface.name.clone(), source }
                }
                _ => OpenError::System { step: "open a packet socket", ip, source },
            })?;
        let local = route::with_scope(ip, ROCE_V2_PORT, scope_id);
        let holder =
            RoceSocket::bind(local, Role::Sender, &options.socket).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => OpenError::InUse { addr: local, owner: describe_owner(local) },
                io::ErrorKind::AddrNotAvailable => OpenError::NotOurs { ip, source },
                _ => OpenError::System { step: "hold UDP port 4791", ip, source },
            })?;
        let neighbours = Neighbours::new(interface.index, ip).map_err(system("open a netlink socket"))?;
        Ok(RawPort {
            sender: Sender { mac: MacAddr(interface.mac.unwrap_or_default()), local: ip, vlan },
            interface,
            gone: false,
            local: ip,
            socket,
            holder,
            options: options.socket,
            groups: Vec::new(),
            neighbours: Box::new(neighbours),
            waiting: VecDeque::new(),
            to_self: VecDeque::new(),
            frames: Vec::new(),
            recv: RecvBatch::new(options.recv_slots.max(1)),
            send: SendBatch::new(),
            counters: PortCounters::default(),
            untold: 0,
            refused: Rarely::default(),
            gso: options.gso && vlan.is_none(),
        })
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What happened so far.
    pub fn counters(&self) -> PortCounters {
        PortCounters { truncated: self.recv.truncated, ..self.counters }
    }

    /// The packet socket, to be watched for input.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_fd())
    }

    /// Whether something waits that no file descriptor will tell of: look again within milliseconds.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.to_self.is_empty()
    }

    /// Receives one batch; returns whether there may be more. Frames go to `capture` as they are, with the
    /// tags of a tagged device.
    pub fn receive(
        &mut self,
        lost: &mut u64,
        mut capture: Option<&mut Capture>,
        mut each: impl FnMut(Received<'_>),
    ) -> bool {
        while let Some(frame) = self.to_self.pop_front() {
            self.counters.received_pieces += 1;
            if let Some(packet) = roce_v1_payload(&frame) {
                each(received_v1(packet));
            } else if let Ok(frame) = UdpFrame::parse(&frame) {
                each(received(&frame, 0));
            }
        }
        let count = match self.recv.receive(self.socket.as_fd()) {
            Ok(count) => count,
            // Any other error the socket tells of once, and what has arrived is still there.
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        };
        self.counters.recv_calls += 1;
        self.counters.received_pieces += count as u64;
        let (local, groups) = (self.local, &self.groups);
        let (mut malformed, mut not_ours, mut from) = (0, 0, MacAddr::default());
        self.recv.for_each_frame(|bytes, tag| {
            let Some((vnet, frame)) = bytes.split_first_chunk::<VNET>() else { return };
            let mut refuse = || {
                malformed += 1;
                from = EthHeader::parse(frame).map_or(from, |eth| eth.src);
            };
            if let Some(packet) = roce_v1_payload(frame) {
                let Some(gid) = destination_v1(packet) else { return refuse() };
                if gid != local && !groups.contains(&(gid, true)) {
                    not_ours += 1;
                    return;
                }
                if let Some(capture) = capture.as_deref_mut() {
                    capture_whole(capture, frame, tag);
                }
                return each(received_v1(packet));
            }
            let Ok(parsed) = UdpFrame::parse(frame) else { return refuse() };
            let dst = parsed.ip.dst();
            if dst != local && !groups.contains(&(dst, false)) {
                not_ours += 1;
                return;
            }
            let train = vnet[1] & !GSO_ECN == GSO_UDP_L4;
            let segment = if train { usize::from(u16::from_ne_bytes([vnet[4], vnet[5]])) } else { 0 };
            let received = received(&parsed, segment);
            if let Some(capture) = capture.as_deref_mut() {
                capture_received(capture, frame, tag, &parsed, &received);
            }
            each(received);
        });
        self.counters.not_ours += not_ours;
        if malformed > 0 {
            self.refused(malformed, from);
        }
        let dropped = packet_drops(self.socket.as_fd());
        self.counters.receive_overflows += dropped;
        *lost += dropped;
        self.recv.was_full()
    }

    /// Counts frames that are no packets, the last of them from `from`.
    #[cold]
    fn refused(&mut self, malformed: u64, from: MacAddr) {
        self.counters.malformed += malformed;
        self.untold += malformed;
        if let Some(count) = self.refused.note(Instant::now(), malformed) {
            tracing::warn!(
                interface = self.interface.name, local = %self.local, count,
                "refused frames that say they are RoCE (Ethertype 0x8915, or UDP port 4791) and are none, the last from {from}"
            );
        }
    }

    /// Of frames that were refused as no packets, those since the last call.
    pub fn take_malformed(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }

    /// Sends `items` in order, as [`crate::udp::UdpPort::send`] does. Datagrams to a neighbour whose MAC address is not known
    /// yet are kept, up to a limit, and leave when it is.
    pub fn send(
        &mut self,
        now: Instant,
        items: &[Outgoing<'_>],
        mut capture: Option<&mut Capture>,
        paths: &mut Vec<PathEvent>,
    ) -> usize {
        for (done, item) in items.iter().enumerate() {
            let dst = item.dst.ip();
            let size = item.segment.unwrap_or(item.bytes.len()).max(1);
            let dst = if item.roce_v1 { Gid::from(dst).to_ip() } else { dst };
            let link =
                if self.gone { Link::Unreachable } else { self.neighbours.find(dst, item.roce_v1, now) };
            if link == Link::Wait && self.waiting.len() >= MAX_WAITING {
                self.counters.send_errors += 1;
                continue;
            }
            if link == Link::Unreachable {
                self.unreachable(dst, item.roce_v1, paths);
                continue;
            }
            let loops = self.groups.contains(&(dst, item.roce_v1));
            self.frames.clear();
            if let Link::Mac(mac) = link
                && !loops
                && capture.is_none()
                && let Some(sent) = self.send_train(item, mac)
            {
                if !sent {
                    self.counters.send_blocked += 1;
                    return done;
                }
                continue;
            }
            for (id, payload) in item.bytes.chunks(size).enumerate() {
                let frame = self.sender.frame(item, link, id as u16, payload);
                match link {
                    Link::Wait => {
                        let frame = frame[VNET..].into();
                        self.waiting.push_back(Waiting { dst, roce_v1: item.roce_v1, frame });
                    }
                    Link::Local if self.to_self.len() < MAX_LOCAL => {
                        self.to_self.push_back(frame[VNET..].into());
                    }
                    Link::Local => self.counters.receive_overflows += 1,
                    Link::Mac(_) | Link::Unreachable => {
                        // A member on this host hears it too; the packet socket leaves out what it sends itself.
                        if loops && self.to_self.len() < MAX_LOCAL {
                            self.to_self.push_back(frame[VNET..].into());
                        }
                        self.frames.push(frame);
                    }
                }
            }
            if let Link::Mac(_) = link
                && !self.flush(capture.as_deref_mut())
            {
                // Part of the train may have left and will again; its receiver takes that for duplicates.
                self.counters.send_blocked += 1;
                return done;
            }
        }
        items.len()
    }

    /// Sends what waited for neighbours that are known now.
    pub fn send_waiting(
        &mut self,
        now: Instant,
        mut capture: Option<&mut Capture>,
        paths: &mut Vec<PathEvent>,
    ) {
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { return };
            match self.neighbours.find(waiting.dst, waiting.roce_v1, now) {
                Link::Wait => self.waiting.push_back(waiting),
                Link::Local => self.to_self.push_back(waiting.frame),
                Link::Unreachable => self.unreachable(waiting.dst, waiting.roce_v1, paths),
                Link::Mac(mac) => {
                    let mut whole = vec![0; VNET];
                    whole.extend_from_slice(&waiting.frame);
                    whole[VNET..VNET + 6].copy_from_slice(&mac.0);
                    self.frames.clear();
                    self.frames.push(whole);
                    if !self.flush(capture.as_deref_mut()) {
                        self.waiting.push_front(waiting);
                        return;
                    }
                }
            }
        }
    }

    fn unreachable(&mut self, dst: IpAddr, roce_v1: bool, paths: &mut Vec<PathEvent>) {
        self.counters.no_route += 1;
        let also = if roce_v1 { "; RoCE v1 crosses no router" } else { "" };
        let why = match self.gone {
            true => format!("the interface {} is gone", self.interface.name),
            false => format!("no neighbour on {} answers for it{also}", self.interface.name),
        };
        paths.push(PathEvent::Unreachable { dst, errno: libc::EHOSTUNREACH, why });
    }

    /// Sends `self.frames`; false if the kernel takes no more now.
    fn flush(&mut self, mut capture: Option<&mut Capture>) -> bool {
        let mut done = 0;
        while done < self.frames.len() {
            let rest = self.frames[done..].iter().map(Vec::as_slice);
            match self.send.send_frames(self.socket.as_fd(), rest) {
                Ok(sent) => {
                    self.counters.send_calls += 1;
                    self.counters.sent_pieces += sent as u64;
                    if let Some(capture) = capture.as_deref_mut() {
                        for frame in &self.frames[done..done + sent] {
                            capture.frame(Direction::Outbound, &frame[VNET..], None);
                        }
                    }
                    done += sent;
                }
                Err(error) => match error.raw_os_error().unwrap_or(0) {
                    libc::EINTR => {}
                    libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => return false,
                    libc::EMSGSIZE => {
                        self.counters.too_big += 1;
                        done += 1;
                    }
                    _ => {
                        self.counters.send_errors += 1;
                        done += 1;
                    }
                },
            }
        }
        true
    }
}
