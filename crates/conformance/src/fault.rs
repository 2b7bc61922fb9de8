//! The executor of work requests that end in error: what each end sees, and that nothing else happened.
//!
//! Read IBTA vol. 1 §9.9.2 and §9.9.3 (errors detected by requester and responder), §11.6.2 (completion statuses) first;
//! RFC 5040 §7 and RFC 5041 §7 for iWARP. End A posts the wrong work request and a good one behind it; end B has two
//! receives posted. The rows are in `rows`, what they lead to on each wire and service in `expect`.

mod datagrams;
mod expect;
mod rows;

use everywire_verbs::{
    Access, Completion, Counter, Counters, LKey, MemoryRegion, QpEvent, QpType, RKey, RecvWr, Remote, SendOp,
    SendWr, Sge, WcStatus,
};

pub(crate) use datagrams::{DATAGRAM_FAULTS, datagram_fault};
pub(crate) use rows::{Fault, ROWS, Wrong};

use crate::check::{Verdict, ensure, must, same};
use crate::layout::{NO_KEY, pattern};
use crate::link::{ALL, Ctx, Link, LinkOptions, brief};
use crate::transfer::Kind;
use crate::wire::Family;
use expect::{Expect, Receives};

/// Bytes of a message in error, unless the row is about its length.
const LENGTH: usize = 100;
/// Tokens of the two sends and the two receives.
const WRONG: u64 = 1;
const BEHIND: u64 = 2;
const FIRST_RECEIVE: u64 = 11;
const SECOND_RECEIVE: u64 = 12;
/// Bytes of the region at end B that the message is aimed at.
const TARGET: usize = 4096;

/// What must stay as it is, and alive, while a case runs.
struct Props {
    /// Aimed at, at end B.
    target: MemoryRegion,
    before: Vec<u8>,
    /// Regions that must live.
    _keep: Vec<MemoryRegion>,
    /// Where the work request's own bytes are.
    local: Sge,
    /// The same without fault.
    good: Sge,
    remote: Remote,
    /// Where in the target that is.
    offset: usize,
    length: usize,
}

/// Runs one row with one operation.
pub(crate) async fn fault(ctx: &Ctx, row: &Fault, kind: Kind, ty: QpType) -> Verdict {
    let expect = expect::of(ctx.wire.family, ty, row.leads_to, kind);
    let link = Link::new(ctx, &options(row, ty)).await?;
    let props = props(ctx, &link, row, kind)?;
    let counters = (ctx.a.end.device.counters(), ctx.b.end.device.counters());
    post_receives(&link, row)?;
    link.a.post_send(wrong_request(row, kind, &props))?;
    // A receive too short for one byte takes a message of none.
    let behind = link.a.qp.post_send(SendWr::new(BEHIND, SendOp::Send));
    if let Err(error) = behind {
        ensure!(ctx.wire.family == Family::Iwarp, "the work request behind it was refused: {error}");
    }
    check_sender(ctx, &link, &expect, behind.is_ok()).await?;
    check_receiver(ctx, &link, row, &expect).await?;
    link.reaches(ctx, expect.a, expect.b).await?;
    ctx.quiet().await;
    check_events(ctx, &link, &expect).await?;
    link.a.silent("end A")?;
    link.b.silent("end B")?;
    if ctx.wire.family == Family::Ib {
        let [a, b] = [&ctx.a, &ctx.b].map(|bench| &bench.end.device);
        ctx.eventually(|| counted("end A", &counters.0, &a.counters(), expect.a_counts)).await?;
        ctx.eventually(|| counted("end B", &counters.1, &b.counters(), expect.b_counts)).await?;
    }
    let after = must("reading", props.target.read_vec(0, TARGET))?;
    let untouched = untouched(ctx, row, kind, &props);
    ensure!(
        after[..untouched] == props.before[..untouched],
        "a refused {kind:?} has changed the peer's memory"
    );
    Ok(())
}

/// How much of the target, from its start, stays as it is. All of it on the InfiniBand family, which checks the whole of a
/// message before its first byte lands (IBTA §9.7.4.1.5). RFC 5041 §5.3 checks segment by segment, so those before the
/// first wrong one land; and a WRITE is a message of its own, before its immediate data (RFC 7306 §6).
fn untouched(ctx: &Ctx, row: &Fault, kind: Kind, props: &Props) -> usize {
    let in_part = matches!(
        (row.wrong, kind),
        (Wrong::RemoteBoundsOfMany, Kind::Write) | (Wrong::NoReceive, Kind::WriteImm)
    );
    if in_part && ctx.wire.family == Family::Iwarp { props.offset } else { TARGET }
}

fn options(row: &Fault, ty: QpType) -> LinkOptions {
    let mut options = LinkOptions::new(ty);
    match row.wrong {
        Wrong::QueuePairPermission => options.access = Access::LOCAL_WRITE,
        Wrong::NoReceive => options.accept.rnr_retry_count = 1,
        Wrong::NoReadDepth => {
            options.connect.initiator_depth = 0;
            options.accept.responder_resources = 0;
        }
        _ => {}
    }
    options
}

/// What end B's region must allow for the operation.
fn need(kind: Kind) -> Access {
    match kind {
        Kind::Read => Access::REMOTE_READ,
        Kind::Swap | Kind::NoSwap | Kind::Add => Access::REMOTE_ATOMIC,
        _ => Access::REMOTE_WRITE,
    }
}

fn props(ctx: &Ctx, link: &Link, row: &Fault, kind: Kind) -> Result<Props, String> {
    let register = |pd: &everywire_verbs::Pd, access| must("registering", pd.register(TARGET, access));
    let (here, there) = (&ctx.a.end.device, &ctx.b.end.device);
    let length = match row.wrong {
        _ if kind.is_atomic() => 8,
        Wrong::RemoteBoundsOfMany => 3 * link.mtu,
        _ => LENGTH,
    };
    let mut target = register(&ctx.b.pd, ALL)?;
    let mut keep = Vec::new();
    let good = link.a.mr().sge(64..64 + length);
    let mut local = good;
    let mut offset = 256;
    match row.wrong {
        Wrong::LocalKey | Wrong::SecondLocalKey => local.lkey = LKey(NO_KEY),
        Wrong::LocalDomain => {
            let foreign = register(&must("a domain", here.alloc_pd())?, ALL)?;
            local = foreign.sge(..length);
            keep.push(foreign);
        }
        Wrong::LocalBounds => {
            let region = register(&ctx.a.pd, ALL)?;
            local = region.sge(TARGET - length + 1..TARGET + 1);
            keep.push(region);
        }
        Wrong::LocalWrap => local.addr = u64::MAX - 3,
        Wrong::LocalPermission => {
            let region = register(&ctx.a.pd, Access::REMOTE_READ)?;
            local = region.sge(..length);
            keep.push(region);
        }
        Wrong::LocalDead => local = register(&ctx.a.pd, ALL)?.sge(..length),
        Wrong::RemoteDomain => target = register(&must("a domain", there.alloc_pd())?, ALL)?,
        Wrong::RemotePermission => target = register(&ctx.b.pd, ALL - need(kind))?,
        Wrong::RemoteBounds => offset = TARGET - if kind.is_atomic() { 0 } else { length - 1 },
        Wrong::RemoteBoundsOfMany => offset = TARGET - 2 * link.mtu.min(TARGET / 2),
        Wrong::Misaligned => offset = 260,
        _ => {}
    }
    let before = pattern(TARGET, 77);
    must("filling", target.write_at(0, &before))?;
    let mut remote = target.remote(offset);
    match row.wrong {
        Wrong::RemoteKey => remote.rkey = RKey(NO_KEY),
        Wrong::RemoteWrap => remote.addr = u64::MAX - 7,
        Wrong::RemoteDead => remote.rkey = register(&ctx.b.pd, ALL)?.rkey(),
        _ => {}
    }
    Ok(Props { target, before, _keep: keep, local, good, remote, offset, length })
}

fn post_receives(link: &Link, row: &Fault) -> Verdict {
    let (mut first, second) = (link.b.mr().sge(1024..1024 + 256), link.b.mr().sge(2048..2048 + 256));
    match row.wrong {
        Wrong::NoReceive => return Ok(()),
        Wrong::ShortReceive => first.length = 1,
        Wrong::ShortReceiveByOne => first.length = LENGTH as u32 - 1,
        Wrong::ReceiveKey => first.lkey = LKey(NO_KEY),
        _ => {}
    }
    link.b.post_recv(RecvWr::new(FIRST_RECEIVE, [first]))?;
    link.b.post_recv(RecvWr::new(SECOND_RECEIVE, [second]))
}

fn wrong_request(row: &Fault, kind: Kind, props: &Props) -> SendWr {
    let remote = props.remote;
    let op = match kind {
        Kind::Send => SendOp::Send,
        Kind::SendImm => SendOp::SendImm(7),
        Kind::SendInv => SendOp::SendInv(match row.wrong {
            Wrong::InvalidatesRegion => props.target.rkey(),
            _ => RKey(NO_KEY),
        }),
        Kind::Write => SendOp::Write { remote },
        Kind::WriteImm => SendOp::WriteImm { remote, imm: 7 },
        Kind::Read => SendOp::Read { remote },
        Kind::Swap | Kind::NoSwap => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        Kind::Add => SendOp::FetchAdd { remote, add: 1 },
    };
    let wr = SendWr::new(WRONG, op);
    match row.wrong {
        // IBTA §9.7.1: 2^31 bytes are the most.
        Wrong::TooLong => wr.with_sges([Sge { length: (1 << 31) + 1, ..props.local }]),
        // Of that length, and so a matter of the region's bounds.
        Wrong::LongestOutside => wr.with_sges([Sge { length: 1 << 31, ..props.local }]),
        Wrong::SecondLocalKey => {
            let half = props.length as u32 / 2;
            wr.with_sges([Sge { length: half, ..props.good }, Sge { length: half, ..props.local }])
        }
        Wrong::ShortSink => wr.with_sges([Sge { length: 7, ..props.local }]),
        _ => wr.with_sges([Sge { length: props.length as u32, ..props.local }]),
    }
}

async fn check_sender(ctx: &Ctx, link: &Link, expect: &Expect, behind: bool) -> Verdict {
    let sent = link.a.sent(ctx, 1 + usize::from(behind)).await?;
    let one_of = |entry: &Completion, wr_id: u64, allowed: &[WcStatus]| -> Verdict {
        same!(entry.wr_id, wr_id, "order of send completions");
        ensure!(
            allowed.contains(&entry.status),
            "the send {wr_id} ended with {:?}, but it must with {allowed:?}",
            entry.status
        );
        same!(entry.qpn, link.a.qp.qpn(), "queue pair of a send completion");
        Ok(())
    };
    one_of(&sent[0], WRONG, expect.work)?;
    sent.get(1).map_or(Ok(()), |entry| one_of(entry, BEHIND, expect.behind))
}

async fn check_receiver(ctx: &Ctx, link: &Link, row: &Fault, expect: &Expect) -> Verdict {
    let posted = if row.wrong == Wrong::NoReceive { 0 } else { 2 };
    let flush = WcStatus::WrFlushErr;
    match expect.receives {
        Receives::Untouched => {
            ctx.quiet().await;
            link.b.silent("end B")
        }
        Receives::Flushed => {
            let all = [(FIRST_RECEIVE, flush), (SECOND_RECEIVE, flush)];
            same!(brief(&link.b.received(ctx, posted).await?), all[..posted], "receives");
            Ok(())
        }
        Receives::First(allowed) => {
            let all = brief(&link.b.received(ctx, posted).await?);
            let fine = all[0].0 == FIRST_RECEIVE && allowed.contains(&all[0].1);
            ensure!(fine, "the receive in use ended as {:?}, but it must with {allowed:?}", all[0]);
            same!(all[1], (SECOND_RECEIVE, flush), "the receive behind it");
            Ok(())
        }
        Receives::Next if posted == 0 => {
            ctx.quiet().await;
            link.b.silent("end B")
        }
        Receives::Next => {
            let got = link.b.received(ctx, 1).await?;
            same!(brief(&got), [(FIRST_RECEIVE, WcStatus::Success)], "the receive of the message behind");
            same!(got[0].byte_len, 0, "length of the message behind");
            Ok(())
        }
    }
}

async fn check_events(ctx: &Ctx, link: &Link, expect: &Expect) -> Verdict {
    let (at_a, mut at_b) = (link.a.events(), link.b.events());
    if ctx.wire.family == Family::Iwarp {
        // RFC 5040 §7 names no events: which of its errors an RNIC tells by an event is its own affair.
        return Ok(());
    }
    same!(at_a, Vec::<QpEvent>::new(), "events of end A");
    if expect.event.is_some() && !expect.event_may_be_missing && at_b.is_empty() {
        let some = || {
            at_b = link.b.events();
            !at_b.is_empty()
        };
        ctx.until("an event of end B", some).await?;
    }
    if !(expect.event_may_be_missing && at_b.is_empty()) {
        same!(at_b, expect.event.into_iter().collect::<Vec<_>>(), "events of end B");
    }
    Ok(())
}

/// That each of these has grown by one or more.
fn counted(who: &str, before: &Counters, after: &Counters, counters: &[Counter]) -> Verdict {
    for &counter in counters {
        ensure!(after.get(counter) > before.get(counter), "{who} has not counted {}", counter.name());
    }
    Ok(())
}
