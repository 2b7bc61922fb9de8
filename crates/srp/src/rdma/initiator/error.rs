//! Why an initiator's call failed: both addresses, the target port, the step, the reason by name and number.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_scsi::{Sense, Status};
use everywire_verbs::{CmError, CmErrorKind, VerbsError};

use crate::PortId;
use crate::iu::{LogoutReason, RejectReason, ResponseCode, TargetIu};

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SrpErrorKind {
    /// The connection could not be made.
    #[error("{0}")]
    Cm(CmError),
    /// The target refused the login.
    #[error("login refused: {0}")]
    Refused(RejectReason),
    /// The device refused.
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    /// The target broke the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The channel was lost.
    #[error("channel lost: {0}")]
    Lost(String),
    /// The target ended the channel.
    #[error("logged out by the target: {0}")]
    LoggedOut(LogoutReason),
    /// The command ended with another status than GOOD.
    #[error("status {status}{}", sense_text(.sense))]
    Status {
        /// Its status.
        status: Status,
        /// Its sense data.
        sense: Vec<u8>,
    },
    /// A task management function ended the command.
    #[error("the command was aborted")]
    Aborted,
    /// A task management function did not succeed.
    #[error("{} (response code {:#04x})", .0.as_str(), .0.0)]
    Management(ResponseCode),
    /// No answer.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The target was lost for longer than allowed.
    #[error("the peer is gone: not reconnected within {after:?}; last attempt: {last}")]
    GivenUp {
        /// How long it was tried.
        after: Duration,
        /// The last failure.
        last: String,
    },
    /// The initiator logged out.
    #[error("the initiator has logged out")]
    LoggedOutHere,
    /// The caller asked for something that cannot be.
    #[error("{0}")]
    Argument(String),
}

fn sense_text(sense: &[u8]) -> String {
    Sense::parse(sense).map_or_else(String::new, |sense| format!(": {sense}"))
}

/// A failure, and where.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}{remote}, target port {target}: {step}: {kind}", from(.local))]
pub struct SrpError {
    /// Our address, if it was chosen.
    pub local: Option<SocketAddr>,
    /// The target's.
    pub remote: SocketAddr,
    /// Its port.
    pub target: PortId,
    /// What was being done.
    pub step: &'static str,
    /// What went wrong.
    pub kind: Box<SrpErrorKind>,
}

fn from(local: &Option<SocketAddr>) -> String {
    local.map_or_else(String::new, |local| format!("{local} -> "))
}

impl SrpError {
    /// Sense data of a command that ended with CHECK CONDITION.
    pub fn sense(&self) -> Option<Sense> {
        match &*self.kind {
            SrpErrorKind::Status { sense, .. } => Sense::parse(sense),
            _ => None,
        }
    }

    /// Whether another attempt may succeed without anything being changed.
    pub(super) fn may_retry(&self) -> bool {
        match &*self.kind {
            SrpErrorKind::Cm(_)
            | SrpErrorKind::Lost(_)
            | SrpErrorKind::LoggedOut(_)
            | SrpErrorKind::Timeout(_) => true,
            // The target comes up piece by piece, and may still have our last channel.
            SrpErrorKind::Refused(reason) => *reason != RejectReason::UNSUPPORTED_FORMAT,
            _ => false,
        }
    }
}

/// Who an error is about.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: SocketAddr,
    pub(super) target: PortId,
}

impl Who {
    pub(super) fn error(&self, step: &'static str, kind: impl Into<SrpErrorKind>) -> SrpError {
        let (local, remote, target) = (self.local, self.remote, self.target);
        SrpError { local, remote, target, step, kind: Box::new(kind.into()) }
    }
}

impl From<CmError> for SrpErrorKind {
    /// A rejection that carries SRP_LOGIN_REJ is told by that.
    fn from(error: CmError) -> Self {
        let CmErrorKind::Rejected { private_data, .. } = error.kind() else { return Self::Cm(error) };
        match TargetIu::parse(private_data) {
            Ok(TargetIu::Reject(reject)) => Self::Refused(reject.reason),
            _ => Self::Cm(error),
        }
    }
}
