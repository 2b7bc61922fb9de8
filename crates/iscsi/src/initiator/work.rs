//! What callers wait for, across connections: commands in their order, each answered exactly once.
//!
//! A command stays here until its status came, or a function that covers it was answered. While a session is up it is known by its
//! tag too; after a loss every command without status is sent again (RFC 7143 §7.4), and requests that only meant the lost session
//! fail. A caller that goes away takes its command along, if that has not gone out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use everywire_verbs::ids::IdMap;
use everywire_verbs::rt::Notify;

use super::{IscsiError, Span};
use crate::pdu::{LogoutReason, NO_TAG, TaskFunction, TaskResult};
use crate::session::initiator::{Command, Failure, Session, Status};
use crate::session::scsi::Residual;

/// Data of a command.
#[derive(Clone)]
pub enum Transfer {
    /// None.
    None,
    /// So many bytes come, at most.
    In(usize),
    /// These go.
    Out(Bytes),
    /// What comes goes here: [`Completion::data`] stays empty.
    Into(Span),
    /// These go.
    From(Span),
}

impl Transfer {
    /// Bytes that go.
    pub(crate) fn data_out(&self) -> usize {
        match self {
            Transfer::Out(bytes) => bytes.len(),
            Transfer::From(span) => span.len(),
            _ => 0,
        }
    }

    /// Bytes that may come.
    pub(crate) fn data_in(&self) -> usize {
        match self {
            Transfer::In(want) => *want,
            Transfer::Into(span) => span.len(),
            _ => 0,
        }
    }

    /// What goes.
    pub(crate) fn out(&self) -> Bytes {
        match self {
            Transfer::Out(bytes) => bytes.clone(),
            Transfer::From(span) => span.bytes(),
            _ => Bytes::new(),
        }
    }
}

/// A command's end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completion {
    /// SCSI status.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Lengths that differ.
    pub residual: Residual,
    /// Bytes that came.
    pub came: usize,
    /// They, unless they lie in the caller's memory ([`Transfer::Into`]).
    pub data: Vec<u8>,
}

enum Answer {
    Command(Completion),
    Managed(TaskResult),
    Text(Bytes, Option<u32>),
}

/// Something that a caller waits for.
pub(super) struct Slot {
    job: Job,
    answer: RefCell<Option<Result<Answer, IscsiError>>>,
    ready: Notify,
    /// Its place in the order of all that was asked for.
    id: u64,
    /// Its tag in the session that has it.
    itt: Cell<Option<u32>>,
    /// It was answered, or nobody waits for that any more.
    over: Cell<bool>,
}

impl Slot {
    /// Answers it, once.
    fn fill(&self, answer: Result<Answer, IscsiError>) {
        self.itt.set(None);
        if !self.over.replace(true) {
            *self.answer.borrow_mut() = Some(answer);
            self.ready.notify_one();
        }
    }

    async fn wait(&self) -> Result<Answer, IscsiError> {
        loop {
            let answer = self.answer.borrow_mut().take();
            match answer {
                Some(answer) => return answer,
                None => self.ready.notified().await,
            }
        }
    }
}

enum Job {
    Command(Command, Transfer),
    Manage(TaskFunction, u64),
    Abort(Rc<Slot>),
    Text(Bytes, Option<u32>),
}

/// Names a command to [`Initiator::abort`](super::Initiator::abort), from when it is asked for.
#[derive(Clone, Default)]
pub struct TagCell(Rc<RefCell<Option<Rc<Slot>>>>);

/// All of it.
#[derive(Default)]
pub(crate) struct Work {
    /// What no session has, in its order.
    unsent: RefCell<VecDeque<Rc<Slot>>>,
    /// What the session has.
    tags: RefCell<IdMap<u32, Rc<Slot>>>,
    /// Tags whose callers have gone.
    given_up: RefCell<Vec<u32>>,
    next: Cell<u64>,
    poke: Notify,
    logout: Cell<Option<LogoutReason>>,
    over: Cell<bool>,
    ended: RefCell<Option<IscsiError>>,
    gone: Notify,
    reconnects: Cell<u64>,
}

/// Gives up what its caller stops waiting for.
pub(super) struct Waiting<'a> {
    work: &'a Work,
    slot: Rc<Slot>,
}

impl Waiting<'_> {
    async fn answer(self) -> Result<Answer, IscsiError> {
        self.slot.wait().await
    }

    /// The end of a command.
    pub(super) async fn completion(self) -> Result<Completion, IscsiError> {
        match self.answer().await? {
            Answer::Command(completion) => Ok(completion),
            _ => Err(IscsiError::Ended),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.slot.over.set(true);
        // What was sent stays known by its tag, so that the answer finds nobody and does no harm.
        if let Some(itt) = self.slot.itt.get() {
            self.work.given_up.borrow_mut().push(itt);
            self.work.poke.notify_one();
        }
    }
}

impl Work {
    /// Puts something in line. No part of this waits, so that what is asked for is moved once.
    fn put(&self, job: Job, cell: Option<&TagCell>) -> Result<Waiting<'_>, IscsiError> {
        if let Some(error) = &*self.ended.borrow() {
            return Err(error.clone());
        }
        let id = self.next.get();
        self.next.set(id + 1);
        let slot = Slot {
            job,
            answer: RefCell::default(),
            ready: Notify::default(),
            id,
            itt: Cell::default(),
            over: Cell::default(),
        };
        let slot = Rc::new(slot);
        if let Some(cell) = cell {
            *cell.0.borrow_mut() = Some(slot.clone());
        }
        self.unsent.borrow_mut().push_back(slot.clone());
        self.poke.notify_one();
        Ok(Waiting { work: self, slot })
    }

    /// Puts a command in line.
    pub(super) fn command(
        &self,
        lun: u64,
        cdb: &[u8],
        transfer: Transfer,
        cell: Option<&TagCell>,
    ) -> Result<Waiting<'_>, IscsiError> {
        let len = |len: usize| {
            u32::try_from(len).map_err(|_| IscsiError::Argument(format!("{len} bytes in one command")))
        };
        if cdb.is_empty() || cdb.len() > crate::pdu::MAX_CDB {
            return Err(IscsiError::Argument(format!("a CDB of {} bytes", cdb.len())));
        }
        let (data_out, data_in) = (len(transfer.data_out())?, len(transfer.data_in())?);
        let mut first = [0; 16];
        let (head, more) = cdb.split_at(cdb.len().min(first.len()));
        first[..head.len()].copy_from_slice(head);
        let more_cdb = Bytes::copy_from_slice(more);
        let command = Command { lun, cdb: first, more_cdb, attribute: 1, data_out, data_in };
        self.put(Job::Command(command, transfer), cell)
    }

    pub(super) async fn manage(&self, function: TaskFunction, lun: u64) -> Result<TaskResult, IscsiError> {
        match self.put(Job::Manage(function, lun), None)?.answer().await? {
            Answer::Managed(result) => Ok(result),
            _ => Err(IscsiError::Ended),
        }
    }

    /// Aborts a command; one that no session has ends here.
    pub(super) async fn abort(&self, cell: &TagCell) -> Result<TaskResult, IscsiError> {
        let Some(slot) = cell.0.borrow().clone().filter(|slot| !slot.over.get()) else {
            return Ok(TaskResult::NoTask);
        };
        if slot.itt.get().is_none() {
            slot.fill(Err(Failure::Aborted.into()));
            return Ok(TaskResult::Complete);
        }
        match self.put(Job::Abort(slot), None)?.answer().await? {
            Answer::Managed(result) => Ok(result),
            _ => Err(IscsiError::Ended),
        }
    }

    pub(super) async fn ask(
        &self,
        data: Bytes,
        tag: Option<u32>,
    ) -> Result<(Bytes, Option<u32>), IscsiError> {
        match self.put(Job::Text(data, tag), None)?.answer().await? {
            Answer::Text(data, more) => Ok((data, more)),
            _ => Err(IscsiError::Ended),
        }
    }

    pub(super) async fn logout(&self, reason: LogoutReason) {
        self.over.set(true);
        self.logout.set(Some(reason));
        self.poke.notify_one();
        while self.ended.borrow().is_none() {
            self.gone.notified().await;
        }
        self.gone.notify_one();
    }

    pub(crate) fn poke(&self) -> &Notify {
        &self.poke
    }

    /// Gives the session what it has not seen, in order; `add` takes the data of each command.
    pub(crate) fn feed(&self, session: &mut Session, mut add: impl FnMut(u32, u64, &Transfer)) {
        for itt in self.given_up.take() {
            session.withdraw(itt);
        }
        let mut tags = self.tags.borrow_mut();
        self.unsent.borrow_mut().retain(|slot| {
            if slot.over.get() {
                return false;
            }
            let itt = match &slot.job {
                // A function is not to wait for what it may be there to end.
                Job::Command(..) | Job::Text(..) if !session.has_room() => return true,
                Job::Command(command, transfer) => {
                    let itt = session.command(command.clone());
                    add(itt, command.lun, transfer);
                    itt
                }
                Job::Manage(function, lun) => session.manage(*function, *lun),
                Job::Abort(task) => session.abort(task.itt.get().unwrap_or(NO_TAG)),
                Job::Text(data, tag) => session.text(data.clone(), *tag),
            };
            slot.itt.set(Some(itt));
            tags.insert(itt, slot.clone());
            false
        });
        drop(tags);
        if let Some(reason) = self.logout.take() {
            session.logout(reason);
        }
    }

    fn answer(&self, itt: u32, answer: Result<Answer, IscsiError>) {
        if let Some(slot) = self.tags.borrow_mut().remove(&itt) {
            slot.fill(answer);
        }
    }

    /// A command ended, for which so many bytes came; `data` are they, unless they lie in its caller's memory.
    pub(crate) fn done(&self, itt: u32, result: Result<Status, Failure>, came: usize, mut data: Vec<u8>) {
        if !data.is_empty() {
            self.place(itt, &mut data);
        }
        let completion = |Status { status, sense, residual }| {
            Answer::Command(Completion { status, sense, residual, came, data })
        };
        self.answer(itt, result.map(completion).map_err(IscsiError::from));
    }

    /// Puts data where the command's caller wants it.
    fn place(&self, itt: u32, data: &mut Vec<u8>) {
        let tags = self.tags.borrow();
        if let Some(Job::Command(_, Transfer::Into(span))) = tags.get(&itt).map(|slot| &slot.job) {
            span.fill(data);
            data.clear();
        }
    }

    pub(crate) fn managed(&self, itt: u32, result: Result<TaskResult, Failure>) {
        self.answer(itt, result.map(Answer::Managed).map_err(IscsiError::from));
    }

    pub(crate) fn text(&self, itt: u32, result: Result<(Bytes, Option<u32>), Failure>) {
        self.answer(itt, result.map(|(data, more)| Answer::Text(data, more)).map_err(IscsiError::from));
    }

    /// The session was lost: its commands are to be sent again.
    pub(super) fn lost(&self) {
        self.given_up.borrow_mut().clear();
        let mut unsent = self.unsent.borrow_mut();
        unsent.extend(self.tags.borrow_mut().drain().map(|(_, slot)| slot));
        unsent.retain(|slot| {
            slot.itt.set(None);
            let again = matches!(slot.job, Job::Command(..));
            if !again {
                slot.fill(Err(IscsiError::Lost("the session was lost".to_owned())));
            }
            again
        });
        unsent.make_contiguous().sort_unstable_by_key(|slot| slot.id);
    }

    pub(super) fn came_back(&self) {
        self.reconnects.set(self.reconnects.get() + 1);
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.get()
    }

    /// The caller wants no session any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// No session will be there any more.
    pub(super) fn end(&self, error: &IscsiError) {
        *self.ended.borrow_mut() = Some(error.clone());
        let unsent = std::mem::take(&mut *self.unsent.borrow_mut());
        let sent = std::mem::take(&mut *self.tags.borrow_mut());
        sent.into_values().chain(unsent).for_each(|slot| slot.fill(Err(error.clone())));
        self.gone.notify_one();
    }
}
