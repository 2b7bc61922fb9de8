//! Published RoCE v2 packets whose ICRC others computed: adapters and tools that are not the Linux kernel of our captures.
//!
//! The values are public test data of packet tools: a CNP captured on a ConnectX-4 Lx adapter, and a UC packet of a
//! loopback conversation.

use everywire_wire::{HiddenFields, HiddenId, IcrcV4, Opcode, Psn, Qpn, RocePacket, UdpFrame};

#[test]
fn cnp_of_a_hardware_adapter() {
    let frame: [u8; 74] = [
        0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00, 0x45, 0xc2, 0x00,
        0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
        0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a,
    ];
    let parsed = UdpFrame::parse(&frame).unwrap();
    assert_eq!(parsed.expected_icrc(), Some([0x82, 0xfd, 0x00, 0x2a]));
    let packet = RocePacket::parse(parsed.payload).unwrap();
    assert_eq!(
        (packet.bth.opcode, packet.bth.dest_qp, packet.bth.becn),
        (Opcode::CNP, Qpn::new(0x118), true)
    );
    assert_eq!(packet.payload, [0; 16]);
    let mut filled = parsed;
    filled.fill_lengths_and_checksums();
    assert_eq!(filled, parsed);
}

#[test]
fn uc_send_only() {
    let mut bytes = vec![0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211, 0];
    bytes.extend(&13_571_856u32.to_be_bytes()[1..]);
    bytes.extend(b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00");
    let net = IcrcV4 {
        src: [192, 168, 0, 7].into(),
        dst: [192, 168, 0, 7].into(),
        id: 1144,
        flags_frag: 0x4000,
        src_port: 49152,
    };
    let icrc = [0x78, 0xf3, 0x53, 0xf3];
    assert_eq!(everywire_wire::icrc_v4(&net, &bytes).to_le_bytes(), icrc);
    let unseen = IcrcV4 { id: 0, ..net };
    assert_eq!(HiddenId.verify(&unseen, &bytes, icrc), Some(HiddenFields { id: 1144, df: true }));
    bytes.extend(icrc);
    let packet = RocePacket::parse(&bytes).unwrap();
    assert_eq!((packet.payload.len(), packet.pad, packet.bth.psn), (18, &[0, 0][..], Psn::new(13_571_856)));
}
