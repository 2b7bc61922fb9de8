//! The handshake: what is sent, what is told, and what happens when messages are lost, late, doubled or refused.

use std::time::Duration;

use everywire_wire::cm::{CmMessage, Mra, RejReason, Rep};
use everywire_wire::{Mtu, Qpn};

use super::harness::*;
use crate::cm::ib::*;

#[test]
fn handshake() {
    let mut net = Net::new();
    let listener = net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let request = net.b.take_request();
    assert_eq!((request.listener, request.service_id, request.peer_qpn), (listener, SERVICE, Qpn::new(0x11)));
    assert_eq!(request.path, path(B, A));
    // IBTA §12.7.31: the peer's initiator depth is what our responder must serve, and the reverse.
    assert_eq!((request.responder_resources, request.initiator_depth), (8, 4));
    assert_eq!(request.private_data[..5], *b"hello");
    assert_eq!(request.private_data[5..], [0; 87]);

    let b_params = net.b.cm.accept(net.now, request.id, &accept_params(0x22)).unwrap();
    net.settle();
    let reply = net.a.take_reply();
    assert_eq!(reply.id, a);
    assert_eq!(reply.private_data[..7], *b"welcome");
    let a_params = reply.params;
    // The two queue pairs fit together.
    assert_eq!((a_params.dest_qpn, b_params.dest_qpn), (Qpn::new(0x22), Qpn::new(0x11)));
    assert_eq!((a_params.sq_psn, a_params.rq_psn), (b_params.rq_psn, b_params.sq_psn));
    assert_eq!((a_params.max_rd_atomic, b_params.max_dest_rd_atomic), (8, 8));
    assert_eq!((b_params.max_rd_atomic, a_params.max_dest_rd_atomic), (4, 4));
    assert_eq!((a_params.path_mtu, b_params.path_mtu), (Mtu::M1024, Mtu::M1024));
    assert_eq!((a_params.flow_label, b_params.flow_label), (0x12345, 0x12345));

    net.a.cm.establish(net.now, a, b"go").unwrap();
    net.settle();
    let [CmEvent::Established { id, by, private_data }] = &net.b.events[..] else {
        panic!("{:?}", net.b.events)
    };
    assert_eq!((*id, *by), (request.id, EstablishedBy::Rtu));
    assert_eq!(private_data[..2], *b"go");
    assert_eq!(net.log, [">REQ", "<REP", ">RTU"]);
    assert_eq!((net.a.cm.poll_timeout(), net.b.cm.poll_timeout()), (None, None));
}

/// Every subset of the first nine MADs is lost; both ends must still come together and part, each with one event.
#[test]
fn every_loss_pattern_of_a_whole_life() {
    for pattern in 0u32..512 {
        let mut net = Net::new();
        net.listen(8);
        net.lose = (0..9).filter(|bit| pattern >> bit & 1 == 1).collect();
        let a = net.connect(0x11);
        let mut asked = false;
        let mut replied = false;
        for _ in 0..40 {
            net.settle();
            asked |= net.b.events.iter().any(|e| matches!(e, CmEvent::Request(_)));
            replied |= net.a.events.iter().any(|e| matches!(e, CmEvent::Reply(_)));
            net.b.serve(net.now, 0x22);
            net.a.serve(net.now, 0x11);
            net.settle();
            let up = net.b.events.iter().any(|e| matches!(e, CmEvent::Established { .. }));
            if up && net.a.cm.state(a) == Some(State::Established) {
                net.a.cm.disconnect(net.now, a, &[]).unwrap();
                net.settle();
            }
            if !net.tick() {
                break;
            }
        }
        assert!(asked && replied, "{pattern:#b} {:?}", net.log);
        let a_kinds: Vec<_> = net.a.events.iter().map(std::mem::discriminant).collect();
        assert_eq!(a_kinds.len(), 2, "{pattern:#b}: {:?} {:?}", net.a.events, net.log);
        assert!(matches!(net.a.events[0], CmEvent::Disconnected { cause: DisconnectCause::Local, .. }));
        assert!(matches!(net.a.events[1], CmEvent::TimewaitExit { .. }));
        assert!(
            matches!(
                net.b.events[..],
                [
                    CmEvent::Established { .. },
                    CmEvent::Disconnected { cause: DisconnectCause::Peer, .. },
                    CmEvent::TimewaitExit { .. }
                ]
            ),
            "{pattern:#b}: {:?} {:?}",
            net.b.events,
            net.log
        );
        assert_eq!(net.a.cm.footprint(), 0, "{pattern:#b}");
        assert_eq!(net.b.cm.footprint(), 1, "{pattern:#b}: the listener");
    }
}

/// Nobody answers: 1 + 15 transmissions, one every response timeout plus round trip, then exactly one failure.
#[test]
fn silence_ends_the_attempt() {
    let mut net = Net::new();
    net.cut = (true, true);
    let a = net.connect(0x11);
    net.settle();
    let mut took = Duration::ZERO;
    let start = net.now;
    while net.a.events.is_empty() {
        assert!(net.tick());
        took = net.now - start;
    }
    let mut expected = vec!["[>REQ]"; 16];
    expected.push("[>REJ 4]");
    assert_eq!(net.log, expected);
    // 16 × (4.096 µs × 2^20 + 4.096 µs × 2^19).
    assert_eq!(took, Duration::from_nanos(4096 * ((1 << 20) + (1 << 19))) * 16);
    let [CmEvent::Failed { id, failure }] = net.a.events[..] else { panic!() };
    assert_eq!((id, failure), (a, Failure::TimedOut { state: State::ReqSent, tries: 16 }));
    assert!(net.a.cm.qpn_in_timewait(Qpn::new(0x11)));
    net.run_out();
    assert!(!net.a.cm.qpn_in_timewait(Qpn::new(0x11)));
    assert_eq!(net.a.cm.footprint(), 0);
}

/// The passive side waits for RTU as long as the active side waits for REP.
#[test]
fn rep_without_rtu_times_out() {
    let mut net = Net::new();
    net.listen(8);
    net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.cut = (true, true);
    net.settle();
    while net.b.events.is_empty() {
        assert!(net.tick());
    }
    assert_eq!(net.log.iter().filter(|name| *name == "[<REP]").count(), 16);
    let [CmEvent::Failed { failure, .. }] = net.b.events[..] else { panic!() };
    assert_eq!(failure, Failure::TimedOut { state: State::RepSent, tries: 16 });
}

/// CM-04: the client dies between REP and RTU. Its successor knows nothing of the connection and says so.
#[test]
fn client_killed_before_rtu() {
    let mut net = Net::new();
    net.listen(8);
    net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.a.cm = Cm::new(CmConfig::default(), 99);
    net.settle();
    assert_eq!(net.log, [">REQ", "<REP", ">REJ 6"]);
    let [CmEvent::Rejected { id, rejection }] = &net.b.events[..] else { panic!("{:?}", net.b.events) };
    assert_eq!((*id, rejection.reason), (b, RejReason::InvalidCommId));
    // CM-04: and what the program does about it afterwards is an error, not silence.
    let error = net.b.cm.disconnect(net.now, b, &[]).unwrap_err();
    assert_eq!(error, CmCallError::WrongState { id: b, call: "disconnect", state: State::Timewait });
}

/// CM-04: it dies after REQ instead; accepting is possible, and ends.
#[test]
fn client_killed_before_rep() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.a.cm.abandon(net.now, a);
    net.settle();
    // IBTA §12.6.7.2, reason 4: the GUID tells whose request it was.
    let [CmEvent::Rejected { id, rejection }] = &net.b.events[..] else { panic!("{:?}", net.b.events) };
    assert_eq!(
        (*id, rejection.reason, &rejection.info[..]),
        (b, RejReason::Timeout, &0xau64.to_be_bytes()[..])
    );
    assert_eq!(net.b.cm.accept(net.now, b, &accept_params(0x22)), Err(CmCallError::UnknownId(b)));
    assert!(net.a.events.is_empty());
}

/// The RTU is lost, data is not.
#[test]
fn data_establishes() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.lose = vec![2];
    net.a.cm.establish(net.now, a, &[]).unwrap();
    net.settle();
    net.b.cm.data_arrived(net.now, b);
    net.b.cm.data_arrived(net.now, b);
    net.settle();
    assert!(
        matches!(net.b.events[..], [CmEvent::Established { by: EstablishedBy::Data, .. }]),
        "{:?}",
        net.b.events
    );
    // The timer that would repeat REP is off; a late RTU changes nothing.
    assert_eq!(net.b.cm.poll_timeout(), None);
    assert_eq!(net.log, [">REQ", "<REP", "[>RTU]"]);
}

#[test]
fn repeated_rep_is_answered_with_the_same_rtu() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.lose = vec![2];
    net.a.cm.establish(net.now, a, b"once").unwrap();
    net.settle();
    assert!(net.tick());
    assert_eq!(net.log, [">REQ", "<REP", "[>RTU]", "<REP", ">RTU"]);
    let [CmEvent::Established { private_data, .. }] = &net.b.events[..] else { panic!() };
    assert_eq!(private_data[..4], *b"once");
    assert_eq!(net.a.cm.counters().duplicates, 1);
}

/// A repeated REQ is answered by MRA while the program thinks (as Linux), by the same REP when it has.
#[test]
fn repeated_req() {
    let mut net = Net::new();
    net.listen(8);
    net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    assert!(net.tick());
    assert_eq!(net.log, [">REQ", ">REQ", "<MRA"]);
    assert_eq!(net.b.cm.state(b), Some(State::ReqMraSent));
    assert!(net.b.events.is_empty(), "one request, one event");
    // The active side now waits the 4.096 µs × 2^24 that Linux's rdma_cm asks for, and its own interval.
    let due = net.a.cm.poll_timeout().unwrap() - net.now;
    assert_eq!(due.as_millis(), 68_719 + 4_294 + 2_147 + 1);
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.lose = vec![3];
    net.settle();
    // The REP is lost; another REQ makes it come again at once.
    let again = forged_req_again(&net);
    net.b.cm.handle_mad(net.now, path(B, A), &again);
    net.settle();
    assert_eq!(net.log[3..], ["[<REP]", "<REP"]);
    net.a.take_reply();
}

/// The REQ that `a` has out, once more.
fn forged_req_again(net: &Net) -> [u8; 256] {
    let mut copy = Cm::new(net.a.cm.config().clone(), 1);
    copy.connect(net.now, &connect_params(path(A, B), 0x11)).unwrap();
    *copy.poll_transmit().unwrap().1
}

#[test]
fn mra_by_the_program_both_ways() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.ask_for_time(net.now, b, 20).unwrap();
    net.settle();
    assert_eq!(net.a.cm.state(a), Some(State::ReqMraReceived));
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.a.take_reply();
    net.a.cm.ask_for_time(net.now, a, 21).unwrap();
    net.settle();
    assert_eq!(net.b.cm.state(b), Some(State::RepMraReceived));
    net.a.cm.establish(net.now, a, &[]).unwrap();
    net.settle();
    assert_eq!(net.log, [">REQ", "<MRA", "<REP", ">MRA", ">RTU"]);
    assert!(matches!(net.b.events[..], [CmEvent::Established { .. }]));
}

/// However much time a peer asks for, however often: it ends.
#[test]
fn mra_cannot_hold_for_ever() {
    let mut net = Net::new();
    let a = net.connect(0x11);
    net.cut = (true, true);
    net.settle();
    let mra = Mra { local_comm_id: 5, remote_comm_id: a.0, service_timeout: 31, ..Mra::default() };
    let start = net.now;
    while net.a.events.is_empty() {
        for _ in 0..100 {
            net.a.cm.handle_mad(net.now, path(A, B), &forged(1, mra));
        }
        assert!(net.tick());
    }
    let took = net.now - start;
    assert!(took < Duration::from_secs(16 * (69 + 7)), "{took:?}");
    assert!(matches!(net.a.events[0], CmEvent::Failed { .. }));
}

/// CM-07: every reason arrives as it was sent, with its number and its name.
#[test]
fn every_reject_reason() {
    for &reason in RejReason::ALL {
        let mut net = Net::new();
        net.listen(8);
        let a = net.connect(0x11);
        net.settle();
        let b = net.b.take_request().id;
        let reject = Reject { reason, info: b"why", private_data: b"said the program" };
        net.b.cm.reject(net.now, b, &reject).unwrap();
        net.settle();
        let [CmEvent::Rejected { id, rejection }] = &net.a.events[..] else { panic!("{:?}", net.a.events) };
        assert_eq!((*id, rejection.reason, &rejection.info[..]), (a, reason, &b"why"[..]));
        assert_eq!(rejection.private_data[..16], *b"said the program");
        assert!(!rejection.reason.name().is_empty());
        // CM-07: rejecting what is gone is an error that can be ignored.
        assert_eq!(net.b.cm.reject(net.now, b, &reject), Err(CmCallError::UnknownId(b)));
        // A stale connection keeps our QPN from being used at once, any other reason does not.
        assert_eq!(net.a.cm.qpn_in_timewait(Qpn::new(0x11)), reason == RejReason::StaleConnection);
    }
}

#[test]
fn active_side_rejects_the_reply() {
    let mut net = Net::new();
    net.listen(8);
    let a = net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.settle();
    net.a.cm.reject(net.now, a, &Reject::consumer(b"no")).unwrap();
    // The REJ is lost; the repeated REP is refused again.
    net.lose = vec![2];
    net.settle();
    // Our time-wait is over before that: nothing is left but the answer to a stray.
    assert!(net.tick() && net.tick());
    assert_eq!(net.log, [">REQ", "<REP", "[>REJ 28]", "<REP", ">REJ 6"]);
    assert!(matches!(net.b.events[..], [CmEvent::Rejected { .. }]));
}

/// A full backlog is said, with a reason that Linux knows, and frees again.
#[test]
fn backlog() {
    let mut net = Net::new();
    net.listen(2);
    for qpn in 0x10..0x13 {
        net.connect(qpn);
    }
    net.settle();
    assert_eq!(net.log[3..], ["<REJ 3"]);
    assert_eq!(net.b.events.len(), 2);
    assert_eq!(net.b.cm.counters().backlog_full, 1);
    let first = net.b.take_request().id;
    net.b.cm.accept(net.now, first, &accept_params(0x22)).unwrap();
    net.connect(0x14);
    net.settle();
    assert_eq!(net.b.events.len(), 2, "the accepted one has made room");
    let second = net.b.take_request().id;
    net.b.cm.reject(net.now, second, &Reject::consumer(&[])).unwrap();
    net.connect(0x15);
    net.settle();
    assert_eq!(net.b.events.len(), 2, "and so has the rejected one");
}

#[test]
fn a_listener_for_one_address_wins_and_one_service_is_listened_on_once() {
    let mut net = Net::new();
    let all = net.listen(8);
    let here = ListenParams { service_id: SERVICE, local: Some(ip(B)), backlog: 8 };
    let here = net.b.cm.listen(&here).unwrap();
    let again = net.b.cm.listen(&ListenParams { service_id: SERVICE, local: None, backlog: 8 });
    assert_eq!(again, Err(CmCallError::ServiceInUse { service_id: SERVICE }));
    net.connect(0x11);
    net.settle();
    assert_eq!(net.b.take_request().listener, here);
    net.b.cm.unlisten(here);
    net.connect(0x12);
    net.settle();
    assert_eq!(net.b.take_request().listener, all);
    net.b.cm.unlisten(all);
    net.connect(0x13);
    net.settle();
    assert_eq!(net.log.last().unwrap(), "<REJ 8");
}

/// The program never answers: the peer is told in the end, and the place in the backlog is free again.
#[test]
fn a_request_nobody_answers() {
    let mut net = Net::new();
    net.listen(1);
    net.connect(0x11);
    net.settle();
    let b = net.b.take_request().id;
    net.run_out();
    assert!(net.b.events.iter().any(|e| matches!(e, CmEvent::Failed { failure: Failure::NotAnswered, .. })));
    let rejected = net.a.events.iter().filter(|e| !matches!(e, CmEvent::TimewaitExit { .. })).count();
    assert_eq!(rejected, 1, "{:?}", net.a.events);
    assert_eq!(net.b.cm.accept(net.now, b, &accept_params(0x22)), Err(CmCallError::UnknownId(b)));
    net.b.events.clear();
    net.connect(0x12);
    net.settle();
    net.b.take_request();
}

#[test]
fn limits_of_private_data() {
    let mut net = Net::new();
    net.listen(8);
    let mut params = connect_params(path(A, B), 0x11);
    params.private_data = vec![7; 93];
    let too_long = |message, limit, given| CmCallError::PrivateDataTooLong { message, limit, given };
    assert_eq!(net.a.cm.connect(net.now, &params), Err(too_long("REQ", 92, 93)));
    params.private_data = vec![7; 92];
    let a = net.a.cm.connect(net.now, &params).unwrap();
    net.settle();
    let request = net.b.take_request();
    assert_eq!(request.private_data, [7; 92]);
    let mut answer = accept_params(0x22);
    answer.private_data = vec![8; 197];
    let refused = net.b.cm.accept(net.now, request.id, &answer).unwrap_err();
    assert_eq!(refused.to_string(), "197 bytes of private data, but a REP carries at most 196");
    answer.private_data = vec![8; 196];
    net.b.cm.accept(net.now, request.id, &answer).unwrap();
    net.settle();
    assert_eq!(net.a.take_reply().private_data, [8; 196]);
    assert_eq!(net.a.cm.establish(net.now, a, &[0; 225]), Err(too_long("RTU", 224, 225)));
    net.a.cm.establish(net.now, a, &[9; 224]).unwrap();
    net.settle();
    assert_eq!(net.a.cm.disconnect(net.now, a, &[0; 221]), Err(too_long("DREQ", 220, 221)));
    net.connect(0x12);
    net.settle();
    net.b.events.remove(0);
    let second = net.b.take_request().id;
    let long = Reject { reason: RejReason::ConsumerReject, info: &[], private_data: &[0; 149] };
    assert_eq!(net.b.cm.reject(net.now, second, &long), Err(too_long("REJ", 148, 149)));
}

/// CM-05: a neighbour or route that fails ends attempts, never a connection.
#[test]
fn unreachable() {
    let mut net = Net::new();
    net.listen(8);
    let (up, _) = net.connected(0x11, 0x22);
    let attempt = net.connect(0x12);
    net.a.cm.unreachable(net.now, ip(B));
    net.a.cm.unreachable(net.now, ip("192.0.2.9"));
    net.settle();
    let [CmEvent::Failed { id, failure: Failure::Unreachable }] = net.a.events[..] else {
        panic!("{:?}", net.a.events)
    };
    assert_eq!(id, attempt);
    assert_eq!(net.a.cm.state(up), Some(State::Established));
}

/// CM-04: the client dies between REP and RTU. Nothing is established, so the network's word ends it at once, with or
/// without an MRA before; the queue pair number rests, since its peer may have begun to send.
#[test]
fn unreachable_between_rep_and_rtu() {
    for mra in [false, true] {
        let mut net = Net::new();
        net.listen(8);
        let a = net.connect(0x11);
        net.settle();
        let request = net.b.take_request().id;
        net.b.cm.accept(net.now, request, &accept_params(0x22)).unwrap();
        net.settle();
        if mra {
            net.a.take_reply();
            net.a.cm.ask_for_time(net.now, a, 20).unwrap();
            net.settle();
            assert_eq!(net.b.cm.state(request), Some(State::RepMraReceived));
        }
        net.b.cm.unreachable(net.now, ip(A));
        net.settle();
        let [CmEvent::Failed { id, failure: Failure::Unreachable }] = net.b.events[..] else {
            panic!("{:?}", net.b.events)
        };
        assert_eq!((id, net.b.cm.state(id)), (request, Some(State::Timewait)));
        assert!(net.b.cm.qpn_in_timewait(Qpn::new(0x22)));
        net.b.events.clear();
        net.run_out();
        let [CmEvent::TimewaitExit { id: rested, .. }] = net.b.events[..] else {
            panic!("a second end: {:?}", net.b.events)
        };
        assert_eq!(rested, id);
    }
}

/// RX-32: a REQ that asks for an endless local ACK timeout (0), or one of hours, or of microseconds. The queue pair gets what
/// loses no packet for ever, and the connection rests at least a round trip, 2^19 · 4.096 µs.
#[test]
fn ack_timeouts_within_reason() {
    for (asked, given, rest) in [(0, 19, 2147), (31, 22, 17_179), (8, 8, 2147), (19, 19, 2147)] {
        let mut net = Net::new();
        net.listen(8);
        let params = ConnectParams { ack_timeout: Some(asked), ..connect_params(path(A, B), 0x11) };
        net.a.cm.connect(net.now, &params).unwrap();
        net.settle();
        let request = net.b.take_request().id;
        let negotiated = net.b.cm.accept(net.now, request, &accept_params(0x22)).unwrap();
        assert_eq!(negotiated.ack_timeout, given, "{asked}");
        net.settle();
        net.b.cm.unreachable(net.now, ip(A));
        assert_eq!(net.b.cm.state(request), Some(State::Timewait));
        let due = net.b.cm.poll_timeout().unwrap();
        assert_eq!((due - net.now).as_millis(), rest, "{asked}");
    }
}

/// A careless peer takes more responder resources than were offered; the adapter's limit holds.
#[test]
fn reply_that_takes_more_than_offered() {
    let mut net = Net::new();
    let a = net.connect(0x11);
    net.cut = (true, true);
    net.settle();
    let rep = Rep {
        local_comm_id: 77,
        remote_comm_id: a.0,
        local_qpn: Qpn::new(0x99),
        starting_psn: psn(0xffffff),
        responder_resources: 200,
        initiator_depth: 255,
        rnr_retry_count: 3,
        ..Rep::default()
    };
    net.a.cm.handle_mad(net.now, path(A, B), &forged(1, rep));
    net.settle();
    let p = net.a.take_reply().params;
    assert_eq!((p.max_rd_atomic, p.max_dest_rd_atomic), (8, 128));
    assert_eq!((p.rnr_retry_count, p.sq_psn), (3, psn(0xffffff)));
    // Another passive side answers the same REQ (repeated on its way): it is not ours to connect to twice.
    let other = Rep { local_comm_id: 78, ..rep };
    net.a.cm.handle_mad(net.now, path(A, B), &forged(1, other));
    net.settle();
    assert!(net.a.events.is_empty());
    assert!(matches!(net.a.cm.state(a), Some(State::RepReceived)));
}

#[test]
fn comm_ids_carry_the_process_slot() {
    let config = CmConfig { id_slot: Some(0x2a), ..CmConfig::default() };
    let mut cm = Cm::new(config, 3);
    for qpn in 0x10..0x20 {
        let id = cm.connect(std::time::Instant::now(), &connect_params(path(A, B), qpn)).unwrap();
        assert_eq!(id.0 >> 24, 0x2a);
        let CmMessage::Req(req) = parsed(&cm.poll_transmit().unwrap().1) else { panic!() };
        assert_eq!(req.local_comm_id, id.0);
    }
}
