//! Sense data against the layouts of SPC-4 tables 28 and 48, and against what LIO sent in a capture.

use super::*;

#[test]
fn fixed_format_has_the_field_pointer() {
    let sense = Sense::cdb_bit(1, 7);
    assert_eq!(
        &sense.emit(false)[..],
        [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 1],
        "SKSV, C/D, BPV, bit 7 of byte 1"
    );
    assert_eq!(Sense::parse(&sense.emit(false)), Some(sense));
}

#[test]
fn descriptor_format_has_descriptors() {
    let sense = Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(1 << 40);
    let data = sense.emit(true);
    assert_eq!(&data[..8], [0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12]);
    assert_eq!(&data[8..], [0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(Sense::parse(&data), Some(sense));
}

#[test]
fn information_too_long_for_fixed_format_is_not_valid() {
    let sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).with_information(1 << 32);
    assert_eq!(sense.emit(false)[0], 0x70);
    assert_eq!(Sense::parse(&sense.emit(false)).and_then(|sense| sense.information), None);
}

#[test]
fn every_format_round_trips() {
    for descriptor in [false, true] {
        for sense in [
            Sense::parameter(9),
            Sense::attention(Asc::POWER_ON_OR_RESET),
            Sense {
                specific: Some(KeySpecific::Progress(700)),
                ..Sense::new(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS)
            },
            Sense { command_specific: 3, deferred: true, ..Sense::new(SenseKey::COPY_ABORTED, Asc::NONE) },
        ] {
            assert_eq!(Sense::parse(&sense.emit(descriptor)), Some(sense), "{sense}");
        }
    }
}

#[test]
fn short_and_strange_sense_is_read_as_far_as_it_goes() {
    assert_eq!(Sense::parse(&[]), None);
    assert_eq!(Sense::parse(&[0x7f, 0, 0, 0]), None);
    assert_eq!(Sense::parse(&[0x70, 0]), None);
    let sense = Sense::parse(&[0x70, 0, 6]).expect("a key");
    assert_eq!((sense.key, sense.asc), (SenseKey::UNIT_ATTENTION, Asc::NONE));
    assert_eq!(Sense::parse(&[0x72, 5, 0x20, 0]).expect("codes").asc, Asc::INVALID_OPERATION_CODE);
    // A descriptor that runs past the end.
    assert_eq!(
        Sense::parse(&[0x72, 5, 0x20, 0, 0, 0, 0, 4, 0, 200, 0x80, 0]).expect("codes").information,
        Some(0)
    );
}

#[test]
fn words() {
    assert_eq!(
        Sense::cdb_bit(1, 5).to_string(),
        "ILLEGAL REQUEST, INVALID FIELD IN CDB (byte 1 bit 5 of the CDB)"
    );
    assert_eq!(Asc(0x5d10).to_string(), "ASC 0x5d ASCQ 0x10");
}
