//! Datagram services: found, refused, gone.

use std::time::Duration;

use everywire_wire::QKey;
use everywire_wire::cm::SidrStatus;

use super::harness::*;
use crate::*;

const PORT: u16 = 7174;
/// Linux's RDMA_UDP_QKEY.
const QKEY: QKey = QKey(0x0123_4567);

fn ud(kit: &Kit) -> Qp {
    kit.pd.create_qp(&QpInit::new(QpType::Ud, &kit.cq)).unwrap()
}

fn resolve(
    kit: &Kit,
    options: ResolveOptions,
) -> impl Future<Output = Result<DatagramService, CmError>> + 'static {
    let pd = kit.pd.clone();
    async move { pd.resolve_udp(options).await }
}

#[test]
fn resolve_and_answer() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = world.b.listen_udp(addr(B, PORT), ListenOptions::default()).unwrap();
    assert!(world.b.listen_udp(addr(B, PORT), ListenOptions::default()).is_err());
    // Another port space.
    world.b.listen(addr(B, PORT), ListenOptions::default()).unwrap();
    let service = ud(&b);
    let qpn = service.qpn();
    let options = ResolveOptions { private_data: b"who".to_vec(), ..ResolveOptions::new(addr(B, PORT)) };
    let (found, peer) = world.join(resolve(&a, options), async move {
        let request = listener.next_request().await;
        assert_eq!((request.private_data().len(), &request.private_data()[..3]), (180, &b"who"[..]));
        assert_eq!(request.local(), addr(B, PORT));
        let peer = request.peer();
        request.accept(&service, QKEY, b"me").unwrap();
        peer
    });
    let found = found.unwrap();
    assert_eq!(peer.ip().to_string(), A);
    assert_eq!((found.qpn, found.qkey, &found.private_data[..2]), (qpn, QKEY, &b"me"[..]));
    let dest = found.dest();
    assert_eq!((dest.path.src.to_string(), dest.path.dst.to_string()), (A.to_owned(), B.to_owned()));
    drop(found);
    assert_eq!(world.log, ["SIDR_REQ", "SIDR_REP"]);
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
    assert_eq!(world.a.usage().ahs, 0);
}

#[test]
fn refusals() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let error = world.run(resolve(&a, ResolveOptions::new(addr(B, PORT)))).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "to 192.0.2.2:7174: refused by the peer: service ID not supported (1). Nobody listens on this service ID (port)"
        ),
        "{error}"
    );
    let listener = world.b.listen_udp(addr(B, PORT), ListenOptions { backlog: 1 }).unwrap();
    let mut refuse = |answer: fn(ResolveRequest, &Kit)| {
        let (taken, kit) = (listener.clone(), Kit { pd: b.pd.clone(), cq: b.cq.clone() });
        let asked = resolve(&a, ResolveOptions::new(addr(B, PORT)));
        let (found, ()) = world.join(asked, async move { answer(taken.next_request().await, &kit) });
        match found.unwrap_err().kind() {
            CmErrorKind::NoService { status, .. } => *status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refuse(|request, _| request.reject(&[]).unwrap()), SidrStatus::Rejected);
    assert_eq!(refuse(|request, _| drop(request)), SidrStatus::Rejected);
    assert_eq!(
        refuse(|request, kit| assert!(request.accept(&kit.qp(), QKEY, &[]).is_err())),
        SidrStatus::Rejected
    );
    // The backlog of one is full.
    let (one, two) = world.join(
        {
            let asked = resolve(
                &a,
                ResolveOptions {
                    timeout: Some(Duration::from_secs(30)),
                    ..ResolveOptions::new(addr(B, PORT))
                },
            );
            async move { asked.await.unwrap_err().kind().clone() }
        },
        {
            let asked = resolve(
                &a,
                ResolveOptions {
                    timeout: Some(Duration::from_secs(30)),
                    ..ResolveOptions::new(addr(B, PORT))
                },
            );
            async move { asked.await.unwrap_err().kind().clone() }
        },
    );
    assert_eq!(one, CmErrorKind::Silence { millis: 30_000, tries: 7, every_millis: 4294 });
    assert!(matches!(two, CmErrorKind::NoService { status: SidrStatus::NoQp, .. }), "{two:?}");
    // The one that was never taken runs out.
    world.run_out();
    assert!(listener.try_next().is_none());
    // Silence.
    world.lose = Box::new(|_, _| true);
    let error = world.run(resolve(&a, ResolveOptions::new(addr(B, PORT)))).unwrap_err();
    assert_eq!(*error.kind(), CmErrorKind::TimedOut { tries: 16 });
    drop(listener);
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
}

/// CM-10: a request runs out of time in the program's hand, and its id comes back as another's; a late answer or refusal
/// reaches nobody.
#[test]
fn an_id_that_comes_back() {
    for answer in [true, false] {
        let mut world = World::new();
        let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
        let listener = world.b.listen_udp(addr(B, PORT), ListenOptions::default()).unwrap();
        let (wrong, right) = (ud(&b), ud(&b));
        let mut given_up = Box::pin(resolve(&a, ResolveOptions::new(addr(B, PORT))));
        assert!(poll_once(given_up.as_mut()).is_pending());
        world.drain();
        assert!(poll_once(given_up.as_mut()).is_pending());
        world.drain();
        let old = listener.try_next().unwrap();
        drop(given_up);
        world.run_out();
        assert!(!world.b.lock().cm.engine.knows(old.id), "its time is over");
        world.b.lock().cm.engine.force_next_id(old.id);
        let qpn = right.qpn();
        let found = world.join(resolve(&a, ResolveOptions::new(addr(B, PORT))), async move {
            let new = listener.next_request().await;
            assert_eq!(new.id, old.id, "the same id");
            if answer {
                old.accept(&wrong, QKEY, b"").unwrap();
            } else {
                drop(old);
            }
            new.accept(&right, QKEY, b"").unwrap();
        });
        assert_eq!(found.0.unwrap().qpn, qpn);
        assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
    }
}

/// The caller's time limit holds for the route too.
#[test]
fn no_answer_for_the_route() {
    for (timeout, seconds) in [(None, 5), (Some(2), 2), (Some(60), 5)] {
        let mut world = World::new();
        world.answers = false;
        let pd = world.a.alloc_pd().unwrap();
        let start = world.now;
        let timeout = timeout.map(Duration::from_secs);
        let options = ResolveOptions { timeout, ..ResolveOptions::new(addr(B, 4000)) };
        let error = world.run(async move { pd.resolve_udp(options).await }).unwrap_err();
        assert_eq!(error.kind(), &CmErrorKind::Route(crate::RouteError::NoAnswer));
        assert_eq!((world.now - start).as_secs(), seconds);
    }
}

#[test]
fn dropped_on_the_way() {
    let mut world = World::new();
    let (a, _b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = world.b.listen_udp(addr(B, PORT), ListenOptions::default()).unwrap();
    for step in 0..3 {
        let mut asked = Box::pin(resolve(&a, ResolveOptions::new(addr(B, PORT))));
        for _ in 0..step {
            assert!(poll_once(asked.as_mut()).is_pending());
            world.drain();
        }
        drop(asked);
        world.drain();
    }
    drop(listener);
    world.run_out();
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
}
