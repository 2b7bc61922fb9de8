//! Completion queues, shared receive queues, flushes and states.
//!
//! Read IBTA vol. 1 §10.8 and §11.4.2 (completion queues), §10.2.9 (shared receive queues), §10.3.1 (states) first.

mod shared;

use everywire_verbs::{
    Arm, AsyncEvent, Completion, QpAttr, QpCaps, QpEvent, QpInit, QpState, QpType, RecvWr, SendOp, SendWr,
    WcOpcode, WcStatus,
};

use crate::check::{Verdict, ensure, must, same};
use crate::layout::pattern;
use crate::link::{ALL, Ctx, Link, LinkOptions, Side, brief, connect};
use crate::wire::Family;

/// One script of this group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// A queue of exactly as many entries as asked for; one more ends it.
    Overflow,
    /// Events for the next completion, for solicited ones, for errors.
    Arming,
    /// A queue that is made longer and shorter while in use.
    Resizing,
    /// Both queues of both ends are flushed, once, in order.
    Flush,
    /// To ERR, to RESET: nothing of before completes any more.
    Reset,
    /// Every send completes, whatever it asks.
    SignalAll,
    /// Sending stops for a while.
    Drain,
    /// Transitions that do not exist.
    Transitions,
    /// A shared receive queue serves two queue pairs in order.
    SharedOrder,
    /// Its limit.
    SharedLimit,
    /// A queue pair on it ends.
    SharedLast,
    /// Destroyed with work in its queues.
    Destroyed,
    /// The receive comes after the message.
    LateReceive,
}

/// All of them.
pub(crate) const SCRIPTS: [Script; 13] = {
    use Script::*;
    [
        Overflow,
        Arming,
        Resizing,
        Flush,
        Reset,
        SignalAll,
        Drain,
        Transitions,
        SharedOrder,
        SharedLimit,
        SharedLast,
        Destroyed,
        LateReceive,
    ]
};

/// Runs one.
pub(crate) async fn script(ctx: &Ctx, script: Script) -> Verdict {
    match script {
        Script::Overflow => overflow(ctx).await,
        Script::Arming => arming(ctx).await,
        Script::Resizing => resizing(ctx).await,
        Script::Flush => flush(ctx).await,
        Script::Reset => reset(ctx).await,
        Script::SignalAll => signal_all(ctx).await,
        Script::Drain => drain(ctx).await,
        Script::Transitions => transitions(ctx).await,
        Script::SharedOrder => shared::order(ctx).await,
        Script::SharedLimit => shared::limit(ctx).await,
        Script::SharedLast => shared::last(ctx).await,
        Script::Destroyed => destroyed(ctx).await,
        Script::LateReceive => late_receive(ctx).await,
    }
}

fn write(link: &Link, wr_id: u64, length: usize) -> SendWr {
    let remote = link.b.mr().remote(0);
    SendWr::new(wr_id, SendOp::Write { remote }).with_sges([link.a.mr().sge(..length)])
}

/// RX-26: the events of an overflow, and what is left in the queue.
async fn overflow(ctx: &Ctx) -> Verdict {
    let options = LinkOptions::new(QpType::Rc);
    let device = &ctx.a.end.device;
    let small = must("a completion queue", device.create_cq(2))?;
    let mut a = Side::new(&ctx.a, QpType::Rc, false, options.caps)?;
    a.qp = must(
        "a queue pair",
        ctx.a.pd.create_qp(&QpInit { caps: options.caps, ..QpInit::new(QpType::Rc, &small) }),
    )?;
    a.send_cq = small.clone();
    let b = Side::new(&ctx.b, QpType::Rc, false, options.caps)?;
    let connections = connect(ctx, &a, &b, &options).await?;
    for n in 0..3 {
        a.post_send(SendWr::new(n, SendOp::Write { remote: b.mr().remote(0) }))?;
    }
    a.reaches(ctx, "end A", QpState::Err).await?;
    let of_queue = |event: &AsyncEvent| *event == AsyncEvent::CqError(small.id());
    same!(ctx.a.events(of_queue).len(), 1, "CQ_ERR events");
    same!(a.events(), [QpEvent::Fatal], "events of its queue pair");
    let mut out = Vec::new();
    must("polling what is left", small.poll(&mut out, 9))?;
    same!(brief(&out), [(0, WcStatus::Success), (1, WcStatus::Success)], "completions before the overflow");
    let error = small.poll(&mut out, 9).err().ok_or("an overflowed queue can still be polled")?;
    same!(error.depth, 2, "depth in the error");
    drop(connections);
    Ok(())
}

async fn arming(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let cq = &link.b.recv_cq;
    let mut n = 0;
    let mut send = |solicited: bool| {
        n += 1;
        link.b.post_recv(RecvWr::new(n, []))?;
        link.a.post_send(SendWr { solicited, ..SendWr::new(n, SendOp::Send) })
    };
    // Not armed: none.
    send(true)?;
    link.b.received(ctx, 1).await?;
    ensure!(!cq.try_event(), "an event that nobody asked for");
    // IBTA §11.4.2.2: for solicited ones only.
    cq.arm(Arm::Solicited);
    send(false)?;
    link.b.received(ctx, 1).await?;
    ensure!(!cq.try_event(), "an event for a message that was not solicited");
    send(true)?;
    ctx.soon("the event of a solicited message", cq.next_event()).await?;
    link.b.received(ctx, 1).await?;
    ensure!(!cq.try_event(), "two events for one call");
    // Any wins over solicited.
    cq.arm(Arm::Any);
    cq.arm(Arm::Solicited);
    send(false)?;
    ctx.soon("the event of any message", cq.next_event()).await?;
    link.b.received(ctx, 1).await?;
    // Every completion in error is an event.
    cq.arm(Arm::Solicited);
    link.b.post_recv(RecvWr::new(99, []))?;
    must("to ERR", link.b.qp.to_error())?;
    ctx.soon("the event of a flushed receive", cq.next_event()).await?;
    same!(brief(&link.b.received(ctx, 1).await?), [(99, WcStatus::WrFlushErr)], "the receive");
    Ok(())
}

async fn resizing(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let cq = &link.a.send_cq;
    for n in 0..8 {
        link.a.post_send(write(&link, n, 8))?;
        if n == 3 {
            must("making it longer", cq.resize(1024))?;
        }
    }
    let mut held: Vec<Completion> = Vec::new();
    ctx.until("eight completions", || {
        let mut all = Vec::new();
        // Looks without taking: what is taken is kept in order.
        let _ = cq.poll(&mut all, 1);
        held.append(&mut all);
        held.len() >= 4
    })
    .await?;
    must("making it shorter", cq.resize(8))?;
    same!(cq.depth(), 8, "depth");
    while held.len() < 8 {
        let taken = ctx.soon("a completion", cq.wait(&mut held, 8)).await?;
        must("waiting", taken)?;
    }
    let all: Vec<_> = (0..8).map(|n| (n, WcStatus::Success)).collect();
    same!(brief(&held), all, "completions over two changes of depth");
    ensure!(cq.resize(0).is_err(), "a queue was made of no entries");
    link.silent()
}

/// RX-25: each once, in the order of posting, what is posted in ERR included.
async fn flush(ctx: &Ctx) -> Verdict {
    let mut options = LinkOptions::new(QpType::Rc);
    options.accept.rnr_retry_count = 7;
    let link = Link::new(ctx, &options).await?;
    for n in 0..20 {
        link.a.post_recv(RecvWr::new(100 + n, []))?;
    }
    // No receive is there for any of these (or, where the wire has no way to wait, READs, of which the first may be done by then).
    let list = (0..20).map(|n| match ctx.wire.family {
        Family::Ib => SendWr::new(n, SendOp::Send).unsignaled(),
        Family::Iwarp => {
            let read = SendOp::Read { remote: link.b.mr().remote(0) };
            SendWr::new(n, read).with_sges([link.a.mr().sge(..1 << 20)])
        }
    });
    must("posting", link.a.qp.post_send_list(list))?;
    must("to ERR", link.a.qp.to_error())?;
    link.a.post_recv(RecvWr::new(120, []))?;
    link.a.post_send(SendWr::new(20, SendOp::Send))?;
    let sent = link.a.sent(ctx, 21).await?;
    let flushed: Vec<_> = (100..121).map(|n| (n, WcStatus::WrFlushErr)).collect();
    let done = match ctx.wire.family {
        Family::Ib => 0,
        Family::Iwarp => sent.iter().take_while(|wc| wc.status == WcStatus::Success).count().min(20),
    };
    let expected: Vec<_> = (0..21)
        .map(|n| (n, if (n as usize) < done { WcStatus::Success } else { WcStatus::WrFlushErr }))
        .collect();
    same!(brief(&sent), expected, "sends");
    same!(brief(&link.a.received(ctx, 21).await?), flushed, "receives");
    link.a.silent("end A")
}

async fn reset(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    for n in 0..4 {
        link.a.post_recv(RecvWr::new(n, []))?;
    }
    // IBTA §10.3.1.1: RESET takes everything back without completions.
    must("to RESET", link.a.qp.modify(&QpAttr::to(QpState::Reset)))?;
    same!(link.a.qp.state(), QpState::Reset, "state");
    ctx.quiet().await;
    link.a.silent("end A")?;
    drop(link.connections);
    // Its number rests a while, so another one is connected with the same queues.
    let again = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    again.b.post_recv(RecvWr::new(5, []))?;
    again.a.post_send(SendWr::new(6, SendOp::Send))?;
    same!(brief(&again.a.sent(ctx, 1).await?), [(6, WcStatus::Success)], "a SEND of another queue pair");
    again.b.received(ctx, 1).await?;
    again.silent()
}

async fn signal_all(ctx: &Ctx) -> Verdict {
    let options = LinkOptions::new(QpType::Rc);
    let mut a = Side::new(&ctx.a, QpType::Rc, false, options.caps)?;
    let init = QpInit { caps: options.caps, sq_sig_all: true, ..QpInit::new(QpType::Rc, &a.send_cq) };
    a.qp = must("a queue pair", ctx.a.pd.create_qp(&init))?;
    let b = Side::new(&ctx.b, QpType::Rc, false, options.caps)?;
    let connections = connect(ctx, &a, &b, &options).await?;
    for n in 0..3 {
        a.post_send(SendWr::new(n, SendOp::Write { remote: b.mr().remote(0) }).unsignaled())?;
    }
    let all: Vec<_> = (0..3).map(|n| (n, WcStatus::Success)).collect();
    same!(brief(&a.sent(ctx, 3).await?), all, "completions of unsignalled WRITEs");
    drop(connections);
    Ok(())
}

/// IBTA §10.3.1.5: what has begun is finished, nothing new begins, and an event says when.
async fn drain(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    link.a.post_send(write(&link, 1, 1 << 16))?;
    link.a.sent(ctx, 1).await?;
    let stop = QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to(QpState::Sqd) };
    must("to SQD", link.a.qp.modify(&stop))?;
    ctx.until("SQ_DRAINED", || link.a.events() == [QpEvent::SqDrained]).await?;
    link.a.post_send(write(&link, 2, 8))?;
    ctx.quiet().await;
    link.a.silent("end A")?;
    // Receiving goes on.
    link.a.post_recv(RecvWr::new(9, []))?;
    link.b.post_send(SendWr::new(8, SendOp::Send))?;
    link.a.received(ctx, 1).await?;
    link.b.sent(ctx, 1).await?;
    must("back to RTS", link.a.qp.modify(&QpAttr::to(QpState::Rts)))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(2, WcStatus::Success)], "the WRITE that waited");
    link.silent()
}

async fn transitions(ctx: &Ctx) -> Verdict {
    let fresh = || Side::new(&ctx.a, QpType::Rc, false, QpCaps::default());
    let side = fresh()?;
    let refuse = |side: &Side, from: QpState, to: &[QpState]| -> Verdict {
        for &state in to {
            ensure!(side.qp.modify(&QpAttr::to(state)).is_err(), "{from:?} to {state:?} was not refused");
            same!(side.qp.state(), from, "state after a refused modify");
        }
        Ok(())
    };
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    let err = QpState::Err;
    // IBTA figure 125: there are no such ways, or they need attributes.
    refuse(&side, Reset, &[Rtr, Rts, Sqd, Sqe])?;
    if ctx.wire.family == Family::Ib {
        // IBTA §11.2.5.2 asks for a partition and a port, which iWARP has not.
        refuse(&side, Reset, &[Init])?;
    }
    must("to INIT", side.qp.to_init(ALL))?;
    refuse(&side, Init, &[Rtr, Rts, Sqd, Sqe])?;
    must("to ERR", side.qp.to_error())?;
    refuse(&side, err, &[Init, Rtr, Rts, Sqd, Sqe])?;
    must("to RESET", side.qp.modify(&QpAttr::to(Reset)))?;
    let assumed = QpAttr { cur_state: Some(Rts), ..QpAttr::to(err) };
    ensure!(side.qp.modify(&assumed).is_err(), "a modify with the wrong current state was not refused");
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    refuse(&link.a, Rts, &[Init, Rtr, Sqe])?;
    link.a.post_send(write(&link, 1, 8))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "a WRITE after refused modifies");
    link.silent()
}

/// RX-13: with its last handle a queue pair says nothing more, and its peer finds nobody.
async fn destroyed(ctx: &Ctx) -> Verdict {
    let options = LinkOptions::new(QpType::Rc);
    let link = Link::new(ctx, &options).await?;
    for n in 0..8 {
        link.a.post_recv(RecvWr::new(n, []))?;
        link.a.post_send(write(&link, n, 1 << 16))?;
    }
    let Link { a, b, connections, .. } = link;
    let Side { qp, send_cq, recv_cq, .. } = a;
    let number = qp.qpn();
    drop(connections);
    drop(qp);
    let mut before = Vec::new();
    must("polling", send_cq.poll(&mut before, 64))?;
    must("polling", recv_cq.poll(&mut before, 64))?;
    ctx.quiet().await;
    let mut after = Vec::new();
    must("polling", send_cq.poll(&mut after, 64))?;
    must("polling", recv_cq.poll(&mut after, 64))?;
    ensure!(after.is_empty(), "a completion of a destroyed queue pair: {:?}", after[0]);
    ensure!(before.iter().all(|entry| entry.qpn == number), "a completion of nobody: {before:?}");
    b.reaches(ctx, "end B", QpState::Err).await
}

/// IBTA §9.7.5.2.8: a requester that may retry for ever waits for the receive. RFC 5041 §7.1: on iWARP nobody waits; a
/// message that finds no receive ends the stream.
async fn late_receive(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    if ctx.wire.family == Family::Iwarp {
        link.a.post_send(SendWr::new(1, SendOp::Send))?;
        link.a.sent(ctx, 1).await?;
        link.reaches(ctx, QpState::Err, QpState::Err).await?;
        link.b.post_recv(RecvWr::new(3, []))?;
        same!(
            brief(&link.b.received(ctx, 1).await?),
            [(3, WcStatus::WrFlushErr)],
            "the receive that came late"
        );
        return Ok(());
    }
    let data = pattern(3000, 4);
    must("filling", link.a.mr().write_at(0, &data))?;
    link.a.post_send(SendWr::new(1, SendOp::Send).with_sges([link.a.mr().sge(..3000)]))?;
    link.a.post_send(write(&link, 2, 8))?;
    ctx.quiet().await;
    link.silent()?;
    link.b.post_recv(RecvWr::new(3, [link.b.mr().sge(8192..8192 + 3000)]))?;
    let got = link.b.received(ctx, 1).await?;
    same!((got[0].opcode, got[0].byte_len), (WcOpcode::Recv, 3000), "the receive");
    let all = [(1, WcStatus::Success), (2, WcStatus::Success)];
    same!(brief(&link.a.sent(ctx, 2).await?), all, "sends");
    ensure!(must("reading", link.b.mr().read_vec(8192, 3000))? == data, "wrong bytes arrived");
    link.silent()
}
