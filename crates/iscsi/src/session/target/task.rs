//! SCSI commands of a session: from the PDU, over unsolicited data and what is fetched, to the outcome.
//!
//! Read RFC 7143 §4.2.5.2 (data transfer), §11.3, §11.4, §11.7, §13.10–§13.14. The rules for data that nobody asked for are here;
//! fetching the rest is the binding's. A violation ends the task with the sense data of §11.4.7.2.

use bytes::Bytes;
use everywire_block::{IoBuf, SharedBuffer};

use super::{Action, Response, Session, TaskId};
use crate::pdu::{Ahs, DataOut, FINAL, Header, NO_TAG, Pdu, RejectReason, ScsiCommand};
use crate::session::scsi::{self, Cdb, Command, Outcome, Submitted};

/// Additional sense codes of the transport's own conditions (RFC 7143 §11.4.7.2).
const UNEXPECTED_DATA: (u8, u8) = (0x0c, 0x0c);
const INCORRECT_AMOUNT: (u8, u8) = (0x0c, 0x0d);

/// A command without status.
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) lun: u64,
    pub(super) cmd_sn: u32,
    immediate: bool,
    edtl: u32,
    job: Option<Box<dyn scsi::Task>>,
    memory: Option<IoBuf>,
    asked_for_memory: bool,
    /// Bytes that the job needs.
    need: u32,
    /// Bytes received without being asked for, all at the start of the data.
    unsolicited: u32,
    /// More of them will come.
    open: bool,
    next_data_sn: u32,
    /// Those that came before there was memory.
    pieces: Vec<Bytes>,
    stored: usize,
    fetching: bool,
    complete: bool,
}

/// A task that was aborted.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) id: TaskId,
    /// Its data is still to come, and is waited for.
    pub(super) draining: bool,
}

impl Task {
    /// Whether it takes a place in the window.
    pub(super) fn counted(&self) -> bool {
        !self.immediate
    }

    pub(super) fn give(&mut self, memory: IoBuf) {
        self.memory = Some(memory);
        for piece in std::mem::take(&mut self.pieces) {
            self.store(&piece);
        }
    }

    pub(super) fn fetched(&mut self) {
        self.fetching = false;
        self.complete = true;
    }

    /// Unsolicited data, in order; beyond what the job needs it is dropped.
    fn take(&mut self, data: Bytes) {
        self.unsolicited += data.len() as u32;
        match self.memory {
            Some(_) => self.store(&data),
            None => self.pieces.push(data),
        }
    }

    fn store(&mut self, data: &[u8]) {
        let Some(memory) = &self.memory else { return };
        let room = (self.need as usize).saturating_sub(self.stored);
        let data = &data[..data.len().min(room)];
        memory.store(self.stored, data);
        self.stored += data.len();
    }
}

impl Session {
    /// Whether a command of this tag is under way, or waits for its turn.
    pub fn knows(&self, itt: u32) -> bool {
        let is =
            |(pdu, _): &super::Held| matches!(pdu.header, Header::ScsiCommand(header) if header.itt == itt);
        self.tasks.contains_key(&itt) || self.window.holds(is)
    }

    /// A SCSI command, in its turn.
    pub(super) fn command(&mut self, header: &ScsiCommand, pdu: Pdu) {
        let counted = !pdu.immediate;
        let refuse = |this: &mut Session, reason| {
            this.reject(&pdu, reason);
            if counted {
                this.window.advance();
            }
        };
        if self.nexus.is_none() {
            // A discovery session knows text and logout only (RFC 7143 §4.3).
            return refuse(self, RejectReason::Protocol);
        }
        if header.itt == NO_TAG || self.tasks.contains_key(&header.itt) {
            return refuse(self, RejectReason::InvalidField);
        }
        let Ok(ahs) = Ahs::parse(&pdu.ahs) else { return refuse(self, RejectReason::InvalidField) };
        let (read, write) = (header.flags & ScsiCommand::READ != 0, header.flags & ScsiCommand::WRITE != 0);
        let is_final = header.flags & FINAL != 0;
        let says_data = !is_final || !pdu.data.is_empty();
        if says_data && !write {
            return refuse(self, RejectReason::InvalidField);
        }
        self.serial += 1;
        let id = TaskId { itt: header.itt, serial: self.serial };
        let task = Task {
            id,
            lun: header.lun,
            cmd_sn: header.cmd_sn,
            immediate: pdu.immediate,
            edtl: header.edtl,
            job: None,
            memory: None,
            asked_for_memory: false,
            need: 0,
            unsolicited: 0,
            open: !is_final,
            next_data_sn: 0,
            pieces: Vec::new(),
            stored: 0,
            fetching: false,
            complete: false,
        };
        self.tasks.insert(header.itt, task);
        let len = pdu.data.len() as u64;
        let limit = u64::from(self.params.first_burst.min(header.edtl));
        let forbidden = len > 0 && !self.params.immediate_data || !is_final && self.params.initial_r2t;
        if forbidden || len > limit {
            let (asc, ascq) = if forbidden { UNEXPECTED_DATA } else { INCORRECT_AMOUNT };
            return self.finished(id, Some(scsi::aborted(asc, ascq)));
        }
        let mut cdb = Cdb::from(header.cdb);
        cdb.extend_from_slice(&ahs.more_cdb);
        let command = Command {
            lun: header.lun,
            tag: id.serial,
            attribute: header.flags & ScsiCommand::ATTRIBUTE,
            cdb,
            data_out: if write { header.edtl } else { 0 },
            data_in: ahs.read_length.unwrap_or(if read { header.edtl } else { 0 }),
        };
        self.submit(id, &command, pdu.data);
    }

    fn submit(&mut self, id: TaskId, command: &Command, data: Bytes) {
        let Some(nexus) = &self.nexus else { return };
        match nexus.submit(command) {
            Submitted::Done(outcome) => self.finished(id, Some(outcome)),
            Submitted::Task(job) => {
                let Some(task) = self.task(id) else { return };
                task.need = job.data_out().min(command.data_out);
                task.job = Some(job);
                if !data.is_empty() {
                    task.take(data);
                }
                self.progress(id);
            }
        }
    }

    /// Data-Out that nobody asked for (RFC 7143 §11.7.2).
    pub(super) fn unsolicited(&mut self, pdu: Pdu) {
        let Header::DataOut(header) = pdu.header else { return };
        if header.ttt != NO_TAG {
            // The binding knows its transfer tags: this one ended, or never was.
            return;
        }
        if !self.tasks.contains_key(&header.itt) {
            return self.unsolicited_for_held(&header, pdu);
        }
        let first_burst = self.params.first_burst;
        let Some(task) = self.tasks.get_mut(&header.itt) else { return };
        let id = task.id;
        let total = u64::from(task.unsolicited) + pdu.data.len() as u64;
        if !task.open {
            let (asc, ascq) = UNEXPECTED_DATA;
            return self.finished(id, Some(scsi::aborted(asc, ascq)));
        }
        // In order, and each once: DataPDUInOrder and DataSequenceInOrder are always Yes here.
        let in_order = header.data_sn == task.next_data_sn && header.offset == task.unsolicited;
        if !in_order || total > u64::from(first_burst.min(task.edtl)) {
            let (asc, ascq) = INCORRECT_AMOUNT;
            return self.finished(id, Some(scsi::aborted(asc, ascq)));
        }
        task.next_data_sn += 1;
        task.take(pdu.data);
        task.open = header.flags & FINAL == 0;
        self.progress(id);
    }

    /// Data of a command that waits for its turn waits with it; any other is of a command that has ended.
    fn unsolicited_for_held(&mut self, header: &DataOut, pdu: Pdu) {
        let first_burst = self.params.first_burst as usize;
        for (command, data) in self.window.held() {
            let Header::ScsiCommand(of) = command.header else { continue };
            let held: usize = data.iter().map(|one| one.data.len().max(1)).sum();
            if of.itt == header.itt && held + pdu.data.len() <= first_burst {
                return data.push(pdu);
            }
        }
    }

    /// Takes a task as far as it goes.
    pub(super) fn progress(&mut self, id: TaskId) {
        let Some(task) = self.task(id) else { return };
        let Some(job) = &task.job else { return };
        let len = task.need.max(job.data_in()) as usize;
        if len > 0 && task.memory.is_none() {
            if !task.asked_for_memory {
                task.asked_for_memory = true;
                self.actions.push_back(Action::Allocate { task: id, len });
            }
            return;
        }
        if task.open || task.fetching {
            return;
        }
        if task.stored < task.need as usize && !task.complete {
            task.fetching = true;
            let (lun, from, to) = (task.lun, task.stored, task.need as usize);
            return self.actions.push_back(Action::GetData { task: id, lun, from, to });
        }
        let Some(job) = task.job.take() else { return };
        let memory = task.memory.clone().unwrap_or_else(|| SharedBuffer::new(Vec::new()).io());
        match job.execute(memory).into_ready() {
            Ok(outcome) => self.finished(id, outcome),
            Err(future) => self.actions.push_back(Action::Run(id, future)),
        }
    }

    /// What was asked for did not come as it should: the task ends with the sense data of RFC 7143 §11.4.7.2.
    pub fn transfer_failed(&mut self, id: TaskId) {
        self.drained(id);
        let (asc, ascq) = INCORRECT_AMOUNT;
        self.finished(id, Some(scsi::aborted(asc, ascq)));
    }

    /// A task's future ended.
    pub fn finished(&mut self, id: TaskId, outcome: Option<Outcome>) {
        if self.task(id).is_none() {
            return;
        }
        let Some(task) = self.tasks.remove(&id.itt) else { return };
        if task.counted() {
            self.window.advance();
        }
        let Some(outcome) = outcome else { return self.actions.push_back(Action::Release(id)) };
        self.actions.push_back(Action::Respond(Response {
            task: id,
            lun: task.lun,
            data_in: outcome.data_in as usize,
            status: outcome.status,
            sense: outcome.sense.into(),
            residual: outcome.residual,
        }));
    }

    /// Ends tasks without a status; data that is still to come for them is drained if `drain`.
    pub(super) fn abort(&mut self, drain: bool, which: impl Fn(&Task) -> bool) -> Vec<Ended> {
        let all = self.tasks.values().filter(|task| which(task));
        let mut ended: Vec<Ended> =
            all.map(|task| Ended { id: task.id, draining: drain && task.fetching }).collect();
        ended.sort_unstable_by_key(|one| one.id.serial);
        for &Ended { id, draining } in &ended {
            let Some(task) = self.tasks.remove(&id.itt) else { continue };
            if task.counted() {
                self.window.advance();
            }
            self.actions.push_back(if draining { Action::Drain(id) } else { Action::Release(id) });
        }
        ended
    }

    pub(super) fn abort_all(&mut self) {
        self.abort(false, |_| true);
    }
}
