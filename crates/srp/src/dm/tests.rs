//! Datagrams as ibsrpdm reads them: the positions of IBTA §16.3.3, and what it looks for.

use super::*;

const GUID: u64 = 0x0002_c903_0000_0002;

fn agent() -> Agent {
    let ports: Vec<_> = (0..6).map(|ext| (PortId::new(ext, GUID), 0x1000 + ext)).collect();
    Agent::new(GUID, "Everywire", &ports)
}

fn ask(attribute: u16, modifier: u32) -> [u8; MAD_LEN] {
    let question = Question { transaction: 0x77, attribute, modifier };
    let answer = agent().answer(&question.emit()).expect("an answer");
    assert!(question.is_answered_by(&answer));
    answer
}

fn status(mad: &[u8; MAD_LEN]) -> u16 {
    u16::from_be_bytes([mad[4], mad[5]])
}

#[test]
fn where_fields_are() {
    let unit = ask(attribute::IO_UNIT_INFO, 0);
    // Change id, one slot, which has a controller in it; the other half of the byte does not exist.
    assert_eq!(unit[64..69], [0, 1, 1, 0, 0x1f]);
    let profile = ask(attribute::CONTROLLER_PROFILE, 1);
    assert_eq!(profile[64..72], GUID.to_be_bytes());
    assert_eq!(profile[64 + 28..64 + 36], [0x01, 0x00, 0x60, 0x9e, 0x01, 0x08, 0x00, 0x01]);
    assert_eq!((profile[64 + 54], &profile[128..137]), (6, &b"Everywire"[..]));
    let entries = ask(attribute::SERVICE_ENTRIES, 1 << 16 | 5 << 8 | 4);
    assert_eq!(&entries[64..64 + 24], b"SRP.T10:0000000000000004");
    assert_eq!(entries[64 + 40..64 + 48], 0x1004_u64.to_be_bytes());
    assert_eq!(&entries[64 + 48..64 + 72], b"SRP.T10:0000000000000005");
}

#[test]
fn what_is_not_there_is_said_so() {
    assert_eq!(status(&ask(attribute::CONTROLLER_PROFILE, 2)), 0x0100);
    assert_eq!(status(&ask(attribute::CONTROLLER_PROFILE, 0)), 0x001c);
    assert_eq!(status(&ask(attribute::SERVICE_ENTRIES, 1 << 16 | 6 << 8 | 3)), 0x001c, "past the end");
    assert_eq!(status(&ask(attribute::SERVICE_ENTRIES, 1 << 16 | 4 << 8)), 0x001c, "five entries");
    assert_eq!(status(&ask(0x0099, 0)), 0x000c);
    let mut set = Question { transaction: 1, attribute: 1, modifier: 0 }.emit();
    set[3] = 0x02;
    assert_eq!(status(&agent().answer(&set).expect("an answer")), 0x0008);
    set[3] = 0x81;
    assert_eq!(agent().answer(&set), None, "an answer is not answered");
}
