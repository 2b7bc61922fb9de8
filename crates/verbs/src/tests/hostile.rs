//! A peer that says anything: right ICRCs over everything else at random, to queue pairs of every service and state. And
//! RX-13: queue pairs destroyed at any moment, with timers armed.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use everywire_transport::ib::{Burst, Path};
use everywire_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Opcode, Reth, RocePacket, Syndrome,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::test_support::*;
use crate::*;

/// Packets of one run.
const PACKETS: usize = 20_000;

struct Peer {
    rng: ChaCha8Rng,
    qpns: Vec<Qpn>,
    keys: Vec<RKey>,
    addrs: Vec<u64>,
    burst: Burst,
}

impl Peer {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.next_u32() as usize % from.len()]
    }

    fn word(&mut self) -> u64 {
        let near = self.rng.next_u64() % 10_000;
        match self.rng.next_u32() % 4 {
            0 => self.rng.next_u64(),
            1 => near,
            2 => u64::MAX - near,
            _ => {
                let addrs = self.addrs.clone();
                self.pick(&addrs).wrapping_add(near)
            }
        }
    }

    fn key(&mut self) -> RKey {
        let keys = self.keys.clone();
        if self.rng.next_u32().is_multiple_of(3) { RKey(self.rng.next_u32()) } else { self.pick(&keys) }
    }

    /// Headers as the opcode wants them, with anything in them.
    fn headers(&mut self) -> RocePacket<'static> {
        let opcode = loop {
            let opcode = Opcode(self.rng.next_u32() as u8);
            if RocePacket::models(opcode) {
                break opcode;
            }
        };
        let qpns = self.qpns.clone();
        // PSNs close to the expected ones reach further in than any others.
        let psn = Psn::new(0xff_fffe).add(self.rng.next_u32() % 6).sub(self.rng.next_u32() % 4);
        let flags = self.rng.next_u32();
        let bth = Bth {
            opcode,
            solicited: flags & 1 != 0,
            mig_req: flags & 2 != 0,
            ack_req: flags & 4 != 0,
            fecn: flags & 8 != 0,
            becn: flags & 16 != 0,
            pkey: if flags & 0xe0 == 0 { PKey(flags as u16) } else { PKey::DEFAULT },
            dest_qp: self.pick(&qpns),
            psn,
            ..Bth::default()
        };
        let (va, length) = (self.word(), (self.word() >> (self.rng.next_u32() % 33)) as u32);
        let qkey = if flags & 0x700 == 0 { QKey(flags) } else { QKEY };
        RocePacket {
            bth,
            deth: opcode.has_deth().then(|| Deth { qkey, reserved: 0, src_qp: Qpn::new(flags) }),
            reth: opcode.has_reth().then(|| Reth { va, rkey: self.key(), length }),
            aeth: opcode.has_aeth().then_some(Aeth { syndrome: Syndrome(flags as u8), msn: flags >> 8 }),
            atomic_eth: opcode.has_atomic_eth().then(|| AtomicEth {
                va,
                rkey: self.key(),
                swap_add: 1,
                compare: 0,
            }),
            atomic_ack: opcode.has_atomic_ack_eth().then_some(AtomicAckEth { original: va }),
            immdt: opcode.has_immdt().then_some(ImmDt(flags)),
            ieth: opcode.has_ieth().then(|| Ieth { rkey: self.key() }),
            ..RocePacket::default()
        }
    }

    fn packet(&mut self, src: IpAddr, dst: IpAddr) -> Packet {
        let headers = self.headers();
        let length = match self.rng.next_u32() % 5 {
            0 => 0,
            1 => 1024,
            2 => 256,
            3 => self.rng.next_u32() as usize % 10,
            _ => self.rng.next_u32() as usize % 4097,
        };
        self.burst.clear();
        let fill = |out: &mut [u8]| {
            out.fill(0xee);
            Ok::<(), ()>(())
        };
        self.burst.push(&Path::new(src, dst, DEFAULT_SOURCE_PORT), &headers, length, fill).unwrap();
        let bytes = self.burst.bytes().to_vec();
        Packet { src: SocketAddr::new(src, DEFAULT_SOURCE_PORT), dst, tos: 0, ttl: 64, ip_id: 0, bytes }
    }
}

#[test]
fn a_peer_may_say_anything() {
    for seed in 0..4 {
        let mut net = Net::pair();
        let (device, other) = (net.devices[0].clone(), net.devices[1].clone());
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100_000).unwrap();
        // Three regions, the middle one not for peers: no byte of it may ever change.
        let open = pd.register(8192, all_access()).unwrap();
        let closed = pd.register(8192, Access::LOCAL_WRITE).unwrap();
        let read_only = pd.register(8192, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        let foreign = device.alloc_pd().unwrap().register(8192, all_access()).unwrap();
        let mut qps = Vec::new();
        for ty in [QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Uc, QpType::Ud, QpType::Ud] {
            let qp = pd.create_qp(&QpInit::new(ty, &cq)).unwrap();
            if ty == QpType::Ud {
                open_ud(&qp);
            } else {
                let steps = rc_steps(device.gids()[0].ip, other.gids()[0].ip, Qpn::new(99), ty);
                let steps = &steps[..if qps.len() == 2 { 2 } else { 3 }]; // one stays in RTR
                steps.iter().for_each(|attr| qp.modify(attr).unwrap());
            }
            qp.post_recv_list((0..32).map(|n| RecvWr::new(n, [open.sge(4096..)]))).unwrap();
            qps.push(qp);
        }
        let read = SendOp::Read { remote: Remote { addr: 1, rkey: RKey(1) } };
        qps[0].post_send(SendWr::new(1, read).with_sges([open.sge(..2048)])).unwrap();
        let mut qpns: Vec<Qpn> = qps.iter().map(Qp::qpn).collect();
        qpns.extend([Qpn::GSI, Qpn::SMI, Qpn::MULTICAST, Qpn::new(0x55_5555)]);
        let mut peer = Peer {
            rng: ChaCha8Rng::seed_from_u64(seed),
            qpns,
            keys: [&open, &closed, &read_only, &foreign].map(MemoryRegion::rkey).to_vec(),
            addrs: [&open, &closed, &read_only, &foreign].map(MemoryRegion::addr).to_vec(),
            burst: Burst::default(),
        };
        let (src, dst) = (other.gids()[0].ip, device.gids()[0].ip);
        for round in 0..PACKETS {
            let packet = peer.packet(src, dst);
            device.drive().handle_datagram(net.now, packet.datagram());
            if round % 64 == 0 {
                net.drain();
                net.wire.clear();
                net.now += Duration::from_micros(500);
                device.drive().handle_timeout(net.now);
            }
            if round % 512 == 0 {
                revive(&qps, &device, &other);
            }
        }
        for region in [&closed, &read_only, &foreign] {
            assert_eq!(region.read_vec(0, 8192).unwrap(), vec![0; 8192]);
        }
        let counters = device.counters();
        assert!(counters.get(Counter::RcvdPkts) > 1000, "the test reaches the queue pairs");
        assert!(
            counters.get(Counter::RxWriteRequests) > 0 && counters.get(Counter::RespRemoteAccessErrors) > 0
        );
        assert_eq!(counters.device(DeviceCounter::IcrcErrors), 0);
        assert_eq!(counters.device(DeviceCounter::DropMalformed), 0, "every packet is well-formed by itself");
    }
}

/// Brings queue pairs that fell into ERR back.
fn revive(qps: &[Qp], device: &Device, other: &Device) {
    for qp in qps.iter().filter(|qp| qp.state() == QpState::Err) {
        qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        let steps = rc_steps(device.gids()[0].ip, other.gids()[0].ip, Qpn::new(99), qp.ty());
        match qp.ty() {
            QpType::Ud => open_ud(qp),
            _ => steps.iter().for_each(|attr| qp.modify(attr).unwrap()),
        }
    }
}

#[test]
fn queue_pairs_may_be_destroyed_at_any_moment() {
    // RX-13: retransmission and RNR timers armed, packets of both directions under way.
    let mut net = Net::pair();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for round in 0..2000u64 {
        let a = Side::new(&net.devices[0], QpType::Rc);
        let b = Side::new(&net.devices[1], QpType::Rc);
        connect(&a.qp, &b.qp);
        if round % 3 == 0 {
            b.qp.post_recv(RecvWr::new(9, [b.mr.sge(..4096)])).unwrap(); // else: receiver not ready
        }
        let ops =
            [SendOp::Write { remote: b.mr.remote(0) }, SendOp::Send, SendOp::Read { remote: b.mr.remote(0) }];
        for (n, op) in ops.into_iter().enumerate() {
            a.qp.post_send(SendWr::new(n as u64, op).with_sges([a.mr.sge(..3000)])).unwrap();
        }
        let mut late = None;
        for step in 0..rng.next_u32() % 24 {
            match rng.next_u32() % 4 {
                0 => _ = net.drain(),
                1 => _ = net.deliver_one(),
                2 => _ = net.next_deadline(net.now + Duration::from_millis(100)),
                _ if step > 12 => late = Some(()),
                _ => {}
            }
        }
        let Side { qp, cq, .. } = a;
        drop(qp);
        let mut out = Vec::new();
        cq.poll(&mut out, 100).unwrap();
        if late.is_some() {
            drop(b);
        }
        net.settle();
        assert_eq!(cq.poll(&mut out, 100), Ok(0), "a completion after the end");
    }
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.devices[0].usage(), Usage::default());
    assert_eq!(net.devices[1].usage(), Usage::default());
    assert_eq!(net.deadline(), None);
}
