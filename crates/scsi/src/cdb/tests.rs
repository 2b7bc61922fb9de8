//! CDBs against the tables of SPC-4 and SBC-3, and the table of commands against the parser.

use super::table::SPECS;
use super::*;
use crate::sense::{Asc, Sense};

#[test]
fn layouts_of_the_standards() {
    // SBC-3 table 56: READ (10). RDPROTECT 1, FUA, LBA 01020304h, group 5, 8 blocks.
    let read = Io { protect: 1, fua: true, group: 5, ..Io::new(Size::Ten, 0x0102_0304, 8) };
    assert_eq!(Command::parse(&[0x28, 0x28, 1, 2, 3, 4, 5, 0, 8, 0]), Ok(Command::Read(read)));
    // SBC-3 table 55: in READ (6) a length of 0 is 256 blocks.
    assert_eq!(
        Command::parse(&[8, 0xff, 0xff, 0xff, 0, 0]),
        Ok(Command::Read(Io::new(Size::Six, 0x1f_ffff, 256)))
    );
    // SBC-3 table 31: COMPARE AND WRITE has one byte of length.
    let caw = Command::parse(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 7, 1, 2, 3, 4, 0, 0]);
    assert_eq!(caw, Ok(Command::CompareAndWrite(Io::new(Size::Sixteen, 7, 4))));
    // SPC-4 table 202: the service action is the whole of REPORT SUPPORTED OPERATION CODES' bytes 4 and 5.
    assert_eq!(
        Command::parse(&[0xa3, 0x0c, 0x82, 0x9e, 0, 0x10, 0, 0, 2, 0, 0, 0]),
        Ok(Command::ReportSupportedOpcodes {
            timeouts: true,
            options: 2,
            opcode: 0x9e,
            action: 0x10,
            alloc: 512
        })
    );
    // SBC-3 table 103: VERIFY (16) with BYTCHK 11b.
    let verify = Io { bytchk: 3, dpo: true, ..Io::new(Size::Sixteen, 1, 2) };
    let cdb = [0x8f, 0x16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0];
    assert_eq!(Command::parse(&cdb), Ok(Command::Verify(verify)));
    assert_eq!(Command::Verify(verify).emit().as_bytes(), cdb);
}

#[test]
fn what_is_unknown_is_named() {
    for cdb in [&[0x1c, 0, 0, 0, 0, 0][..], &[], &[0x28, 0, 0], &[0x7f; 32], &[0xff; 16], &[0x60; 16]] {
        assert_eq!(Command::parse(cdb), Err(Sense::illegal(Asc::INVALID_OPERATION_CODE)), "{cdb:02x?}");
    }
    let bad =
        |opcode: u8, action: u8| Command::parse(&[opcode, action, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (opcode, action) in [(0x9e, 0x11), (0xa3, 0x05), (0x83, 0x01), (0x84, 0x01), (0x48, 0x04)] {
        assert_eq!(bad(opcode, action), Err(Sense::cdb_bit(1, 4)), "{opcode:#x}/{action:#x}");
    }
}

#[test]
fn naca_is_refused_where_it_stands() {
    assert_eq!(Command::parse(&[0, 0, 0, 0, 0, 4]), Err(Sense::cdb_bit(5, 2)));
    assert_eq!(Command::parse(&[0x12, 0, 0, 0, 36, 4]), Err(Sense::cdb_bit(5, 2)));
}

#[test]
fn reserved_bits_of_sanitize_are_refused() {
    assert_eq!(Command::parse(&[0x48, 0x42, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Sense::cdb_bit(1, 6)));
    for byte in 2..7 {
        let mut cdb = [0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[byte] = 1;
        assert_eq!(Command::parse(&cdb), Err(Sense::cdb_field(byte as u16)));
    }
}

#[test]
fn the_table_is_sorted_and_every_entry_parses_and_round_trips() {
    assert!(SPECS.windows(2).all(|pair| (pair[0].opcode, pair[0].action) < (pair[1].opcode, pair[1].action)));
    for spec in SPECS {
        assert_eq!(opcode::cdb_len(spec.opcode), Some(spec.usage.len()), "{spec:?}");
        assert_eq!(spec.usage[0], spec.opcode);
        // A CDB with every evaluated bit set is a command, and comes back whole.
        let mut cdb = spec.usage.to_vec();
        if let Some(action) = spec.action {
            cdb[1] = cdb[1] & !0x1f | action;
            assert_eq!(spec.usage[1] & 0x1f, action, "{spec:?}");
        }
        let command = Command::parse(&cdb).unwrap_or_else(|sense| panic!("{spec:?}: {sense}"));
        assert_eq!(command.emit().as_bytes(), cdb, "{command:?}");
    }
}

#[test]
fn every_operation_code_that_parses_is_in_the_table() {
    for opcode in 0..=255u8 {
        for action in 0..32u8 {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1]) = (opcode, action);
            let parsed = Command::parse(&cdb);
            let listed = SPECS
                .iter()
                .filter(|spec| spec.opcode == opcode)
                .any(|spec| spec.action.is_none_or(|a| a == action));
            // The reservation code refuses unknown service actions of its two commands itself.
            let reservation =
                matches!(opcode, opcode::PERSISTENT_RESERVE_IN | opcode::PERSISTENT_RESERVE_OUT);
            assert!(parsed.is_ok() == listed || reservation, "{opcode:#x}/{action:#x}: {parsed:?}");
        }
    }
}
