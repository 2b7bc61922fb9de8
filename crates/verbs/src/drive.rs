//! The driving contract: how a driver feeds a device and what it must do for it.
//!
//! The contract, in full:
//!
//! - **One driver at a time.** [`Device::drive`](crate::Device::drive) gives a guard; whoever holds it is the driver. Take
//!   the time *after* the guard, so that time never runs backwards (asserted in debug builds).
//! - **In**, one mutation after the other: [`Drive::handle_datagram`], [`Drive::handle_frame`], [`Drive::handle_timeout`], [`Drive::resolved`],
//!   [`Drive::unreachable`], [`Drive::dropped`], [`Drive::port_state`]. A batch of datagrams is handed over under one
//!   guard.
//! - **Out**, after every mutation or batch: [`Drive::poll_transmit`] until false, [`Drive::poll_command`] until `None`,
//!   then [`Drive::poll_timeout`] for when to come back. A driver that cannot send now keeps what it has and goes on
//!   later; it may release the guard between any two calls, but not go to sleep before everything is drained.
//! - Completions and events land in queues and wake futures when the guard is dropped. A program's call that makes work
//!   while nobody drives calls [`Progress::kick`](crate::Progress::kick) once.
//!
//! What arrives is judged in `receive`; what leaves is built by the transport. A whole driver, but for its sockets:
//!
//! ```
//! use everywire_verbs::{Command, Datagram, Device, Route, Transmit};
//! use std::time::Instant;
//!
//! /// Hands over what has arrived, gives what is to be sent to `send`, and says when to come back.
//! fn turn(device: &Device, arrived: &[Datagram<'_>], out: &mut Transmit, send: fn(&Transmit)) -> Option<Instant> {
//!     let mut drive = device.drive();
//!     let now = Instant::now();
//!     for datagram in arrived {
//!         drive.handle_datagram(now, *datagram);
//!     }
//!     drive.handle_timeout(now);
//!     loop {
//!         while drive.poll_transmit(now, out) {
//!             send(out);
//!         }
//!         match drive.poll_command() {
//!             Some(Command::ResolveRoute { token, .. }) => {
//!                 let route = Route { src: device.gids()[0].ip, scope_id: 0, mtu: 1500 };
//!                 drive.resolved(now, token, Ok(route));
//!             }
//!             Some(_group) => {}
//!             None => return drive.poll_timeout(),
//!         }
//!     }
//! }
//! ```

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::Deref;
use std::time::Instant;

use everywire_transport::ib::burst::MAX_BURST_SEGMENTS;
use everywire_transport::ib::{Burst, Path, PathLink};
use everywire_wire::ROCE_UDP_PORT;

use crate::command::Command;
use crate::config::PortState;
use crate::counters::DeviceCounter;
use crate::device::Locked;
use crate::ib::IbPort;
use crate::route::{Neighbour, Route, RouteError, RouteToken};
use crate::state::State;

/// A UDP datagram that arrived on port 4791.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub src: SocketAddr,
    /// The address it was sent to: one of the device's, or a multicast group.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class; its low two bits are ECN.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 Identification; `None` where a UDP socket hides it. Of no meaning for IPv6.
    pub ip_id: Option<u16>,
    /// UDP payload: BTH to ICRC.
    pub bytes: &'a [u8],
}

/// A packet that arrived on a wire without IP.
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// What an Ethernet frame of type 0x8915 carries: GRH to ICRC. Padding may follow.
    RoceV1(&'a [u8]),
    /// A packet of an InfiniBand link, LRH to VCRC, as the port hands it over: its VCRC is right.
    InfiniBand(&'a [u8]),
}

/// Packets to send, built by [`Drive::poll_transmit`]. Reuse it: its buffer is allocated once.
#[derive(Debug)]
pub struct Transmit {
    /// What [`Transmit::buf`] begins with: BTH, GRH or LRH. Fields below that the link does not have are to be ignored.
    pub link: PathLink,
    /// Source address.
    pub src: IpAddr,
    /// UDP source port, one of [`DeviceConfig::source_ports`](crate::DeviceConfig::source_ports).
    pub src_port: u16,
    /// Destination, always port 4791; a link-local one has its interface index.
    pub dst: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// `Some(n)`: several datagrams of `n` bytes each, the last one possibly shorter (UDP GSO). IPv4 Identification must
    /// count 0, 1, 2… over them, with "don't fragment" set: the ICRCs say so.
    pub segment: Option<usize>,
    /// UDP payloads, back to back; on other links whole packets, from the GRH or LRH on.
    pub buf: TransmitBuf,
}

/// The bytes of a [`Transmit`].
#[derive(Debug)]
pub struct TransmitBuf {
    burst: Burst,
    /// Sent instead of the burst: the last words of a queue pair that is gone.
    plain: Option<Vec<u8>>,
}

impl Deref for TransmitBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.plain.as_deref().unwrap_or(self.burst.bytes())
    }
}

impl From<Vec<u8>> for TransmitBuf {
    /// Bytes of one's own, for tests of drivers.
    fn from(bytes: Vec<u8>) -> TransmitBuf {
        TransmitBuf { burst: Burst::default(), plain: Some(bytes) }
    }
}

impl Default for Transmit {
    fn default() -> Transmit {
        Transmit::new(MAX_BURST_SEGMENTS)
    }
}

impl Transmit {
    /// An empty one for trains of at most `max_segments` datagrams: 1 where the driver cannot segment.
    pub fn new(max_segments: usize) -> Transmit {
        let unspecified = IpAddr::from([0; 4]);
        Transmit {
            link: PathLink::Udp,
            src: unspecified,
            src_port: 0,
            dst: SocketAddr::new(unspecified, ROCE_UDP_PORT),
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            segment: None,
            buf: TransmitBuf { burst: Burst::new(max_segments), plain: None },
        }
    }

    /// The datagrams one by one.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.buf.chunks(self.segment.unwrap_or(self.buf.len()).max(1))
    }

    /// Takes the next datagrams of a device in.
    fn fill(&mut self, state: &mut State, now: Instant) -> bool {
        self.buf.plain = None;
        if let Some(last) = state.next_last_words() {
            self.address(&last.path, last.segment);
            self.buf.plain = Some(last.bytes);
            return true;
        }
        let burst = &mut self.buf.burst;
        if !state.next_mad(now, burst) && !state.next_burst(now, burst) {
            return false;
        }
        let Some(&path) = burst.path() else { return false };
        let segment = burst.segment_size();
        if path.link.is_infiniband() {
            state.ib_keep_looped(&path.link, path.dst, burst.segments());
        }
        self.address(&path, segment);
        true
    }

    fn address(&mut self, path: &Path, segment: Option<usize>) {
        self.segment = segment;
        self.link = path.link;
        self.src = path.src;
        self.src_port = path.src_port;
        self.dst = match path.dst {
            IpAddr::V4(_) => SocketAddr::new(path.dst, ROCE_UDP_PORT),
            IpAddr::V6(dst) => SocketAddrV6::new(dst, ROCE_UDP_PORT, 0, path.scope_id).into(),
        };
        self.traffic_class = path.traffic_class;
        self.hop_limit = path.hop_limit;
        self.flow_label = path.flow_label;
    }
}

/// Why the network says that a destination cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// Nobody listens on port 4791 there.
    Port,
    /// The host does not answer.
    Host,
    /// No way to its network.
    Network,
    /// A filter on the way forbids it.
    Prohibited,
    /// The path's MTU, in bytes, is smaller than what was sent.
    TooBig(usize),
}

/// The driver's guard on a device. The module says what a driver owes.
pub struct Drive<'a> {
    pub(crate) state: Locked<'a>,
}

impl<'a> Drive<'a> {
    pub(crate) fn new(state: Locked<'a>) -> Drive<'a> {
        Drive { state }
    }

    /// Notes the time; it never runs backwards.
    pub(crate) fn at(&mut self, now: Instant) -> Instant {
        let last = self.state.now.unwrap_or(now);
        debug_assert!(now >= last, "the driver's time ran backwards by {:?}", last - now);
        let now = now.max(last);
        self.state.now = Some(now);
        now
    }

    /// A datagram arrived.
    #[inline]
    pub fn handle_datagram(&mut self, now: Instant, datagram: Datagram<'_>) {
        let now = self.at(now);
        self.state.receive(now, &datagram);
    }

    /// A packet of a wire without IP arrived.
    #[inline]
    pub fn handle_frame(&mut self, now: Instant, frame: Frame<'_>) {
        let now = self.at(now);
        self.state.receive_frame(now, frame);
    }

    /// Time has passed: at [`Drive::poll_timeout`] or later. Calling it early does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.at(now);
        self.state.fire_timers(now);
        if self.state.cm_poll_timeout().is_some_and(|due| due <= now) {
            self.state.cm_handle_timeout(now);
        }
        self.state.stream_timeouts(now);
        self.state.expire_routes(now);
        self.state.ib_handle_timeout(now);
    }

    /// The answer to a [`Command::ResolveRoute`]. One nobody waits for any more is ignored.
    pub fn resolved(&mut self, now: Instant, token: RouteToken, answer: Result<Route, RouteError>) {
        let now = self.at(now);
        self.state.route_resolved(now, token, answer);
    }

    /// The network reports that `dst` cannot be reached (ICMP). Connections that are being made hear of it; established
    /// ones go on, and their own retries decide. So do those whose packets are too big for a path that has become narrower:
    /// a queue pair's path MTU is agreed when it is connected (IBTA §12.7.16) and never changes; it is only counted.
    pub fn unreachable(&mut self, now: Instant, dst: IpAddr, why: Unreachable) {
        let now = self.at(now);
        let counter = match why {
            Unreachable::TooBig(_) => DeviceCounter::PathTooBig,
            _ => DeviceCounter::Unreachable,
        };
        self.state.core.counters.add_device(counter, 1);
        self.state.cm_unreachable(now, dst, why);
    }

    /// A [`Command::JoinGroup`] could not be carried out. Its members are members no more, and the program hears of it
    /// ([`AsyncEvent::GroupError`]); attaching again tries again.
    pub fn join_failed(&mut self, now: Instant, group: IpAddr) {
        self.at(now);
        self.state.join_failed(group);
    }

    /// The driver's socket has dropped `n` datagrams (SO_RXQ_OVFL) since it last said so.
    pub fn dropped(&mut self, n: u64) {
        self.state.core.counters.add_device(DeviceCounter::SocketOverflow, n);
    }

    /// The driver has refused `n` datagrams or frames that are no packets of the device's protocol.
    pub fn malformed(&mut self, n: u64) {
        self.state.core.counters.add_device(DeviceCounter::DropMalformed, n);
    }

    /// The interface went up or down.
    pub fn port_state(&mut self, now: Instant, port: PortState) {
        self.at(now);
        self.state.set_port_state(port);
    }

    /// The agent of an InfiniBand port has new values from the subnet manager. The device draws the consequences: events,
    /// paths asked for anew, groups joined again.
    pub fn ib_port(&mut self, now: Instant, port: IbPort) {
        self.at(now);
        self.state.ib_port(port);
    }

    /// The InfiniBand port is gone for good, with everybody behind it: connections end, attempts fail, and connected queue
    /// pairs flush what they hold, instead of repeating it for minutes. What listens goes on with the next port.
    pub fn port_lost(&mut self, now: Instant) {
        let now = self.at(now);
        self.state.port_lost(now);
    }

    /// The answer to a [`Command::ResolveNeighbour`].
    pub fn neighbour(&mut self, now: Instant, token: RouteToken, answer: Result<Neighbour, RouteError>) {
        let now = self.at(now);
        self.state.ib_neighbour(now, token, answer);
    }

    /// Fills `out` with the next datagrams to send; false if there are none now. Queue pairs take turns, a train each.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Transmit) -> bool {
        let now = self.at(now);
        if self.state.ib.is_some() {
            self.state.ib_loop_back(now);
        }
        out.fill(&mut self.state, now)
    }

    /// The next thing to do for the device.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.state.next_command()
    }

    /// When to call [`Drive::handle_timeout`]; `None`: not before something else happens.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let (qps, cm) = (self.state.next_qp_timeout(), self.state.cm_poll_timeout());
        let route = self.state.routes.next_timeout().into_iter().chain(self.state.ib_poll_timeout());
        let stream = self.state.streams.next_timeout();
        qps.into_iter().chain(cm).chain(route).chain(stream).min()
    }
}
