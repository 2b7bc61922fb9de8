//! The status field of a completion: code, code type and the Do Not Retry and More bits, with the standard's names.
//! NVMe Base 2.0 §3.3.3.2 (figures 93 to 100), NVMe-oF 1.1 §2.1.4 for the fabrics codes.

use std::fmt;

/// The 15-bit status field: SC (bits 7:0), SCT (10:8), CRD (12:11), M (13), DNR (14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

impl Status {
    /// Do Not Retry.
    pub const DNR: u16 = 1 << 14;
    /// More information is in the error log.
    pub const MORE: u16 = 1 << 13;

    /// Without the retry and More bits.
    pub fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// Status code type.
    pub fn sct(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code.
    pub fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Successful completion.
    pub fn is_success(self) -> bool {
        self.code() == Self::SUCCESS
    }

    /// The same status with Do Not Retry set.
    pub const fn dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// True when the host must not try again.
    pub fn is_dnr(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// `Ok` for success.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_success() { Ok(()) } else { Err(self) }
    }
}

macro_rules! statuses {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// The standard's name.
            pub fn name(self) -> &'static str {
                match self.code().0 {
                    $($value => $text,)*
                    _ => match self.sct() {
                        0 => "unknown generic command status",
                        1 => "unknown command specific status",
                        2 => "unknown media and data integrity error",
                        3 => "unknown path related status",
                        7 => "vendor specific status",
                        _ => "reserved status code type",
                    },
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "Successful Completion";
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0x006, "Internal Error";
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0x008, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0x00d, "Invalid SGL Segment Descriptor";
    INVALID_NUMBER_OF_SGL_DESCRIPTORS = 0x00e, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0x010, "Metadata SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    INVALID_USE_OF_CMB = 0x012, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0x013, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x015, "Operation Denied";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT_FORMAT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_TIMEOUT_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_TIMEOUT_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0x01b, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0x01c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0x01d, "Sanitize In Progress";
    SGL_DATA_BLOCK_GRANULARITY_INVALID = 0x01e, "SGL Data Block Granularity Invalid";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x022, "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x084, "Format In Progress";
    INVALID_QUEUE_IDENTIFIER = 0x101, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f, "Feature Not Namespace Specific";
    INVALID_CONTROLLER_ID = 0x11f, "Invalid Controller Identifier";
    CONFLICTING_ATTRIBUTES = 0x180, "Connect Incompatible Format, or Conflicting Attributes";
    CONNECT_CONTROLLER_BUSY = 0x181, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 0x182, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 0x183, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = 0x184, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 0x185, "Invalid Queue Type";
    DISCOVER_RESTART = 0x190, "Discover Restart";
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    WRITE_FAULT = 0x280, "Write Fault";
    UNRECOVERED_READ_ERROR = 0x281, "Unrecovered Read Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
    DEALLOCATED_OR_UNWRITTEN = 0x287, "Deallocated or Unwritten Logical Block";
    INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
    CONTROLLER_PATHING_ERROR = 0x360, "Controller Pathing Error";
    HOST_PATHING_ERROR = 0x370, "Host Pathing Error";
    ABORTED_BY_HOST = 0x371, "Command Aborted By Host";
}

impl Status {
    /// Record Format of Connect not supported. The same number as Conflicting Attributes of the NVM command set.
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = Self(0x180);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dnr = if self.is_dnr() { ", do not retry" } else { "" };
        write!(f, "{} (SCT {:#x}, SC {:#04x}{dnr})", self.name(), self.sct(), self.sc())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} {self}", self.0)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_text() {
        // Linux nvmet's answer to a read past the end, captures/nvme_rdma.pcap frame 463.
        let status = Status(0x6006);
        assert_eq!((status.sct(), status.sc(), status.is_dnr()), (0, 6, true));
        assert_eq!(status.to_string(), "Internal Error (SCT 0x0, SC 0x06, do not retry)");
        assert_eq!(Status::LBA_OUT_OF_RANGE.dnr().0, 0x4080);
        assert_eq!(Status::CONNECT_INVALID_HOST.to_string(), "Connect Invalid Host (SCT 0x1, SC 0x84)");
    }
}
