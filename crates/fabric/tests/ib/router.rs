//! Two subnets and a router between them, each with our subnet manager: what the router does to a packet, and what it drops.

use std::time::{Duration, Instant};

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_fabric::ib::subnet_manager::{HostedSm, Sm, SmConfig};
use everywire_fabric::ib::{
    Event, HcaConfig, LinkParams, NodeId, PortId, RouterConfig, RouterCounters, Subnet, SubnetOptions,
    SwitchConfig,
};
use everywire_wire::grh::Grh;
use everywire_wire::mad::method;
use everywire_wire::sa::{PathRecord, SaMad, attribute, status};
use everywire_wire::smp::{NodeInfo, codes::node_type, codes::port_state};
use everywire_wire::vcrc::{check_packet, seal};
use everywire_wire::{Gid, Guid, Lid, Lrh, Mad, PKey, Qpn, icrc_ib};

/// Prefixes of the two subnets: site-local, which a router may forward (IBTA §4.1.1).
const PREFIXES: [u64; 2] = [0xfec0_0000_0000_0001, 0xfec0_0000_0000_0002];

/// Nodes in order: for each subnet a switch, the manager's host, another host; then the router, a port in each.
struct Two {
    subnet: Subnet,
    managers: Vec<HostedSm>,
    now: Instant,
}

impl Two {
    fn up() -> Two {
        let now = Instant::now();
        let mut subnet = Subnet::new(now, 5, SubnetOptions { audit: true, ..SubnetOptions::default() });
        for side in 0..2u64 {
            let guid = |n: u64| Guid(0x0200_0000_0000_1000 + side * 0x100 + n * 0x10);
            let switch = subnet.add_switch(SwitchConfig::new(guid(0), 4, "switch")).unwrap();
            for n in 1..3 {
                let node = subnet.add_hca(HcaConfig::new(guid(n), "host")).unwrap();
                let ends = [PortId { node, port: 1 }, PortId { node: switch, port: n as u8 }];
                subnet.connect(ends[0], ends[1], LinkParams::DEFAULT).unwrap();
            }
        }
        let router = subnet.add_router(RouterConfig::new(Guid(0x0200_0000_0000_2000), 2, "router")).unwrap();
        for side in 0..2 {
            let ends = [PortId { node: router, port: side + 1 }, port(u32::from(side) * 3, 4)];
            subnet.connect(ends[0], ends[1], LinkParams::DEFAULT).unwrap();
        }
        let mut managers = Vec::new();
        for (side, gid_prefix) in PREFIXES.into_iter().enumerate() {
            let at = port(side as u32 * 3 + 1, 1);
            let config = SmConfig { gid_prefix, ..SmConfig::new(subnet.port_values(at).unwrap().guids[0]) };
            managers.push(HostedSm::start(now, Sm::new(config, 7), at, &mut subnet));
        }
        let mut two = Two { subnet, managers, now };
        two.run(Duration::from_secs(1));
        for at in [port(1, 1), port(2, 1), port(4, 1), port(5, 1), port(6, 1), port(6, 2)] {
            assert_eq!(two.subnet.state(at), port_state::ACTIVE, "{at:?}");
        }
        two
    }

    /// Runs for a while, and gives what hosts got.
    fn run(&mut self, time: Duration) -> Vec<(PortId, Vec<u8>)> {
        let (until, mut got) = (self.now + time, Vec::new());
        loop {
            while let Some(event) = self.subnet.poll(self.now) {
                let taken = self.managers.iter_mut().any(|sm| sm.handle_event(self.now, &event));
                if let (false, Event::Deliver { port, packet, .. }) = (taken, event) {
                    got.push((port, packet.to_vec()));
                }
            }
            self.managers.iter_mut().for_each(|sm| sm.drive(self.now, &mut self.subnet));
            self.subnet.check_credits().unwrap();
            let timers = self.managers.iter().filter_map(HostedSm::poll_timeout);
            match self.subnet.poll_timeout().into_iter().chain(timers).min() {
                Some(at) if at <= until => self.now = at,
                _ => break,
            }
        }
        self.now = until;
        got
    }

    fn lid(&self, at: PortId) -> Lid {
        self.subnet.port_values(at).unwrap().lid
    }

    fn gid(&self, at: PortId) -> Gid {
        let values = self.subnet.port_values(at).unwrap();
        Gid((u128::from(values.gid_prefix) << 64 | u128::from(values.guids[0].0)).to_be_bytes())
    }

    fn counters(&self) -> RouterCounters {
        self.subnet.router_counters(NodeId(6)).unwrap()
    }

    /// The way from a host to a GID, as its administrator tells it, or the status of its refusal.
    fn ask(&mut self, from: PortId, dgid: Gid) -> Result<PathRecord, u16> {
        let want = PathRecord { sgid: self.gid(from), dgid, numb_path: 1, ..PathRecord::default() };
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
        let mad = SaMad::with_record(method::GET, &want, mask, 9).to_mad();
        let sm_lid = self.subnet.port_values(from).unwrap().sm_lid;
        let route = MadRoute::services(self.lid(from), sm_lid, 0);
        self.subnet.send(self.now, from, route.packet(&mad)).unwrap();
        let got = self.run(Duration::from_millis(5));
        let answer = SaMad::from_mad(&MadRoute::parse(&got[0].1).unwrap().1).unwrap();
        assert_eq!(answer.header.attribute_id, attribute::PATH);
        if answer.header.status != 0 {
            Err(answer.header.status)
        } else {
            Ok(PathRecord::parse(&answer.data).unwrap())
        }
    }
}

fn port(node: u32, port: u8) -> PortId {
    PortId { node: NodeId(node), port }
}

/// A datagram of 256 bytes with a GRH.
fn datagram(from: (Lid, Gid), to: (Lid, Gid), hop_limit: u8) -> Vec<u8> {
    let mad: Mad = std::array::from_fn(|i| i as u8 ^ 0x5a);
    let route =
        MadRoute { dest_qp: Qpn::new(77), gids: Some((from.1, to.1)), ..MadRoute::services(from.0, to.0, 0) };
    let mut packet = route.packet(&mad);
    packet[Lrh::LEN + 7] = hop_limit;
    seal(&mut packet);
    packet
}

#[test]
fn a_packet_crosses_with_new_lids_a_hop_less_and_its_own_icrc() {
    let mut two = Two::up();
    let (a, b) = (port(2, 1), port(5, 1));
    let way = two.ask(a, two.gid(b)).unwrap();
    // IBTA §15.2.5.16: the router's LID, and more than one hop.
    assert_eq!((way.dlid, way.dgid, way.hop_limit), (two.lid(port(6, 1)), two.gid(b), 64));
    let sent = datagram((two.lid(a), two.gid(a)), (way.dlid, two.gid(b)), 7);
    for _ in 0..2 {
        two.subnet.send(two.now, a, sent.clone()).unwrap();
        let got = two.run(Duration::from_millis(5));
        assert_eq!(got.len(), 1);
        let (at, packet) = &got[0];
        assert_eq!(*at, b);
        let lrh = check_packet(packet).unwrap();
        assert_eq!((lrh.slid, lrh.dlid), (two.lid(port(6, 2)), two.lid(b)));
        let grh = Grh::parse(&packet[Lrh::LEN..]).unwrap();
        assert_eq!((grh.hop_limit, grh.sgid, grh.dgid), (6, two.gid(a), two.gid(b)));
        // From the BTH to the ICRC nothing is touched, and the ICRC is right as it is.
        let bth = Lrh::LEN + Grh::LEN;
        assert_eq!(packet[bth..packet.len() - 2], sent[bth..sent.len() - 2]);
        let icrc = packet.len() - 6;
        assert_eq!(icrc_ib(&packet[..icrc]).unwrap().to_le_bytes(), packet[icrc..icrc + 4]);
    }
    assert_eq!(two.counters(), RouterCounters { forwarded: 2, ..RouterCounters::default() });
    assert_eq!(two.subnet.in_flight(), 0);
}

#[test]
fn what_may_not_cross_is_dropped_and_counted() {
    let mut two = Two::up();
    let (a, b) = (port(2, 1), port(5, 1));
    let (own, router) = ((two.lid(a), two.gid(a)), two.lid(port(6, 1)));
    let elsewhere = |prefix: u64, guid: u64| Gid((u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes());
    let local_gid = Gid::link_local(two.gid(b).interface_id());
    let group = "ff1e::1".parse::<std::net::Ipv6Addr>().unwrap();
    let mut wrong_version = datagram(own, (router, two.gid(b)), 9);
    wrong_version[Lrh::LEN] = 0x40;
    seal(&mut wrong_version);
    let packets = [
        datagram(own, (router, two.gid(b)), 1),
        datagram(own, (router, two.gid(b)), 0),
        MadRoute { dest_qp: Qpn::new(77), ..MadRoute::services(own.0, router, 0) }.packet(&[0; 256]),
        wrong_version,
        datagram(own, (router, local_gid), 9),
        datagram(own, (router, Gid(group.octets())), 9),
        datagram(own, (router, elsewhere(PREFIXES[1] + 1, 1)), 9),
        // Back into the subnet that it is from.
        datagram(own, (router, two.gid(port(1, 1))), 9),
        // Nobody in the other subnet.
        datagram(own, (router, elsewhere(PREFIXES[1], 0x77)), 9),
        datagram(own, (router, elsewhere(PREFIXES[1], 0x77)), 9),
    ];
    for packet in packets {
        two.subnet.send(two.now, a, packet).unwrap();
        assert_eq!(two.run(Duration::from_millis(2)), []);
    }
    let expected = RouterCounters {
        hop_limit: 2,
        no_grh: 1,
        malformed: 1,
        not_to_leave: 2,
        no_route: 2,
        unresolved: 2,
        ..RouterCounters::default()
    };
    assert_eq!((two.counters(), two.subnet.in_flight()), (expected, 0));
    // The administrator knows of a router, and not of what is behind it; of no port of its own with that GID.
    assert_eq!(two.ask(a, elsewhere(PREFIXES[0], 0x77)).unwrap_err(), status::REQ_INVALID_GID);
}

#[test]
fn a_router_is_one_in_its_node_info_and_its_partitions_are_set() {
    let mut two = Two::up();
    let info = two.subnet.inspect(port(6, 2), everywire_wire::smp::attribute::NODE_INFO, 0).unwrap();
    let info = NodeInfo::parse(&info).unwrap();
    assert_eq!((info.node_type, info.num_ports, info.local_port_num), (node_type::ROUTER, 2, 2));
    for (number, prefix) in [(1, PREFIXES[0]), (2, PREFIXES[1])] {
        let values = two.subnet.port_values(port(6, number)).unwrap();
        assert_eq!((values.gid_prefix, values.pkeys[0]), (prefix, PKey::DEFAULT));
    }
    let refused = two.subnet.add_router(RouterConfig::new(Guid(9), 17, "too many"));
    assert!(refused.is_err());
}

/// Packets that come before the way is known wait for it, a bounded number; a subnet whose administrator is dead costs a
/// question's time and nothing else.
#[test]
fn packets_wait_for_the_administrator_and_not_for_ever() {
    let mut two = Two::up();
    let (a, b) = (port(2, 1), port(5, 1));
    two.managers.pop();
    let sent = datagram((two.lid(a), two.gid(a)), (two.lid(port(6, 1)), two.gid(b)), 7);
    for _ in 0..100 {
        two.subnet.send(two.now, a, sent.clone()).unwrap();
    }
    let asked = two.run(Duration::from_secs(3));
    assert_eq!(asked.len(), 6, "questions to where no manager is");
    assert!(asked.iter().all(|(at, _)| *at == port(4, 1)));
    let expected = RouterCounters { unresolved: 64, too_many: 36, ..RouterCounters::default() };
    assert_eq!((two.counters(), two.subnet.in_flight()), (expected, 0));
}
