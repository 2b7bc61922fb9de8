//! Properties of every header and message: what parses re-emits bit for bit, what is emitted parses to the same value, and
//! no bytes make a parser panic.

use everywire_wire::cm::{self, CmMad};
use everywire_wire::eth::EthHeader;
use everywire_wire::grh::Grh;
use everywire_wire::ip::{IpHeader, Ipv4Header, Ipv6Header};
use everywire_wire::ip_cm::IpCmHeader;
use everywire_wire::mad::{MadHeader, RmppHeader};
use everywire_wire::udp::UdpHeader;
use everywire_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HiddenFields, HiddenId, IcrcV4, Ieth, ImmDt, Opcode, Reth,
    RocePacket, UdpFrame, icrc_v4,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// For headers whose every bit is kept: random bytes are a random value.
macro_rules! exact {
    ($($test:ident: $ty:ty;)*) => {
        proptest! {
            $(#[test]
            fn $test(bytes in vec(any::<u8>(), 0..<$ty>::LEN + 8)) {
                match <$ty>::parse(&bytes) {
                    Ok(value) => {
                        let mut out = [0xa5; 512];
                        value.emit(&mut out);
                        prop_assert_eq!(&out[..<$ty>::LEN], &bytes[..<$ty>::LEN]);
                        prop_assert!(out[<$ty>::LEN..].iter().all(|b| *b == 0xa5), "wrote past its end");
                        prop_assert_eq!(<$ty>::parse(&out), Ok(value));
                    }
                    Err(_) => prop_assert!(bytes.len() < <$ty>::LEN),
                }
            })*
        }
    };
}

exact! {
    bth: Bth;
    deth: Deth;
    reth: Reth;
    aeth: Aeth;
    atomic_eth: AtomicEth;
    atomic_ack_eth: AtomicAckEth;
    immdt: ImmDt;
    ieth: Ieth;
    grh: Grh;
    mad_header: MadHeader;
    rmpp_header: RmppHeader;
    ip_cm_header: IpCmHeader;
    cm_req: cm::Req;
    cm_req_path: cm::ReqPath;
    cm_mra: cm::Mra;
    cm_rej: cm::Rej;
    cm_rep: cm::Rep;
    cm_rtu: cm::Rtu;
    cm_dreq: cm::Dreq;
    cm_drep: cm::Drep;
    cm_sidr_req: cm::SidrReq;
    cm_sidr_rep: cm::SidrRep;
    cm_lap: cm::Lap;
    cm_apr: cm::Apr;
}

proptest! {
    #[test]
    fn eth(bytes in vec(any::<u8>(), 0..40), tagged: bool) {
        let mut bytes = bytes;
        if tagged && bytes.len() >= 14 {
            bytes[12..14].copy_from_slice(&[0x81, 0x00]);
        }
        if let Ok(value) = EthHeader::parse(&bytes) {
            let mut out = [0; EthHeader::MAX_LEN];
            value.emit(&mut out);
            prop_assert_eq!(&out[..value.header_len()], &bytes[..value.header_len()]);
        } else {
            prop_assert!(bytes.len() < 18);
        }
    }

    #[test]
    fn ipv4(mut bytes in vec(any::<u8>(), 20..24)) {
        bytes[0] = 0x45;
        let value = Ipv4Header::parse(&bytes).unwrap();
        let mut out = [0; 20];
        value.emit(&mut out);
        prop_assert_eq!(&out[..], &bytes[..20]);
        // RFC 1071 §1: a right header sums to all ones.
        value.with_checksum().emit(&mut out);
        let mut sum = everywire_wire::ip::Checksum::new();
        sum.add(&out);
        prop_assert_eq!(sum.finish(), 0);
    }

    #[test]
    fn ipv6(mut bytes in vec(any::<u8>(), 40..44)) {
        bytes[0] = 0x60 | bytes[0] & 0x0f;
        let value = Ipv6Header::parse(&bytes).unwrap();
        let mut out = [0; 40];
        value.emit(&mut out);
        prop_assert_eq!(&out[..], &bytes[..40]);
    }

    #[test]
    fn udp(bytes in vec(any::<u8>(), 8..12)) {
        if let Ok(value) = UdpHeader::parse(&bytes) {
            let mut out = [0; 8];
            value.emit(&mut out);
            prop_assert_eq!(&out[..], &bytes[..8]);
        }
    }

    #[test]
    fn roce_packets(opcode: u8, bytes in vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = opcode;
        }
        if let Ok(packet) = RocePacket::parse(&bytes) {
            let mut out = Vec::new();
            packet.emit(&mut out);
            prop_assert_eq!(&out, &bytes);
            prop_assert_eq!(packet.covered_len() + 4, bytes.len());
        } else {
            let op = Opcode(opcode);
            let whole = bytes.len() >= op.header_len() + 3 + 4 && bytes.len() % 4 == 0;
            prop_assert!(!RocePacket::models(op) || !whole, "a whole {} was refused", op.name());
        }
    }

    #[test]
    fn cm_mads(bytes in vec(any::<u8>(), 256), attribute in 0x0fu8..0x1d) {
        let mut mad = [0; 256];
        mad.copy_from_slice(&bytes);
        [mad[1], mad[3], mad[16], mad[17]] = [7, 3, 0, attribute];
        let parsed = CmMad::parse(&mad);
        prop_assert_eq!(parsed.is_ok(), (0x10..=0x1a).contains(&attribute));
        if let Ok(cm) = parsed {
            prop_assert_eq!(cm.emit(), mad);
        }
    }

    #[test]
    fn udp_frames(v6: bool, tagged: bool, addresses: [u8; 32], payload in vec(any::<u8>(), 0..100), trailer in 0usize..20) {
        let mut bytes = vec![2; 12];
        if tagged {
            bytes.extend([0x81, 0, 0x60, 7]);
        }
        let udp_len = 8 + payload.len();
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, udp_len as u8, 17, 64]);
            bytes.extend(addresses);
        } else {
            bytes.extend([8, 0, 0x45, 0, 0, 20 + udp_len as u8, 1, 2, 0x40, 0, 64, 17, 0xab, 0xcd]);
            bytes.extend(&addresses[..8]);
        }
        bytes.extend([0xc0, 0, 0x12, 0xb7, 0, udp_len as u8, 0, 0]);
        bytes.extend(&payload);
        bytes.extend(vec![0; trailer]);
        let frame = UdpFrame::parse(&bytes).unwrap();
        prop_assert_eq!((frame.payload, frame.trailer.len(), frame.is_roce()), (&payload[..], trailer, true));
        let mut out = Vec::new();
        frame.emit(&mut out);
        prop_assert_eq!(&out, &bytes);
        for cut in 0..bytes.len() - trailer {
            prop_assert!(UdpFrame::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn no_bytes_make_a_frame_parser_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = UdpFrame::parse(&bytes);
        let _ = IpHeader::parse(&bytes);
        let _ = RocePacket::parse(&bytes);
    }

    #[test]
    fn hidden_fields(src: [u8; 4], dst: [u8; 4], id: u16, df: bool, src_port: u16, words in vec(any::<[u8; 4]>(), 3..1100)) {
        let bytes = words.concat();
        let flags_frag = if df { 0x4000 } else { 0 };
        let net = IcrcV4 { src: src.into(), dst: dst.into(), id, flags_frag, src_port };
        let icrc = icrc_v4(&net, &bytes).to_le_bytes();
        let unseen = IcrcV4 { id: 0, flags_frag: 0, ..net };
        prop_assert_eq!(HiddenId.verify(&unseen, &bytes, icrc), Some(HiddenFields { id, df }));
    }
}
