//! Who may send first: the responder waits for the initiator's first FPDU, whatever that is (RFC 5044 §7.1, RFC 6581 §9).

use super::*;

/// The responder's sends wait; each ready-to-receive frame lets them go and touches nothing else.
#[test]
fn every_frame_makes_ready() {
    let frames: [(Rtr, &[u8]); 3] = [
        (Rtr::Send, &[]),
        // As Linux siw sends it: STag 1, TO 0.
        (Rtr::Write, &[0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (Rtr::Read, &[0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
    ];
    for (rtr, bytes) in frames {
        for piece in [1, 1000] {
            let mut bench = Bench::new(Setup { rtr: Some(rtr), depth: 1, piece, ..Setup::default() });
            bench.nodes[0].recv(1, 0, 10);
            bench.nodes[1].recv(2, 0, 10);
            bench.nodes[1].send(SendWr::new(3, SendOp::Send).with_inline(*b"first"));
            assert!(!bench.transmit(1), "the responder spoke first");
            assert_eq!(bench.nodes[1].env.events, []);
            bench.run();
            assert!(bench.fpdus(0)[0].starts_with(bytes));
            assert_eq!(bench.fpdus(0).len(), 1);
            assert_eq!(bench.nodes[1].env.events, [QpEvent::CommEstablished]);
            assert_eq!(bench.nodes[0].received(), ok([1]));
            assert_eq!(bench.nodes[1].sent(), ok([3]));
            assert_eq!(bench.nodes[1].received(), [], "a receive was spent on being ready");
            // Real traffic goes on with the numbers that are due.
            let remote = bench.nodes[1].remote(0);
            let node = &mut bench.nodes[0];
            let sink = node.sge(100, 100);
            node.send(SendWr::new(4, SendOp::Read { remote }).with_sges([sink]));
            node.send(SendWr::new(5, SendOp::Send).with_inline(*b"second"));
            bench.run();
            assert_eq!(bench.nodes[0].sent(), ok([4, 5]));
            assert_eq!(bench.nodes[1].received(), ok([2]));
            bench.assert_idle();
        }
    }
}

/// RFC 6581 §9: the READ that makes ready is one of those that the peer holds of its IRD, until it is answered. READs to
/// the full depth, posted before the start, never exceed it.
#[test]
fn a_ready_read_counts() {
    for depth in [1, 2, 4] {
        let mut bench = Bench::unconnected(Setup { rtr: Some(Rtr::Read), depth, ..Setup::default() });
        bench.start(1);
        bench.start(0);
        let remote = bench.nodes[1].remote(0);
        let node = &mut bench.nodes[0];
        for id in 0..u64::from(depth) + 2 {
            let sink = node.sge(100 * id, 100);
            node.send(SendWr::new(id, SendOp::Read { remote }).with_sges([sink]));
        }
        bench.transmit(0);
        assert_eq!(bench.fpdus(0).len(), usize::from(depth), "the READ that made ready is one of {depth}");
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok(0..u64::from(depth) + 2));
        assert_eq!(bench.nodes.each_ref().map(|n| n.qp.state()), [QpState::Rts; 2]);
        bench.assert_idle();
    }
}

/// Without the model any FPDU of the initiator will do (cases IW-02).
#[test]
fn client_and_server() {
    let mut bench = Bench::new(Setup::default());
    bench.nodes[0].recv(1, 0, 10);
    bench.nodes[1].recv(2, 0, 10);
    bench.nodes[1].send(SendWr::new(3, SendOp::Send).with_inline(*b"held"));
    bench.run();
    assert_eq!(bench.log[1], []);
    bench.nodes[0].send(SendWr::new(4, SendOp::Send).with_inline(*b"go"));
    bench.run();
    assert_eq!((bench.nodes[0].received(), bench.nodes[1].received()), (ok([1]), ok([2])));
}

/// Cases IW-03: no bytes, no checks, whatever the STag; peers that send an empty SEND are understood.
#[test]
fn zero_length_with_any_stag() {
    let write = |stag: u32| {
        let mut segment = vec![0xc1, 0x40];
        segment.extend(stag.to_be_bytes());
        segment.extend([0xff; 8]);
        frame(&segment)
    };
    let mut bench = Bench::new(Setup { rtr: Some(Rtr::Write), ..Setup::default() });
    for stag in [0, 1, 0xffff_ffff] {
        bench.deliver(1, &write(stag));
    }
    assert_eq!(bench.nodes[1].qp.state(), QpState::Rts);
    assert_eq!(bench.nodes[1].env.events, [QpEvent::CommEstablished]);
    let mut bench = Bench::new(Setup { rtr: Some(Rtr::Send), ..Setup::default() });
    let send = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    bench.deliver(1, &frame(&send));
    assert_eq!(bench.nodes[1].qp.state(), QpState::Rts);
}

/// An initiator whose first words lie unnoticed at the other end (Linux siw, still accepting): empty WRITEs follow, ever
/// further apart, until the peer's first FPDU; each is a WRITE that every receiver takes.
#[test]
fn nudges_until_the_peer_is_heard_of() {
    let mut bench = Bench::new(Setup::default());
    assert_eq!(bench.nodes[0].qp.poll_timeout(), None, "nothing was said that could lie there");
    bench.nodes[1].recv(1, 0, 10);
    bench.nodes[0].recv(2, 0, 10);
    bench.nodes[0].send(SendWr::new(3, SendOp::Send).with_inline(*b"first"));
    bench.transmit(0);
    let len = bench.nodes[0].unwritten;
    bench.written(0, len);
    for wait in [50, 100, 200] {
        let due = bench.now + std::time::Duration::from_millis(wait);
        assert_eq!(bench.nodes[0].qp.poll_timeout(), Some(due));
        bench.now = due;
        let node = &mut bench.nodes[0];
        node.qp.handle_timeout(&mut node.env, due);
        assert!(bench.transmit(0));
        let len = bench.nodes[0].unwritten;
        bench.written(0, len);
    }
    // RFC 5041 §4.1: tagged, last, version 1; RDMAP version 1, WRITE; STag 1, TO 0.
    let sent = bench.fpdus(0);
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[1..], vec![vec![0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]; 3]);
    bench.run();
    bench.nodes[1].send(SendWr::new(4, SendOp::Send).with_inline(*b"answer"));
    bench.run();
    assert_eq!(bench.nodes[0].qp.poll_timeout(), None, "the peer was heard of");
    assert_eq!((bench.nodes[1].received(), bench.nodes[0].received()), (ok([1]), ok([2])));
    assert_eq!((bench.nodes[0].sent(), bench.nodes[1].sent()), (ok([3]), ok([4])));
    bench.assert_idle();
}

/// They end: with the last of them, with the connection, and none is made where bytes are in flight or of a responder.
#[test]
fn nudges_end() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    bench.nodes[0].send(SendWr::new(1, SendOp::Write { remote }).with_inline(*b"w"));
    bench.transmit(0);
    // The socket has not taken the WRITE: more would not help.
    let expire = |bench: &mut Bench| {
        let due = bench.nodes[0].qp.poll_timeout()?;
        bench.now = due;
        let node = &mut bench.nodes[0];
        node.qp.handle_timeout(&mut node.env, due);
        Some(bench.transmit(0))
    };
    assert_eq!(expire(&mut bench), Some(false));
    let begun = bench.now;
    bench.run();
    let mut made = bench.fpdus(0).len() - 1;
    while expire(&mut bench) == Some(true) {
        made += 1;
        bench.run();
    }
    assert_eq!(made as u32, crate::iwarp::nudge::MAX_NUDGES);
    assert_eq!((bench.now - begun).as_millis(), 50 * (2 + 4 + 8 + 16 + 32 + 64 + 128));
    assert_eq!(bench.nodes[1].qp.poll_timeout(), None);
    bench.assert_idle();
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    bench.nodes[0].send(SendWr::new(1, SendOp::Write { remote }).with_inline(*b"w"));
    bench.run();
    let (node, now) = (&mut bench.nodes[0], bench.now);
    node.qp.disconnect(&mut node.env, now);
    bench.run();
    assert_eq!(bench.nodes.each_ref().map(|n| n.qp.poll_timeout()), [None; 2]);
    assert_eq!(bench.fpdus(0).len(), 1);
}
