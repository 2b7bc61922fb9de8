//! Conversations of Linux siw (6.1): we take one side's place, the captured stream of the other goes in, and the stream that
//! comes out is held against what the kernel sent, bit for bit.

#[path = "../../../../wire/tests/support/tcp.rs"]
mod tcp;

use everywire_wire::mpa::{StartFrame, StartKind};
use everywire_wire::rdmap::ReadRequest;

use super::*;
use crate::ib::tests::memory::Region;
use crate::iwarp::Rtr;

/// One DDP segment of a stream.
struct Segment {
    header: DdpHeader,
    payload: Vec<u8>,
}

impl Segment {
    fn opcode(&self) -> RdmapOpcode {
        RdmapOpcode::from_bits(self.header.ulp & 0x0f).unwrap()
    }

    fn tagged(&self) -> Remote {
        match self.header.target {
            DdpTarget::Tagged { stag, to } => Remote { addr: to, rkey: stag },
            DdpTarget::Untagged { .. } => panic!("not tagged"),
        }
    }
}

/// The stream behind the start frame, and its segments.
fn stream(kind: StartKind, bytes: &[u8], crc: bool) -> (Vec<u8>, Vec<Segment>) {
    let start = StartFrame::length(kind, bytes).unwrap().unwrap();
    let rest = bytes[start..].to_vec();
    let parse = |segment: Vec<u8>| {
        let header = DdpHeader::parse(&segment).unwrap();
        Segment { header, payload: segment[header.header_len()..].to_vec() }
    };
    let segments = fpdus(&rest, crc).into_iter().map(parse).collect();
    (rest, segments)
}

/// Maps memory under a captured key and address, or puts bytes there.
fn map(node: &mut Node, at: Remote, bytes: &[u8]) {
    let regions = &mut node.env.memory.regions;
    regions.retain(|r| r.key != at.rkey.0);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    regions.push(Region {
        pd: PD,
        key: at.rkey.0,
        base: at.addr,
        bytes: bytes.to_vec(),
        access,
        valid: true,
    });
}

/// The work request that makes the kernel's segment.
fn work(node: &mut Node, segment: &Segment) -> Option<SendWr> {
    Some(match segment.opcode() {
        RdmapOpcode::Send => SendWr::new(1, SendOp::Send).with_inline(segment.payload.clone()),
        RdmapOpcode::Write => {
            SendWr::new(1, SendOp::Write { remote: segment.tagged() }).with_inline(segment.payload.clone())
        }
        RdmapOpcode::ReadRequest => {
            let read = ReadRequest::parse(&segment.payload).unwrap();
            let sink = Remote { addr: read.sink_to, rkey: read.sink_stag };
            map(node, sink, &vec![0; read.length as usize]);
            let sge = Sge { addr: sink.addr, length: read.length, lkey: LKey(sink.rkey.0) };
            let remote = Remote { addr: read.source_to, rkey: read.source_stag };
            SendWr::new(1, SendOp::Read { remote }).with_sges([sge])
        }
        _ => return None,
    })
}

/// Plays a capture with us as end `us` (0 connects).
fn play(file: &str, us: usize, crc: bool, rtr: Option<Rtr>) {
    let path = format!("{}/../../captures/{file}.pcap", env!("CARGO_MANIFEST_DIR"));
    let all = tcp::conversations(&std::fs::read(path).unwrap());
    let conversation = &all[0];
    let kinds = [StartKind::Request, StartKind::Reply];
    let (ours, our_segments) = stream(kinds[us], &conversation.sent[us], crc);
    let (theirs, their_segments) = stream(kinds[1 - us], &conversation.sent[1 - us], crc);
    let mut bench = Bench::unconnected(Setup { crc, depth: 1, rtr, ..Setup::default() });
    bench.start(us);
    for id in 0..20 {
        bench.nodes[us].recv(id, id * 4096, 4096);
    }
    let (mut our_segments, mut their_segments) = (our_segments.iter().peekable(), their_segments.iter());
    let (mut fed, mut start) = (0, [true, true]);
    let mut rtr_is_due = rtr.is_some() && us == 0;
    for (from, len) in conversation.order.iter().copied() {
        if std::mem::take(&mut start[from]) {
            continue;
        }
        if from != us {
            // One FPDU in a TCP segment, as these captures have it.
            let segment = their_segments.next().unwrap();
            prepare(&mut bench.nodes[us], segment, our_segments.peek().copied());
            let bytes = theirs[fed..fed + len].to_vec();
            fed += len;
            bench.deliver(us, &bytes);
        } else if std::mem::take(&mut rtr_is_due) {
            our_segments.next();
        } else if let Some(segment) = our_segments.peek()
            && let Some(wr) = work(&mut bench.nodes[us], segment)
        {
            our_segments.next();
            bench.nodes[us].send(wr);
        } else {
            our_segments.next();
        }
        bench.transmit(us);
        let unwritten = bench.nodes[us].unwritten;
        bench.written(us, unwritten);
    }
    assert_eq!(bench.log[us], ours, "{file} as end {us}");
    let node = &mut bench.nodes[us];
    assert!(node.sent().iter().all(|(_, status)| *status == WcStatus::Success));
    assert_eq!(node.received().len(), 6);
}

/// What the kernel had in memory when this segment came.
fn prepare(node: &mut Node, segment: &Segment, answer: Option<&Segment>) {
    match (segment.opcode(), answer) {
        (RdmapOpcode::Write, _) if !segment.payload.is_empty() => {
            map(node, segment.tagged(), &vec![0; segment.payload.len()]);
        }
        (RdmapOpcode::ReadRequest, Some(answer)) => {
            let read = ReadRequest::parse(&segment.payload).unwrap();
            let source = Remote { addr: read.source_to, rkey: read.source_stag };
            map(node, source, &answer.payload);
        }
        _ => {}
    }
}

#[test]
fn rping_as_the_client() {
    play("siw-rping", 0, false, None);
    play("siw-crc-rping", 0, true, None);
    play("siw-p2pcrc-rping", 0, true, Some(Rtr::Write));
}

#[test]
fn rping_as_the_server() {
    play("siw-rping", 1, false, None);
    play("siw-crc-rping", 1, true, None);
    play("siw-p2pcrc-rping", 1, true, Some(Rtr::Write));
}
