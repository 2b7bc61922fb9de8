//! Streams with garbage at every position, in random cuts and a byte at a time: TERMINATE or close, every work request
//! completed once, no hang and no panic (cases IW-05).

use super::*;

/// What an initiator sends when it does a bit of everything.
fn good(setup: &Setup) -> Vec<u8> {
    let mut bench = Bench::new(setup.clone());
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    let (sge, sink) = (node.sge(0, 300), node.sge(1000, 300));
    node.send(SendWr::new(1, SendOp::Send).with_sges([sge]));
    node.send(SendWr::new(2, SendOp::Write { remote }).with_sges([sge]));
    node.send(SendWr::new(3, SendOp::Read { remote }).with_sges([sink]));
    node.send(SendWr { solicited: true, ..SendWr::new(4, SendOp::SendInv(RKey(5))).with_inline(*b"bye") });
    if setup.rfc7306 {
        let eight = node.sge(2000, 8);
        node.send(SendWr::new(5, SendOp::FetchAdd { remote, add: 1 }).with_sges([eight]));
        node.send(SendWr::new(6, SendOp::WriteImm { remote, imm: 1 }).with_sges([sge]));
    }
    bench.transmit(0);
    bench.log[0].clone()
}

/// Feeds a stream to a responder, with work of its own outstanding, and ends it.
fn endure(setup: &Setup, stream: &[u8], seed: u64) {
    let mut bench = Bench::new(Setup { seed, ..setup.clone() });
    let remote = bench.nodes[0].remote(0);
    for id in 0..4 {
        bench.nodes[1].recv(id, id * 1000, 1000);
    }
    let node = &mut bench.nodes[1];
    let sink = node.sge(8000, 300);
    node.send(SendWr::new(10, SendOp::Read { remote }).with_sges([sink]));
    node.send(SendWr::new(11, SendOp::Write { remote }).with_sges([sink]));
    let mut rest = stream;
    while !rest.is_empty() {
        let take = bench.pick(setup.piece).min(rest.len());
        let piece = rest[..take].to_vec();
        bench.deliver(1, &piece);
        rest = &rest[take..];
        bench.transmit(1);
        let unwritten = bench.nodes[1].unwritten;
        bench.written(1, unwritten);
    }
    bench.transmit(1);
    bench.event(1, StreamEvent::Eof);
    bench.transmit(1);
    let node = &mut bench.nodes[1];
    assert_eq!(node.qp.state(), QpState::Err);
    assert!(node.closed.is_some(), "the connection is left open");
    let mut sent: Vec<u64> = node.sent().into_iter().map(|(id, _)| id).collect();
    let mut received: Vec<u64> = node.received().into_iter().map(|(id, _)| id).collect();
    sent.sort();
    received.sort();
    assert_eq!((sent, received), (vec![10, 11], vec![0, 1, 2, 3]));
}

#[test]
fn garbage_at_every_position() {
    let plain = Setup { crc: false, ulpdu: 128, piece: 90, ..Setup::default() };
    let setups = [
        plain.clone(),
        Setup { rfc7306: true, ..plain.clone() },
        Setup { markers: [true, true], ..plain.clone() },
        Setup { crc: true, markers: [true, true], piece: 700, ..plain.clone() },
        Setup { piece: 1, ..plain },
    ];
    for setup in setups {
        let stream = good(&setup);
        endure(&setup, &stream, 0);
        for at in 0..stream.len() {
            let mut rng = ChaCha8Rng::seed_from_u64(at as u64);
            let mut bad = stream.clone();
            match rng.next_u32() % 4 {
                0 => bad[at] ^= 1 << (rng.next_u32() % 8),
                1 => bad[at] = rng.next_u32() as u8,
                2 => {
                    bad.insert(at, rng.next_u32() as u8);
                }
                _ => rng.fill_bytes(&mut bad[at..]),
            }
            endure(&setup, &bad, at as u64);
        }
    }
}

/// A length field promises 64 KiB on every idle connection: no memory goes for it.
#[test]
fn a_promise_costs_nothing() {
    let mut bench = Bench::new(Setup::default());
    bench.deliver(1, &[0xff, 0xff, 0x41]);
    assert!(bench.nodes[1].qp.rx.partial.capacity() < 64);
}
