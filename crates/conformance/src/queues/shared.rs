//! Shared receive queues.
//!
//! Read IBTA vol. 1 §10.2.9 first.

use everywire_verbs::{AsyncEvent, QpEvent, QpInit, QpType, RecvWr, SendOp, SendWr, WcStatus};

use crate::check::{Verdict, must, same};
use crate::layout::pattern;
use crate::link::{Ctx, Link, LinkOptions, Side, connect};

/// Two queue pairs take the receives of one queue in the order of posting.
pub(super) async fn order(ctx: &Ctx) -> Verdict {
    let options = LinkOptions { srq: true, ..LinkOptions::new(QpType::Rc) };
    let first = Link::new(ctx, &options).await?;
    let srq = first.b.srq.clone().ok_or("no shared queue")?;
    let mut b = Side::new(&ctx.b, QpType::Rc, false, options.caps)?;
    let init = QpInit { srq: Some(&srq), caps: options.caps, ..QpInit::new(QpType::Rc, &first.b.recv_cq) };
    b.qp = must("a queue pair", ctx.b.pd.create_qp(&init))?;
    let a = Side::new(&ctx.a, QpType::Rc, false, options.caps)?;
    let connections = connect(ctx, &a, &b, &options).await?;
    for n in 0..16 {
        first.b.post_recv(RecvWr::new(n, [ctx.b.mr.sge(n as usize * 64..n as usize * 64 + 64)]))?;
    }
    for n in 0..16u64 {
        let (side, at) = if n % 2 == 0 { (&first.a, &first.b) } else { (&a, &b) };
        let data = pattern(32, n);
        side.post_send(SendWr::new(n, SendOp::Send).with_inline(data.clone()))?;
        let got = first.b.received(ctx, 1).await?;
        same!((got[0].wr_id, got[0].status, got[0].qpn), (n, WcStatus::Success, at.qp.qpn()), "receive {n}");
        same!(must("reading", ctx.b.mr.read_vec(n as usize * 64, 32))?, data, "bytes of message {n}");
    }
    same!(srq.query().0, 0, "receives left");
    drop(connections);
    Ok(())
}

/// The event of a queue that runs low.
pub(super) async fn limit(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions { srq: true, ..LinkOptions::new(QpType::Rc) }).await?;
    let srq = link.b.srq.clone().ok_or("no shared queue")?;
    for n in 0..5 {
        link.b.post_recv(RecvWr::new(n, []))?;
    }
    must("arming the limit", srq.arm_limit(3))?;
    for n in 0..5u64 {
        link.a.post_send(SendWr::new(n, SendOp::Send))?;
        link.b.received(ctx, 1).await?;
        let reached = ctx.b.events(|event| *event == AsyncEvent::SrqLimitReached(srq.id())).len();
        // IBTA o10-2: once the number falls below the limit, and once only.
        same!(reached, usize::from(n == 2), "limit events after message {n}");
    }
    same!(srq.query(), (0, 0), "receives, and the limit, which is disarmed");
    link.a.sent(ctx, 5).await?;
    link.silent()
}

/// The event of a queue pair that takes no more.
pub(super) async fn last(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions { srq: true, ..LinkOptions::new(QpType::Rc) }).await?;
    let srq = link.b.srq.clone().ok_or("no shared queue")?;
    link.b.post_recv(RecvWr::new(1, []))?;
    must("to ERR", link.b.qp.to_error())?;
    same!(link.b.events(), [QpEvent::LastWqeReached], "events of a queue pair on a shared queue");
    // IBTA §10.2.9.5: what no message has taken stays, for others.
    same!(srq.query().0, 1, "receives left");
    link.b.silent("end B")
}
