//! RFC 7306, where it was switched on: atomics and WRITE with immediate.

use everywire_wire::rdmap::{AtomicRequest, TermError};

use super::*;
use crate::ib::wr::WcOpcode;

fn bench() -> Bench {
    Bench::new(Setup { rfc7306: true, ulpdu: 256, piece: 60, ..Setup::default() })
}

#[test]
fn atomics() {
    let mut bench = bench();
    bench.nodes[1].bytes()[64..72].copy_from_slice(&5u64.to_ne_bytes());
    let remote = bench.nodes[1].remote(64);
    let node = &mut bench.nodes[0];
    let sinks = [0, 8, 16].map(|at| node.sge(at, 8));
    node.send(SendWr::new(1, SendOp::FetchAdd { remote, add: 7 }).with_sges([sinks[0]]));
    node.send(SendWr::new(2, SendOp::CompareSwap { remote, compare: 12, swap: 99 }).with_sges([sinks[1]]));
    node.send(SendWr::new(3, SendOp::CompareSwap { remote, compare: 1, swap: 2 }).with_sges([sinks[2]]));
    bench.run();
    let done: Vec<_> = bench.nodes[0].env.sends.iter().map(|c| (c.opcode, c.byte_len)).collect();
    assert_eq!(done, [(WcOpcode::FetchAdd, 8), (WcOpcode::CompSwap, 8), (WcOpcode::CompSwap, 8)]);
    let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let got = [0, 8, 16].map(|at| value(&bench.nodes[0].bytes()[at..at + 8]));
    assert_eq!(got, [5, 12, 99]);
    assert_eq!(value(&bench.nodes[1].bytes()[64..72]), 99);
    assert_eq!(bench.nodes[1].count(Counter::RxAtomicRequests), 3);
    // RFC 7306 §5: requests on queue 1, responses on queue 3.
    let request = bench.fpdus(0).remove(0);
    assert_eq!(request[..10], [0x41, 0x4a, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(AtomicRequest::parse(&request[18..]).unwrap().add_swap, 7);
    assert_eq!(bench.fpdus(1)[0][..10], [0x41, 0x4b, 0, 0, 0, 0, 0, 0, 0, 3]);
    bench.assert_idle();
}

#[test]
fn an_atomic_off_its_place() {
    let mut bench = bench();
    let remote = bench.nodes[1].remote(65);
    let node = &mut bench.nodes[0];
    let sink = node.sge(0, 8);
    node.send(SendWr::new(1, SendOp::FetchAdd { remote, add: 7 }).with_sges([sink]));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(bench.terminate(1).error, TermError { layer: 0, etype: 2, code: 0xff });
}

/// RFC 7306 §6: immediate data is of the WRITE right before it. Behind a SEND, or other immediate data, it is of none.
#[test]
fn immediate_data_of_no_write() {
    let key = bench().nodes[1].key;
    let mut write = vec![0xc1, 0x40];
    write.extend(key.to_be_bytes());
    write.extend(BASE.to_be_bytes());
    write.extend([9; 40]);
    let message = |ulp: u8, msn: u8, payload: &[u8]| {
        let mut out = vec![0x41, ulp, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
        out.extend(payload);
        out
    };
    let mut bench = bench();
    for id in 0..5 {
        bench.nodes[1].recv(id, 1000, 100);
    }
    let segments = [
        write.clone(),
        message(0x48, 1, &[0; 8]),
        message(0x48, 2, &[0; 8]),
        write,
        message(0x43, 3, b"in between"),
        message(0x48, 4, &[0; 8]),
    ];
    for segment in segments {
        bench.deliver(1, &frame(&segment));
    }
    let got: Vec<_> = bench.nodes[1].completions().iter().map(|c| (c.opcode, c.byte_len)).collect();
    let (imm, send) = (WcOpcode::RecvRdmaWithImm, WcOpcode::Recv);
    assert_eq!(got, [(imm, 40), (imm, 0), (send, 10), (imm, 0)]);
}

#[test]
fn write_with_immediate() {
    for len in [0, 1, 242, 243, 1000] {
        let mut bench = bench();
        bench.nodes[1].recv(1, 0, 0);
        bench.nodes[1].recv(2, 0, 0);
        let remote = bench.nodes[1].remote(5000);
        let node = &mut bench.nodes[0];
        node.bytes()[..len].copy_from_slice(&pattern(len, 9));
        let sge = node.sge(0, len as u32);
        let op = SendOp::WriteImm { remote, imm: 0x1234_5678 };
        node.send(SendWr::new(1, SendOp::Write { remote }).with_inline(*b"before"));
        node.send(SendWr { solicited: true, ..SendWr::new(2, op.clone()).with_sges([sge]) });
        node.send(SendWr::new(3, op));
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok([1, 2, 3]));
        let got = bench.nodes[1].completions();
        assert_eq!((got[0].opcode, got[0].imm), (WcOpcode::RecvRdmaWithImm, Some(0x1234_5678)));
        assert_eq!((got[0].byte_len, got[0].solicited), (len as u32, true));
        assert_eq!((got[1].byte_len, got[1].solicited), (0, false));
        assert_eq!(bench.nodes[1].bytes()[5000..5000 + len], pattern(len, 9));
        bench.assert_idle();
    }
}
