//! What is refused at the call, before a work request is queued.
//!
//! Read IBTA vol. 1 §11.4.1 (Post Send and Post Receive Request, immediate errors). Only the shape is judged here: state,
//! depth, lists, operations of the service. Keys and lengths are judged when a work request's turn comes, and end in a
//! completion.

use super::attr::{QpCaps, QpConfig, QpState, QpType};
use super::wr::{SendOp, SendWr};

/// Why a work request was refused at the call. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The state does not take this kind of work request (IBTA C10-29, C10-31).
    #[error("a queue pair in state {state:?} takes no {what} work requests")]
    WrongState {
        /// Current state.
        state: QpState,
        /// "send" or "receive".
        what: &'static str,
    },
    /// The queue is full.
    #[error("the {what} queue is full ({limit} work requests outstanding)")]
    QueueFull {
        /// "send" or "receive".
        what: &'static str,
        /// Its depth.
        limit: u32,
    },
    /// Too many segments.
    #[error("{count} segments, but the queue pair allows {limit}")]
    TooManySges {
        /// In the work request.
        count: usize,
        /// Of the queue pair.
        limit: u32,
    },
    /// Too many inline bytes.
    #[error("{length} inline bytes, but the queue pair allows {limit}")]
    InlineTooLong {
        /// In the work request.
        length: usize,
        /// Of the queue pair.
        limit: u32,
    },
    /// Inline payload where local memory is the sink, or for a local operation.
    #[error("{op} takes no inline data")]
    InlineNotAllowed {
        /// Operation.
        op: &'static str,
    },
    /// The operation does not exist on this transport service.
    #[error("{op} is not an operation of a {service} queue pair")]
    UnsupportedOp {
        /// Operation.
        op: &'static str,
        /// "RC", "UC", "UD".
        service: &'static str,
    },
    /// The device's wire has no message for it.
    #[error("{op} is not possible here: {why}")]
    NotOnThisWire {
        /// Operation.
        op: &'static str,
        /// What the wire lacks.
        why: &'static str,
    },
    /// A datagram without destination.
    #[error("a UD work request needs a destination")]
    NoDestination,
    /// Receives go to the shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue")]
    UsesSrq,
}

impl PostError {
    /// The positive `errno` with which libibverbs' post calls report it: 12 (ENOMEM) for a full queue, 95
    /// (EOPNOTSUPP) for what the wire lacks, else 22 (EINVAL).
    pub fn errno(&self) -> i32 {
        match self {
            PostError::QueueFull { .. } => 12,
            PostError::NotOnThisWire { .. } => 95,
            _ => 22,
        }
    }
}

/// Whether a send queue in this state, with so many outstanding, takes a work request whose shape `check` judges. IBTA C10-29.
#[inline]
pub(crate) fn admit_send(
    config: &QpConfig,
    state: QpState,
    queued: usize,
    check: impl FnOnce() -> Result<(), PostError>,
) -> Result<(), PostError> {
    if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(PostError::WrongState { state, what: "send" });
    }
    check()?;
    let limit = config.caps.max_send_wr;
    if queued >= limit as usize { Err(PostError::QueueFull { what: "send", limit }) } else { Ok(()) }
}

/// Whether a receive queue in this state, with so many outstanding, takes one with so many segments. IBTA C10-31.
#[inline]
pub(crate) fn admit_recv(
    config: &QpConfig,
    state: QpState,
    queued: usize,
    sges: usize,
) -> Result<(), PostError> {
    if state == QpState::Reset {
        return Err(PostError::WrongState { state, what: "receive" });
    }
    if config.srq.is_some() {
        return Err(PostError::UsesSrq);
    }
    check_sges(sges, config.caps.max_recv_sge)?;
    let limit = config.caps.max_recv_wr;
    if queued >= limit as usize { Err(PostError::QueueFull { what: "receive", limit }) } else { Ok(()) }
}

/// IBTA §9.2.1, table of operations by service; C10-30 for the lengths of lists.
pub(crate) fn check_send(config: &QpConfig, wr: &SendWr) -> Result<(), PostError> {
    let op = wr.op.name();
    let offered = match config.ty {
        QpType::Rc => true,
        QpType::Uc => !wr.op.is_read_or_atomic() && !matches!(wr.op, SendOp::SendInv(_)),
        QpType::Ud => matches!(wr.op, SendOp::Send | SendOp::SendImm(_)),
    };
    if !offered {
        return Err(PostError::UnsupportedOp { op, service: config.ty.name() });
    }
    let caps: &QpCaps = &config.caps;
    if let Some(bytes) = &wr.inline {
        if wr.op.is_read_or_atomic() || wr.op.is_local() {
            return Err(PostError::InlineNotAllowed { op });
        }
        if bytes.len() > caps.max_inline_data as usize {
            return Err(PostError::InlineTooLong { length: bytes.len(), limit: caps.max_inline_data });
        }
    }
    if config.ty == QpType::Ud && wr.ud.is_none() {
        return Err(PostError::NoDestination);
    }
    check_sges(wr.sges.len(), caps.max_send_sge)
}

pub(crate) fn check_sges(count: usize, limit: u32) -> Result<(), PostError> {
    if count > limit as usize { Err(PostError::TooManySges { count, limit }) } else { Ok(()) }
}
