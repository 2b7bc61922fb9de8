//! What is refused at the call: nothing of it is queued, and what was queued before goes on.
//!
//! Read IBTA vol. 1 §11.4.1 (immediate errors), C10-29 and C10-31 (states), table 29 (operations by service) first. Errors
//! carry libibverbs' numbers: 12 for a full queue, 95 for what the wire lacks, else 22.

use everywire_verbs::{
    Access, PostError, QpAttr, QpCaps, QpState, QpType, RecvWr, SendOp, SendWr, Sge, SrqInit, WcStatus,
    WireFeature,
};

use crate::check::{Verdict, ensure, must, same};
use crate::layout::NO_KEY;
use crate::link::{ALL, Ctx, Link, LinkOptions, Side, brief};
use crate::transfer::Kind;

/// One script of this group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    /// Sends and receives in every state.
    States(QpType),
    /// Operations that the service does not have.
    Services(QpType),
    /// Segments, inline bytes and depth.
    Limits,
    /// A list stops at the first that is refused.
    Lists,
    /// Receives of a queue pair that has a shared queue, and the shared queue's own limits.
    Shared,
    /// A datagram needs a destination.
    NoDestination,
    /// What the wire lacks is refused with the reason.
    Lacks,
}

/// All of them.
pub(crate) const POSTINGS: [Posting; 11] = [
    Posting::States(QpType::Rc),
    Posting::States(QpType::Uc),
    Posting::States(QpType::Ud),
    Posting::Services(QpType::Rc),
    Posting::Services(QpType::Uc),
    Posting::Services(QpType::Ud),
    Posting::Limits,
    Posting::Lists,
    Posting::Shared,
    Posting::NoDestination,
    Posting::Lacks,
];

impl Posting {
    /// The service that it is about.
    pub(crate) fn service(self) -> QpType {
        match self {
            Posting::States(ty) | Posting::Services(ty) => ty,
            Posting::NoDestination => QpType::Ud,
            _ => QpType::Rc,
        }
    }
}

/// Runs one.
pub(crate) async fn posting(ctx: &Ctx, script: Posting) -> Verdict {
    match script {
        Posting::States(ty) => states(ctx, ty).await,
        Posting::Services(ty) => services(ctx, ty).await,
        Posting::Limits => limits(ctx).await,
        Posting::Lists => lists(ctx).await,
        Posting::Shared => shared(ctx),
        Posting::NoDestination => no_destination(ctx).await,
        Posting::Lacks => lacks(ctx).await,
    }
}

fn refused(
    what: &str,
    done: Result<(), PostError>,
    errno: i32,
    fits: impl Fn(&PostError) -> bool,
) -> Verdict {
    match done {
        Ok(()) => Err(format!("{what} was not refused")),
        Err(error) => {
            ensure!(fits(&error), "{what} was refused with the wrong reason: {error}");
            same!(error.errno(), errno, "errno of {what}");
            Ok(())
        }
    }
}

async fn states(ctx: &Ctx, ty: QpType) -> Verdict {
    let side = Side::new(&ctx.a, ty, false, LinkOptions::new(ty).caps)?;
    let qp = &side.qp;
    let wrong = |at: QpState| move |error: &PostError| matches!(error, PostError::WrongState { state, .. } if *state == at);
    let send = || SendWr::new(1, SendOp::Send);
    refused("a receive in RESET", qp.post_recv(RecvWr::new(2, [])), 22, wrong(QpState::Reset))?;
    refused("a send in RESET", qp.post_send(send()), 22, wrong(QpState::Reset))?;
    let access = (ty != QpType::Ud).then_some(ALL);
    let qkey = (ty == QpType::Ud).then_some(crate::link::QKEY);
    let init = QpAttr { pkey_index: Some(0), port: Some(1), access, qkey, ..QpAttr::to(QpState::Init) };
    must("to INIT", qp.modify(&init))?;
    must("a receive in INIT", qp.post_recv(RecvWr::new(2, [])))?;
    refused("a send in INIT", qp.post_send(send()), 22, wrong(QpState::Init))?;
    if ty == QpType::Ud {
        must("to RTR", qp.modify(&QpAttr::to(QpState::Rtr)))?;
        refused("a send in RTR", qp.post_send(send()), 22, wrong(QpState::Rtr))?;
    }
    side.silent("end A")?;
    must("to ERR", qp.to_error())?;
    // IBTA C10-42: accepted, and flushed behind what was there.
    must("a receive in ERR", qp.post_recv(RecvWr::new(3, [])))?;
    let flushed = brief(&side.received(ctx, 2).await?);
    same!(flushed, [(2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)], "receives");
    must("to RESET", qp.modify(&QpAttr::to(QpState::Reset)))?;
    refused("a receive in RESET", qp.post_recv(RecvWr::new(4, [])), 22, wrong(QpState::Reset))?;
    side.silent("end A")
}

async fn services(ctx: &Ctx, ty: QpType) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(ty)).await?;
    let remote = link.b.mr().remote(0);
    let rfc7306 = ctx.a.end.device.config().iwarp.rfc7306;
    for kind in Kind::ALL {
        let lacks = kind.needs().and_then(|feature| ctx.wire.lacks(feature, rfc7306));
        if kind.on(ty) || lacks.is_some() {
            continue;
        }
        let op = match kind {
            Kind::SendInv => SendOp::SendInv(link.b.mr().rkey()),
            Kind::Write => SendOp::Write { remote },
            Kind::WriteImm => SendOp::WriteImm { remote, imm: 1 },
            Kind::Read => SendOp::Read { remote },
            Kind::Add => SendOp::FetchAdd { remote, add: 1 },
            _ => SendOp::CompareSwap { remote, compare: 0, swap: 0 },
        };
        let name = format!("{kind:?} on {}", ty.name());
        let unsupported = |error: &PostError| matches!(error, PostError::UnsupportedOp { .. });
        refused(&name, link.a.qp.post_send(link.addressed(SendWr::new(1, op))), 22, unsupported)?;
    }
    // IBTA §11.4.1.1: inline is for bytes that leave.
    let fetching = [SendOp::Read { remote }, SendOp::LocalInv(link.a.mr().rkey())];
    for op in fetching.into_iter().filter(|_| ty == QpType::Rc) {
        let name = op.name();
        let wr = SendWr::new(1, op).with_inline(*b"in line");
        let not_allowed = |error: &PostError| matches!(error, PostError::InlineNotAllowed { .. });
        refused(name, link.a.qp.post_send(wr), 22, not_allowed)?;
    }
    ctx.quiet().await;
    link.silent()?;
    link.reaches(ctx, QpState::Rts, QpState::Rts).await
}

async fn limits(ctx: &Ctx) -> Verdict {
    let caps =
        QpCaps { max_send_wr: 4, max_recv_wr: 3, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 16 };
    let mut options = LinkOptions { caps, ..LinkOptions::new(QpType::Rc) };
    options.accept.rnr_retry_count = 7;
    let link = Link::new(ctx, &options).await?;
    let (qp, mr) = (&link.a.qp, link.a.mr());
    let piece = || mr.sge(..1);
    let write = |n| SendWr::new(n, SendOp::Write { remote: link.b.mr().remote(0) });
    refused("three segments", qp.post_send(write(1).with_sges([piece(), piece(), piece()])), 22, |error| {
        matches!(error, PostError::TooManySges { count: 3, limit: 2 })
    })?;
    if ctx.wire.one_read_segment.is_some() {
        let read = SendWr::new(1, SendOp::Read { remote: link.b.mr().remote(0) });
        refused("a READ of two segments", qp.post_send(read.with_sges([piece(), piece()])), 22, |error| {
            matches!(error, PostError::TooManySges { count: 2, limit: 1 })
        })?;
    }
    refused("17 inline bytes", qp.post_send(write(1).with_inline([0; 17])), 22, |error| {
        matches!(error, PostError::InlineTooLong { length: 17, limit: 16 })
    })?;
    must("16 inline bytes", qp.post_send(write(1).with_inline([0; 16])))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "the inline WRITE");
    refused("two segments to receive", qp.post_recv(RecvWr::new(1, [piece(), piece()])), 22, |error| {
        matches!(error, PostError::TooManySges { count: 2, limit: 1 })
    })?;
    let full = |limit| move |error: &PostError| matches!(error, PostError::QueueFull { limit: l, .. } if *l == limit);
    for n in 0..3 {
        must("a receive", qp.post_recv(RecvWr::new(n, [])))?;
    }
    refused("a fourth receive", qp.post_recv(RecvWr::new(3, [])), 12, full(3))?;
    // READs of a megabyte stay in the queue while four of them are posted under one lock.
    let read = |n| {
        SendWr::new(n, SendOp::Read { remote: link.b.mr().remote(0) })
            .with_sges([mr.sge(..1 << 18)])
            .unsignaled()
    };
    let list = (1..=5).map(read);
    let error = qp.post_send_list(list).err().ok_or("a fifth send was not refused")?;
    same!((error.index, error.error.errno()), (4, 12), "the fifth send");
    ensure!(full(4)(&error.error), "a fifth send was refused with the wrong reason: {error}");
    // Unsignalled ones leave the queue as they complete, without anybody polling: their places come back.
    ctx.until("room in the send queue", || qp.post_send(write(9)).is_ok()).await?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(9, WcStatus::Success)], "the WRITE behind");
    refusals_of_creation(ctx)
}

/// What the device's own limits refuse.
fn refusals_of_creation(ctx: &Ctx) -> Verdict {
    let device = &ctx.a.end.device;
    let limits = device.limits();
    let side = |caps| Side::new(&ctx.a, QpType::Rc, false, caps).map(drop);
    let fine = QpCaps::default();
    let rows = [
        ("max_qp_wr", QpCaps { max_send_wr: limits.max_qp_wr + 1, ..fine }),
        ("max_qp_wr", QpCaps { max_recv_wr: limits.max_qp_wr + 1, ..fine }),
        ("max_sge", QpCaps { max_send_sge: limits.max_sge + 1, ..fine }),
        ("max_sge", QpCaps { max_recv_sge: limits.max_sge + 1, ..fine }),
        ("max_inline", QpCaps { max_inline_data: limits.max_inline + 1, ..fine }),
    ];
    for (limit, caps) in rows {
        ensure!(side(caps).is_err(), "a queue pair beyond {limit} was made");
    }
    ensure!(device.create_cq(0).is_err(), "a completion queue of no entries was made");
    ensure!(device.create_cq(limits.max_cqe + 1).is_err(), "a completion queue beyond max_cqe was made");
    let too_deep = SrqInit { max_wr: limits.max_srq_wr + 1, max_sge: 1 };
    ensure!(ctx.a.pd.create_srq(too_deep).is_err(), "a shared receive queue beyond max_srq_wr was made");
    // IBTA §10.6.3.1.
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        ensure!(ctx.a.pd.register(64, access).is_err(), "{access:?} was registered without LOCAL_WRITE");
    }
    let beyond = ctx.a.pd.alloc_fast_reg_mr(limits.max_fast_reg_pages + 1);
    ensure!(beyond.is_err(), "a fast-register region beyond max_fast_reg_pages was made");
    Ok(())
}

async fn lists(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let many: Vec<Sge> = (0..33).map(|_| link.a.mr().sge(..1)).collect();
    let write =
        |n| SendWr::new(n, SendOp::Write { remote: link.b.mr().remote(0) }).with_sges([link.a.mr().sge(..8)]);
    let list = [write(1), write(2), write(3).with_sges(many), write(4)];
    let error = link.a.qp.post_send_list(list).err().ok_or("the list was not refused")?;
    same!((error.index, error.error.errno()), (2, 22), "the work request that was refused");
    let done = brief(&link.a.sent(ctx, 2).await?);
    same!(done, [(1, WcStatus::Success), (2, WcStatus::Success)], "those before it");
    let receives = (0..200).map(|n| RecvWr::new(n, []));
    let error = link.a.qp.post_recv_list(receives).err().ok_or("the list was not refused")?;
    same!((error.index, error.error.errno()), (128, 12), "the receive that was refused");
    ctx.quiet().await;
    link.silent()
}

fn shared(ctx: &Ctx) -> Verdict {
    let options = LinkOptions { srq: true, ..LinkOptions::new(QpType::Rc) };
    let side = Side::new(&ctx.b, QpType::Rc, true, options.caps)?;
    must("to INIT", side.qp.to_init(ALL))?;
    let uses = |error: &PostError| matches!(error, PostError::UsesSrq);
    refused("a receive of its own", side.qp.post_recv(RecvWr::new(1, [])), 22, uses)?;
    let srq = must("a shared queue", ctx.b.pd.create_srq(SrqInit { max_wr: 2, max_sge: 1 }))?;
    let piece = || ctx.b.mr.sge(..1);
    refused("two segments", srq.post_recv(RecvWr::new(1, [piece(), piece()])), 22, |error| {
        matches!(error, PostError::TooManySges { count: 2, limit: 1 })
    })?;
    // IBTA §10.2.9.4: the shared queue takes receives at once, whatever queue pairs do.
    must("a receive", srq.post_recv(RecvWr::new(1, [])))?;
    must("a receive", srq.post_recv(RecvWr::new(2, [])))?;
    refused("a third receive", srq.post_recv(RecvWr::new(3, [])), 12, |error| {
        matches!(error, PostError::QueueFull { limit: 2, .. })
    })?;
    same!(srq.query(), (2, 0), "receives in the shared queue, and its limit");
    ensure!(srq.arm_limit(3).is_err(), "a limit beyond the queue's depth was armed");
    Ok(())
}

async fn no_destination(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Ud)).await?;
    let none = |error: &PostError| matches!(error, PostError::NoDestination);
    refused("a datagram to nowhere", link.a.qp.post_send(SendWr::new(1, SendOp::Send)), 22, none)?;
    ensure!(
        link.a.qp.attach_multicast(ctx.b.end.ip).is_err(),
        "{} was taken for a multicast group",
        ctx.b.end.ip
    );
    link.silent()
}

async fn lacks(ctx: &Ctx) -> Verdict {
    let device = &ctx.a.end.device;
    let rfc7306 = device.config().iwarp.rfc7306;
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let remote = everywire_verbs::Remote { addr: 0, rkey: everywire_verbs::RKey(NO_KEY) };
    let rows = [
        (WireFeature::Immediate, SendOp::SendImm(1)),
        (WireFeature::Immediate, SendOp::WriteImm { remote, imm: 1 }),
        (WireFeature::Atomics, SendOp::CompareSwap { remote, compare: 0, swap: 0 }),
        (WireFeature::Atomics, SendOp::FetchAdd { remote, add: 0 }),
    ];
    for (feature, op) in rows {
        if ctx.wire.lacks(feature, rfc7306).is_some() {
            let name = op.name();
            let why = |error: &PostError| matches!(error, PostError::NotOnThisWire { why, .. } if why.contains("iWARP"));
            refused(name, link.a.qp.post_send(SendWr::new(1, op)), 95, why)?;
        }
    }
    if ctx.wire.no_send_immediate.is_some() {
        let posted = link.a.qp.post_send(SendWr::new(1, SendOp::SendImm(1)));
        ensure!(posted.is_err(), "a SEND with immediate was not refused");
    }
    for (feature, ty) in [(WireFeature::Uc, QpType::Uc), (WireFeature::Ud, QpType::Ud)] {
        let made = Side::new(&ctx.a, ty, false, QpCaps::default());
        same!(made.is_err(), ctx.wire.lacks(feature, rfc7306).is_some(), "{} refused", ty.name());
    }
    link.silent()
}
