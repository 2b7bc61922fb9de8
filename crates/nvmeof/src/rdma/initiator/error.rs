//! Why an initiator's call failed: both addresses, the subsystem, the step, the status by name and number.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everywire_verbs::{CmError, CmErrorKind, VerbsError};

use crate::pdu::cm::{CmReject, CmStatus};
use crate::pdu::fabrics::InvalidParameter;
use crate::pdu::{Cqe, PduError, Status};
use crate::{Nqn, Scoped};

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeErrorKind {
    /// The connection could not be made.
    #[error("{0}")]
    Cm(CmError),
    /// The controller refused the connection.
    #[error("connection refused: {0}")]
    Refused(CmStatus),
    /// The command failed.
    #[error("{0}")]
    Status(Status),
    /// Connect failed over one of its parameters.
    #[error("{status}: {parameter}")]
    Parameter {
        /// Status.
        status: Status,
        /// Which one.
        parameter: InvalidParameter,
    },
    /// The controller has ended the association before all of its queues were connected.
    #[error("controller {0} is gone: its association ended while it was being connected")]
    ControllerGone(u16),
    /// The device refused.
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    /// The controller sent something that makes no sense.
    #[error("{0}")]
    Pdu(#[from] PduError),
    /// The controller broke the protocol, or lacks what this initiator needs.
    #[error("{0}")]
    Protocol(String),
    /// The connection was lost.
    #[error("connection lost: {0}")]
    Lost(String),
    /// No answer.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The controller was lost for longer than allowed.
    #[error("the peer is gone: not reconnected within {after:?}; last attempt: {last}")]
    GivenUp {
        /// How long it was tried.
        after: Duration,
        /// The last failure.
        last: String,
    },
    /// The controller was disconnected by this side.
    #[error("the controller was disconnected")]
    Disconnected,
    /// The call cannot be carried out.
    #[error("{0}")]
    Argument(String),
}

/// A failed call.
#[derive(Debug, Clone)]
pub struct NvmeError {
    /// Our address, once known.
    pub local: Option<SocketAddr>,
    /// The controller's address.
    pub remote: SocketAddr,
    /// The interface that link-local addresses belong to.
    pub interface: Option<Arc<str>>,
    /// The subsystem.
    pub subsystem: Nqn,
    /// What was being done.
    pub step: &'static str,
    /// What went wrong.
    pub kind: Box<NvmeErrorKind>,
}

impl fmt::Display for NvmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The connection manager's text has the addresses and the step.
        if let NvmeErrorKind::Cm(error) = &*self.kind {
            return write!(f, "{}: {error}", self.subsystem);
        }
        let interface = self.interface.as_deref();
        let remote = Scoped(self.remote, interface);
        match self.local {
            Some(local) => write!(f, "{} -> {remote}", Scoped(local, interface))?,
            None => write!(f, "{remote}")?,
        }
        write!(f, ", {}: {}: {}", self.subsystem, self.step, self.kind)
    }
}

impl std::error::Error for NvmeError {}

impl NvmeError {
    /// The status, if the controller gave one.
    pub fn status(&self) -> Option<Status> {
        match *self.kind {
            NvmeErrorKind::Status(status) | NvmeErrorKind::Parameter { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether connecting again could help.
    pub(super) fn is_permanent(&self) -> bool {
        match &*self.kind {
            NvmeErrorKind::Status(status) | NvmeErrorKind::Parameter { status, .. } => status.is_dnr(),
            NvmeErrorKind::Protocol(_) | NvmeErrorKind::Argument(_) | NvmeErrorKind::Disconnected => true,
            _ => false,
        }
    }
}

/// Who a queue talks to, for errors.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: SocketAddr,
    pub(super) interface: Option<Arc<str>>,
    pub(super) subsystem: Nqn,
}

impl Who {
    pub(super) fn error(&self, step: &'static str, kind: impl Into<NvmeErrorKind>) -> NvmeError {
        NvmeError {
            local: self.local,
            remote: self.remote,
            interface: self.interface.clone(),
            subsystem: self.subsystem.clone(),
            step,
            kind: Box::new(kind.into()),
        }
    }

    /// A completion as a result.
    pub(super) fn check(&self, step: &'static str, cqe: Cqe) -> Result<Cqe, NvmeError> {
        if cqe.status().is_success() {
            Ok(cqe)
        } else {
            Err(self.error(step, NvmeErrorKind::Status(cqe.status())))
        }
    }

    /// A rejected connection: the controller's own reason, if it gave one.
    pub(super) fn connect_error(&self, error: CmError) -> NvmeError {
        let local = error.local().filter(|local| local.port() != 0).or(self.local);
        let kind = match error.kind() {
            CmErrorKind::Rejected { private_data, .. } => match CmReject::status(private_data) {
                Ok(status) if status.0 != 0 => NvmeErrorKind::Refused(status),
                _ => NvmeErrorKind::Cm(error),
            },
            _ => NvmeErrorKind::Cm(error),
        };
        Self { local, ..self.clone() }.error("connecting", kind)
    }
}
