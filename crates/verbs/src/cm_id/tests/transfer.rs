//! Data over connections that were made by address: both services, both families, with the handshake's last message lost,
//! under random loss, and what becomes of posted work at the end.

use std::cell::RefCell;
use std::rc::Rc;

use everywire_wire::cm::CmMessage;
use everywire_wire::{Opcode, QKey, RocePacket};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::harness::*;
use crate::*;

const PORT: u16 = 4420;

/// One end of a connection with a region to work on.
struct End {
    connection: Connection,
    cq: Cq,
    mr: MemoryRegion,
}

const LEN: usize = 64 << 10;

/// Connects `from` of a to `to` of b with receives posted beforehand on both sides.
fn connect(world: &mut World, from: &str, to: &str, ty: QpType) -> (End, End) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let prepare = |device: &Device| {
        let kit = Kit::new(device);
        let qp = kit.pd.create_qp(&QpInit::new(ty, &kit.cq)).unwrap();
        let mr = kit.pd.register(LEN, access).unwrap();
        qp.to_init(access).unwrap();
        for wr_id in 0..4 {
            qp.post_recv(RecvWr::new(wr_id, [mr.sge(0..4096)])).unwrap();
        }
        (kit.cq, qp, mr)
    };
    let ((a_cq, a_qp, a_mr), (b_cq, b_qp, b_mr)) = (prepare(&world.a), prepare(&world.b));
    let listener = world.b.listen(addr(to, PORT), ListenOptions::default()).unwrap();
    let connecting = world.a.connect(ConnectOptions::new(addr(to, PORT), &a_qp).src(addr(from, 0)));
    let accepting = async move {
        let request = listener.next_request().await.unwrap();
        request.accept(&b_qp, ConnParam::default()).await
    };
    let (one, two) = world.join(connecting, accepting);
    let end = |connection, cq, mr| End { connection, cq, mr };
    (end(one.unwrap(), a_cq, a_mr), end(two.unwrap(), b_cq, b_mr))
}

impl End {
    fn post(&self, wr: SendWr) {
        self.connection.qp().post_send(wr).unwrap();
    }

    /// The next completion.
    fn next(&self, world: &mut World) -> Completion {
        let cq = self.cq.clone();
        world.run(async move {
            let mut out = Vec::new();
            cq.wait(&mut out, 1).await.unwrap();
            out.remove(0)
        })
    }

    fn all(&self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.cq.poll(&mut out, 1000).unwrap();
        out
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// SEND both ways, WRITE, READ and an atomic, checked byte by byte.
fn exchange(world: &mut World, a: &End, b: &End) {
    for (from, to, seed) in [(a, b, 1), (b, a, 2)] {
        let bytes = pattern(seed, 4096);
        from.mr.write_at(8192, &bytes).unwrap();
        from.post(SendWr::new(77, SendOp::Send).with_sges([from.mr.sge(8192..12288)]));
        let received = to.next(world);
        assert_eq!(
            (received.status, received.byte_len, received.opcode),
            (WcStatus::Success, 4096, WcOpcode::Recv)
        );
        assert_eq!(to.mr.read_vec(0, 4096).unwrap(), bytes);
        assert_eq!(from.next(world).status, WcStatus::Success);
    }
    let bytes = pattern(3, 40_000);
    a.mr.write_at(0, &bytes).unwrap();
    let remote = b.mr.remote(20_000);
    a.post(SendWr::new(78, SendOp::Write { remote }).with_sges([a.mr.sge(0..40_000)]));
    assert_eq!(a.next(world).status, WcStatus::Success);
    assert_eq!(b.mr.read_vec(20_000, 40_000).unwrap(), bytes);
    if a.connection.qp().ty() != QpType::Rc {
        return;
    }
    a.mr.write_at(0, &[0; 40_000]).unwrap();
    a.post(SendWr::new(79, SendOp::Read { remote }).with_sges([a.mr.sge(0..40_000)]));
    assert_eq!(a.next(world).status, WcStatus::Success);
    assert_eq!(a.mr.read_vec(0, 40_000).unwrap(), bytes);
    b.mr.write_at(0, &5u64.to_ne_bytes()).unwrap();
    let remote = b.mr.remote(0);
    a.post(SendWr::new(80, SendOp::FetchAdd { remote, add: 37 }).with_sges([a.mr.sge(0..8)]));
    assert_eq!(a.next(world).status, WcStatus::Success);
    assert_eq!(b.mr.read_vec(0, 8).unwrap(), 42u64.to_ne_bytes());
}

#[test]
fn every_operation_over_ipv4_and_ipv6() {
    for (from, to) in [(A, B), ("fd77::a", "fd77::b")] {
        for ty in [QpType::Rc, QpType::Uc] {
            let mut world = World::with(config(from, 1), config(to, 2));
            let (a, b) = connect(&mut world, from, to, ty);
            exchange(&mut world, &a, &b);
            let reasons = world.join(a.connection.disconnect(), b.connection.closed());
            assert_eq!(reasons, (DisconnectReason::Local, DisconnectReason::Peer));
        }
    }
}

/// The attributes that REQ and REP gave the two queue pairs (IBTA §12.9.10).
#[test]
fn queue_pair_attributes() {
    let mut world = World::new();
    let (a, b) = connect(&mut world, A, B, QpType::Rc);
    let (x, y) = (a.connection.qp().query(), b.connection.qp().query());
    assert_eq!((x.dest_qp, y.dest_qp), (Some(b.connection.qp().qpn()), Some(a.connection.qp().qpn())));
    assert_eq!((x.path_mtu, y.path_mtu), (Some(Mtu::M1024), Some(Mtu::M1024)));
    for attr in [&x, &y] {
        assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (Some(19), Some(7), Some(7)));
        assert_eq!(
            (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer),
            (Some(16), Some(16), Some(12))
        );
    }
    let (there, back) = (x.path.unwrap(), y.path.unwrap());
    assert_eq!((there.src, there.dst), (back.dst, back.src));
    // One flow label, from REQ: one UDP source port, the same both ways.
    assert_eq!((there.src_port, there.hop_limit), (back.src_port, 64));
}

/// The RTU is lost; the first packet on the queue pair takes its place at once.
#[test]
fn data_instead_of_rtu() {
    let mut world = World::new();
    world.lose = Box::new(|_, bytes| matches!(mad(bytes).map(|m| m.message), Some(CmMessage::Rtu(_))));
    let listener = world.b.listen(addr(B, PORT), ListenOptions::default()).unwrap();
    let (kit_a, kit_b) = (Kit::new(&world.a), Kit::new(&world.b));
    let mr = kit_b.pd.register(4096, Access::LOCAL_WRITE).unwrap();
    let (a_qp, b_qp) = (kit_a.qp(), kit_b.qp());
    b_qp.to_init(Access::LOCAL_WRITE).unwrap();
    b_qp.post_recv(RecvWr::new(5, [mr.sge(..)])).unwrap();
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a_qp));
    let accepting = {
        let b_qp = b_qp.clone();
        async move { listener.next_request().await.unwrap().accept(&b_qp, ConnParam::default()).await }
    };
    let start = world.now;
    let (one, two) = world.join(
        async move {
            let connection = connecting.await.unwrap();
            connection.qp().post_send(SendWr::new(1, SendOp::Send).with_inline(*b"first")).unwrap();
            connection
        },
        accepting,
    );
    let (one, two) = (one, two.unwrap());
    assert!(world.now - start < std::time::Duration::from_secs(1), "not by the repeated REP");
    assert_eq!(world.log, ["REQ", "REP", "[RTU]"]);
    let mut out = Vec::new();
    kit_b.cq.poll(&mut out, 10).unwrap();
    assert_eq!((out[0].wr_id, out[0].byte_len), (5, 5));
    assert_eq!(b_qp.state(), QpState::Rts);
    let reasons = world.join(two.disconnect(), one.closed());
    assert_eq!(reasons, (DisconnectReason::Local, DisconnectReason::Peer));
}

/// CM-03: what was posted is flushed, exactly once each, and can be polled after the end was told.
#[test]
fn posted_work_is_flushed_at_the_end() {
    for by_peer in [false, true] {
        let mut world = World::new();
        let (a, b) = connect(&mut world, A, B, QpType::Rc);
        let (ends, other) = if by_peer { (&b, &a) } else { (&a, &b) };
        let told = world.join(ends.connection.disconnect(), other.connection.closed());
        assert_eq!(told, (DisconnectReason::Local, DisconnectReason::Peer));
        for end in [&a, &b] {
            let completions = end.all();
            let ids: Vec<_> = completions.iter().map(|c| c.wr_id).collect();
            assert_eq!(ids, [0, 1, 2, 3]);
            assert!(completions.iter().all(|c| c.status == WcStatus::WrFlushErr));
        }
        // Posting afterwards is flushed as well.
        a.post(SendWr::new(9, SendOp::Send).with_inline(*b"late"));
        assert_eq!(a.next(&mut world).status, WcStatus::WrFlushErr);
    }
}

/// CM-02: the peer dies with work outstanding. Retries end in an error, disconnecting in a timeout.
#[test]
fn unplugged_with_work_outstanding() {
    let mut world = World::new();
    let (a, _b) = connect(&mut world, A, B, QpType::Rc);
    world.lose = Box::new(|_, _| true);
    a.post(SendWr::new(50, SendOp::Send).with_inline(*b"anybody there?"));
    let completion = a.next(&mut world);
    assert_eq!((completion.wr_id, completion.status), (50, WcStatus::RetryExcErr));
    assert_eq!(a.connection.closed_reason(), None, "as with rdma_cm, the program ends the connection");
    assert_eq!(world.run(a.connection.disconnect()), DisconnectReason::TimedOut);
    assert_eq!(a.all().len(), 4, "the receives, flushed");
}

/// Whole lives under 5 % random loss of everything: each byte right, each end told once.
#[test]
fn lossy_lives() {
    for seed in 0..60 {
        let mut world = World::new();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        world.lose = Box::new(move |_, _| rng.next_u32().is_multiple_of(20));
        let (a, b) = connect(&mut world, A, B, QpType::Rc);
        exchange(&mut world, &a, &b);
        let reasons = world.join(a.connection.disconnect(), b.connection.closed());
        assert_eq!(reasons, (DisconnectReason::Local, DisconnectReason::Peer), "seed {seed}");
        drop((a, b));
        world.run_out();
        assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0), "seed {seed}");
        assert_eq!((world.a.usage(), world.b.usage()), (Usage::default(), Usage::default()), "seed {seed}");
    }
}

/// RX-12: connect, transfer, disconnect, again and again.
#[test]
fn a_thousand_transfers() {
    let mut world = World::new();
    for round in 0..1000u64 {
        let (a, b) = connect(&mut world, A, B, QpType::Rc);
        let bytes = pattern(round, 256);
        a.post(SendWr::new(1, SendOp::Write { remote: b.mr.remote(100) }).with_inline(bytes.clone()));
        assert_eq!(a.next(&mut world).status, WcStatus::Success);
        assert_eq!(b.mr.read_vec(100, 256).unwrap(), bytes);
        world.join(a.connection.disconnect(), b.connection.closed());
    }
    world.run_out();
    assert_eq!((world.a.usage(), world.b.usage()), (Usage::default(), Usage::default()));
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
}

/// A datagram to a queue pair found by address and port.
#[test]
fn datagrams_to_a_resolved_service() {
    let mut world = World::new();
    let (kit_a, kit_b) = (Kit::new(&world.a), Kit::new(&world.b));
    let qkey = QKey(0x0123_4567);
    let ud = |kit: &Kit| {
        let qp = kit.pd.create_qp(&QpInit::new(QpType::Ud, &kit.cq)).unwrap();
        let init =
            QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..QpAttr::to(QpState::Init) };
        qp.modify(&init).unwrap();
        qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        qp.modify(&QpAttr { sq_psn: Some(Psn::new(7)), ..QpAttr::to(QpState::Rts) }).unwrap();
        qp
    };
    let (sender, service) = (ud(&kit_a), ud(&kit_b));
    let mr = kit_b.pd.register(4096, Access::LOCAL_WRITE).unwrap();
    service.post_recv(RecvWr::new(3, [mr.sge(..)])).unwrap();
    let listener = world.b.listen_udp(addr(B, PORT), ListenOptions::default()).unwrap();
    let (pd, answered) = (kit_a.pd.clone(), service.clone());
    let (found, ()) =
        world.join(async move { pd.resolve_udp(ResolveOptions::new(addr(B, PORT))).await }, async move {
            listener.next_request().await.accept(&answered, qkey, &[]).unwrap();
        });
    let mut wr = SendWr::new(1, SendOp::Send).with_inline(*b"datagram");
    wr.ud = Some(found.unwrap().dest());
    sender.post_send(wr).unwrap();
    world.drain();
    let mut out = Vec::new();
    kit_b.cq.poll(&mut out, 10).unwrap();
    // 40 bytes of GRH space come first (IBTA §11.4.1.2).
    assert_eq!((out[0].wr_id, out[0].byte_len, out[0].src_qp), (3, 48, sender.qpn()));
    assert_eq!(mr.read_vec(40, 8).unwrap(), b"datagram");
}

/// An acknowledgement that waits for company leaves ahead of the DREQ: whose queue pair ends on a DREQ takes a message without
/// one for lost, as Linux's iSER target does with its Logout Response.
#[test]
fn what_was_taken_is_acknowledged_before_the_disconnect() {
    let mut world = World::new();
    let (a, b) = connect(&mut world, A, B, QpType::Rc);
    let said = Rc::new(RefCell::new(Vec::new()));
    let heard = said.clone();
    world.lose = Box::new(move |_, bytes| {
        let opcode = RocePacket::parse(bytes).unwrap().bth.opcode;
        heard
            .borrow_mut()
            .push(mad(bytes).map_or(format!("{opcode:?}"), |mad| mad.message.name().to_owned()));
        false
    });
    a.post(SendWr::new(77, SendOp::Send).with_sges([a.mr.sge(8192..8256)]));
    assert_eq!(b.next(&mut world).status, WcStatus::Success);
    let ack = format!("{:?}", Opcode::RC_ACK);
    assert!(!said.borrow().contains(&ack), "it waits: {:?}", said.borrow());
    drop(b.connection.disconnect());
    assert_eq!(a.next(&mut world).status, WcStatus::Success);
    world.drain();
    let said = said.borrow();
    let at = |what: &str| said.iter().position(|one| one == what);
    assert!(at(&ack).is_some() && at(&ack) < at("DREQ"), "{said:?}");
}
