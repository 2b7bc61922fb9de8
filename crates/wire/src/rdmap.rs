//! RDMAP: the operations of iWARP in their headers.
//!
//! Read RFC 5040 §4 and, for atomics and immediate data, RFC 7306 §5 and §6. The control field is the byte that DDP leaves to
//! its upper layer; which operations are tagged, and which queue the others use, is RFC 5040 §4.1's table
//! ([`RdmapOpcode::queue`]). TERMINATE and its error codes are in [`terminate`]. Nothing here judges.

pub mod terminate;

use crate::field::{get32, get64, head, head_mut, put32, put64};
use crate::{RKey, WireError};

pub use terminate::{LlpError, RdmapError, TaggedError, TermError, Terminate, UntaggedError};

/// RDMAP version of RFC 5040.
pub const VERSION: u8 = 1;

/// Untagged queue of SENDs and immediate data.
pub const SEND_QUEUE: u32 = 0;
/// Untagged queue of READ and atomic requests.
pub const REQUEST_QUEUE: u32 = 1;
/// Untagged queue of the TERMINATE message.
pub const TERMINATE_QUEUE: u32 = 2;
/// Untagged queue of atomic responses (RFC 7306 §5.2).
pub const ATOMIC_RESPONSE_QUEUE: u32 = 3;

/// What a message is (RFC 5040 §4.1, RFC 7306 §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RdmapOpcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA READ request.
    ReadRequest = 1,
    /// RDMA READ response.
    ReadResponse = 2,
    /// SEND.
    Send = 3,
    /// SEND with Invalidate.
    SendInv = 4,
    /// SEND with Solicited Event.
    SendSe = 5,
    /// SEND with Solicited Event and Invalidate.
    SendSeInv = 6,
    /// TERMINATE.
    Terminate = 7,
    /// Immediate data.
    Immediate = 8,
    /// Immediate data with solicited event.
    ImmediateSe = 9,
    /// Atomic request.
    AtomicRequest = 10,
    /// Atomic response.
    AtomicResponse = 11,
}

impl RdmapOpcode {
    /// The operation of a number, if it is one.
    pub const fn from_bits(bits: u8) -> Option<RdmapOpcode> {
        use RdmapOpcode::*;
        Some(match bits {
            0 => Write,
            1 => ReadRequest,
            2 => ReadResponse,
            3 => Send,
            4 => SendInv,
            5 => SendSe,
            6 => SendSeInv,
            7 => Terminate,
            8 => Immediate,
            9 => ImmediateSe,
            10 => AtomicRequest,
            11 => AtomicResponse,
            _ => return None,
        })
    }

    /// The untagged queue it uses; `None` for the tagged ones.
    pub const fn queue(self) -> Option<u32> {
        use RdmapOpcode::*;
        match self {
            Write | ReadResponse => None,
            Send | SendInv | SendSe | SendSeInv | Immediate | ImmediateSe => Some(SEND_QUEUE),
            ReadRequest | AtomicRequest => Some(REQUEST_QUEUE),
            Terminate => Some(TERMINATE_QUEUE),
            AtomicResponse => Some(ATOMIC_RESPONSE_QUEUE),
        }
    }

    /// Whether it asks for an event at the receiver.
    pub const fn solicited(self) -> bool {
        matches!(self, RdmapOpcode::SendSe | RdmapOpcode::SendSeInv | RdmapOpcode::ImmediateSe)
    }

    /// Whether it invalidates an STag of the receiver.
    pub const fn invalidates(self) -> bool {
        matches!(self, RdmapOpcode::SendInv | RdmapOpcode::SendSeInv)
    }
}

/// RDMAP's control field (RFC 5040 §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RdmapControl {
    /// RV, two bits: [`VERSION`].
    pub version: u8,
    /// Two reserved bits; sent as zero.
    pub reserved: u8,
    /// Opcode, four bits.
    pub opcode: u8,
}

impl RdmapControl {
    /// Of an operation, in RFC 5040's version.
    pub const fn new(opcode: RdmapOpcode) -> RdmapControl {
        RdmapControl { version: VERSION, reserved: 0, opcode: opcode as u8 }
    }

    /// From the byte.
    pub const fn from_byte(byte: u8) -> RdmapControl {
        RdmapControl { version: byte >> 6, reserved: byte >> 4 & 3, opcode: byte & 0x0f }
    }

    /// The byte.
    pub const fn to_byte(self) -> u8 {
        self.version << 6 | (self.reserved & 3) << 4 | self.opcode & 0x0f
    }
}

/// Payload of a READ request (RFC 5040 §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadRequest {
    /// The requester's buffer: the responder sends to it.
    pub sink_stag: RKey,
    /// Offset in it.
    pub sink_to: u64,
    /// Bytes.
    pub length: u32,
    /// The responder's buffer.
    pub source_stag: RKey,
    /// Offset in it.
    pub source_to: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads it from the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<ReadRequest, WireError> {
        let b = head::<{ ReadRequest::LEN }>("RDMA READ request", bytes)?;
        Ok(ReadRequest {
            sink_stag: RKey(get32(b, 0)),
            sink_to: get64(b, 4),
            length: get32(b, 12),
            source_stag: RKey(get32(b, 16)),
            source_to: get64(b, 20),
        })
    }

    /// Writes it at the start of `out`. Panics where `out` is shorter than [`ReadRequest::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ ReadRequest::LEN }>("RDMA READ request", out);
        put32(b, 0, self.sink_stag.0);
        put64(b, 4, self.sink_to);
        put32(b, 12, self.length);
        put32(b, 16, self.source_stag.0);
        put64(b, 20, self.source_to);
    }
}

/// Payload of an atomic request (RFC 7306 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicRequest {
    /// 28 reserved bits; sent as zero.
    pub reserved: u32,
    /// AOpCode, four bits: one of the constants.
    pub operation: u8,
    /// The requester's number for it, which the response repeats.
    pub request_id: u32,
    /// The responder's buffer.
    pub stag: RKey,
    /// Offset in it.
    pub to: u64,
    /// What to add or to store.
    pub add_swap: u64,
    /// Add: bits where a carry stops (0: none does). Swap: bits that are stored.
    pub add_swap_mask: u64,
    /// What to compare with.
    pub compare: u64,
    /// Bits that are compared.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 52;
    /// AOpCode of FetchAdd.
    pub const FETCH_ADD: u8 = 0;
    /// AOpCode of CmpSwap.
    pub const COMPARE_SWAP: u8 = 2;

    /// Reads it from the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<AtomicRequest, WireError> {
        let b = head::<{ AtomicRequest::LEN }>("RDMAP atomic request", bytes)?;
        let first = get32(b, 0);
        Ok(AtomicRequest {
            reserved: first >> 4,
            operation: (first & 0x0f) as u8,
            request_id: get32(b, 4),
            stag: RKey(get32(b, 8)),
            to: get64(b, 12),
            add_swap: get64(b, 20),
            add_swap_mask: get64(b, 28),
            compare: get64(b, 36),
            compare_mask: get64(b, 44),
        })
    }

    /// Writes it at the start of `out`. Panics where `out` is shorter than [`AtomicRequest::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ AtomicRequest::LEN }>("RDMAP atomic request", out);
        put32(b, 0, self.reserved << 4 | u32::from(self.operation & 0x0f));
        put32(b, 4, self.request_id);
        put32(b, 8, self.stag.0);
        put64(b, 12, self.to);
        put64(b, 20, self.add_swap);
        put64(b, 28, self.add_swap_mask);
        put64(b, 36, self.compare);
        put64(b, 44, self.compare_mask);
    }
}

/// Payload of an atomic response (RFC 7306 §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicResponse {
    /// Number of the request.
    pub request_id: u32,
    /// The value before.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads it from the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<AtomicResponse, WireError> {
        let b = head::<{ AtomicResponse::LEN }>("RDMAP atomic response", bytes)?;
        Ok(AtomicResponse { request_id: get32(b, 0), original: get64(b, 4) })
    }

    /// Writes it at the start of `out`. Panics where `out` is shorter than [`AtomicResponse::LEN`].
    pub fn emit(&self, out: &mut [u8]) {
        let b = head_mut::<{ AtomicResponse::LEN }>("RDMAP atomic response", out);
        put32(b, 0, self.request_id);
        put64(b, 4, self.original);
    }
}

#[cfg(test)]
mod tests;
