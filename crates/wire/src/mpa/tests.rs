//! Vectors by hand from RFC 5044 and RFC 6581, a published CRC32C example, and frames of Linux siw.

use super::*;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// RFC 3720 appendix B.4: 32 bytes of zeros, of ones, and ascending.
#[test]
fn crc32c_of_the_iscsi_examples() {
    assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    let ascending: Vec<u8> = (0..32).collect();
    assert_eq!(crc32c(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
    let mut pieces = Crc32c::new();
    pieces.update(&ascending[..5]);
    pieces.update(&[]);
    pieces.update(&ascending[5..]);
    assert_eq!(pieces.finish(), [0x4e, 0x79, 0xdd, 0x46]);
}

/// From siw-p2pcrc-rping: the zero-length WRITE that makes the responder ready.
#[test]
fn an_fpdu_of_siw() {
    let bytes = hex("000ec140000000010000000000000000ebd34c5f");
    let fpdu = Fpdu::parse(&bytes).unwrap();
    assert_eq!((fpdu.ulpdu.len(), fpdu.pad.len(), fpdu.len()), (14, 0, 20));
    assert_eq!(fpdu.computed_crc(), fpdu.crc);
    assert_eq!(Fpdu::parse(&bytes[..19]), Err(WireError::Truncated { what: "FPDU", need: 20, have: 19 }));
}

/// RFC 5044 §4.2: the FPDU is a multiple of four.
#[test]
fn padding() {
    for ulpdu in 0..100 {
        assert_eq!(fpdu_len(ulpdu) % 4, 0);
        assert!(pad_len(ulpdu) < 4);
    }
    assert_eq!((pad_len(0), pad_len(1), pad_len(2), pad_len(3)), (2, 1, 0, 3));
}

/// RFC 5044 §5: EMSS − (6 + 4·⌈EMSS/512⌉ + EMSS mod 4).
#[test]
fn mulpdu_of_common_segments() {
    assert_eq!(mulpdu(1448, false), 1442);
    assert_eq!(mulpdu(1448, true), 1448 - (6 + 12));
    assert_eq!(mulpdu(1461, true), 1461 - (6 + 12 + 1));
    assert_eq!(mulpdu(200_000, false), MAX_ULPDU);
    assert_eq!(mulpdu(3, true), 0);
}

/// The request and the reply of duo-siw-crc-smb: RFC 6581's block, then eight bytes of SMB Direct's own.
#[test]
fn start_frames_of_siw() {
    let bytes = hex("4d504120494420526571204672616d655002000c002000002000000001000000");
    let frame = StartFrame::parse(StartKind::Request, &bytes).unwrap();
    assert!(frame.crc && frame.enhanced && !frame.markers && !frame.reject);
    assert_eq!((frame.revision, frame.private_data.len()), (2, 12));
    let block = Enhanced::parse(frame.private_data).unwrap();
    assert_eq!(block, Enhanced { ird: 0x20, ..Enhanced::default() });
    let mut out = Vec::new();
    frame.emit(&mut out);
    assert_eq!(out, bytes);
    // siw-p2pcrc-rping: peer to peer, any tagged ready-to-receive frame; the reply chooses the WRITE.
    let asked = Enhanced::parse(&hex("8001c001")).unwrap();
    let all =
        Enhanced { peer_to_peer: true, ird: 1, rtr_write: true, rtr_read: true, ord: 1, rtr_send: false };
    assert_eq!(asked, all);
    assert_eq!(Enhanced { rtr_read: false, ..all }.to_bytes().to_vec(), hex("80018001"));
}

#[test]
fn a_start_frame_is_told_by_its_first_bytes() {
    let request = b"MPA ID Req Frame\x40\x01\x00\x00";
    for cut in 0..20 {
        assert_eq!(StartFrame::length(StartKind::Request, &request[..cut]), Ok(None));
    }
    assert_eq!(StartFrame::length(StartKind::Request, request), Ok(Some(20)));
    assert!(StartFrame::length(StartKind::Reply, &request[..11]).is_err());
    assert!(StartFrame::length(StartKind::Request, b"GET").is_err());
    let hostile = b"MPA ID Req Frame\x40\x01\x02\x01";
    assert!(StartFrame::length(StartKind::Request, hostile).is_err());
}

#[test]
fn markers() {
    let marker = Marker { reserved: 0, fpdu_ptr: 0x01fc };
    let mut out = [0xff; 4];
    marker.emit(&mut out);
    assert_eq!(out, [0, 0, 1, 0xfc]);
    assert_eq!(Marker::parse(&out), Ok(marker));
}
