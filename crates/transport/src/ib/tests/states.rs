//! A queue pair through its states: what may be posted when, flushing, draining, events.

use super::*;

fn err(ids: impl IntoIterator<Item = u64>, status: WcStatus) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, status)).collect()
}

/// Cases RX-22; IBTA C10-29, C10-31.
#[test]
fn posting_by_state() {
    let mut bench = Bench::unconnected(Setup::default());
    let post = |bench: &mut Bench| {
        let sge = bench.nodes[0].sge(0, 8);
        let node = &mut bench.nodes[0];
        let sends = node.qp.post_send(&mut node.env, send(1, sge)).is_ok();
        let recvs = node.qp.post_recv(&mut node.env, RecvWr::new(1, [sge])).is_ok();
        (sends, recvs)
    };
    assert_eq!(post(&mut bench), (false, false), "RESET");
    bench.init(0);
    assert_eq!(post(&mut bench), (false, true), "INIT");
    bench.ready_to_receive(0);
    assert_eq!(post(&mut bench), (false, true), "RTR");
    bench.ready_to_send(0);
    assert_eq!(post(&mut bench), (true, true), "RTS");
    bench.nodes[0].modify(&QpAttr::to(QpState::Err));
    bench.nodes[0].sent();
    bench.nodes[0].received();
    assert_eq!(post(&mut bench), (true, true), "ERR");
    assert_eq!(bench.nodes[0].sent(), err([1], WcStatus::WrFlushErr), "and flushed at once");
    assert_eq!(bench.nodes[0].received(), err([1], WcStatus::WrFlushErr));
    let wrong = bench.nodes[0].qp.post_recv(&mut bench.nodes[0].env, RecvWr::new(1, []));
    assert_eq!(wrong, Ok(()));
    bench.nodes[0].modify(&QpAttr::to(QpState::Reset));
    let refused = bench.nodes[0].qp.post_recv(&mut bench.nodes[0].env, RecvWr::new(1, [])).unwrap_err();
    assert_eq!(refused.errno(), 22);
    assert_eq!(refused.to_string(), "a queue pair in state Reset takes no receive work requests");
}

#[test]
fn refusals_at_post() {
    let mut bench = Bench::rc();
    let sge = bench.nodes[0].sge(0, 8);
    let remote = bench.nodes[1].remote(0);
    let node = &mut bench.nodes[0];
    let mut refuse = |wr: SendWr| node.qp.post_send(&mut node.env, wr).unwrap_err();
    assert_eq!(
        refuse(send(1, sge).with_sges([sge; 8])).to_string(),
        "9 segments, but the queue pair allows 8"
    );
    assert_eq!(
        refuse(SendWr::new(1, SendOp::Send).with_inline([0; 513])).to_string(),
        "513 inline bytes, but the queue pair allows 512"
    );
    assert_eq!(
        refuse(SendWr::new(1, SendOp::Read { remote }).with_inline([0; 8])).to_string(),
        "RDMA_READ takes no inline data"
    );
    for wr_id in 0..1024 {
        bench.nodes[0].send(send(wr_id, sge));
        bench.nodes[0].recv(wr_id, 0, 8);
    }
    let node = &mut bench.nodes[0];
    let full = node.qp.post_send(&mut node.env, send(1, sge)).unwrap_err();
    assert_eq!(
        (full.errno(), full.to_string()),
        (12, "the send queue is full (1024 work requests outstanding)".into())
    );
    let full = node.qp.post_recv(&mut node.env, RecvWr::new(1, [])).unwrap_err();
    assert_eq!(
        (full.errno(), full.to_string()),
        (12, "the receive queue is full (1024 work requests outstanding)".into())
    );
}

#[test]
fn operations_by_service() {
    let remote = Remote { addr: BASE, rkey: RKey(0) };
    let ops = [
        (SendOp::Send, [true, true, true]),
        (SendOp::SendImm(1), [true, true, true]),
        (SendOp::SendInv(RKey(1)), [true, false, false]),
        (SendOp::Write { remote }, [true, true, false]),
        (SendOp::WriteImm { remote, imm: 1 }, [true, true, false]),
        (SendOp::Read { remote }, [true, false, false]),
        (SendOp::CompareSwap { remote, compare: 0, swap: 0 }, [true, false, false]),
        (SendOp::FetchAdd { remote, add: 0 }, [true, false, false]),
        (SendOp::LocalInv(RKey(1)), [true, true, false]),
    ];
    for (i, ty) in [QpType::Rc, QpType::Uc, QpType::Ud].into_iter().enumerate() {
        for (op, offered) in &ops {
            let mut bench = Bench::new(Setup { ty, ..Setup::default() });
            let mut wr = SendWr::new(1, op.clone());
            wr.ud = Some(super::super::UdDest { path: bench.path(0), qpn: Qpn::new(QPNS[1]), qkey: QKEY });
            let node = &mut bench.nodes[0];
            assert_eq!(node.qp.post_send(&mut node.env, wr).is_ok(), offered[i], "{ty:?} {}", op.name());
        }
    }
}

/// Cases RX-25: every work request once, in order, a beacon posted later last.
#[test]
fn err_flushes_both_queues_in_order() {
    let mut bench = Bench::rc();
    bench.judge = Box::new(|_, _| Fate::Drop);
    let sge = bench.nodes[0].sge(0, 3000);
    for wr_id in 0..50 {
        bench.nodes[0].send(send(wr_id, sge).unsignaled());
        bench.nodes[0].recv(wr_id, 0, 8);
    }
    bench.transmit();
    bench.nodes[0].modify(&QpAttr::to(QpState::Err));
    bench.nodes[0].send(send(99, sge));
    bench.nodes[0].recv(99, 0, 8);
    let all = err((0..50).chain([99]), WcStatus::WrFlushErr);
    assert_eq!(bench.nodes[0].sent(), all, "unsignalled ones too");
    assert_eq!(bench.nodes[0].received(), all);
    assert_eq!(bench.nodes[0].qp.poll_timeout(), None, "no timer is left");
    bench.assert_idle();
    bench.transmit();
    bench.nodes[0].modify(&QpAttr::to(QpState::Err));
    assert!(bench.nodes[0].sent().is_empty(), "once only");
}

#[test]
fn last_wqe_reached_after_the_receive_in_use() {
    let mut bench = Bench::new(Setup { srq: true, ..Setup::default() });
    let sge = bench.nodes[1].sge(0, 8192);
    bench.nodes[1].env.srq.extend([RecvWr::new(1, [sge]), RecvWr::new(2, [sge])]);
    let from = bench.nodes[0].sge(0, 4000);
    bench.nodes[0].send(send(9, from));
    bench.judge = Box::new(|_, p| if p.bth.opcode.is_first() { Fate::Deliver } else { Fate::Drop });
    bench.run_for(Duration::from_millis(1));
    bench.nodes[1].modify(&QpAttr::to(QpState::Err));
    assert_eq!(bench.nodes[1].received(), err([1], WcStatus::WrFlushErr), "the one a message was landing in");
    assert_eq!(bench.nodes[1].env.events, [QpEvent::LastWqeReached]);
    assert_eq!(bench.nodes[1].env.srq.len(), 1, "what was not taken stays for others");
}

#[test]
fn shared_receives_serve_messages() {
    let mut bench = Bench::new(Setup { srq: true, ..Setup::default() });
    let sge = bench.nodes[1].sge(0, 64);
    bench.nodes[1].env.srq.extend((0..3).map(|id| RecvWr::new(id, [sge])));
    let refused = bench.nodes[1].qp.post_recv(&mut bench.nodes[1].env, RecvWr::new(0, [])).unwrap_err();
    assert_eq!(refused, super::super::PostError::UsesSrq);
    let from = bench.nodes[0].sge(0, 64);
    (0..3).for_each(|id| bench.nodes[0].send(send(id, from)));
    bench.run();
    assert_eq!(bench.nodes[1].received(), ok(0..3));
}

/// IBTA §10.3.1.5: what had begun is finished, nothing else; then the event; new work waits for RTS.
#[test]
fn sqd_drains_and_resumes() {
    let mut bench = Bench::rc();
    let (from, to) = (bench.nodes[0].sge(0, 300_000), bench.nodes[1].remote(0));
    let small = bench.nodes[0].sge(0, 8);
    bench.nodes[0].send(write(1, from, to));
    bench.nodes[0].send(write(2, small, to));
    bench.transmit();
    bench.nodes[0].modify(&QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) });
    let early = bench.nodes[0].qp.modify(&mut bench.nodes[0].env, &QpAttr::to(QpState::Rts));
    assert_eq!(early.unwrap_err(), super::super::ModifyError::StillDraining);
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1]));
    assert_eq!(bench.nodes[0].env.events, [QpEvent::SqDrained]);
    bench.nodes[0].send(write(3, small, to));
    bench.run();
    assert!(bench.nodes[0].sent().is_empty());
    let retimed = QpAttr { timeout: Some(20), ..QpAttr::to(QpState::Sqd) };
    bench.nodes[0].modify(&retimed);
    assert_eq!(bench.nodes[0].qp.query().timeout, Some(20));
    bench.nodes[0].modify(&QpAttr::to(QpState::Rts));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([2, 3]));
    assert_eq!(bench.nodes[0].env.events.len(), 1);
}

#[test]
fn an_idle_send_queue_is_drained_at_once() {
    let mut bench = Bench::rc();
    bench.nodes[0].modify(&QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) });
    assert_eq!(bench.nodes[0].env.events, [QpEvent::SqDrained]);
}

#[test]
fn communication_established_once_in_rtr() {
    let mut bench = Bench::unconnected(Setup::default());
    for at in 0..2 {
        bench.init(at);
        bench.ready_to_receive(at);
    }
    bench.ready_to_send(0);
    bench.nodes[1].recv(1, 0, 64);
    bench.nodes[1].recv(2, 0, 64);
    let from = bench.nodes[0].sge(0, 64);
    bench.nodes[0].send(send(1, from));
    bench.nodes[0].send(send(2, from));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1, 2]), "RTR receives and acknowledges");
    assert_eq!(bench.nodes[1].env.events, [QpEvent::CommEstablished]);
    assert!(bench.nodes[0].env.events.is_empty(), "in RTS nobody is told");
}

#[test]
fn reset_forgets_everything_without_completions() {
    let mut bench = Bench::rc();
    let (from, to) = (bench.nodes[0].sge(0, 300_000), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(1, from, to));
    bench.nodes[0].recv(2, 0, 8);
    bench.transmit();
    bench.nodes[0].modify(&QpAttr::to(QpState::Reset));
    assert!(bench.nodes[0].sent().is_empty() && bench.nodes[0].received().is_empty());
    assert_eq!(
        bench.nodes[0].qp.query(),
        QpAttr { cur_state: Some(QpState::Reset), ..QpAttr::to(QpState::Reset) }
    );
    bench.assert_idle();
    bench.run();
    // And it can be used again, with other PSNs.
    bench.setup.psns = [77, 0x1234];
    bench.nodes[1].modify(&QpAttr::to(QpState::Reset));
    for at in 0..2 {
        bench.init(at);
        bench.ready_to_receive(at);
        bench.ready_to_send(at);
    }
    bench.nodes[0].send(write(5, from, to));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([5]));
}

/// Cases RX-13: whatever the moment, a queue pair that is closed neither completes anything nor holds windows or timers.
#[test]
fn closing_at_any_moment() {
    for steps in 0..60 {
        let mut bench = Bench::rc();
        let mut n = 0u32;
        bench.judge = Box::new(move |_, _| {
            n += 1;
            if n.is_multiple_of(3) { Fate::Drop } else { Fate::Deliver }
        });
        let (from, to) = (bench.nodes[0].sge(0, 50_000), bench.nodes[1].remote(0));
        let into = bench.nodes[0].sge(100_000, 50_000);
        for wr_id in 0..4 {
            bench.nodes[0].send(write(wr_id, from, to));
            bench.nodes[0].send(read(wr_id, into, to));
            bench.nodes[0].send(send(wr_id, from)); // no receive is posted: RNR timers run too
        }
        for _ in 0..steps {
            bench.step();
        }
        let node = &mut bench.nodes[0];
        node.sent();
        node.qp.close(&mut node.env);
        assert!(node.sent().is_empty());
        assert_eq!(node.qp.poll_timeout(), None);
        assert!(node.env.windows.values().all(|w| w.in_flight() == 0));
        assert_eq!(node.env.read_window.in_flight(), 0);
        let mut burst = Burst::default();
        assert!(!node.qp.poll_transmit(&mut node.env, bench.now, &mut burst));
    }
}

/// A device calls this when a completion queue overflowed.
#[test]
fn failing_a_queue_pair_raises_fatal_and_flushes() {
    let mut bench = Bench::rc();
    bench.nodes[0].recv(1, 0, 8);
    let node = &mut bench.nodes[0];
    node.qp.fail(&mut node.env);
    assert_eq!(node.qp.state(), QpState::Err);
    assert_eq!(node.env.events, [QpEvent::Fatal]);
    assert_eq!(node.received(), err([1], WcStatus::WrFlushErr));
    node.qp.fail(&mut node.env);
    assert_eq!(node.env.events.len(), 1, "once");
}

#[test]
fn what_was_received_is_acknowledged_in_err() {
    let mut bench = Bench::rc();
    bench.nodes[1].recv(1, 0, 64);
    let from = bench.nodes[0].sge(0, 64);
    bench.nodes[0].send(send(2, from));
    while bench.nodes[1].received().is_empty() {
        bench.step();
    }
    // The acknowledgement still waits for company when the program ends the connection.
    bench.nodes[1].modify(&QpAttr::to(QpState::Err));
    bench.run_for(Duration::from_millis(1));
    assert_eq!(bench.nodes[0].sent(), ok([2]));
}
