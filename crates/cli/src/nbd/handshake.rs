//! Negotiation: doc/proto.md of the NBD project, "Fixed newstyle negotiation". Sans-IO: it says how many bytes it needs next,
//! takes exactly those, and appends what is to be sent.
//!
//! Every length that a client names is checked against [`MAX_OPTION`] before anything is kept; what is longer is passed over
//! and refused, as is an option that this server does not know. What would take long to pass over is refused at once, and ends it.

use super::wire::*;
use super::{Export, MAX_PAYLOAD};

/// Bytes of an option's data that are looked at: two names of the longest kind (4096 bytes) and their frame fit.
pub const MAX_OPTION: u32 = 16 << 10;
/// Bytes of an option's data that are passed over.
const MAX_SKIPPED: u32 = 1 << 20;
/// Options that a client may try before it is sent away.
const MAX_OPTIONS: u32 = 64;
/// Bytes of an option's head: magic number, option, length.
const HEAD_LEN: usize = 16;
/// Zeroes after the old reply to EXPORT_NAME.
const PADDING: usize = 124;
/// Block sizes below which a client should not go, for speed.
const PREFERRED_BLOCK: u32 = 4096;

/// What the bytes led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More is needed.
    More,
    /// Commands follow; replies are structured or not.
    Transmission { structured: bool },
    /// The client has had its answer, and the connection ends.
    Leave,
}

/// Why a connection ends in the middle of its negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Flags that no server here offered.
    #[error("client flags {0:#010x}: only fixed newstyle and no-zeroes are known")]
    Flags(u32),
    /// Not an option.
    #[error("an option begins with {0:#018x}, not with IHAVEOPT")]
    Magic(u64),
    /// EXPORT_NAME has no error reply.
    #[error("EXPORT_NAME asks for an export that is not here")]
    Export,
    /// It never comes to the point.
    #[error("more than {MAX_OPTIONS} options")]
    Options,
}

enum Phase {
    Flags,
    Head,
    Data { option: u32, length: u32 },
    Skip { option: u32, left: u32 },
}

/// One connection's negotiation.
pub struct Handshake<'a> {
    export: &'a Export,
    phase: Phase,
    no_zeroes: bool,
    structured: bool,
    options: u32,
}

impl<'a> Handshake<'a> {
    /// Begins one; the greeting goes to `out`.
    pub fn new(export: &'a Export, out: &mut Vec<u8>) -> Handshake<'a> {
        out.extend(GREETING.to_be_bytes());
        out.extend(I_HAVE_OPTION.to_be_bytes());
        out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        Handshake { export, phase: Phase::Flags, no_zeroes: false, structured: false, options: 0 }
    }

    /// Bytes that [`Handshake::take`] is to be given next.
    pub fn wants(&self) -> usize {
        match self.phase {
            Phase::Flags => 4,
            Phase::Head => HEAD_LEN,
            Phase::Data { length, .. } => length as usize,
            Phase::Skip { left, .. } => left.min(MAX_OPTION) as usize,
        }
    }

    /// Takes them; what is to be sent goes to `out`.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        match self.phase {
            Phase::Flags => self.take_flags(u32::from_be_bytes(field(bytes, 0)))?,
            Phase::Head => {
                let magic = u64::from_be_bytes(field(bytes, 0));
                if magic != I_HAVE_OPTION {
                    return Err(HandshakeError::Magic(magic));
                }
                self.options += 1;
                if self.options > MAX_OPTIONS {
                    return Err(HandshakeError::Options);
                }
                let option = u32::from_be_bytes(field(bytes, 8));
                let length = u32::from_be_bytes(field(bytes, 12));
                self.phase = match length {
                    0 => return self.answer(option, &[], out),
                    _ if length > MAX_SKIPPED && option == OPTION_EXPORT_NAME => {
                        return Err(HandshakeError::Export);
                    }
                    _ if length > MAX_SKIPPED => {
                        reply_to(option, REPLY_TOO_BIG, &[], out);
                        return Ok(Step::Leave);
                    }
                    _ if length > MAX_OPTION => Phase::Skip { option, left: length },
                    _ => Phase::Data { option, length },
                };
            }
            Phase::Data { option, .. } => return self.answer(option, bytes, out),
            Phase::Skip { option, left } => {
                let left = left - bytes.len() as u32;
                self.phase = Phase::Skip { option, left };
                if left == 0 {
                    self.phase = Phase::Head;
                    if option == OPTION_EXPORT_NAME {
                        return Err(HandshakeError::Export);
                    }
                    reply_to(option, REPLY_TOO_BIG, &[], out);
                }
            }
        }
        Ok(Step::More)
    }

    fn take_flags(&mut self, flags: u32) -> Result<(), HandshakeError> {
        // "The server MUST drop the connection" for flags that it does not know.
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(HandshakeError::Flags(flags));
        }
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        self.phase = Phase::Head;
        Ok(())
    }

    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        self.phase = Phase::Head;
        match option {
            OPTION_EXPORT_NAME => {
                if !self.is_ours(data) {
                    return Err(HandshakeError::Export);
                }
                out.extend(self.export.geometry.bytes().to_be_bytes());
                out.extend(self.flags().to_be_bytes());
                if !self.no_zeroes {
                    out.extend([0; PADDING]);
                }
                return Ok(Step::Transmission { structured: self.structured });
            }
            OPTION_ABORT => {
                reply_to(option, REPLY_ACK, &[], out);
                return Ok(Step::Leave);
            }
            OPTION_LIST | OPTION_STRUCTURED_REPLY if !data.is_empty() => {
                reply_to(option, REPLY_INVALID, &[], out);
            }
            OPTION_LIST => {
                let name = self.export.name.as_bytes();
                let entry = [&(name.len() as u32).to_be_bytes()[..], name].concat();
                reply_to(option, REPLY_SERVER, &entry, out);
                reply_to(option, REPLY_ACK, &[], out);
            }
            OPTION_STRUCTURED_REPLY => {
                self.structured = true;
                reply_to(option, REPLY_ACK, &[], out);
            }
            OPTION_INFO | OPTION_GO => return Ok(self.tell(option, data, out)),
            _ => reply_to(option, REPLY_UNSUPPORTED, &[], out),
        }
        Ok(Step::More)
    }

    /// INFO and GO: a name and the pieces of information that are asked for.
    fn tell(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = parse_info(data) else {
            reply_to(option, REPLY_INVALID, &[], out);
            return Step::More;
        };
        if !self.is_ours(name) {
            reply_to(option, REPLY_UNKNOWN, &[], out);
            return Step::More;
        }
        let mut info = |kind: u16, parts: &[&[u8]]| {
            reply_to(option, REPLY_INFO, &[&[&kind.to_be_bytes()[..]], parts].concat().concat(), out);
        };
        let geometry = &self.export.geometry;
        info(INFO_EXPORT, &[&geometry.bytes().to_be_bytes(), &self.flags().to_be_bytes()]);
        let smallest = geometry.block_size;
        let sizes = [smallest, smallest.max(PREFERRED_BLOCK), MAX_PAYLOAD].map(u32::to_be_bytes);
        info(INFO_BLOCK_SIZE, &[&sizes.concat()]);
        if wanted.contains(&INFO_NAME) {
            info(INFO_NAME, &[self.export.name.as_bytes()]);
        }
        if wanted.contains(&INFO_DESCRIPTION) {
            info(INFO_DESCRIPTION, &[self.export.description.as_bytes()]);
        }
        reply_to(option, REPLY_ACK, &[], out);
        if option == OPTION_GO { Step::Transmission { structured: self.structured } } else { Step::More }
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    /// Transmission flags; "don't fragment" only goes with structured replies.
    fn flags(&self) -> u16 {
        let flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_WRITE_ZEROES | CAN_MULTI_CONN;
        let geometry = &self.export.geometry;
        flags
            | if geometry.read_only { READ_ONLY } else { 0 }
            | if geometry.discard { SEND_TRIM } else { 0 }
            | if self.structured { SEND_DONT_FRAGMENT } else { 0 }
    }
}

/// The name and the information asked for; `None` if lengths do not add up.
fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let (count, wanted) = rest.split_first_chunk::<2>()?;
    if wanted.len() != 2 * usize::from(u16::from_be_bytes(*count)) {
        return None;
    }
    Some((name, wanted.chunks_exact(2).map(|kind| u16::from_be_bytes(field(kind, 0))).collect()))
}

fn reply_to(option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend(OPTION_REPLY.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}
