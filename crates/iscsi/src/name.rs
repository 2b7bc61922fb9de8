//! Names of iSCSI nodes: `iqn.`, `eui.` and `naa.`.
//!
//! Read RFC 7143 §4.2.7 and RFC 3722. Names compare as they were prepared: lower case. Characters beyond ASCII are kept as they
//! come, since preparing them (stringprep) is the user interface's task.

use std::fmt;
use std::str::FromStr;

/// Longest name (RFC 7143 §4.2.7.1).
pub const MAX_NAME: usize = 223;

/// The name of an initiator or target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IscsiName(String);

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty or too long.
    #[error("an iSCSI name has 1 to {MAX_NAME} bytes, this one has {0} (RFC 7143 §4.2.7.1)")]
    Length(usize),
    /// None of the three types.
    #[error("an iSCSI name begins with iqn., eui. or naa. (RFC 7143 §4.2.7.2)")]
    Type,
    /// `iqn.` is not followed by a date and a naming authority.
    #[error("an iqn. name goes on with YYYY-MM.reversed.domain (RFC 7143 §4.2.7.3)")]
    Date,
    /// `eui.` or `naa.` is not followed by the digits that it needs.
    #[error("eui. is followed by 16 hexadecimal digits, naa. by 16 or 32 (RFC 7143 §4.2.7.4)")]
    Digits,
    /// A character that names do not have.
    #[error("character {0:?} is not allowed in an iSCSI name (RFC 3722 §6)")]
    Character(char),
}

impl FromStr for IscsiName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<IscsiName, NameError> {
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(NameError::Length(text.len()));
        }
        let name = text.to_lowercase();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':') || !c.is_ascii();
        if let Some(bad) = name.chars().find(|&c| !allowed(c) || c.is_control() || c.is_whitespace()) {
            return Err(NameError::Character(bad));
        }
        match name.split_once('.') {
            Some(("iqn", rest)) => check_date(rest)?,
            Some(("eui", digits)) => check_digits(digits, &[16])?,
            Some(("naa", digits)) => check_digits(digits, &[16, 32])?,
            _ => return Err(NameError::Type),
        }
        Ok(IscsiName(name))
    }
}

fn check_date(rest: &str) -> Result<(), NameError> {
    let bytes = rest.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let well = [0, 1, 2, 3, 5, 6].into_iter().all(digit)
        && bytes[4] == b'-'
        && bytes.get(7) == Some(&b'.')
        && bytes.len() > 8;
    if well { Ok(()) } else { Err(NameError::Date) }
}

fn check_digits(digits: &str, lengths: &[usize]) -> Result<(), NameError> {
    let well = lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if well { Ok(()) } else { Err(NameError::Digits) }
}

impl IscsiName {
    /// The name, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The initiator's part of a session's identity (RFC 7143 §11.12.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// Of the random format (type 2, 80h in the first byte), with a qualifier that tells sessions of one initiator apart.
    pub fn random(entropy: u64, qualifier: u16) -> Isid {
        let [a, b, c, ..] = entropy.to_be_bytes();
        let [hi, lo] = qualifier.to_be_bytes();
        Isid([0x80, a, b, c, hi, lo])
    }
}

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<IscsiName, NameError> {
        text.parse()
    }

    /// Examples of RFC 7143 §4.2.7.
    #[test]
    fn names_of_the_standard() {
        for name in [
            "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
            "iqn.2001-04.com.example",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert_eq!(parse(name).unwrap().as_str(), name.to_lowercase());
        }
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parse("disk"), Err(NameError::Type));
        assert_eq!(parse("iqn.2001.com.example"), Err(NameError::Date));
        assert_eq!(parse("eui.0200"), Err(NameError::Digits));
        assert_eq!(parse("iqn.2001-04.com.example:a b"), Err(NameError::Character(' ')));
        assert!(matches!(parse(&format!("iqn.2001-04.{}", "a".repeat(300))), Err(NameError::Length(_))));
    }
}
