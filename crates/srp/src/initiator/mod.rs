//! The initiator's end of one channel without a queue pair: tags, credits, what is outstanding, how buffers are described.
//! SRP r16a §5.4–§5.7.
//!
//! Every response and every request of the target's may change the request limit; SRP_CRED_REQ and SRP_AER_REQ are answered. A
//! command ends once: with its response, or with the answer to the function that aborted it.
//! What this does not do: wait, move data.

use std::collections::HashMap;

use crate::credit::Credits;
use crate::iu::{
    Buffer, Command, Descriptor, Function, Indirect, InitiatorIu, LoginRequest, LoginResponse, LogoutReason,
    Response, ResponseCode, TargetIu, TaskManagement,
};

/// Bytes of a command without additional CDB and buffers.
const CMD_LEN: usize = 48;
const INDIRECT_LEN: usize = Descriptor::LEN + 4;
/// Room for additional CDB bytes that Linux leaves before immediate data.
const ADDITIONAL_CDB: usize = 16;
/// Where this initiator's immediate data begin, as Linux's.
pub const IMMEDIATE_OFFSET: u16 = (CMD_LEN + ADDITIONAL_CDB + 4) as u16;

/// Bytes of an information unit with so many descriptors in it.
pub const fn iu_len_for(descriptors: usize) -> u32 {
    (CMD_LEN + ADDITIONAL_CDB + INDIRECT_LEN + descriptors * Descriptor::LEN) as u32
}

/// What a command's data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data<'a> {
    /// None.
    None,
    /// To the target, from these.
    Out(&'a [Descriptor]),
    /// From the target, into these.
    In(&'a [Descriptor]),
    /// To the target, so many bytes within the information unit.
    Immediate(u32),
}

/// A command to send.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Logical unit number, as SAM-5 writes it.
    pub lun: u64,
    /// CDB.
    pub cdb: &'a [u8],
    /// Task attribute: 0 simple, 1 head of queue, 2 ordered.
    pub attribute: u8,
    /// Data.
    pub data: Data<'a>,
    /// Where the whole table of its descriptors is, should they not fit: address and key.
    pub table: Option<(u64, u32)>,
}

/// What came from the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A command has ended.
    Done {
        /// Its tag.
        tag: u64,
        /// How.
        response: Box<Response>,
    },
    /// A task management function has ended.
    Managed {
        /// Its tag.
        tag: u64,
        /// How.
        code: ResponseCode,
        /// Commands that ended with it; no response to them comes any more.
        ended: Vec<u64>,
    },
    /// Nothing but credits.
    Credit,
    /// A condition that belongs to no command.
    Event {
        /// Logical unit.
        lun: u64,
        /// Sense data.
        sense: Vec<u8>,
    },
    /// The target ends the channel.
    LoggedOut(LogoutReason),
}

enum Outstanding {
    Command { lun: u64 },
    Management { lun: u64, function: Function, task: u64, covers: Vec<u64> },
}

/// A channel.
pub struct Session {
    credits: Credits,
    it_iu_len: usize,
    immediate: Option<usize>,
    outstanding: HashMap<u64, Outstanding>,
}

/// The request or the channel is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

impl Session {
    /// A channel, as the login came to.
    ///
    /// # Errors
    /// The response is none to this request, or grants nothing.
    pub fn new(request: &LoginRequest, response: &LoginResponse) -> Result<Self, Broken> {
        if response.tag != request.tag {
            return Err(Broken(format!("SRP_LOGIN_RSP has the tag {:#x}", response.tag)));
        }
        if !response.formats.has(request.formats) {
            return Err(Broken(format!("the target has only {:?}", response.formats)));
        }
        if response.request_limit_delta < 2 {
            let limit = response.request_limit_delta;
            return Err(Broken(format!("a request limit of {limit}: a command and a function need two")));
        }
        let immediate = request.immediate_offset.filter(|_| response.immediate).map(usize::from);
        Ok(Self {
            credits: Credits::new(response.request_limit_delta),
            it_iu_len: response.max_it_iu_len.min(request.it_iu_len) as usize,
            immediate,
            outstanding: HashMap::new(),
        })
    }

    /// Whether a command may be sent.
    pub fn has_room(&self) -> bool {
        self.credits.has_room()
    }

    /// Requests that may be sent now, the one for task management included.
    pub fn credits(&self) -> i32 {
        self.credits.available()
    }

    /// Requests without an answer.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Most bytes of immediate data.
    pub fn immediate(&self) -> usize {
        self.immediate.map_or(0, |offset| self.it_iu_len.saturating_sub(offset))
    }

    /// Where they begin.
    pub fn immediate_offset(&self) -> usize {
        self.immediate.unwrap_or(0)
    }

    /// Descriptors that fit into an information unit behind a CDB of `cdb` bytes.
    pub fn inline_descriptors(&self, cdb: usize) -> usize {
        let used = CMD_LEN + cdb.saturating_sub(16).next_multiple_of(4) + INDIRECT_LEN;
        (self.it_iu_len.saturating_sub(used) / Descriptor::LEN).min(u8::MAX.into())
    }

    fn describe(&self, descriptors: &[Descriptor], request: &Request<'_>) -> Result<Buffer, Broken> {
        if let [one] = descriptors {
            return Ok(Buffer::Direct(*one));
        }
        let len = descriptors.iter().map(|d| u64::from(d.len)).sum::<u64>();
        let len = u32::try_from(len).map_err(|_| Broken(format!("{len} bytes in one command")))?;
        let fit = self.inline_descriptors(request.cdb.len());
        let inline = descriptors[..descriptors.len().min(fit)].to_vec();
        let (addr, key) = match request.table {
            Some(table) => table,
            None if inline.len() == descriptors.len() => (0, 0),
            None => {
                let all = descriptors.len();
                return Err(Broken(format!("{all} descriptors, {fit} fit, and no table is given")));
            }
        };
        let table = Descriptor { addr, key, len: (descriptors.len() * Descriptor::LEN) as u32 };
        Ok(Buffer::Indirect(Indirect { table, len, inline }))
    }

    /// A command's bytes, without immediate data. `None`: no credit is left for it.
    ///
    /// # Errors
    /// It cannot be described; nothing was taken.
    pub fn command(&mut self, tag: u64, request: &Request<'_>) -> Result<Option<Vec<u8>>, Broken> {
        let (out, into) = match request.data {
            Data::None => (Buffer::None, Buffer::None),
            Data::Out(descriptors) => (self.describe(descriptors, request)?, Buffer::None),
            Data::In(descriptors) => (Buffer::None, self.describe(descriptors, request)?),
            Data::Immediate(len) if len as usize <= self.immediate() => {
                (Buffer::Immediate { len }, Buffer::None)
            }
            Data::Immediate(len) => return Err(Broken(format!("{len} bytes of immediate data"))),
        };
        if self.outstanding.contains_key(&tag) {
            return Err(Broken(format!("tag {tag:#x} is outstanding")));
        }
        if !self.credits.take_for_command() {
            return Ok(None);
        }
        self.outstanding.insert(tag, Outstanding::Command { lun: request.lun });
        let command = Command {
            tag,
            solicited: 0,
            lun: request.lun,
            attribute: request.attribute,
            cdb: request.cdb.to_vec(),
            out,
            into,
        };
        Ok(Some(command.emit()))
    }

    /// A task management function's bytes. `None`: no credit is left for it.
    pub fn manage(&mut self, tag: u64, lun: u64, function: Function, task: u64) -> Option<Vec<u8>> {
        if self.outstanding.contains_key(&tag) || !self.credits.take_for_management() {
            return None;
        }
        let covers = match function {
            Function::AbortTask => vec![task],
            Function::ClearAca | Function::Unknown(_) => Vec::new(),
            _ => self.commands_at(lun),
        };
        self.outstanding.insert(tag, Outstanding::Management { lun, function, task, covers });
        Some(TaskManagement { tag, solicited: 0, lun, function, task_tag: task }.emit())
    }

    /// The logical unit of a command that has no answer.
    pub fn lun_of(&self, tag: u64) -> Option<u64> {
        match self.outstanding.get(&tag) {
            Some(Outstanding::Command { lun }) => Some(*lun),
            _ => None,
        }
    }

    /// Commands at a logical unit that have no answer, in the order of their tags.
    pub fn commands_at(&self, lun: u64) -> Vec<u64> {
        let on_lun = |(&tag, what): (&u64, &Outstanding)| match what {
            Outstanding::Command { lun: at } if *at == lun => Some(tag),
            _ => None,
        };
        let mut tags: Vec<u64> = self.outstanding.iter().filter_map(on_lun).collect();
        tags.sort_unstable();
        tags
    }

    /// These get no answer any more; gives those of them that were outstanding.
    fn give_up(&mut self, tags: &[u64]) -> Vec<u64> {
        let mut ended = tags.to_vec();
        ended.retain(|tag| {
            let is_command = matches!(self.outstanding.get(tag), Some(Outstanding::Command { .. }));
            is_command && self.outstanding.remove(tag).is_some()
        });
        ended
    }

    /// Takes an information unit; gives what it means, and what must be answered at once.
    ///
    /// # Errors
    /// The target broke the protocol: the channel is of no use any more.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(Event, Option<Vec<u8>>), Broken> {
        let iu = TargetIu::parse(bytes).map_err(|error| Broken(error.to_string()))?;
        match iu {
            TargetIu::Response(response) => {
                self.credits.add(response.request_limit_delta);
                Ok((self.answered(response)?, None))
            }
            TargetIu::Credit(credit) => {
                self.credits.add(credit.request_limit_delta);
                Ok((Event::Credit, Some(InitiatorIu::CreditResponse { tag: credit.tag }.emit())))
            }
            TargetIu::Event(event) => {
                self.credits.add(event.request_limit_delta);
                let answer = InitiatorIu::EventResponse { tag: event.tag }.emit();
                Ok((Event::Event { lun: event.lun, sense: event.sense }, Some(answer)))
            }
            TargetIu::Logout(logout) => Ok((Event::LoggedOut(logout.reason), None)),
            TargetIu::Login(_) | TargetIu::Reject(_) => {
                Err(Broken("an answer to a login on an established channel".to_owned()))
            }
        }
    }

    fn answered(&mut self, response: Response) -> Result<Event, Broken> {
        let tag = response.tag;
        match self.outstanding.remove(&tag) {
            Some(Outstanding::Command { .. }) => Ok(Event::Done { tag, response: Box::new(response) }),
            Some(Outstanding::Management { lun, function, task, covers }) => {
                let code = response.code.unwrap_or(ResponseCode::FAILED);
                tracing::debug!("{function:?} of task {task:#x} at LUN {lun:#x}: {}", code.as_str());
                let complete = code == ResponseCode::COMPLETE;
                let ended = if complete { self.give_up(&covers) } else { Vec::new() };
                Ok(Event::Managed { tag, code, ended })
            }
            None => Err(Broken(format!("SRP_RSP for tag {tag:#x}, which is not outstanding"))),
        }
    }
}

#[cfg(test)]
mod tests;
