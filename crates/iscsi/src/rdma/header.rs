//! Messages of iSER in front of PDUs, and what the connection manager carries.
//!
//! Read RFC 7145 §9.2–§9.5 and §5.1. A header is 28 bytes: the layout with 64-bit base offsets, which every implementation on
//! InfiniBand and RoCE speaks, and which RFC 7145 made the only one.

/// Bytes of every header.
pub const HEADER_LEN: usize = 28;
/// Opcodes (§9.1).
const CONTROL: u8 = 1;
const HELLO: u8 = 2;
const HELLO_REPLY: u8 = 3;
/// Flags of a control-type header (§9.3).
const WRITE_VALID: u8 = 0x08;
const READ_VALID: u8 = 0x04;
const REJECT: u8 = 0x01;

/// A buffer that the target may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// Steering tag (remote key).
    pub stag: u32,
    /// Where the command's data begins.
    pub base: u64,
}

/// In front of an iSCSI control-type PDU (§9.3). Tags that are not valid are kept as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlHeader {
    /// Where the target reads from.
    pub write: Option<Tagged>,
    /// Where the target writes to.
    pub read: Option<Tagged>,
}

/// iSER Hello (§9.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Highest version known.
    pub max_version: u8,
    /// Lowest version known.
    pub min_version: u8,
    /// RDMA READs that this side takes at once (iSER-IRD).
    pub ird: u16,
}

/// iSER HelloReply (§9.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloReply {
    /// The connection is refused.
    pub reject: bool,
    /// Highest version known.
    pub max_version: u8,
    /// Version in use.
    pub version: u8,
    /// RDMA READs that the target will have outstanding (iSER-ORD).
    pub ord: u16,
}

/// A message's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// A PDU follows.
    Control(ControlHeader),
    /// Alone.
    Hello(Hello),
    /// Alone.
    HelloReply(HelloReply),
}

/// Why a message is none of iSER's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Shorter than a header.
    #[error("an iSER message of {0} bytes, a header has {HEADER_LEN} (RFC 7145 §9.2)")]
    Short(usize),
    /// A reserved opcode.
    #[error("iSER opcode {0} is reserved (RFC 7145 §9.2)")]
    Opcode(u8),
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn tagged(bytes: &[u8], at: usize) -> Tagged {
    Tagged {
        stag: word(bytes, at),
        base: u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at + 8)),
    }
}

fn put(bytes: &mut [u8], tagged: Tagged) {
    bytes[..4].copy_from_slice(&tagged.stag.to_be_bytes());
    bytes[4..12].copy_from_slice(&tagged.base.to_be_bytes());
}

impl Header {
    /// The header at the start of a message.
    ///
    /// # Errors
    /// See [`HeaderError`].
    pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
        if bytes.len() < HEADER_LEN {
            return Err(HeaderError::Short(bytes.len()));
        }
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        match bytes[0] >> 4 {
            CONTROL => Ok(Header::Control(ControlHeader {
                write: (bytes[0] & WRITE_VALID != 0).then(|| tagged(bytes, 4)),
                read: (bytes[0] & READ_VALID != 0).then(|| tagged(bytes, 16)),
            })),
            HELLO => Ok(Header::Hello(Hello {
                max_version: bytes[1] >> 4,
                min_version: bytes[1] & 15,
                ird: half(2),
            })),
            HELLO_REPLY => Ok(Header::HelloReply(HelloReply {
                reject: bytes[0] & REJECT != 0,
                max_version: bytes[1] >> 4,
                version: bytes[1] & 15,
                ord: half(2),
            })),
            other => Err(HeaderError::Opcode(other)),
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        match self {
            Header::Control(header) => {
                bytes[0] = CONTROL << 4;
                if let Some(write) = header.write {
                    bytes[0] |= WRITE_VALID;
                    put(&mut bytes[4..], write);
                }
                if let Some(read) = header.read {
                    bytes[0] |= READ_VALID;
                    put(&mut bytes[16..], read);
                }
            }
            Header::Hello(hello) => {
                bytes[0] = HELLO << 4;
                bytes[1] = hello.max_version << 4 | hello.min_version & 15;
                bytes[2..4].copy_from_slice(&hello.ird.to_be_bytes());
            }
            Header::HelloReply(reply) => {
                bytes[0] = HELLO_REPLY << 4 | if reply.reject { REJECT } else { 0 };
                bytes[1] = reply.max_version << 4 | reply.version & 15;
                bytes[2..4].copy_from_slice(&reply.ord.to_be_bytes());
            }
        }
        bytes
    }
}

/// The byte of private data by which Linux's ends tell what they can, both ways: a set bit is a lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrivateData {
    /// Addresses are not zero-based: base offsets are the buffers' addresses.
    pub no_zero_based: bool,
    /// SEND with Invalidate is not used.
    pub no_send_invalidate: bool,
}

impl PrivateData {
    const NO_ZERO_BASED: u8 = 0x80;
    const NO_SEND_INVALIDATE: u8 = 0x40;

    /// From what the peer sent; without it the peer is older and has neither.
    pub fn parse(bytes: &[u8]) -> PrivateData {
        let flags = bytes.first().copied().unwrap_or(Self::NO_ZERO_BASED | Self::NO_SEND_INVALIDATE);
        PrivateData {
            no_zero_based: flags & Self::NO_ZERO_BASED != 0,
            no_send_invalidate: flags & Self::NO_SEND_INVALIDATE != 0,
        }
    }

    /// Four bytes, three of them reserved.
    pub fn emit(self) -> [u8; 4] {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = flag(self.no_zero_based, Self::NO_ZERO_BASED)
            | flag(self.no_send_invalidate, Self::NO_SEND_INVALIDATE);
        [flags, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two headers of Linux's initiator, from captures/iser.pcap: a login, and a READ with its tag.
    #[test]
    fn headers_of_linux() {
        let mut login = [0; HEADER_LEN];
        login[0] = 0x10;
        assert_eq!(Header::parse(&login), Ok(Header::Control(ControlHeader::default())));
        let read = [
            0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x00, 0x75, 0x00, 0xff, 0x11, 0x00,
            0x00, 0x07, 0xbd, 0xdf, 0x00,
        ];
        let tagged = Tagged { stag: 0x7500, base: 0xff11_0000_07bd_df00 };
        let header = Header::Control(ControlHeader { write: None, read: Some(tagged) });
        assert_eq!(Header::parse(&read), Ok(header));
        assert_eq!(header.emit(), read);
    }

    #[test]
    fn private_data_of_linux() {
        // facts: 80h both ways.
        let data = PrivateData::parse(&[0x80, 0, 0, 0]);
        assert_eq!(data, PrivateData { no_zero_based: true, no_send_invalidate: false });
        assert_eq!(data.emit(), [0x80, 0, 0, 0]);
        assert!(PrivateData::parse(&[]).no_send_invalidate);
    }

    #[test]
    fn reserved_and_short_are_refused() {
        assert_eq!(Header::parse(&[0x10; 27]), Err(HeaderError::Short(27)));
        assert_eq!(Header::parse(&[0xf0; 28]), Err(HeaderError::Opcode(15)));
    }
}
