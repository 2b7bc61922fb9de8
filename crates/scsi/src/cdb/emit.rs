//! [`Command`] to CDB bytes: what an initiator sends. A value too large for its field is cut to it, so callers choose the
//! size that fits; the initiator helpers in `client` do.

use super::opcode as op;
use super::{Cdb, Command, Io, MAX_CDB, SanitizeAction, Size, WriteSame};
use crate::bytes::put;

impl Command {
    /// Its bytes.
    pub fn emit(&self) -> Cdb {
        let mut c = [0; MAX_CDB];
        match *self {
            Self::Read(io) => io_cdb(&mut c, io, [op::READ_6, op::READ_10, op::READ_12, op::READ_16]),
            Self::Write(io) => io_cdb(&mut c, io, [op::WRITE_6, op::WRITE_10, op::WRITE_12, op::WRITE_16]),
            Self::WriteAndVerify(io) => io_cdb(&mut c, io, verify_opcodes(op::WRITE_AND_VERIFY_10)),
            Self::Verify(io) => io_cdb(&mut c, io, verify_opcodes(op::VERIFY_10)),
            Self::OrWrite(io) => io_cdb(&mut c, io, [op::ORWRITE_16; 4]),
            Self::WriteAtomic(io) => io_cdb(&mut c, io, [op::WRITE_ATOMIC_16; 4]),
            Self::CompareAndWrite(io) => io_cdb(&mut c, io, [op::COMPARE_AND_WRITE; 4]),
            Self::PreFetch { size, immed, lba, blocks, group } => {
                c[1] = u8::from(immed) << 1;
                range(&mut c, size, [op::PRE_FETCH_10, op::PRE_FETCH_16], lba, blocks, group);
            }
            Self::SynchronizeCache { size, immed, lba, blocks, group } => {
                c[1] = u8::from(immed) << 1;
                range(&mut c, size, [op::SYNCHRONIZE_CACHE_10, op::SYNCHRONIZE_CACHE_16], lba, blocks, group);
            }
            Self::WriteSame(same) => write_same(&mut c, same),
            ref other => other.emit_6_or_10(&mut c),
        }
        let len = op::cdb_len(c[0]).unwrap_or(MAX_CDB) as u8;
        Cdb { bytes: c, len }
    }

    fn emit_6_or_10(&self, c: &mut [u8; MAX_CDB]) {
        match *self {
            Self::TestUnitReady => c[0] = op::TEST_UNIT_READY,
            Self::RequestSense { descriptor, alloc } => {
                put(c, 0, [op::REQUEST_SENSE, descriptor.into(), 0, 0, alloc]);
            }
            Self::Inquiry { evpd, page, alloc } => {
                put(c, 0, [op::INQUIRY, evpd.into(), page]);
                put(c, 3, alloc.to_be_bytes());
            }
            Self::ModeSense { size, llbaa, dbd, control, page, subpage, alloc } => {
                let flags = u8::from(llbaa && size != Size::Six) << 4 | u8::from(dbd) << 3;
                put(c, 1, [flags, control << 6 | page & 0x3f, subpage]);
                short_or_long(c, size, [op::MODE_SENSE_6, op::MODE_SENSE_10], alloc);
            }
            Self::ModeSelect { size, page_format, save, list_len } => {
                c[1] = u8::from(page_format) << 4 | u8::from(save);
                short_or_long(c, size, [op::MODE_SELECT_6, op::MODE_SELECT_10], list_len);
            }
            Self::Reserve { size, third_party, extent } => {
                c[1] = u8::from(third_party) << 4 | u8::from(extent);
                c[0] = if size == Size::Six { op::RESERVE_6 } else { op::RESERVE_10 };
            }
            Self::Release { size, third_party, extent } => {
                c[1] = u8::from(third_party) << 4 | u8::from(extent);
                c[0] = if size == Size::Six { op::RELEASE_6 } else { op::RELEASE_10 };
            }
            Self::StartStop { immed, power_condition, no_flush, load_eject, start } => {
                let flags = u8::from(no_flush) << 2 | u8::from(load_eject) << 1 | u8::from(start);
                put(c, 0, [op::START_STOP_UNIT, immed.into(), 0, 0, power_condition << 4 | flags]);
            }
            Self::SendDiagnostic { self_test, code, list_len } => {
                put(c, 0, [op::SEND_DIAGNOSTIC, code << 5 | u8::from(self_test) << 2]);
                put(c, 3, list_len.to_be_bytes());
            }
            Self::PreventAllow { prevent } => put(c, 0, [op::PREVENT_ALLOW, 0, 0, 0, prevent & 3]),
            Self::ReadCapacity10 { lba, pmi } => {
                c[0] = op::READ_CAPACITY_10;
                put(c, 2, lba.to_be_bytes());
                c[8] = pmi.into();
            }
            Self::Unmap { anchor, group, list_len } => {
                put(c, 0, [op::UNMAP, anchor.into()]);
                c[6] = group & 0x1f;
                put(c, 7, list_len.to_be_bytes());
            }
            Self::Sanitize { action, immed, ause, list_len } => {
                put(
                    c,
                    0,
                    [op::SANITIZE, u8::from(immed) << 7 | u8::from(ause) << 5 | sanitize_action(action)],
                );
                put(c, 7, list_len.to_be_bytes());
            }
            Self::PersistentReserveIn { action, alloc } => {
                put(c, 0, [op::PERSISTENT_RESERVE_IN, action & 0x1f]);
                put(c, 7, alloc.to_be_bytes());
            }
            Self::PersistentReserveOut { action, scope, kind, list_len } => {
                put(c, 0, [op::PERSISTENT_RESERVE_OUT, action & 0x1f, scope << 4 | kind & 0xf]);
                put(c, 5, list_len.to_be_bytes());
            }
            ref other => other.emit_12_or_16(c),
        }
    }

    fn emit_12_or_16(&self, c: &mut [u8; MAX_CDB]) {
        match *self {
            Self::ReadDefectData { size, lists, format, alloc } => {
                let flags = (lists & 3) << 3 | format & 7;
                if size == Size::Ten {
                    put(c, 0, [op::READ_DEFECT_DATA_10, 0, flags]);
                    put(c, 7, (alloc as u16).to_be_bytes());
                } else {
                    put(c, 0, [op::READ_DEFECT_DATA_12, flags]);
                    put(c, 6, alloc.to_be_bytes());
                }
            }
            Self::ReadCapacity16 { lba, pmi, alloc } => {
                service_action_in(c, op::SA_READ_CAPACITY_16, lba, alloc);
                c[14] = pmi.into();
            }
            Self::GetLbaStatus { lba, alloc } => service_action_in(c, op::SA_GET_LBA_STATUS, lba, alloc),
            Self::ExtendedCopy { list_len } => {
                put(c, 0, [op::THIRD_PARTY_COPY_OUT, op::SA_EXTENDED_COPY_LID1]);
                put(c, 10, list_len.to_be_bytes());
            }
            Self::CopyStatus { list_id, alloc } => {
                put(c, 0, [op::THIRD_PARTY_COPY_IN, op::SA_COPY_STATUS_LID1, list_id]);
                put(c, 10, alloc.to_be_bytes());
            }
            Self::CopyOperatingParameters { alloc } => {
                put(c, 0, [op::THIRD_PARTY_COPY_IN, op::SA_OPERATING_PARAMETERS]);
                put(c, 10, alloc.to_be_bytes());
            }
            Self::ReportLuns { select, alloc } => {
                put(c, 0, [op::REPORT_LUNS, 0, select]);
                put(c, 6, alloc.to_be_bytes());
            }
            Self::ReportTargetPortGroups { extended, alloc } => {
                let format = u8::from(extended) << 5;
                put(c, 0, [op::MAINTENANCE_IN, format | op::SA_REPORT_TARGET_PORT_GROUPS]);
                put(c, 6, alloc.to_be_bytes());
            }
            Self::ReportSupportedOpcodes { timeouts, options, opcode, action, alloc } => {
                put(c, 0, [op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_OPCODES]);
                put(c, 2, [u8::from(timeouts) << 7 | options & 7, opcode]);
                put(c, 4, action.to_be_bytes());
                put(c, 6, alloc.to_be_bytes());
            }
            Self::ReportSupportedTmfs { extended, alloc } => {
                put(c, 0, [op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_TMFS, u8::from(extended) << 7]);
                put(c, 6, alloc.to_be_bytes());
            }
            _ => {}
        }
    }
}

fn sanitize_action(action: SanitizeAction) -> u8 {
    match action {
        SanitizeAction::Overwrite => op::SA_SANITIZE_OVERWRITE,
        SanitizeAction::BlockErase => op::SA_SANITIZE_BLOCK_ERASE,
        SanitizeAction::ExitFailureMode => op::SA_SANITIZE_EXIT_FAILURE,
    }
}

/// The 10, 12 and 16-byte codes of a VERIFY kind differ by their group code.
fn verify_opcodes(ten: u8) -> [u8; 4] {
    [ten, ten, ten | 0x80, ten & 0x1f | 0x80]
}

fn io_cdb(c: &mut [u8; MAX_CDB], io: Io, opcodes: [u8; 4]) {
    if opcodes[0] == opcodes[3] {
        c[0] = opcodes[3];
        io_16(c, io);
        match c[0] {
            op::COMPARE_AND_WRITE => put(c, 10, [0, 0, 0, io.blocks as u8]),
            op::WRITE_ATOMIC_16 => put(c, 10, [0, 0]),
            _ => {}
        }
        return;
    }
    let flags = io.protect << 5 | u8::from(io.dpo) << 4 | u8::from(io.fua) << 3 | u8::from(io.fua_nv) << 1;
    match io.size {
        Size::Six => {
            put(c, 0, (io.lba as u32 & 0x1f_ffff).to_be_bytes());
            put(c, 0, [opcodes[0]]);
            c[4] = io.blocks as u8;
        }
        Size::Ten => {
            put(c, 0, [opcodes[1], flags | (io.bytchk & 3) << 1]);
            put(c, 2, (io.lba as u32).to_be_bytes());
            c[6] = io.group & 0x1f;
            put(c, 7, (io.blocks as u16).to_be_bytes());
        }
        Size::Twelve => {
            put(c, 0, [opcodes[2], flags | (io.bytchk & 3) << 1]);
            put(c, 2, (io.lba as u32).to_be_bytes());
            put(c, 6, io.blocks.to_be_bytes());
            c[10] = io.group & 0x1f;
        }
        Size::Sixteen => {
            c[0] = opcodes[3];
            io_16(c, io);
        }
    }
}

fn io_16(c: &mut [u8; MAX_CDB], io: Io) {
    let flags = io.protect << 5 | u8::from(io.dpo) << 4 | u8::from(io.fua) << 3 | u8::from(io.fua_nv) << 1;
    c[1] = flags | (io.bytchk & 3) << 1;
    put(c, 2, io.lba.to_be_bytes());
    put(c, 10, io.blocks.to_be_bytes());
    c[14] = io.group & 0x1f;
}

/// A 10 or 16-byte CDB of an LBA, a number of blocks and a group.
fn range(c: &mut [u8; MAX_CDB], size: Size, opcodes: [u8; 2], lba: u64, blocks: u32, group: u8) {
    if size == Size::Ten {
        c[0] = opcodes[0];
        put(c, 2, (lba as u32).to_be_bytes());
        c[6] = group & 0x1f;
        put(c, 7, (blocks as u16).to_be_bytes());
    } else {
        c[0] = opcodes[1];
        put(c, 2, lba.to_be_bytes());
        put(c, 10, blocks.to_be_bytes());
        c[14] = group & 0x1f;
    }
}

fn write_same(c: &mut [u8; MAX_CDB], same: WriteSame) {
    range(c, same.size, [op::WRITE_SAME_10, op::WRITE_SAME_16], same.lba, same.blocks, same.group);
    c[1] = same.protect << 5
        | u8::from(same.anchor) << 4
        | u8::from(same.unmap) << 3
        | (same.pbdata_lbdata & 3) << 1
        | u8::from(same.ndob);
}

/// A 6 or 10-byte CDB whose length is all that differs.
fn short_or_long(c: &mut [u8; MAX_CDB], size: Size, opcodes: [u8; 2], len: u16) {
    if size == Size::Six {
        c[0] = opcodes[0];
        c[4] = len as u8;
    } else {
        c[0] = opcodes[1];
        put(c, 7, len.to_be_bytes());
    }
}

fn service_action_in(c: &mut [u8; MAX_CDB], action: u8, lba: u64, alloc: u32) {
    put(c, 0, [op::SERVICE_ACTION_IN_16, action]);
    put(c, 2, lba.to_be_bytes());
    put(c, 10, alloc.to_be_bytes());
}
