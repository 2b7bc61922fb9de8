//! NVMe Qualified Names: syntax and the name every discovery subsystem answers to. NVMe Base 2.0 §4.5.
//! What this does not check: that the domain was owned by anybody at the date given.

use std::fmt;
use std::str::FromStr;

/// The well-known discovery subsystem. NVMe Base 2.0 §4.5.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Longest NQN in bytes, without the terminating zero. NVMe Base 2.0 §4.5.
pub const MAX_NQN_LEN: usize = 223;

/// A syntactically valid NQN.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

/// Why a name is no NQN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NqnError {
    /// Empty.
    #[error("the NQN is empty")]
    Empty,
    /// Over 223 bytes.
    #[error("the NQN has {0} bytes; at most {MAX_NQN_LEN} are allowed")]
    TooLong(usize),
    /// Not `nqn.YYYY-MM.domain`.
    #[error("`{0}` is no NQN: it must look like nqn.2026-01.org.example:name")]
    Form(String),
    /// Not UTF-8, or has control characters.
    #[error("the NQN is not printable UTF-8")]
    Text,
    /// No terminating zero in its field.
    #[error("the NQN field has no terminating zero")]
    Unterminated,
}

impl Nqn {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the well-known discovery NQN.
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY_NQN
    }

    /// The well-known discovery NQN.
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.into())
    }

    /// Reads a zero-terminated, zero-padded field.
    pub fn from_field(field: &[u8; 256]) -> Result<Self, NqnError> {
        let len = field.iter().position(|&b| b == 0).ok_or(NqnError::Unterminated)?;
        std::str::from_utf8(&field[..len]).map_err(|_| NqnError::Text)?.parse()
    }

    /// The name in a zero-padded field.
    pub fn to_field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        if text.is_empty() {
            return Err(NqnError::Empty);
        }
        if text.len() > MAX_NQN_LEN {
            return Err(NqnError::TooLong(text.len()));
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(NqnError::Text);
        }
        if !has_form(text) {
            return Err(NqnError::Form(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

/// `nqn.YYYY-MM.` and a reversed domain, optionally `:` and any text.
fn has_form(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("nqn.") else { return false };
    let bytes = rest.as_bytes();
    let digits =
        |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|d| d.iter().all(u8::is_ascii_digit));
    let month = rest.get(5..7).and_then(|m| m.parse::<u8>().ok());
    let dated = digits(0..4)
        && bytes.get(4) == Some(&b'-')
        && digits(5..7)
        && month.is_some_and(|m| (1..=12).contains(&m))
        && bytes.get(7) == Some(&b'.');
    let domain = rest.get(8..).unwrap_or_default().split(':').next().unwrap_or_default();
    dated && domain.split('.').all(|label| !label.is_empty())
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names() {
        for name in [
            DISCOVERY_NQN,
            "nqn.2026-01.lab:s1",
            "nqn.2014-08.org.nvmexpress:uuid:9b04fe4d-5424-49c3-8bce-82dcf6642f73",
            "nqn.2016-06.io.spdk:cnode1",
        ] {
            let nqn: Nqn = name.parse().expect(name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
    }

    #[test]
    fn bad_names() {
        for name in [
            "nqn",
            "iqn.2014-08.org",
            "nqn.2014-13.org:a",
            "nqn.14-08.org:a",
            "nqn.2014-08.:a",
            "nqn.2014-08",
        ] {
            assert!(matches!(name.parse::<Nqn>(), Err(NqnError::Form(_))), "{name}");
        }
        assert_eq!("".parse::<Nqn>(), Err(NqnError::Empty));
        let long = format!("nqn.2014-08.org:{}", "x".repeat(MAX_NQN_LEN));
        assert!(matches!(long.parse::<Nqn>(), Err(NqnError::TooLong(_))));
        assert_eq!("nqn.2014-08.org:a b".parse::<Nqn>(), Err(NqnError::Text));
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::Unterminated));
        assert_eq!(Nqn::from_field(&[0xff; 256]), Err(NqnError::Unterminated));
    }
}
