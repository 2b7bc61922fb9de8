//! UC and UD: delivery, silence about errors, GRH, Q_Keys, SQE.

use everywire_wire::{Bth, Deth, Opcode};

use super::super::UdDest;
use super::*;

fn uc() -> Bench {
    Bench::new(Setup { ty: QpType::Uc, ..Setup::default() })
}

fn ud() -> Bench {
    Bench::new(Setup { ty: QpType::Ud, ..Setup::default() })
}

fn datagram(bench: &Bench, wr_id: u64, len: u32) -> SendWr {
    let dest = UdDest { path: bench.path(0), qpn: Qpn::new(QPNS[1]), qkey: QKEY };
    SendWr { ud: Some(dest), ..send(wr_id, bench.nodes[0].sge(0, len)) }
}

#[test]
fn uc_delivers_sends_and_writes() {
    for mtu in Mtu::ALL {
        for len in [0, 1, 255, 256, 4097, 100_000] {
            let mut bench = Bench::new(Setup { ty: QpType::Uc, mtu, ..Setup::default() });
            let data = pattern(4, len as usize);
            bench.nodes[0].bytes()[..len as usize].copy_from_slice(&data);
            bench.nodes[1].recv(1, 0, 100_000);
            bench.nodes[1].recv(2, 0, 0);
            let (from, remote) = (bench.nodes[0].sge(0, len), bench.nodes[1].remote(200_000));
            bench.nodes[0].send(send(1, from));
            bench.nodes[0].send(write(2, from, remote));
            bench.nodes[0].send(SendWr::new(3, SendOp::WriteImm { remote, imm: 9 }).with_sges([from]));
            bench.run();
            assert_eq!(bench.nodes[0].sent(), ok(1..4), "{mtu:?} {len}");
            let wcs: Vec<_> =
                bench.nodes[1].env.recvs.drain(..).map(|c| (c.wr_id, c.byte_len, c.imm)).collect();
            assert_eq!(wcs, [(1, len, None), (2, len, Some(9))]);
            assert_eq!(bench.nodes[1].bytes()[..len as usize], data);
            assert_eq!(bench.nodes[1].bytes()[200_000..200_000 + len as usize], data);
            assert!(bench.log.iter().all(|(at, _)| *at == 0), "nothing is answered");
            let asks = |p: &[u8]| RocePacket::parse(p).unwrap().bth.ack_req;
            assert!(bench.log.iter().all(|(_, p)| !asks(p)), "and nothing asked for");
        }
    }
}

/// IBTA §9.8.2.2.4: a message with a lost packet is gone as a whole; the next one is whole again, in the same receive.
#[test]
fn uc_drops_broken_messages_only() {
    for lost in 0..3u32 {
        let mut bench = uc();
        let mut n = 0;
        bench.judge = Box::new(move |_, _| {
            n += 1;
            if n == lost + 1 { Fate::Drop } else { Fate::Deliver }
        });
        bench.nodes[1].recv(1, 0, 4000);
        bench.nodes[1].recv(2, 4000, 4000);
        let from = bench.nodes[0].sge(0, 3000);
        (1..4).for_each(|id| {
            bench.nodes[0].send(SendWr::new(id, SendOp::SendImm(id as u32)).with_sges([from]))
        });
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok(1..4), "the sender does not know");
        let wcs: Vec<_> = bench.nodes[1].env.recvs.drain(..).map(|c| (c.wr_id, c.imm, c.byte_len)).collect();
        assert_eq!(wcs, [(1, Some(2), 3000), (2, Some(3), 3000)], "lost packet {lost}");
        assert_eq!(bench.nodes[1].qp.state(), QpState::Rts);
    }
}

#[test]
fn uc_without_receive_or_with_a_bad_key_drops_silently() {
    let mut bench = uc();
    let (from, remote) = (bench.nodes[0].sge(0, 3000), bench.nodes[1].remote(0));
    let bad = Remote { rkey: RKey(0xbad), ..remote };
    bench.nodes[0].send(send(1, from));
    bench.nodes[0].send(write(2, from, bad));
    bench.run();
    assert_eq!(bench.nodes[1].count(Counter::OutOfBuffer), 1);
    // Too long for the receive: dropped, and the receive stays.
    bench.nodes[1].recv(7, 0, 2000);
    bench.nodes[0].send(send(3, from));
    bench.nodes[0].send(write(4, from, remote));
    let short = bench.nodes[0].sge(0, 5);
    bench.nodes[0].send(send(5, short));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok(1..6));
    assert_eq!(bench.nodes[1].received(), ok([7]));
    assert_eq!(bench.nodes[1].qp.state(), QpState::Rts);
    assert!(bench.nodes[1].env.events.is_empty());
}

/// IBTA §10.3.1.6: a send error stops the send queue only; receives go on, and RTS is reached again.
#[test]
fn send_errors_lead_to_sqe_and_back() {
    for ty in [QpType::Uc, QpType::Ud] {
        let mut bench = Bench::new(Setup { ty, ..Setup::default() });
        let dest = UdDest { path: bench.path(0), qpn: Qpn::new(QPNS[1]), qkey: QKEY };
        let good = bench.nodes[0].sge(0, 8);
        let post =
            |bench: &mut Bench, id, sge| bench.nodes[0].send(SendWr { ud: Some(dest), ..send(id, sge) });
        bench.nodes[0].recv(50, 0, 64);
        for id in [1, 4, 5] {
            bench.nodes[1].recv(id, 0, 64);
        }
        post(&mut bench, 1, good);
        post(&mut bench, 2, Sge { lkey: LKey(0xbad), ..good });
        post(&mut bench, 3, good);
        bench.run();
        let all = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(bench.nodes[0].sent(), all);
        assert_eq!(bench.nodes[0].qp.state(), QpState::Sqe);
        post(&mut bench, 9, good);
        assert_eq!(bench.nodes[0].sent(), [(9, WcStatus::WrFlushErr)]);
        let dest = UdDest { path: bench.path(1), qpn: Qpn::new(QPNS[0]), qkey: QKEY };
        let back = bench.nodes[1].sge(0, 4);
        bench.nodes[1].send(SendWr { ud: Some(dest), ..send(1, back) });
        bench.run();
        assert_eq!(bench.nodes[0].received(), ok([50]), "receives in SQE");
        bench.nodes[0].modify(&QpAttr::to(QpState::Rts));
        post(&mut bench, 4, good);
        post(&mut bench, 5, good);
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok([4, 5]));
        assert_eq!(bench.nodes[1].received(), ok([1, 4, 5]), "{ty:?}");
    }
}

#[test]
fn ud_delivers_behind_forty_bytes() {
    for len in [0, 1, 5, 1000, 4096] {
        let mut bench = ud();
        let data = pattern(8, len as usize);
        bench.nodes[0].bytes()[..len as usize].copy_from_slice(&data);
        bench.nodes[1].recv(1, 0, 40 + 4096);
        let mut wr = datagram(&bench, 1, len);
        wr.op = SendOp::SendImm(0xabcd);
        bench.nodes[0].send(wr);
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok([1]));
        let wc = bench.nodes[1].env.recvs.pop_front().unwrap();
        assert_eq!((wc.status, wc.byte_len, wc.grh), (WcStatus::Success, 40 + len, true));
        assert_eq!((wc.imm, wc.src_qp), (Some(0xabcd), Qpn::new(QPNS[0])));
        assert_eq!(bench.nodes[1].bytes()[40..40 + len as usize], data);
        // The IPv4 header: version, protocol, addresses.
        let grh = &bench.nodes[1].bytes()[..40];
        assert_eq!((grh[20], grh[29]), (0x45, 17));
        assert_eq!(grh[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    }
}

#[test]
fn ud_refuses_strangers_silently() {
    let mut bench = ud();
    bench.nodes[1].recv(1, 0, 100);
    let mut wrong_key = datagram(&bench, 1, 8);
    wrong_key.ud.as_mut().unwrap().qkey = QKey(1);
    bench.nodes[0].send(wrong_key);
    let too_long = datagram(&bench, 2, 61);
    bench.nodes[0].send(too_long);
    bench.run();
    assert_eq!(bench.nodes[1].count(Counter::DropBadQkey), 1);
    assert!(bench.nodes[1].received().is_empty());
    let fits = datagram(&bench, 3, 60);
    bench.nodes[0].send(fits);
    let none_left = datagram(&bench, 4, 8);
    bench.nodes[0].send(none_left);
    bench.run();
    assert_eq!(bench.nodes[1].received(), ok([1]));
    assert_eq!(bench.nodes[1].count(Counter::OutOfBuffer), 1);
    assert_eq!(bench.nodes[0].sent(), ok(1..5));
    assert!(bench.log.iter().all(|(at, _)| *at == 0));
}

/// IBTA C10-15: a privileged Q_Key in the work request means the queue pair's own.
#[test]
fn privileged_qkeys_are_replaced() {
    let mut bench = ud();
    let mut wr = datagram(&bench, 1, 8);
    wr.ud.as_mut().unwrap().qkey = QKey(0x8000_0000);
    bench.nodes[0].send(wr);
    bench.run();
    assert_eq!(
        RocePacket::parse(&bench.log[0].1).unwrap().deth,
        Some(Deth { qkey: QKEY, reserved: 0, src_qp: Qpn::new(QPNS[0]) })
    );
}

#[test]
fn ud_longer_than_the_port_mtu_is_a_local_length_error() {
    let mut bench = ud();
    let wr = datagram(&bench, 1, 4097);
    bench.nodes[0].send(wr);
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::LocLenErr)]);
    assert!(bench.log.is_empty());
    assert_eq!(bench.nodes[0].qp.state(), QpState::Sqe);
}

#[test]
fn ud_with_a_bad_receive_segment_ends_the_queue_pair() {
    let mut bench = ud();
    let wr = RecvWr::new(1, [Sge { addr: 0, length: 200, lkey: LKey(0xbad) }]);
    bench.nodes[1].qp.post_recv(&mut bench.nodes[1].env, wr).unwrap();
    let good = datagram(&bench, 1, 8);
    bench.nodes[0].send(good);
    bench.run();
    assert_eq!(bench.nodes[1].received(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
}

/// Each destination has its own burst; datagrams to one destination share one.
#[test]
fn ud_bursts_by_destination() {
    let mut bench = ud();
    let other = UdDest { path: bench.path(0), qpn: Qpn::new(0x99), qkey: QKEY };
    for id in 0..6 {
        let mut wr = datagram(&bench, id, 64);
        if id >= 4 {
            wr.ud = Some(other);
        }
        bench.nodes[0].send(wr);
    }
    let mut burst = Burst::default();
    let mut counts = Vec::new();
    let node = &mut bench.nodes[0];
    while node.qp.poll_transmit(&mut node.env, bench.now, &mut burst) {
        counts.push((burst.dest_qp().get(), burst.packets()));
    }
    assert_eq!(counts, [(QPNS[1], 4), (0x99, 2)]);
    assert_eq!(bench.nodes[0].sent(), ok(0..6));
}

/// RX-16 for UC: sequences that make no message are dropped, and PSNs wrap.
#[test]
fn uc_sequences() {
    let mut bench = uc();
    bench.setup.psns = [0xff_ffff, 0];
    for id in 1..4 {
        bench.nodes[1].recv(id, 0, 8192);
    }
    static PAYLOAD: [u8; 1024] = [3; 1024];
    let mut psn = Psn::new(0xff_fff0);
    let mut send = |bench: &mut Bench, opcode, len: usize| {
        let bth = Bth { opcode, dest_qp: Qpn::new(QPNS[1]), psn, ..Bth::default() };
        bench.forge(1, &RocePacket { bth, payload: &PAYLOAD[..len], ..RocePacket::default() });
        psn = psn.next();
    };
    let (first, middle, last, only) =
        (Opcode::UC_SEND_FIRST, Opcode::UC_SEND_MIDDLE, Opcode::UC_SEND_LAST, Opcode::UC_SEND_ONLY);
    for (opcode, len) in [
        (middle, 1024),
        (last, 4),
        (first, 1024),
        (only, 8), // the first message is given up
        (first, 1024),
        (first, 1024), // and so is this one
        (middle, 1024),
        (last, 4),
        (first, 1020), // not a full packet
        (last, 4),
        (only, 1024),
    ] {
        send(&mut bench, opcode, len);
    }
    let wcs: Vec<_> = bench.nodes[1].env.recvs.drain(..).map(|c| (c.wr_id, c.byte_len)).collect();
    assert_eq!(wcs, [(1, 8), (2, 2052), (3, 1024)]);
}
