//! The one table from what is wrong to what is said: TERMINATE errors, completion statuses and events.
//!
//! Read RFC 5040 §7 and §8 (what is checked, in which layer), RFC 5041 §8 and RFC 5044 §8. [`Refusal`] is what we find wrong
//! with the peer, or can't do; [`status_of`] reads what the peer found wrong with us.

use everywire_wire::ddp::DdpTarget;
use everywire_wire::rdmap::{LlpError, RdmapError, TaggedError, TermError, Terminate, UntaggedError};

use crate::ib::env::QpEvent;
use crate::ib::wr::WcStatus;
use crate::memory::AccessError;

/// An error that ends the connection with a TERMINATE message of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What the message says.
    pub(super) error: TermError,
    /// How the receive in use ends, if there is one.
    pub(super) status: WcStatus,
    /// What is raised if there is none.
    pub(super) event: QpEvent,
}

impl Refusal {
    /// The peer broke the protocol.
    const fn invalid(error: TermError) -> Refusal {
        Refusal { error, status: WcStatus::RemInvReqErr, event: QpEvent::RequestError }
    }

    /// The peer asked for memory it may not have.
    const fn access(error: TermError) -> Refusal {
        Refusal { error, status: WcStatus::LocAccessErr, event: QpEvent::AccessError }
    }

    /// MPA (RFC 5044 §8).
    pub(super) const fn llp(error: LlpError) -> Refusal {
        Refusal { event: QpEvent::Fatal, ..Refusal::invalid(TermError::llp(error)) }
    }

    /// Untagged placement (RFC 5041 §8.2).
    pub(super) const fn untagged(error: UntaggedError) -> Refusal {
        Refusal::invalid(TermError::untagged(error))
    }

    /// Tagged placement, other than access.
    pub(super) const fn tagged(error: TaggedError) -> Refusal {
        Refusal::access(TermError::tagged(error))
    }

    /// RDMAP's remote operation errors.
    pub(super) const fn operation(error: RdmapError) -> Refusal {
        Refusal::invalid(TermError::operation(error))
    }

    /// A segment too short for its headers: nothing in the tables is nearer.
    pub(super) const TOO_SHORT: Refusal = Refusal::operation(RdmapError::CatastrophicStream);
    /// A message longer than the receive.
    pub(super) const TOO_LONG: Refusal =
        Refusal { status: WcStatus::LocLenErr, ..Refusal::untagged(UntaggedError::TooLong) };
    /// A receive whose own segments fail their check.
    pub(super) const OWN_MEMORY: Refusal =
        Refusal { error: TermError::LOCAL_CATASTROPHIC, status: WcStatus::LocProtErr, event: QpEvent::Fatal };
    /// An answer that nobody asked for, or other than asked for.
    pub(super) const UNEXPECTED: Refusal = Refusal::operation(RdmapError::UnexpectedOpcode);

    /// RFC 5040 §7.2: a WRITE's STag is DDP's to check, all but its access rights.
    pub(super) fn write(error: AccessError) -> Refusal {
        Refusal::access(match error {
            AccessError::UnknownKey | AccessError::Invalidated | AccessError::BadState => {
                TermError::tagged(TaggedError::InvalidStag)
            }
            AccessError::WrongPd | AccessError::WrongQp => TermError::tagged(TaggedError::StagNotAssociated),
            AccessError::OutOfBounds => TermError::tagged(TaggedError::BaseBounds),
            AccessError::Permission => TermError::protection(RdmapError::AccessRights),
        })
    }

    /// RFC 5040 §7.2: the source of a READ, and an atomic's target, are RDMAP's to check.
    pub(super) fn source(error: AccessError) -> Refusal {
        Refusal::access(TermError::protection(match error {
            AccessError::UnknownKey | AccessError::Invalidated | AccessError::BadState => {
                RdmapError::InvalidStag
            }
            AccessError::WrongPd | AccessError::WrongQp => RdmapError::StagNotAssociated,
            AccessError::OutOfBounds => RdmapError::BaseBounds,
            AccessError::Permission => RdmapError::AccessRights,
        }))
    }

    /// Of the same kind, another of RDMAP's protection errors.
    pub(super) fn with(self, error: RdmapError) -> Refusal {
        Refusal { error: TermError::protection(error), ..self }
    }

    /// RFC 5040 §7.1: an STag that a SEND with Invalidate may not invalidate. One of others is a matter of protection, one that
    /// is not there, or is of a kind that stays, is none: Linux siw tells them apart so.
    pub(super) fn invalidate(error: AccessError) -> Refusal {
        Refusal::access(match error {
            AccessError::WrongPd | AccessError::WrongQp | AccessError::Permission => {
                TermError::protection(RdmapError::CannotInvalidate)
            }
            AccessError::UnknownKey
            | AccessError::Invalidated
            | AccessError::BadState
            | AccessError::OutOfBounds => TermError::operation(RdmapError::CannotInvalidate),
        })
    }
}

/// What the peer's TERMINATE makes of the work request that it is about.
pub(super) fn status_of(term: &Terminate) -> WcStatus {
    let on_queue_0 = term.ddp.is_some_and(|d| matches!(d.target, DdpTarget::Untagged { qn: 0, .. }));
    match (term.error.layer, term.error.etype, term.error.code) {
        (0, 1, _) | (0, 2, 9) => WcStatus::RemAccessErr,
        (0, 2, 7 | 8) => WcStatus::RemOpErr,
        (0, 2, _) => WcStatus::RemInvReqErr,
        (1, 1, 4) => WcStatus::RemInvReqErr,
        (1, 1, _) => WcStatus::RemAccessErr,
        // No receive was posted: what an RNR NAK says at last on InfiniBand. On queue 1 it is one READ too many.
        (1, 2, 2) if on_queue_0 => WcStatus::RnrRetryExcErr,
        (1, 2, _) => WcStatus::RemInvReqErr,
        (2, _, _) => WcStatus::RemAbortErr,
        _ => WcStatus::RemOpErr,
    }
}
