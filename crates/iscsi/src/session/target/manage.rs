//! Task management of a session: what is aborted, what is answered, when, and in which order.
//!
//! Read RFC 7143 §4.2.3.3, §4.2.3.4, §11.5 and §11.6; SAM-5 §7. A function applies to commands with a lower CmdSN, and one on many
//! tasks waits for all of them. Tasks of this session end here without a status; those of others, and what runs on the medium, are
//! the nexus's. The answer says that nothing of the tasks moves any more, and waits until that is so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::task::{Ended, Task};
use super::{Action, Numbers, Session, TaskId, before};
use crate::pdu::{FINAL, Pdu, RejectReason, TaskFunction, TaskRequest, TaskResponse, TaskResult};
use crate::session::scsi::Function;

/// How long a function waits for Data-Out of tasks that it ended. An initiator must send it (RFC 7143 §4.2.3.3), but Linux's does not
/// (its FastAbort is on by default), and has no more than 15 seconds' patience.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Functions that have no answer.
#[derive(Default)]
pub(super) struct Managing {
    begun: HashMap<u64, Begun>,
    /// Those that came before commands which they cover.
    deferred: Vec<(TaskRequest, Pdu)>,
}

impl Managing {
    pub(super) fn len(&self) -> usize {
        self.begun.len() + self.deferred.len()
    }

    /// A task that a function without an answer has ended.
    fn ended(&self, itt: u32) -> Option<TaskId> {
        self.begun.values().flat_map(|one| &one.ended).find(|task| task.itt == itt).copied()
    }

    /// Tasks whose data is still to come.
    fn draining(&self) -> Vec<TaskId> {
        let mut all: Vec<TaskId> = self.begun.values().flat_map(|one| &one.draining).copied().collect();
        all.sort_unstable_by_key(|task| task.serial);
        all.dedup();
        all
    }

    /// When a function has waited long enough for data.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.begun.values().filter(|one| !one.draining.is_empty()).filter_map(|one| one.until).min()
    }
}

/// A function that was carried out, but for what it waits for.
struct Begun {
    itt: u32,
    /// Tasks that it ended.
    ended: Vec<TaskId>,
    /// Tasks that it waits for, because their data is still to come: its own, and those of earlier functions.
    draining: Vec<TaskId>,
    /// Until when that is waited for.
    until: Option<Instant>,
    /// What the nexus says.
    result: Option<TaskResult>,
}

impl Session {
    pub(super) fn task_management(&mut self, now: Instant, request: &TaskRequest, pdu: &Pdu) {
        if !pdu.immediate {
            self.window.advance();
        }
        if self.nexus.is_none() {
            return self.reject(pdu, RejectReason::Protocol);
        }
        let Some(function) = TaskFunction::from_code(request.flags & 0x7f) else {
            return self.answer(request.itt, TaskResult::NotSupported);
        };
        tracing::debug!("{}: {function} of LUN {:#x}", self.identity.initiator, request.lun);
        if pdu.immediate && self.is_early(function, request.cmd_sn) {
            return self.managing.deferred.push((*request, pdu.clone()));
        }
        self.carry_out(now, function, request);
    }

    /// Whether commands that a function covers are still to come (RFC 7143 §4.2.3.3, target step b). A number that cannot come is not
    /// waited for.
    fn is_early(&self, function: TaskFunction, cmd_sn: u32) -> bool {
        use TaskFunction::{AbortTaskSet, ClearTaskSet, LunReset, WarmReset};
        let many = matches!(function, AbortTaskSet | ClearTaskSet | LunReset | WarmReset);
        let beyond = self.window.max().wrapping_add(1);
        many && before(self.window.expected(), cmd_sn) && !before(beyond, cmd_sn)
    }

    /// Commands have come: functions that waited for them may be due.
    pub(super) fn manage_deferred(&mut self, now: Instant) {
        let expected = self.window.expected();
        while let Some(at) =
            self.managing.deferred.iter().position(|(request, _)| !before(expected, request.cmd_sn))
        {
            let (request, pdu) = self.managing.deferred.remove(at);
            self.task_management(now, &request, &pdu);
        }
    }

    fn carry_out(&mut self, now: Instant, function: TaskFunction, request: &TaskRequest) {
        let (lun, number) = (request.lun, request.cmd_sn);
        let earlier = |task: &Task| Session::is_before(task.cmd_sn, number) || !task.counted();
        let mut draining = self.managing.draining();
        let (on, ended) = match function {
            TaskFunction::AbortTask => match self.abort_one(now, request) {
                Ok(task) => {
                    draining.retain(|one| *one == task.id);
                    (Function::AbortTask { tag: task.id.serial }, vec![task])
                }
                Err(result) => return self.answer(request.itt, result),
            },
            TaskFunction::ClearAca => (Function::ClearAca, Vec::new()),
            // §11.6.1: level 0 has no reassignment.
            TaskFunction::Reassign => return self.answer(request.itt, TaskResult::NoReassignment),
            TaskFunction::WarmReset | TaskFunction::ColdReset => {
                (Function::TargetReset, self.abort(true, earlier))
            }
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LunReset => {
                let on = match function {
                    TaskFunction::AbortTaskSet => Function::AbortTaskSet,
                    TaskFunction::ClearTaskSet => Function::ClearTaskSet,
                    _ => Function::LunReset,
                };
                (on, self.abort(true, |task| task.lun == lun && earlier(task)))
            }
        };
        let Some(nexus) = &self.nexus else { return };
        let future = nexus.manage(lun, on);
        draining.extend(ended.iter().filter(|one| one.draining).map(|one| one.id));
        self.serial += 1;
        self.managing.begun.insert(
            self.serial,
            Begun {
                itt: request.itt,
                ended: ended.iter().map(|one| one.id).collect(),
                draining,
                // A READ of this side's ends, or its connection does.
                until: (!self.params.rdma).then(|| now + DRAIN_LIMIT),
                result: None,
            },
        );
        match future.into_ready() {
            Ok(result) => self.managed(self.serial, result),
            Err(future) => self.actions.push_back(Action::Manage(self.serial, future)),
        }
        if function == TaskFunction::ColdReset {
            self.actions.push_back(Action::ColdReset);
        }
    }

    /// The task that ABORT TASK means, which has ended here; or what to answer (RFC 7143 §11.5.1, §11.6.1).
    fn abort_one(&mut self, now: Instant, request: &TaskRequest) -> Result<Ended, TaskResult> {
        if let Some(task) = self.tasks.get(&request.ref_tag) {
            if task.lun != request.lun {
                return Err(TaskResult::Rejected);
            }
            let id = task.id;
            // Data-Out of one task is not waited for, and finds nobody; a READ must end.
            let ended = self.abort(self.params.rdma, |task| task.id == id);
            return ended.into_iter().next().ok_or(TaskResult::NoTask);
        }
        // What it asks for is under way already: its answer has the same to wait for.
        if let Some(id) = self.managing.ended(request.ref_tag) {
            return Ok(Ended { id, draining: false });
        }
        // A command that has not come counts as received and aborted, if its number may still come.
        if Session::is_before(request.ref_cmd_sn, request.cmd_sn) && self.window.skip(request.ref_cmd_sn) {
            self.deliver_held(now);
            return Err(TaskResult::Complete);
        }
        Err(TaskResult::NoTask)
    }

    /// The nexus has carried a function out.
    pub fn managed(&mut self, id: u64, result: TaskResult) {
        if let Some(begun) = self.managing.begun.get_mut(&id) {
            begun.result = Some(result);
            self.answer_if_done(id);
        }
    }

    /// The last of an aborted task's data has come.
    pub(super) fn drained(&mut self, task: TaskId) {
        let waiting = |one: &Begun| one.draining.contains(&task);
        let mut waiters: Vec<u64> =
            self.managing.begun.iter().filter(|(_, one)| waiting(one)).map(|(&id, _)| id).collect();
        waiters.sort_unstable();
        for id in waiters {
            if let Some(begun) = self.managing.begun.get_mut(&id) {
                begun.draining.retain(|one| *one != task);
            }
            self.answer_if_done(id);
        }
    }

    /// Gives up data that should have come by now.
    pub(super) fn give_up_draining(&mut self, now: Instant) {
        let late = |one: &Begun| one.until.is_some_and(|until| until <= now);
        let late = self.managing.begun.values().filter(|one| late(one));
        let mut tasks: Vec<TaskId> = late.flat_map(|one| one.draining.iter().copied()).collect();
        tasks.sort_unstable_by_key(|task| task.serial);
        for task in tasks {
            tracing::debug!("{}: no Data-Out of aborted task {:#x}", self.identity.initiator, task.itt);
            self.actions.push_back(Action::Release(task));
            self.drained(task);
        }
    }

    fn answer_if_done(&mut self, id: u64) {
        let done = self.managing.begun.get(&id).filter(|begun| begun.draining.is_empty());
        if let Some(&Begun { itt, result: Some(result), .. }) = done {
            self.managing.begun.remove(&id);
            self.answer(itt, result);
        }
    }

    fn answer(&mut self, itt: u32, result: TaskResult) {
        if self.closing {
            return;
        }
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let response =
            TaskResponse { flags: FINAL, response: result.code(), itt, stat_sn, exp_cmd_sn, max_cmd_sn };
        self.actions.push_back(Action::Send(Pdu::new(response)));
    }
}
