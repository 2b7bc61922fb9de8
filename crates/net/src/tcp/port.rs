//! All TCP sockets of a device and the one buffer they share: what is readable is read, what is accepted is told.
//!
//! epoll(7), level-triggered: what a turn leaves is there for the next, whoever drives it. The connection that was busy last
//! is tried first, which saves a ping-pong the look at epoll; every few turns all have their chance. Only the driver's thread
//! comes here, with the engine's lock and without the device's.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use everywire_verbs::{ConnEvent, ConnId, STREAM_CLOSE_TIMEOUT, StreamBurst, StreamError, StreamListenerId};
use rustix::event::{Timespec, epoll};
use rustix::net::RecvFlags;

use super::accept::Undecided;
use super::conn::{Conn, Stage};
use super::listen::{Listening, stream_error};

/// Bytes read at once; one buffer for all connections.
const BUFFER: usize = 256 * 1024;
/// Sockets looked at in one turn.
const MAX_EVENTS: usize = 64;
/// Turns that may look at the busiest connection alone.
const HOT_TURNS: u32 = 8;

/// What epoll tells of: a connection by its number, or one of these.
const LINK: u64 = 0;
pub(super) const LISTENER: u64 = 1 << 62;
pub(super) const UNDECIDED: u64 = 1 << 61;

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

/// All TCP sockets of a device.
#[derive(Debug)]
pub(crate) struct TcpPort {
    pub(super) epoll: OwnedFd,
    pub(super) listening: Arc<Listening>,
    /// Listening sockets that are watched.
    pub(super) watched: HashMap<u64, (SocketAddr, Arc<OwnedFd>)>,
    pub(super) last_token: u64,
    pub(super) conns: HashMap<ConnId, Conn>,
    /// Connections that both ends have ended while something is still to be written: mirrors [`Conn::until`].
    ending: BTreeSet<(Instant, ConnId)>,
    pub(super) undecided: Undecided,
    buffer: Box<[u8]>,
    /// Bursts that connections have waited with.
    spare: Vec<StreamBurst>,
    /// The connection that was read last.
    hot: Option<ConnId>,
    hot_turns: u32,
    pub(super) accept_again: Option<Instant>,
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
            ending: BTreeSet::new(),
            undecided: Undecided::default(),
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
        let ending = self.ending.first().map(|&(at, _)| at);
        self.undecided.deadline().into_iter().chain(self.accept_again).chain(ending).min()
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
            self.watch_listeners();
        }
        self.undecided.expire(now);
        while let Some(&(at, id)) = self.ending.first()
            && at <= now
        {
            tracing::debug!(conn = id.0, "reset: the peer has ended its stream and takes nothing");
            self.reset(id);
        }
    }

    pub(super) fn add(&mut self, id: ConnId, conn: Conn, flags: epoll::EventFlags) -> io::Result<()> {
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
                    self.limit_ending(id);
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
        if let Some(at) = self.conns.remove(&id).and_then(|conn| conn.until) {
            self.ending.remove(&(at, id));
        }
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
        self.limit_ending(id);
    }

    /// The device has forgotten a connection that both ends have ended, so nobody else waits for the peer to take what is
    /// still to be written.
    fn limit_ending(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.eof
            && conn.stage == Stage::Ending
            && conn.until.is_none()
        {
            let at = Instant::now() + STREAM_CLOSE_TIMEOUT;
            conn.until = Some(at);
            self.ending.insert((at, id));
        }
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
        self.undecided = Undecided::default();
        self.conns.clear();
        self.ending.clear();
    }
}
