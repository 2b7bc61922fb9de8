//! Thin provisioning: UNMAP and GET LBA STATUS. SBC-3 §4.7, §5.3, §5.28.
//!
//! Every descriptor of an UNMAP is judged before any is carried out. What is unmapped reads as zeroes (LBPRZ 1): blocks
//! that do not fill a page of the storage below are zeroed instead.

use super::run::{Done, Run};
use crate::bytes::{put, u16_at, u32_at, u64_at};
use crate::sense::{Asc, Failure, Sense};

/// Bytes of the UNMAP parameter list's header, and of a descriptor.
const HEADER: usize = 8;
const DESCRIPTOR: usize = 16;
/// Bytes of GET LBA STATUS' header, and of a descriptor.
const STATUS_HEADER: usize = 8;
const STATUS_DESCRIPTOR: usize = 16;
/// Most descriptors of GET LBA STATUS: an initiator asks again for the rest.
const MAX_STATUS: usize = 256;
/// Provisioning status (SBC-3 table 51).
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

impl Run<'_> {
    pub(super) async fn unmap(&self) -> Result<Done, Failure> {
        let list = self.list()?;
        if list.is_empty() {
            return Ok(Done::GOOD);
        }
        if list.len() < HEADER {
            return Err(Sense::list_length().into());
        }
        let unit = self.unit;
        // A last descriptor that is not whole is ignored, as are bytes after the length that the list says (§5.28.2).
        let len = usize::from(u16_at(&list, 2)).min(list.len() - HEADER);
        let ranges: Vec<(u64, u64)> = list[HEADER..HEADER + len]
            .chunks_exact(DESCRIPTOR)
            .map(|descriptor| (u64_at(descriptor, 0), u64::from(u32_at(descriptor, 8))))
            .collect();
        if ranges.len() > unit.limits.unmap_descriptors as usize {
            return Err(Sense::parameter(2).into());
        }
        for &(lba, blocks) in &ranges {
            if lba.checked_add(blocks).is_none_or(|end| end > unit.geometry.blocks) {
                let sense = Sense::illegal(Asc::LBA_OUT_OF_RANGE);
                return Err(sense.with_information(lba.max(unit.geometry.blocks)).into());
            }
        }
        for (lba, blocks) in ranges.into_iter().filter(|&(_, blocks)| blocks != 0) {
            let discarded = unit.config.backend.discard(unit.bytes(lba), unit.bytes(blocks));
            self.judged(discarded.await)?;
        }
        self.on_medium().await?;
        Ok(Done::GOOD)
    }

    /// From `lba` on, as far as the allocation length goes.
    pub(super) fn lba_status(&self, lba: u64, alloc: u32) -> Done {
        let unit = self.unit;
        let room = (alloc as usize).saturating_sub(STATUS_HEADER) / STATUS_DESCRIPTOR;
        let mut runs: Vec<(u64, u64, bool)> = Vec::new();
        let mut at = lba;
        while at < unit.geometry.blocks && runs.len() <= room.clamp(1, MAX_STATUS) {
            let (len, mapped) = self.extent(at);
            match runs.last_mut() {
                Some(last) if last.2 == mapped && last.1 + len <= u64::from(u32::MAX) => last.1 += len,
                _ => runs.push((at, len, mapped)),
            }
            at += len;
        }
        runs.truncate(room.clamp(1, MAX_STATUS));
        let mut data = vec![0; STATUS_HEADER + runs.len() * STATUS_DESCRIPTOR];
        let parameter_len = (data.len() - 4) as u32;
        put(&mut data, 0, parameter_len.to_be_bytes());
        for (i, (start, blocks, mapped)) in runs.into_iter().enumerate() {
            let descriptor = STATUS_HEADER + i * STATUS_DESCRIPTOR;
            put(&mut data, descriptor, start.to_be_bytes());
            put(&mut data, descriptor + 8, (blocks as u32).to_be_bytes());
            data[descriptor + 12] = if mapped { MAPPED } else { DEALLOCATED };
        }
        self.give(&data, alloc)
    }

    /// How many blocks from `lba` are mapped, or not. A unit without thin provisioning has everything mapped.
    fn extent(&self, lba: u64) -> (u64, bool) {
        let unit = self.unit;
        let rest = (unit.geometry.blocks - lba).min(u64::from(u32::MAX));
        if !unit.is_thin() {
            return (rest, true);
        }
        let extent = unit.config.backend.extent(unit.bytes(lba));
        ((extent.len / u64::from(unit.geometry.block_size)).clamp(1, rest), extent.mapped)
    }
}
