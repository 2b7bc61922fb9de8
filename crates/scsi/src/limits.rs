//! What a logical unit says of its limits, as an initiator reads it. SBC-3 §6.6.4 (block limits), §6.6.6 (logical block
//! provisioning).
//!
//! A unit need not have either page, and a field of 0 tells of no limit. The initiators' own limits hold besides.

use crate::bytes::{u8_at, u32_at, u64_at};

/// VPD page of the block limits, and its length.
pub const BLOCK_LIMITS: u8 = 0xb0;
/// Bytes of that page.
pub const BLOCK_LIMITS_LEN: u8 = 64;
/// VPD page of logical block provisioning.
pub const PROVISIONING: u8 = 0xb2;
/// Bytes of that page, without a provisioning group descriptor.
pub const PROVISIONING_LEN: u8 = 8;

/// Most bytes of one READ or WRITE, whatever the unit takes.
const MAX_TRANSFER: u64 = 1 << 20;
/// Most bytes that one WRITE SAME writes, whatever the unit takes: other commands wait meanwhile.
const MAX_SAME: u64 = 32 << 20;
/// Blocks of one WRITE SAME where the unit tells no limit: what WRITE SAME (10) can say at most.
const UNTOLD_SAME: u64 = 0xffff;
/// WRITE SAME (16) unmaps.
const LBPWS: u8 = 0x40;

/// What one command may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// Most bytes of one READ or WRITE, whole blocks.
    pub transfer: u64,
    /// Most bytes that one WRITE SAME writes, whole blocks.
    pub write_same: u64,
    /// WRITE SAME (16) may unmap.
    pub unmaps: bool,
}

impl DiskLimits {
    /// From both pages, each empty or cut of a unit that does not have all of it, and the bytes of a block.
    pub fn new(block_limits: &[u8], provisioning: &[u8], block_size: u32) -> Self {
        let block = u64::from(block_size);
        let told =
            |blocks: u64, otherwise: u64| if blocks == 0 { otherwise } else { blocks.saturating_mul(block) };
        let transfer = if block_limits.len() >= 12 { u32_at(block_limits, 8).into() } else { 0 };
        let same = if block_limits.len() >= 44 { u64_at(block_limits, 36) } else { 0 };
        Self {
            transfer: told(transfer, u64::MAX).min(MAX_TRANSFER.max(block)),
            write_same: told(same, UNTOLD_SAME * block).min(MAX_SAME),
            unmaps: provisioning.len() > 5 && u8_at(provisioning, 5) & LBPWS != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MAXIMUM TRANSFER LENGTH in bytes 8 to 11, MAXIMUM WRITE SAME LENGTH in bytes 36 to 43, both in blocks.
    #[test]
    fn what_is_told_and_what_is_not() {
        let mut page = [0; 64];
        let limits = |page: &[u8], block| DiskLimits::new(page, &[0, 0xb2, 0, 4, 0, 0x40, 2, 0], block);
        let none = DiskLimits { transfer: 1 << 20, write_same: 0xffff * 512, unmaps: true };
        assert_eq!(limits(&page, 512), none);
        assert_eq!(DiskLimits::new(&[], &[], 512), DiskLimits { unmaps: false, ..none });
        page[8..12].copy_from_slice(&24u32.to_be_bytes());
        page[36..44].copy_from_slice(&3u64.to_be_bytes());
        assert_eq!(
            limits(&page, 4096),
            DiskLimits { transfer: 24 * 4096, write_same: 3 * 4096, unmaps: true }
        );
        (page[8], page[36]) = (0xff, 0xff);
        assert_eq!(limits(&page, 512), DiskLimits { transfer: 1 << 20, write_same: 32 << 20, unmaps: true });
        assert_eq!(limits(&page[..20], 512).write_same, 0xffff * 512, "SBC-2's page ends before it");
    }
}
