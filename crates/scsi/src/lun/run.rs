//! Runs a command that may run: which code carries it out, and what it gives back.
//!
//! Plain reads and writes go another way, [`LogicalUnit::at_once`], which costs nothing when the backend is memory.

use std::sync::Arc;

use everywire_block::{BlockError, BlockOp, IoBuf, IoFuture, IoResult};

use super::{LogicalUnit, Plan, flag};
use crate::cdb::Command;
use crate::inquiry::{self, Subject};
use crate::lock;
use crate::mode::SenseRequest;
use crate::sense::{Asc, Failure, Sense, SenseKey};
use crate::status::Status;
use crate::target::NexusInner;
use crate::target::path::Path;

/// What a command came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) status: Status,
    /// Bytes that the command had for the initiator, whether it would take them or not.
    pub(crate) data: u64,
}

impl Done {
    pub(crate) const GOOD: Self = Self { status: Status::GOOD, data: 0 };

    pub(crate) fn data(len: u64) -> Self {
        Self { status: Status::GOOD, data: len }
    }
}

/// A command that runs.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) unit: &'a Arc<LogicalUnit>,
    /// The task, in the task set.
    pub(crate) task: u64,
    pub(crate) nexus: &'a NexusInner,
    pub(crate) path: &'a Path,
    pub(crate) plan: &'a Plan,
    pub(crate) memory: &'a IoBuf,
    /// Bytes that came.
    pub(crate) out: u64,
    /// Bytes that may go.
    pub(crate) into: u64,
}

impl LogicalUnit {
    /// A read or write of whole blocks: the backend's answer, and what the command then came to.
    pub(crate) fn at_once(
        &self,
        plan: &Plan,
        memory: &IoBuf,
        out: u64,
        into: u64,
    ) -> Option<(Done, IoFuture<IoResult>)> {
        let backend = &self.config.backend;
        match plan.command {
            Command::Read(io) if into == plan.into && into != 0 && !(io.fua && self.is(flag::WRITE_BACK)) => {
                let memory = memory.slice(0, into as usize);
                Some((Done::data(plan.into), backend.read(self.bytes(io.lba), &memory)))
            }
            Command::Write(io) | Command::WriteAtomic(io) if out == plan.out && out != 0 => {
                let memory = memory.slice(0, out as usize);
                Some((Done::GOOD, backend.write(self.bytes(io.lba), &memory, self.through(io.fua))))
            }
            _ => None,
        }
    }

    /// Whether a write must reach the medium before its status: FUA, or no write-back cache.
    pub(super) fn through(&self, fua: bool) -> bool {
        fua || !self.is(flag::WRITE_BACK)
    }

    /// What a backend's error means.
    pub(crate) fn failed(&self, error: &BlockError) -> Failure {
        let sense = match error {
            BlockError::OutOfRange { .. } => Sense::illegal(Asc::LBA_OUT_OF_RANGE),
            BlockError::ReadOnly { .. } => Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED),
            BlockError::NoSpace { .. } => Sense::new(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED),
            BlockError::Io { op: BlockOp::Read, offset, .. } => {
                let lba = offset / u64::from(self.geometry.block_size);
                Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).with_information(lba)
            }
            BlockError::Io { .. } | BlockError::FlushLost { .. } => {
                Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR)
            }
            _ => Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE),
        };
        tracing::warn!("volume {}: {error}: {sense}", self.name());
        sense.into()
    }
}

impl Run<'_> {
    pub(crate) async fn run(&self) -> Result<Done, Failure> {
        match self.plan.command {
            Command::Read(io) => self.read(io).await,
            Command::Write(io) => self.write(io).await,
            // Never in part: what is shorter than the transfer length was not what the initiator meant.
            Command::WriteAtomic(io) => {
                self.whole()?;
                self.write(io).await
            }
            Command::OrWrite(io) => self.or_write(io).await,
            Command::WriteAndVerify(io) => self.write_and_verify(io).await,
            Command::Verify(io) => self.verify(io).await,
            Command::CompareAndWrite(io) => self.compare_and_write(io).await,
            Command::WriteSame(same) => self.write_same(same).await,
            Command::Unmap { .. } => self.unmap().await,
            Command::GetLbaStatus { lba, alloc } => Ok(self.lba_status(lba, alloc)),
            Command::PreFetch { .. } => Ok(Done::GOOD),
            Command::SynchronizeCache { immed, .. } => self.synchronize(immed).await,
            Command::StartStop { .. } => self.start_stop().await,
            Command::Sanitize { .. } => self.sanitize().await,
            Command::PersistentReserveOut { action, scope, kind, .. } => {
                self.reserve_out(action, scope, kind).await
            }
            Command::ExtendedCopy { .. } => self.extended_copy().await,
            Command::ModeSelect { .. } => self.mode_select().await,
            _ => self.quick(),
        }
    }

    /// Commands that wait for nothing.
    fn quick(&self) -> Result<Done, Failure> {
        let unit = self.unit;
        match self.plan.command {
            Command::RequestSense { descriptor, alloc } => {
                Ok(self.give(&self.pending_sense().emit(descriptor), alloc))
            }
            Command::Inquiry { evpd, page, alloc } => {
                let data = if evpd {
                    inquiry::page(unit, &self.nexus.port, page)?
                } else {
                    inquiry::standard(Subject::Unit(unit), &self.nexus.port)
                };
                Ok(self.give(&data, alloc))
            }
            Command::ModeSense { size, llbaa, dbd, control, page, subpage, alloc } => {
                let request = SenseRequest { size, llbaa, dbd, control, page, subpage };
                Ok(self.give(&unit.mode().sense(&request)?, alloc))
            }
            Command::Reserve { .. } => self.reserve_spc2(true),
            Command::Release { .. } => self.reserve_spc2(false),
            Command::PreventAllow { prevent } => Ok(self.prevent(prevent)),
            Command::PersistentReserveIn { action, alloc } => self.reserve_in(action, alloc),
            Command::ReadCapacity10 { .. } => Ok(self.give(&unit.capacity_10(), 8u32)),
            Command::ReadCapacity16 { alloc, .. } => Ok(self.give(&unit.capacity_16(), alloc)),
            Command::ReadDefectData { size, lists, format, alloc } => {
                Ok(self.give(&super::report::defects(size, lists, format), alloc))
            }
            Command::CopyStatus { list_id, alloc } => self.copy_status(list_id, alloc),
            Command::CopyOperatingParameters { alloc } => Ok(self.give(&super::copy::parameters(), alloc)),
            Command::ReportTargetPortGroups { extended, alloc } => {
                Ok(self.give(&super::report::port_groups(&self.nexus.target, extended), alloc))
            }
            Command::ReportSupportedOpcodes { timeouts, options, opcode, action, alloc } => {
                let data = unit.supported_opcodes(timeouts, options, opcode, action)?;
                Ok(self.give(&data, alloc))
            }
            Command::ReportSupportedTmfs { extended, alloc } => {
                Ok(self.give(&super::report::task_management(extended), alloc))
            }
            _ => Ok(Done::GOOD),
        }
    }

    /// Parameter data, cut at the allocation length and at what the initiator takes.
    pub(super) fn give(&self, data: &[u8], alloc: impl Into<u64>) -> Done {
        let len = (data.len() as u64).min(alloc.into());
        self.memory.store(0, &data[..len.min(self.into) as usize]);
        Done::data(len)
    }

    /// The parameter list; one that the initiator did not send whole is refused.
    pub(super) fn list(&self) -> Result<Vec<u8>, Failure> {
        if self.out < self.plan.out {
            return Err(Sense::list_length().into());
        }
        let mut list = vec![0; self.plan.out as usize];
        self.memory.load(0, &mut list);
        Ok(list)
    }

    /// Refuses a command whose blocks did not all come.
    pub(super) fn whole(&self) -> Result<(), Failure> {
        if self.out < self.plan.out {
            return Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into());
        }
        Ok(())
    }

    /// Turns a backend's answer into the command's.
    pub(super) fn judged(&self, result: IoResult) -> Result<(), Failure> {
        result.map_err(|error| self.unit.failed(&error))
    }

    /// SPC-4 §6.39: a unit attention, what makes the unit not ready, or nothing.
    fn pending_sense(&self) -> Sense {
        if let Some(asc) = self.path.attentions.take() {
            return Sense::attention(asc);
        }
        if self.unit.is(flag::SANITIZING) {
            return self.unit.sanitizing();
        }
        if self.unit.is(flag::EJECTED) {
            return Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
        }
        Sense::new(SenseKey::NO_SENSE, Asc::NONE)
    }

    async fn mode_select(&self) -> Result<Done, Failure> {
        let Command::ModeSelect { size, page_format, save, .. } = self.plan.command else {
            return Ok(Done::GOOD);
        };
        let list = self.list()?;
        let mode = self.unit.mode();
        let flags = mode.select(size, page_format, save, &list)?;
        if flags != mode.flags {
            self.unit.set_mode(flags);
            // What the cache took before it was turned off is to be as durable as what comes now.
            self.on_medium().await?;
            // SPC-4 §6.9.1: for every other nexus.
            self.unit.attention(Asc::MODE_PARAMETERS_CHANGED, |path| path.nexus != self.path.nexus);
        }
        Ok(Done::GOOD)
    }

    fn reserve_spc2(&self, reserve: bool) -> Result<Done, Failure> {
        let mut state = lock(&self.unit.state);
        let name = &self.path.name;
        let agreed = if reserve {
            state.reservations.reserve_spc2(name)
        } else {
            state.reservations.release_spc2(name)
        };
        self.unit.set(flag::RESERVED, state.reservations.is_reserved());
        if agreed { Ok(Done::GOOD) } else { Err(Failure::Status(Status::RESERVATION_CONFLICT)) }
    }
}
