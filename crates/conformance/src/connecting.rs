//! The connection manager: requests, answers, refusals, private data, ends.
//!
//! Read IBTA vol. 1 chapter 12 with annex A11, RFC 5044 §7 and RFC 6581 first. What a refusal looks like to a program is
//! the same on every wire: librdmacm's number (111 refused, 110 timed out, 98 in use, 99 not ours, 22 misused). The reason
//! by its InfiniBand number is there on the InfiniBand family only. `ends` has how connections end, `services` the finding
//! of datagram services.

mod ends;
mod services;

use std::time::Duration;

use everywire_verbs::{
    CmError, CmErrorKind, ConnParam, ConnectOptions, ListenOptions, Listener, QpState, QpType, RejReason,
};

pub(crate) use ends::{ENDS, end, peer_dies};
pub(crate) use services::{SERVICES, multicast, service};

use crate::check::{Verdict, ensure, must, same};
use crate::join::join;
use crate::layout::pattern;
use crate::link::{Ctx, Link, LinkOptions, Side, connect};
use crate::wire::Family;

/// One script about how connections are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Making {
    /// Nobody listens.
    NoListener,
    /// Rejected, with the longest private data.
    Rejected,
    /// A request that nobody answers is rejected with its handle.
    Forgotten,
    /// A listener goes with a request in its queue.
    ListenerGone,
    /// The longest private data both ways.
    PrivateData,
    /// One byte more is refused at the call.
    PrivateDataTooLong,
    /// READs and atomics in flight are the least of what both say.
    Depths,
    /// One listener an address and port.
    AddressInUse,
    /// An address of somebody else.
    NotOurAddress,
    /// Queue pairs that cannot be connected.
    WrongQueuePair,
    /// The attempt is given up before it is answered.
    TakenBack,
    /// The attempt's time is over.
    Deadline,
    /// More requests than the listener queues.
    Backlog,
    /// Many at once.
    Many,
    /// Queue pairs with receives posted beforehand, which the first message finds.
    ReceivesPosted,
}

/// All of them.
pub(crate) const MAKINGS: [Making; 15] = {
    use Making::*;
    [
        NoListener,
        Rejected,
        Forgotten,
        ListenerGone,
        PrivateData,
        PrivateDataTooLong,
        Depths,
        AddressInUse,
        NotOurAddress,
        WrongQueuePair,
        TakenBack,
        Deadline,
        Backlog,
        Many,
        ReceivesPosted,
    ]
};

/// Runs one.
pub(crate) async fn making(ctx: &Ctx, script: Making) -> Verdict {
    match script {
        Making::NoListener => no_listener(ctx).await,
        Making::Rejected => rejected(ctx).await,
        Making::Forgotten => forgotten(ctx).await,
        Making::ListenerGone => listener_gone(ctx).await,
        Making::PrivateData => private_data(ctx).await,
        Making::PrivateDataTooLong => private_data_too_long(ctx).await,
        Making::Depths => depths(ctx).await,
        Making::AddressInUse => address_in_use(ctx).await,
        Making::NotOurAddress => not_our_address(ctx),
        Making::WrongQueuePair => wrong_queue_pair(ctx).await,
        Making::TakenBack => taken_back(ctx).await,
        Making::Deadline => deadline(ctx).await,
        Making::Backlog => backlog(ctx).await,
        Making::Many => many(ctx).await,
        Making::ReceivesPosted => receives_posted(ctx).await,
    }
}

fn side_a(ctx: &Ctx) -> Result<Side, String> {
    Side::new(&ctx.a, QpType::Rc, false, LinkOptions::new(QpType::Rc).caps)
}

fn side_b(ctx: &Ctx) -> Result<Side, String> {
    Side::new(&ctx.b, QpType::Rc, false, LinkOptions::new(QpType::Rc).caps)
}

fn listen(ctx: &Ctx) -> Result<Listener, String> {
    must("listening", ctx.b.end.device.listen(ctx.b.end.port(0), ListenOptions::default()))
}

/// That an attempt was refused by the peer, on the InfiniBand family with this reason.
fn is_refusal(ctx: &Ctx, error: &CmError, reason: RejReason) -> Verdict {
    same!(error.errno(), 111, "errno of \"{error}\"");
    if ctx.wire.family == Family::Ib {
        same!(error.reject_reason(), Some(reason), "reason of \"{error}\"");
    }
    Ok(())
}

async fn attempt(ctx: &Ctx, options: ConnectOptions) -> Result<CmError, String> {
    let done = ctx.soon("the end of the attempt", ctx.a.end.device.connect(options)).await?;
    done.err().ok_or_else(|| String::from("connected, but the attempt must fail"))
}

async fn no_listener(ctx: &Ctx) -> Verdict {
    let a = side_a(ctx)?;
    let gone = listen(ctx)?.local_addr();
    let error = attempt(ctx, ConnectOptions::new(gone, &a.qp)).await?;
    // IBTA §12.6.7.2, reason 8. TCP answers a SYN for a port without listener with RST (RFC 9293 §3.10.7.1).
    is_refusal(ctx, &error, RejReason::InvalidServiceId)?;
    ensure!(
        matches!(a.qp.state(), QpState::Init | QpState::Reset | QpState::Err),
        "state {:?}",
        a.qp.state()
    );
    a.silent("end A")
}

async fn rejected(ctx: &Ctx) -> Verdict {
    let a = side_a(ctx)?;
    let listener = listen(ctx)?;
    let said = pattern(ctx.wire.private_data.reject, 3);
    let asking = attempt(ctx, ConnectOptions::new(listener.local_addr(), &a.qp));
    let rejecting = async { listener.next_request().await?.reject(&said) };
    let (error, done) = ctx.soon("the rejection", join(asking, rejecting)).await?;
    must("rejecting", done)?;
    let error = error?;
    is_refusal(ctx, &error, RejReason::ConsumerReject)?;
    match error.kind() {
        CmErrorKind::Rejected { private_data, .. } => {
            ensure!(private_data.starts_with(&said), "other private data arrived");
            Ok(())
        }
        other => Err(format!("not a rejection: {other}")),
    }
}

async fn forgotten(ctx: &Ctx) -> Verdict {
    let a = side_a(ctx)?;
    let listener = listen(ctx)?;
    let asking = attempt(ctx, ConnectOptions::new(listener.local_addr(), &a.qp));
    let forgetting = async { drop(listener.next_request().await) };
    let (error, ()) = ctx.soon("the rejection", join(asking, forgetting)).await?;
    is_refusal(ctx, &error?, RejReason::ConsumerReject)
}

async fn listener_gone(ctx: &Ctx) -> Verdict {
    let a = side_a(ctx)?;
    let listener = listen(ctx)?;
    let address = listener.local_addr();
    let asking = attempt(ctx, ConnectOptions::new(address, &a.qp));
    let going = async {
        ctx.quiet().await;
        drop(listener);
    };
    let (error, ()) = ctx.soon("the rejection", join(asking, going)).await?;
    let error = error?;
    // Accepted by the kernel and then closed, or not yet accepted: a refusal or a reset.
    let refused = error.errno() == 111 || (ctx.wire.family == Family::Iwarp && error.errno() == 104);
    ensure!(refused, "errno {} of \"{error}\"", error.errno());
    Ok(())
}

async fn private_data(ctx: &Ctx) -> Verdict {
    let limits = &ctx.wire.private_data;
    let (a, b) = (side_a(ctx)?, side_b(ctx)?);
    let (question, answer) = (pattern(limits.connect, 1), pattern(limits.accept, 2));
    let mut options = LinkOptions::new(QpType::Rc);
    options.connect.private_data = question.clone();
    options.accept.private_data = answer.clone();
    let (active, passive) = connect(ctx, &a, &b, &options).await?;
    ensure!(active.private_data().starts_with(&answer), "other private data arrived at end A");
    ensure!(passive.private_data().starts_with(&question), "other private data arrived at end B");
    same!(active.peer(), passive.local(), "addresses of the connection");
    same!(active.local().ip(), ctx.a.end.ip, "the address of end A");
    same!(passive.peer(), active.local(), "addresses of the connection");
    Ok(())
}

async fn private_data_too_long(ctx: &Ctx) -> Verdict {
    let limits = &ctx.wire.private_data;
    let a = side_a(ctx)?;
    let listener = listen(ctx)?;
    let param = ConnParam::with_private_data(vec![1; limits.connect + 1]);
    let error = attempt(ctx, ConnectOptions::new(listener.local_addr(), &a.qp).param(param)).await?;
    same!(error.errno(), 22, "errno of \"{error}\"");
    let asking = attempt(ctx, ConnectOptions::new(listener.local_addr(), &a.qp));
    let rejecting = async {
        let request = listener.next_request().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(request.reject(&vec![1; limits.reject + 1]))
    };
    let (error, done) = ctx.soon("the rejection", join(asking, rejecting)).await?;
    let refused = done?.err().ok_or("too long a rejection was not refused")?;
    same!(refused.errno(), 22, "errno of \"{refused}\"");
    // The request is over all the same.
    is_refusal(ctx, &error?, RejReason::ConsumerReject)
}

/// IBTA §12.7.29 and §12.7.30, RFC 6581 §7: each direction by the least that either side says.
async fn depths(ctx: &Ctx) -> Verdict {
    let (a, b) = (side_a(ctx)?, side_b(ctx)?);
    let mut options = LinkOptions::new(QpType::Rc);
    (options.connect.initiator_depth, options.connect.responder_resources) = (5, 3);
    (options.accept.initiator_depth, options.accept.responder_resources) = (9, 2);
    let (active, passive) = connect(ctx, &a, &b, &options).await?;
    same!(active.param().responder_resources, 2, "what end A may have in flight");
    same!(active.param().initiator_depth, 3, "what end B may have in flight");
    drop(passive);
    Ok(())
}

async fn address_in_use(ctx: &Ctx) -> Verdict {
    let listener = listen(ctx)?;
    let device = &ctx.b.end.device;
    let again = device.listen(listener.local_addr(), ListenOptions::default());
    let error = again.err().ok_or("two listeners on one address and port")?;
    same!(error.errno(), 98, "errno of \"{error}\"");
    let address = listener.local_addr();
    drop(listener);
    let listen = || must("listening once it is free", device.listen(address, ListenOptions::default()));
    ctx.eventually(|| listen().map(drop)).await
}

fn not_our_address(ctx: &Ctx) -> Verdict {
    if ctx.a.end.ip == ctx.b.end.ip {
        return Ok(()); // one device with itself
    }
    let foreign = ctx.b.end.device.listen(ctx.a.end.port(0), ListenOptions::default());
    let error = foreign.err().ok_or("a listener on somebody else's address")?;
    same!(error.errno(), 99, "errno of \"{error}\"");
    Ok(())
}

async fn wrong_queue_pair(ctx: &Ctx) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let listener = listen(ctx)?;
    let failed = side_a(ctx)?;
    must("to INIT", failed.qp.to_init(everywire_verbs::Access::empty()))?;
    must("to ERR", failed.qp.to_error())?;
    for (what, qp) in [("a connected queue pair", &link.a.qp), ("one in ERR", &failed.qp)] {
        let error = attempt(ctx, ConnectOptions::new(listener.local_addr(), qp)).await?;
        same!(error.errno(), 22, "errno for {what}");
    }
    if !ctx.a.end.device.same(&ctx.b.end.device) {
        let other = side_b(ctx)?;
        let error = attempt(ctx, ConnectOptions::new(listener.local_addr(), &other.qp)).await?;
        same!(error.errno(), 22, "errno for a queue pair of another device");
    }
    link.silent()?;
    link.reaches(ctx, QpState::Rts, QpState::Rts).await
}

async fn taken_back(ctx: &Ctx) -> Verdict {
    let (a, b) = (side_a(ctx)?, side_b(ctx)?);
    let listener = listen(ctx)?;
    let connecting = ctx.a.end.device.connect(ConnectOptions::new(listener.local_addr(), &a.qp));
    let taken = ctx.rt.spawn(async move {
        drop(connecting.await);
    });
    let request = must("the request", ctx.soon("the request", listener.next_request()).await?)?;
    taken.abort();
    ctx.quiet().await;
    // It may have been told already, or learns by accepting: never a connection that lasts.
    let accepted = ctx.soon("the end", request.accept(&b.qp, ConnParam::default())).await?;
    if let Ok(connection) = accepted {
        ctx.soon("the end of a connection whose peer has gone", connection.closed()).await?;
    }
    b.reaches(ctx, "end B", QpState::Err).await.or_else(|why| match b.qp.state() {
        QpState::Init | QpState::Reset => Ok(()), // never taken on
        _ => Err(why),
    })
}

async fn deadline(ctx: &Ctx) -> Verdict {
    let a = side_a(ctx)?;
    let listener = listen(ctx)?;
    let before = ctx.rt.now();
    let options = ConnectOptions::new(listener.local_addr(), &a.qp).timeout(Duration::from_millis(30));
    let error = attempt(ctx, options).await?;
    same!(error.errno(), 110, "errno of \"{error}\"");
    let taken = ctx.rt.now() - before;
    ensure!(taken >= Duration::from_millis(30), "given up after {taken:?} of 30 ms");
    Ok(())
}

async fn backlog(ctx: &Ctx) -> Verdict {
    let options = ListenOptions { backlog: 2 };
    let listener = must("listening", ctx.b.end.device.listen(ctx.b.end.port(0), options))?;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let a = side_a(ctx)?;
        let connecting = ctx.a.end.device.connect(ConnectOptions::new(listener.local_addr(), &a.qp));
        waiting.push((ctx.rt.spawn(connecting), a));
        // Until its request has arrived: on InfiniBand the subnet administrator is asked first, and where packets are lost TCP
        // sends a lost first one again after a second (RFC 6298 §2).
        let arrived = if ctx.plan.lossy { Duration::from_secs(3) } else { ctx.plan.quiet * 25 };
        ctx.rt.sleep(arrived).await;
    }
    let a = side_a(ctx)?;
    let third = ConnectOptions::new(listener.local_addr(), &a.qp).timeout(Duration::from_secs(1));
    let error = attempt(ctx, third).await?;
    match ctx.wire.family {
        // IBTA §12.6.7.2, reason 3.
        Family::Ib => is_refusal(ctx, &error, RejReason::NoResources)?,
        // How a full queue shows is the TCP's affair: a reset, or no answer.
        Family::Iwarp => ensure!(matches!(error.errno(), 104 | 110 | 111), "errno {}", error.errno()),
    }
    // Those that waited are served.
    for (connecting, _a) in waiting {
        let b = side_b(ctx)?;
        let request = must("a request", ctx.soon("a request", listener.next_request()).await?)?;
        let accepted = ctx.soon("a connection", request.accept(&b.qp, ConnParam::default())).await?;
        must("accepting", accepted)?;
        let connected = ctx.soon("a connection", connecting).await?;
        must("connecting", must("connecting", connected)?)?;
    }
    Ok(())
}

async fn many(ctx: &Ctx) -> Verdict {
    const COUNT: usize = 24;
    let listener = listen(ctx)?;
    let mut attempts = Vec::new();
    for _ in 0..COUNT {
        let a = side_a(ctx)?;
        let connecting = ctx.a.end.device.connect(ConnectOptions::new(listener.local_addr(), &a.qp));
        attempts.push((ctx.rt.spawn(connecting), a));
    }
    let mut accepted = Vec::new();
    for _ in 0..COUNT {
        let b = side_b(ctx)?;
        let request = must("a request", ctx.soon("a request", listener.next_request()).await?)?;
        let connection = ctx.soon("a connection", request.accept(&b.qp, ConnParam::default())).await?;
        accepted.push((must("accepting", connection)?, b));
    }
    for (connecting, a) in attempts {
        let connected = ctx.soon("a connection", connecting).await?;
        let connection = must("connecting", must("connecting", connected)?)?;
        let other = accepted.iter().find(|(other, _)| other.peer() == connection.local());
        let (_, b) = other.ok_or("a connection without its other end")?;
        b.post_recv(everywire_verbs::RecvWr::new(1, []))?;
        a.post_send(everywire_verbs::SendWr::new(2, everywire_verbs::SendOp::Send))?;
        b.received(ctx, 1).await?;
        a.sent(ctx, 1).await?;
    }
    Ok(())
}

async fn receives_posted(ctx: &Ctx) -> Verdict {
    let (a, b) = (side_a(ctx)?, side_b(ctx)?);
    for side in [&a, &b] {
        must("to INIT", side.qp.to_init(crate::link::ALL))?;
        side.post_recv(everywire_verbs::RecvWr::new(1, [side.mr().sge(..64)]))?;
    }
    let connections = connect(ctx, &a, &b, &LinkOptions::new(QpType::Rc)).await?;
    // The side that connected speaks first (RFC 5044 §7.1.2, rule 6), then the other.
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.post_send(
            everywire_verbs::SendWr::new(2, everywire_verbs::SendOp::Send).with_inline(*b"hello"),
        )?;
        same!(to.received(ctx, 1).await?[0].byte_len, 5, "bytes of the first message");
        from.sent(ctx, 1).await?;
    }
    drop(connections);
    Ok(())
}
