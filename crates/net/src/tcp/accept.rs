//! Accepting: what listening sockets give, and whose a connection of a shared port is.
//!
//! Read RFC 5044 §7.1 for the key that MPA's requests begin with. Descriptors that have run out stop accepting for a moment
//! and nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_verbs::{ConnEvent, HalfOpen, StreamListenerId};
use rustix::event::epoll;
use rustix::net::RecvFlags;

use super::conn::{Conn, Stage, mss, watch_peer};
use super::listen::stream_error;
use super::plain::{FirstBytes, KEY_LEN, judge};
use super::port::{Arrival, LISTENER, TcpPort, UNDECIDED};

/// Connections accepted from one socket in one turn.
const MAX_ACCEPTS: usize = 32;
/// How long a connection of a shared port may take to say what it is.
const DECIDE_WITHIN: Duration = Duration::from_secs(10);
/// When to accept again after descriptors have run out.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A connection of a shared port whose first bytes have not come.
#[derive(Debug)]
struct Newcomer {
    fd: OwnedFd,
    local: SocketAddr,
    peer: SocketAddr,
    until: Instant,
}

/// All of them, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    all: BTreeMap<u64, Newcomer>,
    half_open: HalfOpen<u64>,
}

impl Undecided {
    /// When the first has taken too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.all.first_key_value().map(|(_, newcomer)| newcomer.until)
    }

    /// Drops those that have taken too long.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(first) = self.all.first_entry()
            && first.get().until <= now
        {
            self.half_open.remove(*first.key());
            first.remove();
        }
    }

    /// One more; an older one may be reset for it.
    fn add(&mut self, token: u64, newcomer: Newcomer) {
        let oldest = self.half_open.add(token, newcomer.peer.ip());
        if let Some(oldest) = oldest.and_then(|oldest| self.all.remove(&oldest)) {
            Conn::new(oldest.fd, Stage::Open).reset_on_drop();
        }
        self.all.insert(token, newcomer);
    }

    fn remove(&mut self, token: u64) -> Option<Newcomer> {
        self.half_open.remove(token);
        self.all.remove(&token)
    }
}

impl TcpPort {
    /// Watches the listening sockets that there are.
    pub(super) fn watch_listeners(&mut self) {
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
    pub(super) fn accept(&mut self, token: u64, to: &mut impl Arrival) -> bool {
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
                    self.rest_listener(token);
                    break;
                }
                Err(error) => tracing::debug!(%local, %error, "a connection was gone before it was accepted"),
            }
        }
        true
    }

    /// Leaves one listening socket alone for a moment; the others are watched as before.
    pub(super) fn rest_listener(&mut self, token: u64) {
        if let Some((_, fd)) = self.watched.remove(&token) {
            let _ = epoll::delete(&self.epoll, &fd);
            self.accept_again = Some(Instant::now() + ACCEPT_AGAIN_AFTER);
        }
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
        self.last_token += 1;
        let token = UNDECIDED | self.last_token;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if epoll::add(&self.epoll, &conn.fd, epoll::EventData::new_u64(token), flags).is_ok() {
            let until = Instant::now() + DECIDE_WITHIN;
            self.undecided.add(token, Newcomer { fd: conn.fd, local, peer, until });
            self.decide(token, to);
        }
    }

    /// Looks at the first bytes of a connection of a shared port; they stay where they are.
    pub(super) fn decide(&mut self, token: u64, to: &mut impl Arrival) -> bool {
        let Some(newcomer) = self.undecided.all.get(&token) else { return false };
        let mut first = [0; KEY_LEN];
        let (judged, ended) = match rustix::net::recv(&newcomer.fd, &mut first, RecvFlags::PEEK) {
            Ok((_, count)) => (judge(&first[..count]), count == 0),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => (FirstBytes::Unknown, false),
            Err(_) => (FirstBytes::Unknown, true),
        };
        if judged == FirstBytes::Unknown && !ended {
            return false;
        }
        let Some(Newcomer { fd, local, peer, .. }) = self.undecided.remove(token) else { return false };
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
        watch_peer(conn.fd.as_fd());
        let Some(id) = to.accepted(listener, local, peer, mss(conn.fd.as_fd())) else {
            return conn.reset_on_drop();
        };
        if let Err(error) = self.add(id, conn, epoll::EventFlags::IN) {
            to.event(id, ConnEvent::Reset(stream_error(&error)));
        }
    }
}
