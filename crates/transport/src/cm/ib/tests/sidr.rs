//! SIDR: asked, answered, refused, lost, bounded.

use everywire_wire::cm::{CmMessage, SidrRep, SidrStatus};
use everywire_wire::{PKey, QKey, Qpn};

use super::harness::*;
use crate::cm::ib::*;

const UDP_SERVICE: u64 = 0x0111_1c06;

fn params() -> SidrParams {
    SidrParams {
        path: path(A, B),
        service_id: UDP_SERVICE,
        pkey: PKey::DEFAULT,
        private_data: b"who".to_vec(),
    }
}

fn answer() -> SidrAnswer {
    SidrAnswer {
        status: SidrStatus::Valid,
        qpn: Qpn::new(0x77),
        // The Q_Key of Linux's RDMA_UDP_QKEY.
        qkey: QKey(0x0123_4567),
        private_data: b"me".to_vec(),
    }
}

fn listen(net: &mut Net) {
    net.b.cm.listen(&ListenParams { service_id: UDP_SERVICE, local: None, backlog: 2 }).unwrap();
}

#[test]
fn resolve() {
    let mut net = Net::new();
    listen(&mut net);
    let a = net.a.cm.sidr_request(net.now, &params()).unwrap();
    net.settle();
    let [CmEvent::SidrRequest { id, private_data, .. }] = &net.b.events[..] else {
        panic!("{:?}", net.b.events)
    };
    assert_eq!((private_data.len(), &private_data[..3]), (216, &b"who"[..]));
    let id = *id;
    net.b.cm.sidr_reply(id, &answer()).unwrap();
    net.settle();
    let [CmEvent::SidrReply { id: asked, answer }] = &net.a.events[..] else { panic!("{:?}", net.a.events) };
    assert_eq!(
        (*asked, answer.status, answer.qpn, answer.qkey),
        (a, SidrStatus::Valid, Qpn::new(0x77), QKey(0x0123_4567))
    );
    assert_eq!((answer.private_data.len(), &answer.private_data[..2]), (136, &b"me"[..]));
    assert_eq!(net.b.cm.sidr_reply(id, &super::sidr::answer()), Err(CmCallError::UnknownId(id)));
    assert_eq!(net.log, [">SIDR_REQ", "<SIDR_REP"]);
    assert_eq!((net.a.cm.footprint(), net.b.cm.footprint()), (0, 1));
}

#[test]
fn losses() {
    let mut net = Net::new();
    listen(&mut net);
    net.lose = vec![0, 2];
    net.a.cm.sidr_request(net.now, &params()).unwrap();
    net.settle();
    assert!(net.tick());
    for _ in 0..2 {
        // A repeated request while the program thinks is one event; after a lost answer it is another.
        let Some(CmEvent::SidrRequest { id, .. }) = net.b.events.pop() else { panic!() };
        net.b.cm.sidr_reply(id, &answer()).unwrap();
        net.settle();
        if net.a.events.is_empty() {
            assert!(net.tick());
        }
    }
    assert_eq!(net.log, ["[>SIDR_REQ]", ">SIDR_REQ", "[<SIDR_REP]", ">SIDR_REQ", "<SIDR_REP"]);
    assert!(matches!(net.a.events[..], [CmEvent::SidrReply { .. }]));
}

#[test]
fn refusals_and_silence() {
    let mut net = Net::new();
    net.a.cm.sidr_request(net.now, &params()).unwrap();
    net.settle();
    let Some(CmEvent::SidrReply { answer, .. }) = net.a.events.pop() else { panic!() };
    assert_eq!(answer.status, SidrStatus::UnsupportedServiceId);

    listen(&mut net);
    net.a.cm.sidr_request(net.now, &params()).unwrap();
    net.settle();
    let Some(CmEvent::SidrRequest { id, .. }) = net.b.events.pop() else { panic!() };
    net.b.cm.abandon(net.now, id);
    net.settle();
    let Some(CmEvent::SidrReply { answer, .. }) = net.a.events.pop() else { panic!() };
    assert_eq!(answer.status, SidrStatus::Rejected);

    // The third finds the backlog of two full.
    for _ in 0..3 {
        net.a.cm.sidr_request(net.now, &params()).unwrap();
    }
    net.settle();
    assert_eq!(net.b.events.len(), 2);
    let Some(CmEvent::SidrReply { answer, .. }) = net.a.events.pop() else { panic!() };
    assert_eq!(answer.status, SidrStatus::NoQp);

    // Neither of the two is answered: each ends once, on both sides.
    net.b.events.clear();
    net.run_out();
    assert_eq!(net.b.events.len(), 2);
    assert!(
        net.b.events.iter().all(|e| matches!(e, CmEvent::SidrFailed { failure: Failure::NotAnswered, .. }))
    );
    assert_eq!(net.a.events.len(), 2);
    assert!(
        net.a
            .events
            .iter()
            .all(|e| matches!(e, CmEvent::SidrFailed { failure: Failure::TimedOut { tries: 16, .. }, .. }))
    );
    assert_eq!((net.a.cm.footprint(), net.b.cm.footprint()), (0, 1));
}

#[test]
fn answers_from_elsewhere_are_counted() {
    let mut net = Net::new();
    let a = net.a.cm.sidr_request(net.now, &params()).unwrap();
    let rep = SidrRep { request_id: a.0, qpn: Qpn::new(9), ..SidrRep::default() };
    net.a.cm.handle_mad(net.now, path(A, "192.0.2.66"), &forged(1, rep));
    net.a.cm.handle_mad(net.now, path(A, B), &forged(1, SidrRep { request_id: a.0 ^ 1, ..rep }));
    assert_eq!((net.a.cm.counters().wrong_source, net.a.cm.counters().stray), (1, 1));
    assert!(net.a.cm.poll_event().is_none());
    let CmMessage::SidrReq(req) = parsed(&net.a.cm.poll_transmit().unwrap().1) else { panic!() };
    assert_eq!((req.request_id, req.service_id, req.pkey), (a.0, UDP_SERVICE, PKey::DEFAULT));
}
