//! Errors of backend commands. Each names the operation, the byte range and the limit or the cause below it.
//! How a protocol reports them (an NVMe status, SCSI sense) is the protocol's table, not this one's.

use std::fmt;
use std::io;

/// Which command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOp {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Write zeroes.
    WriteZeroes,
    /// Discard.
    Discard,
}

impl fmt::Display for BlockOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::WriteZeroes => "write zeroes",
            Self::Discard => "discard",
        })
    }
}

/// Why a backend command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The range passes the end of the backend, or wraps.
    #[error("{op} of {len} bytes at {offset} passes the end of the backend ({size} bytes)")]
    OutOfRange {
        /// The command.
        op: BlockOp,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Size of the backend in bytes.
        size: u64,
    },
    /// Offset or length is no multiple of the block size.
    #[error("{op} of {len} bytes at {offset} is not a multiple of the {block_size}-byte block")]
    Misaligned {
        /// The command.
        op: BlockOp,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// The logical block size.
        block_size: u32,
    },
    /// The backend was opened read-only.
    #[error("{op} refused: the backend is read-only")]
    ReadOnly {
        /// The command.
        op: BlockOp,
    },
    /// Somebody else has reserved the blocks for himself.
    #[error("{op} refused: the volume is reserved for others")]
    Reserved {
        /// The command.
        op: BlockOp,
    },
    /// The medium cannot be used now; later it may.
    #[error("{op} refused: {why}")]
    NotReady {
        /// The command.
        op: BlockOp,
        /// Why not.
        why: &'static str,
    },
    /// The file system, quota or memory is full.
    #[error("{op} at {offset}: no space left")]
    NoSpace {
        /// The command.
        op: BlockOp,
        /// First byte of the command.
        offset: u64,
    },
    /// The storage below reported an error.
    #[error("{op} at {offset}: {source}")]
    Io {
        /// The command.
        op: BlockOp,
        /// First byte of the command.
        offset: u64,
        /// What the operating system said.
        source: io::Error,
    },
    /// An earlier flush failed: data it covered may be gone, so no later flush may claim success.
    #[error("flush refused: an earlier flush failed ({first}); data written before it may be lost")]
    FlushLost {
        /// The first failure's text.
        first: String,
    },
}

impl BlockError {
    /// Maps an operating-system error number of `op` at byte `offset`.
    pub(crate) fn from_os(op: BlockOp, offset: u64, errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::ENOMEM => Self::NoSpace { op, offset },
            libc::EROFS => Self::ReadOnly { op },
            _ => Self::Io { op, offset, source: io::Error::from_raw_os_error(errno) },
        }
    }
}
