//! All TCP sockets of a device and the one buffer they share: what is readable is read, what is accepted is told.
//!
//! epoll(7), level-triggered: what a turn leaves is there for the next, whoever drives it. The connection that was busy last
//! is tried first, which saves a ping-pong the look at epoll; every few turns all have their chance. Only the driver's thread
//! comes here, with the engine's lock and without the device's.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_verbs::{ConnEvent, ConnId, StreamBurst, StreamError, StreamListenerId};
use rustix::event::{Timespec, epoll};
use rustix::net::RecvFlags;

use super::conn::{Conn, Stage, mss};
use super::listen::{Listening, stream_error};
use super::plain::{FirstBytes, KEY_LEN, judge};

/// Bytes read at once; one buffer for all connections.
const BUFFER: usize = 256 * 1024;
/// Sockets looked at in one turn.
const MAX_EVENTS: usize = 64;
/// Connections accepted from one socket in one turn.
const MAX_ACCEPTS: usize = 32;
/// Turns that may look at the busiest connection alone.
const HOT_TURNS: u32 = 8;
/// Connections of shared ports that have not said what they are, at most; more are reset.
const MAX_UNDECIDED: usize = 1024;
/// How long such a connection may take.
const DECIDE_WITHIN: Duration = Duration::from_secs(10);
/// When to accept again after descriptors have run out.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What epoll tells of: a connection by its number, or one of these.
const LINK: u64 = 0;
const LISTENER: u64 = 1 << 62;
const UNDECIDED: u64 = 1 << 61;

/// An event to be overwritten.
const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// Who hears of what arrives.
pub(crate) trait Arrival {
    /// A connection was accepted; the name it has from now on, or `None` to reset it.
    fn accepted(
        &mut self,
        listener: StreamListenerId,
        local: SocketAddr,
        peer: SocketAddr,
        mss: usize,
    ) -> Option<ConnId>;
    /// Bytes came.
    fn bytes(&mut self, conn: ConnId, bytes: &[u8]);
    /// Something else happened.
    fn event(&mut self, conn: ConnId, event: ConnEvent);
}

/// A connection of a shared port whose first bytes have not come.
#[derive(Debug)]
struct Undecided {
    fd: OwnedFd,
    local: SocketAddr,
    peer: SocketAddr,
    until: Instant,
}

/// All TCP sockets of a device.
#[derive(Debug)]
pub(crate) struct TcpPort {
    epoll: OwnedFd,
    listening: Arc<Listening>,
    /// Listening sockets that are watched.
    watched: HashMap<u64, (SocketAddr, Arc<OwnedFd>)>,
    last_token: u64,
    conns: HashMap<ConnId, Conn>,
    undecided: HashMap<u64, Undecided>,
    buffer: Box<[u8]>,
    /// Bursts that connections have waited with.
    spare: Vec<StreamBurst>,
    /// The connection that was read last.
    hot: Option<ConnId>,
    hot_turns: u32,
    accept_again: Option<Instant>,
    /// The interface has news.
    pub(crate) link_changed: bool,
}

impl TcpPort {
    pub(crate) fn new(listening: Arc<Listening>) -> io::Result<TcpPort> {
        Ok(TcpPort {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listening,
            watched: HashMap::new(),
            last_token: 0,
            conns: HashMap::new(),
            undecided: HashMap::new(),
            buffer: vec![0; BUFFER].into(),
            spare: Vec::new(),
            hot: None,
            hot_turns: 0,
            accept_again: None,
            link_changed: false,
        })
    }

    /// Readable when a socket has something.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches the interface's news.
    pub(crate) fn watch_link(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(LINK), epoll::EventFlags::IN)?)
    }

    pub(crate) fn listening(&self) -> &Listening {
        &self.listening
    }

    /// When something is due though no socket tells.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.undecided.values().map(|undecided| undecided.until).chain(self.accept_again).min()
    }

    /// The next turn looks at all sockets: it may follow a long sleep.
    pub(crate) fn look_at_all(&mut self) {
        self.hot_turns = HOT_TURNS;
    }

    /// Reads and accepts; whether anything came.
    pub(crate) fn receive(&mut self, to: &mut impl Arrival) -> bool {
        if self.listening.take_changed() {
            self.watch_listeners();
        }
        if let Some(hot) = self.hot
            && self.hot_turns < HOT_TURNS
        {
            self.hot_turns += 1;
            return self.read(hot, to);
        }
        self.hot_turns = 0;
        let mut events = [NO_EVENT; MAX_EVENTS];
        let at_once = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        let count = epoll::wait(&self.epoll, &mut events[..], at_once).unwrap_or(0);
        let mut came = false;
        for event in &events[..count] {
            let (flags, token) = (event.flags, { event.data }.u64());
            came |= match token {
                LINK => std::mem::replace(&mut self.link_changed, true),
                token if token & LISTENER != 0 => self.accept(token, to),
                token if token & UNDECIDED != 0 => self.decide(token, to),
                token => self.ready(ConnId(token), flags, to),
            };
        }
        came
    }

    /// What is due though no socket tells.
    pub(crate) fn housekeeping(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.watched.clear();
            self.watch_listeners();
        }
        self.undecided.retain(|_, undecided| undecided.until > now);
    }

    /// Watches the listening sockets that there are.
    fn watch_listeners(&mut self) {
        let entries = self.listening.entries();
        self.watched
            .retain(|_, (addr, fd)| entries.get(addr).is_some_and(|entry| Arc::ptr_eq(&entry.fd, fd)));
        for (&addr, entry) in entries.iter() {
            if (entry.rdma.is_none() && entry.plain.is_none())
                || self.watched.values().any(|(of, _)| *of == addr)
            {
                continue;
            }
            self.last_token += 1;
            let token = LISTENER | self.last_token;
            let data = epoll::EventData::new_u64(token);
            match epoll::add(&self.epoll, &entry.fd, data, epoll::EventFlags::IN) {
                Ok(()) => drop(self.watched.insert(token, (addr, entry.fd.clone()))),
                Err(error) => tracing::warn!(%addr, %error, "the listening socket cannot be watched"),
            }
        }
    }

    /// Accepts what waits on a listening socket.
    fn accept(&mut self, token: u64, to: &mut impl Arrival) -> bool {
        let Some((local, fd)) = self.watched.get(&token).map(|(addr, fd)| (*addr, fd.clone())) else {
            return false;
        };
        for _ in 0..MAX_ACCEPTS {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&fd, flags) {
                Ok((conn, peer)) => {
                    let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else { continue };
                    self.taken(conn, local, peer, to);
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
                    let error = crate::error::with_limit(error.into());
                    tracing::warn!(%local, %error, "no connections are accepted for a moment");
                    let _ = epoll::delete(&self.epoll, &fd);
                    self.accept_again = Some(Instant::now() + ACCEPT_AGAIN_AFTER);
                    break;
                }
                Err(error) => tracing::debug!(%local, %error, "a connection was gone before it was accepted"),
            }
        }
        true
    }

    /// A connection was accepted: the device's at once, or after a look at its first bytes.
    fn taken(&mut self, fd: OwnedFd, local: SocketAddr, peer: SocketAddr, to: &mut impl Arrival) {
        let (rdma, plain) = match self.listening.entries().get(&local) {
            Some(entry) => (entry.rdma, entry.plain.is_some()),
            None => return,
        };
        let conn = Conn::new(fd, Stage::Open);
        if !plain {
            return match rdma {
                Some(listener) => self.hand_over(conn, listener, local, peer, to),
                None => conn.reset_on_drop(),
            };
        }
        if self.undecided.len() >= MAX_UNDECIDED {
            return conn.reset_on_drop();
        }
        self.last_token += 1;
        let token = UNDECIDED | self.last_token;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if epoll::add(&self.epoll, &conn.fd, epoll::EventData::new_u64(token), flags).is_ok() {
            let until = Instant::now() + DECIDE_WITHIN;
            self.undecided.insert(token, Undecided { fd: conn.fd, local, peer, until });
            self.decide(token, to);
        }
    }

    /// Looks at the first bytes of a connection of a shared port; they stay where they are.
    fn decide(&mut self, token: u64, to: &mut impl Arrival) -> bool {
        let Some(undecided) = self.undecided.get(&token) else { return false };
        let mut first = [0; KEY_LEN];
        let (judged, ended) = match rustix::net::recv(&undecided.fd, &mut first, RecvFlags::PEEK) {
            Ok((_, count)) => (judge(&first[..count]), count == 0),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => (FirstBytes::Unknown, false),
            Err(_) => (FirstBytes::Unknown, true),
        };
        if judged == FirstBytes::Unknown && !ended {
            return false;
        }
        let Some(Undecided { fd, local, peer, .. }) = self.undecided.remove(&token) else { return false };
        let _ = epoll::delete(&self.epoll, &fd);
        if ended {
            return true;
        }
        let (rdma, plain) = match self.listening.entries().get(&local) {
            Some(entry) => (entry.rdma, entry.plain.clone()),
            None => return true,
        };
        match (judged, rdma, plain) {
            (FirstBytes::Mpa, Some(listener), _) => {
                self.hand_over(Conn::new(fd, Stage::Open), listener, local, peer, to);
            }
            (_, _, Some(queue)) => {
                queue.push(fd, peer);
            }
            _ => Conn::new(fd, Stage::Open).reset_on_drop(),
        }
        true
    }

    fn hand_over(
        &mut self,
        conn: Conn,
        listener: StreamListenerId,
        local: SocketAddr,
        peer: SocketAddr,
        to: &mut impl Arrival,
    ) {
        let _ = rustix::net::sockopt::set_tcp_nodelay(&conn.fd, true);
        let Some(id) = to.accepted(listener, local, peer, mss(conn.fd.as_fd())) else {
            return conn.reset_on_drop();
        };
        if let Err(error) = self.add(id, conn, epoll::EventFlags::IN) {
            to.event(id, ConnEvent::Reset(stream_error(&error)));
        }
    }

    fn add(&mut self, id: ConnId, conn: Conn, flags: epoll::EventFlags) -> io::Result<()> {
        epoll::add(&self.epoll, &conn.fd, epoll::EventData::new_u64(id.0), flags)?;
        self.conns.insert(id, conn);
        Ok(())
    }

    /// Begins to connect.
    pub(crate) fn dial(
        &mut self,
        id: ConnId,
        src: SocketAddr,
        dst: SocketAddr,
        traffic_class: u8,
    ) -> Result<(), StreamError> {
        Conn::dial(src, dst, traffic_class)
            .and_then(|conn| self.add(id, conn, epoll::EventFlags::OUT))
            .map_err(|error| stream_error(&crate::error::with_limit(error)))
    }

    /// A connection has something to tell.
    fn ready(&mut self, id: ConnId, flags: epoll::EventFlags, to: &mut impl Arrival) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        if conn.stage == Stage::Connecting {
            self.connected(id, to);
            return true;
        }
        let mut came = false;
        if flags.contains(epoll::EventFlags::OUT) && !conn.is_drained() {
            came = true;
            match conn.flush(&mut self.spare) {
                Ok(written) => to.event(id, ConnEvent::Written(written)),
                Err(error) => {
                    self.lose(id, &error, to);
                    return true;
                }
            }
            self.after_writing(id);
        }
        // An error shows when it is read.
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
            came |= self.read(id, to);
        }
        came
    }

    /// TCP's handshake has ended, one way or the other.
    fn connected(&mut self, id: ConnId, to: &mut impl Arrival) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let failed = match rustix::net::sockopt::socket_error(&conn.fd) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error),
        };
        let local = rustix::net::getsockname(&conn.fd).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
        let (None, Some(local)) = (failed, local) else {
            self.forget(id);
            let errno = failed.map_or(0, rustix::io::Errno::raw_os_error);
            return to.event(id, ConnEvent::Failed(StreamError::from_errno(errno)));
        };
        conn.stage = Stage::Open;
        let event = ConnEvent::Connected { local, mss: conn.mss() };
        self.watch(id);
        to.event(id, event);
    }

    /// Reads once; whether anything came.
    fn read(&mut self, id: ConnId, to: &mut impl Arrival) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else {
            self.hot = None;
            return false;
        };
        match rustix::net::recv(&conn.fd, &mut *self.buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) if conn.eof => false,
            Ok((_, 0)) => {
                conn.eof = true;
                let over = conn.stage == Stage::Ending && conn.is_drained();
                if over {
                    self.forget(id);
                } else {
                    self.watch(id);
                }
                self.hot = self.hot.filter(|hot| *hot != id);
                to.event(id, ConnEvent::Eof);
                true
            }
            Ok((_, count)) => {
                self.hot = Some(id);
                to.bytes(id, &self.buffer[..count]);
                true
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            Err(error) => {
                self.lose(id, &error.into(), to);
                true
            }
        }
    }

    fn lose(&mut self, id: ConnId, error: &io::Error, to: &mut impl Arrival) {
        self.forget(id);
        to.event(id, ConnEvent::Reset(stream_error(error)));
    }

    fn forget(&mut self, id: ConnId) {
        self.hot = self.hot.filter(|hot| *hot != id);
        self.conns.remove(&id);
    }

    /// Writes a burst, or keeps it; how many bytes the socket took.
    ///
    /// # Errors
    /// The connection is gone, and the device must hear of it.
    pub(crate) fn write(&mut self, id: ConnId, burst: &mut StreamBurst) -> Result<usize, StreamError> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(0) };
        match conn.write(burst, &mut self.spare) {
            Ok(written) => {
                if !conn.is_drained() && !conn.watched_for_room {
                    self.watch(id);
                }
                Ok(written)
            }
            Err(error) => {
                self.forget(id);
                Err(stream_error(&error))
            }
        }
    }

    fn after_writing(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.is_drained() {
            return;
        }
        if conn.stage == Stage::Ending {
            conn.shut();
            if conn.eof {
                return self.forget(id);
            }
        }
        self.watch(id);
    }

    /// Tells epoll what is to be told of a connection.
    fn watch(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, !conn.eof);
        conn.watched_for_room = !conn.is_drained();
        flags.set(epoll::EventFlags::OUT, conn.watched_for_room);
        let _ = epoll::modify(&self.epoll, &conn.fd, epoll::EventData::new_u64(id.0), flags);
    }

    /// Says our end once everything is written.
    pub(crate) fn close(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.stage = Stage::Ending;
        self.after_writing(id);
    }

    /// Ends a connection at once.
    pub(crate) fn reset(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(&id) {
            conn.reset_on_drop();
        }
        self.forget(id);
    }

    /// The host is closed: plain services hear of it.
    pub(crate) fn shut_down(&mut self) {
        for entry in self.listening.entries().values() {
            if let Some(queue) = &entry.plain {
                queue.close();
            }
        }
        self.watched.clear();
        self.undecided.clear();
        self.conns.clear();
    }
}
