//! Two queue pairs that talk to each other, with all that a case needs around them.
//!
//! Connected services are joined by the connection manager as any program joins them, datagram queue pairs by an address
//! handle each way. Send and receive completions go to queues of their own, so that the order on each can be told.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use everywire_verbs::rt::Rt;
use everywire_verbs::{
    Access, Ah, AhAttr, AsyncEvent, AsyncEvents, Completion, ConnParam, ConnectOptions, Connection, Cq,
    ListenOptions, MemoryRegion, Mtu, Pd, PostError, Psn, QKey, Qp, QpAttr, QpCaps, QpEvent, QpInit, QpState,
    QpType, RecvWr, SendWr, Srq, SrqInit, WcStatus,
};

use crate::check::{Verdict, ensure, must, same};
use crate::join::both;
use crate::pair::{End, Pair, Plan};
use crate::wire::Row;

/// Bytes of each end's region: two windows of the longest message, with room for gaps and guards.
pub(crate) const REGION: usize = 2 * WINDOW;
/// Bytes of one window.
pub(crate) const WINDOW: usize = (1 << 20) + (1 << 16);
/// Entries of each completion queue.
pub(crate) const CQ_DEPTH: u32 = 512;
/// The Q_Key of every datagram queue pair.
pub(crate) const QKEY: QKey = QKey(0x1111_2222);
/// Receives of a shared receive queue.
const SRQ_DEPTH: u32 = 256;
/// Local ACK timeout exponent: 4.096 µs · 2^14 = 67 ms. Long for a busy machine's loopback, short enough to wait for.
const ACK_TIMEOUT: u8 = 14;

/// Everything remote that there is, and local writes.
pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One end, with what all cases of a run share.
pub(crate) struct Bench {
    pub(crate) end: End,
    pub(crate) pd: Pd,
    /// Allows everything, windows included.
    pub(crate) mr: MemoryRegion,
    events: AsyncEvents,
    seen: RefCell<Vec<AsyncEvent>>,
}

impl Bench {
    pub(crate) fn new(end: &End) -> Result<Rc<Bench>, String> {
        let pd = must("allocating a domain", end.device.alloc_pd())?;
        let mr = must("registering", pd.register(REGION, ALL | Access::MW_BIND))?;
        let events = end.device.async_events();
        Ok(Rc::new(Bench { end: end.clone(), pd, mr, events, seen: RefCell::default() }))
    }

    /// Events of this device that `wanted` is true for, since the last call that asked for them.
    pub(crate) fn events(&self, wanted: impl Fn(&AsyncEvent) -> bool) -> Vec<AsyncEvent> {
        let mut seen = self.seen.borrow_mut();
        seen.extend(std::iter::from_fn(|| self.events.try_next()));
        let (taken, left) = seen.drain(..).partition(wanted);
        *seen = left;
        taken
    }
}

/// What all cases of a run share.
pub(crate) struct Ctx {
    pub(crate) pair: Pair,
    pub(crate) rt: Rt,
    pub(crate) plan: Plan,
    pub(crate) wire: &'static Row,
    pub(crate) a: Rc<Bench>,
    pub(crate) b: Rc<Bench>,
}

impl Ctx {
    /// Waits for something that must happen.
    pub(crate) async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T, String> {
        let done = self.rt.timeout(self.plan.patience, future).await;
        done.map_err(|_| format!("{what}: nothing within {:?}", self.plan.patience))
    }

    /// Lets things happen that must not happen.
    pub(crate) async fn quiet(&self) {
        self.rt.sleep(self.plan.quiet).await;
    }

    /// Waits for a state that must come, and says what is wrong with the last one seen.
    pub(crate) async fn eventually(&self, mut state: impl FnMut() -> Verdict) -> Verdict {
        let mut last = Ok(());
        let reached = self.until("", || {
            last = state();
            last.is_ok()
        });
        let timely = reached.await;
        last.and(timely)
    }

    /// Waits until `holds` does.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) -> Verdict {
        let end = self.rt.now() + self.plan.patience;
        let mut pause = Duration::from_micros(20);
        while !holds() {
            ensure!(self.rt.now() < end, "{what}: not within {:?}", self.plan.patience);
            self.rt.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// What `a` comes to, while `b` does its part for as long as that takes; what goes wrong there ends both.
pub(crate) async fn beside<A>(
    a: impl Future<Output = A>,
    b: impl Future<Output = Verdict>,
) -> Result<A, String> {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|cx| match (a.as_mut().poll(cx), b.as_mut().poll(cx)) {
        (Poll::Ready(value), _) => Poll::Ready(Ok(value)),
        (Poll::Pending, Poll::Ready(Err(why))) => Poll::Ready(Err(why)),
        (Poll::Pending, _) => Poll::Pending,
    })
    .await
}

/// How a link is made.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    pub(crate) ty: QpType,
    /// End B takes its receives from a shared queue.
    pub(crate) srq: bool,
    pub(crate) caps: QpCaps,
    /// What end B's queue pair allows.
    pub(crate) access: Access,
    /// Of end A, which connects.
    pub(crate) connect: ConnParam,
    /// Of end B, which accepts.
    pub(crate) accept: ConnParam,
}

impl LinkOptions {
    pub(crate) fn new(ty: QpType) -> LinkOptions {
        let caps = QpCaps {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 32,
            max_recv_sge: 32,
            max_inline_data: 4096,
        };
        let param = ConnParam { ack_timeout: Some(ACK_TIMEOUT), min_rnr_timer: 1, ..ConnParam::default() };
        LinkOptions { ty, srq: false, caps, access: ALL, connect: param.clone(), accept: param }
    }
}

/// One queue pair and its queues.
pub(crate) struct Side {
    pub(crate) bench: Rc<Bench>,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) srq: Option<Srq>,
    pub(crate) qp: Qp,
}

impl Side {
    /// A queue pair in RESET.
    pub(crate) fn new(bench: &Rc<Bench>, ty: QpType, srq: bool, caps: QpCaps) -> Result<Side, String> {
        let cq = || must("creating a completion queue", bench.end.device.create_cq(CQ_DEPTH));
        let (send_cq, recv_cq) = (cq()?, cq()?);
        let init = SrqInit { max_wr: SRQ_DEPTH, max_sge: caps.max_recv_sge };
        let srq = match srq {
            true => Some(must("creating a shared receive queue", bench.pd.create_srq(init))?),
            false => None,
        };
        let init = QpInit {
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: srq.as_ref(),
            caps,
            ..QpInit::new(ty, &send_cq)
        };
        let qp = must("creating a queue pair", bench.pd.create_qp(&init))?;
        Ok(Side { bench: bench.clone(), send_cq, recv_cq, srq, qp })
    }

    pub(crate) fn mr(&self) -> &MemoryRegion {
        &self.bench.mr
    }

    /// Posts a receive where this side takes its receives from.
    pub(crate) fn post_recv(&self, wr: RecvWr) -> Verdict {
        let posted = match &self.srq {
            Some(srq) => srq.post_recv(wr),
            None => self.qp.post_recv(wr),
        };
        posted.map_err(|error| format!("posting a receive: {error}"))
    }

    pub(crate) fn post_send(&self, wr: SendWr) -> Verdict {
        self.qp.post_send(wr).map_err(|error: PostError| format!("posting a send: {error}"))
    }

    /// Waits for this many send completions; there may be no more.
    pub(crate) async fn sent(&self, ctx: &Ctx, count: usize) -> Result<Vec<Completion>, String> {
        completions(ctx, &self.send_cq, "send", count).await
    }

    /// Waits for this many receive completions; there may be no more.
    pub(crate) async fn received(&self, ctx: &Ctx, count: usize) -> Result<Vec<Completion>, String> {
        completions(ctx, &self.recv_cq, "receive", count).await
    }

    /// That nothing has completed.
    pub(crate) fn silent(&self, who: &str) -> Verdict {
        for (cq, what) in [(&self.send_cq, "send"), (&self.recv_cq, "receive")] {
            let mut out = Vec::new();
            must("polling", cq.poll(&mut out, CQ_DEPTH as usize))?;
            ensure!(out.is_empty(), "{who}: a {what} completion that nothing explains: {:?}", out[0]);
        }
        Ok(())
    }

    /// Events of this queue pair so far, but for "communication established", which may or may not come.
    pub(crate) fn events(&self) -> Vec<QpEvent> {
        let qpn = self.qp.qpn();
        let of_this = |event: &AsyncEvent| matches!(event, AsyncEvent::Qp { qpn: at, .. } if *at == qpn);
        let events = self.bench.events(of_this).into_iter().filter_map(|event| match event {
            AsyncEvent::Qp { event: QpEvent::CommEstablished, .. } => None,
            AsyncEvent::Qp { event, .. } => Some(event),
            _ => None,
        });
        events.collect()
    }

    /// That the queue pair is in this state, now or soon.
    pub(crate) async fn reaches(&self, ctx: &Ctx, who: &str, state: QpState) -> Verdict {
        let reached = ctx.until("state", || self.qp.state() == state).await;
        reached.map_err(|_| format!("{who} is in {:?}, but it must be in {state:?}", self.qp.state()))
    }
}

/// Waits for exactly this many completions.
async fn completions(ctx: &Ctx, cq: &Cq, what: &str, count: usize) -> Result<Vec<Completion>, String> {
    let mut out = Vec::new();
    while out.len() < count {
        let had = out.len();
        let waited = ctx.soon(what, cq.wait(&mut out, CQ_DEPTH as usize)).await;
        let waited = waited.map_err(|why| format!("{had} of {count} {what} completions, then {why}"))?;
        must("waiting", waited)?;
    }
    ensure!(out.len() == count, "{} {what} completions, but there must be {count}: {out:?}", out.len());
    Ok(out)
}

/// Identity and status of completions, which is all that those in error have.
pub(crate) fn brief(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|entry| (entry.wr_id, entry.status)).collect()
}

/// Two queue pairs that talk.
pub(crate) struct Link {
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// Of connected services.
    pub(crate) connections: Option<(Connection, Connection)>,
    /// Of datagrams: the way from A to B.
    pub(crate) ah: Option<Ah>,
    /// Payload bytes of a full packet, or what stands for it.
    pub(crate) mtu: usize,
}

impl Link {
    pub(crate) async fn new(ctx: &Ctx, options: &LinkOptions) -> Result<Link, String> {
        let a = Side::new(&ctx.a, options.ty, false, options.caps)?;
        let b = Side::new(&ctx.b, options.ty, options.srq, options.caps)?;
        if options.ty == QpType::Ud {
            open_datagrams(&a.qp)?;
            open_datagrams(&b.qp)?;
            let way = ctx.soon("a route", a.bench.pd.create_ah(AhAttr::new(ctx.b.end.ip))).await?;
            let ah = must("an address handle", way)?;
            let mtu = ah.mtu().bytes();
            return Ok(Link { a, b, connections: None, ah: Some(ah), mtu });
        }
        must("to INIT", a.qp.to_init(ALL))?;
        must("to INIT", b.qp.to_init(options.access))?;
        let connections = connect(ctx, &a, &b, options).await?;
        let mtu = a.qp.query().path_mtu.map_or(ctx.wire.segment, Mtu::bytes);
        let link = Link { a, b, connections: Some(connections), ah: None, mtu };
        link.reaches(ctx, QpState::Rts, QpState::Rts).await?;
        Ok(link)
    }

    /// A work request with the destination that datagrams need.
    pub(crate) fn addressed(&self, mut wr: SendWr) -> SendWr {
        wr.ud = self.ah.as_ref().map(|ah| ah.dest(self.b.qp.qpn(), QKEY));
        wr
    }

    /// That both queue pairs are, or soon get, where they must be.
    pub(crate) async fn reaches(&self, ctx: &Ctx, a: QpState, b: QpState) -> Verdict {
        self.a.reaches(ctx, "end A", a).await?;
        self.b.reaches(ctx, "end B", b).await
    }

    /// That nothing has happened beyond what was taken note of: no completion, no event.
    pub(crate) fn silent(&self) -> Verdict {
        for (side, who) in [(&self.a, "end A"), (&self.b, "end B")] {
            side.silent(who)?;
            same!(side.events(), Vec::<QpEvent>::new(), "events of {who}");
        }
        Ok(())
    }
}

/// Connects A to B by the connection manager.
pub(crate) async fn connect(
    ctx: &Ctx,
    a: &Side,
    b: &Side,
    options: &LinkOptions,
) -> Result<(Connection, Connection), String> {
    let listener = ctx.b.end.device.listen(ctx.b.end.port(0), ListenOptions::default());
    let listener = must("listening", listener)?;
    let asking = ConnectOptions::new(listener.local_addr(), &a.qp).param(options.connect.clone());
    let connecting = ctx.a.end.device.connect(asking);
    let accepting = async {
        let request = listener.next_request().await?;
        request.accept(&b.qp, options.accept.clone()).await
    };
    let connecting = async { must("connecting", connecting.await) };
    let accepting = async { must("accepting", accepting.await) };
    ctx.soon("a connection", both(connecting, accepting)).await?
}

/// A datagram queue pair, from RESET to RTS.
pub(crate) fn open_datagrams(qp: &Qp) -> Verdict {
    let steps = [
        QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) },
        QpAttr::to(QpState::Rtr),
        QpAttr { sq_psn: Some(Psn::new(7)), ..QpAttr::to(QpState::Rts) },
    ];
    steps.iter().try_for_each(|step| must("opening a datagram queue pair", qp.modify(step)))
}
