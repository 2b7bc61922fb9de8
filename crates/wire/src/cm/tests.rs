//! Tests of the CM messages: that the tables are complete, and that sizes and codes are the standard's.
//!
//! Whole captured messages are in `tests/captures.rs`, random ones in `tests/properties.rs`.

use super::*;
use crate::layout::assert_complete;

#[test]
fn every_bit_of_every_message_is_accounted_for() {
    macro_rules! check {
        ($($name:ident),*) => {
            $(
                assert_complete(stringify!($name), messages::$name::FIELDS, messages::$name::LEN);
                assert!(matches!($name::LEN, MESSAGE_LEN | 44));
            )*
        };
    }
    check!(Req, ReqPath, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr);
}

#[test]
fn private_data_have_the_standard_sizes() {
    // IBTA §12.6, and what rdma-core documents for ib_cm.
    assert_eq!(Req::default().private_data.len(), 92);
    assert_eq!(Mra::default().private_data.len(), 222);
    assert_eq!(Rej::default().private_data.len(), 148);
    assert_eq!(Rep::default().private_data.len(), 196);
    assert_eq!(Rtu::default().private_data.len(), 224);
    assert_eq!(Dreq::default().private_data.len(), 220);
    assert_eq!(Drep::default().private_data.len(), 224);
    assert_eq!(SidrReq::default().private_data.len(), 216);
    assert_eq!(SidrRep::default().private_data.len(), 136);
    assert_eq!(Lap::default().private_data.len(), 168);
    assert_eq!(Apr::default().private_data.len(), 148);
}

#[test]
fn header_and_attribute() {
    let rej = Rej { remote_comm_id: 0x0102_0304, reason: RejReason::ConsumerReject, ..Rej::default() };
    let mad = CmMad::new(0x1122_3344_5566_7788, rej).emit();
    assert_eq!(mad[..4], [1, 7, 2, 3]);
    assert_eq!(mad[8..16], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    assert_eq!(mad[16..18], [0, 0x12]);
    assert_eq!(mad[28..32], [1, 2, 3, 4]);
    assert_eq!(mad[34..36], [0, 28]);
    assert_eq!(CmMad::parse(&mad).unwrap().message, CmMessage::Rej(rej));
}

#[test]
fn foreign_mads_are_refused() {
    let good = CmMad::new(1, Rtu::default()).emit();
    for (at, value) in [(1, 3), (3, 1), (16, 1), (17, 0x0f), (17, 0x1b)] {
        let mut mad = good;
        mad[at] = value;
        assert!(CmMad::parse(&mad).is_err(), "byte {at} = {value}");
    }
    // Another class version is the connection manager's to answer, with a REJ.
    let mut mad = good;
    mad[2] = 1;
    assert_eq!(CmMad::parse(&mad).unwrap().header.class_version, 1);
}

#[test]
fn codes_are_their_own_inverse() {
    for code in 0..=u16::MAX {
        assert_eq!(RejReason::from_code(code).code(), code);
    }
    for code in 0..=u8::MAX {
        assert_eq!(SidrStatus::from_code(code).code(), code);
        assert_eq!(AprStatus::from_code(code).code(), code);
    }
    assert_eq!(RejReason::ALL.len(), 34);
    assert_eq!(RejReason::InvalidServiceId.to_string(), "invalid service ID (8)");
    assert_eq!(RejReason::from_code(34), RejReason::Other(34));
}
