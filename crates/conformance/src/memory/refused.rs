//! Memory operations that fail: a completion with "memory management operation error", and the queue pair ends.
//!
//! Read IBTA vol. 1 §11.6.2 (memory management operation error; libibverbs calls it MW_BIND_ERR), §10.6.4.6, §10.6.5 and
//! §10.6.7 first.

use everywire_verbs::{
    Access, BindWindow, FastRegister, LKey, MemoryRegion, QpEvent, QpState, QpType, RKey, SendOp, SendWr,
    Sge, WcStatus, WindowType, next_key,
};

use super::{OPEN_AT, Via, open};
use crate::check::{Verdict, must, same};
use crate::layout::NO_KEY;
use crate::link::{ALL, Ctx, Link, LinkOptions, brief};
use crate::wire::Family;

/// A wrong operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    InvalidateNothing,
    InvalidateRegion,
    InvalidateWindow1,
    InvalidateUnbound,
    InvalidateTwice,
    InvalidateForeign,
    BindWithoutPermission,
    BindForeignRegion,
    BindForeignWindow,
    BindOutside,
    BindUnknownRegion,
    BindWritableToReadOnly,
    BindBound,
    BindNothing,
    BindZeroBased1,
    BindOtherIndex,
    RegisterTwice,
    RegisterTooMany,
    RegisterUnknownPage,
    RegisterForeignPage,
    RegisterReadOnlyPage,
    RegisterOutside,
    RegisterOtherLength,
    RegisterOtherIndex,
}

/// All of them, each with its clause.
pub(crate) const REFUSED: &[(Refused, &str)] = {
    use Refused::*;
    &[
        (InvalidateNothing, "IBTA §10.6.5.1"),
        (InvalidateRegion, "IBTA §10.6.5.1: not a region that was registered by a call"),
        (InvalidateWindow1, "IBTA o10-37.2.26"),
        (InvalidateUnbound, "IBTA §10.6.7.2.6"),
        (InvalidateTwice, "IBTA §10.6.5.1"),
        (InvalidateForeign, "IBTA C10-72"),
        (BindWithoutPermission, "IBTA C10-73"),
        (BindForeignRegion, "IBTA C10-72"),
        (BindForeignWindow, "IBTA C10-72"),
        (BindOutside, "IBTA C10-75"),
        (BindUnknownRegion, "IBTA §10.6.7"),
        (BindWritableToReadOnly, "IBTA C10-74"),
        (BindBound, "IBTA o10-37.2.30"),
        (BindNothing, "IBTA o10-37.2.40"),
        (BindZeroBased1, "IBTA o10-36.2.2"),
        (BindOtherIndex, "IBTA §10.6.7.2.2: the consumer owns eight bits of the key"),
        (RegisterTwice, "IBTA §10.6.4.6"),
        (RegisterTooMany, "IBTA §10.6.4.6"),
        (RegisterUnknownPage, "IBTA §10.6.4.6"),
        (RegisterForeignPage, "IBTA §10.2.3"),
        (RegisterReadOnlyPage, "IBTA §10.6.3.1"),
        (RegisterOutside, "IBTA §10.6.4.6"),
        (RegisterOtherLength, "IBTA §10.6.4.6"),
        (RegisterOtherIndex, "IBTA §10.6.4.4: the consumer owns eight bits of the key"),
    ]
};

/// Posts one on end A, with a good work request behind it.
pub(crate) async fn refused(ctx: &Ctx, what: Refused) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let (op, keep) = operation(ctx, &link, what).await?;
    let opcode = op.wc_opcode();
    link.a.post_send(SendWr::new(1, op).unsignaled())?;
    let behind = link.a.qp.post_send(SendWr::new(2, SendOp::Write { remote: link.b.mr().remote(0) })).is_ok();
    let sent = link.a.sent(ctx, 1 + usize::from(behind)).await?;
    let all = [(1, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)];
    same!(brief(&sent), all[..sent.len()], "the operation and what is behind it");
    same!(sent[0].opcode, opcode, "opcode of the operation");
    let other = if ctx.wire.family == Family::Ib { QpState::Rts } else { QpState::Err };
    link.reaches(ctx, QpState::Err, other).await?;
    link.a.silent("end A")?;
    if ctx.wire.family == Family::Ib {
        same!(link.a.events(), Vec::<QpEvent>::new(), "events of end A");
    }
    drop(keep);
    Ok(())
}

/// What must live until the operation is over.
type Keep = Vec<Box<dyn std::any::Any>>;

async fn operation(ctx: &Ctx, link: &Link, what: Refused) -> Result<(SendOp, Keep), String> {
    use Refused::*;
    match what {
        InvalidateNothing | InvalidateRegion | InvalidateWindow1 | InvalidateUnbound | InvalidateTwice
        | InvalidateForeign => invalidation(ctx, link, what).await,
        RegisterTwice | RegisterTooMany | RegisterUnknownPage | RegisterForeignPage
        | RegisterReadOnlyPage | RegisterOutside | RegisterOtherLength | RegisterOtherIndex => {
            registration(ctx, link, what).await
        }
        _ => binding(ctx, link, what).await,
    }
}

async fn invalidation(ctx: &Ctx, link: &Link, what: Refused) -> Result<(SendOp, Keep), String> {
    let pd = &ctx.a.pd;
    let (key, keep): (RKey, Keep) = match what {
        Refused::InvalidateRegion => (link.a.mr().rkey(), Vec::new()),
        Refused::InvalidateWindow1 => {
            let key = open(ctx, &link.a, Via::Window1, Access::REMOTE_READ).await?;
            (key.rkey, vec![Box::new(key.window)])
        }
        Refused::InvalidateUnbound => {
            let window = must("a window", pd.alloc_mw(WindowType::Type2))?;
            (window.rkey(), vec![Box::new(window)])
        }
        Refused::InvalidateTwice => {
            let key = open(ctx, &link.a, Via::Fast, Access::REMOTE_READ).await?;
            super::local_operation(ctx, &link.a, SendOp::LocalInv(key.rkey)).await?;
            (key.rkey, vec![Box::new(key.fast)])
        }
        Refused::InvalidateForeign => {
            let foreign = must("a domain", ctx.a.end.device.alloc_pd())?;
            let fast = must("a fast-register region", foreign.alloc_fast_reg_mr(1))?;
            (fast.key(), vec![Box::new(fast)])
        }
        _ => (RKey(NO_KEY), Vec::new()),
    };
    Ok((SendOp::LocalInv(key), keep))
}

async fn binding(ctx: &Ctx, link: &Link, what: Refused) -> Result<(SendOp, Keep), String> {
    let pd = &ctx.a.pd;
    let foreign = must("a domain", ctx.a.end.device.alloc_pd())?;
    let one = what == Refused::BindZeroBased1;
    let ty = if one { WindowType::Type1 } else { WindowType::Type2 };
    let window_pd = if what == Refused::BindForeignWindow { &foreign } else { pd };
    let mut window = must("a window", window_pd.alloc_mw(ty))?;
    let access = match what {
        Refused::BindWithoutPermission => ALL,
        Refused::BindWritableToReadOnly => Access::REMOTE_READ | Access::MW_BIND,
        _ => ALL | Access::MW_BIND,
    };
    let region_pd = if what == Refused::BindForeignRegion { &foreign } else { pd };
    let region: MemoryRegion = must("registering", region_pd.register(256, access))?;
    if what == Refused::BindBound {
        let key = open(ctx, &link.a, Via::Window2, Access::REMOTE_READ).await?;
        window = key.window.ok_or("no window")?;
    }
    let mut bind: BindWindow = window.bind(&region, OPEN_AT, 64, Access::REMOTE_READ);
    match what {
        Refused::BindOutside => bind.length = 256 - OPEN_AT as u64 + 1,
        Refused::BindUnknownRegion => bind.mr = LKey(NO_KEY),
        Refused::BindWritableToReadOnly => bind.access = Access::REMOTE_WRITE,
        Refused::BindNothing => bind.length = 0,
        Refused::BindZeroBased1 => bind.access |= Access::ZERO_BASED,
        Refused::BindOtherIndex => bind.new_rkey = RKey(bind.new_rkey.0 ^ 0x0100),
        _ => {}
    }
    Ok((SendOp::BindMw(bind), vec![Box::new(window), Box::new(region)]))
}

async fn registration(ctx: &Ctx, link: &Link, what: Refused) -> Result<(SendOp, Keep), String> {
    let pd = &ctx.a.pd;
    let foreign = must("a domain", ctx.a.end.device.alloc_pd())?;
    let fast = must("a fast-register region", pd.alloc_fast_reg_mr(2))?;
    let page_pd = if what == Refused::RegisterForeignPage { &foreign } else { pd };
    let page_access = if what == Refused::RegisterReadOnlyPage { Access::REMOTE_READ } else { ALL };
    let page: MemoryRegion = must("registering", page_pd.register(256, page_access))?;
    let pages = match what {
        Refused::RegisterTooMany => vec![page.sge(..8), page.sge(8..16), page.sge(16..24)],
        Refused::RegisterUnknownPage => vec![Sge { lkey: LKey(NO_KEY), ..page.sge(..8) }],
        Refused::RegisterOutside => vec![page.sge(..257)],
        _ => vec![page.sge(..8)],
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut registration: FastRegister = fast.registration(0x9000, pages, access);
    match what {
        Refused::RegisterTwice => {
            super::local_operation(ctx, &link.a, SendOp::FastReg(registration.clone())).await?;
            registration.mr = LKey(registration.new_key.0);
            registration.new_key = next_key(registration.new_key);
        }
        Refused::RegisterOtherLength => registration.length += 1,
        Refused::RegisterOtherIndex => registration.new_key = RKey(registration.new_key.0 ^ 0x0100),
        _ => {}
    }
    Ok((SendOp::FastReg(registration), vec![Box::new(fast), Box::new(page)]))
}
