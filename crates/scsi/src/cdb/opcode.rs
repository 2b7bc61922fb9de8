//! Operation codes and service actions. SPC-4 annex F, SBC-3 annex A.
//!
//! Names are the standard's; the numbers are all that this file says.

#![allow(missing_docs)]

pub const TEST_UNIT_READY: u8 = 0x00;
pub const REQUEST_SENSE: u8 = 0x03;
pub const READ_6: u8 = 0x08;
pub const WRITE_6: u8 = 0x0a;
pub const INQUIRY: u8 = 0x12;
pub const MODE_SELECT_6: u8 = 0x15;
pub const RESERVE_6: u8 = 0x16;
pub const RELEASE_6: u8 = 0x17;
pub const MODE_SENSE_6: u8 = 0x1a;
pub const START_STOP_UNIT: u8 = 0x1b;
pub const SEND_DIAGNOSTIC: u8 = 0x1d;
pub const PREVENT_ALLOW: u8 = 0x1e;
pub const READ_CAPACITY_10: u8 = 0x25;
pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2a;
pub const WRITE_AND_VERIFY_10: u8 = 0x2e;
pub const VERIFY_10: u8 = 0x2f;
pub const PRE_FETCH_10: u8 = 0x34;
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
pub const READ_DEFECT_DATA_10: u8 = 0x37;
pub const WRITE_SAME_10: u8 = 0x41;
pub const UNMAP: u8 = 0x42;
pub const SANITIZE: u8 = 0x48;
pub const MODE_SELECT_10: u8 = 0x55;
pub const RESERVE_10: u8 = 0x56;
pub const RELEASE_10: u8 = 0x57;
pub const MODE_SENSE_10: u8 = 0x5a;
pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
pub const THIRD_PARTY_COPY_OUT: u8 = 0x83;
pub const THIRD_PARTY_COPY_IN: u8 = 0x84;
pub const READ_16: u8 = 0x88;
pub const COMPARE_AND_WRITE: u8 = 0x89;
pub const WRITE_16: u8 = 0x8a;
pub const ORWRITE_16: u8 = 0x8b;
pub const WRITE_AND_VERIFY_16: u8 = 0x8e;
pub const VERIFY_16: u8 = 0x8f;
pub const PRE_FETCH_16: u8 = 0x90;
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
pub const WRITE_SAME_16: u8 = 0x93;
pub const WRITE_ATOMIC_16: u8 = 0x9c;
pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
pub const REPORT_LUNS: u8 = 0xa0;
pub const MAINTENANCE_IN: u8 = 0xa3;
pub const READ_12: u8 = 0xa8;
pub const WRITE_12: u8 = 0xaa;
pub const WRITE_AND_VERIFY_12: u8 = 0xae;
pub const VERIFY_12: u8 = 0xaf;
pub const READ_DEFECT_DATA_12: u8 = 0xb7;

/// Service actions of SERVICE ACTION IN (16).
pub const SA_READ_CAPACITY_16: u8 = 0x10;
pub const SA_GET_LBA_STATUS: u8 = 0x12;
/// Service actions of MAINTENANCE IN.
pub const SA_REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
pub const SA_REPORT_SUPPORTED_OPCODES: u8 = 0x0c;
pub const SA_REPORT_SUPPORTED_TMFS: u8 = 0x0d;
/// Service actions of EXTENDED COPY and RECEIVE COPY RESULTS.
pub const SA_EXTENDED_COPY_LID1: u8 = 0x00;
pub const SA_COPY_STATUS_LID1: u8 = 0x00;
pub const SA_OPERATING_PARAMETERS: u8 = 0x03;
/// Service actions of SANITIZE.
pub const SA_SANITIZE_OVERWRITE: u8 = 0x01;
pub const SA_SANITIZE_BLOCK_ERASE: u8 = 0x02;
pub const SA_SANITIZE_EXIT_FAILURE: u8 = 0x1f;

/// Bytes of the CDB that an operation code starts: its group code, the top three bits, says so (SPC-4 §4.2.5.1).
/// `None` for variable length, reserved and vendor-specific groups.
pub const fn cdb_len(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}
