//! What one command goes through: table, buffer, data, logical unit, response. SRP r16a §5.5 and §5.6.
//!
//! RDMA WRITEs come before the response on the same queue pair, so the initiator never sees the response before the data. A
//! command with more descriptors than the send queue has room for is moved in parts (see [`super::data`]).

use std::rc::Rc;

use everywire_block::IoBuf;
use everywire_scsi::Attribute;
use everywire_scsi::target::{Outcome, Request, Submitted};
use everywire_verbs::peer_log::About;

use super::channel::Channel;
use super::slot::{Phase, Slot};
use crate::iu::{Buffer, Command};
use crate::target::channel::{Asked, Fault, buffer_of, check_data, check_lengths};

/// Task attributes of SRP_CMD.
const HEAD_OF_QUEUE: u8 = 1;
const ORDERED: u8 = 2;

impl Channel {
    pub(super) fn with<T>(&self, slot: u32, change: impl FnOnce(&mut Slot) -> T) -> T {
        change(&mut self.state.borrow_mut().slots[slot as usize])
    }

    /// A command has come.
    pub(super) fn begin(self: &Rc<Self>, slot: u32, command: Box<Command>) {
        let asked = Asked::of(&command);
        let described = self.describe(&command);
        let next = self.with(slot, |s| {
            s.asked = asked;
            s.command = Some(command);
            match described {
                Ok(Some(segments)) => {
                    s.segments = segments;
                    Ok(true)
                }
                Ok(None) => {
                    s.phase = Phase::NeedsTable;
                    Ok(false)
                }
                Err(fault) => Err(fault),
            }
        });
        match next {
            Ok(true) => self.submit(slot),
            Ok(false) => self.go_on(slot),
            Err(fault) => self.refuse(slot, &fault),
        }
    }

    /// The descriptors of a command's data; `None` if the rest of them must be fetched.
    fn describe(&self, command: &Command) -> Result<Option<Vec<crate::iu::Descriptor>>, Fault> {
        check_data(command, self.shared.options.max_transfer)?;
        match buffer_of(command) {
            Buffer::None | Buffer::Immediate { .. } => Ok(Some(Vec::new())),
            Buffer::Direct(descriptor) => Ok(Some(vec![*descriptor])),
            Buffer::Indirect(indirect) if indirect.is_whole() => {
                check_lengths(&indirect.inline, indirect.len)?;
                Ok(Some(indirect.inline.clone()))
            }
            Buffer::Indirect(_) => Ok(None),
        }
    }

    /// Answers a command that is not described as it must be.
    pub(super) fn refuse(self: &Rc<Self>, slot: u32, fault: &Fault) {
        let asked = self.with(slot, |s| s.asked);
        if self.shared.log.may(About::Trouble) {
            tracing::warn!("{self}: command {:#x}: {fault}", asked.tag);
        }
        self.with(slot, |s| {
            s.command = None;
            s.outcome = None;
            s.data = None;
            s.phase = Phase::NeedsResponse;
        });
        self.go_on(slot);
    }

    /// Gives the command to its logical unit.
    pub(super) fn submit(self: &Rc<Self>, slot: u32) {
        let Some(command) = self.with(slot, |s| s.command.take()) else { return };
        let Some(nexus) = self.nexus.borrow().clone() else { return };
        let immediate = match &command.out {
            Buffer::Immediate { len } => {
                let (iu, iu_len) = self.with(slot, |s| (s.iu.unwrap_or_default(), s.iu_len));
                let found = self.state.borrow().protocol.immediate(*len, iu_len);
                match found {
                    Ok(offset) => {
                        let at = iu as usize * self.parts.stride + offset;
                        Some(IoBuf::new(self.parts.iu_memory.clone(), at, *len as usize))
                    }
                    Err(fault) => return self.refuse(slot, &fault),
                }
            }
            _ => None,
        };
        let request = Request {
            lun: command.lun,
            tag: self.with(slot, |s| s.arrival),
            attribute: match command.attribute {
                HEAD_OF_QUEUE => Attribute::HeadOfQueue,
                ORDERED => Attribute::Ordered,
                _ => Attribute::Simple,
            },
            cdb: &command.cdb,
            data_out: command.out.len(),
            data_in: command.into.len(),
        };
        match nexus.scsi.submit(&request) {
            Submitted::Done(outcome) => self.finished(slot, Some(outcome)),
            Submitted::Task(task) => {
                let (out, into) = (task.data_out(), task.data_in());
                let phase = self.with(slot, |s| {
                    s.task = Some(task);
                    s.phase = match (out.max(into), immediate) {
                        (0, _) => {
                            s.memory = Some(self.nothing.clone());
                            Phase::Running
                        }
                        (_, Some(data)) => {
                            s.memory = Some(data);
                            Phase::Running
                        }
                        _ => Phase::NeedsBuffer,
                    };
                    s.phase
                });
                if phase == Phase::Running {
                    self.run(slot);
                } else {
                    self.go_on(slot);
                }
            }
        }
    }

    /// Takes a request as far as it goes; what cannot go on waits in line.
    pub(super) fn go_on(self: &Rc<Self>, slot: u32) {
        let queued = {
            let state = self.state.borrow();
            let wants_buffer = state.slots[slot as usize].phase.wants_buffer();
            if wants_buffer { !state.waiting.is_empty() } else { !state.outgoing.is_empty() }
        };
        if queued || !self.resume(slot) {
            let state = &mut *self.state.borrow_mut();
            let wants_buffer = state.slots[slot as usize].phase.wants_buffer();
            let line = if wants_buffer { &mut state.waiting } else { &mut state.outgoing };
            line.push_back(slot);
        }
    }

    /// Goes on with a waiting request; false if it still cannot.
    pub(super) fn resume(self: &Rc<Self>, slot: u32) -> bool {
        let Some((phase, aborted)) =
            self.state.borrow().slots.get(slot as usize).map(|s| (s.phase, s.aborted))
        else {
            return true;
        };
        if aborted && phase.may_stop() {
            self.finished(slot, None);
            return true;
        }
        match phase {
            Phase::NeedsTable => self.fetch_table(slot),
            Phase::NeedsBuffer => self.take_buffer(slot),
            Phase::NeedsRead => self.read_some(slot),
            Phase::NeedsWrite => self.write_some(slot),
            Phase::NeedsResponse => self.respond(slot),
            // Only these wait.
            _ => true,
        }
    }

    /// Has the work done; the answer goes out in this turn if it is there in this turn.
    pub(super) fn run(self: &Rc<Self>, slot: u32) {
        let (task, memory, data, serial) = self.with(slot, |s| {
            s.phase = Phase::Running;
            (s.task.take(), s.memory.clone(), s.data.clone(), s.serial)
        });
        let (Some(task), Some(memory)) = (task, memory) else { return };
        match task.execute(memory).into_ready() {
            Ok(outcome) => self.finished(slot, outcome),
            Err(future) => {
                let channel = self.clone();
                self.shared.rt.spawn(async move {
                    let outcome = future.await;
                    drop(data);
                    let same =
                        channel.state.borrow().slots.get(slot as usize).is_some_and(|s| s.serial == serial);
                    if same && !channel.is_over() {
                        channel.finished(slot, outcome);
                        channel.pump();
                        channel.post();
                    }
                });
            }
        }
    }

    /// A command has ended; without an outcome it was aborted, and nothing is sent.
    pub(super) fn finished(self: &Rc<Self>, slot: u32, outcome: Option<Outcome>) {
        let Some(outcome) = outcome else {
            self.state.borrow_mut().protocol.silent();
            self.release(slot);
            self.tell_ended();
            return;
        };
        self.with(slot, |s| {
            (s.segment, s.moved, s.task) = (0, 0, None);
            s.phase = if outcome.data_in > 0 { Phase::NeedsWrite } else { Phase::NeedsResponse };
            s.outcome = Some(outcome);
        });
        self.go_on(slot);
    }

    /// Posts the response; false if the send queue has no room for it.
    pub(super) fn respond(self: &Rc<Self>, slot: u32) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.room == 0 {
            return false;
        }
        let s = &mut state.slots[slot as usize];
        let bytes = match (s.outcome.take(), s.managed.take()) {
            (Some(outcome), _) => state.protocol.respond(&s.asked, &outcome),
            (None, Some((manage, code))) => state.protocol.managed(&manage, code),
            (None, None) => state.protocol.refuse(&s.asked),
        };
        let entries = s.entries;
        self.put_response(state, slot, &bytes);
        state.slots[slot as usize].entries += entries;
        self.tell_ended();
        true
    }

    /// The initiator has the response.
    pub(super) fn answered(self: &Rc<Self>, slot: u32) {
        if (slot as usize) < self.state.borrow().slots.len() {
            self.release(slot);
        }
    }

    /// Whoever waits for commands to end looks again.
    fn tell_ended(&self) {
        if let Some(nexus) = &*self.nexus.borrow() {
            nexus.ended.notify_waiters();
        }
    }
}
