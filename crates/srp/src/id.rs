//! Port identifiers: 16 bytes, of which InfiniBand gives both halves a name. SRP annex B.
//!
//! A target port is the I/O unit's identifier extension and the GUID of its controller; an initiator port an extension and the
//! port's GUID. This is revision 16a's order, which Linux uses for I/O class 0100h.

use std::fmt;
use std::str::FromStr;

/// An initiator port identifier or target port identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId {
    /// Identifier extension: of a target `id_ext`, of an initiator `initiator_ext`.
    pub ext: u64,
    /// GUID: of a target's controller `ioc_guid`, of an initiator's port.
    pub guid: u64,
}

impl PortId {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Of its two halves.
    pub const fn new(ext: u64, guid: u64) -> Self {
        Self { ext, guid }
    }

    /// From the wire.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let whole = u128::from_be_bytes(bytes);
        Self { ext: (whole >> 64) as u64, guid: whole as u64 }
    }

    /// To the wire.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        (u128::from(self.ext) << 64 | u128::from(self.guid)).to_be_bytes()
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.ext, self.guid)
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is no port identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}`: a port identifier is 32 hexadecimal digits, or two numbers of 16 with a colon between them (id_ext:ioc_guid)"
)]
pub struct PortIdError(String);

impl FromStr for PortId {
    type Err = PortIdError;

    fn from_str(text: &str) -> Result<Self, PortIdError> {
        let wrong = || PortIdError(text.to_owned());
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let (ext, guid) = match digits.split_once(':') {
            Some(halves) => halves,
            None if digits.len() == 32 && digits.is_ascii() => digits.split_at(16),
            None => return Err(wrong()),
        };
        Ok(Self { ext: parse_half(ext).ok_or_else(wrong)?, guid: parse_half(guid).ok_or_else(wrong)? })
    }
}

/// 1 to 16 hexadecimal digits.
pub fn parse_half(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let hex = (1..=16).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let id = PortId::new(0x5054_00ff_fe77_000b, 0x5054_00ff_fe77_000c);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("505400fffe77000b:505400fffe77000c".parse(), Ok(id));
        assert_eq!("0x1:0xff".parse(), Ok(PortId::new(1, 0xff)));
        for wrong in ["", "1", "x:1", "1:", "+1:2", "12345678901234567:1", "ü505400fffe77000b505400fffe77000"]
        {
            assert!(wrong.parse::<PortId>().is_err(), "{wrong}");
        }
        assert_eq!(PortId::from_bytes(id.to_bytes()), id);
    }
}
