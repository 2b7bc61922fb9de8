//! Memory operations: REG_MR, BIND_MW of both types, LOCAL_INV and invalidation by the peer; what keys open, to whom, and
//! until when.
//!
//! Read IBTA vol. 1 §10.6.4 to §10.6.7 and §11.3 first. Three tables: [`access_rows`], what a key with these permissions
//! opens; [`ENDINGS`], how a key stops opening anything; [`REFUSED`] in `refused`, operations that fail themselves.

mod endings;
mod refused;

use std::fmt;

use everywire_verbs::{
    Access, FastRegMr, MemoryRegion, MemoryWindow, QpState, QpType, RKey, RecvWr, Remote, SendOp, SendWr,
    WcStatus, WindowType,
};

pub(crate) use endings::{ENDINGS, ending};
pub(crate) use refused::{REFUSED, refused};

use crate::check::{Verdict, ensure, must, same};
use crate::layout::pattern;
use crate::link::{ALL, Ctx, Link, LinkOptions, Side, brief};
use crate::transfer::{Kind, ensure_last_write_is_there};
use crate::wire::Family;

/// What a key is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A region.
    Region,
    /// A fast-registered region.
    Fast,
    /// A type 1 window.
    Window1,
    /// A type 2 window.
    Window2,
}

/// Bytes of the memory behind a key, where in it the key opens, and how much.
pub(crate) const WHOLE: usize = 256;
pub(crate) const OPEN_AT: usize = 16;
pub(crate) const OPEN: usize = 64;

/// An operation through a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRow {
    pub(crate) via: Via,
    /// What the key allows.
    pub(crate) access: Access,
    pub(crate) kind: Kind,
    /// First byte and length, from where the key opens on.
    pub(crate) at: i64,
    pub(crate) length: usize,
}

impl fmt::Display for AccessRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessRow { via, access, kind, at, length } = self;
        write!(f, "{kind:?} of {length} bytes at {at} through {via:?} with {access:?}")
    }
}

impl AccessRow {
    /// IBTA §10.6.3 and §10.6.7.2.2: the permission, and every byte inside.
    fn allowed(&self) -> bool {
        let need = match self.kind {
            Kind::Read => Access::REMOTE_READ,
            Kind::Write => Access::REMOTE_WRITE,
            _ => Access::REMOTE_ATOMIC,
        };
        self.access.contains(need) && self.at >= 0 && self.at as usize + self.length <= OPEN
    }
}

/// Every kind of key × every set of permissions × every operation; and both edges.
pub(crate) fn access_rows() -> Vec<AccessRow> {
    let mut rows = Vec::new();
    for via in [Via::Region, Via::Fast, Via::Window1, Via::Window2] {
        for bits in 0..8u32 {
            // REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC are bits 1, 2 and 3.
            let access = Access::from_bits_truncate(bits << 1);
            for kind in [Kind::Write, Kind::Read, Kind::Add] {
                let length = if kind == Kind::Add { 8 } else { OPEN };
                rows.push(AccessRow { via, access, kind, at: 0, length });
            }
        }
        for (at, length) in [(-1, 8), (1, OPEN), (OPEN as i64, 1), (OPEN as i64 - 1, 1)] {
            for kind in [Kind::Write, Kind::Read] {
                rows.push(AccessRow { via, access: ALL - Access::LOCAL_WRITE, kind, at, length });
            }
        }
    }
    rows
}

/// A key at end B, and what keeps it alive.
pub(crate) struct Key {
    pub(crate) rkey: RKey,
    /// Address of the first byte that it opens.
    pub(crate) addr: u64,
    pub(crate) memory: MemoryRegion,
    pub(crate) fast: Option<FastRegMr>,
    pub(crate) window: Option<MemoryWindow>,
    /// The region that the key is of, if it is a region's.
    pub(crate) region: Option<MemoryRegion>,
}

/// Opens [`OPEN`] bytes of fresh memory of a side through a key of this kind.
pub(crate) async fn open(ctx: &Ctx, side: &Side, via: Via, access: Access) -> Result<Key, String> {
    let pd = &side.bench.pd;
    let register = |access| must("registering", pd.register(WHOLE, access));
    // IBTA §10.6.3.1: what peers may change, the owner may.
    let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let local = if changes { Access::LOCAL_WRITE } else { Access::empty() };
    let memory = register(ALL | Access::MW_BIND)?;
    let addr = memory.addr() + OPEN_AT as u64;
    let key = |rkey| Key { rkey, addr, memory: memory.clone(), fast: None, window: None, region: None };
    match via {
        // A region opens all of itself.
        Via::Region => {
            let region = must("registering", pd.register(OPEN, access | local))?;
            Ok(Key { addr: region.addr(), region: Some(region.clone()), ..key(region.rkey()) })
        }
        Via::Fast => {
            let fast = must("a fast-register region", pd.alloc_fast_reg_mr(2))?;
            let pages =
                vec![memory.sge(OPEN_AT..OPEN_AT + OPEN / 2), memory.sge(OPEN_AT + OPEN / 2..OPEN_AT + OPEN)];
            let registration = fast.registration(addr, pages, access | local);
            let rkey = registration.new_key;
            local_operation(ctx, side, SendOp::FastReg(registration)).await?;
            same!(fast.key(), rkey, "the key after fast registration");
            Ok(Key { fast: Some(fast), ..key(rkey) })
        }
        Via::Window1 | Via::Window2 => {
            let ty = if via == Via::Window1 { WindowType::Type1 } else { WindowType::Type2 };
            let window = must("a window", pd.alloc_mw(ty))?;
            let bind = window.bind(&memory, OPEN_AT, OPEN as u64, access);
            local_operation(ctx, side, SendOp::BindMw(bind)).await?;
            same!(window.rkey(), bind.new_rkey, "the key after the bind");
            Ok(Key { window: Some(window), ..key(bind.new_rkey) })
        }
    }
}

/// Posts a local operation that must succeed.
pub(crate) async fn local_operation(ctx: &Ctx, side: &Side, op: SendOp) -> Verdict {
    let name = op.name();
    let opcode = op.wc_opcode();
    side.post_send(SendWr::new(77, op))?;
    let done = side.sent(ctx, 1).await?;
    same!((done[0].wr_id, done[0].status, done[0].opcode), (77, WcStatus::Success, opcode), "{name}");
    Ok(())
}

impl Key {
    /// Where the bytes that it opens are.
    fn bytes(&self) -> (&MemoryRegion, usize) {
        self.region.as_ref().map_or((&self.memory, OPEN_AT), |region| (region, 0))
    }
}

/// A WRITE, READ or FETCH_ADD of end A through a key of end B.
pub(crate) fn through(link: &Link, kind: Kind, remote: Remote, length: usize) -> SendWr {
    let op = match kind {
        Kind::Read => SendOp::Read { remote },
        Kind::Write => SendOp::Write { remote },
        _ => SendOp::FetchAdd { remote, add: 1 },
    };
    SendWr::new(1, op).with_sges([link.a.mr().sge(512..512 + length)])
}

/// Runs one row of what keys open.
pub(crate) async fn access(ctx: &Ctx, row: &AccessRow) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let key = open(ctx, &link.b, row.via, row.access).await?;
    let (memory, start) = key.bytes();
    let before = pattern(memory.len(), 5);
    must("filling", memory.write_at(0, &before))?;
    let data = pattern(row.length, 6);
    must("filling", link.a.mr().write_at(512, &data))?;
    let remote = Remote { addr: key.addr.wrapping_add_signed(row.at), rkey: key.rkey };
    link.a.post_send(through(&link, row.kind, remote, row.length))?;
    if !row.allowed() {
        no_access(ctx, &link, row.kind).await?;
        let after = must("reading", memory.read_vec(0, memory.len()))?;
        ensure!(after == before, "a refused operation has changed the memory");
        return Ok(());
    }
    same!(brief(&link.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "the operation");
    ensure_last_write_is_there(ctx, &link).await?;
    let at = start + row.at as usize;
    let mut expected = before.clone();
    match row.kind {
        Kind::Write => expected[at..at + row.length].copy_from_slice(&data),
        Kind::Read => {
            let got = must("reading", link.a.mr().read_vec(512, row.length))?;
            ensure!(got == before[at..at + row.length], "wrong bytes were read");
        }
        _ => {
            let word: [u8; 8] = before[at..at + 8].try_into().unwrap_or_default();
            let sum = u64::from_ne_bytes(word).wrapping_add(1);
            expected[at..at + 8].copy_from_slice(&sum.to_ne_bytes());
        }
    }
    let after = must("reading", memory.read_vec(0, memory.len()))?;
    ensure!(after == expected, "wrong bytes in the memory behind the key");
    link.silent()
}

/// That the operation just posted is refused by the peer for its key, and ends both queue pairs.
pub(crate) async fn no_access(ctx: &Ctx, link: &Link, kind: Kind) -> Verdict {
    let done = link.a.sent(ctx, 1).await?;
    match ctx.wire.family {
        Family::Ib => same!(brief(&done), [(1, WcStatus::RemAccessErr)], "the operation"),
        // RFC 5040 §7: a WRITE may be complete before the TERMINATE message comes.
        Family::Iwarp => {
            ensure!(
                kind == Kind::Write || done[0].status != WcStatus::Success,
                "the operation: {:?}",
                done[0]
            );
        }
    }
    link.reaches(ctx, QpState::Err, QpState::Err).await
}

/// A type 1 window is every queue pair's of its domain, a type 2 window is the one's that bound it (IBTA o10-37.2.33).
pub(crate) async fn another_queue_pair(ctx: &Ctx, ty: WindowType) -> Verdict {
    let (one, other) = (
        Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?,
        Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?,
    );
    let via = if ty == WindowType::Type1 { Via::Window1 } else { Via::Window2 };
    let key = open(ctx, &one.b, via, Access::REMOTE_WRITE).await?;
    let remote = Remote { addr: key.addr, rkey: key.rkey };
    other.a.post_send(through(&other, Kind::Write, remote, 8))?;
    if ty == WindowType::Type1 {
        same!(brief(&other.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "the WRITE");
        return other.silent();
    }
    no_access(ctx, &other, Kind::Write).await?;
    one.a.post_send(through(&one, Kind::Write, remote, 8))?;
    same!(brief(&one.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "the WRITE through its own");
    ensure_last_write_is_there(ctx, &one).await?;
    one.silent()
}

/// Addresses of a zero-based region or window count from its start (IBTA §10.6.3.3, o10-37.2.2).
pub(crate) async fn zero_based(ctx: &Ctx, window: bool) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let access = Access::REMOTE_WRITE | Access::ZERO_BASED;
    let key = match window {
        true => open(ctx, &link.b, Via::Window2, access).await?,
        false => open(ctx, &link.b, Via::Fast, access).await?,
    };
    must("filling", link.a.mr().write_at(512, b"at zero!"))?;
    link.a.post_send(through(&link, Kind::Write, Remote { addr: 8, rkey: key.rkey }, 8))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "the WRITE");
    ensure_last_write_is_there(ctx, &link).await?;
    same!(must("reading", key.memory.read_vec(OPEN_AT + 8, 8))?, b"at zero!", "the bytes at 8");
    let real = Remote { addr: key.addr, rkey: key.rkey };
    link.a.post_send(through(&link, Kind::Write, real, 8))?;
    no_access(ctx, &link, Kind::Write).await
}

/// A region cannot be deregistered while windows are bound to it or others hold it (IBTA §11.2.8.5).
pub(crate) async fn busy_region(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let key = open(ctx, &link.b, Via::Window2, Access::REMOTE_READ).await?;
    let Key { memory, window, rkey, .. } = key;
    let busy = |done: Result<(), (MemoryRegion, everywire_verbs::VerbsError)>| match done {
        Ok(()) => Err(String::from("a region with a window was deregistered")),
        Err((memory, error)) => {
            same!(error.errno(), 16, "errno of a busy region");
            Ok(memory)
        }
    };
    let second = memory.clone();
    let memory = busy(memory.deregister())?;
    drop(second);
    let memory = busy(memory.deregister())?;
    local_operation(ctx, &link.b, SendOp::LocalInv(rkey)).await?;
    memory.deregister().map_err(|(_, error)| error.to_string())?;
    drop(window);
    link.silent()
}

/// Invalidation waits for what came before it, and a READ behind a fence for the invalidation's forerunners: what was
/// begun through the key is whole (IBTA §10.8.3.3).
pub(crate) async fn invalidation_keeps_order(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let key = open(ctx, &link.a, Via::Fast, Access::REMOTE_READ).await?;
    let data = pattern(OPEN, 9);
    must("filling", key.memory.write_at(OPEN_AT, &data))?;
    let sge =
        everywire_verbs::Sge { addr: key.addr, length: OPEN as u32, lkey: everywire_verbs::LKey(key.rkey.0) };
    link.b.post_recv(RecvWr::new(11, [link.b.mr().sge(..OPEN)]))?;
    let list = [SendWr::new(1, SendOp::Send).with_sges([sge]), SendWr::new(2, SendOp::LocalInv(key.rkey))];
    must("posting", link.a.qp.post_send_list(list))?;
    let all = [(1, WcStatus::Success), (2, WcStatus::Success)];
    same!(brief(&link.a.sent(ctx, 2).await?), all, "a SEND and the invalidation of its key");
    link.b.received(ctx, 1).await?;
    ensure!(must("reading", link.b.mr().read_vec(0, OPEN))? == data, "wrong bytes arrived");
    link.a.post_send(SendWr::new(3, SendOp::Send).with_sges([sge]))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(3, WcStatus::LocProtErr)], "a SEND through the dead key");
    Ok(())
}
