//! Tests of the VCRC. The judges: the sample packet of IBTA §7.8.3 as quoted on public mailing lists, and entries of the
//! byte table in a vendor's published packet generator.

use super::*;
use crate::{IcrcHasher, icrc_ib};

/// The sample packet of IBTA §7.8.3, LRH to pad: RDMA WRITE Only of 14 bytes.
const SAMPLE: [u8; 52] = [
    0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00,
    0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00,
    0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00,
    0x00,
];

/// §7.8.2 a bit at a time: the register of the standard's figure, its first bit the coefficient of x^15.
fn bit_by_bit(bytes: &[u8]) -> [u8; 2] {
    let mut register = 0xffffu16;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = register >> 15 ^ u16::from(byte >> bit & 1);
            register = register << 1 ^ if feedback == 1 { 0x100b } else { 0 };
        }
    }
    // Sent from the coefficient of x^15 on, each byte's least significant bit first.
    (!register).reverse_bits().to_le_bytes()
}

#[test]
fn icrc_of_the_standards_sample_packet() {
    assert_eq!(icrc_ib(&SAMPLE).unwrap().to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a]);
    let (lrh, rest) = SAMPLE.split_first_chunk::<8>().unwrap();
    for first in [0, 1, 4, 5, 12, 20] {
        let mut hasher = IcrcHasher::lrh(lrh);
        hasher.update(&rest[..first]);
        hasher.update(&rest[first..]);
        assert_eq!(hasher.finish().to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a], "split {first}");
    }
}

#[test]
fn icrc_masks_the_lane_and_needs_its_headers() {
    let mut packet = SAMPLE;
    packet[0] = 0x20;
    assert_eq!(icrc_ib(&packet), icrc_ib(&SAMPLE), "the virtual lane does not count");
    packet[1] ^= 0x10;
    assert_ne!(icrc_ib(&packet), icrc_ib(&SAMPLE), "the service level does");
    packet[1] = 0x11;
    assert_eq!(icrc_ib(&packet), None, "raw");
    packet[1] = 0x13;
    assert_eq!(icrc_ib(&packet), None, "44 bytes hold no GRH and BTH");
    let mut global = [0x70, 0x13, 0, 1, 0, 0x18, 0, 2].to_vec();
    let (grh, bth): ([u8; 40], [u8; 20]) =
        (core::array::from_fn(|i| i as u8), core::array::from_fn(|i| 7 * i as u8));
    global.extend(grh.iter().chain(&bth));
    assert_eq!(icrc_ib(&global), Some(crate::icrc_grh(&grh, &bth)), "the LRH is ones");
}

#[test]
fn the_table_is_the_published_one() {
    // Entries of a host adapter vendor's table for this CRC.
    for (byte, entry) in [(255, 0x0960), (254, 0x12c1), (253, 0x3e22), (252, 0x2583), (240, 0x960f)] {
        assert_eq!(TABLES[0][byte], entry);
    }
}

#[test]
fn every_length_agrees_with_the_shift_register() {
    let bytes: Vec<u8> = (0..4400).map(|i| (i as u8).wrapping_mul(37) ^ (i >> 8) as u8 ^ 0x5a).collect();
    for len in (0..300).chain([1024, 4114, 4400]) {
        assert_eq!(vcrc(&bytes[..len]).to_le_bytes(), bit_by_bit(&bytes[..len]), "{len} bytes");
    }
    let mut pieces = VcrcHasher::new();
    bytes.chunks(7).for_each(|piece| pieces.update(piece));
    assert_eq!(pieces.finish(), vcrc(&bytes));
    for first in [1, 127, 128, 129, 500, 4300] {
        let mut pieces = VcrcHasher::new();
        pieces.update(&bytes[..first]);
        pieces.update(&bytes[first..]);
        assert_eq!(pieces.finish(), vcrc(&bytes), "split {first}");
    }
}

#[test]
fn a_change_of_lane_needs_no_second_look_at_the_packet() {
    for words in [6u16, 7, 14, 64, 1036, 1054, 2047] {
        let mut packet: Vec<u8> = (0..usize::from(words) * 4).map(|i| (i as u8).wrapping_mul(91)).collect();
        for from in 0..16 {
            for to in 0..16 {
                packet[0] = from << 4;
                let before = vcrc(&packet);
                packet[0] = to << 4;
                assert_eq!(
                    vl_changed(before, words, from, to),
                    vcrc(&packet),
                    "{words} words {from} -> {to}"
                );
            }
        }
    }
}

#[test]
fn packets_are_sealed_moved_and_checked() {
    let mut packet = SAMPLE.to_vec();
    packet.extend([0x96, 0x25, 0xb7, 0x5a, 0, 0]);
    assert!(check_packet(&packet).is_err());
    seal(&mut packet);
    assert_eq!(check_packet(&packet).unwrap().vl, 7);
    rewrite_vl(&mut packet, 2);
    assert_eq!(check_packet(&packet).unwrap().vl, 2);
    for bit in 0..packet.len() * 8 {
        packet[bit / 8] ^= 0x80 >> (bit % 8);
        assert!(check_packet(&packet).is_err(), "bit {bit}");
        packet[bit / 8] ^= 0x80 >> (bit % 8);
    }
    for len in 0..packet.len() {
        assert!(check_packet(&packet[..len]).is_err());
    }
}
