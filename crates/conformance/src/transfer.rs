//! The executor of everything that succeeds: one operation, and what it must have done to memory, queues and states.
//!
//! Read IBTA vol. 1 §9.4 (operations), §10.8 and §11.4.2 (completions) first; RFC 5040 §5 for iWARP. Each operation is
//! followed by a SEND of no bytes. It says on the other end when a WRITE without completion there is done (IBTA §9.5 and
//! RFC 5040 §5.5: messages are completed in the order they were sent), and on this end that an unsignalled operation made
//! no completion. The rows are in `rows`.

mod rows;

use everywire_verbs::{
    Access, Completion, FastRegMr, QpEvent, QpState, QpType, RKey, RecvWr, SendOp, SendWr, WcOpcode, WcStatus,
};

pub(crate) use rows::{Case, Kind, Source, cases};

use crate::check::{Verdict, ensure, must, same};
use crate::layout::{Layout, Shape, pattern};
use crate::link::{ALL, Ctx, Link, LinkOptions, WINDOW};
use crate::wire::Family;

/// Bytes of a GRH before every datagram (IBTA §11.4.1.2).
pub(crate) const GRH: usize = 40;
/// The most packets of a message of an unreliable service that must come through a lossy link within [`TRIES`].
const MOST_PACKETS_UNDER_LOSS: usize = 16;
/// How often a message of an unreliable service is sent until it arrives.
const TRIES: usize = 40;
/// Tokens of the work requests.
const OPERATION: u64 = 1;
const MARKER: u64 = 2;
const OPERATION_RECEIVE: u64 = 11;
const MARKER_RECEIVE: u64 = 12;
/// Where the marker's receive is in end B's region.
const MARKER_AT: usize = WINDOW + (1 << 15);
/// Segments of the longest list.
const MOST: usize = 32;
/// What immediates, atomics and the memory they change hold.
pub(crate) const IMMEDIATE: u32 = 0x8142_fe07;
const BEFORE: u64 = 0xffff_ffff_ffff_fff0;
const SWAPPED: u64 = 0x0123_4567_89ab_cdef;
const ADDED: u64 = 0x35;

/// A link that many cases use one after the other, and a new one once a case has failed.
pub(crate) struct Lane {
    options: LinkOptions,
    open: Option<(Link, FastRegMr)>,
}

/// Everything of one case that is decided before it starts.
struct Setup<'a> {
    case: &'a Case,
    /// At end A: source, or sink of READs and atomics.
    local: Layout,
    /// At end B: target, source or receive.
    remote: Layout,
    /// The message.
    data: Vec<u8>,
    /// Key that the message invalidates.
    key: Option<RKey>,
}

impl Lane {
    pub(crate) fn new(ty: QpType, srq: bool) -> Lane {
        Lane { options: LinkOptions { srq, ..LinkOptions::new(ty) }, open: None }
    }

    /// Full packets of this lane's link.
    pub(crate) async fn mtu(&mut self, ctx: &Ctx) -> Result<usize, String> {
        let (link, _) = self.open(ctx).await?;
        Ok(link.mtu)
    }

    async fn open(&mut self, ctx: &Ctx) -> Result<&(Link, FastRegMr), String> {
        if self.open.is_none() {
            let link = Link::new(ctx, &self.options).await?;
            let fast = must("a fast-register region", ctx.b.pd.alloc_fast_reg_mr(1))?;
            self.open = Some((link, fast));
        }
        self.open.as_ref().ok_or_else(|| String::from("no link"))
    }

    /// Runs a case; on an unreliable service as often as it takes to come through.
    pub(crate) async fn run(&mut self, ctx: &Ctx, case: &Case, seed: u64) -> Verdict {
        let reliable = case.ty == QpType::Rc;
        for _ in 0..if reliable { 1 } else { TRIES } {
            let (link, fast) = self.open(ctx).await?;
            let packets = case.length.div_ceil(link.mtu);
            let done = transfer(ctx, link, fast, case, seed).await;
            if !matches!(done, Ok(true)) {
                self.open = None;
            }
            match done {
                Ok(true) => return Ok(()),
                Ok(false) if ctx.plan.lossy && packets > MOST_PACKETS_UNDER_LOSS => return Ok(()),
                Ok(false) => {}
                Err(why) => return Err(why),
            }
        }
        Err(format!("lost {TRIES} times"))
    }
}

/// One operation and its marker; whether both arrived.
async fn transfer(ctx: &Ctx, link: &Link, fast: &FastRegMr, case: &Case, seed: u64) -> Result<bool, String> {
    let setup = prepare(ctx, link, fast, case, seed).await?;
    post_receives(link, &setup)?;
    let wr = work_request(link, &setup);
    let marker = link.addressed(SendWr::new(MARKER, SendOp::Send));
    must("posting", link.a.qp.post_send_list([link.addressed(wr), marker]))?;
    let received = match case.ty {
        QpType::Rc => link.b.received(ctx, case.receives() + 1).await?,
        _ => match unreliable(ctx, link, case.receives() + 1).await? {
            Some(received) => received,
            None => {
                // Whatever of it came: not a byte beside its place.
                setup.remote.check(link.b.mr(), &setup.data, usize::MAX)?;
                return Ok(false);
            }
        },
    };
    let sent = link.a.sent(ctx, usize::from(case.signaled) + 1).await?;
    check_sent(link, &setup, &sent)?;
    check_received(ctx, link, &setup, &received)?;
    let arrived = check_memory(link, &setup);
    if arrived.is_err() && case.ty != QpType::Rc && case.kind == Kind::Write {
        // A WRITE of an unreliable service may be lost in part and nobody is told; but nothing is beside its place.
        setup.remote.check(link.b.mr(), &setup.data, usize::MAX)?;
        return Ok(false);
    }
    arrived?;
    link.silent()?;
    same!(link.a.qp.state(), QpState::Rts, "state of end A");
    same!(link.b.qp.state(), QpState::Rts, "state of end B");
    Ok(true)
}

/// The receives of an unreliable service; `None` if not all of them come.
async fn unreliable(ctx: &Ctx, link: &Link, count: usize) -> Result<Option<Vec<Completion>>, String> {
    let mut out = Vec::new();
    let all = async {
        while out.len() < count {
            must("waiting", link.b.recv_cq.wait(&mut out, count).await)?;
        }
        Ok::<(), String>(())
    };
    match ctx.rt.timeout(ctx.plan.quiet * 50, all).await {
        Ok(done) => done?,
        Err(_) => {
            let wrong = out.iter().find(|entry| entry.status != WcStatus::Success);
            ensure!(wrong.is_none(), "a lost message completed a receive in error: {wrong:?}");
            return Ok(None);
        }
    }
    Ok(Some(out))
}

async fn prepare<'a>(
    ctx: &Ctx,
    link: &Link,
    fast: &FastRegMr,
    case: &'a Case,
    seed: u64,
) -> Result<Setup<'a>, String> {
    let (a, b) = (link.a.mr(), link.b.mr());
    let shape = match case.source {
        Source::Inline => Shape::One,
        Source::Sges(shape) => shape,
    };
    let local = Layout::new(a, 0, case.length, shape, MOST);
    let extra = if case.ty == QpType::Ud { GRH } else { 0 };
    let remote = match case.kind {
        Kind::Send | Kind::SendImm | Kind::SendInv => {
            Layout::new(b, 0, case.length + extra, case.receive, MOST)
        }
        Kind::Write | Kind::WriteImm | Kind::Read if case.receive != Shape::One => {
            Layout::new(b, 0, case.length, Shape::Odd, 1)
        }
        _ => Layout::new(b, 0, case.length, Shape::One, 1),
    };
    let data = match case.kind {
        Kind::Swap | Kind::NoSwap | Kind::Add => BEFORE.to_ne_bytes().to_vec(),
        _ => pattern(case.length, seed),
    };
    let (at_a, at_b): (&[u8], &[u8]) = if case.kind.fetches() { (&[], &data) } else { (&data, &[]) };
    local.fill(a, at_a)?;
    remote.fill(b, at_b)?;
    let key = match case.kind {
        Kind::SendInv => Some(key_to_invalidate(ctx, link, fast).await?),
        _ => None,
    };
    Ok(Setup { case, local, remote, data, key })
}

/// Registers a piece of end B's memory fast, for the message to invalidate.
async fn key_to_invalidate(ctx: &Ctx, link: &Link, fast: &FastRegMr) -> Result<RKey, String> {
    let registration = fast.registration(0x4000, vec![link.b.mr().sge(..64)], Access::REMOTE_READ);
    let key = registration.new_key;
    link.b.post_send(SendWr::new(3, SendOp::FastReg(registration)))?;
    let done = link.b.sent(ctx, 1).await?;
    same!((done[0].status, done[0].opcode), (WcStatus::Success, WcOpcode::FastReg), "fast registration");
    same!(fast.key(), key, "the key after fast registration");
    Ok(key)
}

fn post_receives(link: &Link, setup: &Setup<'_>) -> Verdict {
    let marker = link.b.mr().sge(MARKER_AT..MARKER_AT + 64);
    match setup.case.kind {
        Kind::Send | Kind::SendImm | Kind::SendInv => {
            link.b.post_recv(RecvWr::new(OPERATION_RECEIVE, setup.remote.sges.iter().copied()))?;
        }
        // IBTA §9.4.3: the receive of a WRITE with immediate is used up, its segments are not.
        Kind::WriteImm => link.b.post_recv(RecvWr::new(OPERATION_RECEIVE, [marker]))?,
        _ => {}
    }
    link.b.post_recv(RecvWr::new(MARKER_RECEIVE, [marker]))
}

fn work_request(link: &Link, setup: &Setup<'_>) -> SendWr {
    let case = setup.case;
    let remote = link.b.mr().remote(setup.remote.first());
    let op = match case.kind {
        Kind::Send => SendOp::Send,
        Kind::SendImm => SendOp::SendImm(IMMEDIATE),
        Kind::SendInv => SendOp::SendInv(setup.key.unwrap_or_default()),
        Kind::Write => SendOp::Write { remote },
        Kind::WriteImm => SendOp::WriteImm { remote, imm: IMMEDIATE },
        Kind::Read => SendOp::Read { remote },
        Kind::Swap => SendOp::CompareSwap { remote, compare: BEFORE, swap: SWAPPED },
        Kind::NoSwap => SendOp::CompareSwap { remote, compare: BEFORE + 1, swap: SWAPPED },
        Kind::Add => SendOp::FetchAdd { remote, add: ADDED },
    };
    let mut wr = SendWr::new(OPERATION, op);
    match case.source {
        Source::Inline => wr = wr.with_inline(setup.data.clone()),
        Source::Sges(_) => wr = wr.with_sges(setup.local.sges.iter().copied()),
    }
    wr.signaled = case.signaled;
    wr.solicited = case.solicited;
    wr.fence = case.fence;
    wr
}

fn check_sent(link: &Link, setup: &Setup<'_>, sent: &[Completion]) -> Verdict {
    let case = setup.case;
    let expected = [(OPERATION, case.kind.sent()), (MARKER, WcOpcode::Send)];
    let expected = &expected[usize::from(!case.signaled)..];
    for (entry, &(wr_id, opcode)) in sent.iter().zip(expected) {
        same!((entry.wr_id, entry.status), (wr_id, WcStatus::Success), "send completion");
        same!((entry.opcode, entry.qpn), (opcode, link.a.qp.qpn()), "send completion of {wr_id}");
        // IBTA §11.4.2.1: bytes transferred of READs and atomics.
        if wr_id == OPERATION && case.kind.fetches() {
            same!(entry.byte_len as usize, case.length, "bytes fetched");
        }
    }
    Ok(())
}

fn check_received(ctx: &Ctx, link: &Link, setup: &Setup<'_>, received: &[Completion]) -> Verdict {
    let case = setup.case;
    let datagram = case.ty == QpType::Ud;
    let (marker, operation) = match received {
        [marker] => (marker, None),
        [operation, marker] => (marker, Some(operation)),
        _ => return Err(format!("receives: {received:?}")),
    };
    let extra = if datagram { GRH } else { 0 };
    same!((marker.wr_id, marker.status), (MARKER_RECEIVE, WcStatus::Success), "the marker's receive");
    same!((marker.byte_len as usize, marker.imm), (extra, None), "the marker's receive");
    let Some(entry) = operation else { return Ok(()) };
    same!((entry.wr_id, entry.status), (OPERATION_RECEIVE, WcStatus::Success), "receive completion");
    let immediate = matches!(case.kind, Kind::SendImm | Kind::WriteImm).then_some(IMMEDIATE);
    let opcode = if case.kind == Kind::WriteImm { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
    same!(entry.opcode, opcode, "opcode of the receive");
    same!(entry.byte_len as usize, case.length + extra, "bytes received");
    same!(entry.imm, immediate, "immediate data");
    same!(entry.invalidated, setup.key, "key invalidated");
    same!(entry.solicited, case.solicited, "solicited event");
    same!(entry.qpn, link.b.qp.qpn(), "queue pair of the receive");
    if ctx.wire.family == Family::Ib {
        same!(entry.src_qp, link.a.qp.qpn(), "the sender's queue pair");
    }
    if !datagram || ctx.wire.always_grh {
        same!(entry.grh, datagram, "a GRH before the message");
    }
    Ok(())
}

fn check_memory(link: &Link, setup: &Setup<'_>) -> Verdict {
    let case = setup.case;
    let skip = if case.ty == QpType::Ud { GRH } else { 0 };
    let data = match skip {
        0 => setup.data.clone(),
        skip => [vec![0; skip], setup.data.clone()].concat(),
    };
    let at_b = match case.kind {
        Kind::Swap => SWAPPED.to_ne_bytes().to_vec(),
        Kind::Add => BEFORE.wrapping_add(ADDED).to_ne_bytes().to_vec(), // IBTA §9.4.5.1: modulo 2^64
        _ => data,
    };
    setup.remote.check(link.b.mr(), &at_b, skip).map_err(|why| format!("end B: {why}"))?;
    setup.local.check(link.a.mr(), &setup.data, 0).map_err(|why| format!("end A: {why}"))
}

/// Many operations of all kinds and lengths at once; each completes once, in order, with the right bytes.
pub(crate) async fn pipeline(ctx: &Ctx, srq: bool, mixed: &[Kind]) -> Verdict {
    const COUNT: usize = 96;
    const SLOT: usize = 8192;
    let link = Link::new(ctx, &LinkOptions { srq, ..LinkOptions::new(QpType::Rc) }).await?;
    let (a, b) = (link.a.mr(), link.b.mr());
    let (mut list, mut after, mut receives) = (Vec::new(), Vec::new(), 0);
    for index in 0..COUNT {
        let kind = mixed[index % mixed.len()];
        let length = if kind.is_atomic() { 8 } else { (index * 977) % (SLOT - 256) };
        let at = index * SLOT;
        let one = kind == Kind::Read && ctx.wire.one_read_segment.is_some();
        let shape = if one { Shape::One } else { Shape::ALL[index % 4] };
        let local = Layout::new(a, at, length, shape, 4);
        let remote = Layout::new(b, at, length, Shape::One, 1);
        let case = Case::plain(kind, length);
        let data =
            if kind.is_atomic() { BEFORE.to_ne_bytes().to_vec() } else { pattern(length, index as u64) };
        let (at_a, at_b): (&[u8], &[u8]) = if kind.fetches() { (&[], &data) } else { (&data, &[]) };
        local.fill(a, at_a)?;
        remote.fill(b, at_b)?;
        let setup = Setup { case: &case, local, remote, data, key: None };
        let mut wr = work_request(&link, &setup);
        wr.wr_id = index as u64;
        wr.signaled = index % 3 != 1 || index + 1 == COUNT;
        wr.fence = index % 5 == 0;
        if case.receives() > 0 {
            link.b.post_recv(RecvWr::new(index as u64, setup.remote.sges.iter().copied()))?;
            receives += 1;
        }
        list.push(wr);
        after.push((case, setup.local, setup.remote, setup.data));
    }
    let signaled: Vec<_> =
        list.iter().filter(|wr| wr.signaled).map(|wr| (wr.wr_id, WcStatus::Success)).collect();
    let consuming = after.iter().enumerate().filter(|(_, row)| row.0.receives() > 0);
    let consuming: Vec<_> = consuming.map(|(index, _)| (index as u64, WcStatus::Success)).collect();
    must("posting", link.a.qp.post_send_list(list))?;
    same!(crate::link::brief(&link.a.sent(ctx, signaled.len()).await?), signaled, "sends, in order");
    same!(crate::link::brief(&link.b.received(ctx, receives).await?), consuming, "receives, in order");
    ensure_last_write_is_there(ctx, &link).await?;
    for (case, local, remote, data) in &after {
        let setup =
            Setup { case, local: local.clone(), remote: remote.clone(), data: data.clone(), key: None };
        check_memory(&link, &setup).map_err(|why| format!("{case}: {why}"))?;
    }
    same!((link.a.events(), link.b.events()), (Vec::<QpEvent>::new(), Vec::new()), "events");
    Ok(())
}

/// A SEND behind a WRITE: once it has arrived the WRITE has too.
pub(crate) async fn ensure_last_write_is_there(ctx: &Ctx, link: &Link) -> Verdict {
    link.b.post_recv(RecvWr::new(MARKER_RECEIVE, [link.b.mr().sge(MARKER_AT..MARKER_AT + 64)]))?;
    link.a.post_send(link.addressed(SendWr::new(MARKER, SendOp::Send)))?;
    let (sent, received) = (link.a.sent(ctx, 1).await?, link.b.received(ctx, 1).await?);
    same!((sent[0].status, received[0].status), (WcStatus::Success, WcStatus::Success), "the marker");
    Ok(())
}

/// That operations beyond what the peer holds are held back, not refused: IBTA C9-88, RFC 5040 §5.2 (ORD).
pub(crate) async fn reads_beyond_depth(ctx: &Ctx, depth: u8) -> Verdict {
    let mut options = LinkOptions::new(QpType::Rc);
    options.connect.initiator_depth = depth;
    options.accept.responder_resources = depth;
    let link = Link::new(ctx, &options).await?;
    const READS: usize = 40;
    let data = pattern(READS * 512, depth.into());
    must("filling", link.b.mr().write_at(0, &data))?;
    must("clearing", link.a.mr().write_at(0, &vec![0; data.len()]))?;
    let read = |n: usize| {
        let remote = link.b.mr().remote(n * 512);
        SendWr::new(n as u64, SendOp::Read { remote }).with_sges([link.a.mr().sge(n * 512..(n + 1) * 512)])
    };
    must("posting", link.a.qp.post_send_list((0..READS).map(read)))?;
    let all: Vec<_> = (0..READS as u64).map(|n| (n, WcStatus::Success)).collect();
    same!(crate::link::brief(&link.a.sent(ctx, READS).await?), all, "READs");
    ensure!(must("reading", link.a.mr().read_vec(0, data.len()))? == data, "the bytes read are wrong");
    same!(options.access, ALL, "access");
    link.silent()
}
