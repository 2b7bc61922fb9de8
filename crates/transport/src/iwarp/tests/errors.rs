//! TERMINATE, both ways: every error code in its layer, and what each means to the one who receives it.
//!
//! Segments are laid out by hand from RFC 5040 §4 and RFC 5041 §4; the codes are those of RFC 5040 §4.8, RFC 5041 §8 and RFC
//! 5044 §8.

use everywire_wire::rdmap::{ReadRequest, TermError};

use super::*;
use crate::ib::tests::OTHER_PD;
use crate::memory::Memory;

pub(super) fn tagged(control: u8, ulp: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![control, ulp];
    out.extend(stag.to_be_bytes());
    out.extend(to.to_be_bytes());
    out.extend(payload);
    out
}

pub(super) fn untagged(control: u8, ulp: u8, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![control, ulp, 0, 0, 0, 0];
    for field in [qn, msn, mo] {
        out.extend(field.to_be_bytes());
    }
    out.extend(payload);
    out
}

pub(super) fn read_request(stag: u32, to: u64, length: u32) -> Vec<u8> {
    let read = ReadRequest { sink_stag: RKey(1), sink_to: 0, length, source_stag: RKey(stag), source_to: to };
    let mut payload = [0; 28];
    read.emit(&mut payload);
    untagged(0x41, 0x41, 1, 1, 0, &payload)
}

/// Keys of the node under test: nothing for peers, and another domain's.
pub(super) struct Keys {
    pub(super) all: u32,
    pub(super) nothing: u32,
    pub(super) other: u32,
}

fn bench() -> (Bench, Keys) {
    bench_of(Setup::default())
}

pub(super) fn bench_of(setup: Setup) -> (Bench, Keys) {
    let mut bench = Bench::new(setup);
    let node = &mut bench.nodes[1];
    let nothing = node.env.memory.register(PD, BASE, 64, Access::LOCAL_WRITE);
    let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let other = node.env.memory.register(OTHER_PD, BASE, 64, remote);
    let keys = Keys { all: node.key, nothing, other };
    (bench, keys)
}

/// Name, segment, layer, type and code, event.
type Row = (&'static str, Vec<u8>, (u8, u8, u8), QpEvent);

#[test]
fn every_code() {
    let (_, k) = bench();
    let (top, end) = (u64::MAX - 1, BASE + LEN as u64);
    let (all, no, other) = (k.all, k.nothing, k.other);
    let rows: Vec<Row> = vec![
        ("unknown STag", tagged(0xc1, 0x40, 0xdead, 0, &[1; 4]), (1, 1, 0), QpEvent::AccessError),
        ("past the end", tagged(0xc1, 0x40, all, end - 3, &[1; 4]), (1, 1, 1), QpEvent::AccessError),
        ("another domain", tagged(0xc1, 0x40, other, BASE, &[1; 4]), (1, 1, 2), QpEvent::AccessError),
        ("TO wrap", tagged(0xc1, 0x40, all, top, &[1; 4]), (1, 1, 3), QpEvent::AccessError),
        ("DV of tagged", tagged(0xc0, 0x40, all, BASE, &[1; 4]), (1, 1, 4), QpEvent::AccessError),
        ("no right", tagged(0xc1, 0x40, no, BASE, &[1; 4]), (0, 1, 2), QpEvent::AccessError),
        ("queue 4", untagged(0x41, 0x43, 4, 1, 0, &[]), (1, 2, 1), QpEvent::RequestError),
        ("queue 3", untagged(0x41, 0x4b, 3, 1, 0, &[0; 12]), (1, 2, 1), QpEvent::RequestError),
        ("no receive", untagged(0x41, 0x43, 0, 1, 0, &[]), (1, 2, 2), QpEvent::RequestError),
        ("MSN ahead", untagged(0x41, 0x43, 0, 2, 0, &[]), (1, 2, 3), QpEvent::RequestError),
        ("MSN behind", untagged(0x41, 0x43, 0, 0, 0, &[]), (1, 2, 3), QpEvent::RequestError),
        ("MO at the start", untagged(0x41, 0x43, 0, 1, 4, &[]), (1, 2, 4), QpEvent::RequestError),
        ("DV of untagged", untagged(0x42, 0x43, 0, 1, 0, &[]), (1, 2, 6), QpEvent::RequestError),
        ("RV", untagged(0x41, 0x03, 0, 1, 0, &[]), (0, 2, 5), QpEvent::RequestError),
        ("no such opcode", untagged(0x41, 0x4f, 0, 1, 0, &[]), (0, 2, 6), QpEvent::RequestError),
        ("untagged WRITE", untagged(0x41, 0x40, 0, 1, 0, &[]), (0, 2, 6), QpEvent::RequestError),
        ("tagged SEND", tagged(0xc1, 0x43, all, BASE, &[]), (0, 2, 6), QpEvent::RequestError),
        ("SEND on queue 1", untagged(0x41, 0x43, 1, 1, 0, &[]), (0, 2, 6), QpEvent::RequestError),
        ("response unasked", tagged(0xc1, 0x42, all, BASE, &[1]), (0, 2, 6), QpEvent::RequestError),
        ("immediate data", untagged(0x41, 0x48, 0, 1, 0, &[0; 8]), (0, 2, 6), QpEvent::RequestError),
        ("atomic", untagged(0x41, 0x4a, 1, 1, 0, &[0; 52]), (0, 2, 6), QpEvent::RequestError),
        ("READ, unknown STag", read_request(0xdead, 0, 4), (0, 1, 0), QpEvent::AccessError),
        ("READ past the end", read_request(all, end - 3, 4), (0, 1, 1), QpEvent::AccessError),
        ("READ, no right", read_request(no, BASE, 4), (0, 1, 2), QpEvent::AccessError),
        ("READ, another domain", read_request(other, BASE, 4), (0, 1, 3), QpEvent::AccessError),
        ("READ, TO wrap", read_request(all, top, 4), (0, 1, 4), QpEvent::AccessError),
        ("READ, MSN", untagged(0x41, 0x41, 1, 2, 0, &[0; 28]), (1, 2, 3), QpEvent::RequestError),
        ("READ, MO", untagged(0x41, 0x41, 1, 1, 1, &[0; 28]), (1, 2, 4), QpEvent::RequestError),
        ("READ too long", untagged(0x41, 0x41, 1, 1, 0, &[0; 29]), (1, 2, 5), QpEvent::RequestError),
        ("READ too short", untagged(0x41, 0x41, 1, 1, 0, &[0; 27]), (0, 2, 7), QpEvent::RequestError),
        ("half a header", vec![0x41, 0x43, 0, 0], (0, 2, 7), QpEvent::RequestError),
    ];
    for (name, segment, (layer, etype, code), event) in rows {
        let (mut bench, _) = bench();
        bench.deliver(1, &frame(&segment));
        bench.run();
        let term = bench.terminate(1);
        assert_eq!(term.error, TermError { layer, etype, code }, "{name}");
        assert_eq!(bench.nodes[1].env.events, [QpEvent::CommEstablished, event], "{name}");
        if let Ok(header) = DdpHeader::parse(&segment) {
            assert_eq!(term.ddp, Some(header), "{name}");
            assert_eq!(term.segment_len, Some(segment.len() as u16), "{name}");
        }
        assert_eq!(
            term.read.is_some(),
            name.starts_with("READ,") && layer == 0 || name.starts_with("READ past"),
            "{name}"
        );
        assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
        assert_eq!(bench.nodes[0].qp.state(), QpState::Err);
        assert_eq!(bench.nodes.each_ref().map(|n| n.closed), [Some(Close::Graceful); 2], "{name}");
        bench.assert_idle();
    }
}

/// Errors that end a receive: it says why, and the rest is flushed.
#[test]
fn a_receive_in_use() {
    let (mut bench, _) = bench();
    bench.nodes[1].recv(1, 0, 8);
    bench.nodes[1].recv(2, 0, 8);
    bench.deliver(1, &frame(&untagged(0x01, 0x43, 0, 1, 0, &[1; 8])));
    bench.deliver(1, &frame(&untagged(0x41, 0x43, 0, 1, 8, &[2])));
    bench.run();
    assert_eq!(bench.terminate(1).error, TermError { layer: 1, etype: 2, code: 5 });
    assert_eq!(bench.nodes[1].received(), [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
    // Offset 9 where 8 is due; then another kind of SEND within a message; then one that invalidates what it may not.
    for (second, error) in
        [(untagged(0x41, 0x43, 0, 1, 5, &[2]), (1, 2, 4)), (untagged(0x41, 0x45, 0, 1, 4, &[2]), (0, 2, 6))]
    {
        let (mut bench, _) = self::bench();
        bench.nodes[1].recv(1, 0, 8);
        bench.deliver(1, &frame(&untagged(0x01, 0x43, 0, 1, 0, &[1; 4])));
        bench.deliver(1, &frame(&second));
        bench.run();
        let (layer, etype, code) = error;
        assert_eq!(bench.terminate(1).error, TermError { layer, etype, code });
        assert_eq!(bench.nodes[1].received(), [(1, WcStatus::RemInvReqErr)]);
    }
    let (mut bench, _) = self::bench();
    bench.nodes[1].recv(1, 0, 8);
    bench.deliver(1, &frame(&untagged(0x41, 0x44, 0, 1, 0, &[])));
    bench.run();
    assert_eq!(bench.terminate(1).error, TermError { layer: 0, etype: 2, code: 9 });
    assert_eq!(bench.nodes[1].received(), [(1, WcStatus::LocAccessErr)]);
}

#[test]
fn crc() {
    let (mut bench, keys) = bench();
    let mut bad = frame(&tagged(0xc1, 0x40, keys.all, BASE, &[7; 64]));
    bad[40] ^= 1;
    bench.deliver(1, &bad);
    bench.run();
    let term = bench.terminate(1);
    assert_eq!(term.error, TermError { layer: 2, etype: 0, code: 2 });
    assert_eq!((term.segment_len, term.ddp, term.read), (None, None, None));
    assert_eq!(bench.nodes[1].bytes()[..64], [0; 64], "placed before the CRC was checked");
    assert_eq!(bench.nodes[1].env.events, [QpEvent::Fatal]);
}

/// One READ more than was agreed finds no buffer on queue 1.
#[test]
fn too_many_reads() {
    let mut bench = Bench::new(Setup { depth: 2, ..Setup::default() });
    let key = bench.nodes[1].key;
    for msn in 1..=3u8 {
        let mut request = read_request(key, BASE, 4);
        request[13] = msn;
        bench.deliver(1, &frame(&request));
    }
    bench.run();
    let term = bench.terminate(1);
    assert_eq!(term.error, TermError { layer: 1, etype: 2, code: 2 });
    assert!(matches!(term.ddp.unwrap().target, DdpTarget::Untagged { qn: 1, msn: 3, .. }));
}

/// Answers that are not what was asked for: the READ says so.
#[test]
fn wrong_answers() {
    let key = bench().0.nodes[0].key;
    let rows = [
        (tagged(0xc1, 0x42, key, BASE, &[1; 9]), (1, 1, 1)),
        (tagged(0xc1, 0x42, key, BASE, &[1; 7]), (0, 2, 7)),
        (tagged(0x81, 0x42, key, BASE + 1, &[1; 2]), (1, 1, 1)),
        (tagged(0x81, 0x42, key + 1, BASE, &[1; 2]), (1, 1, 0)),
    ];
    for (segment, (layer, etype, code)) in rows {
        let (mut bench, _) = bench();
        let remote = bench.nodes[1].remote(0);
        let node = &mut bench.nodes[0];
        let sink = node.sge(0, 8);
        node.send(SendWr::new(1, SendOp::Read { remote }).with_sges([sink]));
        node.send(SendWr::new(2, SendOp::Write { remote }));
        bench.transmit(0);
        bench.wire[1].clear();
        bench.deliver(0, &frame(&segment));
        bench.run();
        assert_eq!(bench.terminate(0).error, TermError { layer, etype, code });
        assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(bench.nodes[0].env.events, []);
    }
}

/// What a TERMINATE makes of the READ that it names; the others are flushed.
#[test]
fn terminated_by_the_peer() {
    let rows = [
        ((0, 1, 0), WcStatus::RemAccessErr),
        ((0, 1, 2), WcStatus::RemAccessErr),
        ((0, 1, 9), WcStatus::RemAccessErr),
        ((0, 2, 6), WcStatus::RemInvReqErr),
        ((0, 2, 7), WcStatus::RemOpErr),
        ((0, 0, 0), WcStatus::RemOpErr),
        ((1, 1, 0), WcStatus::RemAccessErr),
        ((1, 2, 2), WcStatus::RemInvReqErr),
        ((2, 0, 2), WcStatus::RemAbortErr),
    ];
    for ((layer, etype, code), status) in rows {
        let (mut bench, _) = bench();
        let remote = bench.nodes[1].remote(0);
        let node = &mut bench.nodes[0];
        for id in 1..=2 {
            let sink = node.sge(0, 8);
            node.send(SendWr::new(id, SendOp::Read { remote }).with_sges([sink]));
        }
        node.recv(9, 0, 8);
        bench.transmit(0);
        let read = bench.fpdus(0)[1].clone();
        let mut payload = vec![layer << 4 | etype, code, 0xc0, 0, 0, read.len() as u8];
        payload.extend(&read[..18]);
        bench.deliver(0, &frame(&untagged(0x41, 0x47, 2, 1, 0, &payload)));
        assert_eq!(bench.nodes[0].env.sends[1].vendor_err >> 8, u32::from(layer) << 4 | u32::from(etype));
        assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::WrFlushErr), (2, status)]);
        assert_eq!(bench.nodes[0].received(), [(9, WcStatus::WrFlushErr)]);
        assert_eq!(bench.nodes[0].env.events, []);
        assert!(bench.transmit(0));
        assert_eq!(bench.nodes[0].closed, Some(Close::Graceful));
    }
}

/// A SEND without a receive is complete long before its TERMINATE comes: an event tells then. One that is still being
/// written ends with the status of a receiver that is not ready.
#[test]
fn no_receive_posted() {
    let (mut bench, _) = bench();
    bench.nodes[0].send(SendWr::new(1, SendOp::Send).with_inline(*b"lost"));
    bench.run();
    assert_eq!(bench.nodes[1].count(Counter::OutOfBuffer), 1);
    assert_eq!(bench.nodes[0].sent(), ok([1]));
    assert_eq!(bench.nodes[0].env.events, [QpEvent::Fatal]);
    let (mut bench, _) = self::bench();
    bench.nodes[0].send(SendWr::new(1, SendOp::Send).with_inline(*b"lost"));
    bench.transmit(0);
    let bytes: Vec<u8> = bench.wire[1].drain(..).collect();
    bench.deliver(1, &bytes);
    bench.transmit(1);
    let answer: Vec<u8> = bench.wire[0].drain(..).collect();
    bench.deliver(0, &answer);
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::RnrRetryExcErr)]);
}

/// A source that goes away while its READ is answered: the TERMINATE names the request, with its DDP header and the READ
/// request (RFC 5040 §4.8), so that of several READs the right one fails.
#[test]
fn a_source_that_goes_away() {
    let (mut bench, _) = bench();
    let far = &mut bench.nodes[1];
    let length = 300_000;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let gone = far.env.memory.register(PD, BASE, length as usize, access);
    let (kept, going) = (far.remote(0), Remote { addr: BASE, rkey: RKey(gone) });
    let node = &mut bench.nodes[0];
    for (id, (remote, length)) in [(kept, 8), (going, length), (kept, 8)].into_iter().enumerate() {
        let sink = node.sge(0, length);
        node.send(SendWr::new(id as u64, SendOp::Read { remote }).with_sges([sink]));
    }
    bench.transmit(0);
    let requests: Vec<u8> = bench.wire[1].drain(..).collect();
    bench.deliver(1, &requests);
    // As much as may be in flight: a part of the answer.
    bench.transmit(1);
    let node = &mut bench.nodes[1];
    assert!(node.qp.responder.is_amid());
    let qpn = node.qp.qpn();
    node.env.memory.invalidate_remote(PD, qpn, RKey(gone)).unwrap();
    bench.run();
    let term = bench.terminate(1);
    assert_eq!(term.error, TermError { layer: 0, etype: 1, code: 0 });
    let request = bench.fpdus(0)[1].clone();
    assert_eq!(term.segment_len, Some(46));
    assert_eq!(term.ddp, Some(DdpHeader::parse(&request).unwrap()));
    assert_eq!(term.read, Some(ReadRequest::parse(&request[18..]).unwrap()));
    let sent = bench.nodes[0].sent();
    assert_eq!(sent, [(0, WcStatus::Success), (1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(bench.nodes[0].env.events, []);
    assert_eq!(bench.nodes[1].env.events, [QpEvent::CommEstablished, QpEvent::AccessError]);
}

/// Our own errors: the work request says which, the peer hears of a local catastrophe.
#[test]
fn local_errors() {
    for (sge, status) in [
        (Sge { addr: BASE, length: 4, lkey: LKey(0xdead) }, WcStatus::LocProtErr),
        (Sge { addr: BASE + LEN as u64, length: 4, lkey: LKey(0x1000) }, WcStatus::LocProtErr),
    ] {
        let (mut bench, _) = bench();
        let remote = bench.nodes[1].remote(0);
        let node = &mut bench.nodes[0];
        let good = node.sge(0, 4);
        node.send(SendWr::new(1, SendOp::Write { remote }).with_sges([good]));
        node.send(SendWr::new(2, SendOp::Write { remote }).with_sges([sge]));
        node.send(SendWr::new(3, SendOp::Write { remote }).with_sges([good]));
        bench.run();
        assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)]);
        assert_eq!(bench.terminate(0).error, TermError::LOCAL_CATASTROPHIC);
        assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
    }
}
