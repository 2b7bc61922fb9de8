//! The submission queue entry (64 bytes) and the completion queue entry (16 bytes). NVMe Base 2.0 §3.3.3.
//!
//! Over fabrics an entry travels at the start of a capsule; a command capsule may carry data or SGL descriptors after it.
//! [`Sqe`] is the common layout: fabrics commands, which rearrange part of it, are in [`super::fabrics`].

use super::sgl::Sgl;
use super::status::Status;

layout! {
    /// A submission queue entry.
    #[derive(Copy, Hash)]
    pub struct Sqe[64] {
        /// Opcode (OPC).
        opcode: u8 = 0,
        /// Fused operation (FUSE, bits 1:0) and PRP or SGL for data transfer (PSDT, bits 7:6).
        flags: u8 = 1,
        /// Command identifier (CID).
        cid: u16 = 2,
        /// Namespace identifier (NSID); fabrics commands: the fabrics command type in the low byte.
        nsid: u32 = 4,
        /// Command dword 2.
        cdw2: u32 = 8,
        /// Command dword 3.
        cdw3: u32 = 12,
        /// Metadata pointer (MPTR).
        mptr: u64 = 16,
        /// Data pointer: SGL descriptor 1 (SGL1).
        sgl: Sgl = 24,
        /// Command dword 10.
        cdw10: u32 = 40,
        /// Command dword 11.
        cdw11: u32 = 44,
        /// Command dword 12.
        cdw12: u32 = 48,
        /// Command dword 13.
        cdw13: u32 = 52,
        /// Command dword 14.
        cdw14: u32 = 56,
        /// Command dword 15.
        cdw15: u32 = 60,
    }
}

/// PSDT 01b in [`Sqe::flags`]: SGLs, metadata pointer to a contiguous buffer. The only value allowed over fabrics
/// (NVMe-oF 1.1 §2.1.2).
pub const FLAGS_SGL: u8 = 0x40;
/// Mask of PSDT in [`Sqe::flags`].
pub const FLAGS_PSDT_MASK: u8 = 0xc0;
/// Mask of FUSE in [`Sqe::flags`].
pub const FLAGS_FUSE_MASK: u8 = 0x03;
/// Every namespace (broadcast NSID).
pub const NSID_ALL: u32 = 0xffff_ffff;

impl Sqe {
    /// An entry with an opcode and a namespace, the rest zero.
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, flags: FLAGS_SGL, nsid, sgl: Sgl::none(), ..Self::default() }
    }

    /// Starting LBA of Read, Write, Compare and Write Zeroes (dwords 10 and 11).
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw10) | u64::from(self.cdw11) << 32
    }

    /// Number of logical blocks, 1-based (dword 12 holds it 0-based).
    pub fn blocks(&self) -> u32 {
        (self.cdw12 & 0xffff) + 1
    }

    /// Force Unit Access (dword 12 bit 30).
    pub fn fua(&self) -> bool {
        self.cdw12 & 1 << 30 != 0
    }

    /// A Read, Write, Compare or Write Zeroes of `blocks` (1..=65536) blocks from `slba`.
    pub fn rw(opcode: IoOpcode, nsid: u32, slba: u64, blocks: u32) -> Self {
        debug_assert!((1..=0x1_0000).contains(&blocks));
        let (cdw10, cdw11) = (slba as u32, (slba >> 32) as u32);
        Self { cdw10, cdw11, cdw12: blocks - 1, ..Self::new(opcode.0, nsid) }
    }
}

layout! {
    /// A completion queue entry.
    #[derive(Copy)]
    pub struct Cqe[16] {
        /// Command-specific result: dwords 0 and 1.
        result: u64 = 0,
        /// SQ head pointer (SQHD): how many entries of the submission queue are consumed, modulo its size.
        sqhd: u16 = 8,
        /// SQ identifier; reserved over fabrics, though Linux fills it in.
        sqid: u16 = 10,
        /// Identifier of the command that completed.
        cid: u16 = 12,
        /// Phase tag (bit 0, zero over fabrics) and status field (bits 15:1).
        raw_status: u16 = 14,
    }
}

impl Cqe {
    /// The status field.
    pub fn status(&self) -> Status {
        Status(self.raw_status >> 1)
    }

    /// Command-specific dword 0.
    pub fn dword0(&self) -> u32 {
        self.result as u32
    }

    /// A completion of `cid`; the queue fills in SQHD.
    pub fn new(cid: u16, status: Status, result: u64) -> Self {
        Self { result, sqhd: 0, sqid: 0, cid, raw_status: status.0 << 1 }
    }
}

/// An opcode of the admin queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdminOpcode(pub u8);

/// An opcode of the NVM command set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IoOpcode(pub u8);

macro_rules! opcodes {
    ($ty:ident { $($(#[$meta:meta])* $name:ident = $value:literal, $text:literal;)* }) => {
        impl $ty {
            $($(#[$meta])* #[doc = $text] pub const $name: Self = Self($value);)*

            /// The standard's name.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "unknown opcode",
                }
            }
        }
    };
}

opcodes! { AdminOpcode {
    DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
    CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
    GET_LOG_PAGE = 0x02, "Get Log Page";
    DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
    CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
    IDENTIFY = 0x06, "Identify";
    ABORT = 0x08, "Abort";
    SET_FEATURES = 0x09, "Set Features";
    GET_FEATURES = 0x0a, "Get Features";
    ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
    KEEP_ALIVE = 0x18, "Keep Alive";
    FABRICS = 0x7f, "Fabrics Commands";
} }

opcodes! { IoOpcode {
    FLUSH = 0x00, "Flush";
    WRITE = 0x01, "Write";
    READ = 0x02, "Read";
    WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
    COMPARE = 0x05, "Compare";
    WRITE_ZEROES = 0x08, "Write Zeroes";
    DATASET_MANAGEMENT = 0x09, "Dataset Management";
    VERIFY = 0x0c, "Verify";
    FABRICS = 0x7f, "Fabrics Commands";
} }

layout! {
    /// A range of Dataset Management. NVM Command Set 1.0 §3.2.3.
    pub struct DsmRange[16] {
        /// Context attributes.
        attributes: u32 = 0,
        /// Number of logical blocks, 1-based.
        blocks: u32 = 4,
        /// First logical block.
        slba: u64 = 8,
    }
}

/// Most ranges in one Dataset Management command.
pub const MAX_DSM_RANGES: u32 = 256;
/// Dataset Management dword 11 bit 2: deallocate.
pub const DSM_DEALLOCATE: u32 = 1 << 2;
/// Write Zeroes dword 12 bit 25: deallocate (DEAC).
pub const WRITE_ZEROES_DEALLOCATE: u32 = 1 << 25;
