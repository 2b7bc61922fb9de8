//! Command descriptor blocks: typed, read by the target, written by initiators. SPC-4 §4.2.5, SBC-3 §5.
//!
//! [`Command::parse`] reads what a device server may be sent, [`Command::emit`] writes it; both ends use one type, so
//! a field is understood once. `opcode` has the numbers, `table` says which commands exist, which bits of their CDBs
//! mean something and what a reservation does to them.
//! What this does not do: judge a field against a logical unit (its size, its limits, its mode pages).

mod emit;
pub mod opcode;
mod parse;
pub mod table;

use std::fmt;

/// Longest CDB that any command here has.
pub const MAX_CDB: usize = 16;

/// A CDB as it travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; MAX_CDB],
    len: u8,
}

impl Cdb {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its bytes in the 16-byte field that iSCSI and SRP have, zeroes after it.
    pub fn padded(&self) -> [u8; MAX_CDB] {
        self.bytes
    }
}

impl fmt::Debug for Cdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cdb({:02x?})", self.as_bytes())
    }
}

/// Which of a command's sizes it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// 6 bytes.
    Six,
    /// 10 bytes.
    Ten,
    /// 12 bytes.
    Twelve,
    /// 16 bytes.
    Sixteen,
}

/// A range of logical blocks and how to treat it: READ, WRITE and their relatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    /// The CDB's size.
    pub size: Size,
    /// First block.
    pub lba: u64,
    /// Blocks. In a 6-byte CDB the field's 0 means 256, which is what stands here (SBC-3 §5.9).
    pub blocks: u32,
    /// RDPROTECT, WRPROTECT, VRPROTECT or ORPROTECT.
    pub protect: u8,
    /// Disable page out.
    pub dpo: bool,
    /// Force unit access.
    pub fua: bool,
    /// FUA_NV, obsolete since SBC-3; a hint about non-volatile caches.
    pub fua_nv: bool,
    /// BYTCHK of the VERIFY kinds.
    pub bytchk: u8,
    /// Group number.
    pub group: u8,
}

impl Io {
    /// A plain transfer.
    pub const fn new(size: Size, lba: u64, blocks: u32) -> Self {
        Self { size, lba, blocks, protect: 0, dpo: false, fua: false, fua_nv: false, bytchk: 0, group: 0 }
    }
}

/// WRITE SAME. SBC-3 §5.44, §5.45.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSame {
    /// The CDB's size: 10 or 16.
    pub size: Size,
    /// First block.
    pub lba: u64,
    /// Blocks; 0 means up to the last one, which a device server with WSNZ refuses.
    pub blocks: u32,
    /// WRPROTECT.
    pub protect: u8,
    /// Leave the blocks anchored. Needs `unmap`.
    pub anchor: bool,
    /// The blocks may be unmapped if they then read as the data sent.
    pub unmap: bool,
    /// PBDATA and LBDATA, both obsolete.
    pub pbdata_lbdata: u8,
    /// No data-out buffer: write zeroes (16 only).
    pub ndob: bool,
    /// Group number.
    pub group: u8,
}

/// SANITIZE's service actions. SBC-3 §5.30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanitizeAction {
    /// Write a pattern.
    Overwrite,
    /// Erase by the medium's own means.
    BlockErase,
    /// Leave the state that a failed SANITIZE left.
    ExitFailureMode,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are named as the standard names them.
pub enum Command {
    TestUnitReady,
    RequestSense {
        descriptor: bool,
        alloc: u8,
    },
    Inquiry {
        evpd: bool,
        page: u8,
        alloc: u16,
    },
    ModeSense {
        size: Size,
        llbaa: bool,
        dbd: bool,
        control: u8,
        page: u8,
        subpage: u8,
        alloc: u16,
    },
    ModeSelect {
        size: Size,
        page_format: bool,
        save: bool,
        list_len: u16,
    },
    /// RESERVE of SPC-2 §7.21: only whole logical units, for the sender itself.
    Reserve {
        size: Size,
        third_party: bool,
        extent: bool,
    },
    /// RELEASE of SPC-2 §7.16.
    Release {
        size: Size,
        third_party: bool,
        extent: bool,
    },
    StartStop {
        immed: bool,
        power_condition: u8,
        no_flush: bool,
        load_eject: bool,
        start: bool,
    },
    SendDiagnostic {
        self_test: bool,
        code: u8,
        list_len: u16,
    },
    PreventAllow {
        prevent: u8,
    },
    ReadCapacity10 {
        lba: u32,
        pmi: bool,
    },
    ReadCapacity16 {
        lba: u64,
        pmi: bool,
        alloc: u32,
    },
    GetLbaStatus {
        lba: u64,
        alloc: u32,
    },
    Read(Io),
    Write(Io),
    WriteAndVerify(Io),
    Verify(Io),
    OrWrite(Io),
    WriteAtomic(Io),
    /// `blocks` blocks to compare, and as many to write.
    CompareAndWrite(Io),
    PreFetch {
        size: Size,
        immed: bool,
        lba: u64,
        blocks: u32,
        group: u8,
    },
    SynchronizeCache {
        size: Size,
        immed: bool,
        lba: u64,
        blocks: u32,
        group: u8,
    },
    ReadDefectData {
        size: Size,
        lists: u8,
        format: u8,
        alloc: u32,
    },
    WriteSame(WriteSame),
    Unmap {
        anchor: bool,
        group: u8,
        list_len: u16,
    },
    Sanitize {
        action: SanitizeAction,
        immed: bool,
        ause: bool,
        list_len: u16,
    },
    PersistentReserveIn {
        action: u8,
        alloc: u16,
    },
    PersistentReserveOut {
        action: u8,
        scope: u8,
        kind: u8,
        list_len: u32,
    },
    ExtendedCopy {
        list_len: u32,
    },
    CopyStatus {
        list_id: u8,
        alloc: u32,
    },
    CopyOperatingParameters {
        alloc: u32,
    },
    ReportLuns {
        select: u8,
        alloc: u32,
    },
    ReportTargetPortGroups {
        extended: bool,
        alloc: u32,
    },
    ReportSupportedOpcodes {
        timeouts: bool,
        options: u8,
        opcode: u8,
        action: u16,
        alloc: u32,
    },
    ReportSupportedTmfs {
        extended: bool,
        alloc: u32,
    },
}

#[cfg(test)]
mod tests;
