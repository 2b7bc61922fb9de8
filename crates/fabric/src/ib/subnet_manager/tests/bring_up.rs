//! From cold to all pairs, and back to that after a link has gone.

use super::*;

fn shapes() -> Vec<Topology> {
    vec![
        Topology::fat_tree(16, 8).unwrap(),
        Topology::fat_tree(16, 4).unwrap(),
        Topology::ring(6).unwrap(),
        Topology::torus(3, 3).unwrap(),
    ]
}

/// At port 0 of a switch: brought up, asked, told by traps, and it hands over and takes over as at any other port.
#[test]
fn a_manager_may_be_in_a_switch() {
    use everywire_wire::sa::method::GET_TABLE;
    use everywire_wire::sa::{LinkRecord, SaMad, SmInfoRecord};
    let mut bench = Bench::new(Topology::ring(4).unwrap());
    bench.manage_in_switch(1);
    bench.run(Duration::from_secs(2));
    assert!(bench.is_up(), "{:?}", bench.events);
    bench.all_pairs();
    let lid = bench.managers[0].lid(&bench.subnet);
    for host in 0..4 {
        assert_eq!(bench.subnet.port_values(bench.host(host)).unwrap().sm_lid, lid);
    }
    // 16 records of 8 bytes and SMInfo: one segment each, by RMPP, acknowledged.
    let links = bench.ask(3, SaMad::with_record(GET_TABLE, &LinkRecord::default(), 0, 7));
    assert_eq!((links[0].header.status, links[0].rmpp.data2), (0, 20 + 16 * 8));
    let managers = bench.ask(0, SaMad::with_record(GET_TABLE, &SmInfoRecord::default(), 0, 8));
    assert_eq!(SmInfoRecord::parse(&managers[0].data).unwrap().lid, lid);
    bench.events.clear();
    bench.subnet.link_down(bench.now, bench.links[0]).unwrap();
    bench.run(Duration::from_secs(1));
    assert!(bench.events.iter().any(|event| matches!(event, SmEvent::LinkLost { .. })), "{:?}", bench.events);
    bench.all_pairs();
    bench.manage(2, |config| config.priority = 9);
    bench.run(Duration::from_secs(5));
    let states: Vec<SmState> = bench.managers.iter().map(|manager| manager.sm.state()).collect();
    assert_eq!(states, [SmState::Standby, SmState::Master]);
    bench.all_pairs();
    bench.subnet.power_off(bench.now, bench.host(2).node);
    bench.run(Duration::from_secs(60));
    assert_eq!(bench.managers[0].sm.state(), SmState::Master);
}

#[test]
fn all_shapes_come_up_and_everyone_reaches_everyone() {
    for shape in shapes() {
        for engine in [
            RoutingEngine::MinHop,
            RoutingEngine::UpDown { roots: vec![] },
            RoutingEngine::FatTree { roots: vec![] },
        ] {
            let mut bench = Bench::up(shape.clone(), |config| config.engine = engine.clone());
            for link in &bench.links {
                for end in bench.subnet.ends(*link).unwrap() {
                    assert_eq!(bench.subnet.state(end), port_state::ACTIVE, "{end:?}");
                }
            }
            bench.all_pairs();
            let unexpected = bench.warnings().into_iter().find(|w| !w.contains("/down"));
            assert_eq!(unexpected, None);
        }
    }
}

#[test]
fn min_hop_on_a_ring_names_its_loop() {
    let bench = Bench::up(Topology::ring(6).unwrap(), |_| {});
    let cycle = bench.events.iter().find_map(|event| match event {
        SmEvent::CreditLoop(text) => Some(text.clone()),
        _ => None,
    });
    assert!(cycle.is_some_and(|text| text.contains("s1[")));
    let bench = Bench::up(Topology::ring(6).unwrap(), |config| {
        config.engine = RoutingEngine::UpDown { roots: vec![] };
    });
    assert!(!bench.events.iter().any(|event| matches!(event, SmEvent::CreditLoop(_))));
}

#[test]
fn ports_are_told_what_they_need() {
    let bench = Bench::up(Topology::fat_tree(16, 8).unwrap(), |config| {
        config.lmc = 2;
        config.gid_prefix = 0xfec0_0000_0000_0001;
        config.subnet_timeout = 15;
    });
    for n in 0..16 {
        let values = bench.subnet.port_values(bench.host(n)).unwrap();
        assert_eq!((values.state, values.lmc, values.lid.0 % 4), (port_state::ACTIVE, 2, 0));
        assert_eq!((values.sm_lid, values.subnet_timeout), (bench.lid(0), 15));
        assert_eq!(values.gid_prefix, 0xfec0_0000_0000_0001);
        assert_eq!((values.mtu.bytes(), values.pkeys[0]), (4096, PKey::DEFAULT));
    }
}

#[test]
fn a_link_that_goes_is_routed_round_and_one_that_comes_is_used_again() {
    for shape in shapes() {
        let mut bench = Bench::up(shape, |_| {});
        let between = |bench: &Bench, link: &LinkId| {
            let ends = bench.subnet.ends(*link).unwrap();
            ends.iter().all(|end| bench.shape.nodes[end.node.0 as usize].is_switch)
        };
        let link = *bench.links.iter().find(|link| between(&bench, link)).unwrap();
        let lids: Vec<Lid> = (0..bench.hosts()).map(|n| bench.lid(n)).collect();
        bench.subnet.link_down(bench.now, link).unwrap();
        bench.events.clear();
        // Long before the next light sweep: a trap has told it.
        bench.run(Duration::from_secs(1));
        assert!(bench.is_up(), "{:?}", bench.events);
        assert!(bench.events.iter().any(|event| matches!(event, SmEvent::LinkLost { .. })));
        bench.all_pairs();
        bench.subnet.link_up(bench.now, link).unwrap();
        bench.events.clear();
        bench.run(Duration::from_secs(1));
        assert!(bench.is_up(), "{:?}", bench.events);
        bench.all_pairs();
        let ends = bench.subnet.ends(link).unwrap();
        assert_eq!(ends.map(|end| bench.subnet.state(end)), [port_state::ACTIVE; 2]);
        assert_eq!((0..bench.hosts()).map(|n| bench.lid(n)).collect::<Vec<_>>(), lids);
    }
}

#[test]
fn a_host_that_goes_is_told_and_keeps_its_lid_when_it_comes_back() {
    let mut bench = Bench::up(Topology::fat_tree(16, 8).unwrap(), |_| {});
    let (node, lid) = (bench.host(5).node, bench.lid(5));
    let guid = Guid(bench.shape.nodes[node.0 as usize].guid.0 + 1);
    bench.subnet.power_off(bench.now, node);
    bench.run(Duration::from_secs(1));
    assert!(bench.events.contains(&SmEvent::PortLost(guid)), "{:?}", bench.events);
    bench.events.clear();
    bench.subnet.power_on(bench.now, node);
    bench.run(Duration::from_secs(1));
    assert!(bench.events.contains(&SmEvent::PortUp(guid)), "{:?}", bench.events);
    assert_eq!(bench.lid(5), lid);
    bench.all_pairs();
}

#[test]
fn a_switch_that_was_off_is_set_up_from_the_start() {
    let mut bench = Bench::up(Topology::fat_tree(16, 8).unwrap(), |_| {});
    let spine = bench.nodes[4];
    bench.subnet.power_off(bench.now, spine);
    bench.run(Duration::from_secs(2));
    bench.all_pairs();
    bench.subnet.power_on(bench.now, spine);
    bench.run(Duration::from_secs(2));
    bench.all_pairs();
    let state = bench.subnet.state(PortId { node: spine, port: 1 });
    assert_eq!(state, port_state::ACTIVE);
}

#[test]
fn a_quiet_subnet_is_left_in_peace() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |_| {});
    bench.events.clear();
    bench.run(Duration::from_secs(60));
    assert_eq!(bench.events, []);
    // The next sweep writes nothing.
    let sm = &mut bench.managers[0].sm;
    sm.sweep(bench.now);
    let mut sets = 0;
    let end = bench.now + Duration::from_secs(1);
    while bench.now < end {
        bench.run(Duration::from_millis(100));
        sets += bench.warnings().len();
    }
    assert_eq!(sets, 0);
    assert!(bench.is_up());
}

#[test]
fn lost_packets_are_sent_again() {
    let mut bench = Bench::new(Topology::ring(4).unwrap());
    bench.manage(0, |config| config.timeout = Duration::from_millis(5));
    // Pull and plug while it looks around: answers get lost, and in the end everything is up.
    for _ in 0..5 {
        bench.run(Duration::from_micros(300));
        bench.subnet.link_down(bench.now, bench.links[1]).unwrap();
        bench.run(Duration::from_micros(300));
        bench.subnet.link_up(bench.now, bench.links[1]).unwrap();
    }
    bench.run(Duration::from_secs(30));
    bench.all_pairs();
}

#[test]
fn a_link_pulled_under_traffic_is_routed_round_within_milliseconds() {
    let mut bench = Bench::up(Topology::fat_tree(16, 8).unwrap(), |config| {
        config.engine = RoutingEngine::FatTree { roots: vec![] };
    });
    // The way from host 1 to host 13, by our own tables: its first link up is pulled.
    let (graph, tables) = bench.managers[0].sm.routes();
    let from = graph.endports.iter().position(|e| e.lid == bench.lid(0)).unwrap();
    let (leaf, port) = tables.path(graph, from as u32, bench.lid(12)).unwrap()[0];
    let guid = graph.switches[leaf as usize].guid;
    let node = bench.shape.nodes.iter().position(|n| n.guid == guid).unwrap();
    let end = PortId { node: bench.nodes[node], port };
    let link = *bench.links.iter().find(|l| bench.subnet.ends(**l).unwrap().contains(&end)).unwrap();
    bench.delivered.clear();
    bench.events.clear();
    let (mut sent, mut lost_until) = (0usize, 0);
    for n in 0..500 {
        if n == 100 {
            bench.subnet.link_down(bench.now, link).unwrap();
        }
        let mut mad = [0; 256];
        (mad[0], mad[1]) = (1, 0x0a);
        let packet = MadRoute::services(bench.lid(0), bench.lid(12), 0).packet(&mad);
        bench.subnet.send(bench.now, bench.host(0), packet).unwrap();
        sent += 1;
        let before = bench.delivered.len();
        bench.run(Duration::from_micros(100));
        if bench.delivered.len() == before {
            lost_until = n;
        }
    }
    let lost = sent - bench.delivered.len();
    assert!(lost_until < 150 && lost <= 50, "{lost} lost, the last at {lost_until}");
    assert!(lost > 0, "the link was not on the way");
    assert!(bench.is_up() && bench.events.iter().any(|e| matches!(e, SmEvent::LinkLost { .. })));
}

/// Nobody can tell the manager that its own cable is back but its own port; the next look round may be 10 s away.
#[test]
fn a_manager_looks_round_when_its_own_cable_is_back() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |_| {});
    let own = bench.host(0);
    let ends = |bench: &Bench, link: &LinkId| bench.subnet.ends(*link).unwrap().contains(&own);
    let link = *bench.links.iter().find(|link| ends(&bench, link)).unwrap();
    bench.subnet.link_down(bench.now, link).unwrap();
    bench.run(Duration::from_secs(25));
    bench.subnet.link_up(bench.now, link).unwrap();
    bench.run(Duration::from_secs(1));
    assert_eq!(bench.subnet.state(own), port_state::ACTIVE);
    bench.all_pairs();
}

#[test]
fn a_large_fabric_comes_up_in_less_than_a_second() {
    let mut bench = Bench::new(Topology::fat_tree(648, 36).unwrap());
    bench.manage(0, |config| {
        config.engine = RoutingEngine::FatTree { roots: vec![] };
        config.qos = false;
        config.window = 64;
    });
    bench.run(Duration::from_millis(900));
    let up = SmEvent::SubnetUp { switches: 54, end_ports: 648, engine: "fat-tree" };
    assert!(bench.events.contains(&up), "{:?}", bench.warnings());
    assert_eq!(bench.warnings(), Vec::<&str>::new());
    assert_eq!(bench.subnet.state(bench.host(647)), port_state::ACTIVE);
}
