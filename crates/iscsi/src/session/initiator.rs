//! An initiator's session of one connection: commands in, control PDUs out, and back.
//!
//! Read RFC 7143 §4.2 and §11. Command numbers, the target's window, status numbers, pings, what a target says on its own
//! account. Data is the binding's: it sees every SCSI Command before it goes out ([`Action::Start`]) and every PDU that comes
//! before [`Session::receive`]. It reads no clock.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::before;
use super::scsi::Residual;
use crate::keys::Params;
use crate::login::initiator::LoggedIn;
use crate::pdu::{
    Ahs, AsyncEvent, DataIn, FINAL, Header, LogoutReason, LogoutRequest, LogoutResult, NO_TAG, NopIn, NopOut,
    Pdu, RejectReason, ScsiCommand, ScsiResponse, TaskFunction, TaskRequest, TaskResult, TextRequest,
};

/// Commands that may wait for the target's window.
pub const MAX_QUEUED: usize = 4096;

/// A SCSI command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    /// Logical unit, as in the PDU (SAM-5 §4.7).
    pub lun: u64,
    /// The CDB.
    pub cdb: Vec<u8>,
    /// Task attribute: 1 simple, 2 ordered, 3 head of queue.
    pub attribute: u8,
    /// Bytes to send.
    pub data_out: u32,
    /// Bytes to receive.
    pub data_in: u32,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// SCSI status.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Lengths that differ.
    pub residual: Residual,
}

/// Why one request failed while the session goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The target rejected the PDU.
    #[error("the target rejected the request: {0}")]
    Rejected(RejectReason),
    /// The target could not carry it out (RFC 7143 §11.4.3, response 01h).
    #[error("target failure (response {0:#04x})")]
    Target(u8),
}

/// What the binding is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a control PDU.
    Send(Pdu),
    /// Send a SCSI Command, with what data goes along or before it is asked for.
    Start {
        /// Its tag.
        itt: u32,
        /// The PDU, without data; F is set.
        pdu: Pdu,
    },
    /// A command ended.
    Done(u32, Result<Status, Failure>),
    /// A task management function ended.
    Managed(u32, Result<TaskResult, Failure>),
    /// An answer to a text request; more of it is to be fetched if the tag says so.
    Text(u32, Result<(Bytes, Option<u32>), Failure>),
    /// A SCSI event: sense data of the logical unit.
    Event(u64, Bytes),
    /// The target wants this session to log out, within so many seconds.
    LogoutRequested(u16),
    /// The session is over.
    Close(String),
}

enum Kind {
    Scsi,
    Management,
    Ping,
    Text,
    Logout,
}

/// How an initiator looks after its session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Silence after which the target is asked whether it lives.
    pub ping_after: Duration,
    /// How long to wait then.
    pub ping_timeout: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { ping_after: Duration::from_secs(5), ping_timeout: Duration::from_secs(5) }
    }
}

/// The session.
pub struct Session {
    params: Params,
    options: SessionOptions,
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
    last_itt: u32,
    requests: HashMap<u32, Kind>,
    queue: VecDeque<(u32, Command)>,
    heard: Instant,
    pinged: Option<Instant>,
    actions: VecDeque<Action>,
    closing: bool,
}

impl Session {
    /// After the login.
    pub fn new(now: Instant, login: &LoggedIn, options: SessionOptions) -> Session {
        Session {
            params: login.params.clone(),
            options,
            cmd_sn: login.cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
            exp_stat_sn: login.exp_stat_sn,
            last_itt: 0,
            requests: HashMap::new(),
            queue: VecDeque::new(),
            heard: now,
            pinged: None,
            actions: VecDeque::new(),
            closing: false,
        }
    }

    /// What was agreed.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Status acknowledged up to here, for Data-Out.
    pub fn exp_stat_sn(&self) -> u32 {
        self.exp_stat_sn
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn tag(&mut self, kind: Kind) -> u32 {
        loop {
            self.last_itt = self.last_itt.wrapping_add(1);
            if self.last_itt != NO_TAG && !self.requests.contains_key(&self.last_itt) {
                self.requests.insert(self.last_itt, kind);
                return self.last_itt;
            }
        }
    }

    /// Room for another command in the queue.
    pub fn has_room(&self) -> bool {
        self.queue.len() < MAX_QUEUED
    }

    /// A SCSI command; goes out when the target's window allows. Its tag.
    pub fn command(&mut self, command: Command) -> u32 {
        let itt = self.tag(Kind::Scsi);
        self.queue.push_back((itt, command));
        self.pump();
        itt
    }

    /// Sends what the window allows.
    fn pump(&mut self) {
        while !self.closing && !before(self.max_cmd_sn, self.cmd_sn) {
            let Some((itt, command)) = self.queue.pop_front() else { return };
            let mut flags = FINAL | command.attribute & ScsiCommand::ATTRIBUTE;
            if command.data_in > 0 {
                flags |= ScsiCommand::READ;
            }
            if command.data_out > 0 {
                flags |= ScsiCommand::WRITE;
            }
            let both = command.data_in > 0 && command.data_out > 0;
            let mut cdb = [0; 16];
            let (first, more) = command.cdb.split_at(command.cdb.len().min(16));
            cdb[..first.len()].copy_from_slice(first);
            let ahs =
                Ahs { more_cdb: Bytes::copy_from_slice(more), read_length: both.then_some(command.data_in) };
            let header = ScsiCommand {
                flags,
                lun: command.lun,
                itt,
                edtl: if command.data_out > 0 { command.data_out } else { command.data_in },
                cmd_sn: self.cmd_sn,
                exp_stat_sn: self.exp_stat_sn,
                cdb,
            };
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
            let pdu = Pdu { ahs: ahs.emit(), ..Pdu::new(header) };
            self.actions.push_back(Action::Start { itt, pdu });
        }
    }

    /// A task management function, sent at once; on a task if `task` is its tag. Its own tag.
    pub fn manage(&mut self, function: TaskFunction, lun: u64, task: Option<u32>) -> u32 {
        if let Some(task) = task {
            self.queue.retain(|(itt, _)| *itt != task);
        }
        let itt = self.tag(Kind::Management);
        let request = TaskRequest {
            flags: FINAL | function.code(),
            lun,
            itt,
            ref_tag: task.unwrap_or(NO_TAG),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            // Earlier than any that may come: a task that has ended does not exist.
            ref_cmd_sn: self.cmd_sn.wrapping_sub(1),
            exp_data_sn: 0,
        };
        self.actions.push_back(Action::Send(Pdu::new(request).immediate()));
        itt
    }

    /// A text request, or the next piece of an answer with the target's tag.
    pub fn text(&mut self, data: Bytes, ttt: Option<u32>) -> u32 {
        let itt = self.tag(Kind::Text);
        let request = TextRequest {
            flags: FINAL,
            lun: 0,
            itt,
            ttt: ttt.unwrap_or(NO_TAG),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.actions.push_back(Action::Send(Pdu::with_data(request, data).immediate()));
        itt
    }

    /// Logs out; the session ends with the answer.
    pub fn logout(&mut self, reason: LogoutReason) {
        let itt = self.tag(Kind::Logout);
        let request = LogoutRequest {
            flags: FINAL | reason.code(),
            itt,
            cid: 0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.actions.push_back(Action::Send(Pdu::new(request).immediate()));
    }

    /// When [`Session::tick`] has something to do.
    pub fn deadline(&self) -> Instant {
        match self.pinged {
            Some(at) => at + self.options.ping_timeout,
            None => self.heard + self.options.ping_after,
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        match self.pinged {
            Some(at) if at + self.options.ping_timeout <= now => {
                let waited = self.options.ping_after + self.options.ping_timeout;
                self.close(format!("no sign of life from the target for {waited:?}"));
            }
            None if self.heard + self.options.ping_after <= now => {
                self.pinged = Some(now);
                let itt = self.tag(Kind::Ping);
                self.nop_out(itt, NO_TAG, 0, Bytes::new());
            }
            _ => {}
        }
    }

    fn nop_out(&mut self, itt: u32, ttt: u32, lun: u64, data: Bytes) {
        let (cmd_sn, exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        let nop = NopOut { flags: FINAL, lun, itt, ttt, cmd_sn, exp_stat_sn };
        self.actions.push_back(Action::Send(Pdu::with_data(nop, data).immediate()));
    }

    fn close(&mut self, why: String) {
        if !self.closing {
            self.closing = true;
            self.actions.push_back(Action::Close(why));
        }
    }

    /// A PDU came. Data-In and R2T too, after the binding did its part.
    pub fn receive(&mut self, now: Instant, pdu: &Pdu) {
        (self.heard, self.pinged) = (now, None);
        match pdu.header {
            Header::ScsiResponse(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) {
                    self.response(&h, pdu);
                }
            }
            Header::DataIn(h) if h.flags & DataIn::STATUS != 0 => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) && self.ends(h.itt) {
                    let status = Status {
                        status: h.status,
                        sense: Vec::new(),
                        residual: residual(h.flags, h.residual),
                    };
                    self.actions.push_back(Action::Done(h.itt, Ok(status)));
                }
            }
            Header::DataIn(h) => self.window(h.exp_cmd_sn, h.max_cmd_sn),
            Header::R2t(h) => self.window(h.exp_cmd_sn, h.max_cmd_sn),
            Header::NopIn(h) => self.nop_in(&h, pdu),
            Header::TaskResponse(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) && self.ends(h.itt) {
                    let result = TaskResult::from_code(h.response).ok_or(Failure::Target(h.response));
                    self.actions.push_back(Action::Managed(h.itt, result));
                }
            }
            Header::TextResponse(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) && self.ends(h.itt) {
                    let more = (h.ttt != NO_TAG).then_some(h.ttt);
                    self.actions.push_back(Action::Text(h.itt, Ok((pdu.data.clone(), more))));
                }
            }
            Header::LogoutResponse(h) => {
                let result = LogoutResult::from_code(h.response);
                let text =
                    result.map_or_else(|| format!("response {:#04x}", h.response), |one| one.to_string());
                self.close(format!("logged out: {text}"));
            }
            Header::AsyncMessage(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) {
                    self.told(&h, pdu);
                }
            }
            Header::Reject(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) {
                    self.rejected(h.reason, &pdu.data);
                }
            }
            other => self.close(format!("a target sent a {} in the full feature phase", other.name())),
        }
        self.pump();
    }

    fn ends(&mut self, itt: u32) -> bool {
        let known = self.requests.remove(&itt).is_some();
        if !known {
            tracing::debug!("an answer to tag {itt:#x}, which nothing waits for");
        }
        known
    }

    /// Whether a status has the number that is next; level 0 ends the session where one was lost (RFC 7143 §7.9).
    fn numbered(&mut self, stat_sn: u32, exp_cmd_sn: u32, max_cmd_sn: u32) -> bool {
        if stat_sn != self.exp_stat_sn {
            self.close(format!("StatSN {stat_sn} came, {} was next (RFC 7143 §4.2.2.2)", self.exp_stat_sn));
            return false;
        }
        self.exp_stat_sn = self.exp_stat_sn.wrapping_add(1);
        self.window(exp_cmd_sn, max_cmd_sn);
        true
    }

    /// RFC 7143 §4.2.2.1: the window only ever goes forward.
    fn window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        let sane = !before(max_cmd_sn, exp_cmd_sn.wrapping_sub(1));
        if sane && before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    fn response(&mut self, header: &ScsiResponse, pdu: &Pdu) {
        if !self.ends(header.itt) {
            return;
        }
        if header.response != 0 {
            return self.actions.push_back(Action::Done(header.itt, Err(Failure::Target(header.response))));
        }
        let sense = match pdu.data.get(..2) {
            Some(len) => {
                let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
                pdu.data[2..].iter().take(len).copied().collect()
            }
            None => Vec::new(),
        };
        let residual = residual(header.flags, header.residual);
        let status = Status { status: header.status, sense, residual };
        self.actions.push_back(Action::Done(header.itt, Ok(status)));
    }

    /// RFC 7143 §11.19: a target's ping has no Initiator Task Tag and does not advance StatSN.
    fn nop_in(&mut self, nop: &NopIn, pdu: &Pdu) {
        if nop.itt == NO_TAG {
            self.window(nop.exp_cmd_sn, nop.max_cmd_sn);
        } else if !self.numbered(nop.stat_sn, nop.exp_cmd_sn, nop.max_cmd_sn) {
            return;
        } else {
            self.ends(nop.itt);
        }
        if nop.ttt != NO_TAG {
            self.nop_out(NO_TAG, nop.ttt, nop.lun, pdu.data.clone());
        }
    }

    fn told(&mut self, message: &crate::pdu::AsyncMessage, pdu: &Pdu) {
        match AsyncEvent::from_code(message.event) {
            Some(AsyncEvent::Scsi) => {
                let sense = pdu.data.slice(pdu.data.len().min(2)..);
                self.actions.push_back(Action::Event(message.lun, sense));
            }
            Some(AsyncEvent::LogoutRequest) => {
                self.actions.push_back(Action::LogoutRequested(message.parameter3));
            }
            Some(event @ (AsyncEvent::DroppingConnection | AsyncEvent::DroppingSession)) => {
                self.close(event.to_string());
            }
            Some(event) => tracing::info!("the target says: {event}"),
            None => tracing::info!("the target says: asynchronous event {}", message.event),
        }
    }

    /// What was rejected is named by its header (RFC 7143 §11.17).
    fn rejected(&mut self, reason: u8, data: &Bytes) {
        let reason = RejectReason::from_code(reason).unwrap_or(RejectReason::Protocol);
        let header = data.first_chunk().and_then(Header::parse);
        let failure = Failure::Rejected(reason);
        let (itt, kind) = match header {
            Some(Header::ScsiCommand(h)) => (h.itt, "SCSI Command"),
            Some(Header::TaskRequest(h)) => (h.itt, "Task Management Function Request"),
            Some(Header::TextRequest(h)) => (h.itt, "Text Request"),
            other => {
                let name = other.map_or("PDU", |header| header.name());
                return self.close(format!("the target rejected a {name}: {reason}"));
            }
        };
        match self.requests.remove(&itt) {
            Some(Kind::Scsi) => self.actions.push_back(Action::Done(itt, Err(failure))),
            Some(Kind::Management) => self.actions.push_back(Action::Managed(itt, Err(failure))),
            Some(Kind::Text) => self.actions.push_back(Action::Text(itt, Err(failure))),
            Some(Kind::Ping | Kind::Logout) | None => {
                tracing::debug!("the target rejected a {kind} that nothing waits for: {reason}");
            }
        }
    }
}

fn residual(flags: u8, count: u32) -> Residual {
    if flags & ScsiResponse::UNDERFLOW != 0 {
        Residual::Under(count)
    } else if flags & ScsiResponse::OVERFLOW != 0 {
        Residual::Over(count)
    } else {
        Residual::None
    }
}
