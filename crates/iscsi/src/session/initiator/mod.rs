//! An initiator's session of one connection: commands in, control PDUs out, and back.
//!
//! Read RFC 7143 §4.2 and §11. Command numbers, the target's window, status numbers, pings, what a target says on its own
//! account. Data is the binding's: it takes every SCSI Command when it has room for it ([`Session::start`]) and sees every PDU that
//! comes before [`Session::receive`]. A command gets its CmdSN when it goes out and not before, so that one which ends here leaves no
//! gap that the target would wait for. It reads no clock.

mod manage;
mod receive;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use everywire_verbs::ids::IdMap;

use super::before;
use super::scsi::Residual;
use crate::keys::Params;
use crate::login::initiator::LoggedIn;
use crate::pdu::{
    Ahs, FINAL, LogoutReason, LogoutRequest, NO_TAG, NopOut, Pdu, RejectReason, ScsiCommand, TaskResult,
    TextRequest,
};

/// Commands that may wait for the target's window.
pub const MAX_QUEUED: usize = 4096;

/// A SCSI command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    /// Logical unit, as in the PDU (SAM-5 §4.7).
    pub lun: u64,
    /// The CDB's first 16 bytes; a shorter one ends in zeroes.
    pub cdb: [u8; 16],
    /// What is behind them (RFC 7143 §11.2.2.3).
    pub more_cdb: Bytes,
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
    /// Task management ended it (RFC 7143 §11.5): no response comes any more.
    #[error("aborted by task management")]
    Aborted,
    /// More than this side moves for one command.
    #[error("{len} bytes in one command, {most} are the most")]
    TooLong {
        /// Bytes of its data.
        len: usize,
        /// The most.
        most: usize,
    },
}

/// What the binding is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a control PDU.
    Send(Pdu),
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
    Scsi(Scsi),
    Management(manage::Management),
    Ping,
    Text,
    Logout,
}

/// A command without status.
struct Scsi {
    lun: u64,
    /// When it went out, and its CmdSN.
    sent: Option<(Instant, u32)>,
    /// It has taken too long, and ABORT TASK is on its way.
    overdue: bool,
}

/// How an initiator looks after its session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Silence after which the target is asked whether it lives.
    pub ping_after: Duration,
    /// How long to wait then.
    pub ping_timeout: Duration,
    /// How long a command may go without status before it is aborted: another initiator's reset may have ended it without a word
    /// (SAM-5 §5.3.1). A function without an answer for as long ends the session.
    pub command_timeout: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            ping_after: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(60),
        }
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
    requests: IdMap<u32, Kind>,
    queue: VecDeque<(u32, Command)>,
    heard: Instant,
    pinged: Option<Instant>,
    /// When to look for commands that have taken too long.
    look: Instant,
    actions: VecDeque<Action>,
    closing: bool,
}

impl Session {
    /// After the login.
    pub fn new(now: Instant, login: &LoggedIn, options: SessionOptions) -> Session {
        Session {
            params: login.params.clone(),
            look: now + options.command_timeout / manage::LOOKS,
            options,
            cmd_sn: login.cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
            exp_stat_sn: login.exp_stat_sn,
            last_itt: 0,
            requests: IdMap::default(),
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

    fn next_tag(&mut self) -> u32 {
        loop {
            self.last_itt = self.last_itt.wrapping_add(1);
            if self.last_itt != NO_TAG && !self.requests.contains_key(&self.last_itt) {
                return self.last_itt;
            }
        }
    }

    fn tag(&mut self, kind: Kind) -> u32 {
        let itt = self.next_tag();
        self.requests.insert(itt, kind);
        itt
    }

    /// Room for another command in the queue.
    pub fn has_room(&self) -> bool {
        self.queue.len() < MAX_QUEUED
    }

    /// A SCSI command; goes out by [`Session::start`]. Its tag.
    pub fn command(&mut self, command: Command) -> u32 {
        let itt = self.tag(Kind::Scsi(Scsi { lun: command.lun, sent: None, overdue: false }));
        self.queue.push_back((itt, command));
        itt
    }

    /// The command that is next to go out, if the target's window lets it.
    pub fn startable(&self) -> Option<u32> {
        let open = !self.closing && !before(self.max_cmd_sn, self.cmd_sn);
        self.queue.front().filter(|_| open).map(|(itt, _)| *itt)
    }

    /// The next command goes out now, behind what [`Session::poll`] gave so far: its tag, and its PDU without data; F is set.
    pub fn start(&mut self, now: Instant) -> Option<(u32, Pdu)> {
        self.startable()?;
        let (itt, command) = self.queue.pop_front()?;
        if let Some(Kind::Scsi(scsi)) = self.requests.get_mut(&itt) {
            scsi.sent = Some((now, self.cmd_sn));
        }
        let pdu = self.command_pdu(itt, &command);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        Some((itt, pdu))
    }

    fn command_pdu(&self, itt: u32, command: &Command) -> Pdu {
        let mut flags = FINAL | command.attribute & ScsiCommand::ATTRIBUTE;
        if command.data_in > 0 {
            flags |= ScsiCommand::READ;
        }
        if command.data_out > 0 {
            flags |= ScsiCommand::WRITE;
        }
        let both = command.data_in > 0 && command.data_out > 0;
        let ahs = Ahs { more_cdb: command.more_cdb.clone(), read_length: both.then_some(command.data_in) };
        let header = ScsiCommand {
            flags,
            lun: command.lun,
            itt,
            edtl: if command.data_out > 0 { command.data_out } else { command.data_in },
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: command.cdb,
        };
        Pdu { ahs: ahs.emit(), ..Pdu::new(header) }
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
        let ping = match self.pinged {
            Some(at) => at + self.options.ping_timeout,
            None => self.heard + self.options.ping_after,
        };
        ping.min(self.look)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        if self.look <= now {
            self.look = now + self.options.command_timeout / manage::LOOKS;
            self.look_for_overdue(now);
        }
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
}
