//! Keys and names at an adapter's port: foreign source LIDs, P_Keys and Q_Keys that do not fit, M_Keys of TrapRepress.

use std::time::{Duration, Instant};

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_fabric::ib::subnet_manager::routing::{Graph, RoutingEngine};
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{
    Event, LinkParams, NodeId, PortId, Refusal, Subnet, SubnetOptions, Violation, WrongKey,
};
use everywire_wire::mad::method;
use everywire_wire::notice::{Notice, TrapKey, trap};
use everywire_wire::smp::{PortInfo, Smp, attribute};
use everywire_wire::{Lid, Mad, PKey, QKey, Qpn};

use crate::manager::{Manager, bring_up};
use crate::traffic::{port, write_packet};

fn up() -> (Subnet, Manager, Graph) {
    let (base, shape) = (Instant::now(), Topology::ring(3).unwrap());
    let mut subnet =
        Subnet::of_shape(base, 3, SubnetOptions::default(), &shape, LinkParams::DEFAULT).unwrap();
    let (manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
    while subnet.poll(manager.now).is_some() {}
    (subnet, manager, graph)
}

/// Events of the next time.
fn run(subnet: &mut Subnet, manager: &mut Manager, time: Duration) -> Vec<Event> {
    let end = manager.now + time;
    let mut events = Vec::new();
    while let Some(at) = subnet.poll_timeout().filter(|at| *at <= end) {
        events.extend(std::iter::from_fn(|| subnet.poll(at)));
    }
    manager.now = end;
    events
}

/// Traps that reached the manager.
fn traps(events: &[Event]) -> Vec<(Smp, Notice)> {
    let smps = events.iter().filter_map(|event| match event {
        Event::Smp { mad, .. } => Smp::from_mad(mad).ok(),
        _ => None,
    });
    let traps = smps.filter(|smp| smp.header.method == method::TRAP);
    traps.map(|smp| (smp, Notice::parse(&smp.data).unwrap())).collect()
}

fn port_info(subnet: &mut Subnet, port: PortId) -> PortInfo {
    PortInfo::parse(&subnet.inspect(port, attribute::PORT_INFO, 1).unwrap()).unwrap()
}

fn packet(from: Lid, to: Lid, pkey: PKey) -> Vec<u8> {
    let mut mad: Mad = [0; 256];
    (mad[0], mad[1]) = (1, 0x0a);
    MadRoute { pkey, ..MadRoute::services(from, to, 0) }.packet(&mad)
}

#[test]
fn nobody_sends_in_anothers_name() {
    let (mut subnet, mut manager, graph) = up();
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    for slid in [other, Lid(own.0 + 1), Lid(0), Lid(0xc000), Lid::PERMISSIVE] {
        let refused =
            subnet.send(manager.now, manager.port, write_packet(slid, other, 0, 1, 64)).unwrap_err();
        assert_eq!(refused.reason, Refusal::ForeignSource(slid));
    }
    assert_eq!(subnet.counters(manager.port).unwrap().foreign_sources, 5);
    assert_eq!(subnet.in_flight(), 0);
    // All of the port's own range may send: LMC 1 makes it two.
    let base = Lid(own.0 & !1 | 0x40);
    manager.change_port(&mut subnet, &[], 1, |info| (info.lid, info.lmc) = (base, 1));
    for slid in [base, Lid(base.0 + 1)] {
        subnet.send(manager.now, manager.port, write_packet(slid, other, 0, 1, 64)).unwrap();
    }
    let refused = subnet.send(manager.now, manager.port, write_packet(Lid(base.0 + 2), other, 0, 1, 64));
    assert!(refused.is_err());
}

#[test]
fn packets_of_other_partitions_are_dropped_counted_and_told() {
    let (mut subnet, mut manager, graph) = up();
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    let send = |subnet: &mut Subnet, manager: &mut Manager, pkey| {
        subnet.send(manager.now, manager.port, packet(own, other, pkey)).unwrap();
        run(subnet, manager, Duration::from_millis(1))
    };
    let delivered = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Deliver { .. }));
    assert!(delivered(&send(&mut subnet, &mut manager, PKey::DEFAULT)));
    // A limited member of the port's full partition.
    assert!(delivered(&send(&mut subnet, &mut manager, PKey(0x7fff))));
    let mut told = Vec::new();
    for (pkey, count) in [(PKey(0x8123), 1), (PKey(0x0123), 2), (PKey(0x8000), 3)] {
        let events = send(&mut subnet, &mut manager, pkey);
        assert!(!delivered(&events), "{pkey:?}");
        assert_eq!(port_info(&mut subnet, port(4)).p_key_violations, count);
        told.extend(traps(&events));
    }
    // One trap for the three, of the first; the next not before it is due again.
    assert_eq!(told.len(), 1);
    let (notice, details) = (told[0].1, TrapKey::parse(&told[0].1.details).unwrap());
    assert_eq!((notice.trap_number, notice.issuer_lid, notice.producer_type), (trap::BAD_P_KEY, other, 1));
    assert_eq!((details.lid1, details.lid2, details.key), (own, other, 0x8123));
    assert_eq!((details.qp1, details.qp2), (Qpn::GSI, Qpn::GSI));
    // Again until it is repressed.
    assert_eq!(traps(&run(&mut subnet, &mut manager, Duration::from_millis(1100))).len(), 1);
}

#[test]
fn a_driver_reports_q_keys() {
    let (mut subnet, mut manager, graph) = up();
    let (own, other) = (graph.endports[0].lid, graph.endports[1].lid);
    let bytes = packet(own, other, PKey::DEFAULT);
    let violation = Violation::of_packet(WrongKey::QKey(QKey(0x1234_5678)), &bytes).unwrap();
    assert_eq!((violation.slid, violation.dest_qp, violation.source_qp), (own, Qpn::GSI, Qpn::GSI));
    subnet.report_violation(manager.now, port(4), &violation);
    let told = traps(&run(&mut subnet, &mut manager, Duration::from_millis(1)));
    let details = TrapKey::parse(&told[0].1.details).unwrap();
    assert_eq!((told[0].1.trap_number, details.key, details.lid1), (trap::BAD_Q_KEY, 0x1234_5678, own));
    assert_eq!(port_info(&mut subnet, port(4)).q_key_violations, 1);
    // A switch has no driver.
    subnet.report_violation(manager.now, PortId { node: NodeId(1), port: 1 }, &violation);
    assert_eq!(subnet.traps_pending(NodeId(1)), 0);
    assert!(Violation::of_packet(violation.key, &bytes[..7]).is_err());
}

#[test]
fn a_trap_is_repressed_with_the_m_key_only() {
    let (mut subnet, mut manager, graph) = up();
    let other = graph.endports[1].lid;
    let info = port_info(&mut subnet, port(4));
    let (lid, m_key) = (info.lid, 0x77);
    let mut data = [0; 64];
    let keyed = PortInfo { m_key, m_key_protect_bits: 1, port_state: 0, port_physical_state: 0, ..info };
    keyed.emit(&mut data);
    let mut set = Smp::lid_routed(method::SET, attribute::PORT_INFO, 1, 0);
    set.data = data;
    assert_eq!(manager.transact(&mut subnet, lid, set).unwrap().status(), 0);
    let violation =
        Violation::of_packet(WrongKey::QKey(QKey(1)), &packet(other, other, PKey::DEFAULT)).unwrap();
    subnet.report_violation(manager.now, port(4), &violation);
    let told = traps(&run(&mut subnet, &mut manager, Duration::from_millis(1)));
    let mut repress = told[0].0;
    repress.header.method = method::TRAP_REPRESS;
    // The wrong key represses nothing and makes a trap of its own.
    for (key, pending) in [(0x78, 2), (m_key, 1)] {
        repress.m_key = key;
        assert!(subnet.send_smp(manager.now, manager.port, lid, &repress.to_mad()));
        run(&mut subnet, &mut manager, Duration::from_millis(1));
        assert_eq!(subnet.traps_pending(NodeId(4)), pending);
    }
}
