//! Errors of datagrams: dropped at the receiver without a word, or a stopped send queue at the sender.
//!
//! Read IBTA vol. 1 §9.8.3, §9.9.3 (classes D and E) and §10.3.1.6 first.

use everywire_verbs::{Counter, LKey, QKey, QpAttr, QpState, QpType, RecvWr, SendOp, SendWr, Sge, WcStatus};

use super::counted;
use crate::check::{Verdict, must, same};
use crate::layout::NO_KEY;
use crate::link::{Ctx, Link, LinkOptions, QKEY, brief};
use crate::transfer::GRH;

/// What is wrong with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramFault {
    /// IBTA C9-46.
    BadQkey,
    /// IBTA §9.8.3.2.
    NoSuchQueuePair,
    /// IBTA §9.8.3: one packet is all.
    OverMtu,
    /// IBTA §11.6.2.
    LocalKey,
    /// Room for the message, but not for the 40 bytes before it (IBTA §11.4.1.2).
    NoRoomForGrh,
    /// IBTA table 57, class D.
    ShortReceive,
    /// IBTA table 57, class D.
    NoReceive,
    /// IBTA table 57, class E.
    ReceiveKey,
}

/// All of them.
pub(crate) const DATAGRAM_FAULTS: [DatagramFault; 8] = {
    use DatagramFault::*;
    [BadQkey, NoSuchQueuePair, OverMtu, LocalKey, NoRoomForGrh, ShortReceive, NoReceive, ReceiveKey]
};

const LENGTH: usize = 100;

/// Runs one, and sees that datagrams go on afterwards.
pub(crate) async fn datagram_fault(ctx: &Ctx, fault: DatagramFault) -> Verdict {
    use DatagramFault::*;
    let link = Link::new(ctx, &LinkOptions::new(QpType::Ud)).await?;
    let before = (ctx.a.end.device.counters(), ctx.b.end.device.counters());
    let (a, b) = (link.a.mr(), link.b.mr());
    let mut receive = b.sge(..GRH + LENGTH);
    match fault {
        NoRoomForGrh => receive.length -= 1,
        ShortReceive => receive.length = (GRH + 1) as u32,
        ReceiveKey => receive.lkey = LKey(NO_KEY),
        _ => {}
    }
    if fault != NoReceive {
        link.b.post_recv(RecvWr::new(11, [receive]))?;
    }
    let mut source = a.sge(..LENGTH);
    match fault {
        OverMtu => source = a.sge(..link.mtu + 1),
        LocalKey => source = Sge { lkey: LKey(NO_KEY), ..source },
        _ => {}
    }
    let mut wr = link.addressed(SendWr::new(1, SendOp::Send).with_sges([source]));
    match (&mut wr.ud, fault) {
        (Some(ud), BadQkey) => ud.qkey = QKey(QKEY.0 ^ 1),
        (Some(ud), NoSuchQueuePair) => ud.qpn = link.a.qp.qpn(),
        _ => {}
    }
    // Where both ends are one device, end A's own queue pair is there, with no receive posted.
    link.a.post_send(wr)?;
    let status = match fault {
        OverMtu => WcStatus::LocLenErr,
        LocalKey => WcStatus::LocProtErr,
        _ => WcStatus::Success,
    };
    same!(brief(&link.a.sent(ctx, 1).await?), [(1, status)], "the datagram");
    ctx.quiet().await;
    let counters: &[Counter] = match fault {
        BadQkey => &[Counter::DropBadQkey],
        NoReceive => &[Counter::OutOfBuffer],
        ReceiveKey => &[Counter::RespCqeError],
        _ => &[],
    };
    if fault == ReceiveKey {
        let failed = link.b.received(ctx, 1).await?;
        same!(brief(&failed), [(11, WcStatus::LocProtErr)], "the receive in use");
        return link.b.reaches(ctx, "end B", QpState::Err).await;
    }
    if !ctx.plan.lossy {
        let b = &ctx.b.end.device;
        ctx.eventually(|| counted("end B", &before.1, &b.counters(), counters)).await?;
    }
    same!(link.b.qp.state(), QpState::Rts, "state of end B");
    link.silent()?;
    if status != WcStatus::Success {
        recover(&link, ctx).await?;
    }
    goes_on(ctx, &link, fault == NoReceive).await
}

/// A stopped send queue: flushes what is posted, and starts again by a modify (IBTA §10.3.1.6).
async fn recover(link: &Link, ctx: &Ctx) -> Verdict {
    same!(link.a.qp.state(), QpState::Sqe, "state of end A");
    link.a.post_send(link.addressed(SendWr::new(2, SendOp::Send)))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(2, WcStatus::WrFlushErr)], "a send posted in SQE");
    must("SQE to RTS", link.a.qp.modify(&QpAttr::to(QpState::Rts)))
}

/// The next datagram arrives in the receive that was not used.
async fn goes_on(ctx: &Ctx, link: &Link, post: bool) -> Verdict {
    if post {
        link.b.post_recv(RecvWr::new(11, [link.b.mr().sge(..GRH)]))?;
    }
    for _ in 0..40 {
        link.a.post_send(link.addressed(SendWr::new(3, SendOp::Send)))?;
        same!(brief(&link.a.sent(ctx, 1).await?), [(3, WcStatus::Success)], "the next datagram");
        let mut out = Vec::new();
        let arrived = ctx.rt.timeout(ctx.plan.quiet * 50, link.b.recv_cq.wait(&mut out, 1)).await;
        if arrived.is_ok() {
            same!(brief(&out), [(11, WcStatus::Success)], "its receive");
            return link.silent();
        }
    }
    Err(String::from("the next datagram never arrives"))
}
