//! Faults that simulation found, each cut down to the packets that matter.

use everywire_wire::{Aeth, Bth, NakCode, Opcode, Syndrome};

use super::*;

/// What node 1 answers to node 0 at PSN `psn`.
fn answer(syndrome: Syndrome, psn: u32) -> RocePacket<'static> {
    let bth = Bth {
        opcode: Opcode::RC_ACK,
        mig_req: true,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(QPNS[0]),
        psn: Psn::new(psn),
        ..Bth::default()
    };
    RocePacket { bth, aeth: Some(Aeth { syndrome, msn: 0 }), ..RocePacket::default() }
}

/// A network that repeats frames makes a receiver that is not ready answer with sequence NAKs too. As long as RNR NAKs
/// come the peer is there: they must not add up to RETRY_EXC_ERR (IBTA §9.7.5.2.8: the two counters are apart).
#[test]
fn a_peer_that_is_not_ready_does_not_use_up_the_transport_retries() {
    let mut bench = Bench::new(Setup { min_rnr_timer: 1, ..Setup::default() });
    let from = bench.nodes[0].sge(0, 10);
    bench.nodes[0].send(send(1, from));
    bench.nodes[0].send(send(2, from));
    let first = bench.setup.psns[0];
    bench.judge = Box::new(|_, _| Fate::Drop);
    for _ in 0..20 {
        bench.transmit();
        bench.forge(0, &answer(Syndrome::rnr(1), first));
        bench.run_for(Duration::from_micros(11));
        bench.transmit();
        bench.forge(0, &answer(Syndrome::nak(NakCode::PsnSequence), first));
    }
    assert!(bench.nodes[0].sent().is_empty());
    bench.judge = Box::new(|_, _| Fate::Deliver);
    bench.nodes[1].recv(1, 0, 100);
    bench.nodes[1].recv(2, 0, 100);
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2]));
}

/// A READ is complete, then its key is invalidated, and the network delivers the READ request once more just before the
/// invalidation: nobody waits for that answer, and the connection lives.
#[test]
fn a_repeated_read_whose_key_goes_before_it_is_answered_is_dropped() {
    let mut bench = Bench::rc();
    let key = bench.nodes[1].env.memory.register(PD, 0x9000_0000, 64, Access::REMOTE_READ);
    let into = bench.nodes[0].sge(0, 64);
    bench.nodes[0].send(read(1, into, Remote { addr: 0x9000_0000, rkey: RKey(key) }));
    bench.run();
    let read_request = bench.log[0].1.clone();
    bench.nodes[1].recv(7, 0, 100);
    bench.nodes[0].send(SendWr::new(2, SendOp::SendInv(RKey(key))));
    bench.judge = Box::new(|at, _| if at == 0 { Fate::Drop } else { Fate::Deliver });
    bench.transmit();
    let send_inv = bench.log.last().unwrap().1.clone();
    bench.judge = Box::new(|_, _| Fate::Deliver);
    for bytes in [read_request, send_inv] {
        bench.forge(1, &RocePacket::parse(&bytes).unwrap());
    }
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2]));
    assert_eq!(bench.nodes[1].received(), ok([7]));
    assert_eq!(bench.nodes[1].qp.state(), QpState::Rts);
}
