//! Task management of a session: what is aborted, what is answered, and in which order.
//!
//! Read RFC 7143 §4.2.3.4, §11.5 and §11.6; SAM-5 §7. A function applies to commands with a lower CmdSN. Tasks of this session
//! end here without a status; those of others, and what runs on the medium, are the nexus's.

use std::time::Instant;

use everywire_block::IoFuture;

use super::{Action, Numbers, Session};
use crate::pdu::{FINAL, Pdu, RejectReason, TaskFunction, TaskRequest, TaskResponse, TaskResult};
use crate::session::scsi::Function;

impl Session {
    pub(super) fn task_management(&mut self, now: Instant, request: &TaskRequest, pdu: &Pdu) {
        if !pdu.immediate {
            self.window.advance();
        }
        if self.nexus.is_none() {
            return self.reject(pdu, RejectReason::Protocol);
        }
        let function = TaskFunction::from_code(request.flags & 0x7f);
        tracing::debug!("{}: {function:?} of LUN {:#x}", self.identity.initiator, request.lun);
        let on = match function {
            Some(TaskFunction::AbortTask) => match self.abort_one(now, request) {
                Ok(tag) => Function::AbortTask { tag },
                Err(result) => return self.answer(request.itt, result),
            },
            Some(TaskFunction::AbortTaskSet) => Function::AbortTaskSet,
            Some(TaskFunction::ClearTaskSet) => Function::ClearTaskSet,
            Some(TaskFunction::ClearAca) => Function::ClearAca,
            Some(TaskFunction::LunReset) => Function::LunReset,
            Some(TaskFunction::WarmReset | TaskFunction::ColdReset) => Function::TargetReset,
            // §11.6.1: level 0 has no reassignment.
            Some(TaskFunction::Reassign) => return self.answer(request.itt, TaskResult::NoReassignment),
            None => return self.answer(request.itt, TaskResult::NotSupported),
        };
        let (lun, number) = (request.lun, request.cmd_sn);
        match on {
            Function::TargetReset => {
                self.abort(|task| Session::is_before(task.cmd_sn, number) || !task.counted())
            }
            Function::AbortTaskSet | Function::ClearTaskSet | Function::LunReset => {
                self.abort(|task| task.lun == lun && Session::is_before(task.cmd_sn, number));
            }
            Function::AbortTask { .. } | Function::ClearAca => {}
        }
        let Some(nexus) = &self.nexus else { return };
        let future = nexus.manage(lun, on);
        self.wait_for(request.itt, future);
        if function == Some(TaskFunction::ColdReset) {
            self.actions.push_back(Action::ColdReset);
        }
    }

    /// The tag of the task that ABORT TASK means, which has ended here; or what to answer (RFC 7143 §11.5.1, §11.6.1).
    fn abort_one(&mut self, now: Instant, request: &TaskRequest) -> Result<u64, TaskResult> {
        if let Some(task) = self.tasks.get(&request.ref_tag) {
            if task.lun != request.lun {
                return Err(TaskResult::Rejected);
            }
            let (tag, id) = (task.tag(), task.id);
            self.abort(|task| task.id == id);
            return Ok(tag);
        }
        // A command that has not come counts as received and aborted, if its number may still come.
        if Session::is_before(request.ref_cmd_sn, request.cmd_sn) && self.window.skip(request.ref_cmd_sn) {
            self.deliver_held(now);
            return Err(TaskResult::Complete);
        }
        Err(TaskResult::NoTask)
    }

    fn wait_for(&mut self, itt: u32, future: IoFuture<TaskResult>) {
        match future.into_ready() {
            Ok(result) => self.answer(itt, result),
            Err(future) => {
                self.serial += 1;
                self.managing.insert(self.serial, itt);
                self.actions.push_back(Action::Manage(self.serial, future));
            }
        }
    }

    /// A task management function's future ended.
    pub fn managed(&mut self, id: u64, result: TaskResult) {
        if let Some(itt) = self.managing.remove(&id) {
            self.answer(itt, result);
        }
    }

    fn answer(&mut self, itt: u32, result: TaskResult) {
        if self.closing {
            return;
        }
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.status_numbers();
        let response =
            TaskResponse { flags: FINAL, response: result.code(), itt, stat_sn, exp_cmd_sn, max_cmd_sn };
        self.actions.push_back(Action::Send(Pdu::new(response)));
    }
}
