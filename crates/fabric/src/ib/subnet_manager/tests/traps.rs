//! What the manager makes of traps, and of those who make them up.

use super::*;
use crate::ib::Violation;
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

/// A packet with these keys from the third host's port to the second's, to QP1: a question to its counters.
fn question(bench: &mut Bench, pkey: PKey, qkey: QKey) {
    let mut mad = [0; 256];
    (mad[0], mad[1], mad[2], mad[3]) = (1, class::PERF_MGT, 1, method::GET);
    let route = MadRoute { pkey, qkey, ..MadRoute::services(bench.lid(2), bench.lid(1), 0) };
    bench.subnet.send(bench.now, bench.host(2), route.packet(&mad)).unwrap();
    bench.run(Duration::from_millis(10));
}

/// How many wrong P_Keys and Q_Keys a port has counted.
fn violations(bench: &mut Bench, port: PortId) -> (u16, u16) {
    let info = bench.subnet.inspect(port, attribute::PORT_INFO, u32::from(port.port)).unwrap();
    let info = everywire_wire::smp::PortInfo::parse(&info).unwrap();
    (info.p_key_violations, info.q_key_violations)
}

/// IBTA §10.9.3, §10.2.5, §13.4.9: counted where it happens, trapped, repressed by the manager and told of.
#[test]
fn wrong_keys_are_counted_repressed_and_told_of() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |config| config.enforce_partitions = false);
    let victim = bench.host(1);
    let [own, other] = [1, 2].map(|n| bench.lid(n).0);
    question(&mut bench, PKey(0x9234), QKey::GSI);
    question(&mut bench, PKey::DEFAULT, QKey(0x4321));
    assert_eq!(violations(&mut bench, victim), (1, 1));
    // A queue pair's own, as its driver tells the port.
    let mut packet = MadRoute { qkey: QKey(5), ..MadRoute::services(bench.lid(2), bench.lid(1), 0) };
    packet.dest_qp = Qpn::new(0x77);
    let violation = Violation::of_dropped(true, &packet.packet(&[0; 256])).unwrap();
    bench.run(Duration::from_secs(5)); // traps are so far apart
    bench.subnet.report_violation(bench.now, victim, &violation);
    bench.run(Duration::from_secs(1));
    assert_eq!(violations(&mut bench, victim), (1, 2));
    assert_eq!(bench.subnet.traps_pending(victim.node), 0, "repressed");
    let told = bench.warnings();
    let text = |key: &str, number: u16| {
        format!(
            "h2 (LID {own}) has dropped a packet for its {key}: from h3 (LID {other}), queue pair 0x1, \
             to h2 (LID {own}), queue pair 0x1, SL 0 (trap {number})"
        )
    };
    // The second Q_Key within ten seconds is not told of, but answered.
    assert_eq!(told, [text("P_Key 0x9234", 257), text("Q_Key 0x00004321", 258)]);
    bench.run(Duration::from_secs(5));
    bench.subnet.report_violation(bench.now, victim, &violation);
    bench.run(Duration::from_secs(1));
    assert!(bench.warnings()[2].contains("Q_Key 0x00000005") && bench.warnings()[2].contains("pair 0x77"));
}

/// IBTA §10.9.3: a switch that keeps partitions apart says so by trap 259, and the adapter never sees the packet.
#[test]
fn a_switchs_wrong_p_key_is_told_of_with_its_port() {
    let mut bench = Bench::up(Topology::ring(4).unwrap(), |_| {});
    let victim = bench.host(1);
    question(&mut bench, PKey(0x9234), QKey::GSI);
    assert_eq!(violations(&mut bench, victim), (0, 0));
    let told = bench.warnings();
    assert_eq!(told.len(), 1);
    for words in ["s3 (LID ", "P_Key 0x9234 at port ", "from h3 (LID ", "(trap 259)"] {
        assert!(told[0].contains(words), "no {words}: {}", told[0]);
    }
    assert!((0..8).all(|node| bench.subnet.traps_pending(NodeId(node)) == 0), "repressed");
}
