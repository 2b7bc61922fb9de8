//! `captures/iser.pcap`: Linux 6.1's ib_iser against LIO. Every iSCSI PDU in it re-emits bit for bit, and its logins succeed here.

mod lab;

use std::collections::HashMap;

use bytes::Bytes;
use everywire_iscsi::keys::text;
use everywire_iscsi::login::chap::Nonce;
use everywire_iscsi::login::target::{Login, Step};
use everywire_iscsi::pdu::{Digests, Header, Pdu};
use everywire_iscsi::rdma::{self as iser, PrivateData};
use everywire_wire::roce::RocePacket;

/// Flags, and two STags with offsets (RFC 7145 §9.3, as expanded by Linux).
const ISER_HEADER: usize = 28;
/// iSCSI control-type PDU.
const CONTROL: u8 = 0x10;

/// iSCSI PDUs of the capture, in order.
fn pdus() -> Vec<Bytes> {
    let control = messages().into_iter().filter(|message| message[0] & 0xf0 == CONTROL);
    control.map(|message| message.slice(ISER_HEADER..)).collect()
}

/// What the connection manager carried from one program to the other.
fn private_data() -> Vec<[u8; 4]> {
    let mut found = Vec::new();
    walk(|roce| {
        let mad = roce.payload;
        match (roce.deth.is_some(), mad.get(17)) {
            (true, Some(0x10)) => found.push(mad[200..204].try_into().expect("4 bytes")),
            (true, Some(0x13)) => found.push(mad[60..64].try_into().expect("4 bytes")),
            _ => {}
        }
    });
    found
}

/// Whole SENDs, in order.
fn messages() -> Vec<Bytes> {
    let (mut out, mut parts) = (Vec::new(), HashMap::<u32, Vec<u8>>::new());
    walk(|roce| {
        if roce.deth.is_some() {
            return;
        }
        let part = parts.entry(roce.bth.dest_qp.get()).or_default();
        match roce.bth.opcode.0 {
            0 | 1 => part.extend_from_slice(roce.payload),
            2 | 4 | 23 => {
                part.extend_from_slice(roce.payload);
                out.push(Bytes::from(std::mem::take(part)));
            }
            _ => {}
        }
    });
    out
}

/// Every RoCE packet.
fn walk(mut each: impl FnMut(&RocePacket<'_>)) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/iser.pcap");
    let file = std::fs::read(path).expect("the capture");
    let mut at = 24;
    while at + 16 <= file.len() {
        let len = u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("4 bytes")) as usize;
        let frame = &file[at + 16..at + 16 + len];
        at += 16 + len;
        if frame[12..14] != [8, 0] || frame[23] != 17 {
            continue;
        }
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        each(&RocePacket::parse(&frame[42..14 + total]).expect("a RoCE packet"));
    }
}

/// iSER's own bytes: every header, with its STags, and the private data of both ends (RFC 7145 §9.3).
#[test]
fn every_header_comes_back_bit_for_bit() {
    let (mut reads, mut writes) = (0, 0);
    for message in messages() {
        let header = iser::Header::parse(&message).expect("a header");
        assert_eq!(header.emit(), message[..ISER_HEADER], "{header:x?}");
        let iser::Header::Control(control) = header else { panic!("{header:?}") };
        reads += usize::from(control.read.is_some());
        writes += usize::from(control.write.is_some());
    }
    assert!(reads > 30 && writes > 3, "{reads} {writes}");
    let data = private_data();
    assert!(data.len() >= 4, "two connections, both ways");
    for bytes in data {
        let lacks = PrivateData::parse(&bytes);
        assert_eq!(lacks, PrivateData { no_zero_based: true, no_send_invalidate: false });
        assert_eq!(lacks.emit(), bytes);
    }
}

#[test]
fn every_pdu_comes_back_bit_for_bit() {
    let mut names = HashMap::<&str, usize>::new();
    for bytes in pdus() {
        let pdu = Pdu::from_bytes(&bytes, 1 << 20).unwrap_or_else(|e| panic!("{bytes:02x?}: {e}"));
        *names.entry(pdu.header.name()).or_default() += 1;
        let emitted = pdu.to_bytes(Digests::default());
        assert_eq!(emitted[..bytes.len().min(emitted.len())], bytes[..], "{pdu:?}");
    }
    for name in [
        "Login Request",
        "Login Response",
        "Text Request",
        "Text Response",
        "SCSI Command",
        "SCSI Response",
        "NOP-Out",
        "NOP-In",
        "Logout Request",
        "Logout Response",
    ] {
        assert!(names.contains_key(name), "{name} is in {names:?}");
    }
}

/// The logins of Linux, said to this target: each ends in the full feature phase, with what LIO agreed to as well (RFC 7145 §6).
#[test]
fn linux_logs_in_here() {
    let lab = lab::Lab::with(1, Default::default(), |node| node.name = lab::name("iqn.2026-01.lab:t1"));
    let mut logins = 0;
    for bytes in pdus() {
        let pdu = Pdu::from_bytes(&bytes, 8192).expect("a PDU");
        let Header::LoginRequest(request) = pdu.header else { continue };
        let mut login = Login::new(lab::address(1), lab::address(3260), true, Nonce::new(|| 1));
        let step = login.receive(&lab.target, &pdu);
        let Step::Done(reply, established) = step else { panic!("{:?}: {step:?}", text::parse(&pdu.data)) };
        let Header::LoginResponse(response) = reply.header else { panic!("{reply:?}") };
        assert_eq!((response.flags, response.itt, response.isid), (0x87, request.itt, request.isid));
        logins += 1;
        // open-iscsi gives up at a key that it does not know: what was asked for, and what LIO says of its own accord.
        let asked = text::parse(&pdu.data).expect("pairs");
        for (key, _) in text::parse(&reply.data).expect("pairs") {
            let unasked =
                ["TargetPortalGroupTag", "TargetAlias", "MaxRecvDataSegmentLength"].contains(&&*key);
            assert!(unasked || asked.iter().any(|(name, _)| *name == key), "{key}");
        }
        if !established.negotiation.discovery {
            let params = &established.params;
            assert!(params.rdma && !params.digests.header && !params.digests.data);
            assert_eq!(params.max_recv, 8192, "TargetRecvDataSegmentLength");
            assert_eq!(params.max_send, 262_144, "InitiatorRecvDataSegmentLength");
        }
    }
    assert!(logins >= 2, "{logins}");
}
