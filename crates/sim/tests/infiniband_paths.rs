//! Several paths between two ports of a fat tree: LMC, path bits and service levels, from the manager to the wire.
//!
//! Read IBTA vol. 1 §4.1.3 (LMC), §7.6.5 (service levels) and §15.2.5.16 (path records). Hosts sit on two leaves in turn; the spines
//! are the only ways between them, so that their counters say which way packets went.

mod infiniband_lab;

use std::net::SocketAddr;

use everywire_fabric::ib::{NodeId, PortId};
use everywire_sim::{HostConfig, HostId, IbShape, World};
use everywire_verbs::{
    Access, AhAttr, CmErrorKind, ConnectOptions, Connection, Lid, LocalRoute, PathLink, Qp, QpAttr, QpState,
    QpType, RecvWr, Remote, RouteError, SendOp, SendWr,
};
use infiniband_lab::{LEN, LIMIT, QKEY, Side, arrived, connect_by, datagram_side, finish, ip, side};

/// The spines are made after the two leaves.
const SPINES: [NodeId; 2] = [NodeId(2), NodeId(3)];

/// 10.0.0.1 on one leaf, 10.0.0.2 on the other.
fn world(shape: IbShape, change: impl Fn(&mut HostConfig)) -> (World, Vec<HostId>) {
    let world = World::new(23);
    world.shape_infiniband(shape);
    let hosts = (1..=2).map(|n| {
        let mut config = HostConfig::infiniband(ip(n));
        change(&mut config);
        world.add_host(config)
    });
    let hosts = hosts.collect();
    assert!(world.ib_up(LIMIT));
    (world, hosts)
}

fn tree() -> IbShape {
    IbShape { spines: 2, lmc: 1, ..IbShape::default() }
}

/// Connects the first host to the second, by these path bits if any.
fn connect(world: &World, hosts: &[HostId], bits: Option<u8>, port: u16) -> ([Side; 2], [Connection; 2]) {
    let second = SocketAddr::new(ip(2), port);
    connect_by(world, hosts, QpType::Rc, [second; 2], bits, |_| {})
}

fn route(qp: &Qp) -> LocalRoute {
    let path = qp.query().path.unwrap();
    let PathLink::Lrh(route) = path.link else { panic!("{path:?}") };
    route
}

fn lids(world: &World, hosts: &[HostId]) -> [u16; 2] {
    [0, 1].map(|n| world.device(hosts[n]).port().lid.0)
}

/// Bytes that each spine has sent toward the second leaf.
fn through_spines(world: &World) -> [u64; 2] {
    let sent = |node| {
        move |subnet: &mut everywire_fabric::ib::Subnet| {
            subnet.counters(PortId { node, port: 2 }).unwrap().xmit_words
        }
    };
    SPINES.map(|node| world.with_subnet(sent(node)).unwrap())
}

/// Writes the region over and says which spine it went through: one only.
fn spine_of(world: &World, [a, b]: &[Side; 2]) -> usize {
    let before = through_spines(world);
    let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    finish(world, a, SendWr::new(1, SendOp::Write { remote }).with_sges([a.mr.sge(..)]));
    let after = through_spines(world);
    // Words of four bytes, as PortXmitData has them (IBTA §16.1.3.5).
    let grown = [0, 1].map(|n| (after[n] - before[n]) * 4);
    let spine = usize::from(grown[1] > grown[0]);
    assert!(grown[spine] > LEN as u64 && grown[1 - spine] == 0, "{grown:?}");
    spine
}

#[test]
fn each_path_has_its_lids_and_its_spine() {
    let (world, hosts) = world(tree(), |_| {});
    let [from, to] = lids(&world, &hosts);
    assert_eq!((from % 2, to % 2, world.device(hosts[0]).port().lmc), (0, 0, 1));
    let spines: Vec<usize> = [(None, 0), (Some(0), 0), (Some(1), 1)]
        .into_iter()
        .zip(4420..)
        .map(|((asked, bits), port)| {
            let (sides, _connections) = connect(&world, &hosts, asked, port);
            let (there, back) = (route(&sides[0].qp), route(&sides[1].qp));
            assert_eq!((there.slid, there.dlid), (Lid(from + bits), Lid(to + bits)));
            assert_eq!((back.slid, back.dlid), (there.dlid, there.slid));
            spine_of(&world, &sides)
        })
        .collect();
    assert_eq!(spines[0], spines[1]);
    assert_ne!(spines[1], spines[2], "the second LIDs lead by the other spine");
    assert_eq!(world.with_subnet(|subnet| subnet.check_credits()), Some(Ok(())));
}

/// `ib:FABRIC/HOST/PORT,path=1`: everything of the device that asks for nothing of its own.
#[test]
fn a_device_may_have_path_bits_of_its_own() {
    let (world, hosts) = world(tree(), |config| config.device.path_bits = 1);
    let [from, to] = lids(&world, &hosts);
    for (asked, bits) in [(None, 1), (Some(0), 0)] {
        let (sides, _connections) = connect(&world, &hosts, asked, 4420 + bits);
        let there = route(&sides[0].qp);
        assert_eq!((there.slid, there.dlid), (Lid(from + bits), Lid(to + bits)));
    }
}

/// IBTA §11.4.2.1: a datagram's completion tells the source LID and the destination's path bits, as they were on the wire.
#[test]
fn datagrams_carry_path_bits_and_service_level() {
    for (bits, sl) in [(0, 0), (1, 0), (1, 5)] {
        let (world, hosts) = world(IbShape { sl, ..tree() }, |_| {});
        let [a, b] = [0, 1].map(|n| datagram_side(&world, hosts[n]));
        let (pd, attr) = (a.pd.clone(), AhAttr { path_bits: Some(bits), ..AhAttr::new(ip(2)) });
        let ah = world.block_on(LIMIT, async move { pd.create_ah(attr).await }).unwrap().unwrap();
        b.qp.post_recv(RecvWr::new(9, [b.mr.sge(..100)])).unwrap();
        let wr = SendWr::new(8, SendOp::Send).with_inline(*b"hello");
        finish(&world, &a, SendWr { ud: Some(ah.dest(b.qp.qpn(), QKEY)), ..wr });
        let done = arrived(&world, &b.cq);
        let from = Lid(lids(&world, &hosts)[0] + u16::from(bits));
        assert_eq!((done.slid, done.dlid_path_bits, done.sl), (from, bits, sl));
    }
}

#[test]
fn path_bits_that_the_port_has_not_are_refused_in_words() {
    let (world, hosts) = world(tree(), |_| {});
    let a = side(&world, hosts[0], QpType::Rc);
    let options = ConnectOptions::new(SocketAddr::new(ip(2), 4420), &a.qp).path_bits(2);
    let error = world.block_on(LIMIT, world.device(hosts[0]).connect(options)).unwrap().unwrap_err();
    assert!(matches!(error.kind(), CmErrorKind::Route(RouteError::PathBits { asked: 2, lmc: 1 })));
    assert!(
        error.to_string().contains("path bits 2: the port has LMC 1, that is path bits 0 to 1"),
        "{error}"
    );
    let (pd, attr) = (a.pd.clone(), AhAttr { path_bits: Some(2), ..AhAttr::new(ip(2)) });
    let error = world.block_on(LIMIT, async move { pd.create_ah(attr).await }).unwrap().unwrap_err();
    assert!(error.to_string().contains("LMC 1"), "{error}");
    // A queue pair's path, where a program gives it itself.
    let (sides, _connections) = connect(&world, &hosts, Some(1), 4420);
    let path = sides[0].qp.query().path.unwrap();
    let c = side(&world, hosts[0], QpType::Rc);
    c.qp.modify(&QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpAttr::to(QpState::Init)
    })
    .unwrap();
    let route = route(&sides[0].qp);
    let foreign = PathLink::Lrh(LocalRoute { slid: Lid(route.slid.0 + 1), ..route });
    let error =
        c.qp.modify(&QpAttr { path: Some(path.over(foreign)), ..QpAttr::to(QpState::Rtr) }).unwrap_err();
    assert!(error.to_string().contains("path bits are below 2^LMC"), "{error}");
}

#[test]
fn wires_without_lids_refuse_path_bits() {
    let world = World::new(29);
    let hosts: Vec<HostId> = (1..=2).map(|n| world.add_host(HostConfig::new(ip(n)))).collect();
    let a = side(&world, hosts[0], QpType::Rc);
    let options = ConnectOptions::new(SocketAddr::new(ip(2), 4420), &a.qp).path_bits(1);
    let error = world.block_on(LIMIT, world.device(hosts[0]).connect(options)).unwrap().unwrap_err();
    assert!(matches!(error.kind(), CmErrorKind::Route(RouteError::NoPathBits)), "{error}");
}

/// The partition's service level comes with the path record, and both ends of a connection use it.
#[test]
fn connections_are_on_the_service_level_of_their_partition() {
    let (world, hosts) = world(IbShape { sl: 3, ..tree() }, |_| {});
    let (sides, _connections) = connect(&world, &hosts, None, 4420);
    assert_eq!([0, 1].map(|n| route(&sides[n].qp).sl), [3, 3]);
    spine_of(&world, &sides);
}
