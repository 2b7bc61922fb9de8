//! A target's session of one connection: control PDUs in, [`Action`]s out.
//!
//! Read RFC 7143 §4.2 and §11. The binding hands in what came ([`Session::control`]), carries out every [`Session::poll`]ed
//! action and reports: memory given ([`Session::memory`]), data fetched ([`Session::fetched`]), a future's end
//! ([`Session::finished`], [`Session::managed`]). One mutation, then drain. It reads no clock: `now` comes in.

mod alive;
mod discover;
mod manage;
mod task;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use everywire_block::{IoBuf, IoFuture};
use everywire_verbs::ids::IdMap;

pub use discover::{Directory, Listed};

use super::scsi::{Nexus, Outcome, Residual};
use super::{Arrival, Numbers, Window, before};
use crate::keys::text::TextBuffer;
use crate::keys::{Negotiation, Params};
use crate::login::Identity;
use crate::login::target::Established;
use crate::pdu::{FINAL, Header, NO_TAG, Pdu, Reject, RejectReason, ScsiResponse, TaskResult};

/// Immediate commands at once, beyond the window.
const MAX_IMMEDIATE: usize = 64;

/// Names a task to the binding; never reused within a session, as tags are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId {
    /// Initiator Task Tag.
    pub itt: u32,
    serial: u64,
}

/// The end of a command, for the binding to send: its data, then its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The task.
    pub task: TaskId,
    /// Logical unit.
    pub lun: u64,
    /// Bytes from the start of its memory that go to the initiator first.
    pub data_in: usize,
    /// SCSI status.
    pub status: u8,
    /// Sense data.
    pub sense: Bytes,
    /// Lengths that differ.
    pub residual: Residual,
}

impl Response {
    /// Flags O and U, and the residual count (RFC 7143 §11.4.5).
    pub fn residual_bits(&self) -> (u8, u32) {
        match self.residual {
            Residual::None => (0, 0),
            Residual::Under(count) => (ScsiResponse::UNDERFLOW, count),
            Residual::Over(count) => (ScsiResponse::OVERFLOW, count),
        }
    }
}

/// What the binding is to do, in this order.
pub enum Action {
    /// Send a control PDU.
    Send(Pdu),
    /// Give this task `len` bytes of memory: [`Session::memory`], now or later.
    Allocate {
        /// The task.
        task: TaskId,
        /// Bytes.
        len: usize,
    },
    /// Fetch bytes `from..to` of the initiator's data into the task's memory, then [`Session::fetched`].
    GetData {
        /// The task.
        task: TaskId,
        /// Logical unit, for R2T.
        lun: u64,
        /// First byte.
        from: usize,
        /// End.
        to: usize,
    },
    /// Await the future, then [`Session::finished`].
    Run(TaskId, IoFuture<Option<Outcome>>),
    /// Await the future, then [`Session::managed`].
    Manage(u64, IoFuture<TaskResult>),
    /// Put the data and send the status; then the task's memory is free.
    Respond(Response),
    /// The task was aborted: nothing of it is sent any more, its memory is free.
    Release(TaskId),
    /// The task was aborted, and data that [`Action::GetData`] asked for is still to come: it is taken and dropped, then
    /// [`Session::fetched`]. A later [`Action::Release`] gives it up.
    Drain(TaskId),
    /// From now on MaxRecvDataSegmentLength of the peer is this.
    MaxSend(usize),
    /// TARGET COLD RESET: end every session of the target.
    ColdReset,
    /// Send what is queued, then close.
    Close(String),
}

/// How a target treats its sessions.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Commands that an initiator may have outstanding (MaxCmdSN).
    pub queue_depth: u32,
    /// Silence after which the target asks whether the initiator lives.
    pub ping_after: Duration,
    /// How long it then waits.
    pub ping_timeout: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let ping = Duration::from_secs(15);
        Self { queue_depth: 128, ping_after: ping, ping_timeout: ping }
    }
}

/// A PDU that waits for its turn, with the data that came behind it.
type Held = (Pdu, Vec<Pdu>);

/// The session.
pub struct Session {
    identity: Identity,
    cid: u16,
    params: Params,
    negotiation: Negotiation,
    options: SessionOptions,
    nexus: Option<Box<dyn Nexus>>,
    directory: Rc<dyn Directory>,
    window: Window<Held>,
    stat_sn: u32,
    tasks: IdMap<u32, task::Task>,
    serial: u64,
    managing: manage::Managing,
    text_in: TextBuffer,
    text_out: discover::Answer,
    alive: alive::Alive,
    actions: VecDeque<Action>,
    closing: bool,
}

impl Session {
    /// After the login. Without a nexus only text can be exchanged (discovery).
    pub fn new(
        now: Instant,
        established: Established,
        options: SessionOptions,
        nexus: Option<Box<dyn Nexus>>,
        directory: Rc<dyn Directory>,
    ) -> Session {
        Session {
            identity: established.identity,
            cid: established.cid,
            params: established.params,
            negotiation: established.negotiation,
            window: Window::new(established.cmd_sn, options.queue_depth),
            stat_sn: established.stat_sn,
            tasks: IdMap::default(),
            serial: 0,
            managing: manage::Managing::default(),
            text_in: TextBuffer::default(),
            text_out: discover::Answer::default(),
            alive: alive::Alive::new(now),
            actions: VecDeque::new(),
            closing: false,
            options,
            nexus,
            directory,
        }
    }

    /// What was agreed.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Who this is with.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Commands that have no status yet.
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// The next action. A PDU gets its numbers now: statuses are numbered in the order in which they go out.
    pub fn poll(&mut self) -> Option<Action> {
        let mut action = self.actions.pop_front()?;
        if let Action::Send(pdu) = &mut action {
            // A target's own ping carries no status (RFC 7143 §11.19.3).
            let has_status = !matches!(pdu.header, Header::NopIn(nop) if nop.itt == NO_TAG);
            let numbers = if has_status { self.status_numbers() } else { self.numbers() };
            numbers.put(&mut pdu.header);
        }
        Some(action)
    }

    /// Numbers of a PDU that carries no status: Data-In, R2T.
    pub fn numbers(&self) -> Numbers {
        Numbers { stat_sn: self.stat_sn, exp_cmd_sn: self.window.expected(), max_cmd_sn: self.window.max() }
    }

    /// Numbers of a PDU that carries a status: StatSN advances.
    pub fn status_numbers(&mut self) -> Numbers {
        let numbers = self.numbers();
        self.stat_sn = self.stat_sn.wrapping_add(1);
        numbers
    }

    /// The SCSI Response of a command; `exp_data_sn` is how many Data-In and R2T PDUs it had.
    pub fn scsi_response(&mut self, response: &Response, exp_data_sn: u32) -> Pdu {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.status_numbers();
        let (bits, residual) = response.residual_bits();
        let header = ScsiResponse {
            flags: FINAL | bits,
            status: response.status,
            itt: response.task.itt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            exp_data_sn,
            residual,
            ..ScsiResponse::default()
        };
        if response.sense.is_empty() {
            return Pdu::new(header);
        }
        // RFC 7143 §11.4.7: a length before the sense data.
        let mut data = Vec::with_capacity(2 + response.sense.len());
        data.extend_from_slice(&(response.sense.len() as u16).to_be_bytes());
        data.extend_from_slice(&response.sense);
        Pdu::with_data(header, data)
    }

    /// A control PDU came: any but solicited Data-Out, which the binding asked for and keeps.
    pub fn control(&mut self, now: Instant, pdu: Pdu) {
        self.alive.heard(now);
        if self.closing {
            return;
        }
        let number = match pdu.header {
            Header::DataOut(_) => return self.unsolicited(pdu),
            Header::Snack(_) => return self.reject(&pdu, RejectReason::Snack),
            // §11.18.1: without a tag it wants no answer, and its CmdSN counts for nothing.
            Header::NopOut(nop) if nop.itt == NO_TAG => return self.pong(&nop),
            Header::NopOut(header) => header.cmd_sn,
            Header::ScsiCommand(header) => header.cmd_sn,
            Header::TaskRequest(header) => header.cmd_sn,
            Header::TextRequest(header) => header.cmd_sn,
            Header::LogoutRequest(header) => header.cmd_sn,
            // §7.10: a login request after the login, or a PDU that only targets send.
            _ => return self.reject(&pdu, RejectReason::Protocol),
        };
        if pdu.immediate {
            let tasks = self.tasks.values().filter(|task| !task.counted()).count();
            if tasks + self.managing.len() >= MAX_IMMEDIATE {
                return self.reject(&pdu, RejectReason::TooManyImmediate);
            }
            return self.deliver(now, pdu);
        }
        match self.window.arrive(number) {
            Arrival::Ignored => {
                let (expected, max) = (self.window.expected(), self.window.max());
                tracing::debug!("CmdSN {number} is not in {expected}..={max}, or came before: ignored");
            }
            Arrival::Early => self.window.hold(number, (pdu, Vec::new())),
            Arrival::Now => {
                self.deliver(now, pdu);
                self.deliver_held(now);
            }
        }
    }

    /// Commands whose turn has come by what was received, or by what was counted as received.
    fn deliver_held(&mut self, now: Instant) {
        self.manage_deferred(now);
        while let Some((pdu, data)) = self.window.next_held() {
            self.deliver(now, pdu);
            data.into_iter().for_each(|data| self.unsolicited(data));
            self.manage_deferred(now);
        }
    }

    fn deliver(&mut self, now: Instant, pdu: Pdu) {
        match pdu.header {
            Header::ScsiCommand(header) => self.command(&header, pdu),
            Header::TaskRequest(header) => self.task_management(now, &header, &pdu),
            other => {
                match other {
                    Header::NopOut(header) => self.ping(&header, &pdu),
                    Header::TextRequest(header) => self.text(&header, &pdu),
                    Header::LogoutRequest(header) => self.logout(&header, pdu.immediate),
                    _ => {}
                }
                if !pdu.immediate && !matches!(other, Header::LogoutRequest(_)) {
                    // The answer is queued with the window as it was; the next one shows the room.
                    self.window.advance();
                }
            }
        }
    }

    /// Rejects a PDU that was read.
    fn reject(&mut self, pdu: &Pdu, reason: RejectReason) {
        tracing::debug!("{}: a {} is rejected: {reason}", self.identity.initiator, pdu.header.name());
        self.reject_header(&pdu.bhs(), reason);
    }

    /// Rejects a PDU by its header (RFC 7143 §11.17).
    pub fn reject_header(&mut self, header: &[u8], reason: RejectReason) {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let reject = Reject {
            flags: FINAL,
            reason: reason.code(),
            itt: NO_TAG,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            data_sn: 0,
        };
        self.actions.push_back(Action::Send(Pdu::with_data(reject, header.to_vec())));
    }

    /// Nothing more is taken; what is queued goes out, then the connection closes.
    pub fn close(&mut self, why: impl ToString) {
        if !self.closing {
            self.closing = true;
            self.actions.push_back(Action::Close(why.to_string()));
        }
    }

    /// The task's memory is here.
    pub fn memory(&mut self, id: TaskId, memory: IoBuf) {
        if let Some(task) = self.task(id) {
            task.give(memory);
            self.progress(id);
        }
    }

    /// What [`Action::GetData`] asked for is in the task's memory.
    pub fn fetched(&mut self, id: TaskId) {
        if let Some(task) = self.task(id) {
            task.fetched();
            self.progress(id);
        } else {
            self.drained(id);
        }
    }

    fn task(&mut self, id: TaskId) -> Option<&mut task::Task> {
        self.tasks.get_mut(&id.itt).filter(|task| task.id == id)
    }

    /// Whether a command of an initiator comes before another number.
    fn is_before(number: u32, other: u32) -> bool {
        before(number, other)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The nexus goes last: it aborts what still runs.
        self.tasks.clear();
    }
}
