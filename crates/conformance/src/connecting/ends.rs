//! How connections end: by either side, by both, by a handle that goes, under load, by a power failure.
//!
//! Read IBTA vol. 1 §12.9.8 (disconnecting), §12.9.8.4 (time-wait) first; RFC 5044 §8 for iWARP. Whoever ends it: both
//! queue pairs are in ERR, what was posted is flushed, and each side is told once.

use std::time::Duration;

use everywire_verbs::{Connection, DisconnectReason, QpState, QpType, RecvWr, SendOp, SendWr, WcStatus};

use crate::check::{Verdict, ensure, must, same};
use crate::join::join;
use crate::link::{Ctx, Link, LinkOptions, brief};
use crate::wire::Family;

/// One script about how connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By the side that connected.
    Active,
    /// By the side that accepted.
    Passive,
    /// By both at once.
    Both,
    /// By the last handle.
    Dropped,
    /// While both sides have work in all queues.
    Busy,
    /// And a second time, which does nothing.
    Twice,
}

/// All of them.
pub(crate) const ENDS: [End; 6] = [End::Active, End::Passive, End::Both, End::Dropped, End::Busy, End::Twice];

/// Runs one.
pub(crate) async fn end(ctx: &Ctx, script: End) -> Verdict {
    let mut link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let Some((a, b)) = link.connections.take() else { return Err(String::from("no connection")) };
    match script {
        End::Active => ended(ctx, &link, &a, &b).await,
        End::Passive => {
            link = Link { a: link.b, b: link.a, ..link };
            ended(ctx, &link, &b, &a).await
        }
        End::Both => both(ctx, &link, &a, &b).await,
        End::Dropped => {
            link.b.post_recv(RecvWr::new(1, []))?;
            drop(a);
            let reason = ctx.soon("the end", b.closed()).await?;
            same!(reason, DisconnectReason::Peer, "what end B is told");
            same!(brief(&link.b.received(ctx, 1).await?), [(1, WcStatus::WrFlushErr)], "its receive");
            link.reaches(ctx, QpState::Err, QpState::Err).await
        }
        End::Busy => busy(ctx, &link, &a, &b).await,
        End::Twice => {
            ended(ctx, &link, &a, &b).await?;
            for connection in [&a, &b] {
                let before = connection.closed_reason();
                let after = ctx.soon("the second end", connection.disconnect()).await?;
                same!(Some(after), before, "the reason after disconnecting once more");
            }
            link.a.silent("end A")?;
            link.b.silent("end B")
        }
    }
}

/// `a` disconnects.
async fn ended(ctx: &Ctx, link: &Link, a: &Connection, b: &Connection) -> Verdict {
    for side in [&link.a, &link.b] {
        side.post_recv(RecvWr::new(1, []))?;
        side.post_recv(RecvWr::new(2, []))?;
    }
    same!((a.closed_reason(), b.closed_reason()), (None, None), "the end before the end");
    let closing = a.disconnect();
    same!(link.a.qp.state(), QpState::Err, "state at once after disconnecting");
    let (here, there) = ctx.soon("the end on both sides", join(closing, b.closed())).await?;
    same!((here, there), (DisconnectReason::Local, DisconnectReason::Peer), "what both are told");
    link.reaches(ctx, QpState::Err, QpState::Err).await?;
    let flushed = [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)];
    for side in [&link.a, &link.b] {
        same!(brief(&side.received(ctx, 2).await?), flushed, "receives");
    }
    Ok(())
}

async fn both(ctx: &Ctx, link: &Link, a: &Connection, b: &Connection) -> Verdict {
    let (one, other) = (a.disconnect(), b.disconnect());
    let (here, there) = ctx.soon("the end on both sides", join(one, other)).await?;
    for reason in [here, there] {
        let fine = matches!(reason, DisconnectReason::Local | DisconnectReason::Peer);
        ensure!(fine, "both disconnected, and one is told: {reason}");
    }
    link.reaches(ctx, QpState::Err, QpState::Err).await
}

/// Sends of 64 KiB both ways; end B disconnects in the middle. Each completes once, in order: successes, then flushes.
async fn busy(ctx: &Ctx, link: &Link, a: &Connection, b: &Connection) -> Verdict {
    const COUNT: u64 = 40;
    let (here, there) = (&link.a, &link.b);
    for (from, to) in [(here, there), (there, here)] {
        for n in 0..COUNT {
            to.post_recv(RecvWr::new(n, [to.mr().sge(1 << 20..(1 << 20) + (1 << 16))]))?;
            from.post_send(SendWr::new(n, SendOp::Send).with_sges([from.mr().sge(..1 << 16)]))?;
        }
    }
    let mut begun = Vec::new();
    let first = ctx.soon("the first message", there.recv_cq.wait(&mut begun, 1)).await?;
    must("waiting", first)?;
    let closing = b.disconnect();
    ctx.soon("the end on both sides", join(closing, a.closed())).await?;
    link.reaches(ctx, QpState::Err, QpState::Err).await?;
    for (side, who) in [(here, "end A"), (there, "end B")] {
        let mut sent = Vec::new();
        must("polling", side.send_cq.poll(&mut sent, 512))?;
        ordered(&brief(&sent), COUNT).map_err(|why| format!("sends of {who}: {why}"))?;
        let mut received = if side.qp.qpn() == there.qp.qpn() { begun.clone() } else { Vec::new() };
        must("polling", side.recv_cq.poll(&mut received, 512))?;
        let received = brief(&received);
        let tail = received.iter().skip_while(|entry| entry.1 == WcStatus::Success);
        ensure!(tail.clone().all(|entry| entry.1 == WcStatus::WrFlushErr), "receives of {who}: {received:?}");
        let in_order = received.windows(2).all(|two| two[0].0 + 1 == two[1].0);
        let last = received.last().is_none_or(|entry| entry.0 == COUNT - 1);
        ensure!(in_order && last, "receives of {who}: {received:?}");
    }
    Ok(())
}

/// All of `0..count` once and in order: successes first, then one error at most, then flushes.
fn ordered(completions: &[(u64, WcStatus)], count: u64) -> Verdict {
    let all = completions.iter().map(|entry| entry.0).eq(0..count);
    ensure!(all, "not each once and in order: {completions:?}");
    let mut failed = completions.iter().skip_while(|entry| entry.1 == WcStatus::Success);
    // IBTA §11.6.2: what the disconnection interrupts is flushed; nothing here is wrong by itself.
    let flushed = failed.all(|entry| entry.1 == WcStatus::WrFlushErr);
    ensure!(flushed, "not successes and then flushes: {completions:?}");
    Ok(())
}

/// More than the connection manager's retries towards a peer that is gone take: nobody waits so long in real time.
const RETRIES: Duration = Duration::from_secs(300);

/// The peer loses its power: outstanding work ends in error, everything behind it is flushed, and disconnecting ends too.
pub(crate) async fn peer_dies(ctx: &Ctx, kill: &dyn Fn()) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let Some((a, _)) = &link.connections else { return Err(String::from("no connection")) };
    link.a.post_recv(RecvWr::new(9, []))?;
    kill();
    let read = SendOp::Read { remote: link.b.mr().remote(0) };
    link.a.post_send(SendWr::new(1, read).with_sges([link.a.mr().sge(..64)]))?;
    link.a.post_send(SendWr::new(2, SendOp::Send))?;
    let sent = brief(&link.a.sent(ctx, 2).await?);
    match ctx.wire.family {
        // IBTA §9.9.2.1: no answer within the retries.
        Family::Ib => {
            same!(sent, [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)], "sends");
        }
        // The stream is reset, or TCP gives up.
        Family::Iwarp => {
            let failed = sent.iter().all(|entry| entry.1 != WcStatus::Success);
            ensure!(failed && sent[0].0 == 1 && sent[1].0 == 2, "sends: {sent:?}");
        }
    }
    link.a.reaches(ctx, "end A", QpState::Err).await?;
    same!(brief(&link.a.received(ctx, 1).await?), [(9, WcStatus::WrFlushErr)], "receives");
    if ctx.plan.patience >= RETRIES {
        let reason = ctx.soon("the end of the connection", a.disconnect()).await?;
        if ctx.wire.family == Family::Ib {
            same!(reason, DisconnectReason::TimedOut, "what end A is told");
        }
    }
    link.a.silent("end A")
}
