//! The agents: what a subnet manager and tools see, and what a tap records.

use std::time::{Duration, Instant};

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_fabric::ib::subnet_manager::routing::RoutingEngine;
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{Event, LinkId, LinkParams, NodeId, PcapTap, PortId, Subnet, SubnetOptions};
use everywire_wire::mad::{MadHeader, class, method, status};
use everywire_wire::notice::{Notice, TrapLinkState, trap};
use everywire_wire::perf::{
    self, PerfMad, PortCounters, PortCountersExtended, PortSamplesControl, PortSamplesResult, sample_select,
};
use everywire_wire::smp::codes::{node_type, physical_state, port_state};
use everywire_wire::smp::{
    LedInfo, MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable, PortInfo, SlToVl, Smp,
    SwitchInfo, VlArbitration, attribute,
};
use everywire_wire::{Gid, Guid, Lid, MAD_LEN, Mad, PKey};

use crate::manager::{Manager, bring_up};
use crate::traffic::{port, psn, write_packet};

fn ring() -> (Subnet, Topology, Manager) {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let subnet = Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    // Nodes 0 to 2 are switches, 3 to 5 their hosts on port 3; the manager is at node 3.
    (subnet, shape, Manager::new(port(3), base))
}

fn emitted(emit: impl FnOnce(&mut [u8])) -> [u8; 64] {
    let mut data = [0; 64];
    emit(&mut data);
    data
}

#[test]
fn nodes_say_what_they_are_along_directed_routes() {
    let (mut subnet, shape, mut manager) = ring();
    let at = |path: &[u8], subnet: &mut Subnet, manager: &mut Manager| {
        NodeInfo::parse(&manager.get(subnet, attribute::NODE_INFO, 0, path)).unwrap()
    };
    let own = at(&[], &mut subnet, &mut manager);
    assert_eq!((own.node_type, own.num_ports, own.local_port_num), (node_type::CA, 1, 1));
    assert_eq!((own.node_guid, own.port_guid), (shape.nodes[3].guid, Guid(shape.nodes[3].guid.0 + 1)));
    let first = at(&[1], &mut subnet, &mut manager);
    assert_eq!((first.node_type, first.num_ports, first.local_port_num), (node_type::SWITCH, 3, 3));
    assert_eq!((first.node_guid, first.port_guid), (shape.nodes[0].guid, shape.nodes[0].guid));
    // Round the ring and back to the manager's own port, four hops.
    let around = at(&[1, 1, 1, 1, 3], &mut subnet, &mut manager);
    assert_eq!((around.node_guid, around.local_port_num), (own.node_guid, 1));
    let name =
        NodeDescription::parse(&manager.get(&mut subnet, attribute::NODE_DESCRIPTION, 0, &[1, 1])).unwrap();
    assert_eq!(name.name(), "s2");
}

#[test]
fn routes_that_lead_nowhere_get_no_answer() {
    let (mut subnet, _, mut manager) = ring();
    for path in [&[2][..], &[1, 9], &[1, 0], &[1, 3, 1], &[1, 255, 1]] {
        let answer = manager.ask(&mut subnet, method::GET, attribute::NODE_INFO, 0, path, &[]);
        assert_eq!(answer, None, "{path:?}");
    }
    // A hop pointer that the path does not have, a hop count beyond its end.
    for (pointer, count) in [(1, 1), (5, 1), (0, 64), (0, 255), (255, 255)] {
        let mut smp = Smp::directed(method::GET, attribute::NODE_INFO, 0, 1, &[1]);
        smp.header.class_specific = pointer << 8 | count;
        assert_eq!(manager.transact(&mut subnet, Lid::PERMISSIVE, smp), None);
    }
    assert_eq!(subnet.in_flight(), 0);
}

#[test]
fn refusals_have_the_standards_status() {
    let (mut subnet, _, mut manager) = ring();
    let mut refused = |method: u8, id: u16, modifier: u32, path: &[u8]| {
        manager.ask(&mut subnet, method, id, modifier, path, &[]).unwrap().status()
    };
    let unsupported = status::UNSUPPORTED_METHOD_ATTRIBUTE;
    assert_eq!(refused(method::SET, attribute::NODE_INFO, 0, &[1]), unsupported);
    assert_eq!(refused(method::GET, attribute::SWITCH_INFO, 0, &[]), unsupported, "of an adapter");
    assert_eq!(refused(method::GET, 0x7777, 0, &[1]), unsupported);
    assert_eq!(refused(method::GET, attribute::PORT_INFO, 4, &[1]), status::INVALID_FIELD, "port 4 of 3");
    assert_eq!(refused(method::GET, attribute::PKEY_TABLE, 2, &[1]), status::INVALID_FIELD);
    assert_eq!(refused(method::GET, attribute::LINEAR_FORWARDING_TABLE, 768, &[1]), status::INVALID_FIELD);
    assert_eq!(refused(method::GET, attribute::MULTICAST_FORWARDING_TABLE, 32, &[1]), status::INVALID_FIELD);
    assert_eq!(refused(method::GET, attribute::VL_ARBITRATION, 5 << 16, &[1]), status::INVALID_FIELD);
    let mut smp = Smp::directed(method::GET, attribute::NODE_INFO, 0, 0, &[1]);
    smp.header.class_version = 2;
    let answer = manager.transact(&mut subnet, Lid::PERMISSIVE, smp).unwrap();
    assert_eq!(answer.status(), status::BAD_VERSION);
}

#[test]
fn a_bad_field_changes_nothing() {
    let (mut subnet, _, mut manager) = ring();
    let before = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 1, &[])).unwrap();
    assert_eq!((before.port_state, before.port_physical_state), (port_state::INIT, physical_state::LINK_UP));
    type Change = fn(&mut PortInfo);
    let changes: [(&str, Change); 9] = [
        ("active from init", |i| i.port_state = port_state::ACTIVE),
        ("init by command", |i| i.port_state = port_state::INIT),
        ("multicast LID", |i| i.lid = Lid(0xc000)),
        ("LID no multiple of 2^LMC", |i| (i.lid, i.lmc) = (Lid(5), 2)),
        ("MTU code 6", |i| i.neighbor_mtu = 6),
        ("15 lanes of 8", |i| i.operational_vls = 5),
        ("12x of a 4x link", |i| i.link_width_enabled = 8),
        ("physical state 5", |i| i.port_physical_state = 5),
        ("disabled and armed", |i| (i.port_state, i.port_physical_state) = (3, 3)),
    ];
    for (what, change) in changes {
        let mut info = PortInfo { port_state: 0, port_physical_state: 0, lid: Lid(9), ..before };
        change(&mut info);
        let data = emitted(|out| info.emit(out));
        let answer = manager.ask(&mut subnet, method::SET, attribute::PORT_INFO, 1, &[], &data).unwrap();
        assert_eq!(answer.status(), status::INVALID_FIELD, "{what}");
        let after = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 1, &[])).unwrap();
        assert_eq!(after, before, "{what}");
    }
}

#[test]
fn tables_read_as_they_were_written() {
    let (mut subnet, _, mut manager) = ring();
    let mut keys = PKeyTable::default();
    keys.keys[..3].copy_from_slice(&[PKey(0xffff), PKey(0x8001), PKey(0x0002)]);
    let mut arbitration = VlArbitration::default();
    (arbitration.entries[0].vl, arbitration.entries[0].weight) = (3, 77);
    let mut groups = MulticastForwardingTable::default();
    groups.masks[31] = 0b1010;
    let lanes = SlToVl::new(std::array::from_fn(|sl| 15 - sl as u8));
    let cases: [(u16, u32, [u8; 64]); 8] = [
        (attribute::PKEY_TABLE, 2 << 16 | 1, emitted(|out| keys.emit(out))),
        (attribute::SL_TO_VL, 3 << 8 | 2, emitted(|out| lanes.emit(out))),
        (attribute::VL_ARBITRATION, 1 << 16 | 2, emitted(|out| arbitration.emit(out))),
        (attribute::VL_ARBITRATION, 4 << 16 | 2, emitted(|out| arbitration.emit(out))),
        (attribute::LINEAR_FORWARDING_TABLE, 767, std::array::from_fn(|n| n as u8)),
        (attribute::MULTICAST_FORWARDING_TABLE, 31, emitted(|out| groups.emit(out))),
        (attribute::PKEY_TABLE, 1, emitted(|out| keys.emit(out))),
        (attribute::SL_TO_VL, 1 << 8, emitted(|out| lanes.emit(out))),
    ];
    for (id, modifier, data) in cases {
        assert_eq!(manager.set(&mut subnet, id, modifier, &[1], &data), data, "{id:#x}");
        assert_eq!(manager.get(&mut subnet, id, modifier, &[1]), data, "{id:#x}");
    }
    // Other lanes of the table are as they were: identity modulo eight.
    let other = SlToVl::parse(&manager.get(&mut subnet, attribute::SL_TO_VL, 1 << 8 | 2, &[1])).unwrap();
    assert_eq!(other, SlToVl::new(std::array::from_fn(|sl| sl as u8 % 8)));
}

#[test]
fn a_wrong_m_key_is_met_with_silence_and_a_trap() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let options = SubnetOptions::default();
    let mut subnet = Subnet::of_shape(base, 3, options, &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    manager.change_port(&mut subnet, &[1, 1], 0, |info| {
        (info.m_key, info.m_key_protect_bits, info.m_key_lease_period) = (0x1234, 1, 2);
    });
    // Without the key: reading is allowed, the key is not shown; writing is not.
    let info = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 0, &[1, 1])).unwrap();
    assert_eq!(info.m_key, 0);
    let data = emitted(|out| info.emit(out));
    manager.aside.clear();
    assert_eq!(manager.ask(&mut subnet, method::SET, attribute::PORT_INFO, 0, &[1, 1], &data), None);
    let traps: Vec<Notice> = notices(&manager.aside);
    assert_eq!(traps[0].trap_number, trap::BAD_M_KEY);
    assert_eq!(traps[0].issuer_lid, graph.switches[1].lid);
    manager.m_key = 0x1234;
    let info = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 0, &[1, 1])).unwrap();
    assert_eq!((info.m_key, info.m_key_violations), (0x1234, 1));
    // A thief, and nobody who shows the key for the whole of the lease: the protection ends.
    manager.m_key = 1;
    assert_eq!(manager.ask(&mut subnet, method::SET, attribute::PORT_INFO, 0, &[1, 1], &data), None);
    manager.now += Duration::from_secs(3);
    let info = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 0, &[1, 1])).unwrap();
    assert_eq!((info.m_key_protect_bits, info.m_key_violations), (0, 2));
}

/// The notices of the traps among events.
fn notices(events: &[Event]) -> Vec<Notice> {
    let smps = events.iter().filter_map(|event| match event {
        Event::Smp { mad, .. } => Smp::from_mad(mad).ok(),
        _ => None,
    });
    smps.filter(|smp| smp.header.method == method::TRAP)
        .map(|smp| Notice::parse(&smp.data).unwrap())
        .collect()
}

#[test]
fn a_pulled_link_is_reported_until_the_manager_has_heard() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    while subnet.poll(manager.now).is_some() {}
    // Between switches 2 and 3; both are one hop from the manager's.
    subnet.link_down(manager.now, LinkId(1)).unwrap();
    let mut events = Vec::new();
    let end = manager.now + Duration::from_secs(3);
    while let Some(at) = subnet.poll_timeout().filter(|at| *at < end) {
        manager.now = at;
        events.extend(std::iter::from_fn(|| subnet.poll(at)));
    }
    let traps = notices(&events);
    // SubnetTimeOut 18 is 1.07 s: three times each in three seconds.
    assert_eq!(traps.len(), 6);
    for lid in [graph.switches[1].lid, graph.switches[2].lid] {
        let mine: Vec<_> = traps.iter().filter(|t| t.issuer_lid == lid).collect();
        assert_eq!((mine.len(), mine[0].trap_number), (3, trap::LINK_STATE_CHANGED));
        assert_eq!(TrapLinkState::parse(&mine[0].details).unwrap().lid, lid);
    }
    let state = SwitchInfo::parse(&manager.get(&mut subnet, attribute::SWITCH_INFO, 0, &[1, 1])).unwrap();
    assert!(state.port_state_change);
    // One is repressed by LID, as a manager does.
    let first = events.iter().find_map(|event| match event {
        Event::Smp { mad, slid, .. } if *slid == graph.switches[1].lid => Smp::from_mad(mad).ok(),
        _ => None,
    });
    let mut repress = first.unwrap();
    repress.header.method = method::TRAP_REPRESS;
    assert!(subnet.send_smp(manager.now, manager.port, graph.switches[1].lid, &repress.to_mad()));
    while let Some(at) = subnet.poll_timeout().filter(|at| *at < manager.now + Duration::from_millis(1)) {
        while subnet.poll(at).is_some() {}
    }
    assert_eq!([1, 2].map(|node| subnet.traps_pending(NodeId(node))), [0, 1]);
}

/// A performance MAD from the manager's host to a LID, and the answer.
fn perf(subnet: &mut Subnet, manager: &mut Manager, from: Lid, to: Lid, mad: &Mad, grh: bool) -> PerfMad {
    let gids = grh.then_some((Gid([1; 16]), Gid([2; 16])));
    let route = MadRoute { gids, ..MadRoute::services(from, to, 0) };
    subnet.send(manager.now, manager.port, route.packet(mad)).unwrap();
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        while let Some(event) = subnet.poll(at) {
            let Event::Deliver { packet, port, .. } = event else { continue };
            assert_eq!(port, manager.port);
            let (back, answer) = MadRoute::parse(&packet).unwrap();
            assert_eq!(back, route.reversed());
            return PerfMad::parse(&answer).unwrap();
        }
    }
    panic!("no answer from {to:?}");
}

fn perf_mad(method: u8, id: u16, emit: impl FnOnce(&mut [u8])) -> Mad {
    let header = MadHeader {
        base_version: 1,
        mgmt_class: class::PERF_MGT,
        class_version: perf::CLASS_VERSION,
        method,
        transaction_id: 7,
        attribute_id: id,
        ..MadHeader::default()
    };
    let mut mad = PerfMad { header, ..PerfMad::default() };
    emit(&mut mad.data);
    let mut out = [0; MAD_LEN];
    mad.emit(&mut out);
    out
}

#[test]
fn counters_tell_what_passed_and_are_cleared_one_by_one() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let (own, other, switch) = (graph.endports[0].lid, graph.endports[1].lid, graph.switches[1].lid);
    // Port 3 of the second switch leads to the second host.
    let clear =
        PortCounters { port_select: 3, counter_select: 0xffff, counter_select2: 1, ..Default::default() };
    let set = perf_mad(method::SET, perf::attribute::PORT_COUNTERS, |out| clear.emit(out));
    let cleared =
        PortCounters::parse(&perf(&mut subnet, &mut manager, own, switch, &set, false).data).unwrap();
    assert_eq!((cleared.xmit_packets, cleared.xmit_data, cleared.rcv_packets), (0, 0, 0));
    for psn in 0..10 {
        subnet.send(manager.now, manager.port, write_packet(own, other, 0, psn, 100)).unwrap();
    }
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        while subnet.poll(at).is_some() {}
    }
    let ask = PortCounters { port_select: 3, ..Default::default() };
    let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS, |out| ask.emit(out));
    let got = perf(&mut subnet, &mut manager, own, switch, &get, true);
    let counters = PortCounters::parse(&got.data).unwrap();
    // LRH 8, BTH 12, RETH 16, payload 100, ICRC 4: 35 words.
    assert_eq!((counters.xmit_packets, counters.xmit_data, counters.rcv_packets), (10, 350, 0));
    // The 64-bit ones were not cleared: bring-up went through too. All ports together saw everything twice.
    let ask = PortCountersExtended { port_select: perf::ALL_PORTS, ..Default::default() };
    let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS_EXTENDED, |out| ask.emit(out));
    let got = perf(&mut subnet, &mut manager, own, switch, &get, false);
    let extended = PortCountersExtended::parse(&got.data).unwrap();
    let sum: u64 = (1..=3)
        .map(|number| subnet.counters(PortId { node: NodeId(1), port: number }).unwrap().xmit_packets)
        .sum();
    // The answer itself has left since.
    assert_eq!(extended.xmit_packets, sum - 1);
    // A value that is written is counted on from, and stops at the top.
    let write = PortCounters {
        port_select: 3,
        counter_select: 1 << 14,
        xmit_packets: u32::MAX - 3,
        ..Default::default()
    };
    let set = perf_mad(method::SET, perf::attribute::PORT_COUNTERS, |out| write.emit(out));
    perf(&mut subnet, &mut manager, own, switch, &set, false);
    for psn in 0..10 {
        subnet.send(manager.now, manager.port, write_packet(own, other, 0, psn, 100)).unwrap();
    }
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        while subnet.poll(at).is_some() {}
    }
    let ask = PortCounters { port_select: 3, ..Default::default() };
    let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS, |out| ask.emit(out));
    let got = PortCounters::parse(&perf(&mut subnet, &mut manager, own, switch, &get, false).data).unwrap();
    assert_eq!((got.xmit_packets, got.xmit_data), (u32::MAX, 700));
    // An adapter's agent answers too, and the manager's own.
    for lid in [other, own] {
        let ask = PortCounters { port_select: 1, ..Default::default() };
        let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS, |out| ask.emit(out));
        assert_eq!(perf(&mut subnet, &mut manager, own, lid, &get, false).header.status, 0);
        let ask = PortCounters { port_select: 2, ..Default::default() };
        let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS, |out| ask.emit(out));
        let refused = perf(&mut subnet, &mut manager, own, lid, &get, false);
        assert_eq!(refused.header.status, status::INVALID_FIELD);
    }
}

#[test]
fn a_sample_counts_what_passes_in_its_interval() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let (own, other, switch) = (graph.endports[0].lid, graph.endports[1].lid, graph.switches[1].lid);
    let control = |port_select, interval, first| {
        let mut asked =
            PortSamplesControl { port_select, sample_interval: interval, tag: 9, ..Default::default() };
        asked.counter_select[..2].copy_from_slice(&[first, sample_select::XMIT_PACKETS]);
        perf_mad(method::SET, perf::attribute::PORT_SAMPLES_CONTROL, |out| asked.emit(out))
    };
    for bad in [control(255, 10, 1), control(4, 10, 1), control(3, 10, 6)] {
        let refused = perf(&mut subnet, &mut manager, own, switch, &bad, false);
        assert_eq!(refused.header.status, status::INVALID_FIELD);
    }
    // A million ticks of 4 ns, by the port to the second host.
    let set = control(3, 1_000_000, sample_select::XMIT_DATA);
    let got =
        PortSamplesControl::parse(&perf(&mut subnet, &mut manager, own, switch, &set, false).data).unwrap();
    assert_eq!(
        (got.sample_status, got.tag, got.counter_width, got.counter_masks0to9),
        (1, 9, 4, 0x0924_8000)
    );
    // One that comes meanwhile changes nothing.
    let again = control(1, 7, sample_select::RCV_DATA);
    let got =
        PortSamplesControl::parse(&perf(&mut subnet, &mut manager, own, switch, &again, false).data).unwrap();
    assert_eq!((got.sample_status, got.sample_interval), (2, 1_000_000));
    for psn in 0..10 {
        subnet.send(manager.now, manager.port, write_packet(own, other, 0, psn, 100)).unwrap();
    }
    let get = perf_mad(method::GET, perf::attribute::PORT_SAMPLES_RESULT, |_| {});
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        while subnet.poll(at).is_some() {}
    }
    // After the end, these count no more.
    for psn in 0..5 {
        subnet.send(manager.now, manager.port, write_packet(own, other, 0, psn, 100)).unwrap();
    }
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        while subnet.poll(at).is_some() {}
    }
    let got =
        PortSamplesResult::parse(&perf(&mut subnet, &mut manager, own, switch, &get, false).data).unwrap();
    assert_eq!((got.tag, got.sample_status), (9, 0));
    // 35 words a packet, see above.
    assert_eq!(got.counters[..3], [350, 10, 0]);
}

#[test]
fn a_lamp_goes_on_and_off() {
    let (mut subnet, _, mut manager) = ring();
    let lamp = |data: [u8; 64]| LedInfo::parse(&data).unwrap().on;
    assert!(!lamp(manager.get(&mut subnet, attribute::LED_INFO, 2, &[1])));
    let on = emitted(|out| LedInfo { on: true, ..LedInfo::default() }.emit(out));
    assert!(lamp(manager.set(&mut subnet, attribute::LED_INFO, 2, &[1], &on)));
    assert!(lamp(manager.get(&mut subnet, attribute::LED_INFO, 2, &[1])));
    assert!(!lamp(manager.get(&mut subnet, attribute::LED_INFO, 1, &[1])));
    assert!(!lamp(manager.set(&mut subnet, attribute::LED_INFO, 2, &[1], &[0; 64])));
}

#[test]
fn agents_of_qp1_know_their_key_and_their_classes() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let (own, switch) = (graph.endports[0].lid, graph.switches[0].lid);
    let mut mad = perf_mad(method::GET, perf::attribute::CLASS_PORT_INFO, |_| {});
    let wrong = MadRoute { qkey: everywire_wire::QKey(1), ..MadRoute::services(own, switch, 0) };
    subnet.send(manager.now, manager.port, wrong.packet(&mad)).unwrap();
    while let Some(at) = subnet.poll_timeout() {
        manager.now = at;
        let events: Vec<Event> = std::iter::from_fn(|| subnet.poll(at)).collect();
        assert!(!events.iter().any(|event| matches!(event, Event::Deliver { .. })), "{events:?}");
    }
    let ask = PortCounters { port_select: 3, ..Default::default() };
    let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS, |out| ask.emit(out));
    let got = perf(&mut subnet, &mut manager, own, switch, &get, false);
    assert_eq!(PortCounters::parse(&got.data).unwrap().qp1_dropped, 1);
    mad[1] = class::CONG_MGT;
    assert_eq!(perf(&mut subnet, &mut manager, own, switch, &mad, false).header.status, status::BAD_VERSION);
}

#[test]
fn a_link_that_damages_most_packets_is_reported() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    while subnet.poll(manager.now).is_some() {}
    subnet.set_bit_errors(LinkId(0), everywire_fabric::faults::Ppm::ALWAYS).unwrap();
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    for psn in 0..20 {
        subnet.send(manager.now, manager.port, write_packet(own, other, 0, psn, 64)).unwrap();
    }
    let mut events = Vec::new();
    while let Some(at) = subnet.poll_timeout().filter(|at| *at < base + Duration::from_secs(1)) {
        manager.now = at;
        events.extend(std::iter::from_fn(|| subnet.poll(at)));
    }
    // Its own way to the manager is the bad link, so nobody hears; the counter and the pending trap tell.
    assert_eq!(notices(&events), []);
    let c = subnet.counters(PortId { node: NodeId(1), port: 2 }).unwrap();
    assert_eq!((c.rcv_errors, c.symbol_errors, c.local_link_integrity_errors), (20, 20, 2));
    assert_eq!(subnet.traps_pending(NodeId(1)), 1);
}

#[test]
fn a_node_without_power_is_silent_and_comes_back_empty() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (mut manager, _, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    subnet.power_off(manager.now, NodeId(1));
    assert_eq!(manager.ask(&mut subnet, method::GET, attribute::NODE_INFO, 0, &[1, 1], &[]), None);
    assert_eq!(subnet.state(port(4)), port_state::DOWN, "its host's link is down");
    subnet.power_on(manager.now, NodeId(1));
    let info = PortInfo::parse(&manager.get(&mut subnet, attribute::PORT_INFO, 0, &[1, 1])).unwrap();
    assert_eq!((info.lid, info.master_sm_lid), (Lid(0), Lid(0)));
    assert_eq!(subnet.state(port(4)), port_state::INIT);
    // A port that the manager disables stays so until it is enabled.
    let changed = manager.change_port(&mut subnet, &[1], 1, |i| {
        (i.port_state, i.port_physical_state) = (port_state::DOWN, physical_state::DISABLED);
    });
    assert_eq!(changed.port_state, port_state::DOWN);
    subnet.link_up(manager.now, LinkId(0)).unwrap();
    assert!(!subnet.is_up(LinkId(0)));
    manager.change_port(&mut subnet, &[1], 1, |i| {
        (i.port_state, i.port_physical_state) = (port_state::DOWN, physical_state::POLLING);
    });
    assert!(subnet.is_up(LinkId(0)));
}

/// tshark reads what a tap writes: directed and LID-routed SMPs, performance MADs and data, nothing malformed.
#[test]
fn tshark_dissects_a_capture_of_the_links() {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let path = std::env::temp_dir().join(format!("everywire-ib-{}.pcapng", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let tap = PcapTap::new(file, &subnet, base, 1_700_000_000_000_000_000).unwrap();
    subnet.set_tap(Some(Box::new(tap)));
    let (mut manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    let ask = PortCounters { port_select: 1, ..Default::default() };
    let get = perf_mad(method::GET, perf::attribute::PORT_COUNTERS, |out| ask.emit(out));
    for grh in [false, true] {
        perf(&mut subnet, &mut manager, own, other, &get, grh);
    }
    let packet = write_packet(own, other, 3, 77, 256);
    assert_eq!(psn(&packet), 77);
    subnet.send(manager.now, manager.port, packet).unwrap();
    while let Some(at) = subnet.poll_timeout() {
        while subnet.poll(at).is_some() {}
    }
    drop(subnet.set_tap(None));
    let mut tshark = std::process::Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(&path).args(["-T", "fields", "-E", "separator=|"]);
    let fields = ["infiniband.lrh.vl", "infiniband.bth.opcode", "infiniband.mad.mgmtclass", "_ws.malformed"];
    fields.iter().for_each(|field| _ = tshark.args(["-e", field]));
    match tshark.output() {
        Err(error) => everywire_testkit::skipped(format_args!("tshark: {error}")),
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            let of = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
            // Three links between the hosts for the data; its lane is that of its service level.
            assert_eq!(of("0x03|10|"), 3, "{text}{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(of("0x00|100|0x04|"), 12, "a request and an answer, three links, twice:\n{text}");
            assert!(of("0x0f|100|0x81|") > 100, "{text}");
            assert!(text.lines().all(|line| line.ends_with('|')), "malformed:\n{text}");
        }
    }
    std::fs::remove_file(&path).unwrap();
}
