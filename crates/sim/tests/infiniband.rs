//! Whole devices on a simulated InfiniBand subnet with our own subnet manager: connections by IP address, datagrams by LID,
//! and what becomes of them when a cable is pulled.

mod infiniband_lab;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_fabric::ib::{LinkId, NodeId, PortId};
use everywire_sim::{HostConfig, HostId, World};
use everywire_verbs::{
    AhAttr, AsyncEvent, CmErrorKind, ConnectOptions, Connection, Lid, NodeType, Path, PathLink, PortState,
    QKey, QpType, RecvWr, Remote, RouteError, SendOp, SendWr, WcStatus, Wire,
};
use everywire_wire::mad::{class, method};
use infiniband_lab::{LEN, LIMIT, QKEY, Side, connect_by, datagram_side, finish, ip, side};

/// Hosts 10.0.0.1 and on, their ports active.
fn world(hosts: u8) -> (World, Vec<HostId>) {
    let world = World::new(11);
    let hosts = (1..=hosts).map(|n| world.add_host(HostConfig::infiniband(ip(n)))).collect();
    assert!(world.ib_up(LIMIT));
    (world, hosts)
}

/// Connects the first host to the second.
fn connect(world: &World, hosts: &[HostId], ty: QpType) -> ([Side; 2], [Connection; 2]) {
    let second = SocketAddr::new(ip(2), 4420);
    connect_by(world, hosts, ty, [second; 2], None, move |request| {
        assert_eq!((request.peer().ip(), request.local()), (ip(1), second));
    })
}

fn write_and_read_back(world: &World, [a, b]: &[Side; 2], seed: u8) {
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 3) as u8 ^ seed).collect();
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.mr.write_at(0, &bytes).unwrap();
    finish(world, a, SendWr::new(1, SendOp::Write { remote }).with_sges([a.mr.sge(..)]));
    a.mr.write_at(0, &vec![0; LEN]).unwrap();
    finish(world, a, SendWr::new(2, SendOp::Read { remote }).with_sges([a.mr.sge(..)]));
    assert_eq!((a.mr.read_vec(0, LEN).unwrap(), b.mr.read_vec(0, LEN).unwrap()), (bytes.clone(), bytes));
}

#[test]
fn connections_are_made_by_address_and_run_by_lid() {
    let (world, hosts) = world(2);
    let (sides, connections) = connect(&world, &hosts, QpType::Rc);
    let path = sides[0].qp.query().path.unwrap();
    let lids = [0, 1].map(|n| world.device(hosts[n]).port().lid);
    let PathLink::Lrh(route) = path.link else { panic!("{path:?}") };
    assert_eq!((route.slid, route.dlid, route.grh), (lids[0], lids[1], false));
    assert_eq!((path.src, path.dst), ([0, 1].map(|n| world.device(hosts[n]).gids()[0].ip)).into());
    write_and_read_back(&world, &sides, 5);
    let remote = Remote { addr: sides[1].mr.addr(), rkey: sides[1].mr.rkey() };
    sides[1].mr.write_at(0, &7u64.to_ne_bytes()).unwrap();
    let add = SendOp::FetchAdd { remote, add: 5 };
    finish(&world, &sides[0], SendWr::new(3, add).with_sges([sides[0].mr.sge(..8)]));
    assert_eq!(sides[1].mr.read_vec(0, 8).unwrap(), 12u64.to_ne_bytes());
    let [active, passive] = connections;
    world.block_on(LIMIT, async move { active.disconnect().await }).unwrap();
    world.block_on(LIMIT, async move { passive.closed().await }).unwrap();
    assert_eq!(world.with_subnet(|subnet| subnet.check_credits()), Some(Ok(())));
}

#[test]
fn a_device_says_what_it_is() {
    let (world, hosts) = world(1);
    let (device, port) = (world.device(hosts[0]), world.device(hosts[0]).port());
    let attributes = device.attributes();
    assert_eq!((attributes.wire, attributes.node_type), (Wire::InfiniBand, NodeType::Ca));
    assert!(port.state == PortState::Active && port.lid != Lid(0) && port.sm_lid != Lid(0));
    assert!(device.gids()[0].gid().is_link_local());
    let events: Vec<AsyncEvent> = std::iter::from_fn(|| device.async_events().try_next()).collect();
    assert!(events.contains(&AsyncEvent::PortActive), "{events:?}");
}

/// IBTA §11.4.2.1: a datagram's completion tells LIDs and service level, and whether there was a GRH.
#[test]
fn datagrams_tell_where_they_came_from() {
    let (world, hosts) = world(2);
    let [a, b] = [0, 1].map(|n| datagram_side(&world, hosts[n]));
    let pd = a.pd.clone();
    let ah = world.block_on(LIMIT, async move { pd.create_ah(AhAttr::new(ip(2))).await }).unwrap().unwrap();
    let plain = *ah.path();
    let PathLink::Lrh(mut route) = plain.link else { panic!("{plain:?}") };
    (route.sl, route.grh) = (3, true);
    let global = Path { traffic_class: 7, ..plain }.over(PathLink::Lrh(route));
    for (path, grh, sl) in [(plain, false, 0), (global, true, 3)] {
        b.qp.post_recv(RecvWr::new(9, [b.mr.sge(..100)])).unwrap();
        let dest = everywire_verbs::UdDest { path, qpn: b.qp.qpn(), qkey: QKEY };
        let wr = SendWr::new(8, SendOp::Send).with_inline(*b"hello");
        finish(&world, &a, SendWr { ud: Some(dest), ..wr });
        let mut done = Vec::new();
        assert!(world.run_until(LIMIT, || b.cq.poll(&mut done, 1).unwrap() > 0));
        let wc = done[0];
        assert_eq!((wc.status, wc.grh, wc.sl, wc.byte_len), (WcStatus::Success, grh, sl, 45));
        assert_eq!(
            (wc.slid, wc.dlid_path_bits, wc.src_qp),
            (world.device(hosts[0]).port().lid, 0, a.qp.qpn())
        );
        assert_eq!(b.mr.read_vec(40, 5).unwrap(), b"hello");
    }
}

#[test]
fn nobody_and_a_port_that_is_down_are_told_apart() {
    let (world, hosts) = world(1);
    let try_to = |dst: IpAddr| {
        let side = side(&world, hosts[0], QpType::Rc);
        let options = ConnectOptions::new(SocketAddr::new(dst, 1), &side.qp);
        let kind = world.block_on(LIMIT, world.device(hosts[0]).connect(options)).unwrap().unwrap_err();
        kind.kind().clone()
    };
    assert!(matches!(try_to(ip(77)), CmErrorKind::Route(RouteError::NoRoute)));
    // A GID that no port has: the administrator says that there is no record (IBTA §15.2.3.1), or that the GID is invalid.
    let nobody = "fe80::77".parse().unwrap();
    let no_path = try_to(nobody);
    assert!(matches!(no_path, CmErrorKind::Route(RouteError::NoPath { status: 0x0300 | 0x0500, .. })));
    assert!(
        no_path.to_string().starts_with("no path in this subnet to the port with GID fe80::77: "),
        "{no_path}"
    );
    world.partition(hosts[0], true);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.device(hosts[0]).port().state, PortState::Down);
    let CmErrorKind::Route(RouteError::NoLink(port)) = try_to(ip(77)) else { panic!("it has a link") };
    assert_eq!(port, world.device(hosts[0]).name());
    world.partition(hosts[0], false);
    assert!(world.ib_up(LIMIT));
}

/// One of the two cables between the switches is pulled: the manager routes round it, and connections go on.
#[test]
fn a_pulled_cable_is_routed_round() {
    let (world, hosts) = world(2);
    let (sides, _connections) = connect(&world, &hosts, QpType::Rc);
    write_and_read_back(&world, &sides, 1);
    for (seed, trunk) in [(2, 0), (3, 1)] {
        let now = world.now();
        world.with_subnet(|subnet| subnet.link_down(now, LinkId(trunk)).unwrap());
        write_and_read_back(&world, &sides, seed);
        let now = world.now();
        world.with_subnet(|subnet| subnet.link_up(now, LinkId(trunk)).unwrap());
        world.run_for(Duration::from_secs(5));
    }
}

/// IBTA §10.2.5, §14.2.5.6: what a queue pair drops for its Q_Key is counted in the port's PortInfo; QP1 of the connection
/// manager is one.
#[test]
fn a_wrong_q_key_is_counted_at_the_port() {
    let (world, hosts) = world(2);
    let [a, b] = [0, 1].map(|n| datagram_side(&world, hosts[n]));
    let pd = a.pd.clone();
    let ah = world.block_on(LIMIT, async move { pd.create_ah(AhAttr::new(ip(2))).await }).unwrap().unwrap();
    for _ in 0..3 {
        let wr = SendWr::new(8, SendOp::Send).with_inline(*b"hello");
        finish(&world, &a, SendWr { ud: Some(ah.dest(b.qp.qpn(), QKey(0x4321))), ..wr });
    }
    world.run_for(Duration::from_millis(10));
    let lids = [0, 1].map(|n| world.device(hosts[n]).port().lid);
    let ports = world.with_subnet(|subnet| {
        let nodes = (0..8).map(|node| PortId { node: NodeId(node), port: 1 });
        let ports: Vec<_> = nodes.filter_map(|port| Some((port, subnet.port_values(port)?.lid))).collect();
        lids.map(|lid| ports.iter().find(|(_, of)| *of == lid).unwrap().0)
    });
    let ports = ports.unwrap();
    let counted = || {
        world.with_subnet(|subnet| {
            let info = subnet.inspect(ports[1], everywire_wire::smp::attribute::PORT_INFO, 1).unwrap();
            everywire_wire::smp::PortInfo::parse(&info).unwrap().q_key_violations
        })
    };
    assert_eq!(counted(), Some(3));
    let mut mad = [0; everywire_wire::MAD_LEN];
    (mad[0], mad[1], mad[2], mad[3]) = (1, class::COM_MGT, 2, method::SEND);
    let forged = MadRoute { qkey: QKey(0x4321), ..MadRoute::services(lids[0], lids[1], 0) };
    let now = world.now();
    world.with_subnet(|subnet| subnet.send(now, ports[0], forged.packet(&mad)).unwrap());
    world.run_for(Duration::from_millis(10));
    assert_eq!(counted(), Some(4));
}
