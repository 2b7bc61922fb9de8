//! Why a verbs call was refused: who, what, and which rule or limit.
//!
//! Read DESIGN §4 (errors carry blame). All of these blame the caller or the device's resources; what peers do ends up in
//! completions, events and counters. [`VerbsError::errno`] gives the number libibverbs would report, always positive.

use everywire_transport::ib::qp_state::ModifyError;
use everywire_transport::ib::{AttrError, PostError};

use crate::memory::{NoMemory, RangeError};

/// The kind of a [`VerbsError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument the standard or the device does not allow (EINVAL).
    InvalidArgument,
    /// The object is not in a state that allows this (EINVAL).
    InvalidState,
    /// A limit of the device is reached, or the system has no memory (ENOMEM).
    OutOfResources,
    /// Something still depends on the object (EBUSY).
    Busy,
    /// The device does not offer this (EOPNOTSUPP).
    NotSupported,
    /// The address cannot be reached from here (EHOSTUNREACH).
    Unreachable,
    /// The object has failed and must be made anew (EIO).
    Failed,
}

/// A refused call. Displays as `DEVICE: what happened`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who}: {what}")]
pub struct VerbsError {
    who: String,
    what: String,
    kind: ErrorKind,
}

impl VerbsError {
    /// An error of `who` ("ew0", "ew0 QP 0x1234").
    pub(crate) fn new(kind: ErrorKind, who: impl Into<String>, what: impl Into<String>) -> VerbsError {
        VerbsError { who: who.into(), what: what.into(), kind }
    }

    /// More asked for than a limit of the device attributes allows.
    pub(crate) fn limit(who: &str, name: &'static str, asked: u64, limit: u64) -> VerbsError {
        let what = format!("{name}: {asked} asked for, but the device's limit is {limit}");
        VerbsError::new(ErrorKind::InvalidArgument, who, what)
    }

    /// One more than a limit of the device attributes allows.
    pub(crate) fn full(who: &str, name: &'static str, limit: u64) -> VerbsError {
        let what = format!("{name}: all {limit} are in use");
        VerbsError::new(ErrorKind::OutOfResources, who, what)
    }

    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The object that refused.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// The rule or limit, in words.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The number libibverbs would report, positive.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::InvalidArgument | ErrorKind::InvalidState => 22,
            ErrorKind::OutOfResources => 12,
            ErrorKind::Busy => 16,
            ErrorKind::NotSupported => 95,
            ErrorKind::Unreachable => 113,
            ErrorKind::Failed => 5,
        }
    }

    pub(crate) fn attr(who: &str, error: &AttrError) -> VerbsError {
        VerbsError::new(ErrorKind::InvalidArgument, who, error.to_string())
    }

    pub(crate) fn modify(who: String, error: &ModifyError) -> VerbsError {
        VerbsError::new(ErrorKind::InvalidArgument, who, error.to_string())
    }

    pub(crate) fn no_memory(who: &str, error: NoMemory) -> VerbsError {
        VerbsError::new(ErrorKind::OutOfResources, who, error.to_string())
    }

    pub(crate) fn range(who: &str, error: RangeError) -> VerbsError {
        VerbsError::new(ErrorKind::InvalidArgument, who, error.to_string())
    }
}

/// A refused list of work requests: those before `index` were posted, those from it on were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the list: {error}")]
pub struct PostListError {
    /// The first work request that was refused (`bad_wr`).
    pub index: usize,
    /// Why.
    pub error: PostError,
}
