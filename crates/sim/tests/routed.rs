//! Whole devices in two InfiniBand subnets with a router between them: connections by IP address and by GID, datagrams, and what
//! is refused.

mod infiniband_lab;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use everywire_fabric::ib::NodeId;
use everywire_sim::{HostConfig, HostId, World};
use everywire_verbs::{
    Access, AhAttr, CmErrorKind, ConnectOptions, Connection, Gid, Path, PathLink, QpAttr, QpState, QpType,
    RecvWr, Remote, SendOp, SendWr,
};
use infiniband_lab::{LEN, LIMIT, QKEY, Side, arrived, connect_by, datagram_side, finish, ip, side};

/// The router is made after the two switches.
const ROUTER: NodeId = NodeId(2);

/// 10.0.0.1 in one subnet, 10.0.0.2 in the other, 10.0.0.3 in the first.
fn world() -> (World, Vec<HostId>) {
    let world = World::new(17);
    world.route_infiniband();
    let hosts = (1..=3).map(|n| world.add_host(HostConfig::infiniband(ip(n)))).collect();
    assert!(world.ib_up(LIMIT));
    (world, hosts)
}

/// Connects the first host to the second by this address of its.
fn connect(world: &World, hosts: &[HostId], dst: IpAddr) -> ([Side; 2], [Connection; 2]) {
    let any = if dst.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0u16; 8]) };
    connect_by(world, hosts, QpType::Rc, [any, dst].map(|ip| SocketAddr::new(ip, 4420)), None, |_| {})
}

fn gid_of(world: &World, host: HostId) -> IpAddr {
    let port = world.device(host).gids()[0].gid().interface_id();
    let found = world.with_subnet(|subnet| {
        let ports = (0..12).filter_map(|node| {
            subnet.port_values(everywire_fabric::ib::PortId { node: NodeId(node), port: 1 })
        });
        let values = ports.into_iter().find(|values| values.guids[0] == port).unwrap();
        (u128::from(values.gid_prefix) << 64 | u128::from(values.guids[0].0)).to_be_bytes()
    });
    Gid(found.unwrap()).to_ip()
}

fn forwarded(world: &World) -> u64 {
    world.with_subnet(|subnet| subnet.router_counters(ROUTER).unwrap().forwarded).unwrap()
}

#[test]
fn connections_cross_a_router_by_address_and_by_gid() {
    for by_gid in [false, true] {
        let (world, hosts) = world();
        let dst = if by_gid { gid_of(&world, hosts[1]) } else { ip(2) };
        let ([a, b], [active, passive]) = connect(&world, &hosts, dst);
        let [to, from] = [&a, &b].map(|side| side.qp.query().path.unwrap());
        for (path, peer) in [(to, hosts[1]), (from, hosts[0])] {
            assert!(path.local_route().unwrap().grh && path.hop_limit > 1, "{path:?}");
            assert_eq!(path.dst, gid_of(&world, peer));
        }
        let bytes: Vec<u8> = (0..LEN).map(|i| (i / 3) as u8 ^ 0x1f).collect();
        let remote = Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
        a.mr.write_at(0, &bytes).unwrap();
        finish(&world, &a, SendWr::new(1, SendOp::Write { remote }).with_sges([a.mr.sge(..)]));
        assert_eq!(b.mr.read_vec(0, LEN).unwrap(), bytes);
        a.mr.write_at(0, &vec![0; LEN]).unwrap();
        finish(&world, &a, SendWr::new(2, SendOp::Read { remote }).with_sges([a.mr.sge(..)]));
        assert_eq!(a.mr.read_vec(0, LEN).unwrap(), bytes);
        b.mr.write_at(0, &vec![0; LEN]).unwrap();
        b.qp.post_recv(RecvWr::new(3, [b.mr.sge(..)])).unwrap();
        finish(&world, &a, SendWr::new(4, SendOp::Send).with_sges([a.mr.sge(..)]));
        assert_eq!(arrived(&world, &b.cq).byte_len as usize, LEN);
        assert_eq!(b.mr.read_vec(0, LEN).unwrap(), bytes);
        assert!(forwarded(&world) > 15, "{}", forwarded(&world));
        world.block_on(LIMIT, async move { active.disconnect().await }).unwrap();
        world.block_on(LIMIT, async move { passive.closed().await }).unwrap();
        assert_eq!(world.with_subnet(|subnet| subnet.check_credits()), Some(Ok(())));
    }
}

#[test]
fn datagrams_cross_a_router_and_neighbours_do_not_need_it() {
    let (world, hosts) = world();
    let sides: Vec<Side> = hosts.iter().map(|host| datagram_side(&world, *host)).collect();
    for (to, routed) in [(1usize, true), (2, false)] {
        let (pd, before) = (sides[0].pd.clone(), forwarded(&world));
        let attr = AhAttr::new(ip(to as u8 + 1));
        let ah = world.block_on(LIMIT, async move { pd.create_ah(attr).await }).unwrap().unwrap();
        sides[to].qp.post_recv(RecvWr::new(9, [sides[to].mr.sge(..100)])).unwrap();
        let wr = SendWr::new(8, SendOp::Send).with_inline(*b"hello");
        finish(&world, &sides[0], SendWr { ud: Some(ah.dest(sides[to].qp.qpn(), QKEY)), ..wr });
        assert_eq!(arrived(&world, &sides[to].cq).grh, routed);
        assert_eq!(sides[to].mr.read_vec(40, 5).unwrap(), b"hello");
        assert_eq!(forwarded(&world) > before, routed);
    }
}

#[test]
fn a_path_by_lids_only_is_refused_across_subnets_and_strangers_are_named() {
    let (world, hosts) = world();
    let a = side(&world, hosts[0], QpType::Rc);
    let access = Some(Access::LOCAL_WRITE);
    let init = QpAttr { pkey_index: Some(0), port: Some(1), access, ..QpAttr::to(QpState::Init) };
    a.qp.modify(&init).unwrap();
    let [own, peer] = [0, 1].map(|n| gid_of(&world, hosts[n]));
    let link = PathLink::Lrh(everywire_verbs::LocalRoute::default());
    let path = Path::new(own, peer, 0).over(link);
    let refused = a.qp.modify(&QpAttr { path: Some(path), ..QpAttr::to(QpState::Rtr) }).unwrap_err();
    assert!(refused.to_string().contains("LIDs mean nothing beyond a router"), "{refused}");
    // A prefix that nobody was told a way to: the one router there is gets it, and drops it, so nobody answers.
    let nowhere = SocketAddr::new("fec0:0:0:9::1".parse().unwrap(), 1);
    let options = ConnectOptions::new(nowhere, &a.qp).timeout(Duration::from_secs(3));
    let kind = world.block_on(LIMIT, world.device(hosts[0]).connect(options)).unwrap().unwrap_err();
    assert!(matches!(kind.kind(), CmErrorKind::Silence { tries: 1.., .. }), "{kind}");
}
