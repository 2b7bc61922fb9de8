//! The whole input of a device: two of them with connected RC, UC and UD queue pairs and a connection being made, and an attacker who
//! speaks with the peer's address, knows every number and signs what he sends. No bytes may make a device panic, and every work request
//! posted completes exactly once, whatever it completes with.
//!
//! An input is a script; [`Script`] says how it is read. The seeds are scripts too.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use everywire_fuzz::target;
use everywire_verbs::{
    Access, ConnectOptions, Connecting, Cq, DEFAULT_SOURCE_PORT, Datagram, Device, DeviceConfig,
    ListenOptions, Listener, MemoryRegion, Mtu, Path, Psn, QKey, Qp, QpAttr, QpInit, QpState, QpType, RecvWr,
    Route, RouteError, SendOp, SendWr, Transmit, UdDest,
};
use everywire_wire::{IcrcV4, Qpn, ROCE_UDP_PORT, icrc_v4};

const IPS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const QKEY: QKey = QKey(0x1234);
const PSN: u32 = 0xff_fff0;
const DF: u16 = 0x4000;
/// Genuine datagrams after the script, and timeouts: more would mean that the devices never come to rest.
const ROUNDS: usize = 20_000;

/// One device and its queue pairs: RC, UC, UD.
struct Side {
    ip: IpAddr,
    device: Device,
    cq: Cq,
    region: MemoryRegion,
    qps: Vec<Qp>,
    /// By queue pair and token: completions seen.
    seen: BTreeMap<(Qpn, u64), u32>,
    posted: Vec<(Qpn, u64)>,
}

impl Side {
    fn new(index: usize) -> Side {
        let ip = IpAddr::from(IPS[index]);
        let device = Device::new(DeviceConfig { seed: index as u64 + 1, ..DeviceConfig::roce_v2(ip) });
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = pd.register(16 << 10, all).unwrap();
        let make = |ty| pd.create_qp(&QpInit::new(ty, &cq)).unwrap();
        let qps = [QpType::Rc, QpType::Uc, QpType::Ud].map(make).into();
        Side { ip, device, cq, region, qps, seen: BTreeMap::new(), posted: Vec::new() }
    }

    fn connect(&self, peer: &Side) {
        let path = Path::new(self.ip, peer.ip, DEFAULT_SOURCE_PORT);
        for (qp, other) in self.qps.iter().zip(&peer.qps).take(2) {
            let rc = qp.ty() == QpType::Rc;
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            qp.to_init(access).unwrap();
            qp.modify(&QpAttr {
                path: Some(path),
                path_mtu: Some(Mtu::M256),
                dest_qp: Some(other.qpn()),
                rq_psn: Some(Psn::new(PSN)),
                max_dest_rd_atomic: rc.then_some(2),
                min_rnr_timer: rc.then_some(1),
                ..QpAttr::to(QpState::Rtr)
            })
            .unwrap();
            qp.modify(&QpAttr {
                sq_psn: Some(Psn::new(PSN)),
                timeout: rc.then_some(8),
                retry_cnt: rc.then_some(2),
                rnr_retry: rc.then_some(2),
                max_rd_atomic: rc.then_some(2),
                ..QpAttr::to(QpState::Rts)
            })
            .unwrap();
        }
        let ud = &self.qps[2];
        ud.modify(&QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(QKEY),
            ..QpAttr::to(QpState::Init)
        })
        .unwrap();
        ud.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        ud.modify(&QpAttr { sq_psn: Some(Psn::new(PSN)), ..QpAttr::to(QpState::Rts) }).unwrap();
    }

    /// Posts receives on every queue pair and every operation that the service has.
    fn post(&mut self, peer: &Side) {
        let path = Path::new(self.ip, peer.ip, DEFAULT_SOURCE_PORT);
        let (long, eight) = (self.region.sge(0..700), self.region.sge(800..808));
        let (remote, word) = (peer.region.remote(2048), peer.region.remote(1024));
        for (index, qp) in self.qps.clone().into_iter().enumerate() {
            for id in 0..4 {
                let at = 4096 + 1000 * (index * 4 + id as usize);
                qp.post_recv(RecvWr::new(id, [self.region.sge(at..at + 800)])).unwrap();
                self.posted.push((qp.qpn(), id));
            }
            let dest = UdDest { path, qpn: peer.qps[2].qpn(), qkey: QKEY };
            let ops = match qp.ty() {
                QpType::Rc => vec![
                    (SendOp::Send, long),
                    (SendOp::Write { remote }, long),
                    (SendOp::Read { remote }, long),
                    (SendOp::FetchAdd { remote: word, add: 3 }, eight),
                    (SendOp::WriteImm { remote, imm: 9 }, long),
                    (SendOp::CompareSwap { remote: word, compare: 3, swap: 1 }, eight),
                    (SendOp::SendInv(peer.region.rkey()), eight),
                ],
                QpType::Uc => {
                    vec![(SendOp::Send, long), (SendOp::Write { remote }, long), (SendOp::SendImm(1), eight)]
                }
                QpType::Ud => vec![(SendOp::Send, eight), (SendOp::SendImm(1), eight)],
            };
            for (id, (op, sge)) in (100..).zip(ops) {
                let ud = (qp.ty() == QpType::Ud).then_some(dest);
                qp.post_send(SendWr { ud, ..SendWr::new(id, op).with_sges([sge]) }).unwrap();
                self.posted.push((qp.qpn(), id));
            }
        }
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.cq.poll(&mut done, usize::MAX).unwrap();
        for wc in done {
            let count = self.seen.entry((wc.qpn, wc.wr_id)).or_default();
            *count += 1;
            assert!(
                *count == 1 && self.posted.contains(&(wc.qpn, wc.wr_id)),
                "completed {count} times: {wc:?}"
            );
        }
    }
}

/// A datagram on its way: to whom, its source port and identification, its bytes.
#[derive(Clone)]
struct Flying {
    to: usize,
    port: u16,
    id: u16,
    bytes: Vec<u8>,
}

struct Bench {
    now: Instant,
    sides: [Side; 2],
    flying: VecDeque<Flying>,
    /// Everything genuine so far, for the attacker to vary.
    heard: Vec<Flying>,
    transmit: Transmit,
    _listener: Listener,
    _connecting: Connecting,
}

impl Bench {
    fn new() -> Bench {
        let mut sides = [Side::new(0), Side::new(1)];
        sides[0].connect(&sides[1]);
        sides[1].connect(&sides[0]);
        let [a, b] = &mut sides;
        a.post(b);
        b.post(a);
        let address = SocketAddr::new(b.ip, 4420);
        let listener = b.device.listen(address, ListenOptions::default()).unwrap();
        let pd = a.device.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &a.cq)).unwrap();
        let connecting = a.device.connect(ConnectOptions::new(address, &qp));
        let mut bench = Bench {
            now: Instant::now(),
            sides,
            flying: VecDeque::new(),
            heard: Vec::new(),
            transmit: Transmit::default(),
            _listener: listener,
            _connecting: connecting,
        };
        bench.drain();
        bench
    }

    /// Takes what both devices have to say.
    fn drain(&mut self) {
        loop {
            let mut quiet = true;
            for at in 0..2 {
                let side = &self.sides[at];
                let mut drive = side.device.drive();
                while let Some(command) = drive.poll_command() {
                    quiet = false;
                    if let everywire_verbs::Command::ResolveRoute { token, dst, .. } = command {
                        let known = IPS.iter().any(|ip| IpAddr::from(*ip) == dst);
                        let route = Route { src: side.ip, scope_id: 0, mtu: 1500 };
                        drive.resolved(
                            self.now,
                            token,
                            if known { Ok(route) } else { Err(RouteError::NoRoute) },
                        );
                    }
                }
                while drive.poll_transmit(self.now, &mut self.transmit) {
                    quiet = false;
                    let to = usize::from(self.transmit.dst.ip() == self.sides[1].ip);
                    for (id, bytes) in (0..).zip(self.transmit.segments()) {
                        let flying = Flying { to, port: self.transmit.src_port, id, bytes: bytes.to_vec() };
                        if self.heard.len() < 256 {
                            self.heard.push(flying.clone());
                        }
                        self.flying.push_back(flying);
                    }
                }
            }
            if quiet {
                break;
            }
        }
        self.sides.iter_mut().for_each(Side::poll);
    }

    fn deliver(&mut self, flying: &Flying) {
        let [to, from] = [flying.to, 1 - flying.to].map(|at| self.sides[at].ip);
        let datagram = Datagram {
            src: SocketAddr::new(from, flying.port),
            dst: to,
            tos: 0,
            ttl: 64,
            ip_id: Some(flying.id),
            bytes: &flying.bytes,
        };
        self.sides[flying.to].device.drive().handle_datagram(self.now, datagram);
        self.drain();
    }

    /// Gives a datagram the ICRC that it should have.
    fn sign(&self, flying: &mut Flying) {
        let Some(body) = flying.bytes.len().checked_sub(4) else { return };
        let [src, dst] = [IPS[1 - flying.to].into(), IPS[flying.to].into()];
        let net = IcrcV4 { src, dst, id: flying.id, flags_frag: DF, src_port: flying.port };
        let icrc = icrc_v4(&net, &flying.bytes[..body]);
        flying.bytes[body..].copy_from_slice(&icrc.to_le_bytes());
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for at in 0..2 {
            let mut drive = self.sides[at].device.drive();
            if drive.poll_timeout().is_some_and(|due| due <= self.now) {
                drive.handle_timeout(self.now);
            }
        }
        self.drain();
    }

    fn next_genuine(&mut self, deliver: bool) {
        if let Some(next) = self.flying.pop_front()
            && deliver
        {
            self.deliver(&next);
        }
    }

    /// The network is itself again; then the queue pairs go to ERR: by then everything has completed, once.
    fn finish(mut self) {
        for _ in 0..ROUNDS {
            if !self.flying.is_empty() {
                self.next_genuine(true);
                continue;
            }
            // The connection manager goes on for minutes; what is of interest here is over long before.
            let due = (0..2).filter_map(|at| self.sides[at].device.drive().poll_timeout()).min();
            match due {
                Some(due) if due < self.now + Duration::from_secs(1) => {
                    let wait = due.saturating_duration_since(self.now);
                    self.pass(wait);
                }
                _ => break,
            }
        }
        for at in 0..2 {
            for qp in &self.sides[at].qps {
                qp.to_error().unwrap();
            }
        }
        self.drain();
        for side in &self.sides {
            for posted in &side.posted {
                assert_eq!(side.seen.get(posted), Some(&1), "{posted:?} of {} never completed", side.ip);
            }
        }
    }
}

/// How bytes are read as a script: an opcode, and what it needs; missing bytes are zero.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    fn play(&mut self, bench: &mut Bench) {
        while !self.0.is_empty() {
            match self.byte() % 8 {
                0 => {
                    let (to, len) = (usize::from(self.byte() % 2), usize::from(self.byte()));
                    let bytes = self.bytes(len);
                    bench.deliver(&Flying { to, port: DEFAULT_SOURCE_PORT, id: 0, bytes });
                }
                1 | 2 => self.variation(bench, true),
                3 => self.variation(bench, false),
                4 => self.forgery(bench),
                5 => {
                    let micros = 1u64 << (self.byte() % 20);
                    bench.pass(Duration::from_micros(micros));
                }
                6 => bench.next_genuine(false),
                _ => {
                    for _ in 0..=self.byte() % 4 {
                        bench.next_genuine(true);
                    }
                }
            }
        }
    }

    /// A genuine datagram with a few bytes changed.
    fn variation(&mut self, bench: &mut Bench, signed: bool) {
        if bench.heard.is_empty() {
            return;
        }
        let mut flying = bench.heard[usize::from(self.byte()) % bench.heard.len()].clone();
        for _ in 0..self.byte() % 6 {
            let at = usize::from(self.byte()) % flying.bytes.len().max(1);
            let with = self.byte();
            if let Some(byte) = flying.bytes.get_mut(at) {
                *byte ^= with;
            }
        }
        match self.byte() {
            cut @ 1..=40 => flying.bytes.truncate(usize::from(cut) * 4),
            more @ 200.. => flying.bytes.extend(self.bytes(usize::from(more - 200) * 4)),
            _ => {}
        }
        if signed {
            bench.sign(&mut flying);
        }
        bench.deliver(&flying);
    }

    /// A packet of any opcode, for one of the queue pairs, with a PSN near the one that is expected.
    fn forgery(&mut self, bench: &mut Bench) {
        let to = usize::from(self.byte() % 2);
        let (opcode, flags) = (self.byte(), self.byte());
        let whom = self.byte();
        let side = &bench.sides[to];
        let qpn = match whom % 5 {
            at @ 0..3 => side.qps[usize::from(at)].qpn(),
            3 => Qpn::GSI,
            _ => Qpn::new(u32::from(whom)),
        };
        let psn = PSN.wrapping_add_signed(i32::from(self.byte() as i8) / 4) & 0xff_ffff;
        let mut bytes = vec![opcode, flags, 0xff, 0xff, 0];
        bytes.extend(&qpn.get().to_be_bytes()[1..]);
        bytes.push(self.byte());
        bytes.extend(&psn.to_be_bytes()[1..]);
        if self.byte().is_multiple_of(2) {
            // What a RETH or AtomicETH begins with, so that the key is right now and then.
            let remote = side.region.remote(usize::from(self.byte()) * 8);
            bytes.extend(remote.addr.to_be_bytes());
            bytes.extend(remote.rkey.0.to_be_bytes());
        }
        let len = usize::from(self.byte()) * 4;
        bytes.extend(self.bytes(len));
        bytes.extend([0; 4]);
        let mut flying = Flying { to, port: DEFAULT_SOURCE_PORT, id: 0, bytes };
        bench.sign(&mut flying);
        bench.deliver(&flying);
    }
}

/// Scripts that use everything: whole exchanges with one disturbance of each kind in them.
fn scripts() -> Vec<Vec<u8>> {
    let mut scripts = vec![vec![7; 60], vec![6, 7, 6, 7, 5, 12, 7, 5, 14, 7], vec![5; 40]];
    for index in 0..24 {
        let mut script = vec![7, index % 4];
        script.extend([1, index * 5, 2, index, 0x80, 12 + index, 1, 0, 7, 3, 5, 10]);
        script.extend([4, index, index % 24, 0x40, index % 5, 4 * (index % 8), 0x80, 0, 1, 4]);
        script.extend([7, 3, 3, index, 1, 20, 0xff, 0, 5, 16, 7, 3]);
        scripts.push(script);
    }
    scripts
}

target!(device_input, scripts(), |bytes| {
    let mut bench = Bench::new();
    Script(bytes).play(&mut bench);
    bench.finish();
});

#[test]
fn without_an_attacker_everything_completes() {
    assert_eq!(ROCE_UDP_PORT, 4791);
    let bench = Bench::new();
    bench.finish();
}
