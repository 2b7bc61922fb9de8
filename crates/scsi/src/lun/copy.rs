//! EXTENDED COPY (LID1) and RECEIVE COPY RESULTS. SPC-4 §6.4, §6.18 to §6.20.
//!
//! One kind of segment, block device to block device (02h), between logical units that the same nexus sees, named by
//! identification descriptors (E4h). Copies run within the command; results are held for RECEIVE COPY RESULTS as long as
//! the list identifier is not used again.

use std::sync::Arc;

use everywire_block::SharedBuffer;

use super::background::give_way;
use super::run::{Done, Run};
use super::{LogicalUnit, flag};
use crate::bytes::{put, u8_at, u16_at, u24_at, u32_at, u64_at};
use crate::cdb::table::Access;
use crate::inquiry::vendor_designator;
use crate::lock;
use crate::sense::{Asc, Failure, KeySpecific, Sense, SenseKey};
use crate::status::Status;

/// Most target descriptors.
pub(crate) const MAX_TARGETS: u16 = 16;
/// Most segment descriptors.
pub(crate) const MAX_SEGMENTS: u16 = 16;
/// Most bytes of all descriptors.
pub(crate) const MAX_LIST: u32 = 1024;
/// Inline data are for segments that do not exist here.
pub(crate) const MAX_INLINE: u32 = 0;
/// Most bytes of one segment: what 65535 blocks of 4 KiB come to.
pub(crate) const MAX_SEGMENT_BYTES: u32 = 256 << 20;
/// Identification descriptor target descriptor.
pub(crate) const TARGET_TYPE: u8 = 0xe4;
/// Block device to block device.
pub(crate) const SEGMENT_TYPE: u8 = 0x02;

const HEADER: usize = 16;
const TARGET_LEN: usize = 32;
const SEGMENT_LEN: usize = 28;
/// LIST ID USAGE: none is held, and the list identifier is 0.
const NO_LIST: u8 = 3;
/// The same, but with a list identifier.
const NOT_HELD: u8 = 2;
/// Bytes that are moved at once.
const STEP: u64 = 1 << 20;

/// How a copy ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyResult {
    failed: bool,
    segments: u16,
    bytes: u64,
}

struct Segment {
    from: usize,
    to: usize,
    blocks: u64,
    source: u64,
    destination: u64,
    /// DC: the count is of the destination's blocks.
    counts_destination: bool,
    /// Where its descriptor starts in the parameter list.
    at: u16,
}

/// Parameter data of COPY's operating parameters. SPC-4 table 247.
pub(super) fn parameters() -> Vec<u8> {
    let mut data = vec![0; 46];
    put(&mut data, 0, 42u32.to_be_bytes());
    // SNLID: list identifiers may be left out.
    data[4] = 1;
    put(&mut data, 8, MAX_TARGETS.to_be_bytes());
    put(&mut data, 10, MAX_SEGMENTS.to_be_bytes());
    put(&mut data, 12, MAX_LIST.to_be_bytes());
    put(&mut data, 16, MAX_SEGMENT_BYTES.to_be_bytes());
    put(&mut data, 20, MAX_INLINE.to_be_bytes());
    put(&mut data, 34, 1u16.to_be_bytes());
    data[36] = 1;
    // Granularity of segments: 2^9 bytes.
    data[37] = 9;
    put(&mut data, 43, [2, SEGMENT_TYPE, TARGET_TYPE]);
    data
}

impl Run<'_> {
    pub(super) fn copy_status(&self, list_id: u8, alloc: u32) -> Result<Done, Failure> {
        let state = lock(&self.unit.state);
        let result = state.copies.get(&(self.path.nexus, list_id)).copied();
        drop(state);
        let result = result.ok_or(Sense::cdb_field(2))?;
        let mut data = [0; 12];
        put(&mut data, 0, 8u32.to_be_bytes());
        data[4] = if result.failed { 2 } else { 1 };
        put(&mut data, 5, result.segments.to_be_bytes());
        // Transfer count units 0: bytes.
        put(&mut data, 8, u32::try_from(result.bytes).unwrap_or(u32::MAX).to_be_bytes());
        Ok(self.give(&data, alloc))
    }

    pub(super) async fn extended_copy(&self) -> Result<Done, Failure> {
        let list = self.list()?;
        if list.is_empty() {
            return Ok(Done::GOOD);
        }
        let (targets, segments) = self.parse_copy(&list)?;
        let usage = u8_at(&list, 1) >> 3 & 3;
        let mut result = CopyResult { failed: false, segments: 0, bytes: 0 };
        let mut outcome = Ok(Done::GOOD);
        for segment in &segments {
            match self.copy_segment(&targets, segment).await {
                Ok(bytes) => {
                    result.segments += 1;
                    result.bytes += bytes;
                }
                Err(failure) => {
                    result.failed = true;
                    outcome = Err(failure);
                    break;
                }
            }
        }
        if usage != NO_LIST && usage != NOT_HELD {
            lock(&self.unit.state).copies.insert((self.path.nexus, list[0]), result);
        }
        outcome
    }

    /// Judges the whole parameter list.
    fn parse_copy(&self, list: &[u8]) -> Result<(Vec<Arc<LogicalUnit>>, Vec<Segment>), Failure> {
        if list.len() < HEADER {
            return Err(Sense::list_length().into());
        }
        let usage = list[1] >> 3 & 3;
        // SPC-4 table 98: 01b is reserved, and without a list there is no identifier.
        if usage == 1 || usage == NO_LIST && list[0] != 0 {
            return Err(Sense::parameter(if usage == 1 { 1 } else { 0 }).into());
        }
        let targets_len = usize::from(u16_at(list, 2));
        let (segments_len, inline) = (u32_at(list, 8) as usize, u32_at(list, 12));
        if targets_len / TARGET_LEN > usize::from(MAX_TARGETS) {
            return Err(Sense::illegal(Asc::TOO_MANY_TARGET_DESCRIPTORS).into());
        }
        if segments_len / SEGMENT_LEN > usize::from(MAX_SEGMENTS) {
            return Err(Sense::illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS).into());
        }
        if inline > MAX_INLINE {
            return Err(Sense::parameter(12).into());
        }
        let whole = HEADER.checked_add(targets_len).and_then(|len| len.checked_add(segments_len));
        if !targets_len.is_multiple_of(TARGET_LEN) || whole.is_none_or(|whole| whole > list.len()) {
            return Err(Sense::list_length().into());
        }
        let (targets, rest) = list[HEADER..].split_at(targets_len);
        let targets: Vec<Arc<LogicalUnit>> = targets
            .chunks_exact(TARGET_LEN)
            .enumerate()
            .map(|(i, one)| self.copy_target(one, i))
            .collect::<Result<_, _>>()?;
        let mut segments = Vec::new();
        let mut at = 0;
        while at < segments_len {
            let place = (HEADER + targets_len + at) as u16;
            let segment = parse_segment(&rest[at..segments_len], place, targets.len())?;
            segments.push(segment);
            at += SEGMENT_LEN;
        }
        Ok((targets, segments))
    }

    /// SPC-4 §6.4.4: the logical unit that an identification descriptor names.
    fn copy_target(&self, descriptor: &[u8], index: usize) -> Result<Arc<LogicalUnit>, Failure> {
        let at = |byte: usize| (HEADER + index * TARGET_LEN + byte) as u16;
        if descriptor[0] != TARGET_TYPE {
            return Err(Sense::illegal(Asc::UNSUPPORTED_TARGET_DESCRIPTOR).into());
        }
        // SPC-4 took LU ID TYPE and NUL away: bits 7 to 5 of byte 1 do not matter.
        let designator_len = usize::from(descriptor[7]).min(20);
        let (kind, designator) = (descriptor[5] & 0x3f, &descriptor[8..8 + designator_len]);
        let found = self.nexus.map.units().into_iter().find(|unit| match kind {
            3 => designator == unit.identity.naa.to_be_bytes(),
            1 => designator == vendor_designator(unit),
            _ => false,
        });
        let Some(unit) = found else {
            let mut sense = Sense::new(SenseKey::COPY_ABORTED, Asc::COPY_TARGET_NOT_REACHABLE);
            sense.specific = Some(KeySpecific::Segment { in_segment: false, byte: at(0) });
            return Err(sense.into());
        };
        let block = u24_at(descriptor, 29);
        if descriptor[1] & 0x1f != 0 || block != 0 && block != unit.geometry.block_size {
            return Err(Sense::new(SenseKey::COPY_ABORTED, Asc::INCORRECT_COPY_TARGET_TYPE).into());
        }
        Ok(unit)
    }

    async fn copy_segment(&self, units: &[Arc<LogicalUnit>], segment: &Segment) -> Result<u64, Failure> {
        let (source, destination) = (&units[segment.from], &units[segment.to]);
        let counted = if segment.counts_destination { destination } else { source };
        let len = counted.bytes(segment.blocks);
        let refused = |asc| {
            let mut sense = Sense::new(SenseKey::COPY_ABORTED, asc);
            sense.specific = Some(KeySpecific::Segment { in_segment: false, byte: segment.at });
            Failure::from(sense)
        };
        if len > u64::from(MAX_SEGMENT_BYTES) {
            return Err(Sense::parameter(segment.at + 10).into());
        }
        let inside = |unit: &LogicalUnit, lba| {
            let size = u64::from(unit.geometry.block_size);
            let end = unit.geometry.blocks.checked_sub(len / size).filter(|&last| lba <= last);
            len.is_multiple_of(size) && end.is_some()
        };
        if !inside(source, segment.source) || !inside(destination, segment.destination) {
            return Err(refused(Asc::NONE));
        }
        for (unit, access) in [(source, Access::Read), (destination, Access::Write)] {
            if unit.is(flag::RESERVED) && lock(&unit.state).reservations.conflicts(&self.path.name, access) {
                return Err(Failure::Status(Status::RESERVATION_CONFLICT));
            }
            if unit.is(flag::EJECTED | flag::SANITIZING) {
                return Err(refused(Asc::COPY_TARGET_NOT_REACHABLE));
            }
        }
        if destination.is(flag::READ_ONLY | flag::SWP) {
            return Err(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED).into());
        }
        let through = destination.through(false);
        let (from, to) = (source.bytes(segment.source), destination.bytes(segment.destination));
        // Backwards where the places overlap so that a block is overwritten before it is read.
        let backwards = Arc::ptr_eq(source, destination) && from < to && to < from + len;
        let steps = len.div_ceil(STEP);
        for step in 0..steps {
            let at = STEP * if backwards { steps - 1 - step } else { step };
            let buffer = SharedBuffer::new(vec![0; (len - at).min(STEP) as usize]).io();
            source.config.backend.read(from + at, &buffer).await.map_err(|error| source.failed(&error))?;
            let written = destination.config.backend.write(to + at, &buffer, through).await;
            written.map_err(|error| destination.failed(&error))?;
            give_way().await;
        }
        Ok(len)
    }
}

/// SPC-4 §6.4.6.5.
fn parse_segment(bytes: &[u8], at: u16, targets: usize) -> Result<Segment, Failure> {
    if bytes[0] != SEGMENT_TYPE {
        return Err(Sense::illegal(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR).into());
    }
    if bytes.len() < SEGMENT_LEN || usize::from(u16_at(bytes, 2)) != SEGMENT_LEN - 4 {
        return Err(Sense::parameter(at + 2).into());
    }
    let (from, to) = (usize::from(u16_at(bytes, 4)), usize::from(u16_at(bytes, 6)));
    for (index, byte) in [(from, 4), (to, 6)] {
        if index >= targets {
            let mut sense = Sense::new(SenseKey::COPY_ABORTED, Asc::UNREACHABLE_COPY_TARGET);
            sense.specific = Some(KeySpecific::Segment { in_segment: true, byte });
            return Err(sense.into());
        }
    }
    Ok(Segment {
        from,
        to,
        blocks: u16_at(bytes, 10).into(),
        source: u64_at(bytes, 12),
        destination: u64_at(bytes, 20),
        counts_destination: bytes[1] & 2 != 0,
        at,
    })
}
