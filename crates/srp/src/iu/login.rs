//! SRP_LOGIN_REQ, SRP_LOGIN_RSP and SRP_LOGIN_REJ: private data of connection management. SRP r16a §6.4–§6.6.
//!
//! Over InfiniBand's own connection manager a login request has the standard's 64 bytes. RDMA/CM leaves 56 of them, so Linux
//! packs the same fields closer there. Immediate data are Linux's extension (of SRP2): asked for by a flag and an offset.

use std::fmt;

use super::field::{Reader, put};
use super::{IuError, RejectReason, code};
use crate::PortId;

/// Bytes of a login request's RDMA/CM form.
pub const RDMA_CM_LOGIN_LEN: usize = 56;
const LOGIN_REQ_LEN: usize = 64;
const LOGIN_RSP_LEN: usize = 52;
const LOGIN_REJ_LEN: usize = 32;
/// Flag of a request and of a response: immediate data.
const IMMEDIATE: u8 = 0x80;
const MULTI_CHANNEL: u8 = 0x03;

/// Buffer descriptor formats, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferFormats(pub u16);

impl BufferFormats {
    /// Direct data buffer descriptors.
    pub const DIRECT: Self = Self(1 << 1);
    /// Indirect data buffer descriptors.
    pub const INDIRECT: Self = Self(1 << 2);
    /// What both ends here have.
    pub const OURS: Self = Self(Self::DIRECT.0 | Self::INDIRECT.0);

    /// Whether these are all among `others`.
    pub const fn within(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }

    /// Whether they have all of `others`.
    pub const fn has(self, others: Self) -> bool {
        others.within(self)
    }
}

impl fmt::Debug for BufferFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "formats {:#06x}", self.0)
    }
}

/// What is to become of channels that the I_T nexus has already (MULTI-CHANNEL ACTION).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MultiChannel {
    /// They end.
    Single,
    /// They stay.
    Multi,
    /// A code that the standard reserves.
    Reserved(u8),
}

impl MultiChannel {
    fn of(flags: u8) -> Self {
        match flags & MULTI_CHANNEL {
            0 => Self::Single,
            1 => Self::Multi,
            other => Self::Reserved(other),
        }
    }

    fn bits(self) -> u8 {
        match self {
            Self::Single => 0,
            Self::Multi => 1,
            Self::Reserved(code) => code & MULTI_CHANNEL,
        }
    }
}

/// SRP_LOGIN_REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// Its tag.
    pub tag: u64,
    /// Longest information unit that the initiator wants to send, in bytes.
    pub it_iu_len: u32,
    /// Formats that it needs.
    pub formats: BufferFormats,
    /// Other channels of the nexus.
    pub multi_channel: MultiChannel,
    /// Where immediate data would begin in an information unit, if the initiator wants to send any.
    pub immediate_offset: Option<u16>,
    /// Initiator port.
    pub initiator: PortId,
    /// Target port.
    pub target: PortId,
}

impl LoginRequest {
    fn flags(&self) -> u8 {
        self.multi_channel.bits() | if self.immediate_offset.is_some() { IMMEDIATE } else { 0 }
    }

    /// Reads the standard's form.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_LOGIN_REQ", bytes, LOGIN_REQ_LEN)?;
        let flags = r.u8(26);
        Ok(Self {
            tag: r.u64(8),
            it_iu_len: r.u32(16),
            formats: BufferFormats(r.u16(24)),
            multi_channel: MultiChannel::of(flags),
            immediate_offset: (flags & IMMEDIATE != 0).then(|| r.u16(28)),
            initiator: r.id(32),
            target: r.id(48),
        })
    }

    /// The standard's form, 64 bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = vec![0; LOGIN_REQ_LEN];
        b[0] = code::LOGIN_REQ;
        put(&mut b, 8, self.tag.to_be_bytes());
        put(&mut b, 16, self.it_iu_len.to_be_bytes());
        put(&mut b, 24, self.formats.0.to_be_bytes());
        b[26] = self.flags();
        put(&mut b, 28, self.immediate_offset.unwrap_or(0).to_be_bytes());
        put(&mut b, 32, self.initiator.to_bytes());
        put(&mut b, 48, self.target.to_bytes());
        b
    }

    /// Reads Linux's form in RDMA/CM's private data.
    ///
    /// # Errors
    /// It is too short, or of another type.
    pub fn parse_rdma_cm(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_LOGIN_REQ", bytes, RDMA_CM_LOGIN_LEN)?;
        if r.u8(11) != code::LOGIN_REQ {
            return Err(IuError::Type(r.u8(11)));
        }
        let flags = r.u8(10);
        Ok(Self {
            tag: r.u64(0),
            it_iu_len: r.u32(12),
            formats: BufferFormats(r.u16(8)),
            multi_channel: MultiChannel::of(flags),
            immediate_offset: (flags & IMMEDIATE != 0).then(|| r.u16(48)),
            initiator: r.id(16),
            target: r.id(32),
        })
    }

    /// Linux's form for RDMA/CM, 56 bytes.
    pub fn emit_rdma_cm(&self) -> Vec<u8> {
        let mut b = vec![0; RDMA_CM_LOGIN_LEN];
        put(&mut b, 0, self.tag.to_be_bytes());
        put(&mut b, 8, self.formats.0.to_be_bytes());
        b[10] = self.flags();
        b[11] = code::LOGIN_REQ;
        put(&mut b, 12, self.it_iu_len.to_be_bytes());
        put(&mut b, 16, self.initiator.to_bytes());
        put(&mut b, 32, self.target.to_bytes());
        put(&mut b, 48, self.immediate_offset.unwrap_or(0).to_be_bytes());
        b
    }
}

/// What became of the channels that the nexus had (MULTI-CHANNEL RESULT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MultiChannelResult {
    /// It had none.
    None,
    /// They were ended.
    Terminated,
    /// They stay.
    Maintained,
    /// A code that the standard reserves.
    Reserved,
}

/// SRP_LOGIN_RSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    /// The request's tag.
    pub tag: u64,
    /// Requests that the initiator may have outstanding.
    pub request_limit_delta: i32,
    /// Longest information unit that the target takes.
    pub max_it_iu_len: u32,
    /// Longest that it sends.
    pub max_ti_iu_len: u32,
    /// Formats that it has.
    pub formats: BufferFormats,
    /// Other channels of the nexus.
    pub multi_channel: MultiChannelResult,
    /// It takes immediate data.
    pub immediate: bool,
}

impl LoginResponse {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_LOGIN_RSP", bytes, LOGIN_RSP_LEN)?;
        let flags = r.u8(26);
        Ok(Self {
            tag: r.u64(8),
            request_limit_delta: r.u32(4) as i32,
            max_it_iu_len: r.u32(16),
            max_ti_iu_len: r.u32(20),
            formats: BufferFormats(r.u16(24)),
            multi_channel: match flags & MULTI_CHANNEL {
                0 => MultiChannelResult::None,
                1 => MultiChannelResult::Terminated,
                2 => MultiChannelResult::Maintained,
                _ => MultiChannelResult::Reserved,
            },
            immediate: flags & IMMEDIATE != 0,
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = vec![0; LOGIN_RSP_LEN];
        b[0] = code::LOGIN_RSP;
        put(&mut b, 4, self.request_limit_delta.to_be_bytes());
        put(&mut b, 8, self.tag.to_be_bytes());
        put(&mut b, 16, self.max_it_iu_len.to_be_bytes());
        put(&mut b, 20, self.max_ti_iu_len.to_be_bytes());
        put(&mut b, 24, self.formats.0.to_be_bytes());
        let channels = match self.multi_channel {
            MultiChannelResult::None => 0,
            MultiChannelResult::Terminated => 1,
            MultiChannelResult::Maintained => 2,
            MultiChannelResult::Reserved => 3,
        };
        b[26] = channels | if self.immediate { IMMEDIATE } else { 0 };
        b
    }
}

/// SRP_LOGIN_REJ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginReject {
    /// The request's tag.
    pub tag: u64,
    /// Why.
    pub reason: RejectReason,
    /// Formats that the target has.
    pub formats: BufferFormats,
}

impl LoginReject {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let r = Reader::new("SRP_LOGIN_REJ", bytes, LOGIN_REJ_LEN)?;
        Ok(Self { tag: r.u64(8), reason: RejectReason(r.u32(4)), formats: BufferFormats(r.u16(24)) })
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = vec![0; LOGIN_REJ_LEN];
        b[0] = code::LOGIN_REJ;
        put(&mut b, 4, self.reason.0.to_be_bytes());
        put(&mut b, 8, self.tag.to_be_bytes());
        put(&mut b, 24, self.formats.0.to_be_bytes());
        b
    }
}
