//! Queue pairs at work through the device: cases RX-16, RX-17, RX-20, RX-21, RX-22, RX-25, RX-26, and what is the device's
//! own: loopback, turns, shared receive queues, replay. What the transport does on the wire is tested there.

use std::time::Duration;

use crate::test_support::*;
use crate::*;

fn send(wr_id: u64, sge: Sge) -> SendWr {
    SendWr::new(wr_id, SendOp::Send).with_sges([sge])
}

fn counting(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// wr_id, status and opcode of everything that has completed.
fn brief(side: &Side) -> Vec<(u64, WcStatus, WcOpcode)> {
    side.completions().iter().map(|entry| (entry.wr_id, entry.status, entry.opcode)).collect()
}

use WcStatus::{Success, WrFlushErr};

#[test]
fn every_operation_moves_the_right_bytes() {
    let (mut net, a, b) = connected(QpType::Rc);
    let data = counting(5000, 1);
    a.fill(0, &data);
    b.fill(100_000, &counting(3000, 9));
    b.fill(8, &40u64.to_ne_bytes());
    for n in 0..3 {
        b.qp.post_recv(RecvWr::new(
            100 + n,
            [b.mr.sge(50_000 + n as usize * 8192..58_000 + n as usize * 8192)],
        ))
        .unwrap();
    }
    let ops = [
        (1, SendOp::Send, a.mr.sge(..5000)),
        (2, SendOp::SendImm(0xdead_beef), a.mr.sge(..10)),
        (3, SendOp::Write { remote: b.mr.remote(200_000) }, a.mr.sge(..5000)),
        (4, SendOp::WriteImm { remote: b.mr.remote(300_001), imm: 7 }, a.mr.sge(1..2500)),
        (5, SendOp::Read { remote: b.mr.remote(100_000) }, a.mr.sge(400_000..403_000)),
        (6, SendOp::FetchAdd { remote: b.mr.remote(8), add: 2 }, a.mr.sge(500_000..500_008)),
        (7, SendOp::CompareSwap { remote: b.mr.remote(8), compare: 42, swap: 5 }, a.mr.sge(500_008..500_016)),
    ];
    let list = ops.into_iter().map(|(wr_id, op, sge)| SendWr::new(wr_id, op).with_sges([sge]));
    a.qp.post_send_list(list).unwrap();
    net.run_for(Duration::from_millis(100));
    let opcodes = [
        WcOpcode::Send,
        WcOpcode::Send,
        WcOpcode::RdmaWrite,
        WcOpcode::RdmaWrite,
        WcOpcode::RdmaRead,
        WcOpcode::FetchAdd,
        WcOpcode::CompSwap,
    ];
    let expected: Vec<_> = opcodes.into_iter().zip(1..).map(|(op, n)| (n, Success, op)).collect();
    assert_eq!(brief(&a), expected);
    let received = b.completions();
    let heads: Vec<_> =
        received.iter().map(|entry| (entry.wr_id, entry.opcode, entry.byte_len, entry.imm)).collect();
    let expected = [
        (100, WcOpcode::Recv, 5000, None),
        (101, WcOpcode::Recv, 10, Some(0xdead_beef)),
        (102, WcOpcode::RecvRdmaWithImm, 2499, Some(7)),
    ];
    assert_eq!(heads, expected);
    assert_eq!(received[0].qpn, b.qp.qpn());
    assert!(b.bytes(50_000, 5000) == data);
    assert!(b.bytes(200_000, 5000) == data);
    assert!(b.bytes(300_001, 2499) == data[1..2500]);
    assert!(a.bytes(400_000, 3000) == counting(3000, 9));
    let words = a.bytes(500_000, 16);
    assert_eq!(words, [40u64.to_ne_bytes(), 42u64.to_ne_bytes()].concat());
    assert_eq!(b.bytes(8, 8), 5u64.to_ne_bytes());
}

#[test]
fn send_with_invalidate_takes_one_receive_and_one_key() {
    // RX-16, for messages of one packet and of several.
    for len in [1usize, 5000] {
        let (mut net, a, b) = connected(QpType::Rc);
        let fast = b.pd.alloc_fast_reg_mr(4).unwrap();
        let reg = fast.registration(0x1000, vec![b.mr.sge(0..4096)], all_access());
        let key = reg.new_key;
        b.qp.post_send(SendWr::new(1, SendOp::FastReg(reg))).unwrap();
        (0..2).for_each(|n| b.qp.post_recv(RecvWr::new(10 + n, [b.mr.sge(8192..16_384)])).unwrap());
        net.settle();
        assert_eq!(brief(&b), [(1, Success, WcOpcode::FastReg)]);
        assert_eq!(fast.key(), key);
        let write = |n: u64| SendOp::Write { remote: Remote { addr: 0x1000 + n, rkey: key } };
        a.qp.post_send(SendWr::new(2, write(7)).with_sges([a.mr.sge(..8)])).unwrap();
        a.qp.post_send(SendWr::new(3, SendOp::SendInv(key)).with_sges([a.mr.sge(..len)])).unwrap();
        net.settle();
        assert_eq!(brief(&a), [(2, Success, WcOpcode::RdmaWrite), (3, Success, WcOpcode::Send)]);
        let received = b.completions();
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].invalidated, received[0].byte_len), (Some(key), len as u32));
        a.qp.post_send(SendWr::new(4, write(0)).with_sges([a.mr.sge(..8)])).unwrap();
        net.settle();
        assert_eq!(brief(&a), [(4, WcStatus::RemAccessErr, WcOpcode::RdmaWrite)]);
        assert_eq!(brief(&b), [(11, WrFlushErr, WcOpcode::Recv)], "the error closed both ends");
    }
}

#[test]
fn segments_over_regions_and_pages_give_no_false_protection_error() {
    // RX-17.
    let (mut net, a, b) = connected(QpType::Rc);
    let odd = a.pd.register_vec(counting(12_289, 3), Access::LOCAL_WRITE).unwrap();
    let tail = a.pd.register(4097, Access::empty()).unwrap();
    let sges = [odd.sge(1..12_288), tail.sge(4096..), odd.sge(12_288..), a.mr.sge(0..0)];
    let whole = SendWr::new(77, SendOp::Write { remote: b.mr.remote(4095) }).with_sges(sges);
    a.qp.post_send(whole).unwrap();
    net.settle();
    assert_eq!(brief(&a), [(77, Success, WcOpcode::RdmaWrite)]);
    let mut expected = counting(12_289, 3)[1..12_288].to_vec();
    expected.push(0);
    expected.push(counting(12_289, 3)[12_288]);
    assert!(b.bytes(4095, expected.len()) == expected);
}

#[test]
fn a_failed_work_request_names_itself() {
    // RX-17: wr_id, status and QPN are right on error; what follows is flushed in order.
    let (mut net, a, b) = connected(QpType::Rc);
    let foreign = net.devices[0].alloc_pd().unwrap().register(64, all_access()).unwrap();
    a.qp.post_send(send(1, a.mr.sge(..8)).unsignaled()).unwrap();
    b.qp.post_recv(RecvWr::new(50, [b.mr.sge(..64)])).unwrap();
    a.qp.post_send(send(2, foreign.sge(..8))).unwrap();
    a.qp.post_send(send(3, a.mr.sge(..8))).unwrap();
    net.settle();
    let entries = a.completions();
    let heads: Vec<_> = entries.iter().map(|entry| (entry.wr_id, entry.status, entry.qpn)).collect();
    let qpn = a.qp.qpn();
    assert_eq!(heads, [(1, Success, qpn), (2, WcStatus::LocProtErr, qpn), (3, WrFlushErr, qpn)]);
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn a_foreign_domain_or_a_wrong_key_is_a_remote_access_error() {
    for case in 0..3 {
        let (mut net, a, b) = connected(QpType::Rc);
        let foreign = net.devices[1].alloc_pd().unwrap().register(64, all_access()).unwrap();
        let read_only = b.pd.register(64, Access::REMOTE_READ).unwrap();
        let dead = b.pd.register(64, all_access()).unwrap();
        let remote = [foreign.remote(0), read_only.remote(0), dead.remote(0)][case];
        drop(dead);
        let events = net.devices[1].async_events();
        a.qp.post_send(SendWr::new(1, SendOp::Write { remote }).with_sges([a.mr.sge(..8)])).unwrap();
        net.settle();
        assert_eq!(brief(&a), [(1, WcStatus::RemAccessErr, WcOpcode::RdmaWrite)]);
        let all: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
        assert!(all.contains(&AsyncEvent::Qp { qpn: b.qp.qpn(), event: QpEvent::AccessError }), "{all:?}");
    }
}

#[test]
fn zero_lengths_need_no_key_and_keep_their_place() {
    // RX-20: one completion each, no key or bounds check, in order behind what came before.
    let (mut net, a, b) = connected(QpType::Rc);
    let nowhere = Remote { addr: 0xdead_0001, rkey: RKey(0xbad) };
    let nothing = Sge { addr: 1, length: 0, lkey: LKey(0xbad) };
    b.qp.post_recv(RecvWr::new(9, [])).unwrap();
    let data = counting(6000, 5);
    a.fill(0, &data);
    a.qp.post_send_list([
        SendWr::new(1, SendOp::Write { remote: b.mr.remote(0) }).with_sges([a.mr.sge(..6000)]),
        SendWr::new(2, SendOp::Write { remote: nowhere }),
        SendWr::new(3, SendOp::Read { remote: nowhere }).with_sges([nothing]),
        SendWr::new(4, SendOp::Send),
        SendWr::new(5, SendOp::Write { remote: nowhere }).with_sges([nothing, nothing]),
    ])
    .unwrap();
    net.settle();
    let expected =
        [WcOpcode::RdmaWrite, WcOpcode::RdmaWrite, WcOpcode::RdmaRead, WcOpcode::Send, WcOpcode::RdmaWrite];
    let expected: Vec<_> = expected.into_iter().zip(1..).map(|(op, n)| (n, Success, op)).collect();
    assert_eq!(brief(&a), expected);
    let received = b.completions();
    assert_eq!((received.len(), received[0].wr_id, received[0].byte_len), (1, 9, 0));
    assert!(b.bytes(0, 6000) == data);
}

#[test]
fn lists_stop_at_the_first_refused_and_keep_the_rest_posted() {
    // RX-21: fields an operation does not use are not looked at; bad_wr is the first refused.
    let (mut net, a, b) = connected(QpType::Rc);
    let ah_garbage =
        UdDest { path: Path::new([1, 1, 1, 1].into(), [2, 2, 2, 2].into(), 1), qpn: Qpn::new(5), qkey: QKEY };
    let mut odd =
        SendWr::new(1, SendOp::WriteImm { remote: b.mr.remote(0), imm: u32::MAX }).with_sges([a.mr.sge(..8)]);
    odd.ud = Some(ah_garbage);
    odd.solicited = true;
    odd.fence = true;
    let too_many: Vec<Sge> = (0..40).map(|_| a.mr.sge(..1)).collect();
    let refused = SendWr::new(3, SendOp::Send).with_sges(too_many);
    b.qp.post_recv(RecvWr::new(9, [])).unwrap();
    let list = [
        odd,
        SendWr::new(2, SendOp::Write { remote: b.mr.remote(0) }),
        refused,
        SendWr::new(4, SendOp::Send),
    ];
    let error = a.qp.post_send_list(list).unwrap_err();
    assert_eq!(error.index, 2);
    assert!(matches!(error.error, PostError::TooManySges { count: 40, .. }), "{error}");
    assert_eq!(error.error.errno(), 22);
    net.settle();
    assert_eq!(brief(&a), [(1, Success, WcOpcode::RdmaWrite), (2, Success, WcOpcode::RdmaWrite)]);
    let list = (0..100).map(|n| RecvWr::new(n, []));
    let error = b.qp.post_recv_list(list).unwrap_err();
    assert_eq!((error.index as u32, error.error.errno()), (b.qp.caps().max_recv_wr, 12));
}

#[test]
fn posting_follows_the_state() {
    // RX-22: refusals with positive numbers; in ERR everything is accepted and flushed.
    let net = Net::pair();
    let a = Side::new(&net.devices[0], QpType::Rc);
    let b = Side::new(&net.devices[1], QpType::Rc);
    let refused = |result: Result<(), PostError>, state| {
        let error = result.unwrap_err();
        assert!(matches!(error, PostError::WrongState { state: at, .. } if at == state), "{error}");
        assert_eq!(error.errno(), 22);
    };
    refused(a.qp.post_recv(RecvWr::new(1, [])), QpState::Reset);
    refused(a.qp.post_send(send(1, a.mr.sge(..1))), QpState::Reset);
    a.qp.to_init(all_access()).unwrap();
    a.qp.post_recv(RecvWr::new(2, [])).unwrap();
    refused(a.qp.post_send(send(1, a.mr.sge(..1))), QpState::Init);
    connect(&a.qp, &b.qp);
    a.qp.to_error().unwrap();
    a.qp.post_recv(RecvWr::new(3, [])).unwrap();
    a.qp.post_send(send(4, a.mr.sge(..1))).unwrap();
    let recv = |n| (n, WrFlushErr, WcOpcode::Recv);
    assert_eq!(brief(&a), [recv(2), recv(3), (4, WrFlushErr, WcOpcode::Send)]);
    let error = a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::InvalidArgument, 22));
    assert!(error.to_string().contains("RC QP 0x"), "{error}");
}

#[test]
fn going_to_error_flushes_each_work_request_once_in_order() {
    // RX-25, with a beacon posted after the fact.
    let (mut net, a, b) = connected(QpType::Rc);
    net.filter(|_| Verdict::Drop);
    (0..20).for_each(|n| a.qp.post_send(send(n, a.mr.sge(..3000)).unsignaled()).unwrap());
    (100..110).for_each(|n| a.qp.post_recv(RecvWr::new(n, [a.mr.sge(..8)])).unwrap());
    net.settle();
    assert_eq!(brief(&a), []);
    a.qp.to_error().unwrap();
    a.qp.post_send(send(999, a.mr.sge(..8))).unwrap();
    net.run_for(Duration::from_secs(60));
    let ids = |send: bool, entries: &[Completion]| -> Vec<u64> {
        let of = |entry: &&Completion| (entry.opcode == WcOpcode::Send) == send;
        entries.iter().filter(of).map(|entry| entry.wr_id).collect()
    };
    let entries = a.completions();
    assert!(entries.iter().all(|entry| entry.status == WrFlushErr));
    assert_eq!(ids(true, &entries), (0..20).chain([999]).collect::<Vec<_>>());
    assert_eq!(ids(false, &entries), (100..110).collect::<Vec<_>>());
    assert_eq!(net.deadline(), None, "nothing is left to wait for");
    drop(b);
}

#[test]
fn last_wqe_reached_for_queue_pairs_on_a_shared_receive_queue() {
    // RX-25.
    let net = Net::pair();
    let pd = net.devices[1].alloc_pd().unwrap();
    let srq = pd.create_srq(SrqInit::default()).unwrap();
    let cq = net.devices[1].create_cq(16).unwrap();
    let qp = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &cq) }).unwrap();
    let a = Side::new(&net.devices[0], QpType::Rc);
    connect(&a.qp, &qp);
    let events = net.devices[1].async_events();
    qp.to_error().unwrap();
    assert_eq!(events.try_next(), Some(AsyncEvent::Qp { qpn: qp.qpn(), event: QpEvent::LastWqeReached }));
    assert!(matches!(qp.post_recv(RecvWr::new(1, [])), Err(PostError::UsesSrq)));
}

#[test]
fn a_shared_receive_queue_serves_all_in_order_and_warns_once() {
    let mut net = Net::of(3);
    let device = net.devices[0].clone();
    let pd = device.alloc_pd().unwrap();
    let mr = pd.register(1 << 16, all_access()).unwrap();
    let srq = pd.create_srq(SrqInit { max_wr: 8, max_sge: 1 }).unwrap();
    let cq = device.create_cq(64).unwrap();
    let init = QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &cq) };
    let qps = [pd.create_qp(&init).unwrap(), pd.create_qp(&init).unwrap()];
    let sides = [1, 2].map(|host: usize| Side::new(&net.devices[host], QpType::Rc));
    sides.iter().zip(&qps).for_each(|(side, qp)| connect(&side.qp, qp));
    srq.post_recv_list((0..8).map(|n| RecvWr::new(n, [mr.sge(n as usize * 64..n as usize * 64 + 64)])))
        .unwrap();
    let full = srq.post_recv(RecvWr::new(9, [])).unwrap_err();
    assert!(matches!(full, PostError::QueueFull { limit: 8, .. }) && full.errno() == 12);
    assert!(matches!(
        srq.post_recv(RecvWr::new(9, [mr.sge(..1), mr.sge(..1)])),
        Err(PostError::QueueFull { .. })
    ));
    assert_eq!(srq.arm_limit(9).unwrap_err().kind(), ErrorKind::InvalidArgument);
    srq.arm_limit(3).unwrap();
    let events = device.async_events();
    let limit = AsyncEvent::SrqLimitReached(srq.id());
    let mut order = Vec::new();
    for n in 0..8 {
        let side = &sides[n % 2];
        side.fill(0, &[n as u8; 32]);
        side.qp.post_send(send(n as u64, side.mr.sge(..32))).unwrap();
        net.settle();
        let mut out = Vec::new();
        cq.poll(&mut out, 8).unwrap();
        order.extend(out.iter().map(|entry| (entry.wr_id, entry.qpn)));
        assert_eq!(mr.read_vec(n * 64, 32).unwrap(), [n as u8; 32]);
        let raised: Vec<_> =
            std::iter::from_fn(|| events.try_next()).filter(|event| *event == limit).collect();
        assert_eq!(raised.len(), usize::from(n == 5), "two of eight are left, and the limit was three");
    }
    let expected: Vec<_> = (0..8).map(|n| (n, qps[n as usize % 2].qpn())).collect();
    assert_eq!(order, expected);
    assert_eq!(srq.query(), (0, 0), "the limit is disarmed");
}

#[test]
fn an_overflowing_completion_queue_takes_its_queue_pairs_with_it() {
    // RX-26.
    let net = Net::pair();
    let device = net.devices[0].clone();
    let small = device.create_cq(2).unwrap();
    let a = Side::with(&device, |_| {}, QpType::Rc);
    let pd = &a.pd;
    let init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::Rc, &small) };
    let (qp, idle) =
        (pd.create_qp(&init).unwrap(), pd.create_qp(&QpInit { send_cq: &a.cq, ..init }).unwrap());
    let b = Side::new(&net.devices[1], QpType::Rc);
    let c = Side::new(&net.devices[1], QpType::Rc);
    connect(&qp, &b.qp);
    connect(&idle, &c.qp);
    let events = device.async_events();
    let mut net = net;
    let write = |n| SendWr::new(n, SendOp::Write { remote: b.mr.remote(0) }).with_sges([a.mr.sge(..8)]);
    (0..3).for_each(|n| qp.post_send(write(n)).unwrap());
    net.settle();
    let all: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    let fatal = |qp: &Qp| AsyncEvent::Qp { qpn: qp.qpn(), event: QpEvent::Fatal };
    for event in [AsyncEvent::CqError(small.id()), fatal(&qp), fatal(&idle)] {
        assert_eq!(all.iter().filter(|other| **other == event).count(), 1, "{event}: {all:?}");
    }
    assert_eq!((qp.state(), idle.state()), (QpState::Err, QpState::Err));
    assert_eq!(a.qp.state(), QpState::Reset, "others are left alone");
    let mut out = Vec::new();
    assert_eq!(small.poll(&mut out, 9), Ok(2));
    assert_eq!(small.poll(&mut out, 9), Err(CqError { id: small.id(), depth: 2 }));
}

#[test]
fn a_device_talks_to_itself_over_the_wire() {
    let mut net = Net::of(1);
    let device = net.devices[0].clone();
    let (a, b) = (Side::new(&device, QpType::Rc), Side::new(&device, QpType::Rc));
    connect(&a.qp, &b.qp);
    let data = counting(70_000, 2);
    a.fill(0, &data);
    let write = SendWr::new(1, SendOp::Write { remote: b.mr.remote(5) }).with_sges([a.mr.sge(..data.len())]);
    a.qp.post_send(write).unwrap();
    net.settle();
    assert_eq!(brief(&a), [(1, Success, WcOpcode::RdmaWrite)]);
    assert!(b.bytes(5, data.len()) == data);
    assert!(net.delivered >= 70, "as packets, like any other: {}", net.delivered);
    // And one queue pair with itself.
    let me = Side::new(&device, QpType::Rc);
    connect(&me.qp, &me.qp);
    me.fill(0, b"self");
    me.qp
        .post_send(SendWr::new(2, SendOp::Write { remote: me.mr.remote(99) }).with_sges([me.mr.sge(..4)]))
        .unwrap();
    net.settle();
    assert_eq!(brief(&me), [(2, Success, WcOpcode::RdmaWrite)]);
    assert_eq!(me.bytes(99, 4), b"self");
}

#[test]
fn queue_pairs_take_turns() {
    let mut net = Net::pair();
    let sides: Vec<_> = (0..3).map(|_| Side::new(&net.devices[0], QpType::Uc)).collect();
    let peers: Vec<_> = (0..3).map(|_| Side::new(&net.devices[1], QpType::Uc)).collect();
    sides.iter().zip(&peers).for_each(|(side, peer)| connect(&side.qp, &peer.qp));
    for side in &sides {
        let remote = peers[0].mr.remote(0);
        side.qp
            .post_send(SendWr::new(1, SendOp::Write { remote }).with_sges([side.mr.sge(..1 << 18)]))
            .unwrap();
    }
    let mut turns = Vec::new();
    let mut transmit = Transmit::default();
    let device = net.devices[0].clone();
    while device.drive().poll_transmit(net.now, &mut transmit) {
        let first = transmit.segments().next().unwrap();
        turns.push(everywire_wire::Bth::parse(first).unwrap().dest_qp);
    }
    let qpns: Vec<_> = peers.iter().map(|peer| peer.qp.qpn()).collect();
    assert!(turns.len() >= 15, "{} trains", turns.len());
    for (index, qpn) in turns[..12].iter().enumerate() {
        assert_eq!(*qpn, qpns[index % 3], "train {index}");
    }
    net.settle();
}

#[test]
fn a_destroyed_queue_pair_says_nothing_more() {
    // RX-13: with packets under way and timers armed.
    let (mut net, a, b) = connected(QpType::Rc);
    let Side { qp, cq, mr, .. } = a;
    (0..4).for_each(|n| qp.post_send(send(n, mr.sge(..3000))).unwrap());
    net.drain();
    assert!(net.deadline().is_some(), "a timer runs");
    drop(qp);
    assert_eq!(net.deadline(), None);
    b.qp.post_recv(RecvWr::new(1, [b.mr.sge(..4096)])).unwrap();
    net.run_for(Duration::from_secs(10));
    let mut out = Vec::new();
    assert_eq!(cq.poll(&mut out, 10), Ok(0));
    let counters = net.devices[0].counters();
    assert!(counters.device(DeviceCounter::DropUnknownQp) > 0, "the peer's answers found nobody");
    assert_eq!(net.devices[0].usage().qps, 0);
}

#[test]
fn what_was_taken_is_acknowledged_even_if_its_taker_goes() {
    let (mut net, a, b) = connected(QpType::Rc);
    let Side { qp, cq, mr, .. } = b;
    qp.post_recv(RecvWr::new(1, [mr.sge(..4096)])).unwrap();
    a.qp.post_send(send(2, a.mr.sge(..100))).unwrap();
    net.drain();
    while net.deliver_one() {}
    let mut out = Vec::new();
    assert_eq!(cq.poll(&mut out, 1), Ok(1), "it has the message, and goes before the driver comes by again");
    drop(qp);
    net.run_now();
    assert_eq!(brief(&a), [(2, Success, WcOpcode::Send)]);
}

#[test]
fn loss_duplication_and_reordering_are_survived() {
    let (mut net, a, b) = connected(QpType::Rc);
    let mut seed = 1u64;
    net.filter(move |_| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if (seed >> 33).is_multiple_of(10) { Verdict::Drop } else { Verdict::Pass }
    });
    let data = counting(200_000, 8);
    a.fill(0, &data);
    b.fill(500_000, &data);
    (0..8).for_each(|n| b.qp.post_recv(RecvWr::new(n, [b.mr.sge(300_000..400_000)])).unwrap());
    for n in 0..8 {
        let op = match n % 4 {
            0 => SendOp::Write { remote: b.mr.remote(0) },
            1 => SendOp::Read { remote: b.mr.remote(500_000) },
            2 => SendOp::Send,
            _ => SendOp::FetchAdd { remote: b.mr.remote(400_000), add: 1 },
        };
        let sge = match n % 4 {
            0 => a.mr.sge(..200_000),
            1 => a.mr.sge(300_000..500_000),
            2 => a.mr.sge(..90_000),
            _ => a.mr.sge(600_000..600_008),
        };
        a.qp.post_send(SendWr::new(n, op).with_sges([sge])).unwrap();
    }
    net.run_for(Duration::from_secs(600));
    let done: Vec<_> = brief(&a).iter().map(|entry| (entry.0, entry.1)).collect();
    assert_eq!(done, (0..8).map(|n| (n, Success)).collect::<Vec<_>>());
    assert!(b.bytes(0, 200_000) == data && a.bytes(300_000, 200_000) == data);
    assert!(b.bytes(300_000, 90_000) == data[..90_000]);
    assert_eq!(b.bytes(400_000, 8), 2u64.to_ne_bytes(), "each atomic exactly once");
    let counters = net.devices[0].counters();
    assert!(counters.get(Counter::RetransmittedPkts) > 0);
}

#[test]
fn same_seeds_send_the_same_bytes() {
    let run = || {
        let (mut net, a, b) = connected(QpType::Rc);
        let log = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let seen = log.clone();
        net.filter(move |packet| {
            seen.borrow_mut().push(packet.bytes.clone());
            Verdict::Pass
        });
        let write = SendOp::Write { remote: b.mr.remote(100) };
        a.qp.post_send(SendWr::new(1, write).with_sges([a.mr.sge(..10_000)])).unwrap();
        a.qp.post_send(SendWr::new(2, SendOp::Read { remote: b.mr.remote(0) }).with_sges([a.mr.sge(..5000)]))
            .unwrap();
        net.settle();
        assert_eq!(a.completions().len(), 2);
        log.take()
    };
    let first = run();
    assert!(first.len() > 10 && first == run());
}

#[test]
fn completions_wake_those_who_wait() {
    let (mut net, a, b) = connected(QpType::Rc);
    let received = {
        let (cq, qp, mr) = (b.cq.clone(), b.qp.clone(), b.mr.clone());
        async move {
            let mut got = Vec::new();
            for n in 0..5 {
                qp.post_recv(RecvWr::new(n, [mr.sge(..64)])).unwrap();
                cq.wait(&mut got, 1).await.unwrap();
            }
            got.iter().map(|entry| entry.byte_len).collect::<Vec<_>>()
        }
    };
    (1..=5).for_each(|n| a.qp.post_send(send(n, a.mr.sge(..n as usize))).unwrap());
    // Only one receive is posted at a time: the sender is told to wait (RNR) again and again.
    assert_eq!(net.block_on(received), [1, 2, 3, 4, 5]);
    assert!(net.devices[0].counters().get(Counter::RcvdRnrErr) > 0);
}
