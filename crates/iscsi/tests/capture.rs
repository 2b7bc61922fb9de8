//! `captures/iser.pcap`: Linux 6.1's ib_iser against LIO. Every iSCSI PDU in it re-emits bit for bit, and its logins succeed here.

mod lab;

use std::collections::HashMap;

use bytes::Bytes;
use everywire_iscsi::keys::text;
use everywire_iscsi::login::chap::Nonce;
use everywire_iscsi::login::target::{Login, Step};
use everywire_iscsi::pdu::{Digests, Header, Pdu};
use everywire_wire::roce::RocePacket;

/// Flags, and two STags with offsets (RFC 7145 §9.3, as expanded by Linux).
const ISER_HEADER: usize = 28;
/// iSCSI control-type PDU.
const CONTROL: u8 = 0x10;

/// iSCSI PDUs of the capture, in order.
fn pdus() -> Vec<Bytes> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/iser.pcap");
    let file = std::fs::read(path).expect("the capture");
    let (mut at, mut out, mut parts) = (24, Vec::new(), HashMap::<u32, Vec<u8>>::new());
    while at + 16 <= file.len() {
        let len = u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("4 bytes")) as usize;
        let frame = &file[at + 16..at + 16 + len];
        at += 16 + len;
        if frame[12..14] != [8, 0] || frame[23] != 17 {
            continue;
        }
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let roce = RocePacket::parse(&frame[42..14 + total]).expect("a RoCE packet");
        if roce.deth.is_some() {
            continue;
        }
        let part = parts.entry(roce.bth.dest_qp.get()).or_default();
        match roce.bth.opcode.0 {
            0 | 1 => part.extend_from_slice(roce.payload),
            2 | 4 | 23 => {
                part.extend_from_slice(roce.payload);
                let whole = std::mem::take(part);
                if whole[0] & 0xf0 == CONTROL {
                    out.push(Bytes::from(whole).slice(ISER_HEADER..));
                }
            }
            _ => {}
        }
    }
    out
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
        if !established.negotiation.discovery {
            let params = &established.params;
            assert!(params.rdma && !params.digests.header && !params.digests.data);
            assert_eq!(params.max_recv, 8192, "TargetRecvDataSegmentLength");
        }
    }
    assert!(logins >= 2, "{logins}");
}
