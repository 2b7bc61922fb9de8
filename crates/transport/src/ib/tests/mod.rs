//! A bench for queue pairs: two nodes, a pipe with faults between them, and time that only moves when nothing else can.
//!
//! Packets cross the pipe as bytes: each is parsed, and its ICRC checked, on arrival. The bench knows nothing of the
//! transport beyond its driving contract.

mod captures;
mod cases;
mod errors;
mod hostile;
mod loss;
pub(crate) mod memory;
mod rc;
mod simulated;
mod states;
mod unreliable;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_wire::{IcrcV4, LKey, Mtu, PKey, Psn, QKey, Qpn, RKey, RocePacket, icrc_v4};

use super::env::{Counter, CqId, QpEnv, QpEvent, SrqId};
use super::wr::{Completion, RecvWr, Remote, SendOp, SendWr, WcStatus};
use super::{Burst, PacketMeta, Path, PathLink, Qp, QpAttr, QpCaps, QpConfig, QpState, QpType};
use crate::congestion::window::PeerWindow;
use crate::memory::{Access, PdId, Sge};
use memory::TestMemory;

pub(crate) const PD: PdId = PdId(1);
pub(crate) const OTHER_PD: PdId = PdId(2);
pub(crate) const SEND_CQ: CqId = CqId(1);
pub(crate) const RECV_CQ: CqId = CqId(2);
pub(crate) const SRQ: SrqId = SrqId(1);
/// One way through the pipe.
pub(crate) const DELAY: Duration = Duration::from_micros(5);
/// Each node's memory: this much at this address, with every right.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const LEN: usize = 1 << 20;

/// What a device is to a queue pair.
pub(crate) struct Env {
    pub(crate) memory: TestMemory,
    pub(crate) sends: VecDeque<Completion>,
    pub(crate) recvs: VecDeque<Completion>,
    pub(crate) srq: VecDeque<RecvWr>,
    pub(crate) events: Vec<QpEvent>,
    pub(crate) counters: [u64; Counter::COUNT],
    pub(crate) windows: HashMap<IpAddr, PeerWindow>,
    pub(crate) read_window: PeerWindow,
}

impl QpEnv for Env {
    type Mem = TestMemory;

    fn memory(&mut self) -> &mut TestMemory {
        &mut self.memory
    }
    fn complete(&mut self, cq: CqId, completion: Completion, solicited: bool) {
        // Errors and what the sender marked, nothing else.
        assert_eq!(solicited, completion.solicited || completion.status != WcStatus::Success);
        let queue = if cq == SEND_CQ { &mut self.sends } else { &mut self.recvs };
        queue.push_back(completion);
    }
    fn srq_take(&mut self, _srq: SrqId) -> Option<RecvWr> {
        self.srq.pop_front()
    }
    fn event(&mut self, _qpn: Qpn, event: QpEvent) {
        self.events.push(event);
    }
    fn count(&mut self, counter: Counter, by: u64) {
        self.counters[counter as usize] += by;
    }
    fn window(&mut self, peer: IpAddr) -> &mut PeerWindow {
        self.windows.entry(peer).or_default()
    }
    fn read_window(&mut self) -> &mut PeerWindow {
        &mut self.read_window
    }
}

/// One end.
pub(crate) struct Node {
    pub(crate) ip: IpAddr,
    pub(crate) env: Env,
    pub(crate) qp: Qp,
    /// The key of its memory, local and remote.
    pub(crate) key: u32,
}

impl Node {
    pub(crate) fn new(ip: &str, qpn: u32, setup: &Setup) -> Node {
        let mut memory = TestMemory::default();
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let key = memory.register(PD, BASE, LEN, all);
        let env = Env {
            memory,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            srq: VecDeque::new(),
            events: Vec::new(),
            counters: [0; Counter::COUNT],
            windows: HashMap::new(),
            read_window: PeerWindow::default(),
        };
        let config = QpConfig {
            ty: setup.ty,
            qpn: Qpn::new(qpn),
            pd: PD,
            send_cq: SEND_CQ,
            recv_cq: RECV_CQ,
            srq: setup.srq.then_some(SRQ),
            caps: QpCaps {
                max_send_wr: 1024,
                max_recv_wr: 1024,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline_data: 512,
            },
            sq_sig_all: false,
            pkey: PKey::DEFAULT,
            port_mtu: Mtu::M4096,
        };
        Node { ip: ip.parse().unwrap(), env, qp: Qp::new(config), key }
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.env.counters[counter as usize]
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: LKey(self.key) }
    }

    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote { addr: BASE + offset, rkey: RKey(self.key) }
    }

    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        let key = self.key;
        self.env.memory.bytes(key)
    }

    pub(crate) fn send(&mut self, wr: SendWr) {
        self.qp.post_send(&mut self.env, wr).unwrap();
    }

    pub(crate) fn recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let wr = RecvWr::new(wr_id, [self.sge(offset, length)]);
        self.qp.post_recv(&mut self.env, wr).unwrap();
    }

    pub(crate) fn modify(&mut self, attr: &QpAttr) {
        self.qp.modify(&mut self.env, attr).unwrap();
    }

    /// (wr_id, status) of all send completions, taken off the queue.
    pub(crate) fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.env.sends.drain(..).map(|c| (c.wr_id, c.status)).collect()
    }

    /// (wr_id, status) of all receive completions, taken off the queue.
    pub(crate) fn received(&mut self) -> Vec<(u64, WcStatus)> {
        self.env.recvs.drain(..).map(|c| (c.wr_id, c.status)).collect()
    }
}

/// How the queue pairs are set up.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) ty: QpType,
    pub(crate) mtu: Mtu,
    pub(crate) srq: bool,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    /// First PSN from node 0 and from node 1.
    pub(crate) psns: [u32; 2],
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            ty: QpType::Rc,
            mtu: Mtu::M1024,
            srq: false,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            psns: [0xff_fff0, 0x00_1234],
        }
    }
}

/// What the pipe does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    Twice,
    Late(Duration),
}

type Judge = Box<dyn FnMut(usize, &RocePacket<'_>) -> Fate>;

/// Two nodes and the pipe.
pub(crate) struct Bench {
    pub(crate) nodes: [Node; 2],
    pub(crate) now: Instant,
    pub(crate) setup: Setup,
    /// Arrival, order of sending, destination, bytes and how they were addressed.
    flying: Vec<(Instant, u64, usize, Vec<u8>, PacketMeta)>,
    order: u64,
    pub(crate) judge: Judge,
    /// Everything sent: sender and packet bytes.
    pub(crate) log: Vec<(usize, Vec<u8>)>,
    pub(crate) max_segments: usize,
}

pub(crate) const QPNS: [u32; 2] = [0x11, 0x22];
const IPS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
pub(crate) const QKEY: QKey = QKey(0x1122_3344);

impl Bench {
    /// Both queue pairs in RTS.
    pub(crate) fn new(setup: Setup) -> Bench {
        let mut bench = Bench::unconnected(setup);
        for at in 0..2 {
            bench.init(at);
            bench.ready_to_receive(at);
            bench.ready_to_send(at);
        }
        bench
    }

    pub(crate) fn rc() -> Bench {
        Bench::new(Setup::default())
    }

    /// Both queue pairs in RESET.
    pub(crate) fn unconnected(setup: Setup) -> Bench {
        let nodes = [Node::new(IPS[0], QPNS[0], &setup), Node::new(IPS[1], QPNS[1], &setup)];
        Bench {
            nodes,
            now: Instant::now(),
            setup,
            flying: Vec::new(),
            order: 0,
            judge: Box::new(|_, _| Fate::Deliver),
            log: Vec::new(),
            max_segments: 64,
        }
    }

    pub(crate) fn path(&self, at: usize) -> Path {
        Path::new(self.nodes[at].ip, self.nodes[1 - at].ip, 0xc123)
    }

    pub(crate) fn init(&mut self, at: usize) {
        let connected = self.setup.ty != QpType::Ud;
        let attr = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: connected.then_some(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC),
            qkey: (!connected).then_some(QKEY),
            ..QpAttr::to(QpState::Init)
        };
        self.nodes[at].modify(&attr);
    }

    pub(crate) fn ready_to_receive(&mut self, at: usize) {
        let (connected, rc) = (self.setup.ty != QpType::Ud, self.setup.ty == QpType::Rc);
        let mut attr = QpAttr::to(QpState::Rtr);
        if connected {
            attr.path = Some(self.path(at));
            attr.path_mtu = Some(self.setup.mtu);
            attr.dest_qp = Some(Qpn::new(QPNS[1 - at]));
            attr.rq_psn = Some(Psn::new(self.setup.psns[1 - at]));
        }
        if rc {
            attr.max_dest_rd_atomic = Some(self.setup.rd_atomic);
            attr.min_rnr_timer = Some(self.setup.min_rnr_timer);
        }
        self.nodes[at].modify(&attr);
    }

    pub(crate) fn ready_to_send(&mut self, at: usize) {
        let mut attr = QpAttr { sq_psn: Some(Psn::new(self.setup.psns[at])), ..QpAttr::to(QpState::Rts) };
        if self.setup.ty == QpType::Rc {
            attr.timeout = Some(self.setup.timeout);
            attr.retry_cnt = Some(self.setup.retry_cnt);
            attr.rnr_retry = Some(self.setup.rnr_retry);
            attr.max_rd_atomic = Some(self.setup.rd_atomic);
        }
        self.nodes[at].modify(&attr);
    }

    /// Takes what both nodes have to send and puts it into the pipe.
    pub(crate) fn transmit(&mut self) {
        let mut burst = Burst::new(self.max_segments);
        for (at, qpn) in QPNS.into_iter().enumerate() {
            let mut polls = 0;
            loop {
                let node = &mut self.nodes[at];
                if !node.qp.poll_transmit(&mut node.env, self.now, &mut burst) {
                    break;
                }
                polls += 1;
                assert!(polls < 10_000, "poll_transmit never ends");
                assert!(burst.bytes().len() <= 65_507 && burst.packets() <= 64);
                self.launch(at, &burst);
            }
            // The device would poll these again; there is one queue pair, which has just been polled.
            let peer = self.nodes[1 - at].ip;
            let env = &mut self.nodes[at].env;
            env.window(peer).forget(Qpn::new(qpn));
            env.read_window.forget(Qpn::new(qpn));
        }
    }

    fn launch(&mut self, at: usize, burst: &Burst) {
        let path = *burst.path().unwrap();
        let to = if path.dst == self.nodes[0].ip { 0 } else { 1 };
        for (id, segment) in burst.segments().enumerate() {
            self.log.push((at, segment.to_vec()));
            let packet = RocePacket::parse(segment).unwrap();
            check_icrc(&path, id as u16, segment);
            let meta = PacketMeta {
                link: PathLink::Udp,
                src: path.src,
                dst: path.dst,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                ip_id: id as u16,
                udp_payload_len: segment.len() as u16,
                flow_label: 0,
                dlid_path_bits: 0,
            };
            let arrivals: &[Duration] = match (self.judge)(at, &packet) {
                Fate::Deliver => &[DELAY],
                Fate::Drop => &[],
                Fate::Twice => &[DELAY, DELAY],
                Fate::Late(by) => &[DELAY + by],
            };
            for delay in arrivals {
                self.order += 1;
                self.flying.push((self.now + *delay, self.order, to, segment.to_vec(), meta));
            }
        }
    }

    /// Delivers what arrives next, or lets the next timer run out. False: nothing will ever happen again.
    pub(crate) fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.flying.iter().map(|f| f.0).min();
        let timers = [0, 1].map(|at| self.nodes[at].qp.poll_timeout());
        let timer = timers.into_iter().flatten().min();
        let Some(next) = arrival.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        if arrival.is_some_and(|t| t <= self.now) {
            self.deliver_due();
        }
        for (node, timer) in self.nodes.iter_mut().zip(timers) {
            if timer.is_some_and(|t| t <= self.now) {
                node.qp.handle_timeout(&mut node.env, self.now);
            }
        }
        true
    }

    fn deliver_due(&mut self) {
        let now = self.now;
        let mut due: Vec<_> = Vec::new();
        self.flying.retain_mut(|f| {
            let is_due = f.0 <= now;
            if is_due {
                due.push((f.0, f.1, f.2, std::mem::take(&mut f.3), f.4));
            }
            !is_due
        });
        due.sort_by_key(|f| (f.0, f.1));
        for (_, _, to, bytes, meta) in due {
            self.inject(to, &bytes, &meta);
        }
    }

    pub(crate) fn inject(&mut self, to: usize, bytes: &[u8], meta: &PacketMeta) {
        let packet = RocePacket::parse(bytes).unwrap();
        let node = &mut self.nodes[to];
        node.qp.handle_packet(&mut node.env, self.now, &packet, meta);
    }

    /// Hands node `to` a packet as if its peer had sent it.
    pub(crate) fn forge(&mut self, to: usize, packet: &RocePacket<'_>) {
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        let meta = PacketMeta {
            link: PathLink::Udp,
            src: self.nodes[1 - to].ip,
            dst: self.nodes[to].ip,
            traffic_class: 0,
            hop_limit: 64,
            ip_id: 0,
            udp_payload_len: bytes.len() as u16,
            flow_label: 0,
            dlid_path_bits: 0,
        };
        self.inject(to, &bytes, &meta);
    }

    /// Runs until nothing more can happen.
    pub(crate) fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "the bench never comes to rest");
        }
    }

    /// Runs until nothing more can happen or this much time has passed.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while self.now < end && self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "the bench spins");
        }
    }

    /// Opcode names of what node `at` sent, in order, and empties the log.
    pub(crate) fn opcodes(&mut self, at: usize) -> Vec<&'static str> {
        let log = std::mem::take(&mut self.log);
        let of_node = log.iter().filter(|(from, _)| *from == at);
        of_node.map(|(_, bytes)| RocePacket::parse(bytes).unwrap().bth.opcode.name()).collect()
    }

    /// Asserts what must hold once everything was acknowledged: no window units are held.
    pub(crate) fn assert_idle(&mut self) {
        for node in &mut self.nodes {
            assert!(node.env.windows.values().all(|w| w.in_flight() == 0));
            assert_eq!(node.env.read_window.in_flight(), 0);
            assert_eq!(node.qp.sends_outstanding(), 0);
        }
    }
}

fn check_icrc(path: &Path, id: u16, segment: &[u8]) {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (path.src, path.dst) else { return };
    let net = IcrcV4 { src, dst, id, flags_frag: 0x4000, src_port: path.src_port };
    let (body, tail) = segment.split_at(segment.len() - 4);
    assert_eq!(tail, icrc_v4(&net, body).to_le_bytes());
}

/// Bytes that tell one offset from another.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i * 31 + i / 251 + seed * 97) % 253) as u8).collect()
}

pub(crate) fn ok(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}

pub(crate) fn write(wr_id: u64, from: Sge, remote: Remote) -> SendWr {
    SendWr::new(wr_id, SendOp::Write { remote }).with_sges([from])
}

pub(crate) fn read(wr_id: u64, into: Sge, remote: Remote) -> SendWr {
    SendWr::new(wr_id, SendOp::Read { remote }).with_sges([into])
}

pub(crate) fn send(wr_id: u64, from: Sge) -> SendWr {
    SendWr::new(wr_id, SendOp::Send).with_sges([from])
}
