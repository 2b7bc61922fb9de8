//! The 48 bytes that every PDU begins with: one table of opcodes and fields, from which parsing and emitting both follow.
//!
//! Read RFC 7143 §11 for the layouts. Byte 0 (opcode and immediate bit) and bytes 4–7 (lengths) belong to [`super::Pdu`];
//! byte 1 is kept as it came, with the flags of each PDU as constants. Reserved bytes are written as zero and not read.

use super::field::Field;

/// Length of a Basic Header Segment.
pub const BHS_LEN: usize = 48;
/// A tag that names nothing (Initiator Task Tag or Target Transfer Tag).
pub const NO_TAG: u32 = 0xffff_ffff;
/// Byte 1: the last PDU of its sequence (F bit).
pub const FINAL: u8 = 0x80;
/// Byte 1 of login and text PDUs: the text goes on in the next PDU (C bit).
pub const CONTINUE: u8 = 0x40;

macro_rules! headers {
    ($($(#[$doc:meta])* $name:ident = $opcode:literal, $title:literal {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty = $at:literal),* $(,)?
    })*) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            /// Byte 1: flags, as the standard draws them.
            pub flags: u8,
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl $name {
            /// The opcode (RFC 7143 §11.2.1.2).
            pub const OPCODE: u8 = $opcode;

            fn parse(bytes: &[u8; BHS_LEN]) -> Self {
                Self { flags: bytes[1], $($field: Field::get(&bytes[$at..]),)* }
            }

            fn emit(&self, bytes: &mut [u8; BHS_LEN]) {
                bytes[0] |= $opcode;
                bytes[1] = self.flags;
                $(Field::put(&self.$field, &mut bytes[$at..]);)*
            }
        }

        impl From<$name> for Header {
            fn from(header: $name) -> Header {
                Header::$name(header)
            }
        })*

        /// A PDU's header, by its opcode.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Header {
            $($name($name),)*
        }

        impl Header {
            /// Reads a header; `None` for an opcode that the standard does not have.
            pub fn parse(bytes: &[u8; BHS_LEN]) -> Option<Header> {
                match bytes[0] & 0x3f {
                    $($opcode => Some(Header::$name($name::parse(bytes))),)*
                    _ => None,
                }
            }

            pub(super) fn emit(&self, bytes: &mut [u8; BHS_LEN]) {
                match self {
                    $(Header::$name(header) => header.emit(bytes),)*
                }
            }

            /// The PDU's name in the standard.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Header::$name(_) => $title,)*
                }
            }
        }
    };
}

headers! {
    /// §11.18. A ping, or the answer to one.
    NopOut = 0x00, "NOP-Out" {
        /// Logical unit, echoed from a NOP-In.
        lun: u64 = 8,
        /// Initiator Task Tag; [`NO_TAG`] wants no answer.
        itt: u32 = 16,
        /// Target Transfer Tag of the NOP-In that is answered, or [`NO_TAG`].
        ttt: u32 = 20,
        /// Command sequence number.
        cmd_sn: u32 = 24,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
    }
    /// §11.3.
    ScsiCommand = 0x01, "SCSI Command" {
        /// Logical unit.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Expected Data Transfer Length, in bytes.
        edtl: u32 = 20,
        /// Command sequence number.
        cmd_sn: u32 = 24,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
        /// The first 16 bytes of the CDB.
        cdb: [u8; 16] = 32,
    }
    /// §11.5.
    TaskRequest = 0x02, "Task Management Function Request" {
        /// Logical unit.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Tag of the task that is meant, or [`NO_TAG`].
        ref_tag: u32 = 20,
        /// Command sequence number.
        cmd_sn: u32 = 24,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
        /// CmdSN of the task that is meant.
        ref_cmd_sn: u32 = 32,
        /// For reassignment.
        exp_data_sn: u32 = 36,
    }
    /// §11.12.
    LoginRequest = 0x03, "Login Request" {
        /// Highest version known.
        version_max: u8 = 2,
        /// Lowest version known.
        version_min: u8 = 3,
        /// Initiator's part of the session's identity.
        isid: [u8; 6] = 8,
        /// Target's part; 0 for a new session.
        tsih: u16 = 14,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Connection.
        cid: u16 = 20,
        /// Command sequence number.
        cmd_sn: u32 = 24,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
    }
    /// §11.10.
    TextRequest = 0x04, "Text Request" {
        /// Logical unit, with a transfer tag.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag of the exchange that goes on, or [`NO_TAG`].
        ttt: u32 = 20,
        /// Command sequence number.
        cmd_sn: u32 = 24,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
    }
    /// §11.7.
    DataOut = 0x05, "SCSI Data-Out" {
        /// Logical unit, with a transfer tag.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag of the R2T, or [`NO_TAG`] for data that nobody asked for.
        ttt: u32 = 20,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
        /// Number of the PDU in its sequence.
        data_sn: u32 = 36,
        /// Offset in the command's data, in bytes.
        offset: u32 = 40,
    }
    /// §11.14.
    LogoutRequest = 0x06, "Logout Request" {
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Connection to log out.
        cid: u16 = 20,
        /// Command sequence number.
        cmd_sn: u32 = 24,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
    }
    /// §11.16.
    Snack = 0x10, "SNACK Request" {
        /// Logical unit.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag, or SNACK tag.
        ttt: u32 = 20,
        /// Status acknowledged up to here.
        exp_stat_sn: u32 = 28,
        /// First number missed.
        beg_run: u32 = 40,
        /// How many; 0 is all.
        run_length: u32 = 44,
    }
    /// §11.19.
    NopIn = 0x20, "NOP-In" {
        /// Logical unit.
        lun: u64 = 8,
        /// Initiator Task Tag of the NOP-Out that is answered, or [`NO_TAG`].
        itt: u32 = 16,
        /// Target Transfer Tag, where an answer is wanted.
        ttt: u32 = 20,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
    }
    /// §11.4.
    ScsiResponse = 0x21, "SCSI Response" {
        /// 0: completed at target; 1: target failure.
        response: u8 = 2,
        /// SCSI status.
        status: u8 = 3,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// SNACK tag.
        snack_tag: u32 = 20,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// R2T and Data-In PDUs that were sent.
        exp_data_sn: u32 = 36,
        /// Residual of a bidirectional command's read half.
        read_residual: u32 = 40,
        /// Residual count.
        residual: u32 = 44,
    }
    /// §11.6.
    TaskResponse = 0x22, "Task Management Function Response" {
        /// How it went.
        response: u8 = 2,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
    }
    /// §11.13.
    LoginResponse = 0x23, "Login Response" {
        /// Highest version known.
        version_max: u8 = 2,
        /// Version in use.
        version_active: u8 = 3,
        /// As in the request.
        isid: [u8; 6] = 8,
        /// Target's part of the session's identity.
        tsih: u16 = 14,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// Status class.
        class: u8 = 36,
        /// Status detail.
        detail: u8 = 37,
    }
    /// §11.11.
    TextResponse = 0x24, "Text Response" {
        /// Logical unit, with a transfer tag.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag, where the exchange goes on.
        ttt: u32 = 20,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
    }
    /// §11.7.
    DataIn = 0x25, "SCSI Data-In" {
        /// SCSI status, with the S bit.
        status: u8 = 3,
        /// Logical unit, with a transfer tag.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag, with the A bit.
        ttt: u32 = 20,
        /// Status sequence number, with the S bit.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// Number of the PDU in the command.
        data_sn: u32 = 36,
        /// Offset in the command's data, in bytes.
        offset: u32 = 40,
        /// Residual count, with the S bit.
        residual: u32 = 44,
    }
    /// §11.15.
    LogoutResponse = 0x26, "Logout Response" {
        /// How it went.
        response: u8 = 2,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// Seconds to wait before logging in again.
        time2wait: u16 = 40,
        /// Seconds after that for which tasks are kept.
        time2retain: u16 = 42,
    }
    /// §11.8.
    R2t = 0x31, "Ready To Transfer" {
        /// Logical unit.
        lun: u64 = 8,
        /// Initiator Task Tag.
        itt: u32 = 16,
        /// Target Transfer Tag.
        ttt: u32 = 20,
        /// Next status sequence number; not advanced.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// Number of the R2T in the command.
        r2t_sn: u32 = 36,
        /// Offset in the command's data, in bytes.
        offset: u32 = 40,
        /// Bytes wanted.
        length: u32 = 44,
    }
    /// §11.9.
    AsyncMessage = 0x32, "Asynchronous Message" {
        /// Logical unit, for SCSI events.
        lun: u64 = 8,
        /// Always [`NO_TAG`].
        itt: u32 = 16,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// What happened.
        event: u8 = 36,
        /// A vendor's code.
        vcode: u8 = 37,
        /// Connection.
        parameter1: u16 = 38,
        /// Time2Wait.
        parameter2: u16 = 40,
        /// Time2Retain, or seconds left to log out.
        parameter3: u16 = 42,
    }
    /// §11.17.
    Reject = 0x3f, "Reject" {
        /// Why.
        reason: u8 = 2,
        /// Always [`NO_TAG`].
        itt: u32 = 16,
        /// Status sequence number.
        stat_sn: u32 = 24,
        /// Next command expected.
        exp_cmd_sn: u32 = 28,
        /// Last command that may come.
        max_cmd_sn: u32 = 32,
        /// DataSN or R2TSN, with some reasons.
        data_sn: u32 = 36,
    }
}
