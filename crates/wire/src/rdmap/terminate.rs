//! The TERMINATE message: the last word on an iWARP stream, and the table of what can be wrong.
//!
//! Read RFC 5040 §4.8 and its table of error types and codes, RFC 5041 §8.2 and RFC 5044 §8 for the layers below, and RFC
//! 6581 §8 for three more codes of MPA; all of them are IANA's "Remote Direct Data Placement" registry (RFC 6580). An error names its layer, its type and a code; the headers of what caused it follow
//! where they are known. Which error answers what is the transport's business.

use crate::WireError;
use crate::ddp::DdpHeader;
use crate::field::{get16, head};
use crate::rdmap::ReadRequest;

/// Errors of RDMAP's types 1 (remote protection) and 2 (remote operation); the numbers are the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RdmapError {
    /// Invalid STag.
    InvalidStag = 0,
    /// Base or bounds violation.
    BaseBounds = 1,
    /// Access rights violation.
    AccessRights = 2,
    /// STag not associated with the RDMAP stream.
    StagNotAssociated = 3,
    /// TO wrap.
    ToWrap = 4,
    /// Invalid RDMAP version.
    Version = 5,
    /// Unexpected opcode.
    UnexpectedOpcode = 6,
    /// Catastrophic error, localized to the RDMAP stream.
    CatastrophicStream = 7,
    /// Catastrophic error, global.
    CatastrophicGlobal = 8,
    /// STag cannot be invalidated.
    CannotInvalidate = 9,
    /// Unspecified.
    Unspecified = 0xff,
}

/// Errors of DDP's type 1, tagged buffer; the numbers are the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaggedError {
    /// Invalid STag.
    InvalidStag = 0,
    /// Base or bounds violation.
    BaseBounds = 1,
    /// STag not associated with the DDP stream.
    StagNotAssociated = 2,
    /// TO wrap.
    ToWrap = 3,
    /// Invalid DDP version.
    Version = 4,
}

/// Errors of DDP's type 2, untagged buffer; the numbers are the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum UntaggedError {
    /// Invalid queue number.
    InvalidQn = 1,
    /// Invalid MSN: no buffer available.
    NoBuffer = 2,
    /// Invalid MSN: outside the valid range.
    MsnRange = 3,
    /// Invalid message offset.
    InvalidMo = 4,
    /// Message too long for the buffer.
    TooLong = 5,
    /// Invalid DDP version.
    Version = 6,
}

/// Errors of the lower layer, MPA; the numbers are the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LlpError {
    /// TCP connection closed, terminated or lost.
    ConnectionLost = 1,
    /// CRC does not match.
    Crc = 2,
    /// Marker and ULPDU length do not fit together.
    Marker = 3,
    /// Invalid start frame. Never on the wire: the connection is closed at once (RFC 5044 §8).
    StartFrame = 4,
    /// Local catastrophic error (RFC 6581).
    Catastrophic = 5,
    /// Insufficient IRD resources (RFC 6581).
    InsufficientIrd = 6,
    /// No ready-to-receive option in common (RFC 6581).
    NoMatchingRtr = 7,
}

/// What a TERMINATE message says: layer, error type and code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TermError {
    /// Four bits: 0 RDMAP, 1 DDP, 2 the lower layer.
    pub layer: u8,
    /// Error type within the layer, four bits.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
}

impl TermError {
    /// RDMAP's local catastrophic error.
    pub const LOCAL_CATASTROPHIC: TermError = TermError { layer: 0, etype: 0, code: 0 };

    /// RDMAP, remote protection error.
    pub const fn protection(error: RdmapError) -> TermError {
        TermError { layer: 0, etype: 1, code: error as u8 }
    }

    /// RDMAP, remote operation error.
    pub const fn operation(error: RdmapError) -> TermError {
        TermError { layer: 0, etype: 2, code: error as u8 }
    }

    /// DDP, tagged buffer error.
    pub const fn tagged(error: TaggedError) -> TermError {
        TermError { layer: 1, etype: 1, code: error as u8 }
    }

    /// DDP, untagged buffer error.
    pub const fn untagged(error: UntaggedError) -> TermError {
        TermError { layer: 1, etype: 2, code: error as u8 }
    }

    /// The lower layer.
    pub const fn llp(error: LlpError) -> TermError {
        TermError { layer: 2, etype: 0, code: error as u8 }
    }

    /// Three bytes in one number: layer and type, then the code. For logs and `vendor_err`.
    pub const fn to_u16(self) -> u16 {
        (self.layer as u16 & 0x0f) << 12 | (self.etype as u16 & 0x0f) << 8 | self.code as u16
    }

    /// In the standard's words.
    pub fn text(self) -> &'static str {
        match (self.layer, self.etype, self.code) {
            (0, 0, _) => "RDMAP: local catastrophic error",
            (0, 1 | 2, code) => rdmap_text(code),
            (1, 0, _) => "DDP: local catastrophic error",
            (1, 1, 0) => "DDP: invalid STag",
            (1, 1, 1) => "DDP: base or bounds violation",
            (1, 1, 2) => "DDP: STag not associated with the DDP stream",
            (1, 1, 3) => "DDP: TO wrap",
            (1, 1, 4) | (1, 2, 6) => "DDP: invalid DDP version",
            (1, 2, 1) => "DDP: invalid queue number",
            (1, 2, 2) => "DDP: invalid MSN, no buffer available",
            (1, 2, 3) => "DDP: invalid MSN, outside the valid range",
            (1, 2, 4) => "DDP: invalid message offset",
            (1, 2, 5) => "DDP: message too long for the available buffer",
            (2, 0, 1) => "MPA: TCP connection closed, terminated or lost",
            (2, 0, 2) => "MPA: CRC error",
            (2, 0, 3) => "MPA: marker and ULPDU length mismatch",
            (2, 0, 4) => "MPA: invalid start frame",
            (2, 0, 5) => "MPA: local catastrophic error",
            (2, 0, 6) => "MPA: insufficient IRD resources",
            (2, 0, 7) => "MPA: no matching RTR option",
            _ => "unknown error",
        }
    }
}

fn rdmap_text(code: u8) -> &'static str {
    match code {
        0 => "RDMAP: invalid STag",
        1 => "RDMAP: base or bounds violation",
        2 => "RDMAP: access rights violation",
        3 => "RDMAP: STag not associated with the RDMAP stream",
        4 => "RDMAP: TO wrap",
        5 => "RDMAP: invalid RDMAP version",
        6 => "RDMAP: unexpected opcode",
        7 => "RDMAP: catastrophic error, localized to the stream",
        8 => "RDMAP: catastrophic error, global",
        9 => "RDMAP: STag cannot be invalidated",
        _ => "RDMAP: unspecified error",
    }
}

impl std::fmt::Display for TermError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}/{}/{:#04x})", self.text(), self.layer, self.etype, self.code)
    }
}

/// A TERMINATE message (RFC 5040 §4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// What is wrong.
    pub error: TermError,
    /// 13 reserved bits; sent as zero.
    pub reserved: u16,
    /// Length of the DDP segment that caused it (the M bit), the header included.
    pub segment_len: Option<u16>,
    /// Its DDP header (the D bit).
    pub ddp: Option<DdpHeader>,
    /// Its READ request (the R bit).
    pub read: Option<ReadRequest>,
}

impl Terminate {
    /// Bytes of the control field.
    const CONTROL_LEN: usize = 4;
    /// Bytes of the longest message.
    pub const MAX_LEN: usize = Terminate::CONTROL_LEN + 2 + DdpHeader::UNTAGGED_LEN + ReadRequest::LEN;

    /// Of an error without headers.
    pub const fn new(error: TermError) -> Terminate {
        Terminate { error, reserved: 0, segment_len: None, ddp: None, read: None }
    }

    /// Reads it from the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Terminate, WireError> {
        let b = head::<{ Terminate::CONTROL_LEN }>("TERMINATE", bytes)?;
        let error = TermError { layer: b[0] >> 4, etype: b[0] & 0x0f, code: b[1] };
        let mut term = Terminate { reserved: get16(b, 2) & 0x1fff, ..Terminate::new(error) };
        let mut rest = &bytes[Terminate::CONTROL_LEN..];
        if b[2] & 0x80 != 0 {
            term.segment_len = Some(get16(head::<2>("TERMINATE's DDP segment length", rest)?, 0));
            rest = &rest[2..];
        }
        if b[2] & 0x40 != 0 {
            let ddp = DdpHeader::parse(rest)?;
            rest = &rest[ddp.header_len()..];
            term.ddp = Some(ddp);
        }
        if b[2] & 0x20 != 0 {
            term.read = Some(ReadRequest::parse(rest)?);
        }
        Ok(term)
    }

    /// Appends it to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let bits = (self.segment_len.is_some() as u16) << 15
            | (self.ddp.is_some() as u16) << 14
            | (self.read.is_some() as u16) << 13
            | self.reserved & 0x1fff;
        out.extend_from_slice(&[self.error.layer << 4 | self.error.etype & 0x0f, self.error.code]);
        out.extend_from_slice(&bits.to_be_bytes());
        if let Some(length) = self.segment_len {
            out.extend_from_slice(&length.to_be_bytes());
        }
        if let Some(ddp) = &self.ddp {
            let mut header = [0; DdpHeader::UNTAGGED_LEN];
            ddp.emit(&mut header);
            out.extend_from_slice(&header[..ddp.header_len()]);
        }
        if let Some(read) = &self.read {
            let mut header = [0; ReadRequest::LEN];
            read.emit(&mut header);
            out.extend_from_slice(&header);
        }
    }
}
