//! NVMe and NVMe over Fabrics on the wire: bytes in, structures out, and back, bit for bit.
//!
//! Every multi-byte field is little-endian (NVMe Base 2.0 §1.4.2). Structures keep reserved fields that real peers set,
//! so that what was parsed is emitted unchanged. Nothing here decides whether a command is allowed: see [`crate::target`].

#[macro_use]
mod layout;

pub mod cm;
pub mod command;
pub mod discovery;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod log;
pub mod properties;
pub mod sgl;
pub mod status;

pub use command::{AdminOpcode, Cqe, IoOpcode, Sqe};
pub use layout::Field;
pub use sgl::{Keyed, Sgl, SglKind};
pub use status::Status;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PduError {
    /// Too few bytes.
    #[error("{what}: {have} bytes where {need} are needed")]
    Truncated {
        /// The structure.
        what: &'static str,
        /// Its length in bytes.
        need: usize,
        /// What there was.
        have: usize,
    },
    /// A field with a value that its structure does not allow.
    #[error("{what}: {field} is {value:#x}")]
    Invalid {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}
