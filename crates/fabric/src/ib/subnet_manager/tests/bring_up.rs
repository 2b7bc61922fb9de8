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
    assert!(cycle.is_some_and(|text| text.contains("switch-1[")));
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
