//! Connections from the program's side: made, refused, lost, ended, in every order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use everywire_transport::cm::ib::{Cm, CmConfig, CommId};
use everywire_transport::ib::QpState;
use everywire_wire::cm::{CmMessage, RejReason};
use everywire_wire::{Mtu, Qpn};

use super::harness::*;
use crate::*;

const PORT: u16 = 4420;

fn listener(world: &World) -> Listener {
    world.b.listen(addr(B, PORT), ListenOptions::default()).unwrap()
}

/// Connects a to b; both ends.
fn connected(world: &mut World, listener: &Listener, a: &Kit, b: &Kit) -> (Connection, Connection) {
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    let (listener, qp) = (listener.clone(), b.qp());
    let accepting = async move {
        let request = listener.next_request().await.unwrap();
        request.accept(&qp, ConnParam::default()).await
    };
    let (connection, accepted) = world.join(connecting, accepting);
    (connection.unwrap(), accepted.unwrap())
}

#[test]
fn connect_and_disconnect() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    assert_eq!(listener.local_addr(), addr(B, PORT));
    let qp = a.qp();
    let param = ConnParam::with_private_data(*b"hello");
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &qp).param(param));
    assert_eq!(qp.state(), QpState::Init, "receives may be posted now");
    let request = world.run({
        let listener = listener.clone();
        async move { listener.next_request().await.unwrap() }
    });
    assert_eq!((request.local(), request.peer().ip()), (addr(B, PORT), A.parse().unwrap()));
    assert_eq!((request.private_data().len(), &request.private_data()[..5]), (56, &b"hello"[..]));
    assert_eq!((request.ty(), request.param().qp_num), (QpType::Rc, qp.qpn()));
    let theirs = b.qp();
    let accepting = request.accept(&theirs, ConnParam::with_private_data(*b"welcome"));
    assert_eq!(theirs.state(), QpState::Rtr, "before REP leaves");
    let (connection, accepted) = world.join(connecting, accepting);
    let (connection, accepted) = (connection.unwrap(), accepted.unwrap());
    assert_eq!((qp.state(), theirs.state()), (QpState::Rts, QpState::Rts));
    assert_eq!(connection.peer(), addr(B, PORT));
    assert_eq!((connection.local(), accepted.local()), (accepted.peer(), connection.peer()));
    assert_eq!((connection.private_data().len(), &connection.private_data()[..7]), (196, &b"welcome"[..]));
    assert_eq!(connection.param().qp_num, theirs.qpn());
    assert_eq!(world.log, ["REQ", "REP", "RTU"]);

    let (ours, peers) = world.join(connection.disconnect(), accepted.closed());
    assert_eq!((ours, peers), (DisconnectReason::Local, DisconnectReason::Peer));
    assert_eq!((qp.state(), theirs.state()), (QpState::Err, QpState::Err));
    assert_eq!(world.log[3..], ["DREQ", "DREP"]);
    // CM-01: the late call of either side is harmless.
    assert_eq!(world.run(accepted.disconnect()), DisconnectReason::Peer);
    assert_eq!(world.run(connection.disconnect()), DisconnectReason::Local);
    assert_eq!(world.log.len(), 5);
    // CM-03: time-wait ends once, for both.
    world.join(connection.rested(), accepted.rested());
}

/// What REQ carries: the path MTU from the route, the flow label from the ports, as Linux's rdma_cm.
#[test]
fn request_on_the_wire() {
    for (route_mtu, active, expected) in [
        (1500, Mtu::M4096, Mtu::M1024),
        (9000, Mtu::M4096, Mtu::M4096),
        (9000, Mtu::M2048, Mtu::M2048),
        (1280, Mtu::M4096, Mtu::M1024),
        (600, Mtu::M4096, Mtu::M512),
    ] {
        let mut world = World::with(DeviceConfig { active_mtu: active, ..config(A, 1) }, config(B, 2));
        world.route = Ok(route_mtu);
        let a = Kit::new(&world.a);
        let seen = std::rc::Rc::new(std::cell::RefCell::new(None));
        let out = seen.clone();
        world.lose = Box::new(move |_, bytes| {
            if let Some(CmMessage::Req(req)) = mad(bytes).map(|mad| mad.message) {
                *out.borrow_mut() = Some(req);
            }
            false
        });
        let options = ConnectOptions::new(addr(B, 7174), &a.qp()).src(addr(A, 53669));
        let error = world.run(world.a.connect(options)).unwrap_err();
        assert_eq!(error.reject_reason(), Some(RejReason::InvalidServiceId));
        let req = seen.borrow().unwrap();
        assert_eq!(Mtu::from_code(req.path_mtu), Some(expected));
        // captures/rping.pcap: ports 53669 and 7174 gave the flow label 0x97f01.
        assert_eq!((req.primary.flow_label, req.service_id), (0x97f01, 0x0106_1c06));
        assert_eq!((req.primary.hop_limit, req.primary.local_ack_timeout), (64, 19));
        // IBTA §9.7.7.2: only who keeps end-to-end credits may announce them.
        assert!(!req.end_to_end_flow_control);
        assert_eq!(req.private_data[..4], [0, 0x40, 0xd1, 0xa5]);
    }
}

#[test]
fn errors_name_addresses_step_and_reason() {
    let mut world = World::new();
    let a = Kit::new(&world.a);
    let options = |qp: &Qp| ConnectOptions::new(addr(B, PORT), qp).src(addr(A, 1234));
    let error = world.run(world.a.connect(options(&a.qp()))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "connecting 192.0.2.1:1234 to 192.0.2.2:4420: rejected by the peer: invalid service ID (8). Nobody listens \
         on this service ID (port)"
    );
    assert_eq!((error.step(), error.errno()), (CmStep::Connect, 111));

    world.route = Err(RouteError::NoRoute);
    let error = world.run(world.a.connect(options(&a.qp()))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "resolving the route 192.0.2.1:1234 to 192.0.2.2:4420: no route to the destination"
    );
    // CM-11: and it works again when the route does.
    world.route = Ok(1500);
    let error = world.run(world.a.connect(options(&a.qp()))).unwrap_err();
    assert_eq!(error.reject_reason(), Some(RejReason::InvalidServiceId));

    world.answers = false;
    let error = world.run(world.a.connect(options(&a.qp()))).unwrap_err();
    assert_eq!((error.step(), error.errno()), (CmStep::ResolveRoute, 110));
    world.answers = true;

    world.lose = Box::new(|_, _| true);
    let start = world.now;
    let error = world.run(world.a.connect(options(&a.qp()))).unwrap_err();
    assert_eq!(*error.kind(), CmErrorKind::TimedOut { tries: 16 });
    assert_eq!((world.now - start).as_secs(), 103);
    let start = world.now;
    let limited = options(&a.qp()).timeout(Duration::from_secs(3));
    let error = world.run(world.a.connect(limited)).unwrap_err();
    assert_eq!(*error.kind(), CmErrorKind::Silence { millis: 3000, tries: 1, every_millis: 6442 });
    assert_eq!((world.now - start).as_secs(), 3);

    let too_long = ConnParam::with_private_data([0; 57]);
    let error = world.run(world.a.connect(options(&a.qp()).param(too_long))).unwrap_err();
    assert!(
        error.to_string().ends_with("57 bytes of private data, but a connection request carries at most 56")
    );
}

/// CM-12, CM-18.
#[test]
fn source_ports() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    // One address with port 0 for many.
    let mut held = Vec::new();
    for _ in 0..50 {
        let options = ConnectOptions::new(addr(B, PORT), &a.qp()).src(addr(A, 0));
        let connecting = world.a.connect(options);
        let (listener, qp) = (listener.clone(), b.qp());
        let accepting = async move {
            let request = listener.next_request().await.unwrap();
            request.accept(&qp, ConnParam::default()).await
        };
        let (one, two) = world.join(connecting, accepting);
        held.push((one.unwrap(), two.unwrap()));
    }
    let ports: std::collections::HashSet<_> = held.iter().map(|(c, _)| c.local().port()).collect();
    assert_eq!(ports.len(), 50);
    // A fixed one for one only, and free again afterwards.
    let fixed = |qp: &Qp| ConnectOptions::new(addr(B, PORT), qp).src(addr(A, 999));
    let (first, second) = (world.a.connect(fixed(&a.qp())), world.a.connect(fixed(&a.qp())));
    let error = world.run(second).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (&CmErrorKind::AddressInUse, 98));
    drop(first);
    drop(world.a.connect(fixed(&a.qp())));
    // Listening twice, on somebody else's address, without an interface.
    let again = world.b.listen(addr("0.0.0.0", PORT), ListenOptions::default()).unwrap_err();
    assert_eq!(again.to_string(), "listening on 0.0.0.0:4420: the address and port are in use");
    let error = world.b.listen(addr(A, 1), ListenOptions::default()).unwrap_err();
    assert_eq!((error.errno(), error.step()), (99, CmStep::Listen));
    drop((listener, held));
    world.b.listen(addr("0.0.0.0", PORT), ListenOptions::default()).unwrap();
    let drawn = world.b.listen(addr(B, 0), ListenOptions::default()).unwrap();
    assert!(drawn.local_addr().port() >= 32_768);
}

/// CM-13: link-local addresses, with their interface, there and back.
#[test]
fn link_local_addresses() {
    let mut world = World::with(link_local("fe80::a", 2, "eth0", 1), link_local("fe80::b", 3, "veth1", 2));
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let scoped =
        |ip: &str, port, scope| std::net::SocketAddrV6::new(ip.parse().unwrap(), port, 0, scope).into();
    let error = world.b.listen(addr("fe80::b", 7), ListenOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "listening on [fe80::b]:7: a link-local address needs an interface (address%interface)"
    );
    assert!(world.b.listen(scoped("fe80::b", 7, 9), ListenOptions::default()).is_err());
    let listener = world.b.listen(scoped("fe80::b", 7, 3), ListenOptions::default()).unwrap();
    let error = world.run(world.a.connect(ConnectOptions::new(addr("fe80::b", 7), &a.qp()))).unwrap_err();
    assert_eq!(*error.kind(), CmErrorKind::Route(RouteError::NoScope));
    let connecting = world.a.connect(ConnectOptions::new(scoped("fe80::b", 7, 2), &a.qp()));
    let qp = b.qp();
    let accepting = async move {
        let request = listener.next_request().await.unwrap();
        request.accept(&qp, ConnParam::default()).await
    };
    // The wire gives each side the other's address with its own interface index.
    world.scopes = [(world.a.clone(), 2), (world.b.clone(), 3)].into();
    let (connection, accepted) = world.join(connecting, accepting);
    let (connection, accepted) = (connection.unwrap(), accepted.unwrap());
    assert_eq!(connection.peer(), scoped("fe80::b", 7, 2));
    assert_eq!(accepted.peer(), scoped("fe80::a", connection.local().port(), 3));
    let text = connection.to_string();
    assert!(text.starts_with("[fe80::a%eth0]:") && text.ends_with(" to [fe80::b%eth0]:7"), "{text}");
    drop(connection);
    assert_eq!(world.run(accepted.closed()), DisconnectReason::Peer);
}

#[test]
fn rejections() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let mut reject = |answer: fn(ConnectRequest)| {
        let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
        let listener = listener.clone();
        let (result, ()) =
            world.join(connecting, async move { answer(listener.next_request().await.unwrap()) });
        match result.unwrap_err().kind().clone() {
            CmErrorKind::Rejected { reason, private_data, .. } => (reason, private_data),
            other => panic!("{other:?}"),
        }
    };
    let (reason, data) = reject(|request| request.reject(b"full").unwrap());
    assert_eq!((reason, &data[..4], data.len()), (RejReason::ConsumerReject, &b"full"[..], 148));
    let (reason, _) = reject(|request| request.reject_with(RejReason::NoQp, &[]).unwrap());
    assert_eq!(reason, RejReason::NoQp);
    let (reason, _) = reject(drop);
    assert_eq!(reason, RejReason::ConsumerReject);
    let (reason, _) = reject(|request| assert!(request.reject(&[0; 149]).is_err()));
    assert_eq!(reason, RejReason::ConsumerReject);
    // A queue pair that cannot be connected: the program hears why, the peer is rejected.
    let ud = b.pd.create_qp(&QpInit::new(QpType::Ud, &b.cq)).unwrap();
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    let taken = listener.clone();
    let (result, accepted) = world.join(connecting, async move {
        taken.next_request().await.unwrap().accept(&ud, ConnParam::default()).await
    });
    assert!(accepted.unwrap_err().to_string().contains("cannot accept a request for RC"));
    assert_eq!(result.unwrap_err().reject_reason(), Some(RejReason::ConsumerReject));
    // The queue pair of a rejected attempt is in INIT still, with whatever it holds, and can be used again.
    let qp = a.qp();
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT + 1), &qp));
    assert!(world.run(connecting).is_err());
    assert_eq!(qp.state(), QpState::Init);
    let taken = listener.clone();
    let theirs = b.qp();
    let (result, _accepted) = world
        .join(world.a.connect(ConnectOptions::new(addr(B, PORT), &qp)), async move {
            taken.next_request().await.unwrap().accept(&theirs, ConnParam::default()).await
        });
    result.unwrap();
}

/// Every MAD of a connection's life lost, one or two at a time: the programs see nothing of it but the time.
#[test]
fn losses_at_every_position() {
    for first in 0..6 {
        for second in first..7 {
            let mut world = World::new();
            let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
            let listener = listener(&world);
            world.lose = Box::new(move |n, _| n == first || n == second);
            let (connection, accepted) = connected(&mut world, &listener, &a, &b);
            let (ours, peers) = world.join(connection.disconnect(), accepted.closed());
            assert_eq!((ours, peers), (DisconnectReason::Local, DisconnectReason::Peer), "{first} {second}");
            drop((connection, accepted));
            world.run_out();
            assert_eq!(world.a.cm_footprint(), 0, "{first} {second} {:?}", world.log);
        }
    }
}

/// CM-01: both at once.
#[test]
fn disconnect_at_once() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let (connection, accepted) = connected(&mut world, &listener, &a, &b);
    let reasons = world.join(connection.disconnect(), accepted.disconnect());
    assert_eq!(reasons, (DisconnectReason::Local, DisconnectReason::Local));
}

/// CM-02: the peer is unplugged.
#[test]
fn peer_gone() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let (connection, _accepted) = connected(&mut world, &listener, &a, &b);
    world.lose = Box::new(|_, _| true);
    let reason = world.run(connection.disconnect());
    assert_eq!((reason, reason.status()), (DisconnectReason::TimedOut, -110));
    assert_eq!(connection.qp().state(), QpState::Err);
}

/// CM-04: the client is killed between REP and RTU, and another process is there instead.
#[test]
fn client_killed_during_the_handshake() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    world.lose = Box::new(|_, bytes| matches!(mad(bytes).map(|m| m.message), Some(CmMessage::Rep(_))));
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    let request = world.run({
        let listener = listener.clone();
        async move { listener.next_request().await.unwrap() }
    });
    let theirs = b.qp();
    let accepting = request.accept(&theirs, ConnParam::default());
    world.drain();
    world.a = Device::new(config(A, 99));
    world.lose = Box::new(|_, _| false);
    let error = world.run(accepting).unwrap_err();
    assert_eq!(error.reject_reason(), Some(RejReason::InvalidCommId));
    assert_eq!((error.step(), theirs.state()), (CmStep::Accept, QpState::Err));
    drop(connecting);
}

/// A client that gives up before the program has taken its request: the program never sees it.
#[test]
fn withdrawn_requests() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    world.drain();
    drop(connecting);
    world.drain();
    assert!(listener.try_next().is_none());
    // Taken already: accepting it is an error that says so.
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    world.drain();
    let request = listener.try_next().unwrap();
    drop(connecting);
    world.drain();
    let qp = b.qp();
    let error = world.run(request.accept(&qp, ConnParam::default())).unwrap_err();
    assert_eq!((error.reject_reason(), qp.state()), (Some(RejReason::Timeout), QpState::Reset));
    drop(listener);
    world.run_out();
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
}

/// CM-10: every handle dropped at every stage; nothing is heard afterwards, nothing is left.
#[test]
fn dropped_handles() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    // Before the driver came, with the route under way, with REQ out.
    drop(world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp())));
    world.answers = false;
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    world.drain();
    drop(connecting);
    world.answers = true;
    // The listener with a request in its queue.
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    world.drain();
    drop(listener);
    let error = world.run(connecting).unwrap_err();
    assert_eq!(error.reject_reason(), Some(RejReason::ConsumerReject));
    // An acceptance that is not waited for.
    let listener = super::connect::listener(&world);
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
    world.drain();
    drop(listener.try_next().unwrap().accept(&b.qp(), ConnParam::default()));
    assert!(world.run(connecting).is_err());
    // A connection on either side.
    for passive in [false, true] {
        let (connection, accepted) = connected(&mut world, &listener, &a, &b);
        let (kept, dropped) = if passive { (connection, accepted) } else { (accepted, connection) };
        let qp = dropped.qp().clone();
        drop(dropped);
        assert_eq!(qp.state(), QpState::Err);
        assert_eq!(world.run(kept.closed()), DisconnectReason::Peer);
    }
    drop(listener);
    world.run_out();
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
    assert_eq!((world.a.usage().qps, world.b.usage().qps), (0, 0));
}

/// A restarted peer: the old connection ends as stale, the second attempt of the new one succeeds.
#[test]
fn restarted_peer() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let (_lost, accepted) = connected(&mut world, &listener, &a, &b);
    // The same seed gives the same queue pair number; a question elsewhere makes for another communication id.
    world.a = Device::new(config(A, 1));
    let a = Kit::new(&world.a);
    let qp = a.qp();
    assert_eq!(qp.qpn(), accepted.param().qp_num);
    let pd = a.pd.clone();
    world.run(async move { pd.resolve_udp(ResolveOptions::new(addr(B, 1))).await }).unwrap_err();
    let error = world.run(world.a.connect(ConnectOptions::new(addr(B, PORT), &qp))).unwrap_err();
    assert_eq!(error.reject_reason(), Some(RejReason::StaleConnection));
    assert_eq!(world.run(accepted.closed()), DisconnectReason::Stale);
    connected(&mut world, &listener, &a, &b);
}

/// A port unreachable ends an attempt at once, and never a connection (CM-05).
#[test]
fn unreachable() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let (connection, _accepted) = connected(&mut world, &listener, &a, &b);
    world.lose = Box::new(|_, _| true);
    for (why, kind, errno, words) in [
        (Unreachable::Port, CmErrorKind::PortUnreachable, 111, "is the program running?"),
        (Unreachable::Host, CmErrorKind::Unreachable, 113, "the peer cannot be reached"),
    ] {
        let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT + 1), &a.qp()));
        world.drain();
        world.a.drive().unreachable(world.now, B.parse().unwrap(), Unreachable::TooBig(1400));
        world.a.drive().unreachable(world.now, B.parse().unwrap(), why);
        let error = world.run(connecting).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (&kind, errno));
        assert!(error.is_nobody_there() && error.to_string().contains(words), "{error}");
    }
    assert_eq!(connection.closed_reason(), None);
}

/// The way would carry more than the peer takes, as between interfaces with MTUs of 9000 and 1500: it says what would do, and gets
/// that. Without a number the rejection stands.
#[test]
fn a_path_mtu_that_the_peer_does_not_take() {
    let smaller = DeviceConfig { active_mtu: Mtu::M1024, ..config(B, 2) };
    let mut world = World::with(DeviceConfig { active_mtu: Mtu::M4096, ..config(A, 1) }, smaller);
    world.route = Ok(9000);
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let asked = Rc::new(RefCell::new(Vec::new()));
    let seen = asked.clone();
    world.lose = Box::new(move |_, bytes| {
        if let Some(CmMessage::Req(req)) = mad(bytes).map(|mad| mad.message) {
            seen.borrow_mut().push(Mtu::from_code(req.path_mtu).unwrap().bytes());
        }
        false
    });
    let (connection, accepted) = connected(&mut world, &listener, &a, &b);
    assert_eq!(world.log, ["REQ", "REJ 26", "REQ", "REP", "RTU"]);
    assert_eq!(*asked.borrow(), [4096, 1024]);
    let (ours, peers) = world.join(connection.disconnect(), accepted.closed());
    assert_eq!((ours, peers), (DisconnectReason::Local, DisconnectReason::Peer));

    let rejected = |info: Vec<u8>, asked_mtu| {
        let (reason, private_data) = (RejReason::InvalidPathMtu, Vec::new());
        CmErrorKind::Rejected { reason, info, asked_mtu, private_data }.to_string()
    };
    for (info, asked, end) in [
        (
            vec![3],
            Some(Mtu::M4096),
            "cannot take packets of this MTU: 1024 bytes at most, asked for were 4096",
        ),
        (vec![0], Some(Mtu::M4096), "cannot take packets of this MTU: asked for were 4096"),
        (vec![0], None, "cannot take packets of this MTU"),
    ] {
        let text = rejected(info, asked);
        assert!(text.ends_with(end), "{text}");
    }
}

/// The communication id of the next REQ that `world`'s wire carries, as it comes by.
fn watch_req(world: &mut World) -> Rc<Cell<u32>> {
    let seen = Rc::new(Cell::new(0));
    let watch = seen.clone();
    world.lose = Box::new(move |_, bytes| {
        if let Some(CmMessage::Req(req)) = mad(bytes).map(|mad| mad.message) {
            watch.set(req.local_comm_id);
        }
        false
    });
    seen
}

/// CM-10: an attempt was rejected, and its communication id comes back; letting go of the old handle harms nobody.
#[test]
fn an_id_that_comes_back_on_the_active_side() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let id = watch_req(&mut world);
    let mut failed = Box::pin(world.a.connect(ConnectOptions::new(addr(B, PORT + 1), &a.qp())));
    assert!(poll_once(failed.as_mut()).is_pending());
    world.drain();
    let Poll::Ready(Err(error)) = poll_once(failed.as_mut()) else { panic!("nobody listens there") };
    assert_eq!(error.reject_reason(), Some(RejReason::InvalidServiceId));
    let old = id.get();
    world.a.lock().cm.engine.force_next_id(CommId(old));
    let (connection, accepted) = connected(&mut world, &listener, &a, &b);
    assert_eq!(id.get(), old, "the same id");
    drop(failed);
    world.drain();
    assert_eq!((connection.closed_reason(), accepted.closed_reason()), (None, None));
    assert_eq!(world.run(connection.disconnect()), DisconnectReason::Local);
}

/// CM-10, the other side: a request that its peer has withdrawn is answered after its id has come back.
#[test]
fn an_id_that_comes_back_on_the_passive_side() {
    for reject in [true, false] {
        let mut world = World::new();
        let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
        let listener = listener(&world);
        let withdrawn = world.a.connect(ConnectOptions::new(addr(B, PORT), &a.qp()));
        let request = world.run({
            let listener = listener.clone();
            async move { listener.next_request().await.unwrap() }
        });
        let old = world.b.lock().cm.records.get(request.key).unwrap().comm.unwrap();
        drop(withdrawn);
        world.drain();
        world.b.lock().cm.engine.force_next_id(old);
        let (connection, accepted) = connected(&mut world, &listener, &a, &b);
        assert!(world.b.lock().cm.records.of_comm(old).is_some(), "the same id");
        if reject {
            request.reject(b"too late").unwrap();
        } else {
            drop(request);
        }
        world.drain();
        assert_eq!((connection.closed_reason(), accepted.closed_reason()), (None, None));
    }
}

#[test]
fn queue_pairs_that_cannot_be_connected() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let mut refused = |qp: &Qp| {
        let error = world.run(world.a.connect(ConnectOptions::new(addr(B, PORT), qp))).unwrap_err();
        assert_eq!(error.errno(), 22);
        error.to_string()
    };
    assert!(refused(&b.qp()).contains("belongs to another device"));
    let ud = a.pd.create_qp(&QpInit::new(QpType::Ud, &a.cq)).unwrap();
    assert!(refused(&ud).contains("is a datagram queue pair"));
    let failed = a.qp();
    failed.to_error().unwrap();
    assert!(refused(&failed).contains("is neither in RESET nor in INIT"));
    let busy = a.qp();
    let connecting = world.a.connect(ConnectOptions::new(addr(B, PORT), &busy));
    let mut refused =
        |qp: &Qp| world.run(world.a.connect(ConnectOptions::new(addr(B, PORT), qp))).unwrap_err().to_string();
    assert!(refused(&busy).contains("is being connected already"));
    drop(connecting);
    world.drain();
    let (connection, accepted) = connected(&mut world, &listener, &a, &b);
    let qp = connection.qp().clone();
    world.join(connection.disconnect(), accepted.closed());
    qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    let error = world.run(world.a.connect(ConnectOptions::new(addr(B, PORT), &qp))).unwrap_err();
    assert!(error.to_string().contains("is in time-wait"), "{error}");
    world.run(connection.rested());
    let (taken, theirs) = (listener.clone(), b.qp());
    let (again, _accepted) = world
        .join(world.a.connect(ConnectOptions::new(addr(B, PORT), &qp)), async move {
            taken.next_request().await.unwrap().accept(&theirs, ConnParam::default()).await
        });
    again.unwrap();
}

/// Whoever takes a connected queue pair back to RESET has it there: the parting that follows does not move it to ERR.
#[test]
fn a_queue_pair_in_reset_stays_there() {
    let mut world = World::new();
    let listener = listener(&world);
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let (connection, accepted) = connected(&mut world, &listener, &a, &b);
    let qp = connection.qp().clone();
    qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    world.join(connection.disconnect(), accepted.closed());
    world.drain();
    assert_eq!(qp.state(), QpState::Reset);
}

/// A peer that is no rdma_cm: its private data carry no IP header.
#[test]
fn request_without_the_ip_header() {
    let mut world = World::new();
    let listener = listener(&world);
    let mut foreign = Cm::new(CmConfig::default(), 3);
    let path = everywire_transport::mad::MadPath {
        link: everywire_transport::ib::PathLink::Udp,
        local: A.parse().unwrap(),
        remote: B.parse().unwrap(),
        scope_id: 0,
    };
    let params = everywire_transport::cm::ib::ConnectParams {
        gids: None,
        path,
        service_id: 0x0106_0000 | u64::from(PORT),
        transport: everywire_transport::cm::ib::Transport::Rc,
        qpn: Qpn::new(9),
        pkey: PKey::DEFAULT,
        path_mtu: Mtu::M1024,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: None,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        private_data: vec![0x10, 0x40],
    };
    foreign.connect(world.now, &params).unwrap();
    let (_, req) = foreign.poll_transmit().unwrap();
    let back = everywire_transport::mad::MadPath {
        link: everywire_transport::ib::PathLink::Udp,
        local: path.remote,
        remote: path.local,
        scope_id: 0,
    };
    let now = world.now;
    world.b.lock().cm_handle_mad(now, back, &req);
    world.drain();
    assert_eq!(world.log, ["REJ 28"]);
    assert!(listener.try_next().is_none());
}

/// RX-12, CM-18: a thousand connections back to back, on two devices and on one with itself.
#[test]
fn a_thousand_back_to_back() {
    let mut world = World::new();
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let mut largest = 0;
    for round in 0..1000 {
        let (connection, accepted) = connected(&mut world, &listener, &a, &b);
        let (one, two) = if round % 2 == 0 {
            world.join(connection.disconnect(), accepted.closed())
        } else {
            world.join(connection.closed(), accepted.disconnect())
        };
        assert!(one != two);
        drop((connection, accepted));
        // About one a second, so that time-waits end under way.
        world.now += Duration::from_secs(1);
        for device in [&world.a, &world.b] {
            device.drive().handle_timeout(world.now);
        }
        world.drain();
        largest = largest.max(world.a.cm_footprint() + world.b.cm_footprint());
    }
    assert!(largest < 60, "{largest}");
    drop(listener);
    world.run_out();
    assert_eq!((world.a.cm_footprint(), world.b.cm_footprint()), (0, 0));
}

#[test]
fn a_device_connects_to_itself() {
    let mut world = World::with(config("127.0.0.1", 1), config(B, 2));
    let kit = Kit::new(&world.a);
    let listener = world.a.listen(addr("127.0.0.1", PORT), ListenOptions::default()).unwrap();
    for _ in 0..1000 {
        let connecting = world.a.connect(ConnectOptions::new(addr("127.0.0.1", PORT), &kit.qp()));
        let (taken, qp) = (listener.clone(), kit.qp());
        let (one, two) = world.join(connecting, async move {
            taken.next_request().await.unwrap().accept(&qp, ConnParam::default()).await
        });
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.local(), two.peer());
        let reasons = world.join(one.disconnect(), two.closed());
        assert_eq!(reasons, (DisconnectReason::Local, DisconnectReason::Peer));
    }
    drop(listener);
    world.run_out();
    assert_eq!(world.a.cm_footprint(), 0);
}

/// With the top byte of queue pair numbers fixed there are few of them: those in time-wait are still not given out.
#[test]
fn numbers_in_time_wait_are_not_given_out() {
    let slot = |ip, seed| {
        let limits = DeviceLimits { max_qp: 2, ..DeviceLimits::default() };
        DeviceConfig { id_slot: Some(7), limits, ..config(ip, seed) }
    };
    let mut world = World::with(slot(A, 1), slot(B, 2));
    let (a, b) = (Kit::new(&world.a), Kit::new(&world.b));
    let listener = listener(&world);
    let mut used = std::collections::HashSet::new();
    for _ in 0..500 {
        let (connection, accepted) = connected(&mut world, &listener, &a, &b);
        assert!(used.insert(connection.qp().qpn()), "a number came back while its time-wait lasts");
        assert_eq!(connection.qp().qpn().get() >> 16, 7);
        world.join(connection.disconnect(), accepted.closed());
    }
}
