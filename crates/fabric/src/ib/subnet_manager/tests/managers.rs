//! Several managers on one subnet.

use super::*;

fn states(bench: &Bench) -> Vec<SmState> {
    bench.managers.iter().map(|manager| manager.sm.state()).collect()
}

#[test]
fn the_higher_priority_becomes_master_and_the_other_stands_by() {
    let mut bench = Bench::new(Topology::fat_tree(16, 8).unwrap());
    bench.manage(0, |config| config.priority = 1);
    bench.manage(9, |config| config.priority = 5);
    bench.run(Duration::from_secs(30));
    assert_eq!(states(&bench), [SmState::Standby, SmState::Master]);
    assert_eq!(bench.subnet.port_values(bench.host(3)).unwrap().sm_lid, bench.lid(9));
    bench.all_pairs();
}

#[test]
fn a_better_one_that_comes_later_takes_over_without_changing_lids() {
    let mut bench = Bench::new(Topology::ring(5).unwrap());
    bench.manage(0, |_| {});
    bench.run(Duration::from_secs(2));
    assert_eq!(states(&bench), [SmState::Master]);
    let lids: Vec<Lid> = (0..5).map(|n| bench.lid(n)).collect();
    bench.manage(2, |config| config.priority = 3);
    bench.run(Duration::from_secs(60));
    assert_eq!(states(&bench), [SmState::Standby, SmState::Master]);
    assert_eq!((0..5).map(|n| bench.lid(n)).collect::<Vec<_>>(), lids);
    assert_eq!(bench.subnet.port_values(bench.host(4)).unwrap().sm_lid, bench.lid(2));
    bench.all_pairs();
}

#[test]
fn a_standby_takes_over_from_a_master_that_is_gone() {
    let mut bench = Bench::new(Topology::ring(5).unwrap());
    bench.manage(0, |config| config.priority = 9);
    bench.manage(2, |config| {
        config.polling_interval = Duration::from_secs(1);
    });
    bench.run(Duration::from_secs(20));
    assert_eq!(states(&bench), [SmState::Master, SmState::Standby]);
    bench.subnet.power_off(bench.now, bench.host(0).node);
    bench.managers.remove(0);
    bench.run(Duration::from_secs(30));
    assert_eq!(states(&bench), [SmState::Master]);
    assert_eq!(bench.subnet.port_values(bench.host(4)).unwrap().sm_lid, bench.lid(2));
}

#[test]
fn of_equals_the_lower_guid_is_master() {
    let mut bench = Bench::new(Topology::ring(4).unwrap());
    bench.manage(3, |_| {});
    bench.manage(1, |_| {});
    bench.manage(2, |_| {});
    bench.run(Duration::from_secs(60));
    assert_eq!(states(&bench), [SmState::Standby, SmState::Master, SmState::Standby]);
}

/// An order as another manager gives it: by its GUID and SM_Key.
fn order(sm: &mut Sm, control: u32, guid: Guid, sm_key: u64) -> bool {
    use everywire_wire::mad::method::SET;
    use everywire_wire::smp::SmInfo;
    let now = Instant::now();
    let mut smp = Smp::lid_routed(SET, attribute::SM_INFO, control, 3);
    SmInfo { guid, sm_key, ..SmInfo::default() }.emit(&mut smp.data);
    sm.handle_mad(now, SmMad { address: Address::Smi(Lid(5)), mad: smp.to_mad() });
    let answer = sm.poll_transmit(now).unwrap();
    let reply = Smp::from_mad(&answer.mad).unwrap();
    assert_eq!((answer.address, reply.header.transaction_id), (Address::Smi(Lid(5)), 3));
    assert_eq!(SmInfo::parse(&reply.data).unwrap().state, sm.state().code());
    reply.status() == 0
}

/// A manager in some state that watches 9, and as master has offered its place to it.
fn in_state(state: SmState, sm_key: u64) -> Sm {
    let mut sm = Sm::new(SmConfig { sm_key, ..SmConfig::new(Guid(7)) }, 1);
    sm.state = state;
    sm.watched = Guid(9);
    if state == SmState::Master {
        sm.hand_over_to(Instant::now(), Guid(9));
    }
    sm
}

const STATES: [SmState; 4] = [SmState::NotActive, SmState::Discovering, SmState::Standby, SmState::Master];

/// What each state makes of each order, and whether the order is refused (IBTA §14.4.1, table of transitions).
#[test]
fn every_order_in_every_state() {
    use everywire_wire::smp::codes::sm_control::{ACKNOWLEDGE, DISABLE, DISCOVER, HANDOVER, STANDBY};
    let table = [
        (HANDOVER, [None, None, Some(SmState::Master), Some(SmState::Master)]),
        (ACKNOWLEDGE, [None, None, None, Some(SmState::Standby)]),
        (DISABLE, [None, None, Some(SmState::NotActive), None]),
        (STANDBY, [Some(SmState::Standby), None, None, None]),
        (DISCOVER, [None, None, Some(SmState::Discovering), None]),
        (6, [None; 4]),
    ];
    for (control, outcomes) in table {
        for (state, outcome) in STATES.into_iter().zip(outcomes) {
            let mut sm = in_state(state, 0x1234);
            let taken = order(&mut sm, control, Guid(9), 0x1234);
            assert_eq!(taken.then_some(sm.state()), outcome, "order {control} in {state:?}");
        }
    }
}

#[test]
fn orders_without_the_sm_key_are_refused() {
    for state in STATES {
        for control in 1..=5 {
            for key in [0, 1, 0x1235] {
                let mut sm = in_state(state, 0x1234);
                assert!(!order(&mut sm, control, Guid(9), key), "order {control} in {state:?}, key {key}");
                assert_eq!(sm.state(), state);
            }
        }
    }
    // The key that everybody starts with: 0 is what is shown to those who are not authenticated.
    for (own, theirs, taken) in [(1, 0, true), (1, 1, true), (0, 0, true), (0, 1, false), (1, 2, false)] {
        let mut sm = in_state(SmState::Standby, own);
        assert_eq!(order(&mut sm, 1, Guid(9), theirs), taken, "{own} {theirs}");
    }
}

#[test]
fn only_who_was_offered_the_place_takes_it_and_only_the_master_disables() {
    use everywire_wire::smp::codes::sm_control::{ACKNOWLEDGE, DISABLE, DISCOVER};
    let mut sm = in_state(SmState::Master, 5);
    assert!(!order(&mut sm, ACKNOWLEDGE, Guid(8), 5), "the offer went to 9");
    assert_eq!(sm.state(), SmState::Master);
    assert!(order(&mut sm, ACKNOWLEDGE, Guid(9), 5));
    let mut sm = Sm::new(SmConfig { sm_key: 5, ..SmConfig::new(Guid(7)) }, 1);
    sm.state = SmState::Master;
    assert!(!order(&mut sm, ACKNOWLEDGE, Guid(9), 5), "nothing was offered");
    for control in [DISABLE, DISCOVER] {
        let mut sm = in_state(SmState::Standby, 5);
        assert!(!order(&mut sm, control, Guid(8), 5), "9 is the master");
        assert_eq!(sm.state(), SmState::Standby);
    }
}

/// OpenSM takes the place by HANDOVER and never acknowledges: it is master, which its SMInfo says. Only who shows the SM_Key is
/// believed.
#[test]
fn a_better_one_that_is_master_has_taken_over() {
    use everywire_wire::smp::SmInfo;
    use everywire_wire::smp::codes::sm_state;
    let (own, better) = (SmState::Master, Guid(9));
    for (key, shown, after) in [(5, 5, SmState::Standby), (5, 0, own), (1, 1, SmState::Standby)] {
        let mut sm = in_state(own, key);
        let info = SmInfo {
            guid: better,
            priority: 15,
            sm_key: shown,
            state: sm_state::MASTER,
            ..SmInfo::default()
        };
        sm.others.insert(better, election::OtherSm { info, path: requests::Path::from([]) });
        sm.elect(Instant::now());
        assert_eq!(sm.state(), after, "{key} {shown}");
    }
}

/// A standby that is started anew with a higher priority tells nobody: its port is a manager's before and after.
#[test]
fn a_standby_that_is_better_now_is_found_by_the_next_look() {
    let mut bench = Bench::new(Topology::ring(4).unwrap());
    bench.manage(0, |config| config.priority = 5);
    bench.manage(2, |config| config.priority = 1);
    bench.run(Duration::from_secs(5));
    assert_eq!(states(&bench), [SmState::Master, SmState::Standby]);
    bench.managers[1].sm.config.priority = 9;
    bench.run(Duration::from_secs(15));
    assert_eq!(states(&bench), [SmState::Standby, SmState::Master]);
}

/// The key that everybody knows is shown to everybody, a secret one to those who show the M_Key (IBTA §14.2.5.13).
#[test]
fn the_sm_key_is_shown_to_who_may_see_it() {
    use everywire_wire::mad::method::GET;
    use everywire_wire::smp::SmInfo;
    for (sm_key, m_key, asked_with, shown) in [(1, 0, 0, 1), (5, 0, 0, 0), (5, 7, 0, 0), (5, 7, 7, 5)] {
        let mut sm = Sm::new(SmConfig { sm_key, m_key, ..SmConfig::new(Guid(7)) }, 1);
        let mut smp = Smp::lid_routed(GET, attribute::SM_INFO, 0, 3);
        smp.m_key = asked_with;
        let now = Instant::now();
        sm.handle_mad(now, SmMad { address: Address::Smi(Lid(5)), mad: smp.to_mad() });
        let reply = Smp::from_mad(&sm.poll_transmit(now).unwrap().mad).unwrap();
        assert_eq!(SmInfo::parse(&reply.data).unwrap().sm_key, shown, "{sm_key} {m_key} {asked_with}");
    }
}

#[test]
fn stepping_back_tells_of_no_losses() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |config| config.sm_key = 5);
    bench.events.clear();
    let sm = &mut bench.managers[0].sm;
    sm.hand_over_to(bench.now, Guid(99));
    assert!(order(sm, 2, Guid(99), 5));
    bench.drive();
    assert!(bench.events.contains(&SmEvent::State(SmState::Standby)));
    let losses = |event: &&SmEvent| matches!(event, SmEvent::PortLost(_) | SmEvent::LinkLost { .. });
    assert_eq!(bench.events.iter().find(losses), None);
    // And the subnet is still known: 4 hosts.
    assert_eq!(bench.managers[0].sm.routes().0.endports.len(), 4);
}

#[test]
fn a_better_one_that_never_acknowledges_does_not_stop_the_subnet() {
    let mut bench = Bench::new(Topology::ring(4).unwrap());
    bench.manage(0, |_| {});
    bench.run(Duration::from_secs(2));
    bench.manage(2, |config| {
        config.priority = 9;
        // It sees no order: each is refused.
        config.sm_key = 77;
    });
    // It answers questions as a standby would, and takes nothing over.
    bench.managers[1].sm.state = SmState::Standby;
    bench.managers[1].sm.watched = Guid(bench.shape.nodes[bench.host(0).node.0 as usize].guid.0 + 1);
    bench.run(Duration::from_secs(20));
    assert_eq!(states(&bench)[0], SmState::Master);
    assert!(bench.warnings().iter().any(|text| text.contains("left out")), "{:?}", bench.warnings());
    bench.events.clear();
    bench.subnet.power_off(bench.now, bench.host(3).node);
    bench.run(Duration::from_secs(2));
    bench.subnet.power_on(bench.now, bench.host(3).node);
    bench.run(Duration::from_secs(3));
    assert!(bench.is_up());
    assert_eq!(bench.subnet.state(bench.host(3)), port_state::ACTIVE, "configured all the same");
}
