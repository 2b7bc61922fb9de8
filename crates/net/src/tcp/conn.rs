//! One TCP connection of a device: connecting, writing bursts, ending.
//!
//! A burst goes out with one sendmsg, however many FPDUs it has. What the socket does not take waits here, in the order it
//! came, and the connection is watched for room; nothing is kept otherwise.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use everywire_verbs::{Piece, StreamBurst};
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use smallvec::SmallVec;
use socket2::{Domain, Protocol, Socket, Type};

/// Pieces of a burst that one system call takes (UIO_MAXIOV).
const MAX_PIECES: usize = 1024;

/// Empty bursts kept for connections that come to wait.
const MAX_SPARE: usize = 8;

/// How long a peer may be silent before TCP asks whether it is still there. Connections of RDMA may be idle for days, and a
/// peer that lost its power says no end.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How long it asks in vain before it asks again.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a peer may acknowledge nothing: neither what it was sent (a handshake, too), nor keep-alive probes, nor probes of
/// a window that it has shut. The connection is then gone with ETIMEDOUT, as after RC's retry limit. RFC 9293 §3.8.3 asks for
/// 100 seconds at least for data, RFC 5482 lets the upper layer choose; Linux's own default is a quarter of an hour.
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// TCP's handshake runs.
    Connecting,
    /// Bytes flow.
    Open,
    /// Our end is to be said once everything is written, or has been said.
    Ending,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) fd: OwnedFd,
    pub(super) stage: Stage,
    /// The peer has said its end.
    pub(super) eof: bool,
    /// Watched for room to write.
    pub(super) watched_for_room: bool,
    /// When it is reset, unless everything is written before.
    pub(super) until: Option<Instant>,
    waiting: VecDeque<Waiting>,
}

/// A burst and how much of it is written.
#[derive(Debug)]
struct Waiting {
    burst: StreamBurst,
    done: usize,
}

impl Conn {
    pub(super) fn new(fd: OwnedFd, stage: Stage) -> Conn {
        Conn { fd, stage, eof: false, watched_for_room: false, until: None, waiting: VecDeque::new() }
    }

    /// Begins to connect.
    pub(super) fn dial(src: SocketAddr, dst: SocketAddr, traffic_class: u8) -> io::Result<Conn> {
        let socket =
            Socket::new(Domain::for_address(dst), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        watch_peer(socket.as_fd());
        if src.port() == 0 {
            // The port is chosen when the destination is known too, so that there are more connections than ports.
            let _ = sockopt_bind_no_port(socket.as_fd());
        }
        if traffic_class != 0 {
            match dst {
                SocketAddr::V4(_) => socket.set_tos_v4(u32::from(traffic_class))?,
                SocketAddr::V6(_) => socket.set_tclass_v6(u32::from(traffic_class))?,
            }
        }
        socket.bind(&src.into())?;
        match socket.connect(&dst.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Conn::new(socket.into(), Stage::Connecting))
    }

    /// Whether everything that was given is written.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes a burst, behind what waits. `Ok(n)`: the socket took `n` bytes now; `burst` has been emptied if it took all,
    /// else it has been kept, and replaced by an empty one.
    pub(super) fn write(
        &mut self,
        burst: &mut StreamBurst,
        spare: &mut Vec<StreamBurst>,
    ) -> io::Result<usize> {
        let written = if self.waiting.is_empty() { self.send(burst, 0)? } else { 0 };
        if written < burst.len() {
            let burst = std::mem::replace(burst, spare.pop().unwrap_or_default());
            self.waiting.push_back(Waiting { burst, done: written });
        } else {
            // Memory that it held is let go here, where no lock is held: its owner may have something to do then.
            burst.clear();
        }
        Ok(written)
    }

    /// Writes what waits; how much the socket took.
    pub(super) fn flush(&mut self, spare: &mut Vec<StreamBurst>) -> io::Result<usize> {
        let mut total = 0;
        while let Some(mut first) = self.waiting.pop_front() {
            let written = self.send(&first.burst, first.done)?;
            total += written;
            first.done += written;
            if first.done < first.burst.len() {
                self.waiting.push_front(first);
                break;
            }
            if spare.len() < MAX_SPARE {
                first.burst.clear();
                spare.push(first.burst);
            }
        }
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new(); // an idle connection holds nothing
        }
        Ok(total)
    }

    /// Sends a burst from `skip` on, until it is out or the socket is full.
    fn send(&self, burst: &StreamBurst, skip: usize) -> io::Result<usize> {
        let mut done = skip;
        while done < burst.len() {
            let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
            let mut at = 0;
            for piece in burst.pieces() {
                let end = at + piece.len();
                if end > done && slices.len() < MAX_PIECES {
                    slices.push(IoSlice::new(&bytes_of(&piece)[done.saturating_sub(at)..]));
                }
                at = end;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = match &slices[..] {
                [one] => rustix::net::send(&self.fd, one, flags),
                many => rustix::net::sendmsg(&self.fd, many, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Ok(sent) => done += sent,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done - skip)
    }

    /// Says our end.
    pub(super) fn shut(&self) {
        // A connection that is gone already says so when it is read.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Resets it when it is dropped.
    pub(super) fn reset_on_drop(&self) {
        let _ = sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }

    /// The largest segment, in bytes.
    pub(super) fn mss(&self) -> usize {
        mss(self.fd.as_fd())
    }
}

/// The bytes of a piece, for a system call only.
fn bytes_of<'a>(piece: &Piece<'a>) -> &'a [u8] {
    match *piece {
        Piece::Bytes(bytes) => bytes,
        // SAFETY: the burst holds the pin, which keeps `len` bytes at `as_ptr` mapped. The program and peers may write them
        // meanwhile, as RDMA allows; the slice goes to the kernel's copy alone and is never read here.
        Piece::Pinned(pin) => unsafe { std::slice::from_raw_parts(pin.as_ptr(), pin.len()) },
    }
}

/// The largest segment of a connected socket, in bytes; the least that IPv4 promises where the kernel does not tell.
pub(super) fn mss(fd: BorrowedFd<'_>) -> usize {
    crate::sockopt::get_int(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG).map_or(536, |mss| mss.max(0) as usize)
}

/// Has TCP notice a peer that is silently gone ([`KEEPALIVE_IDLE`], [`USER_TIMEOUT`]).
pub(super) fn watch_peer(fd: BorrowedFd<'_>) {
    let seconds = |time: Duration| time.as_secs() as libc::c_int;
    let probes = ((USER_TIMEOUT - KEEPALIVE_IDLE).as_secs() / KEEPALIVE_INTERVAL.as_secs()) as libc::c_int;
    let rows = [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(KEEPALIVE_IDLE)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(KEEPALIVE_INTERVAL)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, USER_TIMEOUT.as_millis() as libc::c_int),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ];
    for (level, name, value) in rows {
        if let Err(error) = crate::sockopt::set(fd, level, name, value) {
            tracing::debug!(level, name, %error, "a peer that is silently gone will be noticed late");
        }
    }
}

const IP_BIND_ADDRESS_NO_PORT: libc::c_int = 24;

fn sockopt_bind_no_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    crate::sockopt::set(fd, libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
}
