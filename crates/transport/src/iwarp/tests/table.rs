//! Every error that a TERMINATE message can name, with what on the wire makes us send it, or why nothing does.
//!
//! The rows are IANA's registry "Remote Direct Data Placement" (RFC 6580): RDMAP's of RFC 5040 §4.8, DDP's of RFC 5041 §8.2,
//! MPA's of RFC 5044 §8 and RFC 6581 §8. RFC 7306 has its errors in RDMAP's codes. More stimuli are in `errors`.

use everywire_wire::rdmap::{LlpError, TermError, Terminate};

use super::errors::{Keys, bench_of, read_request, tagged, untagged};
use super::*;
use crate::cm::iwarp::{Agreed, Initiator, InitiatorConfig, MpaEvent, RtrSet};

/// What makes us send it.
enum Said {
    /// A DDP segment that node 1 is sent.
    Segment(fn(&Keys) -> Vec<u8>),
    /// The same with RFC 7306 switched on.
    Extended(fn(&Keys) -> Vec<u8>),
    /// Anything else.
    By(fn() -> Terminate),
    /// Nothing: why.
    Never(&'static str),
}
use Said::*;

const REGISTRY: &[((u8, u8, u8), &str, Said)] = &[
    ((0, 0, 0), "local catastrophic error", By(a_work_request_fails)),
    ((0, 1, 0x00), "invalid STag", Segment(|_| read_request(0xdead, 0, 4))),
    ((0, 1, 0x01), "base or bounds", Segment(|k| read_request(k.all, BASE + LEN as u64 - 3, 4))),
    ((0, 1, 0x02), "access rights", Segment(|k| tagged(0xc1, 0x40, k.nothing, BASE, &[1]))),
    ((0, 1, 0x03), "STag of another stream", Segment(|k| read_request(k.other, BASE, 4))),
    ((0, 1, 0x04), "TO wrap", Segment(|k| read_request(k.all, u64::MAX - 1, 4))),
    ((0, 1, 0x09), "STag cannot be invalidated", By(|| invalidating(|k| k.other))),
    ((0, 1, 0xff), "unspecific", Never("each error of protection that is found has a code of its own")),
    ((0, 2, 0x05), "RDMAP version", Segment(|_| untagged(0x41, 0x03, 0, 1, 0, &[]))),
    ((0, 2, 0x06), "unexpected opcode", Segment(|_| untagged(0x41, 0x4f, 0, 1, 0, &[]))),
    ((0, 2, 0x07), "catastrophic, this stream", Segment(|_| untagged(0x41, 0x41, 1, 1, 0, &[0; 27]))),
    ((0, 2, 0x08), "catastrophic, global", Never("an error of one stream never touches another")),
    ((0, 2, 0x09), "STag cannot be invalidated", By(|| invalidating(|_| 0xdead))),
    // RFC 7306: an operation that there is not.
    ((0, 2, 0xff), "unspecific", Extended(|_| untagged(0x41, 0x4a, 1, 1, 0, &[0x0f; 52]))),
    ((1, 0, 0), "local catastrophic error", Never("what fails at this end is RDMAP's to say: 0/0")),
    ((1, 1, 0), "invalid STag", Segment(|_| tagged(0xc1, 0x40, 0xdead, 0, &[1]))),
    ((1, 1, 1), "base or bounds", Segment(|k| tagged(0xc1, 0x40, k.all, BASE + LEN as u64, &[1]))),
    ((1, 1, 2), "STag of another stream", Segment(|k| tagged(0xc1, 0x40, k.other, BASE, &[1]))),
    ((1, 1, 3), "TO wrap", Segment(|k| tagged(0xc1, 0x40, k.all, u64::MAX, &[1; 4]))),
    ((1, 1, 4), "DDP version", Segment(|k| tagged(0xc2, 0x40, k.all, BASE, &[1]))),
    ((1, 2, 1), "invalid queue number", Segment(|_| untagged(0x41, 0x43, 4, 1, 0, &[]))),
    ((1, 2, 2), "no buffer", Segment(|_| untagged(0x41, 0x43, 0, 1, 0, &[]))),
    ((1, 2, 3), "MSN range", Segment(|_| untagged(0x41, 0x43, 0, 2, 0, &[]))),
    ((1, 2, 4), "invalid MO", Segment(|_| untagged(0x41, 0x43, 0, 1, 8, &[]))),
    ((1, 2, 5), "message too long", Segment(|_| untagged(0x41, 0x41, 1, 1, 0, &[0; 29]))),
    ((1, 2, 6), "DDP version", Segment(|_| untagged(0x40, 0x43, 0, 1, 0, &[]))),
    ((1, 3, 0), "reserved for the lower layer", Never("MPA has its errors in layer 2")),
    ((2, 0, 1), "TCP connection lost", Never("no stream is left to say it on; programs are told")),
    ((2, 0, 2), "CRC", By(a_crc)),
    ((2, 0, 3), "marker and length", By(a_marker)),
    (
        (2, 0, 4),
        "invalid start frame",
        Never("RFC 5044 §8: the connection is closed at once; programs are told"),
    ),
    ((2, 0, 5), "local catastrophic error", By(|| said(agreed().refusal(LlpError::Catastrophic)))),
    ((2, 0, 6), "insufficient IRD", By(|| said(asked(None, [0, 4, 0, 9]).0))),
    ((2, 0, 7), "no matching RTR", By(|| said(asked(Some(RtrSet::WRITE), [0xc0, 4, 0, 4]).0))),
];

#[test]
fn every_registered_error() {
    for ((layer, etype, code), name, said) in REGISTRY {
        let error = TermError { layer: *layer, etype: *etype, code: *code };
        let term = match said {
            Segment(segment) => after(Setup::default(), *segment),
            Extended(segment) => after(Setup { rfc7306: true, ..Setup::default() }, *segment),
            By(what) => what(),
            Never(why) => {
                assert!(!why.is_empty());
                continue;
            }
        };
        assert_eq!(term.error, error, "{name}");
        assert_ne!(error.text(), "unknown error", "{name}");
        // RFC 5040 §4.8: the headers of what caused it go along where DDP or RDMAP found it.
        let found = matches!(said, Segment(_) | Extended(_));
        assert_eq!(term.ddp.is_some() && term.segment_len.is_some(), found, "{name}");
    }
}

fn after(setup: Setup, segment: fn(&Keys) -> Vec<u8>) -> Terminate {
    let (mut bench, keys) = bench_of(setup);
    bench.deliver(1, &frame(&segment(&keys)));
    bench.run();
    bench.terminate(1)
}

fn a_work_request_fails() -> Terminate {
    let (mut bench, _) = bench_of(Setup::default());
    let remote = bench.nodes[1].remote(0);
    let sge = Sge { addr: BASE, length: 4, lkey: LKey(0xdead) };
    bench.nodes[0].send(SendWr::new(1, SendOp::Write { remote }).with_sges([sge]));
    bench.run();
    bench.terminate(0)
}

/// A SEND with Invalidate of an STag. The headers are checked here.
fn invalidating(stag: fn(&Keys) -> u32) -> Terminate {
    let (mut bench, keys) = bench_of(Setup::default());
    bench.nodes[1].recv(1, 0, 8);
    let mut segment = untagged(0x41, 0x44, 0, 1, 0, &[]);
    segment[2..6].copy_from_slice(&stag(&keys).to_be_bytes());
    bench.deliver(1, &frame(&segment));
    bench.run();
    let term = bench.terminate(1);
    assert_eq!(term.ddp, DdpHeader::parse(&segment).ok());
    Terminate { ddp: None, ..term }
}

fn a_crc() -> Terminate {
    let (mut bench, keys) = bench_of(Setup::default());
    let mut bad = frame(&tagged(0xc1, 0x40, keys.all, BASE, &[7; 64]));
    bad[40] ^= 1;
    bench.deliver(1, &bad);
    bench.run();
    bench.terminate(1)
}

/// The first marker of the stream points elsewhere, under a CRC that is right.
fn a_marker() -> Terminate {
    let (mut bench, _) = bench_of(Setup { markers: [false, true], ..Setup::default() });
    let mut raw = vec![0, 0, 0, 4, 0, 18];
    raw.extend(untagged(0x41, 0x43, 0, 1, 0, &[]));
    let crc = crc32c(&raw);
    raw.extend(crc);
    bench.deliver(1, &raw);
    bench.run();
    bench.terminate(1)
}

/// An initiator that holds four READs and hears of these depths and flags: its last word, and what became of it.
fn asked(peer_to_peer: Option<RtrSet>, block: [u8; 4]) -> (Option<Vec<u8>>, MpaEvent) {
    let now = Instant::now();
    let config = InitiatorConfig { peer_to_peer, ird: 4, ord: 4, ..InitiatorConfig::default() };
    let mut from = Initiator::new(now, config).unwrap();
    from.poll_transmit().unwrap();
    let mut reply = b"MPA ID Rep Frame\x50\x02\x00\x04".to_vec();
    reply.extend(block);
    from.handle_stream(now, &reply);
    (from.poll_transmit(), from.poll_event().unwrap())
}

fn agreed() -> Agreed {
    match asked(None, [0, 4, 0, 4]).1 {
        MpaEvent::Accepted(agreed) => agreed,
        other => panic!("{other:?}"),
    }
}

/// The message in an initiator's last word.
fn said(word: Option<Vec<u8>>) -> Terminate {
    let all = fpdus(&word.expect("a last word"), true);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0][..18], [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    Terminate::parse(&all[0][18..]).unwrap()
}

/// RFC 5044 §7.1: a responder sends no FPDU before it has received one, whatever goes wrong.
#[test]
fn a_responder_has_no_first_word() {
    assert_eq!(Agreed { initiator: false, ..agreed() }.refusal(LlpError::Catastrophic), None);
}
