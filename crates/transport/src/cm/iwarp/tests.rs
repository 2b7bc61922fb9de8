//! Start-ups of two ends against each other, and against frames of Linux siw.

use std::time::{Duration, Instant};

use super::*;
use crate::iwarp::Rtr;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// siw-p2pcrc-rping.
const REQUEST: &str = "4d504120494420526571204672616d65500200048001c001";
const REPLY: &str = "4d504120494420526570204672616d655002000480018001";

fn initiator(config: InitiatorConfig) -> Initiator {
    Initiator::new(Instant::now(), config).unwrap()
}

fn responder() -> Responder {
    Responder::new(Instant::now(), ResponderConfig::default())
}

fn request(event: Option<MpaEvent>) -> Request {
    match event {
        Some(MpaEvent::Request(request)) => request,
        other => panic!("no request: {other:?}"),
    }
}

fn agreed(event: Option<MpaEvent>) -> Agreed {
    match event {
        Some(MpaEvent::Accepted(agreed)) => agreed,
        other => panic!("not accepted: {other:?}"),
    }
}

fn failure(event: Option<MpaEvent>) -> Failure {
    match event {
        Some(MpaEvent::Failed(failure)) => failure,
        other => panic!("not failed: {other:?}"),
    }
}

/// Runs a start-up to its end, a byte at a time; what each side agreed on.
fn start(config: InitiatorConfig, with: ResponderConfig, accept: AcceptParams) -> (Agreed, Agreed) {
    let now = Instant::now();
    let (mut from, mut to) = (initiator(config), Responder::new(now, with));
    for byte in from.poll_transmit().unwrap() {
        assert_eq!(to.handle_stream(now, &[byte]), 1);
    }
    request(to.poll_event());
    to.accept(accept).unwrap();
    for byte in to.poll_transmit().unwrap() {
        assert_eq!(from.handle_stream(now, &[byte]), 1);
    }
    assert_eq!((from.poll_timeout(), to.poll_timeout()), (None, None));
    (agreed(from.poll_event()), agreed(to.poll_event()))
}

/// Linux siw does not notice what comes while it is still accepting: the pause covers that, and ends when the peer speaks.
#[test]
fn a_pause_after_the_reply() {
    let (now, pause) = (Instant::now(), Duration::from_millis(50));
    let both = RtrSet::WRITE | RtrSet::READ;
    let config =
        InitiatorConfig { ird: 1, ord: 1, peer_to_peer: Some(both), pause, ..InitiatorConfig::default() };
    for peer_speaks in [false, true] {
        let mut from = initiator(config.clone());
        assert_eq!(from.handle_stream(now, &hex(REPLY)), 24);
        assert!(from.poll_event().is_none());
        assert_eq!(from.poll_timeout(), Some(now + pause));
        match peer_speaks {
            true => assert_eq!(from.handle_stream(now, &[0, 14]), 0, "it is the queue pair's"),
            false => from.handle_timeout(now + pause),
        }
        assert_eq!(agreed(from.poll_event()).rtr, Some(Rtr::Write));
        assert_eq!(from.poll_timeout(), None);
    }
}

/// As Linux siw begins a connection, and as it answers, bit for bit.
#[test]
fn frames_of_siw() {
    let now = Instant::now();
    let both = RtrSet::WRITE | RtrSet::READ;
    let config = InitiatorConfig { ird: 1, ord: 1, peer_to_peer: Some(both), ..InitiatorConfig::default() };
    let mut from = initiator(config);
    assert_eq!(from.poll_transmit(), Some(hex(REQUEST)));
    let mut stream = hex(REPLY);
    stream.extend([0, 14, 0xc1]);
    assert_eq!(from.handle_stream(now, &stream), 24, "the FPDU behind is not ours");
    let us = agreed(from.poll_event());
    assert_eq!((us.ird, us.ord, us.rtr, us.crc, us.initiator), (1, 1, Some(Rtr::Write), true, true));

    let mut to = responder();
    assert_eq!(to.handle_stream(now, &hex(REQUEST)), 24);
    let asked = request(to.poll_event());
    assert_eq!((asked.ird, asked.ord, asked.revision), (Some(1), Some(1), 2));
    assert!(asked.peer_to_peer && asked.rtr == both && asked.crc && !asked.markers);
    to.accept(AcceptParams { ird: 16, ord: 16, private_data: Vec::new() }).unwrap();
    assert_eq!(to.poll_transmit(), Some(hex(REPLY)));
    let us = agreed(to.poll_event());
    assert_eq!((us.ird, us.ord, us.rtr, us.initiator), (1, 1, Some(Rtr::Write), false));
}

/// Cases IW-14: SMB Direct's eight bytes are private data behind RFC 6581's four; absence is as good.
#[test]
fn smb_direct_block() {
    let mut to = responder();
    let frame = hex("4d504120494420526571204672616d655002000c002000002000000001000000");
    to.handle_stream(Instant::now(), &frame);
    let asked = request(to.poll_event());
    assert_eq!(asked.private_data, hex("2000000001000000"));
    assert_eq!((asked.ird, asked.ord), (Some(32), Some(0)));
    let block = hex("0000000100000008");
    to.accept(AcceptParams { ird: 1, ord: 8, private_data: block }).unwrap();
    // As siw answered, but for its IRD: it offers one where none was asked for.
    let reply = to.poll_transmit().unwrap();
    assert_eq!(reply, hex("4d504120494420526570204672616d655002000c000000080000000100000008"));
}

/// RFC 5044 §7.1: C from either side counts for both, M is each side's own.
#[test]
fn crc_and_markers() {
    for bits in 0..16 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        let config = InitiatorConfig { crc: on(0), markers: on(1), ..InitiatorConfig::default() };
        let with = ResponderConfig { crc: on(2), markers: on(3), ..ResponderConfig::default() };
        let (a, b) = start(config, with, AcceptParams::default());
        assert_eq!((a.crc, b.crc), (on(0) || on(2), on(0) || on(2)));
        assert_eq!((a.markers_receive, b.markers_send), (on(1), on(1)));
        assert_eq!((b.markers_receive, a.markers_send), (on(3), on(3)));
    }
}

/// Cases IW-04: no end sends more READs than the other can hold.
#[test]
fn depths() {
    let rows = [
        // initiator IRD, ORD; responder IRD, ORD; agreed initiator IRD, ORD; responder IRD, ORD.
        ((8, 8), (8, 8), (8, 8), (8, 8)),
        ((4, 16), (8, 8), (4, 8), (8, 4)),
        ((0, 4), (4, 4), (0, 4), (4, 0)),
        ((16, 2), (8, 32), (16, 2), (2, 16)),
    ];
    for ((ird, ord), (their_ird, their_ord), one, other) in rows {
        let config = InitiatorConfig { ird, ord, ..InitiatorConfig::default() };
        let accept = AcceptParams { ird: their_ird, ord: their_ord, private_data: Vec::new() };
        let (a, b) = start(config, ResponderConfig::default(), accept);
        assert_eq!(((a.ird, a.ord), (b.ird, b.ord)), (one, other));
        assert!(a.ord <= b.ird && b.ord <= a.ird);
    }
}

/// A responder that wants more than we hold: both ends hear of it, nothing hangs.
#[test]
fn insufficient_ird() {
    let mut from = initiator(InitiatorConfig { ird: 2, ..InitiatorConfig::default() });
    from.poll_transmit();
    from.handle_stream(Instant::now(), &hex("4d504120494420526570204672616d655002000400040003"));
    assert_eq!(failure(from.poll_event()), Failure::InsufficientIrd { ord: 3, ird: 2 });
}

/// Cases IW-02: A in the request is answered by A in the reply; each kind of frame can be the only one.
#[test]
fn peer_to_peer() {
    for (set, rtr) in [(RtrSet::SEND, Rtr::Send), (RtrSet::WRITE, Rtr::Write), (RtrSet::READ, Rtr::Read)] {
        let config = InitiatorConfig { peer_to_peer: Some(set), ..InitiatorConfig::default() };
        let (a, b) = start(config, ResponderConfig::default(), AcceptParams::default());
        assert_eq!((a.rtr, b.rtr), (Some(rtr), Some(rtr)));
        assert!(rtr != Rtr::Read || b.ird == 1, "a READ needs a place");
    }
    let (a, b) = start(InitiatorConfig::default(), ResponderConfig::default(), AcceptParams::default());
    assert_eq!((a.rtr, b.rtr), (None, None));
}

/// A READ that says "ready" counts as any other: it is asked a place for, and not sent to a peer that has none. (Linux 6.1's
/// siw answers a request for it that has an ORD of 0 with an IRD of 0, and stops its kernel when the READ comes.)
#[test]
fn a_read_needs_a_place() {
    let config = InitiatorConfig { peer_to_peer: Some(RtrSet::READ), ord: 0, ..InitiatorConfig::default() };
    let mut from = initiator(config);
    let mut to = responder();
    to.handle_stream(Instant::now(), &from.poll_transmit().unwrap());
    assert_eq!(request(to.poll_event()).ord, Some(1));
    // Its reply: A, no IRD, an ORD of 16, D.
    from.handle_stream(Instant::now(), &hex("4d504120494420526570204672616d655002000480004010"));
    assert_eq!(failure(from.poll_event()), Failure::NoMatchingRtr);
}

#[test]
fn no_frame_in_common() {
    let now = Instant::now();
    let config = InitiatorConfig { peer_to_peer: Some(RtrSet::SEND), ..InitiatorConfig::default() };
    let mut from = initiator(config);
    let with = ResponderConfig { rtr: RtrSet::WRITE, ..ResponderConfig::default() };
    let mut to = Responder::new(now, with);
    to.handle_stream(now, &from.poll_transmit().unwrap());
    request(to.poll_event());
    to.accept(AcceptParams::default()).unwrap();
    from.handle_stream(now, &to.poll_transmit().unwrap());
    assert_eq!(failure(to.poll_event()), Failure::NoMatchingRtr);
    assert_eq!(from.poll_event(), Some(MpaEvent::Rejected { private_data: Vec::new() }));
}

#[test]
fn rejected_with_private_data() {
    let now = Instant::now();
    for enhanced in [true, false] {
        let config = InitiatorConfig { enhanced, private_data: vec![1, 2, 3], ..InitiatorConfig::default() };
        let (mut from, mut to) = (initiator(config), responder());
        to.handle_stream(now, &from.poll_transmit().unwrap());
        assert_eq!(request(to.poll_event()).private_data, [1, 2, 3]);
        to.reject(b"no").unwrap();
        assert_eq!(to.reject(b"no"), Err(MpaError::NoRequest));
        from.handle_stream(now, &to.poll_transmit().unwrap());
        assert_eq!(from.poll_event(), Some(MpaEvent::Rejected { private_data: b"no".to_vec() }));
        assert_eq!((from.poll_event(), to.poll_event()), (None, None));
    }
}

/// Revision 1 both ways: no block, all 512 bytes for the upper layer, depths as each side wants.
#[test]
fn revision_1() {
    let config =
        InitiatorConfig { enhanced: false, private_data: vec![9; 512], ..InitiatorConfig::default() };
    let accept = AcceptParams { ird: 3, ord: 5, private_data: vec![8; 512] };
    let (a, b) = start(config, ResponderConfig::default(), accept);
    assert_eq!((a.revision, b.revision), (1, 1));
    assert_eq!((a.private_data.len(), b.private_data.len()), (512, 512));
    assert_eq!((b.ird, b.ord), (3, 5));
    let long = InitiatorConfig { private_data: vec![0; 509], ..InitiatorConfig::default() };
    let refused = Initiator::new(Instant::now(), long).unwrap_err();
    assert_eq!(refused, MpaError::PrivateDataTooLong { length: 509, limit: 508 });
}

/// A peer that speaks only revision 1 answers in it, or closes: both suggest another try.
#[test]
fn only_revision_1_at_the_peer() {
    let now = Instant::now();
    let mut from = initiator(InitiatorConfig::default());
    from.handle_stream(now, b"MPA ID Rep Frame\x40\x01\x00\x00");
    let downgraded = failure(from.poll_event());
    assert_eq!(downgraded, Failure::Downgraded { revision: 1 });
    let mut from = initiator(InitiatorConfig::default());
    from.closed(None);
    let closed = failure(from.poll_event());
    assert!(downgraded.try_revision_1() && closed.try_revision_1());
    assert_eq!((downgraded.blame(), closed.blame()), (Blame::PeerIncompatible, Blame::Connection));
    // A reset says nothing of revisions, nor does an end amid the reply, nor an end of what was asked in revision 1.
    for (enhanced, said, cause) in [
        (true, 0, Some(StreamError::Reset)),
        (true, 17, None),
        (false, 0, None),
        (true, 0, Some(StreamError::TimedOut)),
    ] {
        let mut from = initiator(InitiatorConfig { enhanced, ..InitiatorConfig::default() });
        from.handle_stream(now, &hex(REPLY)[..said]);
        from.closed(cause);
        let closed = failure(from.poll_event());
        assert!(!closed.try_revision_1(), "{closed}");
        let words = cause.map_or(String::from("the peer closed"), |cause| cause.to_string());
        assert!(closed.to_string().contains(&words), "{closed}");
    }
}

/// The end that comes within the pause is the connection's, not the start-up's.
#[test]
fn an_end_within_the_pause() {
    let now = Instant::now();
    for cause in [None, Some(StreamError::Reset)] {
        let config = InitiatorConfig { pause: Duration::from_millis(5), ..InitiatorConfig::default() };
        let mut from = initiator(config);
        from.handle_stream(now, &hex(REPLY));
        assert_eq!(from.poll_event(), None);
        from.closed(cause);
        agreed(from.poll_event());
        assert_eq!(from.poll_timeout(), None);
    }
}

/// RFC 6581 §9: the responder, which has accepted, is told by a TERMINATE message of layer 2 why nothing comes of it. Its DDP
/// header is for queue 2, its code 6 or 7 (RFC 6581 §10); the marker is RFC 5044 §4.3's.
#[test]
fn what_the_initiator_cannot_live_with_is_said() {
    let now = Instant::now();
    let rows = [
        // R and C, then IRD 4 with no flag, ORD 9.
        (None, [0x00, 0x04, 0x00, 0x09], 6),
        // A and the SEND bit with IRD 4, ORD 4: we have offered a WRITE.
        (Some(RtrSet::WRITE), [0xc0, 0x04, 0x00, 0x04], 7),
    ];
    for (peer_to_peer, block, code) in rows {
        for (flags, marker) in [(0x50_u8, 0), (0xd0, 4)] {
            let config = InitiatorConfig { peer_to_peer, ird: 4, ord: 4, ..InitiatorConfig::default() };
            let mut from = initiator(config);
            from.poll_transmit().unwrap();
            let mut reply = b"MPA ID Rep Frame".to_vec();
            reply.extend([flags, 2, 0, 4]);
            reply.extend(block);
            from.handle_stream(now, &reply);
            failure(from.poll_event());
            let last = from.poll_transmit().expect("a last word");
            assert_eq!(last[..marker], [0; 4][..marker]);
            let body = [
                &[0, 22, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0][..],
                &[0x20, code, 0, 0],
            ];
            assert_eq!(last[marker..last.len() - 4], body.concat());
            assert_eq!(last[last.len() - 4..], everywire_wire::mpa::crc32c(&last[..last.len() - 4]));
        }
    }
}

#[test]
fn timeouts() {
    let now = Instant::now();
    let later = now + Duration::from_secs(10);
    let mut from = Initiator::new(now, InitiatorConfig::default()).unwrap();
    assert_eq!(from.poll_timeout(), Some(later));
    from.handle_timeout(later - Duration::from_nanos(1));
    assert_eq!(from.poll_event(), None);
    from.handle_timeout(later);
    assert!(matches!(failure(from.poll_event()), Failure::Timeout { what: "MPA reply", .. }));
    assert_eq!(from.poll_timeout(), None);
    let mut to = Responder::new(now, ResponderConfig::default());
    to.handle_stream(now, b"MPA ID Req");
    to.handle_timeout(later);
    assert!(matches!(failure(to.poll_event()), Failure::Timeout { what: "MPA request", .. }));
    // The upper layer may take its time.
    let mut to = Responder::new(now, ResponderConfig::default());
    to.handle_stream(now, &hex(REQUEST));
    assert_eq!(to.poll_timeout(), None);
}

/// What is no start frame ends at the first byte that shows it; nothing panics at any cut (cases IW-05).
#[test]
fn garbage() {
    let now = Instant::now();
    let good = hex(REQUEST);
    for at in 0..good.len() {
        for value in [0, 0xff, good[at] ^ 1, good[at] ^ 0x80] {
            let mut bad = good.clone();
            bad[at] = value;
            for cut in 0..bad.len() {
                let mut to = responder();
                let taken = to.handle_stream(now, &bad[..cut]);
                to.handle_stream(now, &bad[taken.min(cut)..]);
                to.closed(None);
                if at < 16 && value != good[at] {
                    assert!(matches!(failure(to.poll_event()), Failure::Frame(_)));
                }
            }
        }
    }
    let mut to = responder();
    let mut early = good.clone();
    early.extend([0, 0]);
    to.handle_stream(now, &early);
    assert_eq!(failure(to.poll_event()), Failure::Early { bytes: 2 });
    let mut to = responder();
    to.handle_stream(now, b"MPA ID Req Frame\x50\x02\x00\x02\x00\x00");
    assert_eq!(failure(to.poll_event()), Failure::NoEnhancedBlock);
    let mut to = responder();
    to.handle_stream(now, b"MPA ID Req Frame\x40\x03\x00\x00");
    assert_eq!(failure(to.poll_event()), Failure::Revision { revision: 3 });
    assert_eq!(Responder::recognizes(b"MPA"), None);
    assert_eq!(Responder::recognizes(b"GET / HTTP/1.1\r\n"), Some(false));
    assert_eq!(Responder::recognizes(&good), Some(true));
}
