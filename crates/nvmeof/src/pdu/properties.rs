//! Controller properties: CAP, VS, CC, CSTS. NVMe Base 2.0 §3.1.3, NVMe-oF 1.1 §3.4 for how they are reached.

/// Controller Capabilities, 8 bytes.
pub const CAP: u32 = 0x00;
/// Version, 4 bytes.
pub const VS: u32 = 0x08;
/// Controller Configuration, 4 bytes.
pub const CC: u32 = 0x14;
/// Controller Status, 4 bytes.
pub const CSTS: u32 = 0x1c;
/// NVM Subsystem Reset, 4 bytes.
pub const NSSR: u32 = 0x20;

/// The version this controller implements: 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// CC.EN.
pub const CC_EN: u32 = 1;
/// CC.SHN, bits 15:14.
pub const CC_SHN: u32 = 3 << 14;
/// CC.SHN 01b: normal shutdown.
pub const CC_SHN_NORMAL: u32 = 1 << 14;
/// CC.CSS, bits 6:4.
pub const CC_CSS: u32 = 7 << 4;
/// CC.CSS 110b: all supported command sets.
pub const CC_CSS_ALL: u32 = 6 << 4;
/// CC.IOSQES, bits 19:16: log2 of the submission queue entry size, 6.
pub const CC_IOSQES_SHIFT: u32 = 16;
/// CC.IOCQES, bits 23:20: log2 of the completion queue entry size, 4.
pub const CC_IOCQES_SHIFT: u32 = 20;
/// CSTS.RDY.
pub const CSTS_RDY: u32 = 1;
/// CSTS.CFS: controller fatal status.
pub const CSTS_CFS: u32 = 1 << 1;
/// CSTS.SHST, bits 3:2.
pub const CSTS_SHST: u32 = 3 << 2;
/// CSTS.SHST 10b: shutdown complete.
pub const CSTS_SHST_COMPLETE: u32 = 2 << 2;

/// Controller Capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// What a fabrics controller with queues of up to `max_entries` says: contiguous queues (CQR), `timeout_500ms` to
    /// become ready, the NVM command set and the command set structures (CSS bits 0 and 6), 4 KiB pages.
    pub fn new(max_entries: u16, timeout_500ms: u8) -> Self {
        Self(u64::from(max_entries - 1) | 1 << 16 | u64::from(timeout_500ms) << 24 | 1 << 37 | 1 << 43)
    }

    /// Maximum Queue Entries Supported (MQES), 0-based.
    pub fn mqes(self) -> u16 {
        self.0 as u16
    }

    /// Time the controller may take to become ready (TO), in units of 500 ms.
    pub fn timeout_500ms(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// The CC a host enables a controller with: entry sizes of 64 and 16 bytes, 4 KiB pages, NVM command set.
pub const CC_DEFAULT: u32 = 6 << CC_IOSQES_SHIFT | 4 << CC_IOCQES_SHIFT;
