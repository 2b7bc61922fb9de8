//! The TCP port against sockets of the kernel's: what it owes to peers that do not do their part.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_verbs::{
    ConnEvent, ConnId, MAX_HALF_OPEN_PER_PEER, STREAM_CLOSE_TIMEOUT, StreamBurst, StreamError,
    StreamListenerId,
};
use rustix::event::epoll::EventFlags;

use super::conn::{Conn, KEEPALIVE_IDLE, Stage, USER_TIMEOUT, watch_peer};
use super::plain::PlainQueue;
use super::port::LISTENER;
use super::{Arrival, Listening, StreamCapture, TcpPort};

const CONN: ConnId = ConnId(7);

/// Writes down what arrives.
#[derive(Default)]
struct Heard {
    accepted: Vec<StreamListenerId>,
    events: Vec<ConnEvent>,
}

impl Arrival for Heard {
    fn accepted(
        &mut self,
        listener: StreamListenerId,
        _: SocketAddr,
        _: SocketAddr,
        _: usize,
    ) -> Option<ConnId> {
        self.accepted.push(listener);
        None
    }

    fn bytes(&mut self, _: ConnId, _: &[u8]) {}

    fn event(&mut self, _: ConnId, event: ConnEvent) {
        self.events.push(event);
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A port with one connection, and the peer's end of it.
fn connected() -> (TcpPort, TcpStream) {
    let mut port = TcpPort::new(Arc::new(Listening::default())).unwrap();
    let listener = TcpListener::bind(any()).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    ours.set_nonblocking(true).unwrap();
    port.add(CONN, Conn::new(OwnedFd::from(ours), Stage::Open), EventFlags::IN).unwrap();
    (port, peer)
}

/// Turns until `done`.
fn turn_until(port: &mut TcpPort, heard: &mut Heard, what: &str, done: impl Fn(&Heard) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done(heard) {
        assert!(Instant::now() < end, "{what}: never");
        port.look_at_all();
        port.receive(heard);
        port.housekeeping(Instant::now());
    }
}

/// Writes until the socket takes no more.
fn fill(port: &mut TcpPort) {
    let mut burst = StreamBurst::new();
    loop {
        burst.set(CONN, &[0xa5; 100_000]);
        if port.write(CONN, &mut burst).unwrap() < 100_000 {
            return;
        }
    }
}

/// A peer that asks for much, says its end and never reads does not hold a descriptor and memory for ever.
#[test]
fn a_peer_that_has_ended_and_takes_nothing_is_reset() {
    for eof_first in [true, false] {
        let (mut port, mut peer) = connected();
        let mut heard = Heard::default();
        fill(&mut port);
        if !eof_first {
            port.close(CONN);
            assert_eq!(port.deadline(), None, "the device has a timer of its own");
        }
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        turn_until(&mut port, &mut heard, "the peer's end", |heard| heard.events == [ConnEvent::Eof]);
        if eof_first {
            assert_eq!(port.deadline(), None);
            port.close(CONN);
        }
        let deadline = port.deadline().expect("a deadline");
        assert!(deadline <= Instant::now() + STREAM_CLOSE_TIMEOUT);
        port.housekeeping(deadline - Duration::from_millis(1));
        assert_eq!(port.conns.len(), 1);
        port.housekeeping(deadline);
        assert_eq!((port.conns.len(), port.deadline()), (0, None));
        let error = peer.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// One that reads in time gets everything, and then our end.
#[test]
fn a_peer_that_has_ended_and_reads_gets_all() {
    let (mut port, mut peer) = connected();
    let mut heard = Heard::default();
    fill(&mut port);
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    turn_until(&mut port, &mut heard, "the peer's end", |heard| heard.events == [ConnEvent::Eof]);
    port.close(CONN);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all.len()
    });
    let end = Instant::now() + Duration::from_secs(10);
    while !port.conns.is_empty() {
        assert!(Instant::now() < end);
        port.look_at_all();
        port.receive(&mut heard);
    }
    assert_eq!(port.deadline(), None, "nothing is left of it");
    assert_eq!(reader.join().unwrap() % 100_000, 0);
}

/// Descriptors run out at one listening socket: it rests, and all of them accept again afterwards.
#[test]
fn a_listener_that_rests_comes_back_and_the_others_stay() {
    let listening = Arc::new(Listening::default());
    let mut port = TcpPort::new(listening.clone()).unwrap();
    let ids = [StreamListenerId(1), StreamListenerId(2), StreamListenerId(3)];
    let addrs = ids.map(|id| {
        let addr = listening.reserve(any()).unwrap();
        listening.begin(addr, id).unwrap();
        addr
    });
    let mut heard = Heard::default();
    port.receive(&mut heard);
    let tokens: Vec<u64> = port.watched.keys().copied().collect();
    assert!(tokens.len() == 3 && tokens.iter().all(|token| token & LISTENER != 0));
    port.rest_listener(tokens[0]);
    assert_eq!(port.watched.len(), 2);
    let again = port.deadline().expect("it comes back");
    port.housekeeping(again);
    assert_eq!((port.watched.len(), port.deadline()), (3, None));
    assert!(tokens[1..].iter().all(|token| port.watched.contains_key(token)), "the others were left alone");
    let peers = addrs.map(|addr| TcpStream::connect(addr).unwrap());
    turn_until(&mut port, &mut heard, "accepting", |heard| heard.accepted.len() == 3);
    heard.accepted.sort_unstable();
    assert_eq!(heard.accepted, ids);
    drop(peers);
}

/// On a shared port, a host that says nothing loses its own oldest connection for its newest.
#[test]
fn a_silent_host_on_a_shared_port_crowds_out_itself() {
    let listening = Arc::new(Listening::default());
    let mut port = TcpPort::new(listening.clone()).unwrap();
    let queue = Arc::new(PlainQueue::default());
    let addr = listening.share(any(), &queue).unwrap();
    let mut heard = Heard::default();
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..=MAX_HALF_OPEN_PER_PEER {
        silent.push(TcpStream::connect(addr).unwrap());
        port.look_at_all();
        port.receive(&mut heard);
    }
    port.look_at_all();
    while port.receive(&mut heard) {
        port.look_at_all();
    }
    assert_eq!(silent[0].read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    for stream in &silent[1..] {
        stream.set_nonblocking(true).unwrap();
        assert_eq!((&*stream).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    (&silent[MAX_HALF_OPEN_PER_PEER]).write_all(b"plain").unwrap();
    let before = port.deadline().expect("the others have until then");
    port.look_at_all();
    port.receive(&mut heard);
    port.housekeeping(before + Duration::from_secs(60));
    assert_eq!(port.deadline(), None);
}

/// tcp(7): what has a peer that lost its power noticed.
#[test]
fn tcp_watches_the_peer() {
    let listener = TcpListener::bind(any()).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    watch_peer(stream.as_fd());
    let get = |level, name| crate::sockopt::get_int(stream.as_fd(), level, name).unwrap();
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
    assert_eq!(
        u64::from(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE).unsigned_abs()),
        KEEPALIVE_IDLE.as_secs()
    );
    assert_eq!(
        u128::from(get(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).unsigned_abs()),
        USER_TIMEOUT.as_millis()
    );
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 3);
}

/// A capture of a service that runs for years remembers the connections that there are.
#[test]
fn a_capture_forgets_what_is_over() {
    let path = std::env::temp_dir().join(format!("everywire-streams-{}.pcapng", std::process::id()));
    let file = crate::capture::Capture::create(&path, "test").unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut capture = StreamCapture::new(file);
    let open = |capture: &mut StreamCapture, id| {
        capture.opened(ConnId(id), any(), any(), 1460, false);
        ConnId(id)
    };
    let first = open(&mut capture, 1);
    capture.closed(first);
    assert_eq!(capture.remembered(), 1, "the peer may say more");
    capture.event(first, &ConnEvent::Eof);
    assert_eq!(capture.remembered(), 0);
    let second = open(&mut capture, 2);
    capture.event(second, &ConnEvent::Eof);
    capture.closed(second);
    assert_eq!(capture.remembered(), 0);
    let third = open(&mut capture, 3);
    capture.closed(third);
    capture.event(third, &ConnEvent::Reset(StreamError::Reset));
    capture.dialled(ConnId(4), any());
    capture.event(ConnId(4), &ConnEvent::Failed(StreamError::Refused));
    capture.dialled(ConnId(5), any());
    capture.reset(ConnId(5));
    assert_eq!(capture.remembered(), 0);
}
