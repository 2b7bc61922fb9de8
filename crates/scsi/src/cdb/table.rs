//! Which commands exist, and what a reservation, a missing medium or write protection does to each.
//! SPC-4 §6.31 (CDB usage data) and table 66 (commands and persistent reservations), SBC-3 table 13, SPC-2 §7.21.
//!
//! [`SPECS`] is what REPORT SUPPORTED OPERATION CODES reports, in the order of the operation codes; a test holds it
//! against the parser. [`Command::access`] is the whole conflict table in one place.

use super::opcode as op;
use super::{Command, SanitizeAction};

/// A supported command.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Operation code.
    pub opcode: u8,
    /// Service action, where the operation code has them.
    pub action: Option<u8>,
    /// CDB usage data: which bits are evaluated. Its length is the CDB's.
    pub usage: &'static [u8],
    /// Nominal seconds, 0 for a command that is done at once.
    pub nominal: u32,
    /// Seconds after which an initiator may worry.
    pub recommended: u32,
}

const fn quick(opcode: u8, usage: &'static [u8]) -> Spec {
    Spec { opcode, action: None, usage, nominal: 0, recommended: 30 }
}

const fn medium(opcode: u8, usage: &'static [u8]) -> Spec {
    Spec { opcode, action: None, usage, nominal: 1, recommended: 60 }
}

const fn acting(opcode: u8, action: u8, usage: &'static [u8]) -> Spec {
    Spec { opcode, action: Some(action), usage, nominal: 0, recommended: 60 }
}

const fn long(opcode: u8, action: u8, usage: &'static [u8]) -> Spec {
    Spec { opcode, action: Some(action), usage, nominal: 60, recommended: 3600 }
}

const LBA4: [u8; 4] = [0xff; 4];

/// A 10-byte CDB of flags, LBA, group and 2-byte length.
const fn ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, LBA4[0], 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]
}

/// A 12-byte CDB of flags, LBA, 4-byte length and group.
const fn twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]
}

/// A 16-byte CDB of flags, 8-byte LBA, 4-byte length and group.
const fn sixteen(opcode: u8, flags: u8) -> [u8; 16] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]
}

/// A 10-byte CDB with a service action and a 2-byte length.
const fn pr_in(action: u8) -> [u8; 10] {
    [op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0]
}

/// PERSISTENT RESERVE OUT: scope, type and a 4-byte length.
const fn pr_out(action: u8) -> [u8; 10] {
    [op::PERSISTENT_RESERVE_OUT, action, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]
}

const fn sanitize(action: u8) -> [u8; 10] {
    [op::SANITIZE, 0xa0 | action, 0, 0, 0, 0, 0, 0xff, 0xff, 0]
}

/// A MAINTENANCE IN CDB: `two` to `five` are bytes 2 to 5.
const fn maintenance(action: u8, two: u8, three: u8, four: u8, five: u8) -> [u8; 12] {
    [op::MAINTENANCE_IN, action, two, three, four, five, 0xff, 0xff, 0xff, 0xff, 0, 0]
}

const fn copy(opcode: u8, action: u8, list_id: u8) -> [u8; 16] {
    [opcode, action, list_id, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]
}

/// DPO and FUA.
const DPO_FUA: u8 = 0x18;
/// The same, and FUA_NV, which is accepted and has no effect beyond FUA's.
const DPO_FUA_NV: u8 = 0x1a;
/// DPO and BYTCHK.
const DPO_BYTCHK: u8 = 0x16;

/// Every command, by operation code and service action.
pub const SPECS: &[Spec] = &[
    quick(op::TEST_UNIT_READY, &[op::TEST_UNIT_READY, 0, 0, 0, 0, 0]),
    quick(op::REQUEST_SENSE, &[op::REQUEST_SENSE, 1, 0, 0, 0xff, 0]),
    medium(op::READ_6, &[op::READ_6, 0x1f, 0xff, 0xff, 0xff, 0]),
    medium(op::WRITE_6, &[op::WRITE_6, 0x1f, 0xff, 0xff, 0xff, 0]),
    quick(op::INQUIRY, &[op::INQUIRY, 1, 0xff, 0xff, 0xff, 0]),
    quick(op::MODE_SELECT_6, &[op::MODE_SELECT_6, 0x11, 0, 0, 0xff, 0]),
    quick(op::RESERVE_6, &[op::RESERVE_6, 0, 0, 0, 0, 0]),
    quick(op::RELEASE_6, &[op::RELEASE_6, 0, 0, 0, 0, 0]),
    quick(op::MODE_SENSE_6, &[op::MODE_SENSE_6, 0x08, 0xff, 0xff, 0xff, 0]),
    quick(op::START_STOP_UNIT, &[op::START_STOP_UNIT, 1, 0, 0, 0xf7, 0]),
    quick(op::SEND_DIAGNOSTIC, &[op::SEND_DIAGNOSTIC, 0xe4, 0, 0, 0, 0]),
    quick(op::PREVENT_ALLOW, &[op::PREVENT_ALLOW, 0, 0, 0, 3, 0]),
    quick(op::READ_CAPACITY_10, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    medium(op::READ_10, &ten(op::READ_10, DPO_FUA_NV)),
    medium(op::WRITE_10, &ten(op::WRITE_10, DPO_FUA_NV)),
    medium(op::WRITE_AND_VERIFY_10, &ten(op::WRITE_AND_VERIFY_10, DPO_BYTCHK)),
    medium(op::VERIFY_10, &ten(op::VERIFY_10, DPO_BYTCHK)),
    medium(op::PRE_FETCH_10, &ten(op::PRE_FETCH_10, 2)),
    medium(op::SYNCHRONIZE_CACHE_10, &ten(op::SYNCHRONIZE_CACHE_10, 2)),
    quick(op::READ_DEFECT_DATA_10, &[op::READ_DEFECT_DATA_10, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0]),
    medium(op::WRITE_SAME_10, &ten(op::WRITE_SAME_10, 0)),
    medium(op::UNMAP, &[op::UNMAP, 0, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0]),
    long(op::SANITIZE, op::SA_SANITIZE_OVERWRITE, &sanitize(op::SA_SANITIZE_OVERWRITE)),
    long(op::SANITIZE, op::SA_SANITIZE_BLOCK_ERASE, &sanitize(op::SA_SANITIZE_BLOCK_ERASE)),
    long(op::SANITIZE, op::SA_SANITIZE_EXIT_FAILURE, &sanitize(op::SA_SANITIZE_EXIT_FAILURE)),
    quick(op::MODE_SELECT_10, &[op::MODE_SELECT_10, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    quick(op::RESERVE_10, &[op::RESERVE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    quick(op::RELEASE_10, &[op::RELEASE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    quick(op::MODE_SENSE_10, &[op::MODE_SENSE_10, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0]),
    acting(op::PERSISTENT_RESERVE_IN, 0, &pr_in(0)),
    acting(op::PERSISTENT_RESERVE_IN, 1, &pr_in(1)),
    acting(op::PERSISTENT_RESERVE_IN, 2, &pr_in(2)),
    acting(op::PERSISTENT_RESERVE_IN, 3, &pr_in(3)),
    acting(op::PERSISTENT_RESERVE_OUT, 0, &pr_out(0)),
    acting(op::PERSISTENT_RESERVE_OUT, 1, &pr_out(1)),
    acting(op::PERSISTENT_RESERVE_OUT, 2, &pr_out(2)),
    acting(op::PERSISTENT_RESERVE_OUT, 3, &pr_out(3)),
    acting(op::PERSISTENT_RESERVE_OUT, 4, &pr_out(4)),
    acting(op::PERSISTENT_RESERVE_OUT, 5, &pr_out(5)),
    acting(op::PERSISTENT_RESERVE_OUT, 6, &pr_out(6)),
    acting(op::PERSISTENT_RESERVE_OUT, 7, &pr_out(7)),
    long(op::THIRD_PARTY_COPY_OUT, op::SA_EXTENDED_COPY_LID1, &copy(op::THIRD_PARTY_COPY_OUT, 0, 0)),
    acting(op::THIRD_PARTY_COPY_IN, op::SA_COPY_STATUS_LID1, &copy(op::THIRD_PARTY_COPY_IN, 0, 0xff)),
    acting(op::THIRD_PARTY_COPY_IN, op::SA_OPERATING_PARAMETERS, &copy(op::THIRD_PARTY_COPY_IN, 3, 0)),
    medium(op::READ_16, &sixteen(op::READ_16, DPO_FUA_NV)),
    medium(
        op::COMPARE_AND_WRITE,
        &[
            op::COMPARE_AND_WRITE,
            DPO_FUA_NV,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0,
            0,
            0,
            0xff,
            0x1f,
            0,
        ],
    ),
    medium(op::WRITE_16, &sixteen(op::WRITE_16, DPO_FUA_NV)),
    medium(op::ORWRITE_16, &sixteen(op::ORWRITE_16, DPO_FUA_NV)),
    medium(op::WRITE_AND_VERIFY_16, &sixteen(op::WRITE_AND_VERIFY_16, DPO_BYTCHK)),
    medium(op::VERIFY_16, &sixteen(op::VERIFY_16, DPO_BYTCHK)),
    medium(op::PRE_FETCH_16, &sixteen(op::PRE_FETCH_16, 2)),
    medium(op::SYNCHRONIZE_CACHE_16, &sixteen(op::SYNCHRONIZE_CACHE_16, 2)),
    medium(op::WRITE_SAME_16, &sixteen(op::WRITE_SAME_16, 0x09)),
    medium(
        op::WRITE_ATOMIC_16,
        &[
            op::WRITE_ATOMIC_16,
            DPO_FUA,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0,
            0,
            0xff,
            0xff,
            0x1f,
            0,
        ],
    ),
    acting(
        op::SERVICE_ACTION_IN_16,
        op::SA_READ_CAPACITY_16,
        &[op::SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    acting(
        op::SERVICE_ACTION_IN_16,
        op::SA_GET_LBA_STATUS,
        &[
            op::SERVICE_ACTION_IN_16,
            0x12,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0,
            0,
        ],
    ),
    quick(op::REPORT_LUNS, &[op::REPORT_LUNS, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    acting(op::MAINTENANCE_IN, op::SA_REPORT_TARGET_PORT_GROUPS, &maintenance(0x2a, 0, 0, 0, 0)),
    acting(op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_OPCODES, &maintenance(0x0c, 0x87, 0xff, 0xff, 0xff)),
    acting(op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_TMFS, &maintenance(0x0d, 0x80, 0, 0, 0)),
    medium(op::READ_12, &twelve(op::READ_12, DPO_FUA_NV)),
    medium(op::WRITE_12, &twelve(op::WRITE_12, DPO_FUA_NV)),
    medium(op::WRITE_AND_VERIFY_12, &twelve(op::WRITE_AND_VERIFY_12, DPO_BYTCHK)),
    medium(op::VERIFY_12, &twelve(op::VERIFY_12, DPO_BYTCHK)),
    quick(
        op::READ_DEFECT_DATA_12,
        &[op::READ_DEFECT_DATA_12, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
];

/// What a command needs of a reservation that another I_T nexus holds. SPC-4 table 66, SBC-3 table 13.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Allowed whoever holds it, and under SPC-2 reservations too.
    Free,
    /// Allowed under persistent reservations; conflicts with an SPC-2 reservation.
    FreeButSpc2,
    /// Conflicts with exclusive access.
    Read,
    /// Conflicts with every reservation.
    Write,
    /// The reservation code itself decides.
    Reservation,
}

impl Command {
    /// How reservations treat the command.
    pub fn access(&self) -> Access {
        match *self {
            Self::Inquiry { .. } | Self::ReportLuns { .. } | Self::RequestSense { .. } => Access::Free,
            Self::PreventAllow { prevent: 0 } => Access::Free,
            Self::PersistentReserveIn { .. }
            | Self::PersistentReserveOut { .. }
            | Self::Reserve { .. }
            | Self::Release { .. } => Access::Reservation,
            Self::TestUnitReady
            | Self::ReadCapacity10 { .. }
            | Self::ReadCapacity16 { .. }
            | Self::ReportTargetPortGroups { .. }
            | Self::CopyOperatingParameters { .. }
            | Self::StartStop { start: true, power_condition: 0, .. } => Access::FreeButSpc2,
            Self::Read(_)
            | Self::Verify(_)
            | Self::PreFetch { .. }
            | Self::GetLbaStatus { .. }
            | Self::ReadDefectData { .. }
            | Self::ModeSense { .. }
            | Self::CopyStatus { .. }
            | Self::ReportSupportedOpcodes { .. }
            | Self::ReportSupportedTmfs { .. } => Access::Read,
            Self::ModeSelect { .. }
            | Self::StartStop { .. }
            | Self::SendDiagnostic { .. }
            | Self::PreventAllow { .. }
            | Self::Write(_)
            | Self::WriteAndVerify(_)
            | Self::OrWrite(_)
            | Self::WriteAtomic(_)
            | Self::CompareAndWrite(_)
            | Self::SynchronizeCache { .. }
            | Self::WriteSame(_)
            | Self::Unmap { .. }
            | Self::Sanitize { .. }
            | Self::ExtendedCopy { .. } => Access::Write,
        }
    }

    /// Answered without looking at pending unit attentions, LUN mapping or port state (SAM-5 §5.14, SPC-4 §6.6.1).
    pub fn is_always_answered(&self) -> bool {
        matches!(self, Self::Inquiry { .. } | Self::ReportLuns { .. } | Self::RequestSense { .. })
    }

    /// Needs a medium in the device.
    pub fn needs_medium(&self) -> bool {
        matches!(
            self,
            Self::TestUnitReady
                | Self::ReadCapacity10 { .. }
                | Self::ReadCapacity16 { .. }
                | Self::GetLbaStatus { .. }
                | Self::Read(_)
                | Self::Verify(_)
                | Self::PreFetch { .. }
                | Self::SynchronizeCache { .. }
                | Self::ExtendedCopy { .. }
                | Self::ReadDefectData { .. }
        ) || self.changes_medium()
    }

    /// Changes the medium, so that write protection refuses it.
    pub fn changes_medium(&self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::WriteAndVerify(_)
                | Self::OrWrite(_)
                | Self::WriteAtomic(_)
                | Self::CompareAndWrite(_)
                | Self::WriteSame(_)
                | Self::Unmap { .. }
                | Self::Sanitize { action: SanitizeAction::Overwrite | SanitizeAction::BlockErase, .. }
        )
    }

    /// Allowed while SANITIZE runs. SBC-3 §4.11.2.
    pub fn allowed_while_sanitizing(&self) -> bool {
        self.is_always_answered()
            || matches!(
                self,
                Self::ReportTargetPortGroups { .. }
                    | Self::ReportSupportedOpcodes { .. }
                    | Self::ReportSupportedTmfs { .. }
                    | Self::PersistentReserveIn { .. }
            )
    }
}
