//! Every error with the standard's status at both ends: IBTA tables 56 and 58 and §9.9.3.

use everywire_wire::{Aeth, NakCode, Opcode, Reth, Syndrome};

use super::*;
use crate::memory::Access;

/// Runs node 0's work request 1, followed by one that is flushed, and checks status, events and states.
struct Expect {
    status: WcStatus,
    /// Status of node 1's receive 1, if one is in use.
    receive: Option<WcStatus>,
    event: Option<QpEvent>,
}

fn expect(bench: &mut Bench, wr: SendWr, what: Expect) {
    let from = bench.nodes[0].sge(0, 8);
    bench.nodes[0].send(wr);
    bench.nodes[0].send(send(2, from).unsignaled());
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, what.status), (2, WcStatus::WrFlushErr)]);
    assert_eq!(bench.nodes[0].qp.state(), QpState::Err);
    let received = bench.nodes[1].received();
    match what.receive {
        Some(status) => assert_eq!(received.first(), Some(&(1, status))),
        None => assert!(received.iter().all(|r| r.1 == WcStatus::WrFlushErr)),
    }
    assert_eq!(bench.nodes[1].env.events, Vec::from_iter(what.event));
    assert_eq!(bench.nodes[1].qp.state(), QpState::Err, "IBTA class C: the responder is in ERR");
    bench.assert_idle();
}

const RKEY_VIOLATION: Expect =
    Expect { status: WcStatus::RemAccessErr, receive: None, event: Some(QpEvent::AccessError) };

#[test]
fn receive_too_short() {
    for len in [65, 5000] {
        let mut bench = Bench::rc();
        bench.nodes[1].recv(1, 0, 64);
        bench.nodes[1].recv(2, 0, 64);
        let from = bench.nodes[0].sge(0, len);
        let what = Expect { status: WcStatus::RemInvReqErr, receive: Some(WcStatus::LocLenErr), event: None };
        expect(&mut bench, send(1, from), what);
        assert_eq!(bench.nodes[1].count(Counter::RespLocalLengthError), 1);
        assert_eq!(bench.nodes[1].bytes()[64..], vec![0; LEN - 64], "not a byte beyond it");
    }
}

#[test]
fn receive_of_exactly_the_length() {
    let mut bench = Bench::rc();
    bench.nodes[1].recv(1, 0, 5000);
    let from = bench.nodes[0].sge(0, 5000);
    bench.nodes[0].send(send(1, from));
    bench.run();
    assert_eq!((bench.nodes[0].sent(), bench.nodes[1].received()), (ok([1]), ok([1])));
}

#[test]
fn remote_keys_bounds_and_rights() {
    let remote = |addr, rkey| Remote { addr, rkey: RKey(rkey) };
    type Target = Box<dyn Fn(&mut Bench) -> Remote>;
    let targets: Vec<(&str, Target)> = vec![
        ("unknown key", Box::new(move |_| remote(BASE, 0xbad))),
        ("before the start", Box::new(move |b| remote(BASE - 1, b.nodes[1].key))),
        ("past the end", Box::new(move |b| remote(BASE + LEN as u64 - 7, b.nodes[1].key))),
        ("wraps around", Box::new(move |b| remote(u64::MAX - 3, b.nodes[1].key))),
        (
            "foreign domain",
            Box::new(move |b| {
                let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                remote(0, b.nodes[1].env.memory.register(OTHER_PD, 0, 64, all))
            }),
        ),
        (
            "no remote rights",
            Box::new(move |b| remote(0, b.nodes[1].env.memory.register(PD, 0, 64, Access::LOCAL_WRITE))),
        ),
    ];
    for (name, target) in &targets {
        for kind in 0..5 {
            let mut bench = Bench::rc();
            let remote = target(&mut bench);
            let op = match kind {
                0 => SendOp::Write { remote },
                1 => SendOp::Read { remote },
                2 => SendOp::WriteImm { remote, imm: 1 },
                // The aligned address that fails for the same reason.
                3 => SendOp::FetchAdd { remote: Remote { addr: remote.addr & !7, ..remote }, add: 1 },
                _ => SendOp::CompareSwap {
                    remote: Remote { addr: remote.addr & !7, ..remote },
                    compare: 0,
                    swap: 1,
                },
            };
            if kind >= 3 && *name == "past the end" {
                continue;
            }
            let from = bench.nodes[0].sge(0, 8);
            expect(&mut bench, SendWr::new(1, op).with_sges([from]), RKEY_VIOLATION);
            assert!(bench.nodes[1].bytes().iter().all(|b| *b == 0), "{name}");
        }
    }
}

/// IBTA §9.7.4.1.5: the whole range is checked before the first byte lands, or the first byte leaves.
#[test]
fn the_whole_range_is_checked_first() {
    for is_read in [false, true] {
        let mut bench = Bench::rc();
        bench.nodes[0].bytes()[..5000].fill(1);
        bench.nodes[1].bytes()[..LEN].fill(2);
        let (here, there) = (bench.nodes[0].sge(0, 5000), bench.nodes[1].remote(LEN as u64 - 4999));
        let wr = if is_read { read(1, here, there) } else { write(1, here, there) };
        expect(&mut bench, wr, RKEY_VIOLATION);
        assert!(bench.nodes[0].bytes()[..5000].iter().all(|b| *b == 1));
        assert!(bench.nodes[1].bytes().iter().all(|b| *b == 2));
        assert!(bench.log.iter().all(|(_, p)| !RocePacket::parse(p).unwrap().bth.opcode.is_read_response()));
    }
}

/// IBTA table 57: what the queue pair is not set up for is an unsupported opcode.
#[test]
fn access_flags_of_the_queue_pair_count_too() {
    for kind in 0..3 {
        let mut bench = Bench::rc();
        let rights = [
            Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        ];
        bench.nodes[1].modify(&QpAttr { access: Some(rights[kind]), ..QpAttr::to(QpState::Rts) });
        let (from, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(0));
        let op = [SendOp::Write { remote }, SendOp::Read { remote }, SendOp::FetchAdd { remote, add: 1 }];
        let what =
            Expect { status: WcStatus::RemInvReqErr, receive: None, event: Some(QpEvent::RequestError) };
        expect(&mut bench, SendWr::new(1, op[kind].clone()).with_sges([from]), what);
    }
}

#[test]
fn unaligned_atomic_is_an_invalid_request() {
    let mut bench = Bench::rc();
    let (from, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(4));
    let what = Expect { status: WcStatus::RemInvReqErr, receive: None, event: Some(QpEvent::RequestError) };
    expect(&mut bench, SendWr::new(1, SendOp::FetchAdd { remote, add: 1 }).with_sges([from]), what);
}

#[test]
fn receive_with_a_bad_segment_is_a_remote_operation_error() {
    let bad: [(u64, u32, u32); 3] = [(BASE, 64, 0xbad), (BASE + LEN as u64, 64, 0), (BASE, 64, 1)];
    for (addr, length, key) in bad {
        let mut bench = Bench::rc();
        let readonly = bench.nodes[1].env.memory.register(PD, BASE, 64, Access::REMOTE_READ);
        let lkey = LKey(match key {
            0 => bench.nodes[1].key,
            1 => readonly,
            other => other,
        });
        let wr = RecvWr::new(1, [Sge { addr, length, lkey }]);
        bench.nodes[1].qp.post_recv(&mut bench.nodes[1].env, wr).unwrap();
        let from = bench.nodes[0].sge(0, 8);
        let what = Expect { status: WcStatus::RemOpErr, receive: Some(WcStatus::LocProtErr), event: None };
        expect(&mut bench, send(1, from), what);
    }
}

#[test]
fn send_with_invalidate_of_a_bad_key() {
    let mut bench = Bench::rc();
    bench.nodes[1].recv(1, 0, 64);
    let from = bench.nodes[0].sge(0, 8);
    let what = Expect { status: WcStatus::RemAccessErr, receive: Some(WcStatus::LocAccessErr), event: None };
    expect(&mut bench, SendWr::new(1, SendOp::SendInv(RKey(0xbad))).with_sges([from]), what);
}

#[test]
fn local_errors_of_a_send() {
    let bench = Bench::rc();
    let good = bench.nodes[0].sge(0, 8);
    let remote = bench.nodes[1].remote(0);
    let (key, end) = (LKey(bench.nodes[0].key), BASE + LEN as u64);
    let cases = [
        (SendOp::Send, Sge { lkey: LKey(0xbad), ..good }, WcStatus::LocProtErr),
        (SendOp::Write { remote }, Sge { addr: end - 7, length: 8, lkey: key }, WcStatus::LocProtErr),
        (SendOp::Read { remote }, Sge { addr: u64::MAX, length: 8, lkey: key }, WcStatus::LocProtErr),
        (SendOp::Read { remote }, Sge { lkey: LKey(0x1100), ..good }, WcStatus::LocProtErr),
        (SendOp::FetchAdd { remote, add: 1 }, Sge { length: 7, ..good }, WcStatus::LocLenErr),
        (SendOp::LocalInv(RKey(0xbad)), good, WcStatus::MwBindErr),
    ];
    for (op, sge, status) in cases {
        let mut bench = Bench::rc();
        // Key 0x1100: not writable locally, and so no sink of a READ.
        bench.nodes[0].env.memory.register(PD, BASE, 64, Access::REMOTE_READ);
        bench.nodes[0].send(write(1, good, remote));
        bench.nodes[0].send(SendWr::new(2, op).with_sges([sge]).unsignaled());
        bench.nodes[0].send(write(3, good, remote));
        bench.run();
        let all = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)];
        assert_eq!(bench.nodes[0].sent(), all, "the one before it completes first");
        assert_eq!(bench.nodes[0].qp.state(), QpState::Err);
        bench.assert_idle();
    }
}

#[test]
fn a_message_may_not_exceed_two_gigabytes() {
    let mut bench = Bench::rc();
    let sges = [bench.nodes[0].sge(0, u32::MAX), bench.nodes[0].sge(0, 1)];
    bench.nodes[0].send(SendWr::new(1, SendOp::Send).with_sges(sges));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::LocLenErr)]);
}

#[test]
fn read_with_no_right_to_any_is_a_local_operation_error() {
    let mut bench = Bench::new(Setup { rd_atomic: 0, ..Setup::default() });
    let (into, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(0));
    bench.nodes[0].send(read(1, into, remote));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::LocQpOpErr)]);
}

/// A request as node 1 would send it to node 0, after `ahead` others.
fn request(bench: &Bench, opcode: Opcode, ahead: u32) -> RocePacket<'static> {
    let bth = everywire_wire::Bth {
        opcode,
        dest_qp: Qpn::new(QPNS[0]),
        ack_req: true,
        psn: Psn::new(bench.setup.psns[1]).add(ahead),
        ..Default::default()
    };
    RocePacket { bth, ..RocePacket::default() }
}

/// The AETH of each ACK packet that node 0 sent.
fn answers(bench: &mut Bench) -> Vec<(u32, Aeth)> {
    bench.run_for(Duration::from_micros(100));
    let log = std::mem::take(&mut bench.log);
    let packets = log.iter().filter(|(from, _)| *from == 0).map(|(_, b)| RocePacket::parse(b).unwrap());
    packets.filter_map(|p| p.aeth.map(|a| (p.bth.psn.sub(bench.setup.psns[1]).get(), a))).collect()
}

fn nak(code: NakCode) -> Aeth {
    Aeth { syndrome: Syndrome::nak(code), msn: 0 }
}

static PAYLOAD: [u8; 4096] = [7; 4096];

/// IBTA table 35 and §9.7.4.1.6: sequences and lengths that break the protocol.
#[test]
fn invalid_requests_are_refused_with_the_code() {
    let reth = |length| Some(Reth { va: BASE, rkey: RKey(0x1000), length });
    let shapes: [(&str, Opcode, usize, Option<Reth>); 14] = [
        ("middle without first", Opcode::RC_SEND_MIDDLE, 1024, None),
        ("last without first", Opcode::RC_SEND_LAST, 8, None),
        ("last with invalidate without first", Opcode::RC_SEND_LAST_INV, 8, None),
        ("write middle without first", Opcode::RC_WRITE_MIDDLE, 1024, None),
        ("write last without first", Opcode::RC_WRITE_LAST_IMM, 8, None),
        ("first shorter than the MTU", Opcode::RC_SEND_FIRST, 1020, None),
        ("only longer than the MTU", Opcode::RC_SEND_ONLY, 1028, None),
        ("write only shorter than announced", Opcode::RC_WRITE_ONLY, 8, reth(12)),
        ("write only longer than announced", Opcode::RC_WRITE_ONLY, 12, reth(8)),
        ("write first that is all", Opcode::RC_WRITE_FIRST, 1024, reth(1024)),
        ("write announces too much", Opcode::RC_WRITE_FIRST, 1024, reth(0x8000_0001)),
        ("read announces too much", Opcode::RC_READ_REQUEST, 0, reth(0x8000_0001)),
        ("read with payload", Opcode::RC_READ_REQUEST, 4, reth(8)),
        ("atomic unaligned", Opcode::RC_FETCH_ADD, 0, None),
    ];
    for (name, opcode, len, reth) in shapes {
        let mut bench = Bench::rc();
        bench.nodes[0].recv(1, 0, 8192);
        let mut packet = request(&bench, opcode, 0);
        packet.payload = &PAYLOAD[..len];
        packet.reth = reth;
        if opcode.has_immdt() {
            packet.immdt = Some(everywire_wire::ImmDt(0));
        }
        if opcode.has_ieth() {
            packet.ieth = Some(everywire_wire::Ieth { rkey: RKey(1) });
        }
        if opcode.has_atomic_eth() {
            packet.atomic_eth =
                Some(everywire_wire::AtomicEth { va: BASE + 4, rkey: RKey(0x1000), swap_add: 1, compare: 0 });
        }
        bench.forge(0, &packet);
        assert_eq!(answers(&mut bench), [(0, nak(NakCode::InvalidRequest))], "{name}");
        assert_eq!(bench.nodes[0].qp.state(), QpState::Err, "{name}");
    }
}

#[test]
fn wrong_packet_within_a_message() {
    let reth = Some(Reth { va: BASE, rkey: RKey(0x1000), length: 3000 });
    let second: [(Opcode, usize); 6] = [
        (Opcode::RC_SEND_FIRST, 1024),
        (Opcode::RC_SEND_ONLY, 8),
        (Opcode::RC_WRITE_MIDDLE, 1024),
        (Opcode::RC_WRITE_ONLY, 0),
        (Opcode::RC_SEND_MIDDLE, 1000),
        (Opcode::RC_SEND_LAST, 0),
    ];
    for (opcode, len) in second {
        let mut bench = Bench::rc();
        bench.nodes[0].recv(1, 0, 8192);
        let mut first = request(&bench, Opcode::RC_SEND_FIRST, 0);
        first.payload = &PAYLOAD[..1024];
        bench.forge(0, &first);
        let mut packet = request(&bench, opcode, 1);
        packet.payload = &PAYLOAD[..len];
        packet.reth = if opcode.has_reth() { reth } else { None };
        bench.forge(0, &packet);
        assert_eq!(answers(&mut bench).last(), Some(&(1, nak(NakCode::InvalidRequest))), "{}", opcode.name());
        assert_eq!(bench.nodes[0].received(), [(1, WcStatus::RemInvReqErr)]);
    }
    // A WRITE that ends early, or does not end.
    for (opcode, len) in
        [(Opcode::RC_WRITE_LAST, 8), (Opcode::RC_WRITE_LAST, 1024), (Opcode::RC_SEND_LAST, 8)]
    {
        let mut bench = Bench::rc();
        let mut first = request(&bench, Opcode::RC_WRITE_FIRST, 0);
        (first.payload, first.reth) = (&PAYLOAD[..1024], reth);
        bench.forge(0, &first);
        let mut packet = request(&bench, opcode, 1);
        packet.payload = &PAYLOAD[..len];
        bench.forge(0, &packet);
        assert_eq!(answers(&mut bench).last(), Some(&(1, nak(NakCode::InvalidRequest))));
        assert_eq!(bench.nodes[0].env.events, [QpEvent::RequestError]);
    }
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut bench = Bench::new(Setup { rd_atomic: 2, ..Setup::default() });
    for n in 0..3 {
        let mut packet = request(&bench, Opcode::RC_READ_REQUEST, n);
        packet.reth = Some(Reth { va: BASE, rkey: RKey(0x1000), length: 8 });
        bench.forge(0, &packet);
    }
    let seen = answers(&mut bench);
    assert_eq!(seen.len(), 3, "the two that fit are answered first");
    assert_eq!(seen[2], (2, Aeth { syndrome: Syndrome::nak(NakCode::InvalidRequest), msn: 2 }));
}

#[test]
fn a_refused_request_that_comes_again_is_refused_again() {
    let mut bench = Bench::rc();
    // The first NAK is lost.
    let mut lost = false;
    bench.judge =
        Box::new(
            move |from, _| {
                if from == 1 && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Deliver }
            },
        );
    let (from, remote) = (bench.nodes[0].sge(0, 8), Remote { addr: 0, rkey: RKey(0xbad) });
    expect(&mut bench, write(1, from, remote), RKEY_VIOLATION);
}

#[test]
fn key_withdrawn_during_a_read() {
    let mut bench = Bench::rc();
    let window = bench.nodes[1].env.memory.register(PD, 0, 200_000, Access::REMOTE_READ);
    let into = bench.nodes[0].sge(0, 200_000);
    bench.nodes[0].send(read(1, into, Remote { addr: 0, rkey: RKey(window) }));
    bench.transmit();
    bench.now += DELAY;
    bench.deliver_due();
    bench.nodes[1].env.memory.regions[1].valid = false;
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(bench.nodes[1].env.events, [QpEvent::AccessError]);
}

#[test]
fn local_memory_withdrawn_while_a_write_is_sent() {
    let mut bench = Bench::rc();
    let key = bench.nodes[0].env.memory.register(PD, 0, 500_000, Access::LOCAL_WRITE);
    let (from, remote) = (Sge { addr: 0, length: 500_000, lkey: LKey(key) }, bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, remote));
    bench.transmit();
    bench.nodes[0].env.memory.regions[1].valid = false;
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::LocProtErr)]);
    bench.assert_idle();
}

#[test]
fn bad_responses_end_the_request() {
    // What node 1 answers to a READ of 2000 bytes at MTU 1024: (opcode, payload).
    let answers: [(Opcode, usize); 5] = [
        (Opcode::RC_READ_RESPONSE_ONLY, 1024),
        (Opcode::RC_READ_RESPONSE_MIDDLE, 1024),
        (Opcode::RC_READ_RESPONSE_FIRST, 1020),
        (Opcode::RC_READ_RESPONSE_LAST, 976),
        (Opcode::RC_ATOMIC_ACK, 0),
    ];
    for (opcode, len) in answers {
        let mut bench = Bench::rc();
        let (into, remote) = (bench.nodes[0].sge(0, 2000), bench.nodes[1].remote(0));
        bench.judge = Box::new(|from, _| if from == 0 { Fate::Drop } else { Fate::Deliver });
        bench.nodes[0].send(read(1, into, remote));
        bench.transmit();
        let mut packet = request(&bench, opcode, 0);
        packet.bth.psn = Psn::new(bench.setup.psns[0]);
        packet.payload = &PAYLOAD[..len];
        packet.aeth = opcode.has_aeth().then_some(Aeth { syndrome: Syndrome::ACK_NO_CREDITS, msn: 1 });
        packet.atomic_ack =
            opcode.has_atomic_ack_eth().then_some(everywire_wire::AtomicAckEth { original: 1 });
        bench.forge(0, &packet);
        assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::BadRespErr)], "{}", opcode.name());
    }
}

#[test]
fn answers_to_nothing_are_ignored() {
    let mut bench = Bench::rc();
    let (from, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(0));
    bench.judge = Box::new(|_, _| Fate::Drop);
    bench.nodes[0].send(write(1, from, remote));
    bench.transmit();
    // Before the oldest, and after the newest, PSN in flight.
    for offset in [0xff_ffff, 1, 5, 0x7f_ffff] {
        for syndrome in [Syndrome::ACK_NO_CREDITS, Syndrome::nak(NakCode::RemoteAccess), Syndrome::rnr(1)] {
            let mut packet = request(&bench, Opcode::RC_ACK, 0);
            packet.bth.psn = Psn::new(bench.setup.psns[0]).add(offset);
            packet.aeth = Some(Aeth { syndrome, msn: 1 });
            bench.forge(0, &packet);
        }
    }
    assert!(bench.nodes[0].sent().is_empty());
    assert_eq!(bench.nodes[0].qp.state(), QpState::Rts);
}

/// Retry counters: 1 + retry_cnt rounds without an answer, then RETRY_EXC; a silent peer costs a known time.
#[test]
fn retries_are_counted() {
    for retry_cnt in [0, 1, 7] {
        let mut bench = Bench::new(Setup { retry_cnt, timeout: 14, ..Setup::default() });
        bench.judge = Box::new(|_, _| Fate::Drop);
        let (from, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(0));
        let start = bench.now;
        bench.nodes[0].send(write(1, from, remote));
        bench.run();
        assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(bench.nodes[0].count(Counter::LocalAckTimeoutErr), u64::from(retry_cnt) + 1);
        let waited = (bench.now - start).as_secs_f64() / 0.067_108_864;
        assert!((waited - f64::from(retry_cnt + 1)).abs() < 0.01, "{waited} timeouts");
        bench.assert_idle();
    }
}

/// IBTA §9.7.5.2.8: the receiver's timer is waited for; the count runs down without progress; 7 is for ever.
#[test]
fn receiver_not_ready() {
    for rnr_retry in [0, 3] {
        let mut bench = Bench::new(Setup { rnr_retry, min_rnr_timer: 14, ..Setup::default() });
        let from = bench.nodes[0].sge(0, 8);
        let start = bench.now;
        bench.nodes[0].send(send(1, from));
        bench.run();
        assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::RnrRetryExcErr)]);
        assert_eq!(bench.nodes[1].count(Counter::SendRnrErr), u64::from(rnr_retry) + 1);
        // Code 14: 1.28 ms.
        assert!(bench.now - start >= Duration::from_micros(1280) * u32::from(rnr_retry));
        assert_eq!(bench.nodes[1].qp.state(), QpState::Rts, "IBTA class B: the responder goes on");
    }
    let mut bench = Bench::rc();
    let from = bench.nodes[0].sge(0, 3000);
    (1..4).for_each(|id| bench.nodes[0].send(send(id, from)));
    bench.run_for(Duration::from_millis(100));
    assert!(bench.nodes[0].count(Counter::RcvdRnrErr) > 50);
    assert!(bench.nodes[0].sent().is_empty());
    (1..4).for_each(|id| bench.nodes[1].recv(id, 0, 3000));
    bench.run();
    assert_eq!((bench.nodes[0].sent(), bench.nodes[1].received()), (ok(1..4), ok(1..4)));
    assert_eq!(bench.nodes[0].count(Counter::LocalAckTimeoutErr), 0);
}

#[test]
fn packets_of_strangers_are_dropped_and_counted() {
    let mut bench = Bench::rc();
    bench.nodes[0].recv(1, 0, 64);
    let good = request(&bench, Opcode::RC_SEND_ONLY, 0);
    let mut bytes = Vec::new();
    good.emit(&mut bytes);
    let meta = PacketMeta {
        link: PathLink::Udp,
        src: "10.0.0.99".parse().unwrap(),
        dst: bench.nodes[0].ip,
        traffic_class: 0,
        hop_limit: 64,
        ip_id: 0,
        udp_payload_len: bytes.len() as u16,
        flow_label: 0,
        dlid_path_bits: 0,
    };
    bench.inject(0, &bytes, &meta);
    let mut foreign = good;
    foreign.bth.pkey = PKey(0x8001);
    bench.forge(0, &foreign);
    let mut service = good;
    service.bth.opcode = Opcode::UC_SEND_ONLY;
    bench.forge(0, &service);
    let mut version = good;
    version.bth.tver = 1;
    bench.forge(0, &version);
    let node = &bench.nodes[0];
    let counts =
        [Counter::DropWrongPeer, Counter::DropBadPkey, Counter::DropBadOpcode, Counter::DropMalformed];
    assert_eq!(counts.map(|c| node.count(c)), [1; 4]);
    assert!(bench.nodes[0].received().is_empty());
    assert_eq!(answers(&mut bench), []);
    // MigReq 0, as Linux sends it, is welcome (cases RX-09).
    assert!(!good.bth.mig_req);
    bench.forge(0, &good);
    assert_eq!(bench.nodes[0].received(), ok([1]));
}
