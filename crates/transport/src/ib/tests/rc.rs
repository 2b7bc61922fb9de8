//! RC without faults: every operation at every MTU and many lengths, and what goes over the wire for it.

use super::*;
use crate::ib::wr::WcOpcode;

const LENGTHS: [usize; 16] = [0, 1, 2, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025, 4096, 8192, 8193, 200_001];

#[test]
fn write_lands_every_length_at_every_mtu() {
    for mtu in Mtu::ALL {
        for len in LENGTHS {
            let mut bench = Bench::new(Setup { mtu, ..Setup::default() });
            let data = pattern(len as u64, len);
            bench.nodes[0].bytes()[100..100 + len].copy_from_slice(&data);
            let (from, to) = (bench.nodes[0].sge(100, len as u32), bench.nodes[1].remote(333));
            bench.nodes[0].send(write(7, from, to));
            bench.run();
            assert_eq!(bench.nodes[0].sent(), ok([7]), "mtu {mtu:?} len {len}");
            assert_eq!(bench.nodes[1].bytes()[333..333 + len], data);
            assert_eq!(bench.nodes[1].bytes()[333 + len], 0, "nothing beyond the end");
            assert!(bench.nodes[1].received().is_empty());
            bench.assert_idle();
        }
    }
}

#[test]
fn send_lands_every_length_at_every_mtu() {
    for mtu in Mtu::ALL {
        for len in LENGTHS {
            let mut bench = Bench::new(Setup { mtu, ..Setup::default() });
            let data = pattern(len as u64, len);
            bench.nodes[0].bytes()[..len].copy_from_slice(&data);
            bench.nodes[1].recv(5, 50, 300_000);
            let from = bench.nodes[0].sge(0, len as u32);
            bench.nodes[0].send(send(7, from));
            bench.run();
            assert_eq!(bench.nodes[0].sent(), ok([7]));
            let wc = bench.nodes[1].env.recvs.pop_front().unwrap();
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (5, WcStatus::Success, WcOpcode::Recv));
            assert_eq!((wc.byte_len as usize, wc.imm, wc.src_qp), (len, None, Qpn::new(QPNS[0])));
            assert_eq!(bench.nodes[1].bytes()[50..50 + len], data);
            bench.assert_idle();
        }
    }
}

#[test]
fn read_fetches_every_length_at_every_mtu() {
    for mtu in Mtu::ALL {
        for len in LENGTHS {
            let mut bench = Bench::new(Setup { mtu, rd_atomic: 2, ..Setup::default() });
            let data = pattern(len as u64, len);
            bench.nodes[1].bytes()[9..9 + len].copy_from_slice(&data);
            let (into, from) = (bench.nodes[0].sge(64, len as u32), bench.nodes[1].remote(9));
            bench.nodes[0].send(read(7, into, from));
            bench.run();
            let wc = bench.nodes[0].env.sends.pop_front().unwrap();
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (7, WcStatus::Success, WcOpcode::RdmaRead));
            assert_eq!(wc.byte_len as usize, len);
            assert_eq!(bench.nodes[0].bytes()[64..64 + len], data, "mtu {mtu:?} len {len}");
            bench.assert_idle();
        }
    }
}

#[test]
fn segments_are_gathered_and_scattered() {
    let mut bench = Bench::rc();
    let data = pattern(3, 5000);
    bench.nodes[0].bytes()[..5000].copy_from_slice(&data);
    // Odd pieces, an empty one among them, that straddle packet borders.
    let pieces = [(0, 1), (1, 1023), (1024, 0), (1024, 2000), (3024, 1976)];
    let from: Vec<Sge> = pieces.iter().map(|(at, len)| bench.nodes[0].sge(*at, *len)).collect();
    let into = [bench.nodes[1].sge(7, 3), bench.nodes[1].sge(100, 4000), bench.nodes[1].sge(9000, 997 + 500)];
    bench.nodes[1].qp.post_recv(&mut bench.nodes[1].env, RecvWr::new(1, into)).unwrap();
    bench.nodes[0].send(SendWr::new(2, SendOp::Send).with_sges(from));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([2]));
    assert_eq!(bench.nodes[1].received(), ok([1]));
    let bytes = bench.nodes[1].bytes();
    assert_eq!([&bytes[7..10], &bytes[100..4100], &bytes[9000..9997]].concat(), data);
}

#[test]
fn immediate_and_invalidate_reach_the_receiver() {
    let mut bench = Bench::rc();
    for wr_id in 0..4 {
        bench.nodes[1].recv(wr_id, 0, 8192);
    }
    let window = bench.nodes[1].env.memory.register(PD, 0x9000_0000, 64, Access::REMOTE_READ);
    let (short, long) = (bench.nodes[0].sge(0, 10), bench.nodes[0].sge(0, 3000));
    let remote = bench.nodes[1].remote(0);
    bench.nodes[0].send(SendWr::new(1, SendOp::SendImm(0xdead_beef)).with_sges([short]));
    bench.nodes[0].send(SendWr::new(2, SendOp::SendInv(RKey(window))).with_sges([long]));
    bench.nodes[0].send(SendWr::new(3, SendOp::WriteImm { remote, imm: 0x0102_0304 }).with_sges([long]));
    bench.nodes[0].send(SendWr::new(4, SendOp::WriteImm { remote, imm: 5 }));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok(1..5));
    let wcs: Vec<_> = bench.nodes[1].env.recvs.drain(..).collect();
    let seen: Vec<_> = wcs.iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.imm, c.invalidated)).collect();
    assert_eq!(
        seen,
        [
            (0, WcOpcode::Recv, 10, Some(0xdead_beef), None),
            (1, WcOpcode::Recv, 3000, None, Some(RKey(window))),
            (2, WcOpcode::RecvRdmaWithImm, 3000, Some(0x0102_0304), None),
            (3, WcOpcode::RecvRdmaWithImm, 0, Some(5), None),
        ]
    );
    // Immediate data is big-endian on the wire.
    let first = RocePacket::parse(&bench.log[0].1).unwrap();
    assert_eq!(bench.log[0].1[12..16], [0xde, 0xad, 0xbe, 0xef]);
    assert!(first.bth.mig_req, "cases RX-09");
}

#[test]
fn atomics_give_the_original_value() {
    let mut bench = Bench::rc();
    bench.nodes[1].bytes()[16..24].copy_from_slice(&41u64.to_ne_bytes());
    let at = bench.nodes[1].remote(16);
    for (wr_id, op) in [
        (1, SendOp::FetchAdd { remote: at, add: 1 }),
        (2, SendOp::CompareSwap { remote: at, compare: 42, swap: 100 }),
        (3, SendOp::CompareSwap { remote: at, compare: 42, swap: 7 }),
        (4, SendOp::FetchAdd { remote: at, add: u64::MAX }),
    ] {
        let into = bench.nodes[0].sge(wr_id * 8, 8);
        bench.nodes[0].send(SendWr::new(wr_id, op).with_sges([into]));
    }
    bench.run();
    let wcs: Vec<_> = bench.nodes[0].env.sends.drain(..).map(|c| (c.wr_id, c.opcode, c.byte_len)).collect();
    assert_eq!(
        wcs,
        [
            (1, WcOpcode::FetchAdd, 8),
            (2, WcOpcode::CompSwap, 8),
            (3, WcOpcode::CompSwap, 8),
            (4, WcOpcode::FetchAdd, 8)
        ]
    );
    let originals: Vec<u64> = (1..5)
        .map(|i| u64::from_ne_bytes(bench.nodes[0].bytes()[i * 8..i * 8 + 8].try_into().unwrap()))
        .collect();
    assert_eq!(originals, [41, 42, 100, 100]);
    assert_eq!(bench.nodes[1].bytes()[16..24], 99u64.to_ne_bytes());
}

#[test]
fn opcodes_on_the_wire() {
    let mut bench = Bench::rc();
    bench.nodes[1].recv(1, 0, 8192);
    let (from, remote) = (bench.nodes[0].sge(0, 3000), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, remote));
    bench.run();
    assert_eq!(bench.opcodes(0), ["RC RDMA Write First", "RC RDMA Write Middle", "RC RDMA Write Last"]);
    let spare = bench.nodes[1].env.memory.register(PD, 0, 8, Access::REMOTE_READ);
    bench.nodes[0].send(SendWr::new(2, SendOp::SendInv(RKey(spare))).with_sges([from]));
    bench.run();
    assert_eq!(bench.log.len(), 4, "one acknowledgement for the message");
    assert_eq!(bench.opcodes(0), ["RC Send First", "RC Send Middle", "RC Send Last Invalidate"]);
    let into = bench.nodes[1].sge(0, 2049);
    let remote = bench.nodes[0].remote(0);
    bench.nodes[1].send(read(3, into, remote));
    bench.run();
    assert_eq!(
        bench.opcodes(0),
        ["RC RDMA Read Response First", "RC RDMA Read Response Middle", "RC RDMA Read Response Last"]
    );
}

#[test]
fn acknowledgements_are_coalesced() {
    let mut bench = Bench::rc();
    for wr_id in 0..40 {
        let (from, remote) = (bench.nodes[0].sge(0, 64), bench.nodes[1].remote(0));
        bench.nodes[0].send(write(wr_id, from, remote));
    }
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok(0..40));
    // All forty arrived together, and one ACK stands for them.
    assert_eq!(bench.opcodes(1), ["RC Acknowledge"]);
}

#[test]
fn unsignalled_requests_are_retired_without_completions() {
    let mut bench = Bench::rc();
    for round in 0..10 {
        for wr_id in 0..100 {
            let (from, remote) = (bench.nodes[0].sge(0, 64), bench.nodes[1].remote(0));
            let wr = write(wr_id, from, remote);
            bench.nodes[0].send(if wr_id == 99 { wr } else { wr.unsignaled() });
        }
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok([99]), "round {round}");
        bench.assert_idle();
    }
}

#[test]
fn inline_payload_is_taken_at_post() {
    let mut bench = Bench::rc();
    let remote = bench.nodes[1].remote(0);
    bench.nodes[0].send(SendWr::new(1, SendOp::Write { remote }).with_inline(*b"hello"));
    bench.run();
    assert_eq!(bench.nodes[1].bytes()[..6], *b"hello\0");
}

/// IBTA §9.7.5.1.2 leaves the moment of an acknowledgement to the responder, within what the requester waits.
#[test]
fn an_acknowledgement_rides_behind_two_packets_and_follows_one() {
    for (answers, bursts) in [
        (1, vec![vec!["RC Send Only"], vec!["RC Acknowledge"]]),
        (2, vec![vec!["RC Send Only", "RC Send Only", "RC Acknowledge"]]),
    ] {
        let mut bench = Bench::rc();
        for wr_id in 0..2 {
            bench.nodes[0].recv(wr_id, 0, 64);
        }
        bench.nodes[1].recv(2, 0, 64);
        let ping = bench.nodes[0].sge(0, 64);
        bench.nodes[0].send(send(3, ping));
        bench.step();
        assert_eq!(bench.nodes[1].received(), ok([2]));
        let pong = bench.nodes[1].sge(0, 64);
        for wr_id in 0..answers {
            bench.nodes[1].send(send(4 + wr_id, pong));
        }
        let mut burst = Burst::default();
        let node = &mut bench.nodes[1];
        for expected in bursts {
            assert!(node.qp.poll_transmit(&mut node.env, bench.now, &mut burst), "at once");
            let ops: Vec<_> =
                burst.segments().map(|s| RocePacket::parse(s).unwrap().bth.opcode.name()).collect();
            assert_eq!(ops, expected);
        }
        assert!(!node.qp.poll_transmit(&mut node.env, bench.now, &mut burst));
    }
}

#[test]
fn reads_and_atomics_keep_to_max_rd_atomic() {
    for rd_atomic in [1, 2, 16] {
        let mut bench = Bench::new(Setup { rd_atomic, ..Setup::default() });
        let data = pattern(1, 400_000);
        bench.nodes[1].bytes()[..400_000].copy_from_slice(&data);
        for wr_id in 0..40 {
            let (into, from) =
                (bench.nodes[0].sge(wr_id * 10_000, 10_000), bench.nodes[1].remote(wr_id * 10_000));
            bench.nodes[0].send(read(wr_id, into, from));
        }
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok(0..40));
        assert_eq!(bench.nodes[0].bytes()[..400_000], data);
        assert!(bench.nodes[1].env.events.is_empty(), "the responder never saw too many");
        bench.assert_idle();
    }
}
