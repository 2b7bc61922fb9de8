//! Peers that lie: every MAD is answered by the standard's reason or counted, never more.

use everywire_wire::cm::{CmMad, CmMessage, Rej, RejReason, Req, TransportService};
use everywire_wire::{Gid, Qpn};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::harness::*;
use crate::cm::ib::*;

/// A REQ from A to B that would be welcome.
fn good_req() -> Req {
    let mut cm = Cm::new(CmConfig::default(), 5);
    cm.connect(std::time::Instant::now(), &connect_params(path(A, B), 0x11)).unwrap();
    let CmMessage::Req(req) = parsed(&cm.poll_transmit().unwrap().1) else { panic!("a REQ") };
    req
}

/// What B answers to a REQ: the REJ, or nothing.
fn answer(change: impl FnOnce(&mut Req)) -> Option<Rej> {
    let mut net = Net::new();
    net.listen(8);
    let mut req = good_req();
    change(&mut req);
    net.b.cm.handle_mad(net.now, path(B, A), &forged(9, req));
    let rej = match parsed(&net.b.cm.poll_transmit()?.1) {
        CmMessage::Rej(rej) => rej,
        other => panic!("{other:?}"),
    };
    // IBTA §12.6.7: the REJ names the REQ's id and gives none of its own.
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.message_rejected), (0, req.local_comm_id, 0));
    assert!(net.b.cm.poll_event().is_none());
    Some(rej)
}

/// The reasons of IBTA table 110 that the engine finds on its own.
#[test]
fn reasons_to_refuse_a_req() {
    assert_eq!(answer(|_| ()), None, "welcome");
    let reason = |change: fn(&mut Req)| answer(change).unwrap().reason;
    assert_eq!(reason(|r| r.service_id += 1), RejReason::InvalidServiceId);
    assert_eq!(reason(|r| r.transport_service = TransportService::Rd), RejReason::InvalidTransportService);
    assert_eq!(
        reason(|r| r.transport_service = TransportService::Extended),
        RejReason::InvalidTransportService
    );
    assert_eq!(reason(|r| r.rdc_exists = true), RejReason::RdcDoesNotExist);
    assert_eq!(reason(|r| r.path_mtu = 0), RejReason::InvalidPathMtu);
    assert_eq!(reason(|r| r.path_mtu = 6), RejReason::InvalidPathMtu);
    assert_eq!(reason(|r| r.local_qpn = Qpn::GSI), RejReason::UnsupportedRequest);
    assert_eq!(reason(|r| r.local_qpn = Qpn::MULTICAST), RejReason::UnsupportedRequest);
    // Somebody else's address as the source: packets would go to a third party.
    assert_eq!(reason(|r| r.primary.local_gid = Gid([1; 16])), RejReason::UnsupportedRequest);
    let rej = answer(|r| r.primary.remote_gid = Gid([1; 16])).unwrap();
    assert_eq!(rej.reason, RejReason::PrimaryGidRejected);
    assert_eq!((rej.reject_info_length, &rej.ari[..16]), (16, &Gid::from(ip(B)).0[..]));
}

#[test]
fn a_port_with_a_small_mtu_says_so() {
    let mut cm = Cm::new(CmConfig { max_mtu: everywire_wire::Mtu::M512, ..CmConfig::default() }, 1);
    cm.listen(&ListenParams { service_id: SERVICE, local: None, backlog: 1 }).unwrap();
    cm.handle_mad(std::time::Instant::now(), path(B, A), &forged(9, good_req()));
    let CmMessage::Rej(rej) = parsed(&cm.poll_transmit().unwrap().1) else { panic!("a REJ") };
    assert_eq!((rej.reason, rej.reject_info_length, rej.ari[0]), (RejReason::InvalidPathMtu, 1, 2));
}

#[test]
fn other_versions_and_classes() {
    let mut net = Net::new();
    net.listen(8);
    let good = forged(9, good_req());
    for (at, value) in [(0, 2), (1, 3), (3, 1), (3, 0x83)] {
        let mut mad = good;
        mad[at] = value;
        net.b.cm.handle_mad(net.now, path(B, A), &mad);
    }
    assert_eq!((net.b.cm.counters().foreign, net.b.cm.has_transmit()), (4, false));
    let mut mad = good;
    mad[2] = 3;
    net.b.cm.handle_mad(net.now, path(B, A), &mad);
    let CmMessage::Rej(rej) = parsed(&net.b.cm.poll_transmit().unwrap().1) else { panic!("a REJ") };
    assert_eq!(rej.reason, RejReason::InvalidClassVersion);
    let mut mad = good;
    mad[17] = 0x0f;
    net.b.cm.handle_mad(net.now, path(B, A), &mad);
    assert_eq!(net.b.cm.counters().malformed, 1);
}

/// The same communication id with another queue pair, while the first request waits.
#[test]
fn duplicate_communication_id() {
    let mut net = Net::new();
    net.listen(8);
    let req = good_req();
    net.b.cm.handle_mad(net.now, path(B, A), &forged(9, req));
    net.b.cm.handle_mad(net.now, path(B, A), &forged(9, Req { local_qpn: Qpn::new(0x12), ..req }));
    let CmMessage::Rej(rej) = parsed(&net.b.cm.poll_transmit().unwrap().1) else { panic!("a REJ") };
    assert_eq!(rej.reason, RejReason::DuplicateLocalCommId);
}

/// A flood of requests takes the backlog and nothing more.
#[test]
fn request_flood() {
    let mut net = Net::new();
    net.listen(16);
    let req = good_req();
    for i in 0..100_000u32 {
        let flood = Req { local_comm_id: i + 1, local_qpn: Qpn::new(i + 2), ..req };
        net.b.cm.handle_mad(net.now, path(B, A), &forged(u64::from(i), flood));
    }
    assert_eq!(net.b.cm.counters().backlog_full, 100_000 - 16);
    let queued = std::iter::from_fn(|| net.b.cm.poll_transmit()).count();
    assert!(queued <= MAX_QUEUED_MADS);
    assert_eq!(net.b.cm.counters().queue_full, (100_000 - 16 - queued) as u64);
    // 16 records with id, peer id, peer queue pair and timer each; 16 events; one listener.
    assert_eq!(net.b.cm.footprint(), 16 * 5 + 1);
}

/// REQs whose sender claims to be very slow cannot hold our records for days.
#[test]
fn patience_is_bounded() {
    let mut net = Net::new();
    net.listen(8);
    let mut req = good_req();
    req.local_response_timeout = 31;
    req.max_cm_retries = 15;
    req.primary.local_ack_timeout = 31;
    net.b.cm.handle_mad(net.now, path(B, A), &forged(9, req));
    net.settle();
    let b = net.b.take_request().id;
    net.b.cm.accept(net.now, b, &accept_params(0x22)).unwrap();
    net.cut = (true, true);
    let took = net.run_out();
    // 16 × 2 × 17.2 s, and the time-wait.
    assert!(took.as_secs() < 600, "{took:?}");
    assert_eq!(net.b.cm.footprint(), 1);
}

/// Random MADs, and valid ones with random bytes changed, at engines in the middle of their work. Nothing may crash, the
/// tables keep their bounds, time ends everything.
#[test]
fn random_mads() {
    let mut rng = ChaCha8Rng::seed_from_u64(0xbad);
    let mut net = Net::new();
    net.listen(8);
    let mut seen: Vec<[u8; 256]> = vec![forged(9, good_req())];
    for round in 0..20_000u32 {
        if round % 50 == 0 {
            let _ = net.a.cm.connect(net.now, &connect_params(path(A, B), 0x100 + round));
        }
        while let Some((_, mad)) = net.a.cm.poll_transmit() {
            seen.push(*mad);
            net.b.cm.handle_mad(net.now, path(B, A), &mad);
        }
        while let Some((_, mad)) = net.b.cm.poll_transmit() {
            seen.push(*mad);
            net.a.cm.handle_mad(net.now, path(A, B), &mad);
        }
        let mut mad = seen[rng.next_u32() as usize % seen.len()];
        for _ in 0..rng.next_u32() % 4 {
            mad[rng.next_u32() as usize % 256] = rng.next_u32() as u8;
        }
        if rng.next_u32().is_multiple_of(8) {
            rng.fill_bytes(&mut mad);
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, 0x10 + rng.next_u32() as u8 % 12]);
        }
        assert!(CmMad::parse(&mad).is_err() || mad[1] == 7);
        net.a.cm.handle_mad(net.now, path(A, B), &mad);
        net.b.cm.handle_mad(net.now, path(B, A), &mad);
        net.a.events.extend(std::iter::from_fn(|| net.a.cm.poll_event()));
        net.b.events.extend(std::iter::from_fn(|| net.b.cm.poll_event()));
        net.a.serve(net.now, 0x500 + round);
        net.b.serve(net.now, 0x500 + round);
        net.a.events.clear();
        net.b.events.clear();
        net.now += std::time::Duration::from_millis(u64::from(rng.next_u32() % 500));
        net.a.cm.handle_timeout(net.now);
        net.b.cm.handle_timeout(net.now);
        if seen.len() > 4000 {
            seen.drain(..2000);
        }
    }
    assert!(net.a.cm.footprint() < 4096 && net.b.cm.footprint() < 4096);
}
