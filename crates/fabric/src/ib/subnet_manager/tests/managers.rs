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
