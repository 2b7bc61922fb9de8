//! Public bug reports of other implementations as tests (rows RX of the project's case list), and the rules of
//! acknowledging, repeating and fencing that they turn on.

use everywire_wire::{Aeth, AtomicEth, Opcode, Reth, Syndrome};

use super::*;

static PAYLOAD: [u8; 4096] = [9; 4096];

/// A request to node 0, `ahead` PSNs after the first.
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

fn read_request(bench: &Bench, ahead: u32, va: u64, length: u32) -> RocePacket<'static> {
    let mut packet = request(bench, Opcode::RC_READ_REQUEST, ahead);
    packet.reth = Some(Reth { va, rkey: RKey(0x1000), length });
    packet
}

fn write_request(bench: &Bench, opcode: Opcode, ahead: u32, len: usize, total: u32) -> RocePacket<'static> {
    let mut packet = request(bench, opcode, ahead);
    packet.payload = &PAYLOAD[..len];
    packet.reth = opcode.has_reth().then_some(Reth { va: BASE, rkey: RKey(0x1000), length: total });
    packet
}

/// What node 0 has to say now: (opcode, PSN after the first expected, syndrome).
fn answers(bench: &mut Bench) -> Vec<(&'static str, u32, Option<Syndrome>)> {
    bench.transmit();
    // A deferred acknowledgement becomes due.
    bench.now += Duration::from_micros(50);
    bench.transmit();
    let first = Psn::new(bench.setup.psns[1]);
    let log = std::mem::take(&mut bench.log);
    let packets = log.iter().filter(|(from, _)| *from == 0).map(|(_, b)| RocePacket::parse(b).unwrap());
    packets
        .map(|p| (p.bth.opcode.name(), first.distance(p.bth.psn) as u32, p.aeth.map(|a| a.syndrome)))
        .collect()
}

const ACK: Option<Syndrome> = Some(Syndrome::ACK_NO_CREDITS);

/// RX-01: a READ served again in the middle of a WRITE leaves the WRITE alone.
#[test]
fn duplicate_read_within_a_write() {
    let mut bench = Bench::rc();
    let read = read_request(&bench, 0, BASE + 8192, 3000);
    bench.forge(0, &read);
    assert_eq!(answers(&mut bench).len(), 3);
    bench.forge(0, &write_request(&bench, Opcode::RC_WRITE_FIRST, 3, 1024, 3000));
    bench.forge(0, &read);
    bench.forge(0, &write_request(&bench, Opcode::RC_WRITE_MIDDLE, 4, 1024, 0));
    bench.forge(0, &write_request(&bench, Opcode::RC_WRITE_LAST, 5, 952, 0));
    let seen = answers(&mut bench);
    assert_eq!(
        seen[..3],
        [
            ("RC RDMA Read Response First", 0, ACK),
            ("RC RDMA Read Response Middle", 1, None),
            ("RC RDMA Read Response Last", 2, ACK)
        ]
    );
    assert_eq!(seen[3..], [("RC Acknowledge", 5, ACK)], "no NAK");
    assert_eq!(bench.nodes[0].bytes()[..3001], [vec![9; 3000], vec![0]].concat());
}

/// RX-02: a repeated WRITE is acknowledged with the PSN of the newest SEND or WRITE, never of a READ.
#[test]
fn duplicate_write_is_not_acknowledged_beyond_a_read() {
    let mut bench = Bench::rc();
    let write = write_request(&bench, Opcode::RC_WRITE_ONLY, 0, 8, 8);
    bench.forge(0, &write);
    bench.forge(0, &write_request(&bench, Opcode::RC_WRITE_ONLY, 1, 8, 8));
    bench.forge(0, &read_request(&bench, 2, BASE, 3000));
    answers(&mut bench);
    bench.forge(0, &write);
    assert_eq!(answers(&mut bench), [("RC Acknowledge", 1, ACK)]);
}

/// RX-02, the other end: an acknowledgement beyond a READ whose data is missing asks for the data again.
#[test]
fn acknowledgement_never_completes_a_read() {
    let mut bench = Bench::rc();
    let data = pattern(1, 3000);
    bench.nodes[1].bytes()[..3000].copy_from_slice(&data);
    let mut seen = 0;
    // Every response of the first round is lost; the ACK of the SEND behind it gets through.
    bench.judge = Box::new(move |from, p| {
        seen += u32::from(from == 1 && p.bth.opcode.is_read_response());
        if from == 1 && p.bth.opcode.is_read_response() && seen <= 3 { Fate::Drop } else { Fate::Deliver }
    });
    bench.nodes[1].recv(1, 10_000, 64);
    let (into, from) = (bench.nodes[0].sge(0, 3000), bench.nodes[1].remote(0));
    let small = bench.nodes[0].sge(9000, 8);
    bench.nodes[0].send(read(1, into, from));
    bench.nodes[0].send(send(2, small));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2]));
    assert_eq!(bench.nodes[0].bytes()[..3000], data);
    assert_eq!(bench.nodes[1].received(), ok([1]), "the SEND was executed once");
    assert_eq!(bench.nodes[0].count(Counter::ImpliedNakSeqErr), 1);
    assert_eq!(bench.nodes[0].count(Counter::LocalAckTimeoutErr), 0);
}

/// RX-07: payloads of 0 to 9 bytes for every operation: the pad is neither delivered nor stored.
#[test]
fn pad_bytes_are_never_delivered() {
    for len in 0..10u32 {
        let mut bench = Bench::rc();
        bench.nodes[0].bytes()[..16].fill(0xaa);
        bench.nodes[1].bytes()[500..516].fill(0xbb);
        (0..3).for_each(|id| bench.nodes[1].recv(id, 100 * id, 64));
        let (from, into) = (bench.nodes[0].sge(0, len), bench.nodes[0].sge(64, len));
        let at = |b: &Bench, off| b.nodes[1].remote(off);
        bench.nodes[0].send(send(1, from));
        bench.nodes[0].send(SendWr::new(2, SendOp::SendImm(1)).with_sges([from]));
        bench.nodes[0].send(write(3, from, at(&bench, 300)));
        let remote = at(&bench, 400);
        bench.nodes[0].send(SendWr::new(4, SendOp::WriteImm { remote, imm: 1 }).with_sges([from]));
        bench.nodes[0].send(read(5, into, at(&bench, 500)));
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok(1..6));
        let lens: Vec<u32> = bench.nodes[1].env.recvs.iter().map(|c| c.byte_len).collect();
        assert_eq!(lens, [len; 3]);
        let full = len as usize;
        for start in [0, 100, 300, 400] {
            let bytes = &bench.nodes[1].bytes()[start..start + 16];
            assert!(bytes[..full].iter().all(|b| *b == 0xaa) && bytes[full..].iter().all(|b| *b == 0));
        }
        let bytes = &bench.nodes[0].bytes()[64..80];
        assert!(bytes[..full].iter().all(|b| *b == 0xbb) && bytes[full..].iter().all(|b| *b == 0));
        for (_, packet) in &bench.log {
            let packet = RocePacket::parse(packet).unwrap();
            let pad = if packet.payload.is_empty() { 0 } else { (4 - len % 4) % 4 };
            assert_eq!(u32::from(packet.bth.pad_count), pad);
        }
    }
}

/// RX-09: MigReq is 1 in everything that is sent, answers too.
#[test]
fn mig_req_is_set_everywhere() {
    let mut bench = Bench::rc();
    bench.nodes[1].recv(1, 0, 64);
    let (from, remote) = (bench.nodes[0].sge(0, 64), bench.nodes[1].remote(0));
    bench.nodes[0].send(send(1, from));
    bench.nodes[0].send(read(2, from, remote));
    bench.nodes[0]
        .send(SendWr::new(3, SendOp::FetchAdd { remote, add: 1 }).with_sges([bench.nodes[0].sge(0, 8)]));
    bench.run();
    assert!(bench.log.iter().any(|(from, _)| *from == 1));
    assert!(bench.log.iter().all(|(_, p)| RocePacket::parse(p).unwrap().bth.mig_req));
}

/// RX-16: which packet may follow which. One of a single packet with invalidate starts a message, takes one receive and
/// tells the key.
#[test]
fn send_only_with_invalidate_starts_a_message() {
    let mut bench = Bench::rc();
    let key = bench.nodes[0].env.memory.register(PD, 0, 8, Access::REMOTE_READ);
    bench.nodes[0].recv(1, 0, 64);
    bench.nodes[0].recv(2, 0, 64);
    let mut packet = request(&bench, Opcode::RC_SEND_ONLY_INV, 0);
    packet.ieth = Some(everywire_wire::Ieth { rkey: RKey(key) });
    bench.forge(0, &packet);
    let wc = bench.nodes[0].env.recvs.pop_front().unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.invalidated), (1, WcStatus::Success, Some(RKey(key))));
    assert_eq!(bench.nodes[0].qp.receives_outstanding(), 1);
}

/// RX-17: memory that starts and ends anywhere, segments that cross borders of regions' neighbours: no false error.
#[test]
fn no_false_protection_errors_at_borders() {
    for (start, len) in [(0, 1), (4095, 1), (4095, 2), (1, 4095), (LEN as u64 - 1, 1), (0, LEN as u32)] {
        let mut bench = Bench::new(Setup { mtu: Mtu::M4096, ..Setup::default() });
        let (from, remote) = (bench.nodes[0].sge(start, len), bench.nodes[1].remote(start));
        bench.nodes[0].send(write(1, from, remote));
        bench.nodes[0].send(read(2, from, remote));
        bench.nodes[1].recv(3, start, len);
        bench.nodes[0].send(send(3, from));
        bench.run();
        assert_eq!(bench.nodes[0].sent(), ok(1..4), "{start} {len}");
    }
}

/// RX-20: length 0 asks nothing of keys or addresses, makes one completion and keeps its place in line.
#[test]
fn empty_operations_need_no_key() {
    let mut bench = Bench::rc();
    let nowhere = Remote { addr: 0, rkey: RKey(0) };
    let bad = Sge { addr: 1, length: 0, lkey: LKey(0xbad) };
    bench.nodes[1].qp.post_recv(&mut bench.nodes[1].env, RecvWr::new(7, [])).unwrap();
    let (from, remote) = (bench.nodes[0].sge(0, 50_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, remote));
    bench.nodes[0].send(write(2, bad, nowhere));
    bench.nodes[0].send(SendWr::new(3, SendOp::Write { remote: nowhere }));
    bench.nodes[0].send(read(4, bad, nowhere));
    bench.nodes[0].send(send(5, bad));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok(1..6));
    assert_eq!(bench.nodes[1].received(), ok([7]));
    // Linux's SRP target does this right after connecting: VA 0, R_Key 0, length 0.
    let mut packet = write_request(&bench, Opcode::RC_WRITE_ONLY, 0, 0, 0);
    packet.reth = Some(Reth::default());
    bench.log.clear();
    bench.forge(0, &packet);
    assert_eq!(answers(&mut bench), [("RC Acknowledge", 0, ACK)]);
}

/// RX-21: what an operation does not use is never a reason to refuse it.
#[test]
fn unused_fields_are_not_looked_at() {
    let mut bench = Bench::rc();
    bench.nodes[1].recv(1, 0, 64);
    let dest = super::super::UdDest { path: bench.path(1), qpn: Qpn::new(1), qkey: QKey(1) };
    let remote = bench.nodes[1].remote(0);
    let mut wr = SendWr::new(1, SendOp::WriteImm { remote, imm: u32::MAX });
    (wr.ud, wr.solicited) = (Some(dest), true);
    bench.nodes[0].send(wr);
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1]));
    assert!(bench.nodes[1].env.recvs[0].solicited);
}

/// RX-27's transport half: errors and solicited messages ask for an event, others do not.
#[test]
fn solicited_events_reach_the_completion() {
    let mut bench = Bench::rc();
    (0..2).for_each(|id| bench.nodes[1].recv(id, 0, 8192));
    let from = bench.nodes[0].sge(0, 3000);
    let mut wr = send(1, from);
    wr.solicited = true;
    bench.nodes[0].send(wr);
    bench.nodes[0].send(send(2, from));
    bench.run();
    let flags: Vec<bool> = bench.nodes[1].env.recvs.iter().map(|c| c.solicited).collect();
    assert_eq!(flags, [true, false]);
    let marked = bench.log.iter().filter(|(_, p)| RocePacket::parse(p).unwrap().bth.solicited).count();
    assert_eq!(marked, 1, "on the last packet only");
}

/// IBTA §9.7.4.1.3: one NAK a gap; everything after it is dropped until the missing packet comes.
#[test]
fn one_sequence_nak_for_a_gap() {
    let mut bench = Bench::rc();
    let nak = Some(Syndrome::nak(everywire_wire::NakCode::PsnSequence));
    let packet = |bench: &Bench, n| write_request(bench, Opcode::RC_WRITE_ONLY, n, 8, 8);
    bench.forge(0, &packet(&bench, 0));
    for n in [2, 3, 4] {
        bench.forge(0, &packet(&bench, n));
    }
    assert_eq!(answers(&mut bench), [("RC Acknowledge", 1, nak)]);
    bench.forge(0, &packet(&bench, 5));
    assert_eq!(answers(&mut bench), []);
    // The requester went back, and 1 was lost once more.
    bench.forge(0, &packet(&bench, 2));
    assert_eq!(answers(&mut bench), [("RC Acknowledge", 1, nak)]);
    for n in [1, 2] {
        bench.forge(0, &packet(&bench, n));
    }
    assert_eq!(answers(&mut bench), [("RC Acknowledge", 2, ACK)]);
}

/// IBTA §9.7.4.5 and C9-150: an atomic is executed once, and its first result given again.
#[test]
fn atomics_are_replayed_not_repeated() {
    let mut bench = Bench::new(Setup { rd_atomic: 2, ..Setup::default() });
    let add = |bench: &Bench, n| {
        let mut packet = request(bench, Opcode::RC_FETCH_ADD, n);
        packet.atomic_eth = Some(AtomicEth { va: BASE, rkey: RKey(0x1000), swap_add: 5, compare: 0 });
        packet
    };
    let originals = |bench: &mut Bench| -> Vec<(u32, u64)> {
        bench.transmit();
        let first = Psn::new(bench.setup.psns[1]);
        let log = std::mem::take(&mut bench.log);
        log.iter()
            .map(|(_, b)| RocePacket::parse(b).unwrap())
            .map(|p| (first.distance(p.bth.psn) as u32, p.atomic_ack.unwrap().original))
            .collect()
    };
    for n in 0..3 {
        bench.forge(0, &add(&bench, n));
        assert_eq!(originals(&mut bench), [(n, u64::from(n) * 5)]);
    }
    bench.forge(0, &add(&bench, 1));
    bench.forge(0, &add(&bench, 2));
    assert_eq!(originals(&mut bench), [(1, 5), (2, 10)]);
    assert_eq!(bench.nodes[0].bytes()[..8], 15u64.to_ne_bytes());
    // Older than what was agreed to be remembered: silence, and no second execution.
    bench.forge(0, &add(&bench, 0));
    // A different operation under a remembered PSN: silence.
    let mut other = add(&bench, 2);
    other.bth.opcode = Opcode::RC_COMPARE_SWAP;
    bench.forge(0, &other);
    assert_eq!(originals(&mut bench), []);
    assert_eq!(bench.nodes[0].bytes()[..8], 15u64.to_ne_bytes());
}

/// IBTA C9-108: a repeated READ may begin within the original, and nowhere else.
#[test]
fn repeated_reads_stay_within_the_original() {
    let mut bench = Bench::rc();
    bench.forge(0, &read_request(&bench, 0, BASE + 100, 3000));
    answers(&mut bench);
    // From the second packet on.
    bench.forge(0, &read_request(&bench, 1, BASE + 100 + 1024, 1976));
    assert_eq!(
        answers(&mut bench),
        [("RC RDMA Read Response First", 1, ACK), ("RC RDMA Read Response Last", 2, ACK)]
    );
    for (ahead, va, length) in [
        (1, BASE + 100, 1976),        // not where the second packet was
        (1, BASE + 100 + 1024, 1977), // longer than what was left
        (0, BASE + 101, 2999),
        (2, BASE + 100 + 2048, 1024),
    ] {
        bench.forge(0, &read_request(&bench, ahead, va, length));
        assert_eq!(answers(&mut bench), [], "{ahead} {length}");
    }
    // A key withdrawn since: no answer, and no harm.
    bench.nodes[0].env.memory.regions[0].valid = false;
    bench.forge(0, &read_request(&bench, 0, BASE + 100, 3000));
    assert_eq!(answers(&mut bench), []);
    assert_eq!(bench.nodes[0].qp.state(), QpState::Rts);
}

/// IBTA C10-100: a fenced request waits for READs and atomics before it.
#[test]
fn fence_waits_for_reads() {
    let mut bench = Bench::rc();
    let (into, from) = (bench.nodes[0].sge(0, 64), bench.nodes[1].remote(0));
    bench.nodes[1].bytes()[..64].fill(5);
    // The SEND sends what the READ fetched.
    bench.nodes[1].recv(1, 1000, 64);
    bench.nodes[0].send(read(1, into, from));
    let mut wr = send(2, into);
    wr.fence = true;
    bench.nodes[0].send(wr);
    bench.transmit();
    assert_eq!(bench.opcodes(0), ["RC RDMA Read Request"], "nothing behind the fence");
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2]));
    assert_eq!(bench.nodes[1].bytes()[1000..1064], [5; 64]);
}

/// A lost response in the middle is asked for again from there, not from the start.
#[test]
fn read_resumes_where_it_broke() {
    let mut bench = Bench::rc();
    let data = pattern(2, 10_000);
    bench.nodes[1].bytes()[..10_000].copy_from_slice(&data);
    let mut n = 0;
    bench.judge = Box::new(move |from, p| {
        n += u32::from(from == 1 && p.bth.opcode.is_read_response());
        if from == 1 && n == 5 {
            n += 1;
            Fate::Drop
        } else {
            Fate::Deliver
        }
    });
    let (into, from) = (bench.nodes[0].sge(0, 10_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(read(1, into, from));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1]));
    assert_eq!(bench.nodes[0].bytes()[..10_000], data);
    let requests: Vec<Reth> =
        bench.log.iter().filter_map(|(_, p)| RocePacket::parse(p).unwrap().reth).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[1].va, requests[1].length), (BASE + 4 * 1024, 10_000 - 4 * 1024));
}

/// A window that fits a small receiver: everything gets through, acknowledged as it goes, with no timer's help.
#[test]
fn a_closing_window_asks_for_an_acknowledgement() {
    let mut bench = Bench::rc();
    let peer = bench.nodes[1].ip;
    bench.nodes[0].env.windows.insert(peer, PeerWindow::new(0, 0));
    let data = pattern(1, 600_000);
    bench.nodes[0].bytes()[..600_000].copy_from_slice(&data);
    let (from, remote) = (bench.nodes[0].sge(0, 600_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, remote));
    let start = bench.now;
    while bench.nodes[0].env.sends.is_empty() {
        assert!(bench.step());
        let window = &bench.nodes[0].env.windows[&peer];
        assert!(window.in_flight() <= window.limit());
    }
    assert_eq!(bench.nodes[1].bytes()[..600_000], data);
    assert!(bench.now - start < Duration::from_millis(1), "{:?}", bench.now - start);
    assert_eq!(bench.nodes[0].count(Counter::RetransmittedPkts), 0);
    bench.assert_idle();
}

/// READs ask for no more than our own receive buffer holds.
#[test]
fn reads_keep_within_our_own_window() {
    let mut bench = Bench::new(Setup { rd_atomic: 16, ..Setup::default() });
    bench.nodes[0].env.read_window = PeerWindow::new(0, 0);
    let (into, from) = (bench.nodes[0].sge(0, 900_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(read(1, into, from));
    bench.nodes[0].send(read(2, into, from));
    while bench.nodes[0].env.sends.len() < 2 {
        assert!(bench.step());
        let window = &bench.nodes[0].env.read_window;
        assert!(window.in_flight() <= window.limit());
    }
    assert_eq!(bench.nodes[0].count(Counter::RetransmittedPkts), 0);
    bench.assert_idle();
}

/// A window that others hold for good delays a queue pair; it does not stop it.
#[test]
fn a_window_held_by_others_is_outwaited() {
    let mut bench = Bench::new(Setup { timeout: 0, ..Setup::default() });
    let peer = bench.nodes[1].ip;
    let window = bench.nodes[0].env.window(peer);
    let all = window.limit();
    window.charge(all);
    let reads = bench.nodes[0].env.read_window.limit();
    bench.nodes[0].env.read_window.charge(reads);
    let (from, remote) = (bench.nodes[0].sge(0, 20_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, remote));
    bench.nodes[0].send(read(2, from, remote));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2]));
    assert_eq!(bench.nodes[0].env.windows[&peer].in_flight(), all);
}

/// A peer that acknowledges rarely, and only what was asked for, as Linux does.
#[test]
fn acknowledgement_is_asked_for_often_enough() {
    let mut bench = Bench::rc();
    let (from, remote) = (bench.nodes[0].sge(0, 60_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, remote));
    bench.run();
    let requests: Vec<bool> = bench
        .log
        .iter()
        .filter(|(at, _)| *at == 0)
        .map(|(_, p)| RocePacket::parse(p).unwrap().bth.ack_req)
        .collect();
    assert!(requests.chunks(16).all(|c| c.len() < 16 || c.contains(&true)));
    assert_eq!(requests.last(), Some(&true));
}

#[test]
fn a_lost_acknowledgement_costs_milliseconds_not_the_timeout() {
    // Timeout 19 is Linux's connection manager's: 2.1 s.
    let mut bench = Bench::new(Setup { timeout: 19, ..Setup::default() });
    let mut lost = false;
    bench.judge =
        Box::new(
            move |from, _| {
                if from == 1 && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Deliver }
            },
        );
    let (from, remote) = (bench.nodes[0].sge(0, 60_000), bench.nodes[1].remote(0));
    let start = bench.now;
    bench.nodes[0].send(write(1, from, remote));
    while bench.nodes[0].env.sends.is_empty() {
        bench.step();
    }
    assert!(bench.now - start < Duration::from_millis(20), "{:?}", bench.now - start);
    assert_eq!(bench.nodes[0].count(Counter::LocalAckTimeoutErr), 0, "and no retry");
}

/// An acknowledgement of a packet in the middle is good for all before it, and only for those.
#[test]
fn coalesced_acknowledgements() {
    let mut bench = Bench::rc();
    bench.judge = Box::new(|_, _| Fate::Drop);
    let (from, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(0));
    (0..6).for_each(|id| bench.nodes[0].send(write(id, from, remote)));
    bench.transmit();
    for (psn, done) in [(2, 0..3), (2, 0..0), (4, 3..5), (1, 0..0), (5, 5..6)] {
        let mut ack = request(&bench, Opcode::RC_ACK, 0);
        ack.bth.psn = Psn::new(bench.setup.psns[0]).add(psn);
        ack.aeth = Some(Aeth { syndrome: Syndrome::ack(3), msn: 0 });
        bench.forge(0, &ack);
        assert_eq!(bench.nodes[0].sent(), ok(done), "ACK {psn}");
    }
    assert_eq!(bench.nodes[0].qp.poll_timeout(), None);
}

#[test]
fn a_stream_of_single_packets_does_not_keep_an_acknowledgement_waiting() {
    // A driver that cannot segment: every burst is one packet, and none has room for an ACK.
    let mut bench = Bench::rc();
    bench.max_segments = 1;
    bench.nodes[1].recv(1, 0, 64);
    let message = send(1, bench.nodes[0].sge(0, 64));
    bench.nodes[0].send(message);
    bench.transmit();
    let (_, bytes) = bench.log.pop().unwrap();
    for i in 0..8 {
        bench.nodes[0].recv(i, 4096 + i * 64, 64);
        let answer = send(i, bench.nodes[1].sge(0, 64));
        bench.nodes[1].send(answer);
    }
    bench.forge(1, &RocePacket::parse(&bytes).unwrap());
    bench.log.clear();
    bench.transmit();
    let order = bench.opcodes(1);
    assert_eq!(order.len(), 9, "{order:?}");
    assert_eq!(order.iter().position(|opcode| *opcode == "RC Acknowledge"), Some(1), "{order:?}");
}
