//! What a target sends on an established channel: SRP_RSP, SRP_CRED_REQ, SRP_AER_REQ, SRP_T_LOGOUT. SRP r16a §6.8, §6.10–§6.14.
//!
//! Response data come before sense data. SRP_AER_REQ is 36 bytes before its sense data, packed.

use everywire_scsi::target::Residual;

use super::field::{Reader, put};
use super::{IuError, LogoutReason, code};

const RSP_LEN: usize = 36;
const CRED_REQ_LEN: usize = 16;
const AER_REQ_LEN: usize = 36;
const T_LOGOUT_LEN: usize = 16;

/// Flags of SRP_RSP.
const RSPVALID: u8 = 1 << 0;
const SNSVALID: u8 = 1 << 1;
const DOOVER: u8 = 1 << 2;
const DOUNDER: u8 = 1 << 3;
const DIOVER: u8 = 1 << 4;
const DIUNDER: u8 = 1 << 5;
/// RSP_CODE's place in the response data, and their length.
const RSP_CODE: usize = 3;
const RSP_DATA_LEN: usize = 4;

/// RSP_CODE: how a task management function ended, or what was wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseCode(pub u8);

impl ResponseCode {
    /// The function is complete.
    pub const COMPLETE: Self = Self(0x00);
    /// A field of the request is invalid.
    pub const INVALID_FIELDS: Self = Self(0x02);
    /// No such function here.
    pub const NOT_SUPPORTED: Self = Self(0x04);
    /// The function failed.
    pub const FAILED: Self = Self(0x05);

    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::COMPLETE => "no failure",
            Self::INVALID_FIELDS => "request fields invalid",
            Self::NOT_SUPPORTED => "task management function not supported",
            Self::FAILED => "task management function failed",
            _ => "a response code that the standard does not know",
        }
    }
}

/// SRP_RSP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Response {
    /// The initiator asked to be notified.
    pub solicited: bool,
    /// Requests more that it may have outstanding, or fewer.
    pub request_limit_delta: i32,
    /// Tag of the command or function.
    pub tag: u64,
    /// SCSI status.
    pub status: u8,
    /// Data-out lengths that differ.
    pub out_residual: Residual,
    /// Data-in lengths that differ.
    pub in_residual: Residual,
    /// RSP_CODE, of task management and of requests that could not be taken.
    pub code: Option<ResponseCode>,
    /// Sense data.
    pub sense: Vec<u8>,
}

fn residual(count: u32, over: bool, under: bool) -> Residual {
    match (over, under) {
        (true, _) => Residual::Over(count),
        (_, true) => Residual::Under(count),
        _ => Residual::None,
    }
}

fn parts(residual: Residual, over: u8, under: u8) -> (u8, u32) {
    match residual {
        Residual::None => (0, 0),
        Residual::Over(count) => (over, count),
        Residual::Under(count) => (under, count),
    }
}

impl Response {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        const IU: &str = "SRP_RSP";
        let r = Reader::new(IU, bytes, RSP_LEN)?;
        let flags = r.u8(18);
        let len = |flag, at| if flags & flag != 0 { r.u32(at) as usize } else { 0 };
        let (sense_len, data_len) = (len(SNSVALID, 28), len(RSPVALID, 32));
        let end = RSP_LEN.saturating_add(data_len).saturating_add(sense_len);
        Reader::new(IU, bytes, end)?;
        let data = &bytes[RSP_LEN..RSP_LEN + data_len];
        Ok(Self {
            solicited: r.u8(1) & 1 != 0,
            request_limit_delta: r.u32(4) as i32,
            tag: r.u64(8),
            status: r.u8(19),
            out_residual: residual(r.u32(20), flags & DOOVER != 0, flags & DOUNDER != 0),
            in_residual: residual(r.u32(24), flags & DIOVER != 0, flags & DIUNDER != 0),
            code: data.get(RSP_CODE).map(|&code| ResponseCode(code)),
            sense: bytes[RSP_LEN + data_len..end].to_vec(),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let data_len = if self.code.is_some() { RSP_DATA_LEN } else { 0 };
        let mut b = vec![0; RSP_LEN + data_len];
        let (out_flag, out_count) = parts(self.out_residual, DOOVER, DOUNDER);
        let (in_flag, in_count) = parts(self.in_residual, DIOVER, DIUNDER);
        b[0] = code::RSP;
        b[1] = self.solicited.into();
        put(&mut b, 4, self.request_limit_delta.to_be_bytes());
        put(&mut b, 8, self.tag.to_be_bytes());
        b[18] = out_flag | in_flag;
        b[19] = self.status;
        put(&mut b, 20, out_count.to_be_bytes());
        put(&mut b, 24, in_count.to_be_bytes());
        if let Some(code) = self.code {
            b[18] |= RSPVALID;
            put(&mut b, 32, (data_len as u32).to_be_bytes());
            b[RSP_LEN + RSP_CODE] = code.0;
        }
        if !self.sense.is_empty() {
            b[18] |= SNSVALID;
            put(&mut b, 28, (self.sense.len() as u32).to_be_bytes());
            b.extend_from_slice(&self.sense);
        }
        b
    }
}

/// SRP_CRED_REQ: nothing but a change of the request limit. It is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// The initiator asked to be notified.
    pub solicited: bool,
    /// Requests more, or fewer.
    pub request_limit_delta: i32,
    /// Its tag.
    pub tag: u64,
}

impl Credit {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_CRED_REQ", bytes, CRED_REQ_LEN)?;
        Ok(Self { solicited: r.u8(1) & 1 != 0, request_limit_delta: r.u32(4) as i32, tag: r.u64(8) })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = super::tagged(code::CRED_REQ, self.tag);
        b[1] = self.solicited.into();
        put(&mut b, 4, self.request_limit_delta.to_be_bytes());
        b
    }
}

/// SRP_AER_REQ: sense data that belong to no command. It is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The initiator asked to be notified.
    pub solicited: bool,
    /// Requests more, or fewer.
    pub request_limit_delta: i32,
    /// Its tag.
    pub tag: u64,
    /// Logical unit number.
    pub lun: u64,
    /// Sense data.
    pub sense: Vec<u8>,
}

impl AsyncEvent {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        const IU: &str = "SRP_AER_REQ";
        let r = Reader::new(IU, bytes, AER_REQ_LEN)?;
        let end = AER_REQ_LEN.saturating_add(r.u32(28) as usize);
        Reader::new(IU, bytes, end)?;
        Ok(Self {
            solicited: r.u8(1) & 1 != 0,
            request_limit_delta: r.u32(4) as i32,
            tag: r.u64(8),
            lun: r.u64(20),
            sense: bytes[AER_REQ_LEN..end].to_vec(),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = vec![0; AER_REQ_LEN];
        b[0] = code::AER_REQ;
        b[1] = self.solicited.into();
        put(&mut b, 4, self.request_limit_delta.to_be_bytes());
        put(&mut b, 8, self.tag.to_be_bytes());
        put(&mut b, 20, self.lun.to_be_bytes());
        put(&mut b, 28, (self.sense.len() as u32).to_be_bytes());
        b.extend_from_slice(&self.sense);
        b
    }
}

/// SRP_T_LOGOUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetLogout {
    /// The initiator asked to be notified.
    pub solicited: bool,
    /// Why.
    pub reason: LogoutReason,
    /// Its tag.
    pub tag: u64,
}

impl TargetLogout {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_T_LOGOUT", bytes, T_LOGOUT_LEN)?;
        Ok(Self { solicited: r.u8(1) & 1 != 0, reason: LogoutReason(r.u32(4)), tag: r.u64(8) })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = super::tagged(code::T_LOGOUT, self.tag);
        b[1] = self.solicited.into();
        put(&mut b, 4, self.reason.0.to_be_bytes());
        b
    }
}
