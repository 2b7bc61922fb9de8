//! Why bytes did not parse.
//!
//! One small error for the whole crate: which header, and either how many bytes were missing or which value was not
//! allowed. It knows neither addresses nor connections; the caller adds who sent the bytes.

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The buffer ends before the header or message does.
    #[error("{what} is cut short: it needs {need} bytes and {have} are there")]
    Truncated {
        /// The header or message.
        what: &'static str,
        /// Bytes that it needs.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// A field holds a value that the standard does not allow (or a checksum does not match).
    #[error("{what} has a value that is not allowed: {value:#x}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}
