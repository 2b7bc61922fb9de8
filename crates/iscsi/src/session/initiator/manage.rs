//! Task management asked of the target, and the ends of the commands that it covers.
//!
//! Read RFC 7143 §4.2.3.2–§4.2.3.4, §11.5 and §11.6. After FUNCTION COMPLETE no response comes for what was aborted, so the commands
//! that a function covers end here with it; responses that came before it have ended theirs. A function covers what went out before
//! it; what was asked for before it and has not gone out is kept back until its answer.

use std::time::Instant;

use super::{Action, Command, Failure, Kind, Session};
use crate::pdu::{FINAL, NO_TAG, Pdu, TaskFunction, TaskRequest, TaskResult};

/// How often commands are looked at within the time that they may take.
pub(super) const LOOKS: u32 = 4;

/// A function without an answer.
pub(super) struct Management {
    /// Commands that end with it.
    covers: Vec<u32>,
    /// Those of its logical unit that were asked for before it and have not gone out.
    kept: Vec<(u32, Command)>,
    /// ABORT TASK: that the task does not exist means that nothing more of it comes, either.
    single: bool,
    /// Asked by this session for a command that has taken too long, and when.
    overdue_since: Option<Instant>,
}

impl Session {
    /// A task management function on a logical unit or the target, sent at once. Its own tag.
    pub fn manage(&mut self, function: TaskFunction, lun: u64) -> u32 {
        let means = |at: u64| match function {
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LunReset => at == lun,
            TaskFunction::WarmReset | TaskFunction::ColdReset => true,
            TaskFunction::AbortTask | TaskFunction::ClearAca | TaskFunction::Reassign => false,
        };
        let mut covers: Vec<u32> = self
            .requests
            .iter()
            .filter_map(|(&itt, kind)| match kind {
                Kind::Scsi(scsi) if scsi.sent.is_some() && means(scsi.lun) => Some(itt),
                _ => None,
            })
            .collect();
        covers.sort_unstable();
        let (kept, queue): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.queue).into_iter().partition(|(_, one)| means(one.lun));
        self.queue = queue.into();
        // Earlier than any that may come: a task that has ended does not exist.
        let none = (NO_TAG, self.cmd_sn.wrapping_sub(1));
        self.ask(function, lun, none, Management { covers, kept, single: false, overdue_since: None })
    }

    /// ABORT TASK of a command; one that has not gone out ends here. The function's tag.
    pub fn abort(&mut self, task: u32) -> u32 {
        match self.requests.get(&task) {
            Some(Kind::Scsi(scsi)) => match scsi.sent {
                Some((_, cmd_sn)) => self.abort_sent(task, scsi.lun, cmd_sn, None),
                None => {
                    self.withdraw(task);
                    self.answered_here(TaskResult::Complete)
                }
            },
            _ => self.answered_here(TaskResult::NoTask),
        }
    }

    /// Nobody wants this command any more: it does not go out, if it has not.
    pub fn withdraw(&mut self, task: u32) {
        let queued = |one: &(u32, Command)| one.0 == task;
        let kept = self.requests.values().any(|kind| match kind {
            Kind::Management(function) => function.kept.iter().any(queued),
            _ => false,
        });
        if kept || self.queue.iter().any(queued) {
            self.queue.retain(|one| !queued(one));
            self.end_aborted(task);
        }
    }

    /// A command that the binding cannot carry out.
    pub fn refuse(&mut self, task: u32, failure: Failure) {
        self.queue.retain(|(itt, _)| *itt != task);
        if self.requests.remove(&task).is_some() {
            self.actions.push_back(Action::Done(task, Err(failure)));
        }
    }

    fn answered_here(&mut self, result: TaskResult) -> u32 {
        let itt = self.next_tag();
        self.actions.push_back(Action::Managed(itt, Ok(result)));
        itt
    }

    fn abort_sent(&mut self, task: u32, lun: u64, cmd_sn: u32, overdue_since: Option<Instant>) -> u32 {
        let function = Management { covers: vec![task], kept: Vec::new(), single: true, overdue_since };
        self.ask(TaskFunction::AbortTask, lun, (task, cmd_sn), function)
    }

    fn ask(&mut self, function: TaskFunction, lun: u64, of: (u32, u32), management: Management) -> u32 {
        let itt = self.tag(Kind::Management(management));
        let request = TaskRequest {
            flags: FINAL | function.code(),
            lun,
            itt,
            ref_tag: of.0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn: of.1,
            exp_data_sn: 0,
        };
        self.actions.push_back(Action::Send(Pdu::new(request).immediate()));
        itt
    }

    /// A function has its answer, or was rejected.
    pub(super) fn managed(&mut self, itt: u32, function: Management, result: Result<TaskResult, Failure>) {
        let ended = match result {
            Ok(TaskResult::Complete) => true,
            Ok(TaskResult::NoTask) => function.single,
            _ => false,
        };
        let kept = function.kept.into_iter().filter(|(itt, _)| self.requests.contains_key(itt));
        let kept: Vec<(u32, Command)> = kept.collect();
        if ended {
            let tags = function.covers.into_iter().chain(kept.into_iter().map(|(itt, _)| itt));
            tags.for_each(|task| self.end_aborted(task));
        } else {
            kept.into_iter().rev().for_each(|one| self.queue.push_front(one));
        }
        match function.overdue_since {
            None => self.actions.push_back(Action::Managed(itt, result)),
            Some(_) if ended => {}
            Some(_) => self.close(format!("ABORT TASK of a command that has taken too long: {result:?}")),
        }
    }

    fn end_aborted(&mut self, task: u32) {
        if matches!(self.requests.get(&task), Some(Kind::Scsi(_))) {
            self.requests.remove(&task);
            self.actions.push_back(Action::Done(task, Err(Failure::Aborted)));
        }
    }

    /// Aborts commands that have taken too long; a function that has leaves nothing but the session's end (RFC 7143 §7.4).
    pub(super) fn look_for_overdue(&mut self, now: Instant) {
        let limit = self.options.command_timeout;
        let mut overdue = Vec::new();
        let mut stuck = false;
        for (&itt, kind) in &mut self.requests {
            match kind {
                Kind::Scsi(scsi) => {
                    if let Some((since, cmd_sn)) = scsi.sent.filter(|(since, _)| *since + limit <= now)
                        && !std::mem::replace(&mut scsi.overdue, true)
                    {
                        overdue.push((since, itt, scsi.lun, cmd_sn));
                    }
                }
                Kind::Management(function) => {
                    stuck |= function.overdue_since.is_some_and(|since| since + limit <= now);
                }
                Kind::Ping | Kind::Text | Kind::Logout => {}
            }
        }
        if stuck {
            return self.close(format!("no answer to ABORT TASK for {limit:?}"));
        }
        overdue.sort_unstable();
        for (_, itt, lun, cmd_sn) in overdue {
            tracing::warn!("command {itt:#x} at LUN {lun:#x} has no status after {limit:?}: ABORT TASK");
            self.abort_sent(itt, lun, cmd_sn, Some(now));
        }
    }
}
