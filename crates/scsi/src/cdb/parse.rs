//! CDB bytes to [`Command`]. What is unknown is answered as the standard says: INVALID COMMAND OPERATION CODE, or
//! INVALID FIELD IN CDB pointing at the service action (SPC-4 §4.2.5.2) or at NACA (SAM-5 §5.2: NORMACA is 0).

use super::opcode as op;
use super::{Command, Io, SanitizeAction, Size, WriteSame};
use crate::bytes::{u8_at, u16_at, u24_at, u32_at, u64_at};
use crate::sense::{Asc, Sense};

/// NACA in the CONTROL byte. SAM-5 §5.2.
const NACA: u8 = 0x04;

impl Command {
    /// Reads a CDB. Bytes after it (the fixed field of a transport) do not matter.
    ///
    /// # Errors
    /// An operation code or service action that no command here has, a CDB shorter than its group code says, or NACA.
    pub fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let opcode = *cdb.first().ok_or(Sense::illegal(Asc::INVALID_OPERATION_CODE))?;
        let len = op::cdb_len(opcode).ok_or(Sense::illegal(Asc::INVALID_OPERATION_CODE))?;
        let Some(cdb) = cdb.get(..len) else {
            return Err(Sense::illegal(Asc::INVALID_OPERATION_CODE));
        };
        let command = match opcode >> 5 {
            0 => Self::parse_6(cdb)?,
            1 | 2 => Self::parse_10(cdb)?,
            4 => Self::parse_16(cdb)?,
            _ => Self::parse_12(cdb)?,
        };
        if cdb[len - 1] & NACA != 0 {
            return Err(Sense::cdb_bit(len as u16 - 1, 2));
        }
        Ok(command)
    }

    fn parse_6(c: &[u8]) -> Result<Self, Sense> {
        let io = || {
            Io::new(Size::Six, u64::from(u24_at(c, 1) & 0x1f_ffff), if c[4] == 0 { 256 } else { c[4].into() })
        };
        Ok(match c[0] {
            op::TEST_UNIT_READY => Self::TestUnitReady,
            op::REQUEST_SENSE => Self::RequestSense { descriptor: bit(c, 1, 0), alloc: c[4] },
            op::READ_6 => Self::Read(io()),
            op::WRITE_6 => Self::Write(io()),
            op::INQUIRY => Self::Inquiry { evpd: bit(c, 1, 0), page: c[2], alloc: u16_at(c, 3) },
            op::MODE_SELECT_6 => Self::ModeSelect {
                size: Size::Six,
                page_format: bit(c, 1, 4),
                save: bit(c, 1, 0),
                list_len: c[4].into(),
            },
            op::RESERVE_6 => {
                Self::Reserve { size: Size::Six, third_party: bit(c, 1, 4), extent: bit(c, 1, 0) }
            }
            op::RELEASE_6 => {
                Self::Release { size: Size::Six, third_party: bit(c, 1, 4), extent: bit(c, 1, 0) }
            }
            op::MODE_SENSE_6 => Self::ModeSense {
                size: Size::Six,
                llbaa: false,
                dbd: bit(c, 1, 3),
                control: c[2] >> 6,
                page: c[2] & 0x3f,
                subpage: c[3],
                alloc: c[4].into(),
            },
            op::START_STOP_UNIT => Self::StartStop {
                immed: bit(c, 1, 0),
                power_condition: c[4] >> 4,
                no_flush: bit(c, 4, 2),
                load_eject: bit(c, 4, 1),
                start: bit(c, 4, 0),
            },
            op::SEND_DIAGNOSTIC => {
                Self::SendDiagnostic { self_test: bit(c, 1, 2), code: c[1] >> 5, list_len: u16_at(c, 3) }
            }
            op::PREVENT_ALLOW => Self::PreventAllow { prevent: c[4] & 3 },
            _ => return Err(Sense::illegal(Asc::INVALID_OPERATION_CODE)),
        })
    }

    fn parse_10(c: &[u8]) -> Result<Self, Sense> {
        let io =
            || Io { group: c[6] & 0x1f, ..io_flags(c, Size::Ten, u32_at(c, 2).into(), u16_at(c, 7).into()) };
        let (lba, blocks, group) = (u64::from(u32_at(c, 2)), u32::from(u16_at(c, 7)), c[6] & 0x1f);
        Ok(match c[0] {
            op::READ_CAPACITY_10 => Self::ReadCapacity10 { lba: u32_at(c, 2), pmi: bit(c, 8, 0) },
            op::READ_10 => Self::Read(io()),
            op::WRITE_10 => Self::Write(io()),
            op::WRITE_AND_VERIFY_10 => Self::WriteAndVerify(verify_flags(c, io())),
            op::VERIFY_10 => Self::Verify(verify_flags(c, io())),
            op::PRE_FETCH_10 => Self::PreFetch { size: Size::Ten, immed: bit(c, 1, 1), lba, blocks, group },
            op::SYNCHRONIZE_CACHE_10 => {
                Self::SynchronizeCache { size: Size::Ten, immed: bit(c, 1, 1), lba, blocks, group }
            }
            op::READ_DEFECT_DATA_10 => Self::ReadDefectData {
                size: Size::Ten,
                lists: c[2] >> 3 & 3,
                format: c[2] & 7,
                alloc: u16_at(c, 7).into(),
            },
            op::WRITE_SAME_10 => Self::WriteSame(write_same(c, Size::Ten, lba, blocks, group)),
            op::UNMAP => Self::Unmap { anchor: bit(c, 1, 0), group, list_len: u16_at(c, 7) },
            op::SANITIZE => parse_sanitize(c)?,
            op::MODE_SELECT_10 => Self::ModeSelect {
                size: Size::Ten,
                page_format: bit(c, 1, 4),
                save: bit(c, 1, 0),
                list_len: u16_at(c, 7),
            },
            op::RESERVE_10 => {
                Self::Reserve { size: Size::Ten, third_party: bit(c, 1, 4), extent: bit(c, 1, 0) }
            }
            op::RELEASE_10 => {
                Self::Release { size: Size::Ten, third_party: bit(c, 1, 4), extent: bit(c, 1, 0) }
            }
            op::MODE_SENSE_10 => Self::ModeSense {
                size: Size::Ten,
                llbaa: bit(c, 1, 4),
                dbd: bit(c, 1, 3),
                control: c[2] >> 6,
                page: c[2] & 0x3f,
                subpage: c[3],
                alloc: u16_at(c, 7),
            },
            op::PERSISTENT_RESERVE_IN => {
                Self::PersistentReserveIn { action: c[1] & 0x1f, alloc: u16_at(c, 7) }
            }
            op::PERSISTENT_RESERVE_OUT => Self::PersistentReserveOut {
                action: c[1] & 0x1f,
                scope: c[2] >> 4,
                kind: c[2] & 0xf,
                list_len: u32_at(c, 5),
            },
            _ => return Err(Sense::illegal(Asc::INVALID_OPERATION_CODE)),
        })
    }

    fn parse_12(c: &[u8]) -> Result<Self, Sense> {
        let io =
            || Io { group: c[10] & 0x1f, ..io_flags(c, Size::Twelve, u32_at(c, 2).into(), u32_at(c, 6)) };
        Ok(match c[0] {
            op::REPORT_LUNS => Self::ReportLuns { select: c[2], alloc: u32_at(c, 6) },
            op::MAINTENANCE_IN => match c[1] & 0x1f {
                op::SA_REPORT_TARGET_PORT_GROUPS => {
                    Self::ReportTargetPortGroups { extended: c[1] >> 5 == 1, alloc: u32_at(c, 6) }
                }
                op::SA_REPORT_SUPPORTED_OPCODES => Self::ReportSupportedOpcodes {
                    timeouts: bit(c, 2, 7),
                    options: c[2] & 7,
                    opcode: c[3],
                    action: u16_at(c, 4),
                    alloc: u32_at(c, 6),
                },
                op::SA_REPORT_SUPPORTED_TMFS => {
                    Self::ReportSupportedTmfs { extended: bit(c, 2, 7), alloc: u32_at(c, 6) }
                }
                _ => return Err(bad_action()),
            },
            op::READ_12 => Self::Read(io()),
            op::WRITE_12 => Self::Write(io()),
            op::WRITE_AND_VERIFY_12 => Self::WriteAndVerify(verify_flags(c, io())),
            op::VERIFY_12 => Self::Verify(verify_flags(c, io())),
            op::READ_DEFECT_DATA_12 => Self::ReadDefectData {
                size: Size::Twelve,
                lists: c[1] >> 3 & 3,
                format: c[1] & 7,
                alloc: u32_at(c, 6),
            },
            _ => return Err(Sense::illegal(Asc::INVALID_OPERATION_CODE)),
        })
    }

    fn parse_16(c: &[u8]) -> Result<Self, Sense> {
        let (lba, blocks, group) = (u64_at(c, 2), u32_at(c, 10), c[14] & 0x1f);
        let io = || Io { group, ..io_flags(c, Size::Sixteen, lba, blocks) };
        Ok(match c[0] {
            op::THIRD_PARTY_COPY_OUT => match c[1] & 0x1f {
                op::SA_EXTENDED_COPY_LID1 => Self::ExtendedCopy { list_len: blocks },
                _ => return Err(bad_action()),
            },
            op::THIRD_PARTY_COPY_IN => match c[1] & 0x1f {
                op::SA_COPY_STATUS_LID1 => Self::CopyStatus { list_id: c[2], alloc: blocks },
                op::SA_OPERATING_PARAMETERS => Self::CopyOperatingParameters { alloc: blocks },
                _ => return Err(bad_action()),
            },
            op::READ_16 => Self::Read(io()),
            op::COMPARE_AND_WRITE => Self::CompareAndWrite(Io { blocks: c[13].into(), ..io() }),
            op::WRITE_16 => Self::Write(io()),
            op::ORWRITE_16 => Self::OrWrite(io()),
            op::WRITE_AND_VERIFY_16 => Self::WriteAndVerify(verify_flags(c, io())),
            op::VERIFY_16 => Self::Verify(verify_flags(c, io())),
            op::PRE_FETCH_16 => {
                Self::PreFetch { size: Size::Sixteen, immed: bit(c, 1, 1), lba, blocks, group }
            }
            op::SYNCHRONIZE_CACHE_16 => {
                Self::SynchronizeCache { size: Size::Sixteen, immed: bit(c, 1, 1), lba, blocks, group }
            }
            op::WRITE_SAME_16 => Self::WriteSame(write_same(c, Size::Sixteen, lba, blocks, group)),
            // SBC-4 §5.46: bytes 10 and 11 are the atomic boundary, which only says 0 here; see `judge`.
            op::WRITE_ATOMIC_16 => {
                if u16_at(c, 10) != 0 {
                    return Err(Sense::cdb_field(10));
                }
                Self::WriteAtomic(Io { blocks: u16_at(c, 12).into(), ..io() })
            }
            op::SERVICE_ACTION_IN_16 => match c[1] & 0x1f {
                op::SA_READ_CAPACITY_16 => Self::ReadCapacity16 { lba, pmi: bit(c, 14, 0), alloc: blocks },
                op::SA_GET_LBA_STATUS => Self::GetLbaStatus { lba, alloc: blocks },
                _ => return Err(bad_action()),
            },
            _ => return Err(Sense::illegal(Asc::INVALID_OPERATION_CODE)),
        })
    }
}

fn bit(cdb: &[u8], byte: usize, bit: u8) -> bool {
    u8_at(cdb, byte) >> bit & 1 != 0
}

/// INVALID FIELD IN CDB at the service action, bits 4 to 0 of byte 1.
fn bad_action() -> Sense {
    Sense::cdb_bit(1, 4)
}

/// Byte 1 of READ and WRITE: protection, DPO, FUA, FUA_NV.
fn io_flags(c: &[u8], size: Size, lba: u64, blocks: u32) -> Io {
    Io {
        protect: c[1] >> 5,
        dpo: bit(c, 1, 4),
        fua: bit(c, 1, 3),
        fua_nv: bit(c, 1, 1),
        ..Io::new(size, lba, blocks)
    }
}

/// Byte 1 of the VERIFY kinds has BYTCHK where READ has FUA_NV, and no FUA.
fn verify_flags(c: &[u8], io: Io) -> Io {
    Io { fua: false, fua_nv: false, bytchk: c[1] >> 1 & 3, ..io }
}

fn write_same(c: &[u8], size: Size, lba: u64, blocks: u32, group: u8) -> WriteSame {
    WriteSame {
        size,
        lba,
        blocks,
        protect: c[1] >> 5,
        anchor: bit(c, 1, 4),
        unmap: bit(c, 1, 3),
        pbdata_lbdata: c[1] >> 1 & 3,
        ndob: size == Size::Sixteen && bit(c, 1, 0),
        group,
    }
}

/// SANITIZE erases everything, so that a bit it does not know is refused (SPC-4 §4.2.5.2 lets a device server do so).
fn parse_sanitize(c: &[u8]) -> Result<Command, Sense> {
    let action = match c[1] & 0x1f {
        op::SA_SANITIZE_OVERWRITE => SanitizeAction::Overwrite,
        op::SA_SANITIZE_BLOCK_ERASE => SanitizeAction::BlockErase,
        op::SA_SANITIZE_EXIT_FAILURE => SanitizeAction::ExitFailureMode,
        _ => return Err(bad_action()),
    };
    if bit(c, 1, 6) {
        return Err(Sense::cdb_bit(1, 6));
    }
    if let Some(byte) = (2..7).find(|&byte| c[byte] != 0) {
        return Err(Sense::cdb_field(byte as u16));
    }
    let (immed, ause) = (bit(c, 1, 7), bit(c, 1, 5));
    Ok(Command::Sanitize { action, immed, ause, list_len: u16_at(c, 7) })
}
