//! RC under loss, duplication, reordering and delay, by seed: every work request completes once, in order, with the right
//! bytes; nothing spins, and nothing stays in flight. Cases RX-05.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::*;

/// Faults in thousandths.
#[derive(Clone, Copy, Debug)]
struct Rates {
    loss: u32,
    twice: u32,
    late: u32,
}

/// Where node 0's operation `i` works, in either node's memory: its own stretch.
const STRETCH: u64 = 12_000;
const OPS: u64 = 60;

/// One operation and what the memories must hold after it.
struct Op {
    kind: u32,
    len: u32,
}

fn faulty(bench: &mut Bench, seed: u64, rates: Rates) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x9e37_79b9);
    bench.judge = Box::new(move |_, _| match rng.next_u32() % 1000 {
        n if n < rates.loss => Fate::Drop,
        n if n < rates.loss + rates.twice => Fate::Twice,
        n if n < rates.loss + rates.twice + rates.late => {
            Fate::Late(Duration::from_micros(u64::from(rng.next_u32() % 40)))
        }
        _ => Fate::Deliver,
    });
}

/// Posts a random mix at node 0, answers included, and gives what was posted.
fn post_mix(bench: &mut Bench, rng: &mut ChaCha8Rng) -> Vec<Op> {
    let mut ops = Vec::new();
    for wr_id in 0..OPS {
        let op = Op { kind: rng.next_u32() % 7, len: rng.next_u32() % STRETCH as u32 };
        let at = wr_id * STRETCH;
        let mut data = pattern(wr_id + 1, op.len as usize);
        let (here, there) = (bench.nodes[0].sge(at, op.len), bench.nodes[1].remote(at));
        let range = at as usize..at as usize + op.len as usize;
        if op.kind == 4 {
            bench.nodes[1].bytes()[range].copy_from_slice(&data);
        } else {
            bench.nodes[0].bytes()[range].copy_from_slice(&data);
        }
        let send_op = match op.kind {
            0 => SendOp::Send,
            1 => SendOp::SendImm(wr_id as u32),
            2 => SendOp::Write { remote: there },
            3 => SendOp::WriteImm { remote: there, imm: wr_id as u32 },
            4 => SendOp::Read { remote: there },
            // Every one adds to the same counter, so that an atomic executed twice or never shows.
            5 => SendOp::FetchAdd { remote: bench.nodes[1].remote(LEN as u64 - 8), add: 1 },
            _ => SendOp::CompareSwap {
                remote: bench.nodes[1].remote(LEN as u64 - 16),
                compare: wr_id,
                swap: wr_id,
            },
        };
        if matches!(op.kind, 0 | 1 | 3) {
            bench.nodes[1].recv(wr_id, at, STRETCH as u32);
        }
        let mut wr = SendWr::new(wr_id, send_op);
        wr.sges.push(if op.kind >= 5 { bench.nodes[0].sge(at, 8) } else { here });
        wr.fence = rng.next_u32().is_multiple_of(4);
        bench.nodes[0].send(wr);
        data.clear();
        ops.push(op);
    }
    ops
}

fn check_mix(bench: &mut Bench, ops: &[Op], seed: u64) {
    assert_eq!(bench.nodes[0].sent(), ok(0..OPS), "seed {seed}");
    let receives: Vec<u64> = (0..OPS).filter(|i| matches!(ops[*i as usize].kind, 0 | 1 | 3)).collect();
    let wcs: Vec<Completion> = bench.nodes[1].env.recvs.drain(..).collect();
    assert_eq!(wcs.iter().map(|c| c.wr_id).collect::<Vec<_>>(), receives, "seed {seed}");
    assert!(wcs.iter().all(|c| c.status == WcStatus::Success && c.byte_len == ops[c.wr_id as usize].len));
    let mut adds = 0;
    for (i, op) in ops.iter().enumerate() {
        let (at, len) = (i * STRETCH as usize, op.len as usize);
        if op.kind < 5 {
            let data = pattern(i as u64 + 1, len);
            assert!(bench.nodes[0].bytes()[at..at + len] == data, "seed {seed}, operation {i} here");
            assert!(bench.nodes[1].bytes()[at..at + len] == data, "seed {seed}, operation {i} there");
        } else if op.kind == 5 {
            let original = u64::from_ne_bytes(bench.nodes[0].bytes()[at..at + 8].try_into().unwrap());
            assert_eq!(original, adds, "seed {seed}, operation {i}: each add once, in order");
            adds += 1;
        }
    }
    let total = u64::from_ne_bytes(bench.nodes[1].bytes()[LEN - 8..].try_into().unwrap());
    assert_eq!(total, adds, "seed {seed}");
    bench.assert_idle();
}

fn mix(seed: u64, rates: Rates) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let setup = Setup {
        mtu: Mtu::ALL[rng.next_u32() as usize % 5],
        rd_atomic: 1 + (rng.next_u32() % 8) as u8,
        psns: [rng.next_u32() & 0xff_ffff, 0xff_fff8],
        ..Setup::default()
    };
    let mut bench = Bench::new(setup);
    faulty(&mut bench, seed, rates);
    let ops = post_mix(&mut bench, &mut rng);
    bench.run();
    check_mix(&mut bench, &ops, seed);
}

#[test]
fn a_mix_of_operations_survives_one_percent() {
    for seed in 0..150 {
        mix(seed, Rates { loss: 10, twice: 10, late: 10 });
    }
}

#[test]
fn a_mix_of_operations_survives_five_percent() {
    for seed in 1000..1150 {
        mix(seed, Rates { loss: 50, twice: 30, late: 30 });
    }
}

#[test]
fn duplicates_alone_do_no_harm() {
    for seed in 2000..2060 {
        mix(seed, Rates { loss: 0, twice: 300, late: 0 });
    }
}

#[test]
fn reordering_alone_does_no_harm() {
    for seed in 3000..3060 {
        mix(seed, Rates { loss: 0, twice: 0, late: 200 });
    }
}

/// RX-05: from 0.1 % to 20 % of everything. Progress or RETRY_EXC_ERR, with a bounded number of packets and steps.
#[test]
fn heavy_faults_end_in_bounded_work() {
    for (rate, packets_per_needed) in [(1, 2), (10, 2), (50, 4), (200, 20)] {
        let (mut steps, mut sent, mut failed) = (0u64, 0, 0);
        for seed in 0..30 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut bench = Bench::rc();
            faulty(&mut bench, seed, Rates { loss: rate, twice: rate, late: rate });
            post_mix(&mut bench, &mut rng);
            while bench.nodes[0].env.sends.len() < OPS as usize && bench.step() {
                steps += 1;
            }
            let good = bench.nodes[0].env.sends.iter().filter(|c| c.status == WcStatus::Success).count();
            assert_eq!(bench.nodes[0].env.sends.len(), OPS as usize, "seed {seed}: each exactly once");
            failed += usize::from(good < OPS as usize);
            sent += bench.nodes[0].count(Counter::SentPkts);
        }
        // Without faults these thirty runs take about 7,500 packets and 800 steps.
        assert!(sent < 7_500 * packets_per_needed, "{rate}: {sent} packets");
        assert!(steps < 60_000, "{rate}: {steps} steps");
        assert!(failed <= 1, "{rate}: {failed} of 30 gave up");
    }
}

/// What ends in an error ends once, in order, and flushes the rest.
#[test]
fn a_dead_link_flushes_in_order() {
    for seed in 0..30 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bench = Bench::rc();
        let dead_after = rng.next_u32() % 60;
        let mut n = 0;
        bench.judge = Box::new(move |_, _| {
            n += 1;
            if n > dead_after { Fate::Drop } else { Fate::Deliver }
        });
        post_mix(&mut bench, &mut rng);
        bench.run();
        let done = bench.nodes[0].sent();
        let good = done.iter().take_while(|d| d.1 == WcStatus::Success).count();
        assert_eq!(done.iter().map(|d| d.0).collect::<Vec<_>>(), Vec::from_iter(0..OPS));
        assert_eq!(done[good].1, WcStatus::RetryExcErr);
        assert!(done[good + 1..].iter().all(|d| d.1 == WcStatus::WrFlushErr));
        bench.nodes[1].modify(&QpAttr::to(QpState::Err));
        bench.assert_idle();
    }
}
