//! Task management functions on a channel. SRP r16a §5.7; SAM-5 §7.
//!
//! The answer to a function promises that nothing more of the commands that it ended touches the initiator's memory or the
//! medium: it waits for the logical unit, and for READs and WRITEs that are on the way, on every channel of the nexus.

use std::rc::{Rc, Weak};

use everywire_scsi::target::{Function as Scsi, Response};

use super::channel::Channel;
use super::nexus::SharedNexus;
use super::slot::Phase;
use crate::iu::{Function, ResponseCode, TaskManagement};

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
        self.with(slot, |s| s.phase = Phase::Managing);
        let Some(nexus) = self.nexus.borrow().clone() else { return };
        let function = match manage.function {
            Function::AbortTask => Scsi::AbortTask { tag: manage.task_tag },
            Function::AbortTaskSet => Scsi::AbortTaskSet,
            Function::ClearTaskSet => Scsi::ClearTaskSet,
            Function::LunReset => Scsi::LunReset,
            Function::ClearAca => Scsi::ClearAca,
            Function::Unknown(_) => return self.managed(slot, &manage, ResponseCode::NOT_SUPPORTED),
        };
        let covered = cover(&nexus, &manage, function);
        let serial = self.with(slot, |s| s.serial);
        let channel = self.clone();
        self.shared.rt.spawn(async move {
            let response = nexus.scsi.manage(manage.lun, function).await;
            for channel in nexus.channels() {
                channel.stop_waiting();
            }
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

/// Marks the commands of the nexus that a function covers.
fn cover(nexus: &SharedNexus, manage: &TaskManagement, function: Scsi) -> Vec<Covered> {
    let mut covered = Vec::new();
    if function == Scsi::ClearAca {
        return covered;
    }
    for channel in nexus.channels() {
        let mut state = channel.state.borrow_mut();
        for (slot, s) in state.slots.iter_mut().enumerate() {
            let meant = match function {
                Scsi::AbortTask { tag } => s.asked.tag == tag && s.asked.lun == manage.lun,
                _ => s.asked.lun == manage.lun,
            };
            if meant && s.phase.is_under_way() {
                s.aborted = true;
                let channel = Rc::downgrade(&channel);
                covered.push(Covered { channel, slot: slot as u32, serial: s.serial });
            }
        }
    }
    covered
}
