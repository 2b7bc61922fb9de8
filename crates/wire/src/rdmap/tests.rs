//! Vectors by hand from RFC 5040 and RFC 7306, and frames of Linux siw.

use super::*;
use crate::ddp::{DdpHeader, DdpTarget};

/// From siw-rping: the first READ request.
#[test]
fn a_read_request_of_siw() {
    let bytes = [
        0x79, 0x25, 0x82, 0, 0, 0, 0x55, 0xa0, 0xad, 0x71, 0xf5, 0x50, 0, 0, 0, 0x40, 0xd2, 0x3a, 0xe6, 0, 0,
        0, 0x55, 0x81, 0x99, 0x15, 0x83, 0x70,
    ];
    let read = ReadRequest::parse(&bytes).unwrap();
    let expected = ReadRequest {
        sink_stag: RKey(0x7925_8200),
        sink_to: 0x55a0_ad71_f550,
        length: 64,
        source_stag: RKey(0xd23a_e600),
        source_to: 0x5581_9915_8370,
    };
    assert_eq!(read, expected);
    let mut out = [0; 28];
    read.emit(&mut out);
    assert_eq!(out, bytes);
}

#[test]
fn opcodes_and_their_queues() {
    let queues: Vec<Option<u32>> = (0..12).map(|o| RdmapOpcode::from_bits(o).unwrap().queue()).collect();
    let (s, r) = (Some(0), Some(1));
    assert_eq!(queues, [None, r, None, s, s, s, s, Some(2), s, s, r, Some(3)]);
    assert!((12..16).all(|o| RdmapOpcode::from_bits(o).is_none()));
    assert_eq!(RdmapControl::new(RdmapOpcode::Send).to_byte(), 0x43);
    for byte in 0..=255 {
        assert_eq!(RdmapControl::from_byte(byte).to_byte(), byte);
    }
}

/// RFC 7306 figures 4 and 5, by hand.
#[test]
fn atomics() {
    let request = AtomicRequest {
        operation: AtomicRequest::COMPARE_SWAP,
        request_id: 0x0a0b_0c0d,
        stag: RKey(0x0102_0304),
        to: 8,
        add_swap: 2,
        add_swap_mask: u64::MAX,
        compare: 1,
        compare_mask: u64::MAX,
        reserved: 0,
    };
    let mut out = [0; 52];
    request.emit(&mut out);
    assert_eq!(out[..20], [0, 0, 0, 2, 10, 11, 12, 13, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 8]);
    assert_eq!((out[27], out[28], out[43], out[51]), (2, 0xff, 1, 0xff));
    assert_eq!(AtomicRequest::parse(&out), Ok(request));
    let response = AtomicResponse { request_id: 7, original: 9 };
    response.emit(&mut out);
    assert_eq!(out[..12], [0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(AtomicResponse::parse(&out), Ok(response));
}

/// RFC 5040 §4.8, figure 10: a WRITE to an STag that is not there.
#[test]
fn a_terminate_with_its_headers() {
    let target = DdpTarget::Tagged { stag: RKey(0x1111_2222), to: 0x10 };
    let ddp = DdpHeader { last: true, reserved: 0, version: 1, ulp: 0x40, target };
    let term = Terminate {
        segment_len: Some(0x20),
        ddp: Some(ddp),
        ..Terminate::new(TermError::tagged(TaggedError::InvalidStag))
    };
    let mut out = Vec::new();
    term.emit(&mut out);
    let expected =
        [0x11, 0x00, 0xc0, 0x00, 0, 0x20, 0xc1, 0x40, 0x11, 0x11, 0x22, 0x22, 0, 0, 0, 0, 0, 0, 0, 0x10];
    assert_eq!(out, expected);
    assert_eq!(Terminate::parse(&out), Ok(term));
    for cut in 0..out.len() {
        assert!(Terminate::parse(&out[..cut]).is_err(), "{cut} bytes");
    }
    assert_eq!(term.error.to_string(), "DDP: invalid STag (1/1/0x00)");
}
