//! Datagram services found by address and port, and multicast groups.
//!
//! Read IBTA vol. 1 §12.11 (SIDR), §10.5 (multicast) and annex A17.9.2 first.

use std::net::IpAddr;

use everywire_verbs::{
    CmErrorKind, DatagramService, ListenOptions, MulticastOptions, QKey, QpType, Qpn, RESOLVE_PRIVATE_DATA,
    RESOLVED_PRIVATE_DATA, RecvWr, ResolveOptions, SendOp, SendWr, SidrStatus, WcStatus,
};

use crate::check::{Verdict, ensure, must, same};
use crate::layout::pattern;
use crate::link::{Ctx, Link, LinkOptions, QKEY, beside, brief};
use crate::transfer::GRH;

/// One script about datagram services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Found, with the longest private data both ways, and used.
    Found,
    /// Refused by its program.
    Refused,
    /// Nobody offers it.
    Nobody,
    /// One byte of private data too many.
    TooLong,
    /// One an address and port.
    AddressInUse,
}

/// All of them.
pub(crate) const SERVICES: [Service; 5] =
    [Service::Found, Service::Refused, Service::Nobody, Service::TooLong, Service::AddressInUse];

/// Runs one.
pub(crate) async fn service(ctx: &Ctx, script: Service) -> Verdict {
    let device = &ctx.b.end.device;
    let listener = must("listening", device.listen_udp(ctx.b.end.port(0), ListenOptions::default()))?;
    let address = listener.local_addr();
    let find = |private_data: Vec<u8>| {
        ctx.a.pd.resolve_udp(ResolveOptions { private_data, ..ResolveOptions::new(address) })
    };
    let status = |found: Result<DatagramService, everywire_verbs::CmError>| match found {
        Ok(_) => Err(String::from("found, but it must be refused")),
        Err(error) => match error.kind() {
            CmErrorKind::NoService { status, .. } => Ok((*status, error.errno())),
            _ => Err(error.to_string()),
        },
    };
    match script {
        Service::Found => {
            let link = Link::new(ctx, &LinkOptions::new(QpType::Ud)).await?;
            let (question, answer) = (pattern(RESOLVE_PRIVATE_DATA, 1), pattern(RESOLVED_PRIVATE_DATA, 2));
            // Nothing is kept of an answer (IBTA §12.11): whoever lost it asks again.
            let answering = async {
                loop {
                    let request = listener.next_request().await;
                    let heard = request.private_data().starts_with(&question);
                    ensure!(heard, "other private data arrived at the service");
                    must("answering", request.accept(&link.b.qp, QKEY, &answer))?;
                }
            };
            let found = ctx.soon("the service", beside(find(question.clone()), answering)).await??;
            let found = must("finding", found)?;
            ensure!(found.private_data.starts_with(&answer), "other private data came back");
            same!((found.qpn, found.qkey), (link.b.qp.qpn(), QKEY), "the service's queue pair");
            use_service(ctx, &link, &found).await
        }
        Service::Refused => {
            let answering = async {
                loop {
                    must("refusing", listener.next_request().await.reject(&[]))?;
                }
            };
            let found = ctx.soon("the refusal", beside(find(Vec::new()), answering)).await??;
            same!(status(found)?, (SidrStatus::Rejected, 111), "status and errno");
            Ok(())
        }
        Service::Nobody => {
            drop(listener);
            let found = ctx.soon("the refusal", find(Vec::new())).await?;
            // IBTA §12.11.2.3, status 1.
            same!(status(found)?, (SidrStatus::UnsupportedServiceId, 111), "status and errno");
            Ok(())
        }
        Service::TooLong => {
            let found = ctx.soon("the refusal", find(vec![0; RESOLVE_PRIVATE_DATA + 1])).await?;
            let error = found.err().ok_or("too long private data were not refused")?;
            same!(error.errno(), 22, "errno of \"{error}\"");
            Ok(())
        }
        Service::AddressInUse => {
            let again = device.listen_udp(address, ListenOptions::default());
            let error = again.err().ok_or("two services on one address and port")?;
            same!(error.errno(), 98, "errno of \"{error}\"");
            // The port spaces of connections and of datagrams are apart.
            must("listening for connections", device.listen(address, ListenOptions::default())).map(drop)
        }
    }
}

async fn use_service(ctx: &Ctx, link: &Link, found: &DatagramService) -> Verdict {
    link.b.post_recv(RecvWr::new(1, [link.b.mr().sge(..GRH + 8)]))?;
    for _ in 0..20 {
        let mut wr = SendWr::new(2, SendOp::Send).with_inline(*b"datagram");
        wr.ud = Some(found.dest());
        link.a.post_send(wr)?;
        same!(brief(&link.a.sent(ctx, 1).await?), [(2, WcStatus::Success)], "a datagram to the service");
        let mut out = Vec::new();
        if ctx.rt.timeout(ctx.plan.quiet * 50, link.b.recv_cq.wait(&mut out, 1)).await.is_ok() {
            same!(out[0].byte_len as usize, GRH + 8, "bytes of the datagram");
            return link.silent();
        }
    }
    Err(String::from("no datagram reaches the service"))
}

/// A group reaches those who joined it, and nobody once they have left.
pub(crate) async fn multicast(ctx: &Ctx, group: IpAddr) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Ud)).await?;
    let joining = link.b.qp.join_multicast(&ctx.b.pd, MulticastOptions::new(group));
    let member = must("joining", ctx.soon("the group", joining).await?)?;
    let joining = link.a.qp.join_multicast(&ctx.a.pd, MulticastOptions::send_only(group));
    let sender = must("joining to send", ctx.soon("the group", joining).await?)?;
    let send = |qkey: QKey| -> Verdict {
        let mut wr = SendWr::new(1, SendOp::Send).with_inline(*b"to all");
        wr.ud = Some(sender.ah().dest(Qpn::MULTICAST, qkey));
        link.a.post_send(wr)
    };
    for n in 0..2 {
        link.b.post_recv(RecvWr::new(n, [link.b.mr().sge(..GRH + 64)]))?;
    }
    let (mut out, mut tries) = (Vec::new(), 0);
    for _ in 0..40 {
        send(QKEY)?;
        tries += 1;
        link.a.sent(ctx, 1).await?;
        if ctx.rt.timeout(ctx.plan.quiet * 50, link.b.recv_cq.wait(&mut out, 1)).await.is_ok() {
            break;
        }
    }
    ensure!(!out.is_empty(), "nothing sent to the group arrives");
    same!(
        (out[0].wr_id, out[0].status, out[0].byte_len as usize),
        (0, WcStatus::Success, GRH + 6),
        "the receive"
    );
    same!((out[0].grh, out[0].src_qp), (true, link.a.qp.qpn()), "a GRH, always on multicast, and the sender");
    same!(must("reading", link.b.mr().read_vec(GRH, 6))?, b"to all", "bytes");
    if tries > 1 {
        // Those before it may only have been slow: the second receive is for them, and there is no third yet.
        ctx.rt.sleep(ctx.plan.quiet * 500).await;
        must("polling", link.b.recv_cq.poll(&mut out, tries))?;
        link.b.post_recv(RecvWr::new(2, [link.b.mr().sge(..GRH + 64)]))?;
    }
    // A wrong Q_Key is dropped on multicast too (IBTA C9-46), and after leaving nothing comes.
    send(QKey(QKEY.0 ^ 2))?;
    link.a.sent(ctx, 1).await?;
    drop(member);
    ctx.quiet().await;
    link.b.silent("end B")?;
    send(QKEY)?;
    link.a.sent(ctx, 1).await?;
    ctx.quiet().await;
    link.silent()
}
