//! Tests of the ICRC: its pieces, its masks, and what is found without seeing the Identification.
//!
//! Judges beside these: captured frames in `tests/captures.rs` and published packets in `tests/known_answers.rs`.

use super::*;

fn net4() -> IcrcV4 {
    IcrcV4 {
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
        id: 0x1234,
        flags_frag: FLAGS_DF,
        src_port: 49152,
    }
}

fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(37) ^ 0x5a).collect()
}

#[test]
fn eight_ones() {
    assert_eq!(crc32fast::hash(&[0xff; 8]), CRC_OF_EIGHT_ONES);
}

#[test]
fn pieces_make_the_same_sum() {
    let bytes = sample(200);
    let whole = icrc_v4(&net4(), &bytes);
    for first in [0, 1, 3, 4, 5, 6, 11, 12, 13, 60] {
        for second in [0, 1, 2, 7, 100] {
            let mut h = IcrcHasher::v4(&net4(), bytes.len());
            h.update(&bytes[..first]);
            h.update(&bytes[first..first + second]);
            h.update(&bytes[first + second..]);
            assert_eq!(h.finish(), whole, "split {first} + {second}");
        }
    }
}

#[test]
fn masked_bits_do_not_count_and_others_do() {
    let mut bytes = sample(64);
    let before = icrc_v4(&net4(), &bytes);
    bytes[4] ^= 0xff;
    assert_eq!(icrc_v4(&net4(), &bytes), before);
    bytes[5] ^= 1;
    assert_ne!(icrc_v4(&net4(), &bytes), before);
}

#[test]
fn hidden_fields_are_recovered_at_every_length() {
    for len in (0..5000).step_by(4).chain([1, 13, 4095, 60_001]) {
        let bytes = sample(len);
        for (id, flags_frag) in [(0, 0), (0xffff, FLAGS_DF), (0x8001, 0), (0x1234 ^ len as u16, FLAGS_DF)] {
            let icrc = icrc_v4(&IcrcV4 { id, flags_frag, ..net4() }, &bytes).to_le_bytes();
            let found = HiddenId::new().verify(&net4(), &bytes, icrc);
            assert_eq!(found, Some(HiddenFields { id, df: flags_frag != 0 }), "length {len}");
        }
    }
}

#[test]
fn other_flags_are_not_excused() {
    let bytes = sample(100);
    for flags_frag in [0x8000, 0x2000, 1, 0x1fff] {
        let icrc = icrc_v4(&IcrcV4 { flags_frag, ..net4() }, &bytes).to_le_bytes();
        assert_eq!(HiddenId.verify(&net4(), &bytes, icrc), None);
    }
}

#[test]
fn no_single_wrong_bit_passes_with_df() {
    // Exhaustive: by linearity only the distance of the bit from the end of the packet counts, not the packet.
    let net = IcrcV4 { id: 0x4321, ..net4() };
    let mut passed_without_df = Vec::new();
    for len in [4096 + 32, 1024 + 16, 16] {
        let good = icrc_v4(&net, &vec![0; len]);
        // The syndrome of the last bit of the packet, moved to the front bit by bit.
        let mut syndrome = crc32fast::hash(&[0x80]) ^ crc32fast::hash(&[0x00]);
        for bit in 0..len * 8 {
            let received = (good ^ syndrome).to_le_bytes();
            if let Some(fields) = HiddenId.recover(&net, len, good, received) {
                assert!(!fields.df, "bit {bit} from the end of {len} bytes");
                passed_without_df.push((len, len - 1 - bit / 8));
            }
            syndrome = gf2::multiply(syndrome, gf2::ONE >> 1);
        }
        for bit in 0..32 {
            let received = (good ^ 1 << bit).to_le_bytes();
            assert_eq!(HiddenId.recover(&net, len, good, received), None, "ICRC bit {bit}");
        }
    }
    // One bit of byte 173 and one of byte 1834 look like another Identification without DF.
    assert_eq!(passed_without_df, [(4128, 1834), (4128, 173), (1040, 173)]);
}

/// CRC-32 as the Ethernet standard defines it (IEEE 802.3 §3.2.9), a bit at a time.
fn crc32_bit_by_bit(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// A Global Routing Header: version 6, next header 0x1b (IBA transport), and fields that are all different.
fn grh(payload: usize) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    grh[..4].copy_from_slice(&[0x62, 0x81, 0x23, 0x45]);
    grh[4..6].copy_from_slice(&((payload + ICRC_LEN) as u16).to_be_bytes());
    (grh[6], grh[7]) = (0x1b, 63);
    grh[8..24].copy_from_slice(&"fe80::0202:c9ff:fe12:3456".parse::<Ipv6Addr>().unwrap().octets());
    grh[24..].copy_from_slice(&"fe80::0202:c9ff:fe65:4321".parse::<Ipv6Addr>().unwrap().octets());
    grh
}

/// RoCE v1 by annex A16 and §7.8.1: eight bytes of ones for the LRH, then the headers with traffic class, flow label, hop
/// limit and BTH byte 4 as ones.
#[test]
fn icrc_of_roce_v1() {
    for len in [12, 16, 28, 76, 77, 4096 + 12] {
        let (grh, bytes) = (grh(len), sample(len));
        let mut covered = vec![0xff; 8];
        covered.extend([0x6f, 0xff, 0xff, 0xff, grh[4], grh[5], 0x1b, 0xff]);
        covered.extend(&grh[8..]);
        covered.extend(&bytes[..4]);
        covered.push(0xff);
        covered.extend(&bytes[5..]);
        let expected = crc32_bit_by_bit(&covered);
        assert_eq!(icrc_grh(&grh, &bytes), expected, "length {len}");
        let mut hasher = IcrcHasher::grh(&grh);
        bytes.chunks(7).for_each(|piece| hasher.update(piece));
        assert_eq!(hasher.finish(), expected, "in pieces, length {len}");
    }
}

#[test]
fn what_routers_change_in_roce_v1_does_not_count() {
    let (headers, bytes) = (grh(64), sample(64));
    let before = icrc_grh(&headers, &bytes);
    let flip = |at: usize, bit: u8| {
        let (mut headers, mut bytes) = (headers, bytes.clone());
        *headers.iter_mut().chain(&mut bytes).nth(at).unwrap() ^= bit;
        icrc_grh(&headers, &bytes)
    };
    let masked = [
        ("traffic class", 0, 0x01),
        ("traffic class", 0, 0x08),
        ("traffic class", 1, 0x10),
        ("flow label", 1, 0x08),
        ("flow label", 2, 0x80),
        ("flow label", 3, 0x01),
        ("hop limit", 7, 0x40),
        ("FECN", 40 + 4, 0x80),
        ("BECN", 40 + 4, 0x40),
        ("reserved", 40 + 4, 0x01),
    ];
    for (field, at, bit) in masked {
        assert_eq!(flip(at, bit), before, "{field}");
    }
    let counted = [
        ("version", 0, 0x10),
        ("payload length", 4, 0x01),
        ("payload length", 5, 0x01),
        ("next header", 6, 0x01),
        ("SGID", 8, 0x80),
        ("SGID", 23, 0x01),
        ("DGID", 24, 0x80),
        ("DGID", 39, 0x01),
        ("opcode", 40, 0x01),
        ("solicited event", 41, 0x80),
        ("P_Key", 42, 0x80),
        ("P_Key", 43, 0x01),
        ("destination QP", 45, 0x80),
        ("destination QP", 47, 0x01),
        ("acknowledge request", 48, 0x80),
        ("PSN", 51, 0x01),
        ("payload", 52, 0x01),
        ("the last byte", 103, 0x80),
    ];
    for (field, at, bit) in counted {
        assert_ne!(flip(at, bit), before, "{field}");
    }
}
