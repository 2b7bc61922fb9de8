//! Streams of Linux siw: every start frame and every FPDU parses and re-emits bit for bit, and its CRC is right.

#[path = "support/tcp.rs"]
mod tcp;

use std::collections::BTreeMap;

use everywire_wire::ddp::{DdpHeader, DdpTarget};
use everywire_wire::mpa::{Enhanced, Fpdu, StartFrame, StartKind};
use everywire_wire::rdmap::{RdmapControl, RdmapOpcode, ReadRequest, Terminate};

/// What one file holds.
#[derive(Default, Debug)]
struct Seen {
    connections: usize,
    fpdus: usize,
    opcodes: BTreeMap<u8, usize>,
    crc: bool,
}

fn read(file: &str) -> Vec<tcp::Conversation> {
    let path = format!("{}/../../captures/{file}.pcap", env!("CARGO_MANIFEST_DIR"));
    tcp::conversations(&std::fs::read(path).unwrap())
}

fn check(file: &str) -> Seen {
    let mut seen = Seen::default();
    for conversation in read(file) {
        // perftest agrees on some things over plain TCP first.
        if !conversation.sent[0].starts_with(b"MPA ID Req") {
            continue;
        }
        seen.connections += 1;
        let mut crc = false;
        for (from, stream) in conversation.sent.iter().enumerate() {
            let kind = [StartKind::Request, StartKind::Reply][from];
            let (frame, rest) = start(kind, stream);
            crc |= frame.crc;
            seen.crc |= crc;
            segments(rest, crc, &mut seen);
        }
    }
    seen
}

fn start(kind: StartKind, stream: &[u8]) -> (StartFrame<'_>, &[u8]) {
    let len = StartFrame::length(kind, stream).unwrap().unwrap();
    let frame = StartFrame::parse(kind, stream).unwrap();
    let mut out = Vec::new();
    frame.emit(&mut out);
    assert_eq!(out, stream[..len]);
    assert_eq!((frame.revision, frame.enhanced), (2, true));
    let block = Enhanced::parse(frame.private_data).unwrap();
    assert_eq!(block.to_bytes(), frame.private_data[..4]);
    (frame, &stream[len..])
}

fn segments(mut stream: &[u8], crc: bool, seen: &mut Seen) {
    while !stream.is_empty() {
        let fpdu = Fpdu::parse(stream).unwrap();
        let mut out = Vec::new();
        fpdu.emit(&mut out);
        assert_eq!(out, stream[..fpdu.len()]);
        assert_eq!(fpdu.crc, if crc { fpdu.computed_crc() } else { [0; 4] });
        let header = DdpHeader::parse(fpdu.ulpdu).unwrap();
        let mut bytes = [0; 18];
        header.emit(&mut bytes);
        assert_eq!(bytes[..header.header_len()], fpdu.ulpdu[..header.header_len()]);
        let control = RdmapControl::from_byte(header.ulp);
        assert_eq!(control.to_byte(), header.ulp);
        let opcode = RdmapOpcode::from_bits(control.opcode).unwrap();
        match header.target {
            DdpTarget::Tagged { .. } => assert_eq!(opcode.queue(), None),
            DdpTarget::Untagged { qn, .. } => assert_eq!(opcode.queue(), Some(qn)),
        }
        payload(opcode, &fpdu.ulpdu[header.header_len()..]);
        *seen.opcodes.entry(control.opcode).or_default() += 1;
        seen.fpdus += 1;
        stream = &stream[fpdu.len()..];
    }
}

fn payload(opcode: RdmapOpcode, payload: &[u8]) {
    let mut out = Vec::new();
    match opcode {
        RdmapOpcode::ReadRequest => {
            out.resize(ReadRequest::LEN, 0);
            ReadRequest::parse(payload).unwrap().emit(&mut out);
        }
        RdmapOpcode::Terminate => Terminate::parse(payload).unwrap().emit(&mut out),
        _ => return,
    }
    assert_eq!(out, payload);
}

/// Counts as tshark gives them: 12 SENDs, three each of READ request, READ response and WRITE; one WRITE more to make ready.
#[test]
fn rping() {
    for (file, crc, writes) in
        [("siw-rping", false, 3), ("siw-crc-rping", true, 3), ("siw-p2pcrc-rping", true, 4)]
    {
        let seen = check(file);
        assert_eq!((seen.connections, seen.crc), (1, crc), "{file}");
        assert_eq!(seen.opcodes, BTreeMap::from([(0, writes), (1, 3), (2, 3), (3, 12)]), "{file}");
    }
}

/// The numbers of the captures' own notes.
#[test]
fn perftest_and_smb_direct() {
    assert_eq!(check("siw-crc-perftest").fpdus, 232);
    assert_eq!(check("duo-siw-crc-smb").fpdus, 539);
}
