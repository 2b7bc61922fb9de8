//! What the manager makes of traps, and of those who make them up.

use super::*;
use everywire_wire::mad::method::{TRAP, TRAP_REPRESS};
use everywire_wire::notice::{Notice, TrapCapabilities, kind, trap};

/// A trap of some number as from `from` about `issuer`; whether it was answered and how many sweeps began since.
fn tell(bench: &mut Bench, from: Lid, issuer: Lid, number: u16, details: TrapCapabilities) -> bool {
    let mut notice = Notice::generic(kind::URGENT, 2, number, issuer);
    details.emit(&mut notice.details);
    let mut smp = Smp::lid_routed(TRAP, attribute::NOTICE, 0, 3);
    notice.emit(&mut smp.data);
    let sm = &mut bench.managers[0].sm;
    sm.handle_mad(bench.now, SmMad { address: Address::Smi(from), mad: smp.to_mad() });
    let answered = sm.answers.pop_front();
    answered.is_some_and(|answer| Smp::from_mad(&answer.mad).unwrap().header.method == TRAP_REPRESS)
}

fn sweeps(bench: &Bench) -> usize {
    bench.events.iter().filter(|event| matches!(event, SmEvent::SubnetUp { .. })).count()
}

fn switch_lid(bench: &Bench) -> Lid {
    bench.managers[0].sm.routes().0.switches[1].lid
}

#[test]
fn only_the_issuer_itself_is_listened_to() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |_| {});
    bench.events.clear();
    let (switch, host) = (switch_lid(&bench), bench.lid(2));
    let none = TrapCapabilities::default();
    for (from, issuer) in [(Lid(500), Lid(500)), (host, switch), (Lid(0xc001), Lid(0xc001)), (host, Lid(0))] {
        assert!(!tell(&mut bench, from, issuer, trap::LINK_STATE_CHANGED, none), "{from:?} for {issuer:?}");
        assert!(bench.managers[0].sm.is_idle());
    }
    assert!(tell(&mut bench, switch, switch, trap::LINK_STATE_CHANGED, none));
    bench.run(Duration::from_secs(1));
    assert_eq!(sweeps(&bench), 1);
}

#[test]
fn a_flood_of_traps_is_a_sweep_in_a_while() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |_| {});
    bench.events.clear();
    let switch = switch_lid(&bench);
    for _ in 0..500 {
        assert!(tell(&mut bench, switch, switch, trap::LINK_STATE_CHANGED, TrapCapabilities::default()));
        bench.run(Duration::from_millis(1));
    }
    bench.run(Duration::from_secs(1));
    // Half a second of traps, 100 ms from one sweep to the next: the first, and five or six more.
    assert!((6..=7).contains(&sweeps(&bench)), "{}", sweeps(&bench));
}

#[test]
fn a_new_name_or_mask_needs_no_sweep_but_a_new_manager_does() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |_| {});
    bench.events.clear();
    bench.subnet.set_node_name(bench.now, bench.host(2).node, "renamed");
    bench.run(Duration::from_secs(1));
    assert_eq!(sweeps(&bench), 0);
    let known = |bench: &Bench| {
        let known = &bench.managers[0].sm.known;
        known.nodes.values().any(|node| node.name() == "renamed")
    };
    assert!(known(&bench));
    bench.subnet.set_sm(bench.now, bench.host(3), true);
    bench.run(Duration::from_secs(2));
    assert_eq!(sweeps(&bench), 1);
}
