//! The bytes of NBD: magic numbers, options, requests and replies. doc/proto.md of the NBD project, "Values"; all of it is in
//! network byte order. Nothing here reads a socket, and nothing allocates by a length that a client wrote.

use everywire_block::BlockError;

/// Opens the server's greeting: "NBDMAGIC".
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Opens the greeting's second half and every option: "IHAVEOPT".
pub const I_HAVE_OPTION: u64 = 0x4948_4156_454f_5054;
/// Opens every reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// Handshake flags, the same on both sides: fixed newstyle, and no zeroes after the old reply to EXPORT_NAME.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 1 << 1;

/// Options.
pub const OPTION_EXPORT_NAME: u32 = 1;
pub const OPTION_ABORT: u32 = 2;
pub const OPTION_LIST: u32 = 3;
pub const OPTION_INFO: u32 = 6;
pub const OPTION_GO: u32 = 7;
pub const OPTION_STRUCTURED_REPLY: u32 = 8;

/// Replies to options; those with the top bit are errors.
pub const REPLY_ACK: u32 = 1;
pub const REPLY_SERVER: u32 = 2;
pub const REPLY_INFO: u32 = 3;
pub const REPLY_UNSUPPORTED: u32 = 1 << 31 | 1;
pub const REPLY_INVALID: u32 = 1 << 31 | 3;
pub const REPLY_UNKNOWN: u32 = 1 << 31 | 6;
pub const REPLY_TOO_BIG: u32 = 1 << 31 | 9;

/// What INFO and GO tell.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags.
pub const HAS_FLAGS: u16 = 1;
pub const READ_ONLY: u16 = 1 << 1;
pub const SEND_FLUSH: u16 = 1 << 2;
pub const SEND_FUA: u16 = 1 << 3;
pub const SEND_TRIM: u16 = 1 << 5;
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const SEND_DONT_FRAGMENT: u16 = 1 << 7;
pub const CAN_MULTI_CONN: u16 = 1 << 8;

/// Commands.
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

/// Flags of commands.
pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 1 << 1;
pub const DONT_FRAGMENT: u16 = 1 << 2;

/// Errors, by the numbers that the specification fixes.
pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

/// Bytes of a request's header.
pub const REQUEST_LEN: usize = 28;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;
/// Flag and types of structured chunks.
const CHUNK_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_ERROR: u16 = 1 << 15 | 1;

/// The `N` bytes at `at`; callers have checked the length.
pub fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// A command's header; the data of a write follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    /// The client's name for it, returned as it came.
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    /// `None` where the magic number is another: nothing that follows can be understood.
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Request> {
        (u32::from_be_bytes(field(bytes, 0)) == REQUEST).then(|| Request {
            flags: u16::from_be_bytes(field(bytes, 4)),
            command: u16::from_be_bytes(field(bytes, 6)),
            cookie: u64::from_be_bytes(field(bytes, 8)),
            offset: u64::from_be_bytes(field(bytes, 16)),
            length: u32::from_be_bytes(field(bytes, 24)),
        })
    }

    /// Bytes of data that follow it.
    pub fn payload(&self) -> u32 {
        if self.command == WRITE { self.length } else { 0 }
    }

    /// Bytes of data that it moves, in either direction.
    pub fn data(&self) -> u32 {
        if matches!(self.command, READ | WRITE) { self.length } else { 0 }
    }
}

/// The head of a reply, after which comes a read's data. A read that succeeded on a connection with structured replies is one
/// chunk, so that it is never in fragments; every other command ends with a chunk of no content, or an error.
pub fn reply(request: &Request, structured: bool, result: Result<(), u32>) -> Vec<u8> {
    let mut head = Vec::with_capacity(32);
    if !structured {
        head.extend(SIMPLE_REPLY.to_be_bytes());
        head.extend(result.err().unwrap_or(0).to_be_bytes());
        head.extend(request.cookie.to_be_bytes());
        return head;
    }
    let (kind, length) = match result {
        Ok(()) if request.command == READ => (CHUNK_OFFSET_DATA, 8 + request.length),
        Ok(()) => (CHUNK_NONE, 0),
        Err(_) => (CHUNK_ERROR, 6),
    };
    head.extend(STRUCTURED_REPLY.to_be_bytes());
    head.extend(CHUNK_DONE.to_be_bytes());
    head.extend(kind.to_be_bytes());
    head.extend(request.cookie.to_be_bytes());
    head.extend(length.to_be_bytes());
    match result {
        Ok(()) if request.command == READ => head.extend(request.offset.to_be_bytes()),
        Ok(()) => {}
        Err(error) => {
            head.extend(error.to_be_bytes());
            // No text.
            head.extend([0; 2]);
        }
    }
    head
}

/// A backend's error by NBD's number: a write past the end is ENOSPC, a read there EINVAL ("Request types").
pub fn error_number(error: &BlockError, command: u16) -> u32 {
    match error {
        BlockError::OutOfRange { .. } if matches!(command, WRITE | WRITE_ZEROES) => ENOSPC,
        BlockError::OutOfRange { .. } | BlockError::Misaligned { .. } => EINVAL,
        BlockError::ReadOnly { .. } => EPERM,
        BlockError::NoSpace { .. } => ENOSPC,
        _ => EIO,
    }
}
