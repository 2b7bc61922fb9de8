//! A whole device on a wire without IP: RoCE v1 frames and InfiniBand packets from a peer whose numbers the attacker knows, varied,
//! and signed if the script says so. No bytes make the device panic; every work request posted completes exactly once.
//!
//! An input's first byte says how much of the genuine exchange goes by between two attacks; the rest are attacks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_fuzz::target;
use everywire_verbs::{
    Access, Cq, Device, DeviceConfig, Frame, Gid, Guid, IbPort, Lid, LocalRoute, MemoryRegion, Mtu, Path,
    PathLink, Psn, QKey, Qp, QpAttr, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, Transmit, UdDest,
};
use everywire_wire::icrc::{icrc_grh, icrc_ib};
use everywire_wire::vcrc::vcrc;

const QKEY: QKey = QKey(0x1234);
/// Packets after the script: more would mean that the devices never come to rest.
const ROUNDS: usize = 5_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    RoceV1,
    Ib,
}

struct Side {
    device: Device,
    cq: Cq,
    region: MemoryRegion,
    qps: [Qp; 2],
    ip: IpAddr,
    lid: Lid,
    seen: BTreeMap<u64, u32>,
}

impl Side {
    fn new(kind: Kind, at: u8, now: Instant) -> Side {
        let guid = Guid(0x10 + u64::from(at));
        let (config, ip): (_, IpAddr) = match kind {
            Kind::RoceV1 => {
                let ip = [10, 0, 0, 1 + at].into();
                (DeviceConfig::roce_v1(ip), ip)
            }
            Kind::Ib => (DeviceConfig::infiniband(guid, Vec::new()), Gid::link_local(guid).to_ip()),
        };
        let device = Device::new(DeviceConfig { seed: at.into(), ..config });
        let lid = Lid(1 + u16::from(at));
        if kind == Kind::Ib {
            let port = IbPort { active: true, lid, sm_lid: Lid(9), ..IbPort::default() };
            device.drive().ib_port(now, port);
        }
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = pd.register(8 << 10, all).unwrap();
        let qps = [QpType::Rc, QpType::Ud].map(|ty| pd.create_qp(&QpInit::new(ty, &cq)).unwrap());
        Side { device, cq, region, qps, ip, lid, seen: BTreeMap::new() }
    }

    fn path(&self, kind: Kind, peer: &Side, grh: bool) -> Path {
        let (slid, dlid) = (self.lid, peer.lid);
        let link = match kind {
            Kind::RoceV1 => PathLink::Grh,
            Kind::Ib => PathLink::Lrh(LocalRoute { slid, dlid, sl: 0, grh, static_rate: 0 }),
        };
        Path::new(self.ip, peer.ip, 0).over(link)
    }

    fn start(&self, kind: Kind, peer: &Side, grh: bool) {
        let [rc, ud] = &self.qps;
        rc.to_init(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).unwrap();
        rc.modify(&QpAttr {
            path: Some(self.path(kind, peer, grh)),
            path_mtu: Some(Mtu::M256),
            dest_qp: Some(peer.qps[0].qpn()),
            rq_psn: Some(Psn::new(5)),
            max_dest_rd_atomic: Some(2),
            min_rnr_timer: Some(1),
            ..QpAttr::to(QpState::Rtr)
        })
        .unwrap();
        rc.modify(&QpAttr {
            sq_psn: Some(Psn::new(5)),
            timeout: Some(8),
            retry_cnt: Some(2),
            rnr_retry: Some(2),
            max_rd_atomic: Some(2),
            ..QpAttr::to(QpState::Rts)
        })
        .unwrap();
        let (pkey_index, port, qkey) = (Some(0), Some(1), Some(QKEY));
        ud.modify(&QpAttr { pkey_index, port, qkey, ..QpAttr::to(QpState::Init) }).unwrap();
        ud.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        ud.modify(&QpAttr { sq_psn: Some(Psn::new(5)), ..QpAttr::to(QpState::Rts) }).unwrap();
        let remote = peer.region.remote(0);
        let sge = self.region.sge(1024..1724);
        for id in 0..4 {
            self.qps[usize::from(id > 2)].post_recv(RecvWr::new(id, [self.region.sge(2048..3000)])).unwrap();
        }
        for (id, op) in (10..).zip([SendOp::Send, SendOp::Write { remote }, SendOp::Read { remote }]) {
            rc.post_send(SendWr::new(id, op).with_sges([sge])).unwrap();
        }
        let dest = UdDest { path: self.path(kind, peer, grh), qpn: peer.qps[1].qpn(), qkey: QKEY };
        let wr = SendWr::new(20, SendOp::Send).with_sges([self.region.sge(0..64)]);
        ud.post_send(SendWr { ud: Some(dest), ..wr }).unwrap();
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.cq.poll(&mut done, usize::MAX).unwrap();
        for wc in done {
            *self.seen.entry(wc.wr_id).or_default() += 1;
        }
    }
}

struct Bench {
    kind: Kind,
    now: Instant,
    sides: [Side; 2],
    flying: Vec<(usize, Vec<u8>)>,
    heard: Vec<(usize, Vec<u8>)>,
    transmit: Transmit,
}

impl Bench {
    fn new(kind: Kind, grh: bool) -> Bench {
        let now = Instant::now();
        let sides = [Side::new(kind, 0, now), Side::new(kind, 1, now)];
        sides[0].start(kind, &sides[1], grh);
        sides[1].start(kind, &sides[0], grh);
        let (flying, heard) = (Vec::new(), Vec::new());
        let mut bench = Bench { kind, now, sides, flying, heard, transmit: Transmit::default() };
        bench.drain();
        bench
    }

    fn drain(&mut self) {
        for at in 0..2 {
            let mut drive = self.sides[at].device.drive();
            while drive.poll_command().is_some() {}
            while drive.poll_transmit(self.now, &mut self.transmit) {
                for bytes in self.transmit.segments() {
                    let packet = (1 - at, bytes.to_vec());
                    if self.heard.len() < 64 {
                        self.heard.push(packet.clone());
                    }
                    self.flying.push(packet);
                }
            }
            drop(drive);
            self.sides[at].poll();
        }
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let frame = match self.kind {
            Kind::RoceV1 => Frame::RoceV1(bytes),
            Kind::Ib => Frame::InfiniBand(bytes),
        };
        self.sides[to].device.drive().handle_frame(self.now, frame);
        self.drain();
    }

    /// The sums that the bytes should have.
    fn sign(&self, bytes: &mut [u8]) {
        let tail = if self.kind == Kind::Ib { 2 } else { 0 };
        let Some(end) = bytes.len().checked_sub(4 + tail) else { return };
        let icrc = match self.kind {
            Kind::RoceV1 if end >= 40 => {
                let (grh, body) = bytes[..end].split_at(40);
                Some(icrc_grh(grh.try_into().unwrap(), body))
            }
            Kind::RoceV1 => None,
            Kind::Ib => icrc_ib(&bytes[..end]),
        };
        if let Some(icrc) = icrc {
            bytes[end..end + 4].copy_from_slice(&icrc.to_le_bytes());
        }
        if tail > 0 {
            let sum = vcrc(&bytes[..end + 4]);
            bytes[end + 4..].copy_from_slice(&sum.to_le_bytes());
        }
    }

    fn genuine(&mut self) -> bool {
        if self.flying.is_empty() {
            return false;
        }
        let (to, bytes) = self.flying.remove(0);
        self.deliver(to, &bytes);
        true
    }

    /// A genuine packet, a few of its bytes changed, cut or made longer; signed or not.
    fn attack(&mut self, script: &[u8]) {
        let [which, how, cut, changes @ ..] = script else { return };
        let (to, mut bytes) = self.heard[usize::from(*which) % self.heard.len()].clone();
        for change in changes.chunks_exact(2) {
            let at = usize::from(change[0]) % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= change[1];
            }
        }
        match how % 4 {
            0 => bytes.truncate(usize::from(*cut)),
            1 => bytes.extend(std::iter::repeat_n(*cut, usize::from(*cut) * 4)),
            _ => {}
        }
        if how & 0x10 == 0 {
            self.sign(&mut bytes);
        }
        self.deliver(to, &bytes);
        if how & 0x20 != 0 {
            self.pass(Duration::from_micros(1 << (how % 16)));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for side in &self.sides {
            side.device.drive().handle_timeout(self.now);
        }
        self.drain();
    }

    fn finish(mut self) {
        for _ in 0..ROUNDS {
            if self.genuine() {
                continue;
            }
            match self.sides.iter().filter_map(|side| side.device.drive().poll_timeout()).min() {
                Some(due) if due < self.now + Duration::from_secs(1) => {
                    self.pass(due.saturating_duration_since(self.now));
                }
                _ => break,
            }
        }
        for side in &self.sides {
            side.qps.iter().for_each(|qp| qp.to_error().unwrap());
        }
        self.drain();
        for side in &self.sides {
            for id in (0..4).chain(10..13).chain([20]) {
                assert_eq!(side.seen.get(&id), Some(&1), "{id} of {}", side.ip);
            }
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![0], vec![1; 20], vec![0x80; 20]];
    for at in 0..40u8 {
        // Bytes of LRH, GRH, BTH and what follows, wherever the packet has them.
        seeds.push(vec![at % 4, at, 2, 0, at, 1, at + 12, 0x80, at, 0x22, 10 + at, 8, 0x40, 28 + at, 3]);
        seeds.push(vec![2, at, 0, at * 3, 0, 0, 0, 0, at, 1, at, 41, 1, 42, 1]);
    }
    seeds
}

fn play(kind: Kind, bytes: &[u8]) {
    let [how, script @ ..] = bytes else { return };
    let mut bench = Bench::new(kind, how & 0x80 != 0);
    for attack in script.chunks(7) {
        for _ in 0..how % 8 {
            bench.genuine();
        }
        bench.attack(attack);
    }
    bench.finish();
}

target!(roce_v1_frames, seeds(), |bytes| play(Kind::RoceV1, bytes));
target!(ib_frames, seeds(), |bytes| play(Kind::Ib, bytes));

#[test]
fn without_an_attacker_everything_succeeds() {
    for (kind, grh) in [(Kind::RoceV1, true), (Kind::Ib, false), (Kind::Ib, true)] {
        let mut bench = Bench::new(kind, grh);
        while bench.genuine() {}
        for side in &bench.sides {
            // One SEND and one datagram take a receive each; all sends are done.
            let done: Vec<u64> = side.seen.keys().copied().collect();
            assert_eq!(done, [0, 3, 10, 11, 12, 20]);
        }
        bench.finish();
    }
}
