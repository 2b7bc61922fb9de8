//! The fields of a CDB against the logical unit: ranges, limits, lengths of data. SBC-3 §5, SPC-4 §6.
//!
//! What is refused names the byte of the CDB. A range that passes the last block is LOGICAL BLOCK ADDRESS OUT OF RANGE,
//! with the first block that is outside as INFORMATION.

use super::copy::MAX_LIST;
use super::{LogicalUnit, Plan};
use crate::cdb::{Command, Io, SanitizeAction, Size, WriteSame};
use crate::sense::{Asc, Failure, Sense};
use crate::task_set::Range;

/// Most bytes of a PERSISTENT RESERVE OUT parameter list.
const MAX_PR_LIST: u32 = 64 << 10;

/// What a command moves and touches.
#[derive(Default)]
struct Shape {
    out: u64,
    into: u64,
    range: Option<Range>,
}

impl Shape {
    fn out(bytes: impl Into<u64>) -> Self {
        Self { out: bytes.into(), ..Self::default() }
    }

    fn into(bytes: impl Into<u64>) -> Self {
        Self { into: bytes.into(), ..Self::default() }
    }
}

/// Where the transfer length stands in a CDB.
fn length_at(size: Size) -> u16 {
    match size {
        Size::Six => 4,
        Size::Ten => 7,
        Size::Twelve => 6,
        Size::Sixteen => 10,
    }
}

/// Of a command whose blocks only its parameter list tells: it may be any.
const ANY_BLOCK: Range = Range { start: 0, end: u64::MAX, exclusive: false };

impl LogicalUnit {
    /// Judges what the initiator would send: commands that compare, or repeat, take exactly what their CDB says, because what
    /// is cut would mean something else.
    pub(crate) fn check_exact(&self, plan: &Plan, expected: u32) -> Result<(), Failure> {
        let at = match plan.command {
            Command::CompareAndWrite(_) => 13,
            Command::WriteSame(same) if !same.ndob => length_at(same.size),
            _ => return Ok(()),
        };
        if u64::from(expected) == plan.out { Ok(()) } else { Err(Sense::cdb_field(at).into()) }
    }

    /// Judges the fields of a command.
    pub(super) fn check(&self, command: Command) -> Result<Plan, Failure> {
        let Shape { out, into, range } = self.shape(&command)?;
        Ok(Plan { command, out, into, range })
    }

    fn shape(&self, command: &Command) -> Result<Shape, Failure> {
        Ok(match *command {
            Command::Read(io) => {
                let range = self.io(io, false)?;
                Shape { into: self.bytes(io.blocks.into()), range, out: 0 }
            }
            Command::Write(io) => self.written(io, io.blocks, false)?,
            Command::OrWrite(io) => self.written(io, io.blocks, true)?,
            Command::WriteAndVerify(io) => {
                if io.bytchk > 1 {
                    return Err(Sense::cdb_bit(1, 2).into());
                }
                self.written(io, io.blocks, io.bytchk == 1)?
            }
            Command::WriteAtomic(io) => {
                let shape = self.written(io, io.blocks, true)?;
                if io.blocks > self.limits.atomic {
                    return Err(Sense::cdb_field(12).into());
                }
                shape
            }
            Command::CompareAndWrite(io) => self.written(io, io.blocks * 2, true)?,
            Command::Verify(io) => self.verified(io)?,
            Command::WriteSame(same) => self.same(same)?,
            Command::PreFetch { lba, blocks, .. } | Command::SynchronizeCache { lba, blocks, .. } => {
                self.inside(lba, blocks.into())?;
                Shape::default()
            }
            Command::GetLbaStatus { lba, alloc } => {
                if lba >= self.geometry.blocks {
                    return Err(self.outside(lba).into());
                }
                Shape::into(alloc)
            }
            Command::Unmap { anchor, list_len, .. } => {
                if anchor {
                    return Err(Sense::cdb_bit(1, 0).into());
                }
                Shape { range: Some(ANY_BLOCK), ..Shape::out(list_len) }
            }
            Command::Sanitize { action, list_len, .. } => {
                // SBC-3 §5.30.2: a pattern of up to a block, and only OVERWRITE has one.
                let most = if action == SanitizeAction::Overwrite { 4 + self.geometry.block_size } else { 0 };
                let least = if action == SanitizeAction::Overwrite { 5 } else { 0 };
                if !(least..=most).contains(&u32::from(list_len)) {
                    return Err(Sense::cdb_field(7).into());
                }
                Shape::out(list_len)
            }
            _ => self.shape_of_rest(command)?,
        })
    }

    /// Commands that touch no block.
    fn shape_of_rest(&self, command: &Command) -> Result<Shape, Failure> {
        Ok(match *command {
            Command::Inquiry { evpd, page, alloc } => {
                if !evpd && page != 0 {
                    return Err(Sense::cdb_field(2).into());
                }
                Shape::into(alloc)
            }
            Command::RequestSense { alloc, .. } => Shape::into(alloc),
            Command::ModeSense { alloc, .. } | Command::PersistentReserveIn { alloc, .. } => {
                Shape::into(alloc)
            }
            Command::ReadCapacity10 { .. } => Shape::into(8u32),
            Command::ReadCapacity16 { alloc, .. }
            | Command::ReadDefectData { alloc, .. }
            | Command::CopyStatus { alloc, .. }
            | Command::CopyOperatingParameters { alloc }
            | Command::ReportLuns { alloc, .. }
            | Command::ReportTargetPortGroups { alloc, .. }
            | Command::ReportSupportedOpcodes { alloc, .. }
            | Command::ReportSupportedTmfs { alloc, .. } => Shape::into(alloc),
            Command::ModeSelect { list_len, .. } => Shape::out(list_len),
            Command::SendDiagnostic { list_len, .. } => {
                if list_len != 0 {
                    return Err(Sense::cdb_field(3).into());
                }
                Shape::default()
            }
            Command::Reserve { third_party, extent, .. } | Command::Release { third_party, extent, .. } => {
                if third_party || extent {
                    return Err(Sense::cdb_bit(1, if third_party { 4 } else { 0 }).into());
                }
                Shape::default()
            }
            Command::PersistentReserveOut { list_len, .. } => {
                if list_len > MAX_PR_LIST {
                    return Err(Sense::list_length().into());
                }
                Shape::out(list_len)
            }
            Command::ExtendedCopy { list_len } => {
                if list_len > MAX_LIST + 16 {
                    return Err(Sense::list_length().into());
                }
                Shape { range: Some(ANY_BLOCK), ..Shape::out(list_len) }
            }
            _ => Shape::default(),
        })
    }

    pub(super) fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(u64::from(self.geometry.block_size))
    }

    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    fn outside(&self, lba: u64) -> Sense {
        Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(lba.max(self.geometry.blocks))
    }

    fn inside(&self, lba: u64, blocks: u64) -> Result<(), Failure> {
        if lba.checked_add(blocks).is_none_or(|end| end > self.geometry.blocks) {
            return Err(self.outside(lba).into());
        }
        Ok(())
    }

    /// Range, protection and transfer length of a command that moves blocks.
    fn io(&self, io: Io, exclusive: bool) -> Result<Option<Range>, Failure> {
        // PROT_EN is 0: no protection information here (SBC-3 table 41).
        if io.protect != 0 {
            return Err(Sense::cdb_bit(1, 7).into());
        }
        self.inside(io.lba, io.blocks.into())?;
        if io.blocks > self.limits.transfer {
            return Err(Sense::cdb_field(length_at(io.size)).into());
        }
        let end = io.lba + u64::from(io.blocks);
        Ok((io.blocks != 0).then_some(Range { start: io.lba, end, exclusive }))
    }

    fn written(&self, io: Io, moved: u32, exclusive: bool) -> Result<Shape, Failure> {
        let range = self.io(io, exclusive)?;
        Ok(Shape { out: self.bytes(moved.into()), range, into: 0 })
    }

    /// SBC-3 §5.34: BYTCHK 00b compares nothing, 01b every block, 11b every block with one.
    fn verified(&self, io: Io) -> Result<Shape, Failure> {
        let range = self.io(io, false)?;
        let moved = match io.bytchk {
            0 => 0,
            1 => io.blocks,
            3 => io.blocks.min(1),
            _ => return Err(Sense::cdb_bit(1, 2).into()),
        };
        Ok(Shape { out: self.bytes(moved.into()), range, into: 0 })
    }

    fn same(&self, same: WriteSame) -> Result<Shape, Failure> {
        if same.protect != 0 {
            return Err(Sense::cdb_bit(1, 7).into());
        }
        // ANC_SUP is 0; PBDATA and LBDATA are obsolete.
        if same.anchor {
            return Err(Sense::cdb_bit(1, 4).into());
        }
        // LBPWS and LBPWS10 are 1 where there is thin provisioning.
        if same.unmap && !self.is_thin() {
            return Err(Sense::cdb_bit(1, 3).into());
        }
        if same.pbdata_lbdata != 0 {
            return Err(Sense::cdb_bit(1, 2).into());
        }
        let blocks = u64::from(same.blocks);
        self.inside(same.lba, blocks)?;
        // WSNZ is 1.
        if blocks == 0 || blocks > self.limits.write_same {
            return Err(Sense::cdb_field(length_at(same.size)).into());
        }
        let range = Range { start: same.lba, end: same.lba + blocks, exclusive: false };
        let out = if same.ndob { 0 } else { self.geometry.block_size.into() };
        Ok(Shape { out, into: 0, range: Some(range) })
    }
}
