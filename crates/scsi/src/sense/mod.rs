//! Sense data: made, sent in fixed or descriptor format, and read again. SPC-4 §4.5.
//!
//! [`Sense`] is what a failure means; [`SenseData`] is its bytes. Fixed format holds 4 bytes of INFORMATION: a larger
//! value leaves VALID at 0 (§4.5.3), descriptor format carries all 8. The sense-key specific field points at the first
//! wrong byte, and bit where one is known (§4.5.2.4.2).
//! What this does not do: ACA, and the descriptors that only stream devices have.

mod codes;

use std::fmt;

pub use codes::{Asc, SenseKey};

use crate::bytes::{put, u8_at, u16_at, u32_at, u64_at};
use crate::status::Status;

/// Bytes of fixed-format sense data as sent: up to the sense-key specific field.
pub const FIXED_LEN: usize = 18;
/// Longest sense data that is sent: header, information, command specific, sense-key specific.
const MAX_LEN: usize = 8 + 12 + 12 + 8;

const FIXED_CURRENT: u8 = 0x70;
const FIXED_DEFERRED: u8 = 0x71;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const DESCRIPTOR_DEFERRED: u8 = 0x73;
const INFORMATION: u8 = 0x00;
const COMMAND_SPECIFIC: u8 = 0x01;
const KEY_SPECIFIC: u8 = 0x02;

/// The sense-key specific field. SPC-4 §4.5.2.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySpecific {
    /// ILLEGAL REQUEST: where the error is.
    Field {
        /// In the CDB, or else in the parameter list.
        in_cdb: bool,
        /// Byte counted from 0.
        byte: u16,
        /// The most significant wrong bit of it.
        bit: Option<u8>,
    },
    /// NOT READY or NO SENSE: how much is done, in 65536ths.
    Progress(u16),
    /// COPY ABORTED: which descriptor, and where in it.
    Segment {
        /// Counted within the segment descriptor, or else the parameter list.
        in_segment: bool,
        /// Byte counted from 0.
        byte: u16,
    },
}

impl KeySpecific {
    fn emit(self) -> [u8; 3] {
        let (flags, value) = match self {
            Self::Field { in_cdb, byte, bit } => {
                (u8::from(in_cdb) << 6 | bit.map_or(0, |bit| 8 | bit & 7), byte)
            }
            Self::Progress(done) => (0, done),
            Self::Segment { in_segment, byte } => (u8::from(in_segment) << 5, byte),
        };
        let [high, low] = value.to_be_bytes();
        [0x80 | flags, high, low]
    }

    fn parse(key: SenseKey, bytes: [u8; 3]) -> Option<Self> {
        let [flags, high, low] = bytes;
        if flags & 0x80 == 0 {
            return None;
        }
        let value = u16::from_be_bytes([high, low]);
        match key {
            SenseKey::ILLEGAL_REQUEST => Some(Self::Field {
                in_cdb: flags & 0x40 != 0,
                byte: value,
                bit: (flags & 8 != 0).then_some(flags & 7),
            }),
            SenseKey::COPY_ABORTED => Some(Self::Segment { in_segment: flags & 0x20 != 0, byte: value }),
            SenseKey::NOT_READY | SenseKey::NO_SENSE => Some(Self::Progress(value)),
            _ => None,
        }
    }
}

/// What a CHECK CONDITION means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code and qualifier.
    pub asc: Asc,
    /// INFORMATION: an LBA, or the offset of the first byte that differs.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION.
    pub command_specific: u64,
    /// Sense-key specific field.
    pub specific: Option<KeySpecific>,
    /// The error belongs to an earlier command.
    pub deferred: bool,
}

impl Sense {
    /// A key and a code.
    pub const fn new(key: SenseKey, asc: Asc) -> Self {
        Self { key, asc, information: None, command_specific: 0, specific: None, deferred: false }
    }

    /// ILLEGAL REQUEST with `asc`.
    pub const fn illegal(asc: Asc) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, asc)
    }

    /// INVALID FIELD IN CDB, at `byte`.
    pub const fn cdb_field(byte: u16) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_CDB).at(true, byte, None)
    }

    /// INVALID FIELD IN CDB, at bit `bit` of `byte`.
    pub const fn cdb_bit(byte: u16, bit: u8) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_CDB).at(true, byte, Some(bit))
    }

    /// INVALID FIELD IN PARAMETER LIST, at `byte`.
    pub const fn parameter(byte: u16) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).at(false, byte, None)
    }

    /// PARAMETER LIST LENGTH ERROR.
    pub const fn list_length() -> Self {
        Self::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)
    }

    /// UNIT ATTENTION with `asc`.
    pub const fn attention(asc: Asc) -> Self {
        Self::new(SenseKey::UNIT_ATTENTION, asc)
    }

    /// The same, pointing at a byte of the CDB or of the parameter list.
    pub const fn at(mut self, in_cdb: bool, byte: u16, bit: Option<u8>) -> Self {
        self.specific = Some(KeySpecific::Field { in_cdb, byte, bit });
        self
    }

    /// The same, with INFORMATION.
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Its bytes: descriptor format when the control mode page's D_SENSE is 1.
    pub fn emit(&self, descriptor: bool) -> SenseData {
        if descriptor { self.emit_descriptor() } else { self.emit_fixed() }
    }

    fn emit_fixed(&self) -> SenseData {
        let mut data = SenseData { bytes: [0; MAX_LEN], len: FIXED_LEN as u8 };
        let bytes = &mut data.bytes;
        bytes[0] = if self.deferred { FIXED_DEFERRED } else { FIXED_CURRENT };
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= 0x80;
            put(bytes, 3, information.to_be_bytes());
        }
        bytes[2] = self.key.0 & 0xf;
        bytes[7] = (FIXED_LEN - 8) as u8;
        put(bytes, 8, u32::try_from(self.command_specific).unwrap_or(0).to_be_bytes());
        put(bytes, 12, self.asc.0.to_be_bytes());
        if let Some(specific) = self.specific {
            put(bytes, 15, specific.emit());
        }
        data
    }

    fn emit_descriptor(&self) -> SenseData {
        let mut data = SenseData { bytes: [0; MAX_LEN], len: 0 };
        let bytes = &mut data.bytes;
        bytes[0] = if self.deferred { DESCRIPTOR_DEFERRED } else { DESCRIPTOR_CURRENT };
        bytes[1] = self.key.0 & 0xf;
        put(bytes, 2, self.asc.0.to_be_bytes());
        let mut at = 8;
        if let Some(information) = self.information {
            put(bytes, at, [INFORMATION, 10, 0x80, 0]);
            put(bytes, at + 4, information.to_be_bytes());
            at += 12;
        }
        if self.command_specific != 0 {
            put(bytes, at, [COMMAND_SPECIFIC, 10]);
            put(bytes, at + 4, self.command_specific.to_be_bytes());
            at += 12;
        }
        if let Some(specific) = self.specific {
            put(bytes, at, [KEY_SPECIFIC, 6]);
            put(bytes, at + 4, specific.emit());
            at += 8;
        }
        bytes[7] = (at - 8) as u8;
        data.len = at as u8;
        data
    }

    /// Reads sense data of either format; `None` for a response code that is neither, or for less than the codes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? & 0x7f {
            FIXED_CURRENT | FIXED_DEFERRED if bytes.len() >= 3 => Some(Self::parse_fixed(bytes)),
            DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED if bytes.len() >= 4 => {
                Some(Self::parse_descriptor(bytes))
            }
            _ => None,
        }
    }

    fn parse_fixed(bytes: &[u8]) -> Self {
        // Bytes past ADDITIONAL SENSE LENGTH are not sense data, whatever the transport padded with.
        let bytes = &bytes[..bytes.len().min(8 + usize::from(u8_at(bytes, 7)))];
        let key = SenseKey(u8_at(bytes, 2) & 0xf);
        Self {
            key,
            asc: Asc(u16_at(bytes, 12)),
            information: (u8_at(bytes, 0) & 0x80 != 0).then(|| u64::from(u32_at(bytes, 3))),
            command_specific: u64::from(u32_at(bytes, 8)),
            specific: KeySpecific::parse(key, [u8_at(bytes, 15), u8_at(bytes, 16), u8_at(bytes, 17)]),
            deferred: u8_at(bytes, 0) & 0x7f == FIXED_DEFERRED,
        }
    }

    fn parse_descriptor(bytes: &[u8]) -> Self {
        let mut sense = Self::new(SenseKey(bytes[1] & 0xf), Asc(u16_at(bytes, 2)));
        sense.deferred = bytes[0] & 0x7f == DESCRIPTOR_DEFERRED;
        let end = bytes.len().min(8 + usize::from(u8_at(bytes, 7)));
        let mut rest = bytes.get(8..end).unwrap_or_default();
        while rest.len() >= 2 {
            let len = (2 + usize::from(rest[1])).min(rest.len());
            let (descriptor, after) = rest.split_at(len);
            match descriptor[0] {
                INFORMATION if u8_at(descriptor, 2) & 0x80 != 0 => {
                    sense.information = Some(u64_at(descriptor, 4));
                }
                COMMAND_SPECIFIC => sense.command_specific = u64_at(descriptor, 4),
                KEY_SPECIFIC => {
                    let field = [u8_at(descriptor, 4), u8_at(descriptor, 5), u8_at(descriptor, 6)];
                    sense.specific = KeySpecific::parse(sense.key, field);
                }
                _ => {}
            }
            rest = after;
        }
        sense
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.key, self.asc)?;
        match self.specific {
            Some(KeySpecific::Field { in_cdb, byte, bit }) => {
                write!(f, " (byte {byte}")?;
                if let Some(bit) = bit {
                    write!(f, " bit {bit}")?;
                }
                write!(f, " of the {})", if in_cdb { "CDB" } else { "parameter list" })
            }
            Some(KeySpecific::Progress(done)) => write!(f, " ({} % done)", u32::from(done) * 100 / 65536),
            Some(KeySpecific::Segment { byte, .. }) => write!(f, " (byte {byte})"),
            None => Ok(()),
        }?;
        self.information.map_or(Ok(()), |value| write!(f, ", information {value}"))
    }
}

/// Sense data as it travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SenseData {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl std::ops::Deref for SenseData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for SenseData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Sense::parse(self) {
            Some(sense) => write!(f, "sense data ({sense})"),
            None => f.write_str("sense data"),
        }
    }
}

/// Why a command did not end with GOOD status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// CHECK CONDITION with this sense.
    Check(Sense),
    /// Another status, which has no sense data.
    Status(Status),
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

#[cfg(test)]
mod tests;
