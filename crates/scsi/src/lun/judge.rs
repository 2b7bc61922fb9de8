//! Whether a command may run: everything that is asked of it when it comes. SAM-5 §5.3.3, SPC-4 §5.6, §5.11 and §5.13.
//!
//! The order is unit attention, operation code, port state, reservation, readiness, write protection; then `check` holds
//! the CDB's fields against the unit. A command that passes has a [`Plan`].

use super::{LogicalUnit, flag};
use crate::cdb::Command;
use crate::cdb::table::Spec;
use crate::lock;
use crate::sense::{Asc, Failure, KeySpecific, Sense, SenseKey};
use crate::status::Status;
use crate::target::path::Path;
use crate::target::{AccessState, Port};
use crate::task_set::Range;

/// A command that may run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) command: Command,
    /// Bytes that it takes from the initiator.
    pub(crate) out: u64,
    /// Most bytes that it gives.
    pub(crate) into: u64,
    /// The blocks that it touches.
    pub(crate) range: Option<Range>,
}

impl LogicalUnit {
    /// Judges a command of `path` that came through `port`.
    pub(crate) fn judge(
        &self,
        path: &Path,
        port: &Port,
        parsed: Result<Command, Sense>,
    ) -> Result<Plan, Failure> {
        self.poll_left_behind(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        let always = parsed.is_ok_and(|command| command.is_always_answered());
        if !always
            && path.attentions.is_pending()
            && let Some(asc) = path.attentions.take()
        {
            return Err(Sense::attention(asc).into());
        }
        let command = parsed?;
        if !self.has(&command) {
            return Err(Sense::illegal(Asc::INVALID_OPERATION_CODE).into());
        }
        if !always {
            self.may(path, port, &command)?;
        }
        self.check(command)
    }

    fn may(&self, path: &Path, port: &Port, command: &Command) -> Result<(), Failure> {
        let state = port.group.state();
        if let Some(sense) = state.refusal()
            && !matches!(command, Command::ReportTargetPortGroups { .. })
            && (command.needs_medium() || state != AccessState::Standby)
        {
            return Err(sense.into());
        }
        if self.is(flag::RESERVED) && lock(&self.state).reservations.conflicts(&path.name, command.access()) {
            return Err(Failure::Status(Status::RESERVATION_CONFLICT));
        }
        if self.is(flag::SANITIZING) && !command.allowed_while_sanitizing() {
            return Err(self.sanitizing().into());
        }
        if self.is(flag::SANITIZE_FAILED)
            && command.needs_medium()
            && !matches!(command, Command::Sanitize { .. } | Command::TestUnitReady)
        {
            return Err(Sense::new(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_FAILED).into());
        }
        if self.is(flag::EJECTED) && command.needs_medium() {
            return Err(Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT).into());
        }
        if command.changes_medium() {
            if self.is(flag::READ_ONLY) {
                return Err(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED).into());
            }
            if self.is(flag::SWP) {
                return Err(Sense::new(SenseKey::DATA_PROTECT, Asc::SOFTWARE_WRITE_PROTECTED).into());
            }
        }
        Ok(())
    }

    /// NOT READY while SANITIZE runs, with its progress (SBC-3 §4.11.2).
    pub(crate) fn sanitizing(&self) -> Sense {
        let done = lock(&self.state).sanitized;
        let mut sense = Sense::new(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
        sense.specific = Some(KeySpecific::Progress(done));
        sense
    }

    /// Whether this unit has the command: some need what not every backend can do.
    pub(crate) fn has(&self, command: &Command) -> bool {
        match command {
            Command::Unmap { .. } => self.is_thin(),
            Command::WriteAtomic(_) => self.limits.atomic != 0,
            _ => true,
        }
    }

    /// The same, of an entry of the table of commands.
    pub(crate) fn has_spec(&self, spec: &Spec) -> bool {
        match spec.opcode {
            crate::cdb::opcode::UNMAP => self.is_thin(),
            crate::cdb::opcode::WRITE_ATOMIC_16 => self.limits.atomic != 0,
            _ => true,
        }
    }

    /// Sense data go in descriptor format.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.is(flag::D_SENSE)
    }

    /// TAS of the control mode page.
    pub(crate) fn task_aborted_status(&self) -> bool {
        self.is(flag::TAS)
    }
}
