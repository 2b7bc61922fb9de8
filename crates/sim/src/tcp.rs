//! A simulated host's TCP: smoltcp in virtual time, below the streams of an iWARP device.
//!
//! Read the contract of streams in `everywire_verbs` first. Segments, retransmission, windows and ARP are smoltcp's, over the
//! same links, switches and faults as every other frame of the world, so that captures show real TCP and a lost segment is
//! sent again. Time is the world's, to the microsecond; sequence numbers and ports come from the host's seed. A host does not
//! reach itself.

mod ack;
mod conn;
mod frames;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use everywire_verbs::{ConnEvent, ConnId, Device, StreamBurst, StreamError, StreamListenerId};
use everywire_wire::eth::MacAddr;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant as TcpInstant};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, IpEndpoint};

use conn::{Conn, Dying, Ends, USER_TIMEOUT};
use frames::Frames;

/// Bytes of a connection's buffers, each way.
const BUFFER: usize = 128 * 1024;
/// Sockets of one listener that wait for a connection: as many may arrive at one instant. Untouched buffers cost nothing.
const BACKLOG: usize = 32;
/// Where source ports are taken from.
const EPHEMERAL: std::ops::Range<u16> = 49_152..65_535;
/// The longest piece of a stream that is cut: one of these, at random.
const MOST_AT_ONCE: [usize; 4] = [4, 64, 1024, BUFFER];
/// The TCP of one life of a host.
pub(crate) struct Stack {
    base: Instant,
    frames: Frames,
    iface: Interface,
    sockets: SocketSet<'static>,
    conns: BTreeMap<ConnId, Conn>,
    listeners: BTreeMap<StreamListenerId, (SocketAddr, Vec<SocketHandle>)>,
    /// Sockets whose connection the device has forgotten, until their last segment is out.
    dying: Vec<Dying>,
    next_port: u16,
    burst: StreamBurst,
    bytes: Vec<u8>,
    /// Where streams are cut on their way to the device, if they are.
    cuts: Option<ChaCha8Rng>,
}

impl Stack {
    pub(crate) fn new(
        base: Instant,
        mac: MacAddr,
        ips: &[IpAddr],
        mtu: usize,
        seed: u64,
        cuts: bool,
    ) -> Stack {
        let mut frames = Frames::new(mtu);
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
        config.random_seed = seed;
        let mut iface = Interface::new(config, &mut frames, TcpInstant::ZERO);
        iface.update_ip_addrs(|addrs| {
            for ip in ips {
                // All hosts of a world are neighbours.
                let _ = addrs.push(IpCidr::new((*ip).into(), 0));
            }
        });
        let span = u64::from(EPHEMERAL.end - EPHEMERAL.start);
        Stack {
            base,
            frames,
            iface,
            sockets: SocketSet::new(Vec::new()),
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            dying: Vec::new(),
            next_port: EPHEMERAL.start + (seed % span) as u16,
            burst: StreamBurst::new(),
            bytes: Vec::new(),
            cuts: cuts.then(|| ChaCha8Rng::seed_from_u64(seed)),
        }
    }

    /// A frame arrived; it is looked at with the next [`Stack::drain`].
    pub(crate) fn receive(&mut self, frame: &[u8]) {
        self.frames.inbound.push_back(frame.to_vec());
    }

    fn time(&self, now: Instant) -> TcpInstant {
        TcpInstant::from_micros((now - self.base).as_micros() as i64)
    }

    /// When something is due though nothing arrives.
    pub(crate) fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        let at = self.time(now);
        let due = self.iface.poll_at(at, &self.sockets);
        // Never at this very moment: what could be done now has been.
        let due = due.map(|due| due.max(at + Duration::from_micros(1)).total_micros() as u64);
        let due = due.map(|due| self.base + std::time::Duration::from_micros(due));
        let owed = self.conns.values().filter_map(|conn| conn.owed.map(|(_, until)| until));
        due.into_iter().chain(owed).chain(self.dying.iter().map(|dying| dying.until)).min()
    }

    /// Takes what the device has to send, and lets the sockets work, once; the frames that came of it go to `out`. True if
    /// anything happened.
    pub(crate) fn turn(&mut self, device: &Device, now: Instant, out: &mut Vec<Vec<u8>>) -> bool {
        let mut busy = self.take_bytes(device, now);
        busy |= self.write(device, now);
        let at = self.time(now);
        busy |= !self.frames.inbound.is_empty();
        self.iface.poll(at, &mut self.frames, &mut self.sockets);
        busy |= self.accept(device, now);
        busy |= self.look(device, now);
        busy |= self.remove_dead(now);
        out.append(&mut self.frames.outbound);
        busy
    }

    /// Removes sockets whose last segment is out; true if there are some that have one to send yet.
    fn remove_dead(&mut self, now: Instant) -> bool {
        let mut aborted = false;
        self.dying.retain_mut(|dying| {
            let socket = self.sockets.get_mut::<Socket<'_>>(dying.socket);
            let late = dying.until <= now;
            let over = match socket.state() {
                State::TimeWait => true,
                State::Closed => late || socket.remote_endpoint().is_none(),
                _ => false,
            };
            if over {
                self.sockets.remove(dying.socket);
                dying.ends.iter().for_each(|ends| self.frames.forget(*ends));
            } else if late {
                socket.abort();
                dying.until = now + USER_TIMEOUT;
                aborted = true;
            }
            !over
        });
        aborted
    }

    fn take_bytes(&mut self, device: &Device, now: Instant) -> bool {
        let mut busy = false;
        while device.drive().poll_stream(now, &mut self.burst) {
            busy = true;
            if let Some(conn) = self.conns.get_mut(&self.burst.conn()) {
                self.bytes.clear();
                self.burst.copy_to(0, &mut self.bytes);
                conn.waiting.extend(&self.bytes);
            }
        }
        busy
    }

    /// Gives sockets what they have room for.
    fn write(&mut self, device: &Device, now: Instant) -> bool {
        let mut busy = false;
        for (&id, conn) in &mut self.conns {
            let socket = self.sockets.get_mut::<Socket<'_>>(conn.socket);
            while !conn.waiting.is_empty() && socket.can_send() {
                let Ok(sent) = socket.send_slice(conn.waiting.as_slices().0) else { break };
                conn.waiting.drain(..sent);
                conn.written += sent;
                device.drive().stream_event(now, id, ConnEvent::Written(sent));
                busy = true;
            }
            if conn.waiting.is_empty() {
                conn.waiting = VecDeque::new();
                if conn.closing && socket.may_send() {
                    socket.close();
                    busy = true;
                }
            }
        }
        busy
    }

    /// Hands connections of listeners over.
    fn accept(&mut self, device: &Device, now: Instant) -> bool {
        let mut busy = false;
        let ids: Vec<StreamListenerId> = self.listeners.keys().copied().collect();
        for id in ids {
            let Some((addr, handles)) = self.listeners.get(&id).cloned() else { continue };
            for handle in handles {
                let socket = self.sockets.get::<Socket<'_>>(handle);
                if matches!(socket.state(), State::Listen | State::SynReceived) {
                    continue;
                }
                busy = true;
                let ends = (socket.local_endpoint(), socket.remote_endpoint());
                if let Some((_, handles)) = self.listeners.get_mut(&id) {
                    handles.retain(|other| *other != handle);
                }
                self.add_listening(id, addr);
                let (Some(local), Some(peer)) = ends else {
                    self.bury(handle, None, now); // reset before it was taken
                    continue;
                };
                let mss = self.mss(peer.addr.into());
                let ends = (socket_addr(local), socket_addr(peer));
                let taken = device.drive().accepted(now, id, ends.0, ends.1, mss);
                match taken {
                    Some(conn) => self.add_conn(conn, handle, Some(ends)),
                    None => self.bury(handle, Some(ends), now),
                }
            }
        }
        busy
    }

    /// Tells the device what has come and what has become of its connections.
    fn look(&mut self, device: &Device, now: Instant) -> bool {
        let mut busy = false;
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let socket = self.sockets.get_mut::<Socket<'_>>(conn.socket);
            if !conn.open && socket.may_send() {
                (conn.open, busy) = (true, true);
                if let (Some(local), Some(peer)) = (socket.local_endpoint(), socket.remote_endpoint()) {
                    let (local, peer) = (socket_addr(local), socket_addr(peer));
                    let mss = mss_of(self.frames.mtu, peer.ip());
                    socket.set_timeout(None);
                    conn.ends = Some((local, peer));
                    device.drive().stream_event(now, id, ConnEvent::Connected { local, mss });
                }
            }
            while socket.can_recv() {
                self.bytes.clear();
                let bytes = &mut self.bytes;
                let taken = socket.recv(|data| {
                    bytes.extend_from_slice(data);
                    (data.len(), ())
                });
                if taken.is_err() || self.bytes.is_empty() {
                    break;
                }
                busy = true;
                for piece in pieces(&self.bytes, &mut self.cuts) {
                    device.drive().handle_stream(now, id, piece);
                }
            }
            conn.check_peer(now, socket);
            let state = socket.state();
            let half = matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
            let ended = half || (state == State::Closed && conn.closing && conn.waiting.is_empty());
            let event = if conn.open && !conn.eof && ended {
                conn.eof = true;
                Some(ConnEvent::Eof)
            } else if state == State::Closed && !conn.eof {
                let error = if conn.open { StreamError::Reset } else { StreamError::Refused };
                Some(if conn.open { ConnEvent::Reset(error) } else { ConnEvent::Failed(error) })
            } else {
                None
            };
            let over = state == State::Closed
                || (conn.eof && conn.closing && conn.waiting.is_empty() && !socket.may_send());
            if over && let Some(Conn { socket, ends, .. }) = self.conns.remove(&id) {
                self.dying.push(Dying { socket, ends, until: now + USER_TIMEOUT });
            }
            if let Some(event) = event {
                busy = true;
                device.drive().stream_event(now, id, event);
            }
        }
        busy
    }

    /// A connection with its ends is open.
    fn add_conn(&mut self, id: ConnId, socket: SocketHandle, ends: Option<Ends>) {
        if ends.is_some() {
            self.sockets.get_mut::<Socket<'_>>(socket).set_timeout(None);
        }
        let conn = Conn::new(socket, ends);
        self.conns.insert(id, conn);
    }

    fn socket(&mut self) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(Some(USER_TIMEOUT.into()));
        self.sockets.add(socket)
    }

    fn mss(&self, peer: IpAddr) -> usize {
        mss_of(self.frames.mtu, peer)
    }

    /// Listens.
    pub(crate) fn listen(&mut self, id: StreamListenerId, addr: SocketAddr) {
        self.listeners.insert(id, (addr, Vec::new()));
        for _ in 0..BACKLOG {
            self.add_listening(id, addr);
        }
    }

    fn add_listening(&mut self, id: StreamListenerId, addr: SocketAddr) {
        let handle = self.socket();
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        // A fresh socket with a port: nothing can be wrong with it.
        if socket.listen(IpEndpoint::from(addr)).is_ok()
            && let Some((_, handles)) = self.listeners.get_mut(&id)
        {
            handles.push(handle);
        }
    }

    /// Stops listening.
    pub(crate) fn unlisten(&mut self, id: StreamListenerId, now: Instant) {
        for handle in self.listeners.remove(&id).map(|(_, handles)| handles).unwrap_or_default() {
            self.bury(handle, None, now);
        }
    }

    /// Connects.
    pub(crate) fn connect(
        &mut self,
        id: ConnId,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> Result<(), StreamError> {
        let port = if src.port() == 0 { self.free_port() } else { src.port() };
        let handle = self.socket();
        let local = IpEndpoint::from(SocketAddr::new(src.ip(), port));
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        let begun = socket.connect(self.iface.context(), IpEndpoint::from(dst), local);
        self.add_conn(id, handle, None);
        if begun.is_err() {
            self.conns.remove(&id);
            self.sockets.remove(handle);
            return Err(StreamError::Unreachable);
        }
        Ok(())
    }

    fn free_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port + 1 == EPHEMERAL.end { EPHEMERAL.start } else { port + 1 };
        port
    }

    /// Says our end once everything is sent.
    pub(crate) fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.closing = true;
        }
    }

    /// Ends a connection at once.
    pub(crate) fn reset(&mut self, id: ConnId, now: Instant) {
        if let Some(conn) = self.conns.remove(&id) {
            self.bury(conn.socket, conn.ends, now);
        }
    }

    /// Resets every connection; the device hears of it as when the peer did.
    pub(crate) fn reset_all(&mut self) {
        for conn in self.conns.values() {
            self.sockets.get_mut::<Socket<'_>>(conn.socket).abort();
        }
    }

    /// Resets a socket, which goes once its last segment is out.
    fn bury(&mut self, socket: SocketHandle, ends: Option<Ends>, now: Instant) {
        self.sockets.get_mut::<Socket<'_>>(socket).abort();
        self.dying.push(Dying { socket, ends, until: now + USER_TIMEOUT });
    }
}

/// The bytes as they are, or cut at random, often close together.
fn pieces<'a>(bytes: &'a [u8], cuts: &mut Option<ChaCha8Rng>) -> Vec<&'a [u8]> {
    let Some(rng) = cuts else { return vec![bytes] };
    let (mut left, mut pieces) = (bytes, Vec::new());
    while !left.is_empty() {
        let bits = rng.next_u32();
        let most = MOST_AT_ONCE[bits as usize % MOST_AT_ONCE.len()];
        let (piece, rest) = left.split_at(left.len().min(1 + (bits >> 8) as usize % most));
        pieces.push(piece);
        left = rest;
    }
    pieces
}

/// The largest segment toward a peer.
fn mss_of(mtu: usize, peer: IpAddr) -> usize {
    mtu - if peer.is_ipv4() { 40 } else { 60 }
}

fn socket_addr(endpoint: IpEndpoint) -> SocketAddr {
    SocketAddr::new(endpoint.addr.into(), endpoint.port)
}
