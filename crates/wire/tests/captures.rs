//! Frames of the Linux kernel as judge: every RoCE frame of every capture comes apart layer by layer and goes together
//! again bit for bit, its ICRC is what we compute, and the hidden IPv4 fields are recovered from it.
//!
//! The frame counts and the field values below are tshark's, not ours.

mod support;

use everywire_wire::cm::{CmMad, CmMessage, RejReason, TransportService};
use everywire_wire::eth::Ethertype;
use everywire_wire::ip::{IpHeader, PROTOCOL_UDP};
use everywire_wire::ip_cm::{IpCmHeader, PortSpace, service_id, split_service_id};
use everywire_wire::{
    Gid, Guid, HiddenFields, HiddenId, IcrcHasher, IcrcV4, IcrcV6, Mad, Opcode, PKey, Psn, QKey, Qpn,
    RocePacket, UdpFrame,
};
use support::{CAPTURES, frames};

/// The RoCE frames of a capture; the others are ARP and perftest's own TCP.
fn roce_frames(name: &str) -> Vec<Vec<u8>> {
    let mut all = frames(name);
    all.retain(|f| UdpFrame::parse(f).is_ok_and(|f| f.is_roce()));
    all
}

/// The MAD of a packet to QP1, if it is one.
fn mad_of(packet: &RocePacket<'_>) -> Option<Mad> {
    (packet.bth.dest_qp == Qpn::GSI).then(|| packet.payload.try_into().expect("a MAD has 256 bytes"))
}

/// Every CM message of a capture, in order.
fn cm_messages(name: &str) -> Vec<CmMad> {
    let frames = roce_frames(name);
    let mads = frames
        .iter()
        .filter_map(|f| mad_of(&RocePacket::parse(UdpFrame::parse(f).unwrap().payload).unwrap()));
    mads.map(|mad| CmMad::parse(&mad).unwrap()).collect()
}

#[test]
fn every_roce_frame_re_emits_bit_for_bit() {
    for (name, count) in CAPTURES {
        let frames = roce_frames(name);
        assert_eq!(frames.len(), count, "{name}");
        for (i, bytes) in frames.iter().enumerate() {
            let frame = UdpFrame::parse(bytes).unwrap();
            let packet = RocePacket::parse(frame.payload).unwrap_or_else(|e| panic!("{name} frame {i}: {e}"));
            let mut payload = Vec::new();
            packet.emit(&mut payload);
            let mut again = Vec::new();
            UdpFrame { payload: &payload, ..frame }.emit(&mut again);
            assert_eq!(&again, bytes, "{name} frame {i}");
        }
    }
}

#[test]
fn every_other_frame_is_refused_for_what_it_is() {
    for (name, _) in CAPTURES {
        for bytes in frames(name) {
            let Err(e) = UdpFrame::parse(&bytes) else { continue };
            let eth = everywire_wire::eth::EthHeader::parse(&bytes).unwrap();
            let is_arp = eth.ethertype == Ethertype::ARP;
            let is_tcp = IpHeader::parse(&bytes[14..]).is_ok_and(|ip| ip.protocol() != PROTOCOL_UDP);
            assert!(is_arp || is_tcp, "{name}: {e}");
        }
    }
}

#[test]
fn lengths_and_checksums_are_the_kernels() {
    for (name, _) in CAPTURES {
        for bytes in roce_frames(name) {
            let frame = UdpFrame::parse(&bytes).unwrap();
            let mut filled = frame;
            filled.fill_lengths_and_checksums();
            assert_eq!(filled, frame, "{name}");
        }
    }
}

#[test]
fn every_icrc_is_what_we_compute() {
    for (name, _) in CAPTURES {
        for (i, bytes) in roce_frames(name).iter().enumerate() {
            let frame = UdpFrame::parse(bytes).unwrap();
            assert!(frame.icrc_is_right(), "{name} frame {i}");
            let packet = RocePacket::parse(frame.payload).unwrap();
            assert_eq!(frame.expected_icrc(), Some(packet.icrc));
            // The same in pieces, as a driver that copies while it sums would have it.
            let covered = &frame.payload[..packet.covered_len()];
            let mut hasher = hasher(&frame, covered.len());
            for piece in covered.chunks(i % 300 + 1) {
                hasher.update(piece);
            }
            assert_eq!(hasher.finish().to_le_bytes(), packet.icrc, "{name} frame {i} in pieces");
        }
    }
}

fn hasher(frame: &UdpFrame<'_>, len: usize) -> IcrcHasher {
    let src_port = frame.udp.src_port;
    match frame.ip {
        IpHeader::V4(h) => {
            let net = IcrcV4 { src: h.src, dst: h.dst, id: h.id, flags_frag: h.flags_frag, src_port };
            IcrcHasher::v4(&net, len)
        }
        IpHeader::V6(h) => IcrcHasher::v6(&IcrcV6 { src: h.src, dst: h.dst, src_port }, len),
    }
}

/// The covered bytes, what a UDP socket knows of the network headers, the hidden fields, the ICRC.
type Hidden = (Vec<u8>, IcrcV4, HiddenFields, [u8; 4]);

fn hidden(bytes: &[u8]) -> Option<Hidden> {
    let frame = UdpFrame::parse(bytes).unwrap();
    let IpHeader::V4(ip) = frame.ip else { return None };
    let (covered, icrc) = frame.payload.split_last_chunk::<4>().unwrap();
    let net = IcrcV4 { src: ip.src, dst: ip.dst, id: 0, flags_frag: 0, src_port: frame.udp.src_port };
    Some((covered.to_vec(), net, HiddenFields { id: ip.id, df: ip.flags_frag & 0x4000 != 0 }, *icrc))
}

#[test]
fn hidden_fields_are_recovered_from_every_ipv4_frame() {
    let mut nonzero = 0;
    for (name, _) in CAPTURES {
        for (i, bytes) in roce_frames(name).iter().enumerate() {
            let Some((covered, net, real, icrc)) = hidden(bytes) else { continue };
            assert_eq!(HiddenId::new().verify(&net, &covered, icrc), Some(real), "{name} frame {i}");
            nonzero += usize::from(real.id != 0);
        }
    }
    assert!(nonzero > 1000, "rxe writes nonzero identifications, so this must have been put to the test");
}

#[test]
fn a_flipped_bit_elsewhere_is_noticed() {
    // Linux sets DF, so a receiver insists on it. The unit tests go through every distance; here the bits of real frames.
    for (name, _) in CAPTURES {
        for bytes in roce_frames(name).iter().step_by(17) {
            let Some((covered, net, _, icrc)) = hidden(bytes) else { continue };
            let accepts = |covered: &[u8], net: &IcrcV4, icrc| {
                HiddenId::new().verify(net, covered, icrc).is_some_and(|f| f.df)
            };
            for bit in (0..covered.len() * 8).filter(|bit| bit / 8 != 4).step_by(7) {
                let mut wrong = covered.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!accepts(&wrong, &net, icrc), "{name}: bit {bit}");
            }
            for bit in 0..32 {
                let flip = 1u32 << bit;
                let wrong = (u32::from_le_bytes(icrc) ^ flip).to_le_bytes();
                assert!(!accepts(&covered, &net, wrong), "{name}: ICRC bit {bit}");
                let src = (net.src.to_bits() ^ flip).into();
                assert!(!accepts(&covered, &IcrcV4 { src, ..net }, icrc), "{name}: source bit {bit}");
                let dst = (net.dst.to_bits() ^ flip).into();
                assert!(!accepts(&covered, &IcrcV4 { dst, ..net }, icrc), "{name}: destination bit {bit}");
                if bit < 16 {
                    let src_port = net.src_port ^ 1 << bit;
                    assert!(!accepts(&covered, &IcrcV4 { src_port, ..net }, icrc), "{name}: port bit {bit}");
                }
            }
        }
    }
}

#[test]
fn every_mad_re_emits_bit_for_bit() {
    let mut count = 0;
    for (name, _) in CAPTURES {
        for bytes in roce_frames(name) {
            let packet = RocePacket::parse(UdpFrame::parse(&bytes).unwrap().payload).unwrap();
            let Some(mad) = mad_of(&packet) else { continue };
            assert_eq!(packet.deth.unwrap().qkey, QKey::GSI);
            let cm = CmMad::parse(&mad).unwrap();
            assert_eq!(cm.emit(), mad, "{name}: {}", cm.message.name());
            count += 1;
            if let CmMessage::Req(req) = cm.message {
                let header = IpCmHeader::parse(&req.private_data).unwrap();
                assert!(header.is_supported());
                let mut out = [0; IpCmHeader::LEN];
                header.emit(&mut out);
                assert_eq!(out, req.private_data[..IpCmHeader::LEN]);
                let ip = UdpFrame::parse(&bytes).unwrap().ip;
                assert_eq!((header.src().unwrap().ip(), header.dst().unwrap()), (ip.src(), ip.dst()));
                assert_eq!(
                    (req.primary.local_gid, req.primary.remote_gid),
                    (ip.src().into(), ip.dst().into())
                );
                assert_eq!(IpCmHeader::new(header.src().unwrap(), header.dst().unwrap()), header);
                assert_eq!(split_service_id(req.service_id).unwrap().0, PortSpace::TCP);
            }
        }
    }
    // tshark: 6 + 15 + 5 + 5 frames with a MAD attribute.
    assert_eq!(count, 31);
}

#[test]
fn nvme_req_says_what_tshark_says() {
    let req = match cm_messages("nvme_rdma")[0] {
        CmMad { header, message: CmMessage::Req(req) } => {
            assert_eq!((header.class_version, header.transaction_id), (2, 0x2_fc10_cf48));
            req
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((req.local_comm_id, req.service_id), (0x48cf_10fc, service_id(PortSpace::TCP, 4420)));
    assert_eq!(
        (req.local_ca_guid, req.local_qkey, req.local_qpn),
        (Guid(0x5054_00ff_fe77_000c), QKey(0), Qpn::new(0x1c))
    );
    assert_eq!((req.responder_resources, req.initiator_depth), (0x80, 0));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout), (0x14, 0x14));
    assert_eq!((req.transport_service, req.end_to_end_flow_control), (TransportService::Rc, true));
    assert_eq!((req.starting_psn, req.retry_count, req.rnr_retry_count), (Psn::new(0x68_8301), 7, 7));
    assert_eq!((req.pkey, req.path_mtu, req.max_cm_retries, req.srq), (PKey::DEFAULT, 3, 15, false));
    let path = req.primary;
    assert_eq!((path.local_lid.0, path.remote_lid.0), (0xffff, 0xffff));
    // The bytes are f9 33 40 00; tshark 4.0 begins to read them one byte early.
    assert_eq!((path.flow_label, path.reserved_38, path.packet_rate), (0xf9334, 0, 0));
    assert_eq!((path.traffic_class, path.hop_limit, path.sl, path.subnet_local), (0, 0x40, 0, false));
    assert_eq!((path.local_ack_timeout, req.alternate.local_gid), (0x13, Gid::ZERO));
    let ip = IpCmHeader::parse(&req.private_data).unwrap();
    assert_eq!((ip.src(), ip.dst()), ("192.168.77.12:32784".parse().ok(), "192.168.77.11".parse().ok()));
    // recfmt 0, qid 0, hrqsize 32, hsqsize 31.
    assert_eq!(req.private_data[36..44], [0, 0, 0, 0, 0x20, 0, 0x1f, 0]);
}

#[test]
fn rping_rep_says_what_tshark_says() {
    let messages = cm_messages("rping");
    let names: Vec<_> = messages.iter().map(|m| m.message.name()).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let CmMessage::Rep(rep) = messages[1].message else { panic!("{:?}", messages[1]) };
    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (0x9434_999e, 0x4ccf_10fc));
    assert_eq!((rep.local_qpn, rep.starting_psn), (Qpn::new(0x12), Psn::new(0xa3_864c)));
    assert_eq!((rep.responder_resources, rep.initiator_depth, rep.target_ack_delay), (1, 1, 15));
    assert_eq!((rep.rnr_retry_count, rep.srq, rep.end_to_end_flow_control), (7, false, false));
    assert_eq!(rep.local_ca_guid, Guid(0x5054_00ff_fe77_000b));
    let CmMessage::Req(req) = messages[0].message else { panic!("{:?}", messages[0]) };
    assert_eq!(req.local_comm_id, rep.remote_comm_id);
    let CmMessage::Dreq(dreq) = messages[3].message else { panic!("{:?}", messages[3]) };
    assert!([req.local_qpn, rep.local_qpn].contains(&dreq.remote_qpn));
}

#[test]
fn the_reject_is_for_want_of_a_listener() {
    let messages = cm_messages("cm_reject_no_listener");
    let rej = messages.iter().find_map(|m| match m.message {
        CmMessage::Rej(rej) => Some(rej),
        _ => None,
    });
    assert_eq!(rej.unwrap().reason, RejReason::InvalidServiceId);
}

#[test]
fn all_kinds_of_packet_are_there() {
    let mut seen = std::collections::BTreeSet::new();
    for (name, _) in CAPTURES {
        for bytes in roce_frames(name) {
            seen.insert(RocePacket::parse(UdpFrame::parse(&bytes).unwrap().payload).unwrap().bth.opcode.0);
        }
    }
    let expected = [
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_ONLY,
        Opcode::RC_WRITE_ONLY,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_ACK,
        Opcode::RC_ATOMIC_ACK,
        Opcode::RC_SEND_ONLY_INV,
        Opcode::UC_SEND_FIRST,
        Opcode::UD_SEND_ONLY,
    ];
    for op in expected {
        assert!(seen.contains(&op.0), "no {} in the captures", op.name());
    }
}
