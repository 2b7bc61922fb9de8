//! Packets that no honest peer sends, by seed: nothing panics, nothing grows without bound, and what was not asked for is
//! not done.

use everywire_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Opcode, Reth, Syndrome};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::*;

static PAYLOAD: [u8; 4096] = [0x5a; 4096];

/// A packet with a known opcode and extreme or random fields.
fn packet(rng: &mut ChaCha8Rng, near: [Psn; 2], service: u8) -> RocePacket<'static> {
    let opcode = loop {
        let op = Opcode(service | (rng.next_u32() % 24) as u8);
        if op.is_known() {
            break op;
        }
    };
    let psn = near[rng.next_u32() as usize % 2].add(rng.next_u32() % 9).sub(4);
    let psn = if rng.next_u32().is_multiple_of(20) { Psn::new(rng.next_u32()) } else { psn };
    let lens = [0, 1, 4, 255, 256, 1000, 1024, 1025, 4096];
    let len = if opcode.has_payload() { lens[rng.next_u32() as usize % lens.len()] } else { 0 };
    let vas = [BASE, BASE + 1, BASE + LEN as u64 - 8, 0, u64::MAX, u64::MAX - 7];
    let va = vas[rng.next_u32() as usize % vas.len()];
    let lengths = [0, 1, 8, 1024, 5000, LEN as u32, 0x8000_0000, 0x8000_0001, u32::MAX];
    let rkey = RKey(if rng.next_u32().is_multiple_of(4) { rng.next_u32() } else { 0x1000 });
    let bth = Bth {
        opcode,
        solicited: rng.next_u32().is_multiple_of(2),
        ack_req: rng.next_u32().is_multiple_of(2),
        psn,
        dest_qp: Qpn::new(QPNS[0]),
        ..Bth::default()
    };
    RocePacket {
        bth,
        deth: opcode.has_deth().then(|| Deth { qkey: QKEY, reserved: 0, src_qp: Qpn::new(rng.next_u32()) }),
        reth: opcode.has_reth().then(|| Reth {
            va,
            rkey,
            length: lengths[rng.next_u32() as usize % lengths.len()],
        }),
        aeth: opcode
            .has_aeth()
            .then(|| Aeth { syndrome: Syndrome(rng.next_u32() as u8), msn: rng.next_u32() }),
        atomic_eth: opcode.has_atomic_eth().then_some(AtomicEth { va, rkey, swap_add: 1, compare: 0 }),
        atomic_ack: opcode.has_atomic_ack_eth().then_some(AtomicAckEth { original: 7 }),
        immdt: opcode.has_immdt().then_some(ImmDt(1)),
        ieth: opcode.has_ieth().then_some(Ieth { rkey: RKey(rng.next_u32() & 0xffff) }),
        payload: &PAYLOAD[..len],
        pad: &PAYLOAD[..(4 - len % 4) % 4],
        ..RocePacket::default()
    }
}

fn barrage(seed: u64, ty: QpType) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let service = match ty {
        QpType::Rc => 0x00,
        QpType::Uc => 0x20,
        QpType::Ud => 0x60,
    };
    let mut bench = Bench::new(Setup { ty, mtu: Mtu::M256, rd_atomic: 3, ..Setup::default() });
    bench.judge = Box::new(|_, _| Fate::Drop);
    let near = [bench.setup.psns[1], bench.setup.psns[0]].map(Psn::new);
    for id in 0..10 {
        bench.nodes[0].recv(id, 0, 2000);
        if ty == QpType::Rc {
            let (sge, remote) = (bench.nodes[0].sge(0, 700), bench.nodes[1].remote(0));
            bench.nodes[0].send(if id % 2 == 0 { write(id, sge, remote) } else { read(id, sge, remote) });
        }
    }
    for n in 0..300 {
        // All but every eighth is let pile up without a chance to answer.
        if n % 8 == 0 {
            bench.transmit();
            bench.now += Duration::from_micros(300);
            let now = bench.now;
            let node = &mut bench.nodes[0];
            node.qp.handle_timeout(&mut node.env, now);
        }
        let packet = packet(&mut rng, near, service);
        bench.forge(0, &packet);
        let node = &bench.nodes[0];
        let done = node.env.recvs.len() + node.qp.receives_outstanding();
        assert!(done <= 10 + 1, "seed {seed}: {done} receives of ten");
        assert!(node.env.sends.len() + node.qp.sends_outstanding() <= 10);
    }
    bench.nodes[0].modify(&QpAttr::to(QpState::Err));
    let ids: Vec<u64> = bench.nodes[0].received().iter().map(|r| r.0).collect();
    assert_eq!(ids, Vec::from_iter(0..10), "seed {seed}: each receive once, in order");
    if ty == QpType::Rc {
        let ids: Vec<u64> = bench.nodes[0].sent().iter().map(|r| r.0).collect();
        assert_eq!(ids, Vec::from_iter(0..10), "seed {seed}: each send once, in order");
    }
    bench.transmit();
    bench.nodes[1].modify(&QpAttr::to(QpState::Err));
    bench.assert_idle();
}

#[test]
fn a_barrage_of_nonsense() {
    for seed in 0..600 {
        for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
            barrage(seed, ty);
        }
    }
}

/// A flood of repeated READ requests, none answered yet, holds no more than one answer for each that was agreed.
#[test]
fn repeated_reads_do_not_pile_up() {
    let mut bench = Bench::new(Setup { rd_atomic: 2, ..Setup::default() });
    let bth = Bth { opcode: Opcode::RC_READ_REQUEST, ..Bth::default() };
    let mut packet = RocePacket { bth, ..RocePacket::default() };
    let first = Psn::new(bench.setup.psns[1]);
    for n in 0..2u32 {
        packet.bth.psn = first.add(n * 64);
        packet.reth = Some(Reth { va: BASE, rkey: RKey(0x1000), length: 65_536 });
        bench.forge(0, &packet);
    }
    for round in 0..1000u32 {
        let skip = round % 64;
        packet.bth.psn = first.add(skip);
        let length = (round % 7 + 1) * 100;
        packet.reth = Some(Reth { va: BASE + u64::from(skip) * 1024, rkey: RKey(0x1000), length });
        bench.forge(0, &packet);
    }
    bench.judge = Box::new(|_, _| Fate::Drop);
    bench.transmit();
    assert!(bench.log.len() <= 2 * 64 + 1, "{} packets", bench.log.len());
}
