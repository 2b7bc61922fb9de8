//! The whole input of an iWARP queue pair and of its start-up: streams cut anywhere, whatever is in them. TERMINATE or close,
//! never a panic, and every work request posted completes exactly once.
//!
//! An input's first byte says how the stream is set up, its second how it is cut; the rest is the stream.

use std::net::IpAddr;
use std::time::Instant;

use everywire_fuzz::{captures, target};
use everywire_transport::cm::iwarp::{
    AcceptParams, Initiator, InitiatorConfig, MpaEvent, Responder, ResponderConfig,
};
use everywire_transport::congestion::window::PeerWindow;
use everywire_transport::ib::{
    Completion, Counter, CqId, QpAttr, QpCaps, QpConfig, QpEnv, QpEvent, QpState, QpType, RecvWr, Remote,
    SendOp, SendWr, SrqId,
};
use everywire_transport::iwarp::{ConnId, IwarpConfig, Qp, Rtr, StreamBurst, StreamEvent, StreamParams};
use everywire_transport::memory::{
    Access, AccessError, AtomicOp, BindWindow, FastRegister, Memory, PdId, RemoteAccess, Sge,
};
use everywire_wire::{LKey, Mtu, PKey, Qpn, RKey};

/// One region that any key with an even number opens, so that a fuzzer finds its way in.
struct Region(Vec<u8>);

impl Region {
    fn range(&self, key: u32, at: u64, len: u64) -> Result<std::ops::Range<usize>, AccessError> {
        let end =
            at.checked_add(len).filter(|end| *end <= self.0.len() as u64).ok_or(AccessError::OutOfBounds)?;
        if key.is_multiple_of(2) { Ok(at as usize..end as usize) } else { Err(AccessError::UnknownKey) }
    }
}

impl Memory for Region {
    fn check_local(&self, _: PdId, sges: &[Sge], _: bool) -> Result<u64, AccessError> {
        sges.iter().try_fold(0, |sum, s| {
            self.range(s.lkey.0, s.addr, u64::from(s.length))?;
            Ok(sum + u64::from(s.length))
        })
    }
    fn gather(&self, _: PdId, sges: &[Sge], offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let sge = sges.first().ok_or(AccessError::OutOfBounds)?;
        into.copy_from_slice(&self.0[self.range(sge.lkey.0, sge.addr + offset, into.len() as u64)?]);
        Ok(())
    }
    fn scatter(&mut self, _: PdId, sges: &[Sge], offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let sge = sges.first().ok_or(AccessError::OutOfBounds)?;
        let range = self.range(sge.lkey.0, sge.addr + offset, from.len() as u64)?;
        self.0[range].copy_from_slice(from);
        Ok(())
    }
    fn check_remote(&self, at: &RemoteAccess) -> Result<(), AccessError> {
        self.range(at.rkey.0, at.va, at.length).map(drop)
    }
    fn read_remote(&self, at: &RemoteAccess, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(&self.0[self.range(at.rkey.0, at.va, at.length)?]);
        Ok(())
    }
    fn write_remote(&mut self, at: &RemoteAccess, from: &[u8]) -> Result<(), AccessError> {
        let range = self.range(at.rkey.0, at.va, at.length)?;
        self.0[range].copy_from_slice(from);
        Ok(())
    }
    fn atomic(&mut self, at: &RemoteAccess, _: AtomicOp) -> Result<u64, AccessError> {
        self.range(at.rkey.0, at.va, 8).map(|_| 7)
    }
    fn invalidate_local(&mut self, _: PdId, _: Qpn, _: RKey) -> Result<(), AccessError> {
        Ok(())
    }
    fn invalidate_remote(&mut self, _: PdId, _: Qpn, key: RKey) -> Result<(), AccessError> {
        self.range(key.0, 0, 0).map(drop)
    }
    fn bind_window(&mut self, _: PdId, _: Qpn, bind: &BindWindow) -> Result<RKey, AccessError> {
        Ok(bind.new_rkey)
    }
    fn fast_register(&mut self, _: PdId, _: Qpn, _: &FastRegister) -> Result<(), AccessError> {
        Ok(())
    }
}

struct Env {
    memory: Region,
    done: Vec<u64>,
    window: PeerWindow,
}

impl QpEnv for Env {
    type Mem = Region;
    fn memory(&mut self) -> &mut Region {
        &mut self.memory
    }
    fn complete(&mut self, _: CqId, completion: Completion, _: bool) {
        self.done.push(completion.wr_id);
    }
    fn srq_take(&mut self, _: SrqId) -> Option<RecvWr> {
        None
    }
    fn event(&mut self, _: Qpn, _: QpEvent) {}
    fn count(&mut self, _: Counter, _: u64) {}
    fn window(&mut self, _: IpAddr) -> &mut PeerWindow {
        &mut self.window
    }
    fn read_window(&mut self) -> &mut PeerWindow {
        &mut self.window
    }
}

const SENDS: std::ops::Range<u64> = 0..4;
const RECVS: std::ops::Range<u64> = 100..108;

/// A queue pair in RTS with work of its own posted.
fn queue_pair(env: &mut Env, now: Instant, how: u8) -> Qp {
    let config = QpConfig {
        ty: QpType::Rc,
        qpn: Qpn::new(17),
        pd: PdId(1),
        send_cq: CqId(1),
        recv_cq: CqId(1),
        srq: None,
        caps: QpCaps::default(),
        sq_sig_all: true,
        pkey: PKey::DEFAULT,
        port_mtu: Mtu::M4096,
    };
    let mut qp = Qp::new(config, IwarpConfig { rfc7306: how & 1 != 0, strict_read_sink: false });
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    qp.modify(env, &QpAttr { access: Some(all), ..QpAttr::to(QpState::Init) }).unwrap();
    let params = StreamParams {
        conn: ConnId(1),
        crc: how & 2 != 0,
        markers_send: how & 4 != 0,
        markers_receive: how & 8 != 0,
        ird: 2,
        ord: 2,
        max_fpdu_payload: 200,
        initiator: how & 16 != 0,
        rtr: [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][usize::from(how >> 5 & 3)],
    };
    qp.start(env, now, params).unwrap();
    let sge = Sge { addr: 0, length: 64, lkey: LKey(2) };
    let remote = Remote { addr: 0, rkey: RKey(2) };
    for id in RECVS {
        qp.post_recv(env, RecvWr::new(id, [sge])).unwrap();
    }
    for (id, op) in
        SENDS.zip([SendOp::Read { remote }, SendOp::Send, SendOp::Read { remote }, SendOp::Write { remote }])
    {
        qp.post_send(env, SendWr::new(id, op).with_sges([sge])).unwrap();
    }
    qp
}

/// Everything that is to be sent, taken at once.
fn drain(qp: &mut Qp, env: &mut Env, now: Instant, burst: &mut StreamBurst) {
    while qp.poll_transmit(env, now, burst) {
        qp.stream_event(env, now, StreamEvent::Written(burst.len()));
    }
}

fn stream_seeds() -> Vec<Vec<u8>> {
    let fpdus = captures::iwarp_payloads().into_iter().filter(|p| !p.starts_with(b"MPA ID"));
    let set_up = |(at, p): (usize, Vec<u8>)| [vec![at as u8, (at * 7) as u8], p].concat();
    fpdus.enumerate().map(set_up).collect()
}

target!(iwarp_stream, stream_seeds(), |bytes| {
    let [how, cut, stream @ ..] = bytes else { return };
    let now = Instant::now();
    let mut env = Env { memory: Region(vec![0; 4096]), done: Vec::new(), window: PeerWindow::default() };
    let mut burst = StreamBurst::new();
    let mut qp = queue_pair(&mut env, now, *how);
    drain(&mut qp, &mut env, now, &mut burst);
    for piece in stream.chunks(usize::from(*cut).max(1)) {
        qp.handle_stream(&mut env, now, piece);
        drain(&mut qp, &mut env, now, &mut burst);
    }
    qp.stream_event(&mut env, now, StreamEvent::Eof);
    drain(&mut qp, &mut env, now, &mut burst);
    assert!(qp.poll_close().is_some(), "the connection is left open");
    assert_eq!(qp.state(), QpState::Err);
    env.done.sort();
    assert!(env.done.iter().copied().eq(SENDS.chain(RECVS)), "not once each: {:?}", env.done);
});

fn start_seeds() -> Vec<Vec<u8>> {
    let frames = captures::iwarp_payloads().into_iter().filter(|p| p.starts_with(b"MPA ID"));
    frames.map(|p| [vec![7], p].concat()).collect()
}

target!(iwarp_start, start_seeds(), |bytes| {
    let [cut, stream @ ..] = bytes else { return };
    let now = Instant::now();
    let piece = usize::from(*cut).max(1);
    let mut responder = Responder::new(now, ResponderConfig::default());
    let mut initiator = Initiator::new(now, InitiatorConfig::default()).unwrap();
    for piece in stream.chunks(piece) {
        assert!(responder.handle_stream(now, piece) <= piece.len());
        assert!(initiator.handle_stream(now, piece) <= piece.len());
        if let Some(MpaEvent::Request(request)) = responder.poll_event() {
            let (ird, ord) = (8, 8);
            responder.accept(AcceptParams { ird, ord, private_data: Vec::new() }).unwrap();
            if let Some(MpaEvent::Accepted(agreed)) = responder.poll_event() {
                assert!(request.ird.is_none_or(|ird| agreed.ord <= ird));
            }
        }
    }
    responder.closed(None);
    initiator.closed(None);
    assert_eq!((responder.poll_timeout(), initiator.poll_timeout()), (None, None));
});
