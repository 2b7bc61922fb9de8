//! Log pages other than discovery. NVMe Base 2.0 §5.16.1.

/// Supported Log Pages.
pub const SUPPORTED_LOG_PAGES: u8 = 0x00;
/// Error Information.
pub const ERROR_INFORMATION: u8 = 0x01;
/// SMART / Health Information.
pub const SMART: u8 = 0x02;
/// Firmware Slot Information.
pub const FIRMWARE_SLOT: u8 = 0x03;
/// Changed Namespace List.
pub const CHANGED_NAMESPACES: u8 = 0x04;
/// Commands Supported and Effects.
pub const COMMAND_EFFECTS: u8 = 0x05;
/// Asymmetric Namespace Access.
pub const ANA: u8 = 0x0c;
/// Discovery.
pub const DISCOVERY: u8 = 0x70;

layout! {
    /// An entry of the error log. NVMe Base 2.0 §5.16.1.2.
    #[derive(Copy)]
    pub struct ErrorEntry[64] {
        /// Counts errors over the life of the controller; 0 is no entry.
        count: u64 = 0,
        /// Submission queue.
        sqid: u16 = 8,
        /// Command identifier.
        cid: u16 = 10,
        /// Status field, shifted left by one as in a completion.
        status: u16 = 12,
        /// Parameter error location: byte (7:0), bit (10:8).
        location: u16 = 14,
        /// First LBA of the error.
        lba: u64 = 16,
        /// Namespace.
        nsid: u32 = 24,
        /// Vendor specific log page, or 0.
        vendor_log: u8 = 28,
        /// Transport type.
        trtype: u8 = 29,
        /// Command specific information.
        command_info: u64 = 32,
    }
}

layout! {
    /// SMART / Health Information. NVMe Base 2.0 §5.16.1.3.
    pub struct Smart[512] {
        /// Critical warnings.
        critical_warning: u8 = 0,
        /// Composite temperature in kelvin.
        temperature: u16 = 1,
        /// Available spare in percent.
        available_spare: u8 = 3,
        /// Threshold for it.
        available_spare_threshold: u8 = 4,
        /// Percentage used.
        percentage_used: u8 = 5,
        /// Thousands of 512-byte units read, rounded up.
        data_units_read: u128 = 32,
        /// Thousands of 512-byte units written, rounded up.
        data_units_written: u128 = 48,
        /// Read commands.
        host_reads: u128 = 64,
        /// Write commands.
        host_writes: u128 = 80,
        /// Controller busy minutes.
        busy_minutes: u128 = 96,
        /// Power cycles.
        power_cycles: u128 = 112,
        /// Power-on hours.
        power_on_hours: u128 = 128,
        /// Unsafe shutdowns.
        unsafe_shutdowns: u128 = 144,
        /// Media errors.
        media_errors: u128 = 160,
        /// Entries ever made in the error log.
        error_log_entries: u128 = 176,
    }
}

layout! {
    /// Firmware Slot Information. NVMe Base 2.0 §5.16.1.4.
    pub struct FirmwareSlot[512] {
        /// Active firmware: slot in bits 2:0.
        afi: u8 = 0,
        /// Revision in slot 1.
        frs1: [u8; 8] = 8,
    }
}

layout! {
    /// Commands Supported and Effects. NVMe Base 2.0 §5.16.1.6.
    pub struct CommandEffects[4096] {
        /// By admin opcode.
        admin: [u32; 256] = 0,
        /// By I/O opcode.
        io: [u32; 256] = 1024,
    }
}

/// The command is supported (CSUPP).
pub const EFFECT_SUPPORTED: u32 = 1;
/// The command may change data (LBCC).
pub const EFFECT_CHANGES_DATA: u32 = 1 << 1;

/// Most entries of the changed namespace list.
pub const MAX_CHANGED: usize = 1024;

/// Asynchronous event type (dword 0 bits 2:0): notice.
pub const EVENT_NOTICE: u32 = 2;
/// Notice: namespace attribute changed.
pub const NOTICE_NAMESPACE_ATTRIBUTE: u32 = 0x00;
/// Notice: discovery log page change.
pub const NOTICE_DISCOVERY_LOG: u32 = 0xf0;

/// Dword 0 of an asynchronous event: type, information and the log page to read.
pub const fn async_event(kind: u32, information: u32, log: u8) -> u32 {
    kind | information << 8 | (log as u32) << 16
}

/// What Get Log Page asks for. NVMe Base 2.0 §5.16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRequest {
    /// Log identifier (LID).
    pub lid: u8,
    /// Log specific parameter (LSP).
    pub lsp: u8,
    /// Retain the asynchronous event (RAE).
    pub retain: bool,
    /// Bytes asked for.
    pub len: u64,
    /// Byte offset into the log.
    pub offset: u64,
}

impl LogRequest {
    /// Reads dwords 10 to 13.
    pub fn from_sqe(sqe: &super::Sqe) -> Self {
        let dwords = u64::from(sqe.cdw10 >> 16) | u64::from(sqe.cdw11 & 0xffff) << 16;
        Self {
            lid: sqe.cdw10 as u8,
            lsp: (sqe.cdw10 >> 8 & 0x7f) as u8,
            retain: sqe.cdw10 & 1 << 15 != 0,
            len: (dwords + 1) * 4,
            offset: u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32,
        }
    }

    /// The command; `len` is a positive multiple of 4.
    pub fn to_sqe(self, nsid: u32) -> super::Sqe {
        let dwords = (self.len / 4 - 1) as u32;
        super::Sqe {
            cdw10: u32::from(self.lid)
                | u32::from(self.lsp) << 8
                | u32::from(self.retain) << 15
                | dwords << 16,
            cdw11: dwords >> 16,
            cdw12: self.offset as u32,
            cdw13: (self.offset >> 32) as u32,
            ..super::Sqe::new(super::AdminOpcode::GET_LOG_PAGE.0, nsid)
        }
    }
}
