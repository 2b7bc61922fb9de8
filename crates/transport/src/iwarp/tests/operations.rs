//! Every operation of RFC 5040 at the edges of its length, over streams of every kind; order, fences, depths, memory.

use super::*;
use crate::ib::wr::{PostError, WcOpcode};
use crate::iwarp::{LARGE_ULPDU, post::MAX_READ_SGE};
use crate::memory::{BindWindow, FastRegister};

/// CRC, markers, MULPDU and pieces in every mixture that matters.
fn setups() -> Vec<Setup> {
    let mut all = Vec::new();
    for (at, (crc, markers)) in [
        (true, [false, false]),
        (false, [false, false]),
        (true, [true, false]),
        (true, [false, true]),
        (false, [true, true]),
        (true, [true, true]),
    ]
    .into_iter()
    .enumerate()
    {
        for (ulpdu, piece) in [(1442, 3000), (LARGE_ULPDU, 70_000), (128, 1), (1424, 700)] {
            let seed = (at * 10 + all.len()) as u64;
            all.push(Setup { crc, markers, ulpdu, piece, seed, ..Setup::default() });
        }
    }
    all
}

/// Lengths around nothing, a segment, several and many of them.
fn lengths(ulpdu: usize) -> Vec<usize> {
    let (tagged, untagged) = (ulpdu - 14, ulpdu - 18);
    let mut all = vec![0, 1, 2, 3, 4, 7, 8, 511, 512, 513];
    for edge in [tagged, untagged] {
        all.extend([edge - 1, edge, edge + 1, 2 * edge, 2 * edge + 1]);
    }
    all
}

#[test]
fn sends_writes_and_reads_of_every_length() {
    for setup in setups() {
        let ulpdu = setup.ulpdu;
        let mut bench = Bench::new(setup);
        bench.nodes[1].env.memory.pins = true;
        for (round, len) in lengths(ulpdu).into_iter().enumerate() {
            let data = pattern(len, round as u8);
            let remote = bench.nodes[1].remote(200_000);
            let node = &mut bench.nodes[0];
            node.bytes()[..len].copy_from_slice(&data);
            let sge = node.sge(0, len as u32);
            node.send(SendWr::new(1, SendOp::Send).with_sges([sge]));
            node.send(SendWr::new(2, SendOp::Write { remote }).with_sges([sge]));
            let into = node.sge(400_000, len as u32);
            node.send(SendWr::new(3, SendOp::Read { remote }).with_sges([into]));
            bench.nodes[1].recv(9, 100_000, len as u32 + 3);
            bench.nodes[1].bytes()[200_000 + len] = 0x5a;
            bench.run();
            assert_eq!(bench.nodes[0].sent(), ok([1, 2, 3]), "{len} bytes, MULPDU {ulpdu}");
            let got = bench.nodes[1].completions();
            assert_eq!((got[0].wr_id, got[0].status, got[0].byte_len as usize), (9, WcStatus::Success, len));
            assert_eq!(bench.nodes[1].bytes()[100_000..100_000 + len], data);
            assert_eq!(bench.nodes[1].bytes()[200_000..200_000 + len], data);
            assert_eq!(bench.nodes[1].bytes()[200_000 + len], 0x5a, "wrote past the end");
            assert_eq!(bench.nodes[0].bytes()[400_000..400_000 + len], data);
        }
        bench.assert_idle();
    }
}

/// A responder reads for a long time while both ends write: messages take turns and nothing starves or mixes.
#[test]
fn both_ways_at_once() {
    for setup in setups() {
        let mut bench = Bench::new(setup);
        let data = [pattern(90_000, 1), pattern(90_000, 2)];
        // The responder is held until the first FPDU of the initiator.
        for (at, data) in data.iter().enumerate() {
            bench.nodes[at].bytes()[..90_000].copy_from_slice(data);
        }
        for at in 0..2 {
            let (to, from) = (bench.nodes[1 - at].remote(300_000), bench.nodes[1 - at].remote(0));
            let node = &mut bench.nodes[at];
            let source = [node.sge(0, 50_000), node.sge(50_000, 0), node.sge(50_000, 40_000)];
            for id in 0..3 {
                node.send(SendWr::new(id, SendOp::Write { remote: to }).with_sges(source));
                let sink = node.sge(500_000, 90_000);
                node.send(SendWr::new(10 + id, SendOp::Read { remote: from }).with_sges([sink]));
            }
        }
        bench.run();
        for at in 0..2 {
            assert_eq!(bench.nodes[at].sent(), ok([0, 10, 1, 11, 2, 12]));
            assert_eq!(bench.nodes[at].bytes()[300_000..390_000], data[1 - at]);
            assert_eq!(bench.nodes[at].bytes()[500_000..590_000], data[1 - at]);
            assert_eq!(bench.nodes[at].count(Counter::RxReadRequests), 3);
        }
        bench.assert_idle();
    }
}

/// RFC 5041 §5.1, RFC 5040 §4: what goes over the wire, field by field.
#[test]
fn segments_of_a_message() {
    let mut bench = Bench::new(Setup { ulpdu: 128, ..Setup::default() });
    bench.nodes[1].recv(1, 0, 300);
    bench.nodes[1].recv(2, 0, 300);
    let remote = bench.nodes[1].remote(8);
    let rkey = remote.rkey.0.to_be_bytes();
    let node = &mut bench.nodes[0];
    let sge = node.sge(0, 250);
    node.send(SendWr::new(1, SendOp::Send).with_sges([sge]));
    node.send(SendWr { solicited: true, ..SendWr::new(2, SendOp::Send) });
    node.send(SendWr::new(3, SendOp::Write { remote }).with_sges([sge]));
    bench.transmit(0);
    let heads: Vec<(usize, Vec<u8>)> =
        bench.fpdus(0).iter().map(|s| (s.len(), s[..s.len().min(18)].to_vec())).collect();
    let untagged = |control: [u8; 2], msn: u8, mo: u8| {
        let mut head = control.to_vec();
        head.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, mo]);
        head
    };
    assert_eq!(heads[0], (128, untagged([0x01, 0x43], 1, 0)));
    assert_eq!(heads[1], (128, untagged([0x01, 0x43], 1, 110)));
    assert_eq!(heads[2], (48, untagged([0x41, 0x43], 1, 220)));
    assert_eq!(heads[3], (18, untagged([0x41, 0x45], 2, 0)));
    for (at, to, control) in [(4, 8, 0x81), (5, 122, 0x81), (6, 236, 0xc1)] {
        let mut expected = vec![control, 0x40];
        expected.extend(rkey);
        expected.extend((BASE + to).to_be_bytes());
        assert_eq!(heads[at].1[..14], expected);
    }
    assert_eq!(heads.len(), 7);
}

/// Data given inline is what is sent, whatever happens to the caller's buffer (cases IW-08).
#[test]
fn inline_and_solicited() {
    let mut bench = Bench::new(Setup::default());
    bench.nodes[1].recv(1, 0, 100);
    let remote = bench.nodes[1].remote(1000);
    let node = &mut bench.nodes[0];
    let send = SendWr::new(1, SendOp::Send).with_inline(*b"hello").unsignaled();
    node.send(SendWr { solicited: true, ..send });
    node.send(SendWr::new(2, SendOp::Write { remote }).with_inline(*b"there"));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([2]));
    let got = bench.nodes[1].completions();
    assert!(got[0].solicited);
    assert_eq!((got[0].byte_len, got[0].opcode), (5, WcOpcode::Recv));
    assert_eq!(bench.nodes[1].bytes()[..5], *b"hello");
    assert_eq!(bench.nodes[1].bytes()[1000..1005], *b"there");
}

#[test]
fn send_with_invalidate() {
    let mut bench = Bench::new(Setup::default());
    let window = bench.nodes[1].env.memory.window(PD, true);
    let bind = BindWindow {
        window,
        new_rkey: RKey(window.0 + 1),
        mr: LKey(bench.nodes[1].key),
        addr: BASE,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    let (rkey, data) = (bind.new_rkey, *b"window");
    bench.nodes[1].send(SendWr::new(1, SendOp::BindMw(bind)));
    bench.nodes[1].recv(5, 0, 64);
    let node = &mut bench.nodes[0];
    let remote = Remote { addr: BASE + 7, rkey };
    node.send(SendWr::new(1, SendOp::Send));
    bench.run();
    assert_eq!(bench.nodes[1].sent(), ok([1]));
    bench.nodes[1].recv(6, 0, 64);
    bench.nodes[0].send(SendWr::new(2, SendOp::Write { remote }).with_inline(data));
    let inv = SendWr::new(3, SendOp::SendInv(rkey)).with_inline(*b"x");
    bench.nodes[0].send(SendWr { solicited: true, ..inv });
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2, 3]));
    let got = bench.nodes[1].completions();
    assert_eq!((got[1].wr_id, got[1].invalidated, got[1].solicited), (6, Some(rkey), true));
    assert_eq!(bench.nodes[1].bytes()[7..13], data);
    // RFC 5040 §4.1: opcode 6 with the STag in its four bytes.
    let last = bench.fpdus(0).pop().unwrap();
    assert_eq!(last[..6], [0x41, 0x46, 0, 0x80, 0, 1]);
    // It opens nothing any more.
    bench.nodes[0].send(SendWr::new(4, SendOp::Write { remote }).with_inline(data));
    bench.run();
    assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
}

#[test]
fn local_operations_in_order() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    let key = node.env.memory.register(PD, 0, 0, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let reg = FastRegister {
        mr: LKey(key),
        new_key: RKey(key + 1),
        iova: 0x9000,
        length: 100,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        pages: [node.sge(0, 100)].into(),
    };
    node.send(SendWr::new(1, SendOp::FastReg(reg)));
    let sge = Sge { addr: 0x9000, length: 100, lkey: LKey(key + 1) };
    node.send(SendWr::new(2, SendOp::Read { remote }).with_sges([sge]));
    node.send(SendWr::new(3, SendOp::LocalInv(RKey(key + 1))));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2, 3]));
    bench.nodes[0].send(SendWr::new(4, SendOp::LocalInv(RKey(key + 1))));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(4, WcStatus::MwBindErr)]);
}

/// ORD holds READs back, a fence everything; completions stay in the order of posting.
#[test]
fn depth_and_fence() {
    let mut bench = Bench::new(Setup { depth: 2, ..Setup::default() });
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    for id in 0..5 {
        let sink = node.sge(id * 100, 100);
        node.send(SendWr::new(id, SendOp::Read { remote }).with_sges([sink]));
    }
    node.send(SendWr { fence: true, ..SendWr::new(5, SendOp::Write { remote }) });
    bench.transmit(0);
    assert_eq!(bench.fpdus(0).len(), 2, "two READs may be outstanding");
    let bytes: Vec<u8> = bench.wire[1].drain(..).collect();
    bench.deliver(1, &bytes);
    bench.transmit(1);
    bench.transmit(0);
    assert_eq!(bench.fpdus(0).len(), 2);
    bench.run();
    assert_eq!(bench.fpdus(0).len(), 6);
    assert_eq!(bench.nodes[0].sent(), ok(0..6));
    bench.assert_idle();
}

/// A send is complete when the socket has its last byte, not before.
#[test]
fn completes_when_written() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    for id in 0..2 {
        let sge = node.sge(0, 2000);
        node.send(SendWr::new(id, SendOp::Write { remote }).with_sges([sge]));
    }
    bench.transmit(0);
    let half = bench.log[0].len() / 2;
    bench.written(0, half - 1);
    assert_eq!(bench.nodes[0].sent(), []);
    bench.written(0, 1);
    assert_eq!(bench.nodes[0].sent(), ok([0]));
    bench.written(0, half);
    assert_eq!(bench.nodes[0].sent(), ok([1]));
}

#[test]
fn flight_is_bounded() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    let sge = node.sge(0, LEN as u32);
    node.send(SendWr::new(1, SendOp::Write { remote }).with_sges([sge]));
    bench.transmit(0);
    let given = bench.log[0].len();
    assert!(given > 250_000 && given <= 256 * 1024, "{given} bytes in flight");
    assert!(!bench.transmit(0));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1]));
}

/// Cases IW-13: as many segments as InfiniBand devices take, at both ends and on any bounds.
#[test]
fn sixteen_segments() {
    let mut bench = Bench::new(Setup { ulpdu: 200, ..Setup::default() });
    let lengths: Vec<u32> = (0..16).map(|i| [0, 1, 63, 120, 301][i % 5]).collect();
    let total: u32 = lengths.iter().sum();
    let data = pattern(total as usize, 5);
    let mut at = 0;
    let (mut from, mut into) = (Vec::new(), Vec::new());
    for (i, length) in lengths.iter().enumerate() {
        let place = 1000 * i;
        let (offset, len) = (at as usize, *length as usize);
        bench.nodes[0].bytes()[place..place + len].copy_from_slice(&data[offset..offset + len]);
        from.push(bench.nodes[0].sge(place as u64, *length));
        // The sink's bounds are elsewhere.
        into.push(bench.nodes[1].sge(1000 * i as u64, lengths[15 - i]));
        at += length;
    }
    let node = &mut bench.nodes[1];
    let wr = RecvWr::new(1, into.clone());
    node.qp.post_recv(&mut node.env, wr).unwrap();
    bench.nodes[0].send(SendWr::new(2, SendOp::Send).with_sges(from));
    bench.run();
    assert_eq!((bench.nodes[0].sent(), bench.nodes[1].received()), (ok([2]), ok([1])));
    let bytes = bench.nodes[1].bytes();
    let landed: Vec<u8> =
        into.iter().flat_map(|s| bytes[(s.addr - BASE) as usize..][..s.length as usize].to_vec()).collect();
    assert_eq!(landed, data);
}

#[test]
fn shared_receive_queue() {
    let mut bench = Bench::new(Setup { srq: true, ..Setup::default() });
    assert_eq!(bench.nodes[1].qp.config().srq, Some(SRQ));
    let wr = RecvWr::new(7, [bench.nodes[1].sge(0, 10)]);
    assert_eq!(bench.nodes[1].qp.post_recv(&mut bench.nodes[1].env, wr.clone()), Err(PostError::UsesSrq));
    bench.nodes[1].env.srq.push_back(wr);
    bench.nodes[0].send(SendWr::new(1, SendOp::Send).with_inline(*b"srq"));
    bench.run();
    assert_eq!(bench.nodes[1].received(), ok([7]));
    bench.nodes[1].qp.modify(&mut bench.nodes[1].env, &QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(bench.nodes[1].env.events, [QpEvent::CommEstablished, QpEvent::LastWqeReached]);
}

/// Cases IW-12: what the wire lacks is refused at the call, with its name.
#[test]
fn refused_at_post() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    let ops = [
        SendOp::SendImm(1),
        SendOp::WriteImm { remote, imm: 1 },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 1, swap: 2 },
    ];
    for op in ops {
        let refused = PostError::UnsupportedOp { op: op.name(), service: "iWARP" };
        assert_eq!(node.qp.post_send(&mut node.env, SendWr::new(1, op)), Err(refused));
    }
    let two = SendWr::new(1, SendOp::Read { remote }).with_sges([node.sge(0, 1), node.sge(1, 1)]);
    let refused = PostError::TooManySges { count: 2, limit: MAX_READ_SGE };
    assert_eq!(node.qp.post_send(&mut node.env, two), Err(refused));
}

/// Cases IW-06: the sink of a READ needs REMOTE_WRITE, or not, by the switch.
#[test]
fn sink_of_a_read() {
    for strict in [true, false] {
        let mut bench = Bench::new(Setup { strict, ..Setup::default() });
        let remote = bench.nodes[1].remote(0);
        let node = &mut bench.nodes[0];
        let key = node.env.memory.register(PD, 0x5000, 64, Access::LOCAL_WRITE);
        let sink = Sge { addr: 0x5000, length: 64, lkey: LKey(key) };
        node.send(SendWr::new(1, SendOp::Read { remote }).with_sges([sink]));
        bench.run();
        let status = if strict { WcStatus::LocProtErr } else { WcStatus::Success };
        assert_eq!(bench.nodes[0].sent(), [(1, status)]);
    }
}

/// SQD stops the send queue between work requests and goes on with RTS.
#[test]
fn drained() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    let sge = node.sge(0, 100);
    node.send(SendWr::new(1, SendOp::Read { remote }).with_sges([sge]));
    bench.transmit(0);
    let node = &mut bench.nodes[0];
    let sqd = QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) };
    node.qp.modify(&mut node.env, &sqd).unwrap();
    node.send(SendWr::new(2, SendOp::Write { remote }));
    assert!(node.qp.modify(&mut node.env, &QpAttr::to(QpState::Rts)).is_err());
    bench.run();
    let node = &mut bench.nodes[0];
    assert_eq!(node.sent(), ok([1]));
    assert_eq!(node.env.events, [QpEvent::SqDrained]);
    node.qp.modify(&mut node.env, &QpAttr::to(QpState::Rts)).unwrap();
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([2]));
}

/// 10,000 idle connections: what each costs beside its queues.
#[test]
fn memory_of_an_idle_queue_pair() {
    let size = std::mem::size_of::<Qp>();
    println!("an idle iWARP queue pair: {size} bytes and nothing on the heap");
    assert!(size < 1536, "{size} bytes");
    let bench = Bench::new(Setup::default());
    bench.assert_idle();
}
