//! Task management functions on a channel. SRP r16a §5.7; SAM-5 §7.
//!
//! A function ends commands that came before it, on every channel of the nexus; ABORT TASK one of its own channel, because tags repeat
//! from channel to channel. Its answer promises that nothing more of them touches the initiator's memory or the medium: it waits for
//! the logical unit, and for READs and WRITEs that are on the way.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use everywire_scsi::target::{Function as Scsi, Response};

use super::channel::Channel;
use super::nexus::SharedNexus;
use super::slot::{Backlog, Phase, Slot};
use crate::iu::{Function, ResponseCode, TaskManagement};
use crate::target::channel::Received;

/// A command that a function covers.
struct Covered {
    channel: Weak<Channel>,
    slot: u32,
    serial: u64,
}

impl Covered {
    fn is_under_way(&self) -> bool {
        self.channel.upgrade().is_some_and(|channel| {
            let state = channel.state.borrow();
            let slot = state.slots.get(self.slot as usize);
            slot.is_some_and(|s| s.serial == self.serial && s.phase.is_under_way())
        })
    }
}

impl Channel {
    /// A task management function has come.
    pub(super) fn manage(self: &Rc<Self>, slot: u32, manage: TaskManagement) {
        let (serial, arrival) = self.with(slot, |s| {
            s.phase = Phase::Managing;
            (s.serial, s.arrival)
        });
        let Some(nexus) = self.nexus.borrow().clone() else { return };
        let function = match manage.function {
            Function::AbortTask => Scsi::AbortTask { tag: self.arrival_of(&manage) },
            Function::AbortTaskSet => Scsi::AbortTaskSet,
            Function::ClearTaskSet => Scsi::ClearTaskSet,
            Function::LunReset => Scsi::LunReset,
            Function::ClearAca => Scsi::ClearAca,
            Function::Unknown(_) => return self.managed(slot, &manage, ResponseCode::NOT_SUPPORTED),
        };
        // All of it now: what comes from here on is not concerned.
        let covered = cover(&nexus, manage.lun, function, arrival);
        let ended = nexus.scsi.manage_before(manage.lun, function, arrival);
        for channel in nexus.channels() {
            channel.stop_waiting();
        }
        let channel = self.clone();
        self.shared.rt.spawn(async move {
            let response = ended.await;
            while covered.iter().any(Covered::is_under_way) {
                nexus.ended.notified().await;
            }
            let same = channel.state.borrow().slots.get(slot as usize).is_some_and(|s| s.serial == serial);
            if same && !channel.is_over() {
                let code = match response {
                    Response::Complete => ResponseCode::COMPLETE,
                    Response::NoLun => ResponseCode::INVALID_FIELDS,
                };
                channel.managed(slot, &manage, code);
                channel.post();
            }
        });
    }

    /// The command of this channel that ABORT TASK means; 0, which none has, if it is not there.
    fn arrival_of(&self, manage: &TaskManagement) -> u64 {
        let state = self.state.borrow();
        let means = |s: &&Slot| s.asked.tag == manage.task_tag && s.asked.lun == manage.lun;
        let found = state.slots.iter().filter(|s| s.phase.is_under_way()).find(means);
        found.map_or(0, |s| s.arrival)
    }

    /// Ends commands that found no slot.
    fn end_backlog(&self, means: impl Fn(&Backlog) -> bool) {
        let state = &mut *self.state.borrow_mut();
        let (ended, kept) = std::mem::take(&mut state.backlog).into_iter().partition(means);
        state.backlog = kept;
        let ended: VecDeque<Backlog> = ended;
        for one in ended {
            state.protocol.silent();
            state.receives.push(self.parts.receive(one.iu.0));
        }
    }

    /// Ends what was waiting and is aborted.
    fn stop_waiting(self: &Rc<Self>) {
        let stopped: Vec<u32> = {
            let state = &mut *self.state.borrow_mut();
            let slots = &state.slots;
            let stops = |slot: u32| slots.get(slot as usize).is_some_and(|s| s.aborted && s.phase.may_stop());
            let lines = [&state.waiting, &state.outgoing];
            let stopped: Vec<u32> =
                lines.into_iter().flatten().copied().filter(|&slot| stops(slot)).collect();
            state.waiting.retain(|slot| !stopped.contains(slot));
            state.outgoing.retain(|slot| !stopped.contains(slot));
            stopped
        };
        stopped.into_iter().for_each(|slot| self.finished(slot, None));
        self.poke.notify_one();
    }

    /// Answers a function, as soon as there is room.
    fn managed(self: &Rc<Self>, slot: u32, manage: &TaskManagement, code: ResponseCode) {
        self.with(slot, |s| (s.managed, s.phase) = (Some((*manage, code)), Phase::NeedsResponse));
        self.go_on(slot);
    }
}

/// Marks the commands of the nexus that a function covers; those that have no slot end here.
fn cover(nexus: &SharedNexus, lun: u64, function: Scsi, arrival: u64) -> Vec<Covered> {
    let means = |at: u64, lun_of: u64| match function {
        Scsi::ClearAca => false,
        Scsi::AbortTask { tag } => at == tag,
        _ => lun_of == lun && at < arrival,
    };
    let mut covered = Vec::new();
    for channel in nexus.channels() {
        channel.end_backlog(|one| match &one.request {
            Received::Command(command) => means(one.arrival, command.lun),
            _ => false,
        });
        let mut state = channel.state.borrow_mut();
        for (slot, s) in state.slots.iter_mut().enumerate() {
            if s.phase.is_under_way() && means(s.arrival, s.asked.lun) {
                s.aborted = true;
                let channel = Rc::downgrade(&channel);
                covered.push(Covered { channel, slot: slot as u32, serial: s.serial });
            }
        }
    }
    covered
}
