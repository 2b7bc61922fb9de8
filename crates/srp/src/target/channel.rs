//! One channel at the target: requests in, within their limit; responses and the target's own requests out. SRP r16a §5.4–§5.6.
//!
//! A violation of the protocol ends the channel with SRP_T_LOGOUT; a command that cannot be carried out as it is described is
//! a [`Fault`], and answered. One SRP_CRED_REQ and one SRP_AER_REQ are outstanding at most.
//! What this does not do: move data, run commands.

use everywire_scsi::target::{Outcome, Residual};
use everywire_scsi::{Asc, Sense, SenseKey};

use crate::credit::RequestLimit;
use crate::iu::{
    AsyncEvent, Buffer, Command, Credit, Descriptor, InitiatorIu, IuError, LogoutReason, Response,
    ResponseCode, TargetLogout, TaskManagement,
};

/// INVALID FIELD IN COMMAND INFORMATION UNIT (SPC-4 annex F).
const INVALID_IU_FIELD: Asc = Asc(0x0e03);
const CHECK_CONDITION: u8 = 0x02;
/// SOL_NOT of requests.
const SCSOLNT: u8 = 1 << 1;
const UCSOLNT: u8 = 1 << 2;
/// Tags of the target's own requests.
const CREDIT_TAG: u64 = 1 << 63;
const EVENT_TAG: u64 = 1 << 62;
/// Asynchronous events that wait for the answer to an earlier one.
const MAX_EVENTS: usize = 64;

/// What an information unit asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A command.
    Command(Box<Command>),
    /// A task management function.
    Manage(TaskManagement),
    /// The initiator leaves.
    Logout,
    /// Nothing.
    Nothing,
}

/// The initiator broke the protocol: the channel ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What it is told.
    pub reason: LogoutReason,
    /// What the log says.
    pub why: String,
}

/// A command's description of its data makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Descriptors that do not add up.
    #[error("descriptors of {sum} bytes for {len} bytes of data")]
    Length {
        /// Of the descriptors.
        sum: u64,
        /// Of the data.
        len: u32,
    },
    /// Immediate data without an agreement, or past the end of the information unit.
    #[error("{len} bytes of immediate data in an information unit of {iu} bytes, from {offset:?}")]
    Immediate {
        /// Of the data.
        len: u32,
        /// Of the information unit.
        iu: usize,
        /// Where they begin.
        offset: Option<u16>,
    },
    /// A table that cannot be.
    #[error(transparent)]
    Table(#[from] IuError),
    /// More than the target moves for one command.
    #[error("{len} bytes of data, {most} at most for one command")]
    TooLong {
        /// Of the data.
        len: u32,
        /// The most.
        most: u32,
    },
    /// Data both ways.
    #[error("data in both directions")]
    Bidirectional,
}

/// A channel.
pub struct Channel {
    limit: RequestLimit,
    immediate_offset: Option<u16>,
    credit_outstanding: bool,
    event_outstanding: bool,
    events: std::collections::VecDeque<(u64, Vec<u8>)>,
}

impl Channel {
    /// A channel with `limit` requests at a time, and immediate data from `immediate_offset`, if agreed.
    pub fn new(limit: u16, immediate_offset: Option<u16>) -> Self {
        Self {
            limit: RequestLimit::new(limit),
            immediate_offset,
            credit_outstanding: false,
            event_outstanding: false,
            events: Default::default(),
        }
    }

    /// Takes an information unit. Each command and each function must be answered by [`Channel::respond`] and its like, or
    /// given up by [`Channel::silent`], once.
    ///
    /// # Errors
    /// The channel must end.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Received, Violation> {
        let iu = InitiatorIu::parse(bytes).map_err(|error| Violation {
            reason: match error {
                IuError::Type(_) => LogoutReason::INVALID_TYPE,
                IuError::DataOutFormat(_) => LogoutReason::DATA_OUT_FORMAT,
                IuError::DataInFormat(_) => LogoutReason::DATA_IN_FORMAT,
                _ => LogoutReason::INVALID_LENGTH,
            },
            why: error.to_string(),
        })?;
        match iu {
            InitiatorIu::Command(command) => {
                self.request()?;
                Ok(Received::Command(command))
            }
            InitiatorIu::Manage(manage) => {
                self.request()?;
                Ok(Received::Manage(manage))
            }
            InitiatorIu::Logout { .. } => Ok(Received::Logout),
            InitiatorIu::CreditResponse { tag } => {
                Self::answered(&mut self.credit_outstanding, tag == CREDIT_TAG, "SRP_CRED_RSP")
            }
            InitiatorIu::EventResponse { tag } => {
                Self::answered(&mut self.event_outstanding, tag == EVENT_TAG, "SRP_AER_RSP")
            }
            InitiatorIu::Login(_) => Err(Violation {
                reason: LogoutReason::INVALID_TYPE,
                why: "SRP_LOGIN_REQ on an established channel".to_owned(),
            }),
        }
    }

    fn request(&mut self) -> Result<(), Violation> {
        if self.limit.take() {
            return Ok(());
        }
        Err(Violation { reason: LogoutReason::NONE, why: "a request beyond the request limit".to_owned() })
    }

    fn answered(outstanding: &mut bool, known: bool, what: &str) -> Result<Received, Violation> {
        if known && std::mem::take(outstanding) {
            return Ok(Received::Nothing);
        }
        Err(Violation {
            reason: LogoutReason::SPURIOUS_RESPONSE,
            why: format!("{what} to nothing that was asked"),
        })
    }

    /// Where a command's immediate data are in its information unit of `iu_len` bytes.
    ///
    /// # Errors
    /// They were not agreed, or end after it.
    pub fn immediate(&self, len: u32, iu_len: usize) -> Result<usize, Fault> {
        let wrong = Fault::Immediate { len, iu: iu_len, offset: self.immediate_offset };
        let Some(offset) = self.immediate_offset.map(usize::from) else { return Err(wrong) };
        if offset + len as usize > iu_len { Err(wrong) } else { Ok(offset) }
    }

    /// SRP_RSP of a command that ended.
    pub fn respond(&mut self, command: &Asked, outcome: &Outcome) -> Vec<u8> {
        let mut response = Response {
            solicited: command.solicited(outcome.status.0 == 0),
            tag: command.tag,
            status: outcome.status.0,
            sense: outcome.sense.as_ref().map_or_else(Vec::new, |sense| sense.to_vec()),
            ..Response::default()
        };
        if command.writes {
            response.out_residual = outcome.residual;
        } else {
            response.in_residual = outcome.residual;
        }
        self.send(response)
    }

    /// SRP_RSP of a command whose data are not described as they must be.
    pub fn refuse(&mut self, command: &Asked) -> Vec<u8> {
        let sense = Sense::new(SenseKey::ILLEGAL_REQUEST, INVALID_IU_FIELD).emit(false);
        let residual = if command.len == 0 { Residual::None } else { Residual::Under(command.len) };
        let (out_residual, in_residual) =
            if command.writes { (residual, Residual::None) } else { (Residual::None, residual) };
        self.send(Response {
            solicited: command.solicited(false),
            tag: command.tag,
            status: CHECK_CONDITION,
            code: Some(ResponseCode::INVALID_FIELDS),
            sense: sense.to_vec(),
            out_residual,
            in_residual,
            ..Response::default()
        })
    }

    /// SRP_RSP of a task management function.
    pub fn managed(&mut self, manage: &TaskManagement, code: ResponseCode) -> Vec<u8> {
        let flag = if code == ResponseCode::COMPLETE { SCSOLNT } else { UCSOLNT };
        let solicited = manage.solicited & flag != 0;
        self.send(Response { solicited, tag: manage.tag, code: Some(code), ..Response::default() })
    }

    fn send(&mut self, mut response: Response) -> Vec<u8> {
        self.limit.end();
        response.request_limit_delta = self.limit.delta();
        response.emit()
    }

    /// A request ended without a response.
    pub fn silent(&mut self) {
        self.limit.end();
    }

    /// The next request of the target's own, if one is due.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if !self.event_outstanding
            && let Some((lun, sense)) = self.events.pop_front()
        {
            self.event_outstanding = true;
            let request_limit_delta = self.limit.delta();
            let event = AsyncEvent { solicited: false, request_limit_delta, tag: EVENT_TAG, lun, sense };
            return Some(event.emit());
        }
        if self.credit_outstanding || !self.limit.is_stranded() {
            return None;
        }
        self.credit_outstanding = true;
        let request_limit_delta = self.limit.delta();
        Some(Credit { solicited: false, request_limit_delta, tag: CREDIT_TAG }.emit())
    }

    /// Tells the initiator of a condition that belongs to no command (SRP_AER_REQ). False: too many wait.
    pub fn event(&mut self, lun: u64, sense: Vec<u8>) -> bool {
        let room = self.events.len() < MAX_EVENTS;
        if room {
            self.events.push_back((lun, sense));
        }
        room
    }

    /// Requests that have not ended.
    pub fn active(&self) -> usize {
        self.limit.active()
    }

    /// SRP_T_LOGOUT.
    pub fn logout(reason: LogoutReason) -> Vec<u8> {
        TargetLogout { solicited: false, reason, tag: 0 }.emit()
    }
}

/// What a response needs to know of its command.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// Tag.
    pub tag: u64,
    /// Logical unit.
    pub lun: u64,
    sol_not: u8,
    writes: bool,
    len: u32,
}

impl Asked {
    /// Of a command.
    pub fn of(command: &Command) -> Self {
        let writes = !command.out.is_empty();
        let len = if writes { command.out.len() } else { command.into.len() };
        Self { tag: command.tag, lun: command.lun, sol_not: command.solicited, writes, len }
    }

    fn solicited(&self, good: bool) -> bool {
        self.sol_not & if good { SCSOLNT } else { UCSOLNT } != 0
    }
}

/// Holds descriptors against the length of the data that they describe.
///
/// # Errors
/// They do not add up.
pub fn check_lengths(descriptors: &[Descriptor], len: u32) -> Result<(), Fault> {
    let sum = descriptors.iter().map(|descriptor| u64::from(descriptor.len)).sum();
    if sum == u64::from(len) { Ok(()) } else { Err(Fault::Length { sum, len }) }
}

/// A command has data one way at most, and no more than `most` bytes.
///
/// # Errors
/// It does not.
pub fn check_data(command: &Command, most: u32) -> Result<(), Fault> {
    if !command.out.is_empty() && !command.into.is_empty() {
        return Err(Fault::Bidirectional);
    }
    let len = command.out.len().max(command.into.len());
    if len > most { Err(Fault::TooLong { len, most }) } else { Ok(()) }
}

/// The buffer of a command that has data.
pub fn buffer_of(command: &Command) -> &Buffer {
    if command.out.is_empty() { &command.into } else { &command.out }
}
