//! Where packets go, and what stops them: groups, partitions, lanes, lifetimes, refusals at the port.

use std::time::{Duration, Instant};

use everywire_fabric::ib::subnet_manager::routing::{Graph, RoutingEngine};
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{
    Event, HcaConfig, IbPort, LinkId, LinkParams, NodeId, PortId, Refusal, Subnet, SubnetOptions,
    SwitchConfig, TopologyError,
};
use everywire_wire::notice::{Notice, TrapSwitchKey, trap};
use everywire_wire::smp::{
    MulticastForwardingTable, PKeyTable, PortInfo, SlToVl, SwitchInfo, VlArbitration, attribute,
};
use everywire_wire::vcrc::check_packet;
use everywire_wire::{Guid, Lid, Lnh, Lrh, Mtu, PKey, vcrc};

use crate::manager::{Manager, bring_up};
use crate::traffic::{port, psn, write_packet};

const AUDIT: SubnetOptions =
    SubnetOptions { lifetimes: false, vcrc: everywire_fabric::ib::VcrcCheck::FirstHop, audit: true };

fn ring(n: usize, link: LinkParams, options: SubnetOptions) -> (Subnet, Manager, Graph) {
    let (base, shape) = (Instant::now(), Topology::ring(n).unwrap());
    let mut subnet = Subnet::of_shape(base, 3, options, &shape, link).unwrap();
    let (manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    (subnet, manager, graph)
}

fn emitted(emit: impl FnOnce(&mut [u8])) -> [u8; 64] {
    let mut data = [0; 64];
    emit(&mut data);
    data
}

/// Lets all that is under way happen, and gives what was delivered.
fn settle(subnet: &mut Subnet, now: &mut Instant) -> Vec<(PortId, Vec<u8>)> {
    let mut delivered = Vec::new();
    while let Some(at) = subnet.poll_timeout() {
        *now = at;
        while let Some(event) = subnet.poll(at) {
            if let Event::Deliver { port, packet, credit, .. } = event {
                delivered.push((port, packet.to_vec()));
                if let Some(credit) = credit {
                    subnet.consume(at, credit);
                }
            }
        }
    }
    subnet.check_credits().unwrap();
    delivered
}

#[test]
fn a_group_gets_one_copy_each_and_the_sender_none() {
    let (mut subnet, mut manager, graph) = ring(4, LinkParams::DEFAULT, AUDIT);
    // A tree on the ring without the link from the third switch to the fourth. Port 3 leads to the host.
    let masks: [u16; 4] = [0b1110, 0b1110, 0b1100, 0b1010];
    for (switch, mask) in masks.into_iter().enumerate() {
        let path = [&[1][..], &[1, 1], &[1, 1, 1], &[1, 2]][switch];
        let mut table = MulticastForwardingTable::default();
        table.masks[5] = mask;
        manager.set(
            &mut subnet,
            attribute::MULTICAST_FORWARDING_TABLE,
            0,
            path,
            &emitted(|out| table.emit(out)),
        );
    }
    let group = Lid(0xc005);
    for (n, endport) in graph.endports.iter().enumerate() {
        for i in 0..40 {
            subnet.send(manager.now, port(4 + n), write_packet(endport.lid, group, 0, i, 4096)).unwrap();
        }
        let delivered = settle(&mut subnet, &mut manager.now);
        for (m, _) in graph.endports.iter().enumerate() {
            let mine: Vec<u32> =
                delivered.iter().filter(|(p, _)| *p == port(4 + m)).map(|(_, packet)| psn(packet)).collect();
            let wanted: Vec<u32> = if m == n { Vec::new() } else { (0..40).collect() };
            assert_eq!(mine, wanted, "host {m} from host {n}");
        }
    }
    let c = subnet.counters(PortId { node: NodeId(0), port: 3 }).unwrap();
    assert_eq!((c.multicast_rcv, c.multicast_xmit), (40, 120));
    // A group that no table knows goes nowhere.
    subnet.send(manager.now, port(4), write_packet(graph.endports[0].lid, Lid(0xc006), 0, 0, 4)).unwrap();
    assert_eq!(settle(&mut subnet, &mut manager.now), []);
    assert_eq!(subnet.in_flight(), 0);
}

#[test]
fn switches_enforce_partitions_on_the_way_in_and_out() {
    let (mut subnet, mut manager, graph) = ring(3, LinkParams::DEFAULT, AUDIT);
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    let mut keys = PKeyTable::default();
    keys.keys[0] = PKey(0x8001);
    let data = emitted(|out| keys.emit(out));
    manager.set(&mut subnet, attribute::PKEY_TABLE, 3 << 16, &[1], &data);
    let heard = std::cell::Cell::new(Vec::new());
    let send = |subnet: &mut Subnet, manager: &mut Manager, inbound: bool, outbound: bool| {
        let changed = manager.change_port(subnet, &[1], 3, |info| {
            (info.partition_enforcement_inbound, info.partition_enforcement_outbound) = (inbound, outbound);
        });
        assert_eq!(changed.partition_enforcement_inbound, inbound);
        subnet.send(manager.now, manager.port, write_packet(own, other, 0, 0, 64)).unwrap();
        subnet.send(manager.now, port(4), write_packet(other, own, 0, 0, 64)).unwrap();
        let mut delivered = Vec::new();
        while let Some(at) = subnet.poll_timeout() {
            manager.now = at;
            while let Some(event) = subnet.poll(at) {
                match event {
                    Event::Deliver { port, .. } => delivered.push(port.node.0),
                    Event::Smp { mad, .. } => {
                        heard.set([heard.take(), vec![mad]].concat());
                    }
                    _ => {}
                }
            }
        }
        delivered
    };
    assert_eq!(send(&mut subnet, &mut manager, false, false), [4, 3]);
    assert_eq!(send(&mut subnet, &mut manager, true, false), [3], "the default partition may not come in");
    assert_eq!(send(&mut subnet, &mut manager, false, true), [4], "nor go out");
    let c = subnet.counters(PortId { node: NodeId(0), port: 3 }).unwrap();
    assert_eq!((c.rcv_constraint_errors, c.xmit_constraint_errors), (1, 1));
    let info = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 3, &[1])).unwrap();
    assert_eq!(info.p_key_violations, 2);
    // The manager has heard of both, again and again: it represses none here.
    let traps: Vec<Notice> = heard.take().iter().map(|mad| Notice::parse(&mad[64..]).unwrap()).collect();
    let details: Vec<_> = traps.iter().map(|t| TrapSwitchKey::parse(&t.details).unwrap()).collect();
    for (lid1, lid2) in [(own, other), (other, own)] {
        let found = details.iter().find(|d| (d.lid1, d.lid2) == (lid1, lid2)).expect("a trap");
        assert_eq!((found.pkey, found.switch_lid, found.port), (PKey::DEFAULT, graph.switches[0].lid, 3));
        assert_eq!((found.data_valid, found.qp2), (0x2f, everywire_wire::Qpn::new(0x48)));
    }
    assert!(traps.iter().all(|t| t.trap_number == trap::SWITCH_BAD_P_KEY));
    // Limited members of a partition reach its full ones (IBTA §10.9.3); management is free of it all.
    keys.keys[1] = PKey(0x7fff);
    manager.set(&mut subnet, attribute::PKEY_TABLE, 3 << 16, &[1], &emitted(|out| keys.emit(out)));
    assert_eq!(send(&mut subnet, &mut manager, true, true), [4, 3]);
}

#[test]
fn lanes_follow_tables_and_weights() {
    let (mut subnet, mut manager, graph) = ring(3, LinkParams::DEFAULT, AUDIT);
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    // The manager's port: service levels 0 and 1 on lanes 2 and 5, three to one; level 9 nowhere.
    let lanes = SlToVl::new([2, 5, 2, 2, 2, 2, 2, 2, 2, 15, 2, 2, 2, 2, 2, 2]);
    manager.set(&mut subnet, attribute::SL_TO_VL, 0, &[], &emitted(|out| lanes.emit(out)));
    let mut table = VlArbitration::default();
    (table.entries[0].vl, table.entries[0].weight) = (2, 195);
    (table.entries[1].vl, table.entries[1].weight) = (5, 65);
    manager.set(&mut subnet, attribute::VL_ARBITRATION, 1 << 16, &[], &emitted(|out| table.emit(out)));
    for psn in 0..40 {
        for sl in [1, 0] {
            subnet.send(manager.now, manager.port, write_packet(own, other, sl, psn, 4096)).unwrap();
        }
    }
    let refused = subnet.send(manager.now, manager.port, write_packet(own, other, 9, 0, 64)).unwrap_err();
    assert_eq!(refused.reason, Refusal::NoLane(9));
    let delivered = settle(&mut subnet, &mut manager.now);
    let levels: Vec<u8> = delivered.iter().map(|(_, packet)| check_packet(packet).unwrap().sl).collect();
    assert_eq!(levels.len(), 80);
    // The first one was alone when it left. A packet is 65 blocks: three in a turn, and one.
    assert_eq!(levels[1..9], [0, 0, 0, 1, 0, 0, 0, 1], "{levels:?}");
    let on = |packet: &[u8]| check_packet(packet).unwrap().vl;
    assert!(
        delivered.iter().all(|(_, p)| on(p) == check_packet(p).unwrap().sl),
        "the next links have the identity"
    );
}

#[test]
fn a_host_that_does_not_consume_stops_its_sender_and_no_other() {
    let (base, link) = (Instant::now(), LinkParams { buffer: 3 * 4288, vls: 2, ..LinkParams::DEFAULT });
    let shape = Topology::ring(3).unwrap();
    let mut subnet = Subnet::new(base, 1, AUDIT);
    for node in &shape.nodes {
        if node.is_switch {
            subnet.add_switch(SwitchConfig::new(node.guid, node.ports, &node.name)).unwrap();
        } else {
            let holds_receives = node.name == "h2";
            subnet.add_hca(HcaConfig { holds_receives, ..HcaConfig::new(node.guid, &node.name) }).unwrap();
        }
    }
    for &(a, b) in &shape.links {
        let [a, b] = [a, b].map(|(node, port)| PortId { node: NodeId(node as u32), port });
        subnet.connect(a, b, link).unwrap();
    }
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    let (mut sent, mut held, mut rooms) = (0u32, Vec::new(), 0);
    loop {
        while let Ok(()) = subnet.send(manager.now, manager.port, write_packet(own, other, 0, sent, 4096)) {
            sent += 1;
        }
        let Some(at) = subnet.poll_timeout() else { break };
        manager.now = at;
        while let Some(event) = subnet.poll(at) {
            match event {
                Event::Deliver { packet, credit, .. } => {
                    held.push((packet, credit.expect("of a port that holds")))
                }
                Event::Room { sl: 0, .. } => rooms += 1,
                other => panic!("{other:?}"),
            }
        }
        subnet.check_credits().unwrap();
    }
    // Three packets fill the host's buffer, and three each that of the two switches on the way.
    assert_eq!((held.len(), subnet.in_flight()), (3, sent as usize - 3));
    assert_eq!(sent as usize, 3 + 3 + 3 + everywire_fabric::ib::SEND_QUEUE);
    assert!(rooms > 0);
    // The other lane is free.
    subnet.send(manager.now, manager.port, write_packet(own, other, 1, 0, 4096)).unwrap();
    let on_lane_1 = std::cell::Cell::new(0);
    let take = |subnet: &mut Subnet, manager: &mut Manager| {
        let mut new = Vec::new();
        while let Some(at) = subnet.poll_timeout() {
            manager.now = at;
            while let Some(event) = subnet.poll(at) {
                if let Event::Deliver { packet, credit: Some(credit), .. } = event {
                    on_lane_1.set(on_lane_1.get() + u32::from(check_packet(&packet).unwrap().vl));
                    new.push((packet, credit));
                }
            }
        }
        new
    };
    held.extend(take(&mut subnet, &mut manager));
    let mut got = held.len() as u32;
    while !held.is_empty() {
        for (_, credit) in held.drain(..) {
            subnet.consume(manager.now, credit);
        }
        subnet.check_credits().unwrap();
        held = take(&mut subnet, &mut manager);
        got += held.len() as u32;
    }
    assert_eq!((got, on_lane_1.get(), subnet.in_flight()), (sent + 1, 1, 0));
    // A credit of a link that has gone is of no account.
    subnet.send(manager.now, manager.port, write_packet(own, other, 0, 0, 4096)).unwrap();
    let (_, stale) = take(&mut subnet, &mut manager).pop().unwrap();
    let link = LinkId(4);
    assert_eq!(subnet.ends(link).unwrap()[0], port(4));
    subnet.link_down(manager.now, link).unwrap();
    subnet.link_up(manager.now, link).unwrap();
    subnet.consume(manager.now, stale);
    settle(&mut subnet, &mut manager.now);
}

#[test]
fn lifetimes_end_a_deadlock() {
    let options = SubnetOptions { lifetimes: true, ..AUDIT };
    let link = LinkParams { buffer: 4288, vls: 1, ..LinkParams::DEFAULT };
    let (mut subnet, mut manager, graph) = ring(6, link, options);
    for (node, path) in crate::manager::routes(&Topology::ring(6).unwrap(), 6) {
        if node < 6 {
            // 4.096 µs × 2^4 = 65.5 µs at the head of a queue.
            for number in 1..=3 {
                manager.change_port(&mut subnet, &path, number, |info| info.hoq_life = 4);
            }
            let mut info =
                SwitchInfo::parse(&manager.get(&mut subnet, attribute::SWITCH_INFO, 0, &path)).unwrap();
            info.life_time_value = 6;
            manager.set(&mut subnet, attribute::SWITCH_INFO, 0, &path, &emitted(|out| info.emit(out)));
        }
    }
    let lids: Vec<Lid> = graph.endports.iter().map(|e| e.lid).collect();
    for psn in 0..100 {
        for n in 0..6 {
            subnet
                .send(manager.now, port(6 + n), write_packet(lids[n], lids[(n + 2) % 6], 0, psn, 4096))
                .unwrap();
        }
    }
    let delivered = settle(&mut subnet, &mut manager.now).len() as u64;
    let discards: u64 = (0..6)
        .flat_map(|node| (1..=3).map(move |port| PortId { node: NodeId(node), port }))
        .map(|id| subnet.counters(id).unwrap().xmit_discards)
        .sum();
    assert!(discards > 0, "it did deadlock");
    assert_eq!((delivered + discards, subnet.in_flight()), (600, 0));
}

#[test]
fn the_port_says_why_it_refuses() {
    let (mut subnet, manager, graph) = ring(3, LinkParams { mtu: Mtu::M2048, ..LinkParams::DEFAULT }, AUDIT);
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    let (now, from) = (manager.now, manager.port);
    let reason = |subnet: &mut Subnet, packet: Vec<u8>| subnet.send(now, from, packet).unwrap_err().reason;
    let good = write_packet(own, other, 0, 0, 64);
    assert!(matches!(reason(&mut subnet, good[..good.len() - 1].to_vec()), Refusal::Malformed(_)));
    assert!(matches!(reason(&mut subnet, vec![]), Refusal::Malformed(_)));
    let mut management = good.clone();
    vcrc::rewrite_vl(&mut management, 15);
    assert_eq!(reason(&mut subnet, management), Refusal::ManagementLane);
    let long = write_packet(own, other, 0, 0, 4096);
    assert_eq!(reason(&mut subnet, long), Refusal::TooLong { bytes: 4138, most: 2048 + 126 });
    let switch = PortId { node: NodeId(0), port: 1 };
    assert_eq!(subnet.send(now, switch, good.clone()).unwrap_err().reason, Refusal::NoAdapter(switch));
    subnet.link_down(now, LinkId(3)).unwrap();
    assert_eq!(reason(&mut subnet, good), Refusal::NotActive(1));
}

#[test]
fn what_the_tables_do_not_know_is_counted_and_a_wrong_vcrc_goes_one_hop() {
    let (mut subnet, mut manager, graph) = ring(3, LinkParams::DEFAULT, AUDIT);
    let own = graph.endports[0].lid;
    subnet.send(manager.now, manager.port, write_packet(own, Lid(0x100), 0, 0, 64)).unwrap();
    let mut wrong = write_packet(own, graph.endports[1].lid, 0, 0, 64);
    wrong[40] ^= 1;
    subnet.send(manager.now, manager.port, wrong).unwrap();
    assert_eq!(settle(&mut subnet, &mut manager.now), []);
    let c = subnet.counters(PortId { node: NodeId(0), port: 3 }).unwrap();
    assert_eq!((c.rcv_switch_relay_errors, c.rcv_errors), (1, 1));
    // A packet to the port's own LID does not leave it; raw packets pass.
    subnet.send(manager.now, manager.port, write_packet(own, own, 0, 5, 64)).unwrap();
    let mut raw = vec![0; 30 * 4 + 2];
    let dlid = graph.endports[2].lid;
    Lrh { lnh: Lnh::RawEthertype, dlid, pkt_len: 30, slid: own, ..Lrh::default() }.emit(&mut raw);
    vcrc::seal(&mut raw);
    subnet.send(manager.now, manager.port, raw).unwrap();
    let got = settle(&mut subnet, &mut manager.now);
    assert_eq!(got.iter().map(|(p, _)| *p).collect::<Vec<_>>(), [manager.port, port(5)]);
}

#[test]
fn hosts_hear_what_the_manager_sets() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let mut last: Option<IbPort> = None;
    let mut see = |subnet: &mut Subnet, manager: &mut Manager| {
        let mut events: Vec<Event> = std::mem::take(&mut manager.aside);
        events.extend(std::iter::from_fn(|| subnet.poll(manager.now)));
        for event in events {
            if let Event::PortChanged { port: id, values } = event
                && id == port(4)
            {
                last = Some(*values);
            }
        }
        last.clone().unwrap()
    };
    let values = see(&mut subnet, &mut manager);
    let sm_lid = graph.endports[0].lid;
    assert_eq!((values.state, values.lid, values.sm_lid), (4, graph.endports[1].lid, sm_lid));
    assert_eq!((values.mtu, values.data_bits, values.pkeys[0]), (Mtu::M4096, 100_000_000_000, PKey(0xffff)));
    assert_eq!(values.guids[0], Guid(shape.nodes[4].guid.0 + 1));
    manager.change_port(&mut subnet, &[1, 1, 3], 1, |info| {
        (info.lmc, info.lid, info.client_reregister) = (2, Lid(8), true)
    });
    let values = see(&mut subnet, &mut manager);
    assert_eq!((values.lmc, values.lid, values.client_reregister), (2, Lid(8), true));
    assert!(!subnet.port_values(port(4)).unwrap().client_reregister, "asked once");
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let mut subnet = Subnet::new(Instant::now(), 0, SubnetOptions::default());
    let a = subnet.add_hca(HcaConfig { ports: 2, ..HcaConfig::new(Guid(16), "a") }).unwrap();
    assert_eq!(subnet.add_hca(HcaConfig::new(Guid(18), "b")), Err(TopologyError::GuidInUse(Guid(18))));
    assert!(matches!(
        subnet.add_switch(SwitchConfig::new(Guid(32), 65, "s")),
        Err(TopologyError::Ports { .. })
    ));
    let s = subnet.add_switch(SwitchConfig::new(Guid(32), 64, "s")).unwrap();
    let (a1, s1) = (PortId { node: a, port: 1 }, PortId { node: s, port: 1 });
    let link = LinkParams::DEFAULT;
    for wrong in [PortId { node: s, port: 0 }, PortId { node: s, port: 65 }, PortId { node: a, port: 3 }] {
        assert_eq!(subnet.connect(a1, wrong, link), Err(TopologyError::UnknownPort(wrong)));
    }
    assert_eq!(subnet.connect(s1, s1, link), Err(TopologyError::PortInUse(s1)));
    assert_eq!(subnet.connect(a1, s1, LinkParams { vls: 3, ..link }), Err(TopologyError::Lanes(3)));
    let small = LinkParams { buffer: 4223, ..link };
    assert_eq!(subnet.connect(a1, s1, small), Err(TopologyError::Buffer { asked: 4223, least: 4224 }));
    subnet.connect(a1, s1, link).unwrap();
    assert_eq!(subnet.connect(a1, PortId { node: s, port: 2 }, link), Err(TopologyError::PortInUse(a1)));
}

#[test]
fn time_on_the_wire_is_length_over_rate() {
    let (base, delay) = (Instant::now(), Duration::from_nanos(100));
    let shape = Topology::fat_tree(2, 4).unwrap();
    let mut subnet =
        Subnet::of_shape(base, 3, AUDIT, &shape, LinkParams { delay, ..LinkParams::DEFAULT }).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let packet = write_packet(graph.endports[0].lid, graph.endports[1].lid, 0, 0, 4096);
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        while subnet.poll(at).is_some() {}
    }
    let start = manager.now;
    subnet.send(start, manager.port, packet).unwrap();
    let mut arrived = None;
    while let Some(at) = subnet.poll_timeout() {
        while let Some(event) = subnet.poll(at) {
            if let Event::Deliver { at, hops, .. } = event {
                arrived = Some((at - start, hops));
            }
        }
    }
    // Twice 4,138 bytes at 100 Gbit/s (331.04 ns, whole nanoseconds up), twice 100 ns of wire, 100 ns in the switch.
    assert_eq!(arrived, Some((Duration::from_nanos(2 * 332 + 2 * 100 + 100), 1)));
}
