//! Objects and their limits, failure without leftovers (RX-15), registration sizes (RX-18), routes, events, progress.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::test_support::*;
use crate::*;

fn small() -> Device {
    let limits = DeviceLimits {
        max_qp: 2,
        max_cq: 3,
        max_mr: 2,
        max_mw: 1,
        max_pd: 2,
        max_srq: 1,
        max_ah: 1,
        max_mr_size: 1 << 20,
        max_cqe: 100,
        max_qp_wr: 50,
        max_sge: 3,
        max_inline: 64,
        max_srq_wr: 10,
        max_fast_reg_pages: 8,
        max_qp_rd_atom: 4,
        ..DeviceLimits::default()
    };
    Device::new(DeviceConfig { limits, ..DeviceConfig::roce_v2([10, 0, 0, 1].into()) })
}

fn limit_error<T: std::fmt::Debug>(result: Result<T, VerbsError>, kind: ErrorKind, name: &str, limit: u64) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.what().contains(name) && error.what().contains(&limit.to_string()), "{error}");
    assert!(error.to_string().starts_with("rocev2:10.0.0.1"), "says who: {error}");
    assert!(error.errno() > 0);
}

#[test]
fn every_limit_reported_is_enforced_and_reachable() {
    let device = small();
    let limits = device.attributes().limits;
    assert_eq!(&limits, device.limits());
    let full = ErrorKind::OutOfResources;
    let pds: Vec<Pd> = (0..2).map(|_| device.alloc_pd().unwrap()).collect();
    limit_error(device.alloc_pd(), full, "max_pd", 2);
    let pd = &pds[0];
    let cqs: Vec<Cq> = (0..3).map(|_| device.create_cq(100).unwrap()).collect();
    limit_error(device.create_cq(1), full, "max_cq", 3);
    let caps =
        QpCaps { max_send_wr: 50, max_recv_wr: 50, max_send_sge: 3, max_recv_sge: 3, max_inline_data: 64 };
    let init = QpInit { caps, ..QpInit::new(QpType::Rc, &cqs[0]) };
    let _qps: Vec<Qp> = (0..2).map(|_| pd.create_qp(&init).unwrap()).collect();
    limit_error(pd.create_qp(&init), full, "max_qp", 2);
    let _mrs: Vec<MemoryRegion> = (0..2).map(|_| pd.register(1 << 20, Access::empty()).unwrap()).collect();
    limit_error(pd.register(1, Access::empty()), full, "max_mr", 2);
    limit_error(pd.alloc_fast_reg_mr(8), full, "max_mr", 2);
    let _mw = pd.alloc_mw(WindowType::Type1).unwrap();
    limit_error(pd.alloc_mw(WindowType::Type2), full, "max_mw", 1);
    let _srq = pd.create_srq(SrqInit { max_wr: 10, max_sge: 3 }).unwrap();
    limit_error(pd.create_srq(SrqInit { max_wr: 10, max_sge: 3 }), full, "max_srq", 1);
    let expected = Usage { pds: 2, cqs: 3, qps: 2, srqs: 1, mrs: 2, mws: 1, ahs: 0 };
    assert_eq!(device.usage(), expected);
}

#[test]
fn sizes_beyond_a_limit_are_refused_with_its_name() {
    let device = small();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1).unwrap());
    let bad = ErrorKind::InvalidArgument;
    limit_error(device.create_cq(101), bad, "max_cqe", 100);
    assert!(device.create_cq(0).is_err());
    limit_error(pd.register((1 << 20) + 1, Access::empty()), bad, "max_mr_size", 1 << 20);
    limit_error(pd.create_srq(SrqInit { max_wr: 11, max_sge: 1 }), bad, "max_srq_wr", 10);
    limit_error(pd.create_srq(SrqInit { max_wr: 1, max_sge: 4 }), bad, "max_sge", 3);
    limit_error(pd.alloc_fast_reg_mr(9), bad, "max_fast_reg_pages", 8);
    let with = |change: fn(&mut QpCaps)| {
        let mut init = QpInit::new(QpType::Rc, &cq);
        init.caps = QpCaps {
            max_send_wr: 50,
            max_recv_wr: 50,
            max_send_sge: 3,
            max_recv_sge: 3,
            max_inline_data: 64,
        };
        change(&mut init.caps);
        pd.create_qp(&init)
    };
    assert!(with(|_| {}).is_ok(), "exactly at every limit");
    limit_error(with(|caps| caps.max_send_wr = 51), bad, "max_qp_wr", 50);
    limit_error(with(|caps| caps.max_recv_wr = 51), bad, "max_qp_wr", 50);
    limit_error(with(|caps| caps.max_send_sge = 4), bad, "max_sge", 3);
    limit_error(with(|caps| caps.max_inline_data = 65), bad, "max_inline", 64);
    let qp = with(|_| {}).unwrap();
    let attr = QpAttr { max_rd_atomic: Some(5), ..QpAttr::default() };
    limit_error(qp.modify(&attr), bad, "max_rd_atomic", 4);
}

#[test]
fn a_refused_creation_leaves_nothing_behind() {
    // RX-15: fail at every step that can fail; the device is as before, and the next creation works.
    let device = small();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1).unwrap());
    let other = Device::new(DeviceConfig::roce_v2([10, 0, 0, 2].into()));
    let (foreign_cq, foreign_pd) = (other.create_cq(1).unwrap(), other.alloc_pd().unwrap());
    let foreign_srq = foreign_pd.create_srq(SrqInit::default()).unwrap();
    let before = device.usage();
    let other_pd = device.alloc_pd().unwrap();
    let other_srq = other_pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let before = Usage { pds: before.pds + 1, srqs: 1, ..before };
    let init = QpInit::new(QpType::Rc, &cq);
    let too_deep = QpCaps { max_send_wr: 1000, ..QpCaps::default() };
    let fitting =
        QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let bad = [
        QpInit { send_cq: &foreign_cq, caps: fitting, ..init.clone() },
        QpInit { recv_cq: &foreign_cq, caps: fitting, ..init.clone() },
        QpInit { srq: Some(&foreign_srq), caps: fitting, ..init.clone() },
        QpInit { srq: Some(&other_srq), caps: fitting, ..init.clone() },
        QpInit { caps: too_deep, ..init.clone() },
    ];
    for init in &bad {
        pd.create_qp(init).unwrap_err();
        assert_eq!(device.usage(), before);
    }
    let good = QpInit { caps: fitting, ..init };
    let qps = [pd.create_qp(&good).unwrap(), pd.create_qp(&good).unwrap()];
    pd.create_qp(&good).unwrap_err();
    drop(qps);
    assert_eq!(device.usage(), before);
    pd.create_qp(&good).unwrap();
    let access = Access::REMOTE_WRITE;
    let error = pd.register(16, access).unwrap_err();
    assert!(error.what().contains("LOCAL_WRITE"), "{error}");
    assert!(pd.register(16, Access::from_bits_retain(0x8000)).is_err());
    assert_eq!(device.usage(), before);
}

#[test]
fn objects_live_as_long_as_what_uses_them() {
    let device = small();
    let pd = device.alloc_pd().unwrap();
    let (cq, srq) = (device.create_cq(4).unwrap(), pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap());
    let caps =
        QpCaps { max_send_wr: 4, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
    let qp = pd.create_qp(&QpInit { srq: Some(&srq), caps, ..QpInit::new(QpType::Rc, &cq) }).unwrap();
    let mr = pd.register(1, Access::empty()).unwrap();
    drop((pd, cq, srq));
    assert_eq!(device.usage(), Usage { pds: 1, cqs: 1, srqs: 1, qps: 1, mrs: 1, ..Usage::default() });
    drop(qp);
    assert_eq!(device.usage(), Usage { pds: 1, mrs: 1, ..Usage::default() });
    drop(mr);
    assert_eq!(device.usage(), Usage::default());
}

#[test]
fn registrations_of_every_size_work() {
    // RX-18, the part a program owns: 1 byte to 64 GiB where the system gives it, else an error that says so.
    let device = Device::new(DeviceConfig::roce_v2([10, 0, 0, 1].into()));
    let pd = device.alloc_pd().unwrap();
    for len in [0, 1, 4095, 4096, 200_016, 1 << 30] {
        let mr = pd.register(len, all_access()).unwrap();
        assert_eq!((mr.len(), mr.sge(..).length as usize), (len, len));
        assert_eq!(mr.addr() % 4096, 0);
        if len > 0 {
            mr.write_at(len - 1, b"x").unwrap();
            assert_eq!(mr.read_vec(len - 1, 1).unwrap(), b"x");
        }
        let error = mr.write_at(len, b"x").unwrap_err();
        assert!(error.to_string().contains("MR 0x"), "{error}");
    }
    match pd.register(64 << 30, Access::empty()) {
        Ok(mr) => assert_eq!(mr.len(), 64 << 30),
        Err(error) => {
            assert_eq!((error.kind(), error.errno()), (ErrorKind::OutOfResources, 12));
            assert!(error.what().contains("68719476736"), "{error}");
        }
    }
    let vec = pd.register_vec(b"hello".to_vec(), Access::empty()).unwrap();
    assert_eq!(vec.read_vec(1, 3).unwrap(), b"ell");
    assert_eq!(vec.sge(1..3), Sge { addr: vec.addr() + 1, length: 2, lkey: vec.lkey() });
    assert_eq!(vec.sge(..=0).length, 1);
    assert!(pd.register_vec(Vec::new(), Access::empty()).unwrap().is_empty());
    drop(vec);
    assert_eq!(device.usage().mrs, 0);
}

#[test]
fn deregistering_is_refused_while_something_depends_on_it() {
    let device = small();
    let pd = device.alloc_pd().unwrap();
    let mr = pd.register(64, all_access()).unwrap();
    let clone = mr.clone();
    let (mr, error) = mr.deregister().unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Busy, 16));
    drop(clone);
    mr.deregister().unwrap();
    assert_eq!(device.usage().mrs, 0);
}

#[test]
fn queue_pair_numbers_are_spread_and_rest_before_reuse() {
    let limits = DeviceLimits { max_qp: 300, ..DeviceLimits::default() };
    let config = DeviceConfig { limits, seed: 5, ..DeviceConfig::roce_v2([10, 0, 0, 1].into()) };
    let device = Device::new(config.clone());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1).unwrap());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20_000 {
        let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
        assert!(qp.qpn().get() > 1 && qp.qpn() != Qpn::MULTICAST);
        assert!(seen.insert(qp.qpn()), "{} came back early", qp.qpn());
    }
    let all: Vec<Qp> = (0..300).map(|_| pd.create_qp(&QpInit::new(QpType::Ud, &cq)).unwrap()).collect();
    assert!(pd.create_qp(&QpInit::new(QpType::Ud, &cq)).is_err());
    drop(all);

    // Same seed, same numbers; another seed, others; a slot puts its byte in front.
    let first = |config: DeviceConfig| {
        let device = Device::new(config);
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1).unwrap());
        pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap().qpn()
    };
    assert_eq!(first(config.clone()), first(config.clone()));
    assert_ne!(first(config.clone()), first(DeviceConfig { seed: 6, ..config.clone() }));
    for slot in [0, 7, 255] {
        let qpn = first(DeviceConfig { id_slot: Some(slot), ..config.clone() });
        assert_eq!(qpn.get() >> 16, u32::from(slot));
    }
}

#[test]
fn attributes_and_port_tell_what_was_configured() {
    let mut net = Net::pair();
    let device = net.devices[0].clone();
    let attr = device.attributes();
    assert_eq!(
        (attr.name.as_str(), attr.atomic_cap, attr.phys_port_cnt),
        ("rocev2:10.0.0.1", AtomicCap::Glob, 1)
    );
    assert_ne!(attr.node_guid, Guid(0));
    let port = device.port();
    assert_eq!((port.state, port.active_mtu, port.gid_tbl_len), (PortState::Active, Mtu::M4096, 1));
    assert_eq!(device.gids()[0].gid().to_string(), "::ffff:10.0.0.1");

    // RX-26: a port that goes down raises PORT_ERR, and counts.
    let events = device.async_events();
    device.drive().port_state(net.now, PortState::Down);
    device.drive().port_state(net.now, PortState::Down);
    assert_eq!(device.port().state, PortState::Down);
    assert_eq!(net.block_on(events.next()), AsyncEvent::PortError);
    device.drive().port_state(net.now, PortState::Active);
    assert_eq!(events.try_next(), Some(AsyncEvent::PortActive));
    assert_eq!(events.try_next(), None);
    assert_eq!(device.counters().by_name("link_downed"), Some(1));
    device.drive().dropped(5);
    assert_eq!(device.counters().by_name("rx_socket_overflow"), Some(5));
}

#[test]
fn limits_beyond_the_implementation_are_brought_down() {
    let limits = DeviceLimits { max_qp: u32::MAX, max_cqe: u32::MAX, max_sge: 99, ..DeviceLimits::default() };
    let device = Device::new(DeviceConfig { limits, ..DeviceConfig::default() });
    let limits = device.attributes().limits;
    assert_eq!((limits.max_qp, limits.max_cqe), (MAX_QPS, MAX_CQE));
    assert!(limits.max_sge < 99);
}

#[test]
fn the_driver_is_kicked_once_until_it_comes() {
    let (net, a, _b) = connected(QpType::Rc);
    let device = &net.devices[0];
    drop(device.drive());
    let kicks = Arc::new(Kicks::default());
    assert!(device.install_progress(kicks.clone()));
    let count = || kicks.0.load(Ordering::SeqCst);
    assert_eq!(count(), 0, "nothing to do yet");
    let send = |n| a.qp.post_send(SendWr::new(n, SendOp::Send).with_sges([a.mr.sge(0..8)])).unwrap();
    send(1);
    send(2);
    assert_eq!(count(), 1, "the second found the kick pending");
    drop(device.drive());
    send(3);
    assert_eq!(count(), 2, "the driver came but gave it no turn");
    let mut transmit = Transmit::default();
    let mut drive = device.drive();
    while drive.poll_transmit(net.now, &mut transmit) {}
    drop(drive);
    send(4);
    assert_eq!(count(), 3);
    a.qp.post_recv(RecvWr::new(1, [])).unwrap();
    assert_eq!(count(), 3);
    assert!(!device.install_progress(Arc::new(Kicks::default())), "a device has one for its life");
    let late = Arc::new(Kicks::default());
    let (net, a, _b) = connected(QpType::Rc);
    a.qp.post_send(SendWr::new(1, SendOp::Send).with_sges([a.mr.sge(0..8)])).unwrap();
    assert!(net.devices[0].install_progress(late.clone()));
    assert_eq!(late.0.load(Ordering::SeqCst), 1, "work that waits kicks a new driver at once");
}

#[test]
#[should_panic(expected = "ran backwards")]
#[cfg(debug_assertions)]
fn time_never_runs_backwards() {
    let net = Net::pair();
    let later = net.now + std::time::Duration::from_secs(1);
    net.devices[0].drive().handle_timeout(later);
    net.devices[0].drive().handle_timeout(net.now);
}

#[test]
fn address_handles_ask_for_their_route() {
    // RX-11: resolved, or refused; never half an address.
    let mut net = Net::pair();
    let device = net.devices[0].clone();
    let pd = device.alloc_pd().unwrap();
    let dst: IpAddr = [10, 0, 0, 2].into();
    let ah = net.block_on(pd.create_ah(AhAttr { traffic_class: 0x28, ..AhAttr::new(dst) })).unwrap();
    let path = *ah.path();
    assert_eq!((path.src, path.dst), (device.gids()[0].ip, dst));
    assert_eq!((path.hop_limit, path.traffic_class, path.src_port), (64, 0x28, DEFAULT_SOURCE_PORT));
    assert_eq!(ah.mtu(), Mtu::M4096);
    assert_eq!(device.usage().ahs, 1);

    let mut failing = |attr: AhAttr, kind, text: &str| {
        let error = net.block_on(pd.create_ah(attr)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    failing(AhAttr::new([10, 9, 9, 9].into()), ErrorKind::Unreachable, "no route");
    failing(AhAttr::new("fe80::1".parse().unwrap()), ErrorKind::InvalidArgument, "interface");
    failing(AhAttr::new("2001:db8::1".parse().unwrap()), ErrorKind::InvalidArgument, "family");
    let source = AhAttr { src: Some([10, 0, 0, 77].into()), ..AhAttr::new(dst) };
    failing(source, ErrorKind::InvalidArgument, "not one of the device's");
    assert_eq!(device.usage().ahs, 1);
    drop(ah);
    assert_eq!(device.usage().ahs, 0);
}

#[test]
fn datagrams_without_a_flow_label_spread_over_the_source_ports() {
    // IBTA A17: the UDP source port tells flows apart, so one flow has one and many have many.
    let config = DeviceConfig::roce_v2("fd00::1".parse().unwrap());
    let device = Device::new(DeviceConfig { source_ports: (50_000..50_008).collect(), ..config });
    let pd = device.alloc_pd().unwrap();
    let path_to = |attr: AhAttr| {
        let route = Route { src: device.gids()[0].ip, scope_id: 0, mtu: 1500 };
        let way = device.lock().way(attr.dst, &route, None).unwrap();
        *pd.ah_through(&attr, &way).unwrap().path()
    };
    let mut ports = std::collections::BTreeSet::new();
    for n in 2..66 {
        let dst = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n]);
        let path = path_to(AhAttr::new(dst));
        assert_eq!(path_to(AhAttr::new(dst)), path, "the same way, the same port");
        assert!(path.flow_label != 0 && path.flow_label >> 20 == 0);
        ports.insert(path.src_port);
        let given = path_to(AhAttr { flow_label: 0x12345, ..AhAttr::new(dst) });
        assert_eq!(given.flow_label, 0x12345, "what is asked for stays");
    }
    assert!(ports.len() >= 6, "{ports:?}");
}

#[test]
fn a_withdrawn_route_request_leaves_nothing() {
    let net = Net::pair();
    let device = net.devices[0].clone();
    let pd = device.alloc_pd().unwrap();
    let waker = FlagWaker::new();
    let mut creating = Box::pin(pd.create_ah(AhAttr::new([10, 0, 0, 2].into())));
    assert!(creating.as_mut().poll(&mut Context::from_waker(&waker.waker())).is_pending());
    let command = device.drive().poll_command();
    let Some(Command::ResolveRoute { token, .. }) = command else { panic!("{command:?}") };
    let mut early = Box::pin(pd.create_ah(AhAttr::new([10, 0, 0, 2].into())));
    assert!(early.as_mut().poll(&mut Context::from_waker(&waker.waker())).is_pending());
    drop(early);
    assert_eq!(device.drive().poll_command(), None, "the driver is not asked for what nobody wants");
    drop(creating);
    assert_eq!(Arc::strong_count(&waker), 1);
    let route = Route { src: [10, 0, 0, 1].into(), scope_id: 0, mtu: 1500 };
    device.drive().resolved(net.now, token, Ok(route));
    assert_eq!(device.usage().ahs, 0);
}

#[test]
fn a_driver_that_never_answers_for_a_route_is_not_waited_for() {
    // As connecting does: five seconds from when the driver has the request.
    let net = Net::pair();
    let device = net.devices[0].clone();
    let pd = device.alloc_pd().unwrap();
    let waker = FlagWaker::new();
    let mut creating = Box::pin(pd.create_ah(AhAttr::new([10, 0, 0, 2].into())));
    assert!(creating.as_mut().poll(&mut Context::from_waker(&waker.waker())).is_pending());
    let mut drive = device.drive();
    drive.handle_timeout(net.now);
    let command = drive.poll_command();
    let Some(Command::ResolveRoute { token, .. }) = command else { panic!("{command:?}") };
    let due = drive.poll_timeout().unwrap();
    assert_eq!(due - net.now, std::time::Duration::from_secs(5));
    drive.handle_timeout(due);
    assert_eq!(drive.poll_timeout(), None);
    drop(drive);
    let Poll::Ready(Err(error)) = creating.as_mut().poll(&mut Context::from_waker(&waker.waker())) else {
        panic!("it waits for ever")
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("the driver did not answer"), "{error}");
    // An answer that comes in time disarms the clock; a late one finds nobody.
    device.drive().resolved(due, token, Err(RouteError::NoRoute));
    let mut creating = Box::pin(pd.create_ah(AhAttr::new([10, 0, 0, 2].into())));
    assert!(creating.as_mut().poll(&mut Context::from_waker(&waker.waker())).is_pending());
    let mut drive = device.drive();
    let Some(Command::ResolveRoute { token, .. }) = drive.poll_command() else { panic!() };
    drive.resolved(due, token, Ok(Route { src: [10, 0, 0, 1].into(), scope_id: 0, mtu: 1500 }));
    assert_eq!(drive.poll_timeout(), None);
    drop(drive);
    assert!(creating.as_mut().poll(&mut Context::from_waker(&waker.waker())).is_ready());
}

#[test]
fn a_group_that_cannot_be_joined_is_reported() {
    let net = Net::pair();
    let device = net.devices[0].clone();
    let side = Side::new(&device, QpType::Ud);
    let group: IpAddr = [239, 1, 2, 3].into();
    for _ in 0..2 {
        side.qp.attach_multicast(group).unwrap();
        let command = device.drive().poll_command();
        assert_eq!(
            command,
            Some(Command::JoinGroup { group, gid_type: GidType::RoceV2, scope_id: 0 }),
            "each attempt asks"
        );
        device.drive().join_failed(net.now, group);
        assert_eq!(device.async_events().try_next(), Some(AsyncEvent::GroupError(group)));
        side.qp.detach_multicast(group).unwrap_err();
        assert_eq!(device.drive().poll_command(), None, "there is nothing to leave");
    }
}

#[test]
fn a_path_that_is_too_narrow_is_counted() {
    let net = Net::pair();
    let device = &net.devices[0];
    device.drive().unreachable(net.now, [10, 0, 0, 2].into(), Unreachable::TooBig(600));
    let counters = device.counters();
    assert_eq!((counters.by_name("path_too_big"), counters.by_name("unreachable")), (Some(1), Some(0)));
}

#[test]
fn async_events_are_bounded_and_go_with_their_object() {
    let device = Device::new(DeviceConfig::roce_v2([10, 0, 0, 1].into()));
    for n in 0..MAX_EVENTS as u32 + 10 {
        let event = AsyncEvent::Qp { qpn: Qpn::new(n), event: QpEvent::Fatal };
        device.lock().core.raise(event);
    }
    assert_eq!(device.counters().device(DeviceCounter::EventsLost), 10);
    device.lock().core.events.forget(|event| matches!(event, AsyncEvent::Qp { qpn, .. } if qpn.get() < 4000));
    assert_eq!(
        device.async_events().try_next(),
        Some(AsyncEvent::Qp { qpn: Qpn::new(4000), event: QpEvent::Fatal })
    );
}
