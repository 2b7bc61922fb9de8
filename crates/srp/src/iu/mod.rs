//! Information units: the messages of SRP, bytes to structures and back. SRP r16a §6; lengths and positions as Linux has them.
//!
//! [`InitiatorIu`] travels from initiator to target, [`TargetIu`] the other way; the first byte says which it is. Every length
//! in an information unit is held against the bytes that came before anything is taken.
//! What this does not do: judge whether a field makes sense for the channel it came on.

mod buffer;
mod command;
mod field;
mod login;
mod reason;
mod response;

pub use buffer::{Buffer, Descriptor, Indirect, MAX_DESCRIPTORS, parse_table};
pub use command::{Command, Function, MAX_CDB, TaskManagement};
pub use login::{
    BufferFormats, LoginReject, LoginRequest, LoginResponse, MultiChannel, MultiChannelResult,
    RDMA_CM_LOGIN_LEN,
};
pub use reason::{LogoutReason, RejectReason};
pub use response::{AsyncEvent, Credit, Response, ResponseCode, TargetLogout};

use field::Reader;

/// Smallest length of information units that both ends must take (SRP §6.2).
pub const MIN_IU_LEN: u32 = 64;

/// Type codes.
pub mod code {
    #![allow(missing_docs)] // the standard's names
    pub const LOGIN_REQ: u8 = 0x00;
    pub const TSK_MGMT: u8 = 0x01;
    pub const CMD: u8 = 0x02;
    pub const I_LOGOUT: u8 = 0x03;
    pub const CRED_RSP: u8 = 0x41;
    pub const AER_RSP: u8 = 0x42;
    pub const T_LOGOUT: u8 = 0x80;
    pub const CRED_REQ: u8 = 0x81;
    pub const AER_REQ: u8 = 0x82;
    pub const LOGIN_RSP: u8 = 0xc0;
    pub const RSP: u8 = 0xc1;
    pub const LOGIN_REJ: u8 = 0xc2;
}

/// Why bytes are no information unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IuError {
    /// It ends early.
    #[error("{iu}: {given} bytes, {needed} are needed")]
    Short {
        /// Which.
        iu: &'static str,
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        given: usize,
    },
    /// No type code of this direction.
    #[error("information unit of type {0:#04x}")]
    Type(u8),
    /// A code for the format of data-out descriptors that does not exist here.
    #[error("data-out buffer descriptor format {0:#x}")]
    DataOutFormat(u8),
    /// The same of data-in.
    #[error("data-in buffer descriptor format {0:#x}")]
    DataInFormat(u8),
    /// An indirect table with more entries than are taken, or not of whole entries.
    #[error("an indirect table of {0} bytes: a multiple of 16 up to {max}", max = MAX_DESCRIPTORS * Descriptor::LEN)]
    Table(u32),
    /// More descriptors in the information unit than in the table.
    #[error("{inline} descriptors in the information unit, of a table of {all}")]
    Inline {
        /// In the information unit.
        inline: usize,
        /// In the table.
        all: usize,
    },
}

/// What an initiator sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitiatorIu {
    /// SRP_LOGIN_REQ, which only comes with a connection request.
    Login(LoginRequest),
    /// SRP_TSK_MGMT.
    Manage(TaskManagement),
    /// SRP_CMD; immediate data follow it.
    Command(Box<Command>),
    /// SRP_I_LOGOUT.
    Logout {
        /// Its tag.
        tag: u64,
    },
    /// SRP_CRED_RSP.
    CreditResponse {
        /// The request's tag.
        tag: u64,
    },
    /// SRP_AER_RSP.
    EventResponse {
        /// The request's tag.
        tag: u64,
    },
}

impl InitiatorIu {
    /// Reads one; bytes after it do not matter.
    ///
    /// # Errors
    /// See [`IuError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let Some(&code) = bytes.first() else { return Err(IuError::Short { iu: "IU", needed: 1, given: 0 }) };
        let tag = |iu| Reader::new(iu, bytes, 16).map(|r| r.u64(8));
        Ok(match code {
            code::LOGIN_REQ => Self::Login(LoginRequest::parse(bytes)?),
            code::TSK_MGMT => Self::Manage(TaskManagement::parse(bytes)?),
            code::CMD => Self::Command(Box::new(Command::parse(bytes)?)),
            code::I_LOGOUT => Self::Logout { tag: tag("SRP_I_LOGOUT")? },
            code::CRED_RSP => Self::CreditResponse { tag: tag("SRP_CRED_RSP")? },
            code::AER_RSP => Self::EventResponse { tag: tag("SRP_AER_RSP")? },
            other => return Err(IuError::Type(other)),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Login(login) => login.emit(),
            Self::Manage(manage) => manage.emit(),
            Self::Command(command) => command.emit(),
            Self::Logout { tag } => tagged(code::I_LOGOUT, *tag),
            Self::CreditResponse { tag } => tagged(code::CRED_RSP, *tag),
            Self::EventResponse { tag } => tagged(code::AER_RSP, *tag),
        }
    }
}

/// What a target sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetIu {
    /// SRP_LOGIN_RSP.
    Login(LoginResponse),
    /// SRP_LOGIN_REJ.
    Reject(LoginReject),
    /// SRP_RSP.
    Response(Response),
    /// SRP_T_LOGOUT.
    Logout(TargetLogout),
    /// SRP_CRED_REQ.
    Credit(Credit),
    /// SRP_AER_REQ.
    Event(AsyncEvent),
}

impl TargetIu {
    /// Reads one; bytes after it do not matter.
    ///
    /// # Errors
    /// See [`IuError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let Some(&code) = bytes.first() else { return Err(IuError::Short { iu: "IU", needed: 1, given: 0 }) };
        Ok(match code {
            code::LOGIN_RSP => Self::Login(LoginResponse::parse(bytes)?),
            code::LOGIN_REJ => Self::Reject(LoginReject::parse(bytes)?),
            code::RSP => Self::Response(Response::parse(bytes)?),
            code::T_LOGOUT => Self::Logout(TargetLogout::parse(bytes)?),
            code::CRED_REQ => Self::Credit(Credit::parse(bytes)?),
            code::AER_REQ => Self::Event(AsyncEvent::parse(bytes)?),
            other => return Err(IuError::Type(other)),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Login(login) => login.emit(),
            Self::Reject(reject) => reject.emit(),
            Self::Response(response) => response.emit(),
            Self::Logout(logout) => logout.emit(),
            Self::Credit(credit) => credit.emit(),
            Self::Event(event) => event.emit(),
        }
    }
}

/// An information unit of a type code and a tag.
fn tagged(code: u8, tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[0] = code;
    bytes[8..].copy_from_slice(&tag.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests;
