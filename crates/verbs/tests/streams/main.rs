//! The contract of streams, driven by hand: what becomes of a connection whose TCP ends early, late or not at all.
//!
//! Expectations are RFC 5044's, RFC 6581's and RFC 5040's: start-up of two revisions, TERMINATE, ends in good order.

mod start_frames;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use everywire_verbs::{
    Access, CmError, CmErrorKind, Command, ConnEvent, ConnId, ConnParam, ConnectOptions, Connection, Cq,
    Device, DeviceConfig, DisconnectReason, IwarpOptions, ListenOptions, Listener, MAX_HALF_OPEN_PER_PEER,
    MemoryRegion, Pd, Qp, QpAttr, QpInit, QpState, QpType, RecvWr, Route, STREAM_CLOSE_TIMEOUT, StreamBurst,
    StreamError, StreamFault, StreamListenerId,
};
use everywire_wire::mpa;

const OURS: &str = "192.0.2.1:20049";
const PEER: &str = "192.0.2.9:4000";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

struct Bench {
    device: Device,
    pd: Pd,
    cq: Cq,
    region: MemoryRegion,
    now: Instant,
    burst: StreamBurst,
    sent: Vec<u8>,
    listening: Option<StreamListenerId>,
    dialled: Vec<ConnId>,
    closed: Vec<ConnId>,
    reset: Vec<ConnId>,
    strangers: Vec<(SocketAddr, SocketAddr, String)>,
}

impl Bench {
    fn new(iwarp: IwarpOptions) -> Bench {
        let device = Device::new(DeviceConfig { iwarp, ..DeviceConfig::iwarp(addr(OURS).ip()) });
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        Bench {
            region: pd.register(64, Access::LOCAL_WRITE).unwrap(),
            pd,
            cq,
            device,
            now: Instant::now(),
            burst: StreamBurst::new(),
            sent: Vec::new(),
            listening: None,
            dialled: Vec::new(),
            closed: Vec::new(),
            reset: Vec::new(),
            strangers: Vec::new(),
        }
    }

    fn qp(&self) -> Qp {
        self.pd.create_qp(&QpInit::new(QpType::Rc, &self.cq)).unwrap()
    }

    /// A driver whose sockets take everything.
    fn drain(&mut self) {
        let device = self.device.clone();
        let mut drive = device.drive();
        loop {
            while drive.poll_stream(self.now, &mut self.burst) {
                self.burst.copy_to(0, &mut self.sent);
                let written = ConnEvent::Written(self.burst.len());
                drive.stream_event(self.now, self.burst.conn(), written);
            }
            let Some(command) = drive.poll_command() else { return };
            match command {
                Command::ResolveRoute { token, .. } => {
                    let route = Route { src: addr(OURS).ip(), scope_id: 0, mtu: 1500 };
                    drive.resolved(self.now, token, Ok(route));
                }
                Command::StreamListen { listener, .. } => self.listening = Some(listener),
                Command::StreamConnect { conn, .. } => self.dialled.push(conn),
                Command::StreamClose { conn } => self.closed.push(conn),
                Command::StreamReset { conn } => self.reset.push(conn),
                Command::StreamStranger { local, peer, why } => self.strangers.push((local, peer, why)),
                _ => {}
            }
        }
    }

    fn event(&mut self, conn: ConnId, event: ConnEvent) {
        self.device.drive().stream_event(self.now, conn, event);
        self.drain();
    }

    fn bytes(&mut self, conn: ConnId, bytes: &[u8]) {
        self.device.drive().handle_stream(self.now, conn, bytes);
        self.drain();
    }

    fn taken(&mut self, peer: &str) -> Option<ConnId> {
        let listener = self.listening.unwrap();
        let conn = self.device.drive().accepted(self.now, listener, addr(OURS), addr(peer), 1460);
        self.drain();
        conn
    }

    fn listen(&mut self) -> Listener {
        let listener = self.device.listen(addr(OURS), ListenOptions::default()).unwrap();
        self.drain();
        listener
    }

    /// An attempt whose TCP connection is established and whose request is sent.
    fn asking(&mut self, qp: &Qp) -> (Attempt, ConnId) {
        let mut attempt: Attempt = Box::pin(self.device.connect(ConnectOptions::new(addr(PEER), qp)));
        assert!(poll(&mut attempt).is_none());
        self.drain();
        assert!(poll(&mut attempt).is_none());
        let conn = self.connected();
        (attempt, conn)
    }

    /// The newest TCP connection is established.
    fn connected(&mut self) -> ConnId {
        self.drain();
        let conn = *self.dialled.last().unwrap();
        self.event(conn, ConnEvent::Connected { local: addr(OURS), mss: 1460 });
        conn
    }

    /// A connection that a peer has made, with one receive posted.
    fn accepted(&mut self, listener: &Listener, qp: &Qp) -> (Connection, ConnId) {
        qp.to_init(Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr::new(1, [self.region.sge(..)])).unwrap();
        let conn = self.taken(PEER).unwrap();
        self.bytes(conn, &start_frame("Req", 0x40, 1, &[]));
        let request = poll(&mut Box::pin(listener.next_request())).unwrap().unwrap();
        let mut accepting = Box::pin(request.accept(qp, ConnParam::default()));
        let _ = poll(&mut accepting);
        self.drain();
        (poll(&mut accepting).unwrap().unwrap(), conn)
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<Connection, CmError>>>>;

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// RFC 5044 §7.1.1: key, flags (0x80 markers, 0x40 CRC, 0x20 reject, 0x10 enhanced), revision, length, private data.
fn start_frame(kind: &str, flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    let head = [flags, revision, 0, private.len() as u8];
    [format!("MPA ID {kind} Frame").as_bytes(), &head, private].concat()
}

fn reply() -> Vec<u8> {
    start_frame("Rep", 0x50, 2, &[0, 1, 0, 1])
}

fn fpdu(segment: &[u8]) -> Vec<u8> {
    let mut out = (segment.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(segment);
    out.resize(mpa::fpdu_len(segment.len()), 0);
    mpa::seal(&mut out);
    out
}

#[test]
fn an_orderly_end_before_any_reply_is_asked_again_in_revision_1() {
    let mut bench = Bench::new(IwarpOptions::default());
    let qp = bench.qp();
    let (mut attempt, conn) = bench.asking(&qp);
    assert_eq!(bench.sent[17], 2, "the revision");
    bench.sent.clear();
    bench.event(conn, ConnEvent::Eof);
    assert_eq!(bench.reset, [conn]);
    let again = bench.connected();
    assert_ne!(again, conn);
    assert_eq!(bench.sent[17], 1, "the revision");
    bench.bytes(again, &start_frame("Rep", 0x40, 1, &[]));
    assert!(poll(&mut attempt).unwrap().is_ok());
}

#[test]
fn other_ends_before_the_reply_say_what_tcp_says() {
    let rows = [
        (0, ConnEvent::Reset(StreamError::Reset), 104, "reset by the peer"),
        (0, ConnEvent::Reset(StreamError::TimedOut), 110, "no answer"),
        (17, ConnEvent::Eof, 104, "the peer closed"),
    ];
    for (said, event, errno, words) in rows {
        let mut bench = Bench::new(IwarpOptions::default());
        let qp = bench.qp();
        let (mut attempt, conn) = bench.asking(&qp);
        bench.bytes(conn, &reply()[..said]);
        bench.event(conn, event);
        let error = poll(&mut attempt).unwrap().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((error.errno(), bench.dialled.len()), (errno, 1), "{error}");
    }
}

/// Within the pause after the peer's yes its end is the connection's.
#[test]
fn an_end_within_the_pause_is_the_connections() {
    let rows = [
        (ConnEvent::Eof, DisconnectReason::Peer),
        (ConnEvent::Reset(StreamError::Reset), DisconnectReason::Stream(StreamError::Reset)),
    ];
    for (event, reason) in rows {
        let pause = Duration::from_millis(20);
        let mut bench = Bench::new(IwarpOptions { pause, ..IwarpOptions::default() });
        let qp = bench.qp();
        let (mut attempt, conn) = bench.asking(&qp);
        bench.bytes(conn, &reply());
        assert!(poll(&mut attempt).is_none(), "it pauses");
        bench.event(conn, event);
        assert_eq!(bench.dialled.len(), 1, "nothing is asked again");
        match poll(&mut attempt).unwrap() {
            Ok(connection) => assert_eq!(connection.closed_reason(), Some(reason)),
            Err(error) => assert_eq!(error.kind(), &CmErrorKind::Closed(reason)),
        }
    }
}

#[test]
fn a_stream_that_is_cut_short_did_not_end_in_good_order() {
    // A SEND of one byte, RFC 5041 §4.2 and RFC 5040 §4.3: complete; not the last segment; and cut within the FPDU.
    let send = |control| fpdu(&[control, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 7]);
    let cut = Some(DisconnectReason::Broken(StreamFault::CutShort));
    let rows =
        [(send(0x41), Some(DisconnectReason::Peer)), (send(0x01), cut), (send(0x41)[..9].to_vec(), cut)];
    for (bytes, reason) in rows {
        let mut bench = Bench::new(IwarpOptions::default());
        let (listener, qp) = (bench.listen(), bench.qp());
        let (connection, conn) = bench.accepted(&listener, &qp);
        bench.bytes(conn, &bytes);
        assert_eq!(connection.closed_reason(), None);
        bench.event(conn, ConnEvent::Eof);
        assert_eq!(connection.closed_reason(), reason);
        assert_eq!(bench.closed, [conn]);
    }
}

#[test]
fn terminate_is_told_in_words() {
    // The peer's TERMINATE (RFC 5040 §4.8: queue 2, MSN 1): DDP, tagged buffer, base or bounds violation.
    let terminate = fpdu(&[0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x11, 0x01, 0, 0]);
    let mut bench = Bench::new(IwarpOptions::default());
    let (listener, qp) = (bench.listen(), bench.qp());
    let (connection, conn) = bench.accepted(&listener, &qp);
    bench.bytes(conn, &terminate);
    let reason = connection.closed_reason().unwrap().to_string();
    assert_eq!(reason, "terminated by the peer: DDP: base or bounds violation (1/1/0x01)");
    // Ours: a CRC that is wrong.
    let mut bench = Bench::new(IwarpOptions::default());
    let (listener, qp) = (bench.listen(), bench.qp());
    let (connection, conn) = bench.accepted(&listener, &qp);
    let mut wrong = terminate;
    wrong[20] ^= 1;
    bench.bytes(conn, &wrong);
    let reason = connection.closed_reason().unwrap().to_string();
    assert_eq!(reason, "terminated by this side: MPA: CRC error (2/0/0x02)");
    assert_eq!(bench.closed, [conn]);
}

/// RFC 6581 §9: a reply that wants more READs than we hold is answered by a TERMINATE message, and a FIN.
#[test]
fn insufficient_ird_is_said_to_the_responder() {
    let mut bench = Bench::new(IwarpOptions::default());
    let qp = bench.qp();
    let (mut attempt, conn) = bench.asking(&qp);
    bench.sent.clear();
    bench.bytes(conn, &start_frame("Rep", 0x50, 2, &[0, 1, 0x3f, 0xfe]));
    let error = poll(&mut attempt).unwrap().unwrap_err();
    assert!(error.to_string().contains("insufficient IRD"), "{error}");
    let message = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 6, 0, 0];
    assert_eq!(bench.sent, fpdu(&message));
    assert_eq!((&bench.closed[..], &bench.reset[..]), (&[conn][..], &[][..]));
    // A peer that never ends it is reset.
    bench.now += STREAM_CLOSE_TIMEOUT;
    bench.device.drive().handle_timeout(bench.now);
    bench.drain();
    assert_eq!(bench.reset, [conn]);
}

/// RFC 6581 §8, code 5: the reply is fine, but the queue pair that was to have the stream can't take it any more.
#[test]
fn a_local_failure_is_said_to_the_responder() {
    let mut bench = Bench::new(IwarpOptions::default());
    let qp = bench.qp();
    let (mut attempt, conn) = bench.asking(&qp);
    bench.sent.clear();
    qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    bench.bytes(conn, &reply());
    let error = poll(&mut attempt).unwrap().unwrap_err();
    assert!(matches!(error.kind(), CmErrorKind::Qp(_)), "{error}");
    let message = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 5, 0, 0];
    assert_eq!(bench.sent, fpdu(&message));
    assert_eq!((&bench.closed[..], &bench.reset[..]), (&[conn][..], &[][..]));
}

/// RFC 5044 §8, code 4: an invalid reply ends the connection at once, without a word.
#[test]
fn an_invalid_start_frame_is_not_answered() {
    for frame in [start_frame("Rep", 0x50, 3, &[0, 1, 0, 1]), start_frame("Req", 0x50, 2, &[0, 1, 0, 1])] {
        let mut bench = Bench::new(IwarpOptions::default());
        let qp = bench.qp();
        let (mut attempt, conn) = bench.asking(&qp);
        bench.sent.clear();
        bench.bytes(conn, &frame);
        assert!(poll(&mut attempt).unwrap().is_err());
        assert_eq!((&bench.sent[..], &bench.reset[..]), (&[][..], &[conn][..]));
    }
}

#[test]
fn a_host_that_says_nothing_locks_out_nobody() {
    let mut bench = Bench::new(IwarpOptions::default());
    let listener = bench.listen();
    let other = bench.taken("192.0.2.8:1").unwrap();
    let silent: Vec<ConnId> = (0..MAX_HALF_OPEN_PER_PEER).map(|_| bench.taken(PEER).unwrap()).collect();
    assert_eq!(bench.reset, []);
    let newest = bench.taken(PEER).unwrap();
    assert_eq!(bench.reset, [silent[0]], "its own oldest goes");
    for conn in [newest, other] {
        bench.bytes(conn, &start_frame("Req", 0x40, 1, &[]));
        assert!(poll(&mut Box::pin(listener.next_request())).is_some());
    }
    drop(listener);
    for conn in silent {
        bench.event(conn, ConnEvent::Reset(StreamError::Reset));
    }
}

/// Whoever does not speak MPA is told of with both addresses, and counted; whoever does is not.
#[test]
fn strangers_are_told_of_and_counted() {
    let mut bench = Bench::new(IwarpOptions::default());
    let _listener = bench.listen();
    let http = bench.taken(PEER).unwrap();
    bench.bytes(http, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n");
    assert_eq!(bench.reset, [http]);
    let scan = bench.taken("192.0.2.8:1").unwrap();
    bench.event(scan, ConnEvent::Eof);
    let guest = bench.taken("192.0.2.9:1").unwrap();
    bench.bytes(guest, &start_frame("Req", 0x40, 1, &[]));
    let [first, second] = &bench.strangers[..] else { panic!("{:?}", bench.strangers) };
    assert_eq!((first.0, first.1), (addr(OURS), addr(PEER)));
    assert!(first.2.contains("MPA"), "{}", first.2);
    assert_eq!(second.1, addr("192.0.2.8:1"));
    assert!(second.2.contains("closed"), "{}", second.2);
    assert_eq!(bench.device.counters().by_name("mpa_strangers"), Some(2));
}
