//! The end of connections: in any order, at once, without an answer, by a peer that has forgotten, by letting go.

use everywire_wire::Qpn;
use everywire_wire::cm::{Apr, AprStatus, CmMessage, Dreq, Lap, Rej, RejReason};

use super::harness::*;
use crate::cm::ib::*;

/// The one Disconnected among the events, checked to be one.
fn cause(side: &Side) -> DisconnectCause {
    let mut causes = side.events.iter().filter_map(|event| match event {
        CmEvent::Disconnected { cause, .. } => Some(cause.clone()),
        _ => None,
    });
    let first = causes.next().expect("a Disconnected");
    assert_eq!(causes.next(), None, "CM-01: exactly one");
    first
}

#[test]
fn one_side_disconnects() {
    let mut net = Net::new();
    net.listen(8);
    let (a, b) = net.connected(0x11, 0x22);
    net.a.cm.disconnect(net.now, a, b"bye").unwrap();
    net.settle();
    assert_eq!(net.log[3..], [">DREQ", "<DREP"]);
    assert_eq!((cause(&net.a), cause(&net.b)), (DisconnectCause::Local, DisconnectCause::Peer));
    let CmEvent::Disconnected { private_data, .. } = &net.b.events[0] else { panic!() };
    assert_eq!(private_data[..3], *b"bye");
    // CM-01: the late call of the other side is an error that says why, and harmless.
    let late = net.b.cm.disconnect(net.now, b, &[]).unwrap_err();
    assert_eq!(late.to_string(), format!("disconnect is not possible in state TimeWait of connection {b}"));
    net.settle();
    assert_eq!(net.log.len(), 5);
}

/// CM-01, CM-03: both at once, with every combination of the four MADs lost.
#[test]
fn both_sides_disconnect_at_once() {
    for pattern in 0u32..64 {
        let mut net = Net::new();
        net.listen(8);
        let (a, b) = net.connected(0x11, 0x22);
        net.lose = (0..6).filter(|bit| pattern >> bit & 1 == 1).map(|at| at + 3).collect();
        net.a.cm.disconnect(net.now, a, &[]).unwrap();
        net.b.cm.disconnect(net.now, b, &[]).unwrap();
        net.run_out();
        let (at_a, at_b) = (cause(&net.a), cause(&net.b));
        assert_eq!(at_a, DisconnectCause::Local, "{pattern:#b} {:?}", net.log);
        assert_eq!(at_b, DisconnectCause::Local, "{pattern:#b} {:?}", net.log);
        for side in [&net.a, &net.b] {
            let exits = side.events.iter().filter(|e| matches!(e, CmEvent::TimewaitExit { .. })).count();
            assert_eq!(exits, 1, "CM-03: TimewaitExit once");
        }
    }
}

/// CM-02: the peer is unplugged.
#[test]
fn dreq_without_answer() {
    let mut net = Net::new();
    net.listen(8);
    let (a, _) = net.connected(0x11, 0x22);
    net.cut = (true, true);
    net.a.cm.disconnect(net.now, a, &[]).unwrap();
    net.settle();
    while net.a.events.is_empty() {
        assert!(net.tick());
    }
    assert_eq!(cause(&net.a), DisconnectCause::TimedOut);
    assert_eq!(net.log.iter().filter(|name| *name == "[>DREQ]").count(), 16);
    assert!(net.a.cm.qpn_in_timewait(Qpn::new(0x11)));
    net.run_out();
    assert!(!net.a.cm.qpn_in_timewait(Qpn::new(0x11)));
}

/// DREQ in every state of the receiver. Its sender is always answered, except where there is no connection yet.
#[test]
fn dreq_in_every_state() {
    let mut net = Net::new();
    net.listen(8);
    // Unknown.
    let stray = Dreq { local_comm_id: 1, remote_comm_id: 2, ..Dreq::default() };
    net.b.cm.handle_mad(net.now, path(B, A), &forged(7, stray));
    let CmMessage::Drep(drep) = parsed(&net.b.cm.poll_transmit().unwrap().1) else { panic!("a DREP") };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (2, 1));

    // REP Sent: RTU was lost and the peer is done already.
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.a.take_reply();
    net.lose = vec![net.sent];
    net.a.cm.establish(net.now, a, &[]).unwrap();
    net.settle();
    net.a.cm.disconnect(net.now, a, &[]).unwrap();
    net.settle();
    assert_eq!(net.log, [">REQ", "<REP", "[>RTU]", ">DREQ", "<DREP"]);
    assert_eq!(cause(&net.b), DisconnectCause::Peer);
    assert!(!net.b.events.iter().any(|e| matches!(e, CmEvent::Established { .. })));

    // TimeWait: answered again, told once.
    let again =
        Dreq { local_comm_id: a.0, remote_comm_id: b.0, remote_qpn: Qpn::new(0x22), ..Dreq::default() };
    net.b.cm.handle_mad(net.now, path(B, A), &forged(8, again));
    net.settle();
    assert_eq!(net.log.last().unwrap(), "<DREP");
    assert_eq!(cause(&net.b), DisconnectCause::Peer);
}

/// The passive program closes before the RTU has come: the active side, established, must hear it.
#[test]
fn passive_disconnects_before_rtu() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.a.take_reply();
    net.lose = vec![net.sent];
    net.a.cm.establish(net.now, a, &[]).unwrap();
    net.settle();
    net.b.cm.disconnect(net.now, b, &[]).unwrap();
    net.settle();
    assert_eq!((cause(&net.a), cause(&net.b)), (DisconnectCause::Peer, DisconnectCause::Local));
}

/// A DREQ must name our queue pair; one that does not is no peer's.
#[test]
fn dreq_for_another_queue_pair() {
    let mut net = Net::new();
    net.listen(8);
    let (a, b) = net.connected(0x11, 0x22);
    let wrong =
        Dreq { local_comm_id: a.0, remote_comm_id: b.0, remote_qpn: Qpn::new(0x23), ..Dreq::default() };
    net.b.cm.handle_mad(net.now, path(B, A), &forged(8, wrong));
    net.settle();
    assert_eq!(net.b.cm.state(b), Some(State::Established));
    assert_eq!(net.b.cm.counters().malformed, 1);
}

/// The peer was restarted and connects again with the queue pair of the old connection.
#[test]
fn stale_connection() {
    let mut net = Net::new();
    net.listen(8);
    let (_, old) = net.connected(0x11, 0x22);
    net.a.cm = Cm::new(CmConfig::default(), 99);
    let second = net.connect(0x11);
    net.settle();
    // IBTA §12.9.8.3.1: REJ 10 to the new REQ, and the old connection is taken down.
    assert_eq!(net.log[3..], [">REQ", "<DREQ", ">DREP", "<REJ 10"]);
    assert_eq!(cause(&net.b), DisconnectCause::Stale);
    assert_eq!(net.b.cm.state(old), Some(State::Timewait));
    let [CmEvent::Rejected { id, rejection }] = &net.a.events[..] else { panic!("{:?}", net.a.events) };
    assert_eq!((*id, rejection.reason), (second, RejReason::StaleConnection));
    // The next attempt succeeds.
    net.a.events.clear();
    net.b.events.clear();
    net.connected(0x11, 0x23);
}

/// Restarted with the same seed: the same communication id, another life.
#[test]
fn stale_connection_with_the_same_id() {
    let mut net = Net::new();
    net.listen(8);
    let (_, old) = net.connected(0x11, 0x22);
    net.a.cm = Cm::new(net.a.cm.config().clone(), 1);
    net.connect(0x12);
    net.settle();
    assert_eq!(net.log.iter().filter(|name| *name == "<REJ 10").count(), 1);
    assert_eq!(cause(&net.b), DisconnectCause::Stale);
    assert_eq!(net.b.cm.state(old), Some(State::Timewait));
    // Again from the start: the old record is in time-wait and does not stand in the way.
    net.a.events.clear();
    net.b.events.clear();
    net.a.cm = Cm::new(net.a.cm.config().clone(), 1);
    net.connected(0x13, 0x24);
}

/// The peer's queue pair is named by a new request while the old one still waits for the program.
#[test]
fn stale_request() {
    let mut net = Net::new();
    net.listen(8);
    net.connect(0x11);
    net.settle();
    let first = net.b.take_request().id;
    net.a.cm = Cm::new(CmConfig::default(), 99);
    net.connect(0x11);
    net.settle();
    let [CmEvent::Failed { id, failure: Failure::Stale }] = net.b.events[..] else {
        panic!("{:?}", net.b.events)
    };
    assert_eq!(id, first);
    assert_eq!(net.log.last().unwrap(), "<REJ 10");
}

#[test]
fn time_wait_holds_the_qpn_and_refuses_late_messages() {
    let mut net = Net::new();
    net.listen(8);
    let (a, b) = net.connected(0x11, 0x22);
    net.a.cm.disconnect(net.now, a, &[]).unwrap();
    net.settle();
    assert!(net.a.cm.qpn_in_timewait(Qpn::new(0x11)) && net.b.cm.qpn_in_timewait(Qpn::new(0x22)));
    // 4.096 µs × 2^19: the local ACK timeout that REQ named.
    let start = net.now;
    net.a.events.clear();
    while net.a.cm.state(a).is_some() {
        assert!(net.tick());
    }
    assert_eq!((net.now - start).as_millis(), 2147);
    assert!(
        matches!(net.a.events[..], [CmEvent::TimewaitExit { id, qpn }] if id == a && qpn == Qpn::new(0x11))
    );
    while net.b.cm.state(b).is_some() {
        assert!(net.tick());
    }
    assert!(!net.a.cm.qpn_in_timewait(Qpn::new(0x11)) && !net.b.cm.qpn_in_timewait(Qpn::new(0x22)));
}

#[test]
fn time_wait_is_bounded() {
    let config = CmConfig { max_timewait: 4, ..CmConfig::default() };
    let mut net = Net::with(config.clone(), config);
    net.listen(8);
    for round in 0..10 {
        let (a, _) = net.connected(0x100 + round, 0x200 + round);
        net.a.cm.disconnect(net.now, a, &[]).unwrap();
        net.settle();
        let exits = net.a.events.iter().filter(|e| matches!(e, CmEvent::TimewaitExit { .. })).count();
        assert_eq!(exits, (round as usize + 1).saturating_sub(4), "each early exit is told");
        assert_eq!(net.a.cm.counters().timewait_early, exits as u64);
    }
    assert!(net.a.cm.qpn_in_timewait(Qpn::new(0x109)) && !net.a.cm.qpn_in_timewait(Qpn::new(0x105)));
}

/// CM-10: a program that lets go hears nothing more, and the peer hears that it is over.
#[test]
fn abandon_in_every_state() {
    // Established.
    let mut net = Net::new();
    net.listen(8);
    let (a, _) = net.connected(0x11, 0x22);
    net.a.cm.abandon(net.now, a);
    net.run_out();
    assert_eq!(net.log[3..], [">DREQ", "<DREP"]);
    assert!(net.a.events.is_empty());
    assert_eq!(cause(&net.b), DisconnectCause::Peer);
    assert_eq!(net.a.cm.footprint(), 0);

    // REQ received.
    let mut net = Net::new();
    net.listen(8);
    net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.abandon(net.now, b);
    net.run_out();
    assert_eq!(net.log, [">REQ", "<REJ 28"]);
    assert!(net.b.events.is_empty() && matches!(net.a.events[..], [CmEvent::Rejected { .. }]));

    // REP received.
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.a.take_reply();
    net.a.cm.abandon(net.now, a);
    net.run_out();
    assert_eq!(net.log, [">REQ", "<REP", ">REJ 28"]);
    assert!(net.a.events.is_empty());
    assert!(matches!(net.b.events[..], [CmEvent::Rejected { .. }, CmEvent::TimewaitExit { .. }]));

    // Time-wait, and with a dead peer: a few DREQs, then gone.
    let mut net = Net::new();
    net.listen(8);
    let (a, _) = net.connected(0x11, 0x22);
    net.cut = (true, true);
    net.a.cm.abandon(net.now, a);
    net.run_out();
    assert_eq!(net.log[3..], ["[>DREQ]"; 4]);
    assert!(net.a.events.is_empty());
    assert_eq!(net.a.cm.footprint(), 0);
}

/// The active side is established, the passive side has given up: its REJ ends the connection on both.
#[test]
fn reject_after_rtu() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.a.take_reply();
    net.a.cm.establish(net.now, a, &[]).unwrap();
    let rej = Rej {
        local_comm_id: b.0,
        remote_comm_id: a.0,
        message_rejected: 2,
        reason: RejReason::Timeout,
        ..Rej::default()
    };
    // Not from its peer, or for another pair: nothing happens.
    net.a.cm.handle_mad(net.now, path(A, "192.0.2.66"), &forged(1, rej));
    net.a.cm.handle_mad(net.now, path(A, B), &forged(1, Rej { local_comm_id: 1, ..rej }));
    assert_eq!(net.a.cm.state(a), Some(State::Established));
    net.a.cm.handle_mad(net.now, path(A, B), &forged(1, rej));
    net.settle();
    assert_eq!(cause(&net.a), DisconnectCause::Rejected(RejReason::Timeout));
}

#[test]
fn alternate_paths_are_refused_by_name() {
    let mut net = Net::new();
    net.listen(8);
    let (a, b) = net.connected(0x11, 0x22);
    let lap = Lap { local_comm_id: a.0, remote_comm_id: b.0, remote_qpn: Qpn::new(0x22), ..Lap::default() };
    let mut ask = |lap: Lap| -> Apr {
        net.b.cm.handle_mad(net.now, path(B, A), &forged(3, lap));
        match parsed(&net.b.cm.poll_transmit().unwrap().1) {
            CmMessage::Apr(apr) => apr,
            other => panic!("{other:?}"),
        }
    };
    let apr = ask(lap);
    assert_eq!((apr.local_comm_id, apr.remote_comm_id, apr.status), (b.0, a.0, AprStatus::NotSupported));
    let apr = ask(Lap { remote_comm_id: b.0 ^ 1, ..lap });
    assert_eq!(apr.status, AprStatus::InvalidCommId);
    assert_eq!(net.b.cm.state(b), Some(State::Established));
}
