//! The contract of streams: an iWARP device between a driver and a program that do anything the contract allows, and a peer that
//! does anything at all. No panic; every receive posted completes at most once; nothing is left once all ends have come.
//!
//! An input is a script of steps, read byte by byte; [`Bench::step`] says how.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use everywire_fuzz::{captures, target};
use everywire_verbs::{
    Access, CmError, Command, ConnEvent, ConnId, ConnParam, ConnectOptions, ConnectRequest, Connection, Cq,
    Device, DeviceConfig, IwarpOptions, ListenOptions, Listener, MemoryRegion, Pd, Qp, QpInit, QpType,
    RecvWr, Remote, Route, SendOp, SendWr, StreamBurst, StreamError, StreamListenerId,
};
use everywire_wire::mpa;

const IP: [u8; 4] = [192, 0, 2, 1];
/// Queue pairs that one script makes.
const MAX_QPS: u64 = 8;
/// Timers that run after the script: more would mean that the device never comes to rest.
const MAX_TIMERS: usize = 10_000;

type Attempt = Pin<Box<dyn Future<Output = Result<Connection, CmError>>>>;

/// What the driver knows of a connection.
#[derive(Default)]
struct Socket {
    established: bool,
    unwritten: usize,
    eof: bool,
    closing: bool,
}

struct Bench {
    device: Device,
    pd: Pd,
    cq: Cq,
    region: MemoryRegion,
    now: Instant,
    burst: StreamBurst,
    sockets: BTreeMap<ConnId, Socket>,
    listener: Option<StreamListenerId>,
    attempts: Vec<Attempt>,
    requests: Vec<ConnectRequest>,
    connections: Vec<Connection>,
    qps: Vec<Qp>,
    made: u64,
    sends: u64,
    done: HashSet<u64>,
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A frame of MPA's start-up, or an FPDU whose CRC is right, around bytes of the script.
fn speech(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let frame = |key: &[u8; 16], head: [u8; 2]| {
        [&key[..], &head, &(bytes.len() as u16).to_be_bytes(), bytes].concat()
    };
    match kind % 8 {
        0 => frame(b"MPA ID Req Frame", [0x40, 1]),
        1 => frame(b"MPA ID Req Frame", [0x50, 2]),
        2 => frame(b"MPA ID Rep Frame", [0x40, 1]),
        3 => frame(b"MPA ID Rep Frame", [0x50, 2]),
        4 => frame(b"MPA ID Rep Frame", [0x70, 2]),
        5 => bytes.to_vec(),
        _ => {
            let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
            out.extend_from_slice(bytes);
            out.resize(mpa::fpdu_len(bytes.len()), 0);
            mpa::seal(&mut out);
            out
        }
    }
}

impl Bench {
    fn new(how: u8) -> (Bench, Listener) {
        let iwarp = IwarpOptions {
            mpa_version: 1 + (how & 1),
            markers: how & 2 != 0,
            pause: Duration::from_millis(u64::from(how >> 2 & 1)),
            rfc7306: how & 8 != 0,
            ..IwarpOptions::default()
        };
        let device = Device::new(DeviceConfig { iwarp, ..DeviceConfig::iwarp(IP.into()) });
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = pd.register(4096, all).unwrap();
        let listener = device.listen((IP, 4420).into(), ListenOptions::default()).unwrap();
        let bench = Bench {
            device,
            pd,
            cq,
            region,
            now: Instant::now(),
            burst: StreamBurst::new(),
            sockets: BTreeMap::new(),
            listener: None,
            attempts: Vec::new(),
            requests: Vec::new(),
            connections: Vec::new(),
            qps: Vec::new(),
            made: 0,
            sends: 0,
            done: HashSet::new(),
        };
        (bench, listener)
    }

    /// A queue pair with two receives, and work to do once it is connected.
    fn qp(&mut self) -> Option<Qp> {
        if self.made == MAX_QPS {
            return None;
        }
        let qp = self.pd.create_qp(&QpInit::new(QpType::Rc, &self.cq)).unwrap();
        qp.to_init(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        for id in 0..2 {
            qp.post_recv(RecvWr::new(self.made * 10 + id, [self.region.sge(..64)])).unwrap();
        }
        self.made += 1;
        self.qps.push(qp.clone());
        Some(qp)
    }

    /// Takes what the device has for the driver. Sockets take it only when the script says so.
    fn drain(&mut self) {
        let device = self.device.clone();
        let mut drive = device.drive();
        loop {
            while drive.poll_stream(self.now, &mut self.burst) {
                if let Some(socket) = self.sockets.get_mut(&self.burst.conn()) {
                    assert!(socket.established, "bytes for a connection that is not made");
                    socket.unwritten += self.burst.len();
                }
            }
            let Some(command) = drive.poll_command() else { break };
            match command {
                Command::ResolveRoute { token, .. } => {
                    let route = Route { src: IP.into(), scope_id: 0, mtu: 1500 };
                    drive.resolved(self.now, token, Ok(route));
                }
                Command::StreamListen { listener, .. } => self.listener = Some(listener),
                Command::StreamUnlisten { .. } => self.listener = None,
                Command::StreamConnect { conn, .. } => drop(self.sockets.insert(conn, Socket::default())),
                Command::StreamClose { conn } => {
                    if let Some(socket) = self.sockets.get_mut(&conn) {
                        assert!(!std::mem::replace(&mut socket.closing, true), "closed twice");
                    }
                }
                Command::StreamReset { conn } => drop(self.sockets.remove(&conn)),
                _ => {}
            }
        }
        drop(drive);
        self.sockets.retain(|_, socket| !(socket.closing && socket.eof && socket.unwritten == 0));
        let mut done = Vec::new();
        self.cq.poll(&mut done, usize::MAX).unwrap();
        for wc in done {
            assert!(self.done.insert(wc.wr_id), "twice: {wc:?}");
        }
    }

    fn nth(&self, n: u8) -> Option<ConnId> {
        self.sockets.keys().nth(usize::from(n) % self.sockets.len().max(1)).copied()
    }

    fn event(&mut self, conn: ConnId, event: ConnEvent) {
        self.device.drive().stream_event(self.now, conn, event);
    }

    /// One step of the script: what happens, to which connection, and how many of the following bytes belong to it.
    fn step(&mut self, listener: &Listener, what: u8, which: u8, bytes: &[u8]) {
        let Some(conn) = self.nth(which).filter(|_| what % 16 < 8) else {
            return self.program(listener, what, which);
        };
        let Some(socket) = self.sockets.get_mut(&conn) else { return };
        match what % 16 {
            0 if !socket.established => {
                socket.established = true;
                let local = SocketAddr::from((IP, 40_000));
                self.event(conn, ConnEvent::Connected { local, mss: 1460 });
            }
            1 if !socket.established => {
                self.sockets.remove(&conn);
                self.event(conn, ConnEvent::Failed(StreamError::Refused));
            }
            2..=4 if socket.established && !socket.eof => {
                let said = speech(what >> 4, bytes);
                let cut = usize::from(which).min(said.len());
                for piece in [&said[..cut], &said[cut..]] {
                    self.device.drive().handle_stream(self.now, conn, piece);
                }
            }
            5 if socket.established && !socket.eof => {
                socket.eof = true;
                self.event(conn, ConnEvent::Eof);
            }
            6 => {
                self.sockets.remove(&conn);
                self.event(conn, ConnEvent::Reset(StreamError::Reset));
            }
            7 if socket.unwritten > 0 => {
                let written = socket.unwritten.min(1 + bytes.len() * 64);
                socket.unwritten -= written;
                self.event(conn, ConnEvent::Written(written));
            }
            _ => {}
        }
    }

    /// What the program does, or the clock.
    fn program(&mut self, listener: &Listener, what: u8, which: u8) {
        match what % 16 {
            0..=8 => {
                let peer = SocketAddr::from(([192, 0, 2, 2 + which % 4], 999));
                let Some(of) = self.listener else { return };
                let conn = self.device.drive().accepted(self.now, of, (IP, 4420).into(), peer, 1460);
                let socket = Socket { established: true, ..Socket::default() };
                if let Some(conn) = conn {
                    self.sockets.insert(conn, socket);
                }
            }
            9 => {
                if let Some(Ok(request)) = poll(&mut Box::pin(listener.next_request())) {
                    self.requests.push(request);
                }
            }
            10 => {
                if let Some(request) = self.requests.pop()
                    && let Some(qp) = self.qp()
                {
                    self.attempts.push(Box::pin(request.accept(&qp, ConnParam::default())));
                }
            }
            11 => {
                if let Some(qp) = self.qp() {
                    let to = SocketAddr::from(([192, 0, 2, 77], 4420));
                    self.attempts.push(Box::pin(self.device.connect(ConnectOptions::new(to, &qp))));
                }
            }
            12 if !self.attempts.is_empty() => {
                let at = usize::from(which) % self.attempts.len();
                if let Some(result) = poll(&mut self.attempts[at]) {
                    drop(self.attempts.swap_remove(at));
                    self.connections.extend(result);
                }
            }
            13 if !self.qps.is_empty() => {
                let at = usize::from(which) % self.qps.len();
                let remote = Remote { addr: self.region.addr(), rkey: self.region.rkey() };
                let op = [SendOp::Send, SendOp::Read { remote }, SendOp::Write { remote }];
                let op = op[usize::from(which) % 3].clone();
                self.sends += 1;
                let wr = SendWr::new(1000 + self.sends, op).with_sges([self.region.sge(64..128)]);
                // Before it is connected it is refused at the call.
                let _ = self.qps[at].post_send(wr);
            }
            14 => drop(self.connections.pop()),
            _ => {
                self.now += Duration::from_millis(u64::from(which) * 100);
                self.device.drive().handle_timeout(self.now);
            }
        }
    }

    /// Every end that is to come comes; then there is nothing left.
    fn finish(mut self, listener: Listener) {
        while let Some(conn) = self.nth(0) {
            self.sockets.remove(&conn);
            self.event(conn, ConnEvent::Reset(StreamError::Reset));
            self.drain();
        }
        drop((listener, std::mem::take(&mut self.requests), std::mem::take(&mut self.attempts)));
        drop((std::mem::take(&mut self.connections), std::mem::take(&mut self.qps)));
        self.drain();
        for _ in 0..MAX_TIMERS {
            let Some(at) = self.device.drive().poll_timeout() else { break };
            self.now = self.now.max(at);
            self.device.drive().handle_timeout(self.now);
            self.drain();
        }
        assert_eq!(self.device.drive().poll_timeout(), None, "it never comes to rest");
        assert_eq!(self.device.cm_footprint(), 0, "something is left");
    }
}

/// Scripts that connect and accept, and go on with the captures' FPDUs.
fn seeds() -> Vec<Vec<u8>> {
    let accept = [8, 0, 0, 0x02, 200, 0, 9, 0, 0, 10, 0, 0, 12, 0, 0];
    let connect = [11, 0, 0, 12, 0, 0, 0, 0, 0, 0x32, 200, 4, 0, 1, 0, 1, 12, 0, 0];
    let mut seeds = Vec::new();
    for (at, payload) in captures::iwarp_payloads().into_iter().enumerate().take(64) {
        let first: &[u8] = if at % 2 == 0 { &accept } else { &connect };
        let said = &payload[..payload.len().min(255)];
        let last = [[5, 0, 0], [6, 0, 0], [14, 0, 0], [15, 200, 0]][at % 4];
        seeds.push(
            [&[at as u8], first, &[0x53, 200, said.len() as u8], said, &[13, 1, 0, 7, 0, 9], &last].concat(),
        );
    }
    seeds
}

target!(streams, seeds(), |bytes| {
    let [how, script @ ..] = bytes else { return };
    let (mut bench, listener) = Bench::new(*how);
    bench.drain();
    let mut rest = script;
    while let [what, which, length, more @ ..] = rest {
        let (said, after) = more.split_at(more.len().min(usize::from(*length)));
        bench.step(&listener, *what, *which, said);
        bench.drain();
        rest = after;
    }
    bench.finish(listener);
});
