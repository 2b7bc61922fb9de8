//! Text as it lies in login and text PDUs: `key=value` pairs, each ended by a zero byte, over PDUs joined by the C bit.
//!
//! Read RFC 7143 §6.1 (syntax, binary values), §6.2 (C bit). Bounded: bytes of one text, pairs, lengths of keys and values.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Bytes of one text over all its PDUs; the standard wants at least 64 KiB to be taken (§6.2).
pub const MAX_TEXT: usize = 64 << 10;
/// Pairs of one text.
pub const MAX_PAIRS: usize = 256;
/// Longest key (§6.1).
pub const MAX_KEY: usize = 63;
/// Longest value: a binary value of 1024 bytes in hexadecimal, with some room (§6.1 allows 255 where nothing else is said).
pub const MAX_VALUE: usize = 8192;
/// Longest binary value of CHAP (§12.1.3).
pub const MAX_BINARY: usize = 1024;

/// Why a text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// More than [`MAX_TEXT`] bytes.
    #[error("a text of more than {MAX_TEXT} bytes (RFC 7143 §6.2)")]
    TooLong,
    /// More than [`MAX_PAIRS`] pairs.
    #[error("more than {MAX_PAIRS} keys in one text")]
    TooMany,
    /// No `=`, or a key that is none.
    #[error("{0:?} is no key=value pair (RFC 7143 §6.1)")]
    NoPair(String),
    /// Not UTF-8, or without a zero byte at the end.
    #[error("text that is not UTF-8, or is not ended by a zero byte (RFC 7143 §6.1)")]
    NoText,
    /// A value over its limit.
    #[error("the value of {0} has {1} bytes")]
    LongValue(String, usize),
    /// A key that came before in this login.
    #[error("{0} came a second time (RFC 7143 §6.2)")]
    Twice(String),
    /// A value of the wrong form.
    #[error("{key}={value}: {wanted}")]
    Value {
        /// The key.
        key: String,
        /// What came.
        value: String,
        /// What should.
        wanted: &'static str,
    },
}

/// Pairs in their order.
pub type Pairs = Vec<(String, String)>;

/// Joins the PDUs of one text.
#[derive(Debug, Default)]
pub struct TextBuffer(Vec<u8>);

impl TextBuffer {
    /// One PDU's data more.
    ///
    /// # Errors
    /// [`TextError::TooLong`].
    pub fn push(&mut self, data: &[u8]) -> Result<(), TextError> {
        if self.0.len() + data.len() > MAX_TEXT {
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// True before the first PDU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pairs; empties the buffer.
    ///
    /// # Errors
    /// See [`TextError`].
    pub fn take(&mut self) -> Result<Pairs, TextError> {
        parse(&std::mem::take(&mut self.0))
    }
}

/// The pairs of a text.
///
/// # Errors
/// See [`TextError`].
pub fn parse(bytes: &[u8]) -> Result<Pairs, TextError> {
    if bytes.len() > MAX_TEXT {
        return Err(TextError::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| TextError::NoText)?;
    if !text.is_empty() && !text.ends_with('\0') {
        return Err(TextError::NoText);
    }
    let mut pairs = Pairs::new();
    // Some senders pad with zero bytes that they count as data.
    for pair in text.split('\0').filter(|pair| !pair.is_empty()) {
        if pairs.len() == MAX_PAIRS {
            return Err(TextError::TooMany);
        }
        let short = || pair.chars().take(MAX_KEY).collect();
        let (key, value) = pair.split_once('=').ok_or_else(|| TextError::NoPair(short()))?;
        if !is_key(key) {
            return Err(TextError::NoPair(short()));
        }
        if value.len() > MAX_VALUE {
            return Err(TextError::LongValue(key.to_owned(), value.len()));
        }
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// A capital letter, then letters, digits and a few signs; two of the standards' own begin with an `i` all the same.
fn is_key(key: &str) -> bool {
    let rest =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b'@' | b'_' | b'/' | b'#');
    key.len() <= MAX_KEY
        && key.bytes().next().is_some_and(|b| b.is_ascii_uppercase() || b == b'i')
        && key.bytes().all(rest)
}

/// The bytes of a text.
pub fn emit<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in pairs {
        bytes.extend_from_slice(key.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    bytes
}

fn wrong(key: &str, value: &str, wanted: &'static str) -> TextError {
    let value = value.chars().take(80).collect();
    TextError::Value { key: key.to_owned(), value, wanted }
}

/// A number in decimal or hexadecimal (§6.1).
///
/// # Errors
/// [`TextError::Value`].
pub fn number(key: &str, value: &str) -> Result<u32, TextError> {
    let digits = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let parsed = match digits {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => u32::from_str_radix(hex, 16).ok(),
        None if value.bytes().all(|b| b.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    };
    parsed.ok_or_else(|| wrong(key, value, "a number of at most 32 bits is needed"))
}

/// `Yes` or `No`.
///
/// # Errors
/// [`TextError::Value`].
pub fn boolean(key: &str, value: &str) -> Result<bool, TextError> {
    match value {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err(wrong(key, value, "Yes or No is needed")),
    }
}

/// A binary value: `0x…` or `0b…` (base64), of at most [`MAX_BINARY`] bytes.
///
/// # Errors
/// [`TextError::Value`].
pub fn binary(key: &str, value: &str) -> Result<Vec<u8>, TextError> {
    let bad =
        || wrong(key, value, "0x and hexadecimal digits, or 0b and base64, of at most 1024 bytes are needed");
    let (prefix, digits) = value.split_at_checked(2).ok_or_else(bad)?;
    let bytes = match prefix {
        "0x" | "0X" => from_hex(digits),
        "0b" | "0B" => BASE64.decode(digits).ok(),
        _ => None,
    };
    bytes.filter(|bytes| !bytes.is_empty() && bytes.len() <= MAX_BINARY).ok_or_else(bad)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |b: u8| char::from(b).to_digit(16).map(|n| n as u8);
    // An odd number of digits begins with half a byte.
    let (head, pairs) = digits.as_bytes().split_at(digits.len() % 2);
    let head = head.iter().map(|&b| nibble(b));
    head.chain(pairs.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))).collect()
}

/// A binary value in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("0x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_in_order_and_join_over_pdus() {
        let mut buffer = TextBuffer::default();
        buffer.push(b"InitiatorName=iqn.2001-04.com.exa").unwrap();
        buffer.push(b"mple\0SessionType=Normal\0").unwrap();
        let pairs = buffer.take().unwrap();
        assert_eq!(pairs[0], ("InitiatorName".to_owned(), "iqn.2001-04.com.example".to_owned()));
        assert_eq!(pairs[1].1, "Normal");
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_no_text_is_named() {
        assert_eq!(parse(b"A=1"), Err(TextError::NoText));
        assert_eq!(parse(b"novalue\0"), Err(TextError::NoPair("novalue".to_owned())));
        assert_eq!(parse(b"low=1\0"), Err(TextError::NoPair("low=1".to_owned())));
        assert_eq!(parse(&b"A=1\0".repeat(MAX_PAIRS + 1)), Err(TextError::TooMany));
        assert_eq!(parse(&vec![0; MAX_TEXT + 1]), Err(TextError::TooLong));
        assert!(matches!(
            parse(&[b"A=", &[b'x'; MAX_VALUE + 1][..], &[0]].concat()),
            Err(TextError::LongValue(..))
        ));
    }

    /// RFC 7143 §6.1: decimal, hexadecimal and base64 constants.
    #[test]
    fn constants() {
        assert_eq!(number("K", "262144"), Ok(262144));
        assert_eq!(number("K", "0x1F"), Ok(31));
        assert!(
            number("K", "-1").is_err() && number("K", "4294967296").is_err() && number("K", "0x+1").is_err()
        );
        assert_eq!(binary("K", "0x0aFF"), Ok(vec![0x0a, 0xff]));
        assert_eq!(binary("K", "0xfff"), Ok(vec![0x0f, 0xff]));
        assert_eq!(binary("K", "0bCv8="), Ok(vec![0x0a, 0xff]));
        assert!(binary("K", "0x").is_err() && binary("K", "12").is_err() && binary("K", "0xg0").is_err());
        assert!(
            binary("K", &hex(&[0; MAX_BINARY])).is_ok() && binary("K", &hex(&[0; MAX_BINARY + 1])).is_err()
        );
        assert!(boolean("K", "yes").is_err());
    }
}
