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

/// What each state makes of each order, and whether the order is refused (IBTA §14.4.1, table of transitions).
#[test]
fn every_order_in_every_state() {
    use everywire_wire::mad::method::SET;
    use everywire_wire::smp::SmInfo;
    use everywire_wire::smp::codes::sm_control::{ACKNOWLEDGE, DISABLE, DISCOVER, HANDOVER, STANDBY};
    const STATES: [SmState; 4] =
        [SmState::NotActive, SmState::Discovering, SmState::Standby, SmState::Master];
    let order = |state: SmState, control: u32| {
        let now = Instant::now();
        let mut sm = Sm::new(SmConfig::new(Guid(7)), 1);
        sm.state = state;
        let mut smp = Smp::lid_routed(SET, attribute::SM_INFO, control, 3);
        SmInfo { guid: Guid(9), ..SmInfo::default() }.emit(&mut smp.data);
        sm.handle_mad(now, SmMad { address: Address::Smi(Lid(5)), mad: smp.to_mad() });
        let answer = sm.poll_transmit(now).unwrap();
        let reply = Smp::from_mad(&answer.mad).unwrap();
        assert_eq!((answer.address, reply.header.transaction_id), (Address::Smi(Lid(5)), 3));
        assert_eq!(SmInfo::parse(&reply.data).unwrap().state, sm.state().code());
        (reply.status() == 0).then_some(sm.state())
    };
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
            assert_eq!(order(state, control), outcome, "order {control} in {state:?}");
        }
    }
}
