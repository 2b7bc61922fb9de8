//! What a class of error leads to, by wire and service: the table that every row is held against.
//!
//! Read IBTA vol. 1 §9.9.2.3 and §9.9.3 with table 57 (classes), table 58 (NAK codes to statuses), §10.3.1.6 (SQE) first. For
//! iWARP: RFC 5040 §7.1 and RFC 5041 §7.1: whatever is wrong ends in a TERMINATE message and the end of the stream, so both
//! queue pairs are in ERR and everything posted is flushed. A SEND or WRITE of iWARP is complete once TCP has it, which
//! may be before the TERMINATE: then it succeeded (RFC 5040 §5.5 item 8).

use everywire_verbs::{Counter, QpEvent, QpState, QpType, WcStatus};

use crate::transfer::Kind;
use crate::wire::Family;

/// A class of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Found before anything is sent; the work request ends with this.
    Local(WcStatus),
    /// The peer's memory may not be used like that.
    Access,
    /// The peer's queue pair is not set up for this operation.
    Unsupported,
    /// The request breaks the protocol.
    Invalid,
    /// Longer than the receive.
    TooLong,
    /// There is no receive.
    NotReady,
    /// The peer's receive is wrong itself.
    OwnMemory,
    /// The key that the message is to invalidate cannot be.
    Invalidate,
}

/// What becomes of end B's two receives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Receives {
    /// Nothing: they stay posted.
    Untouched,
    /// Both are flushed.
    Flushed,
    /// The first ends with one of these, the second is flushed.
    First(&'static [WcStatus]),
    /// The wrong message was dropped: the first takes the one behind it.
    Next,
}

/// What both ends see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expect {
    /// How the wrong work request ends.
    pub(crate) work: &'static [WcStatus],
    /// How the one behind it ends.
    pub(crate) behind: &'static [WcStatus],
    pub(crate) a: QpState,
    pub(crate) b: QpState,
    pub(crate) receives: Receives,
    /// At end B.
    pub(crate) event: Option<QpEvent>,
    /// A receive in use may tell instead.
    pub(crate) event_may_be_missing: bool,
    pub(crate) a_counts: &'static [Counter],
    pub(crate) b_counts: &'static [Counter],
}

use WcStatus::{
    LocAccessErr, LocLenErr, LocProtErr, LocQpOpErr, RemAccessErr, RemInvReqErr, RemOpErr, RnrRetryExcErr,
    Success, WrFlushErr,
};

/// Nothing wrong as yet: the base of all rows.
const FINE: Expect = Expect {
    work: &[Success],
    behind: &[Success],
    a: QpState::Rts,
    b: QpState::Rts,
    receives: Receives::Untouched,
    event: None,
    event_may_be_missing: false,
    a_counts: &[],
    b_counts: &[],
};

/// Both ends of a connection are through.
const BROKEN: Expect =
    Expect { behind: &[WrFlushErr], a: QpState::Err, b: QpState::Err, receives: Receives::Flushed, ..FINE };

/// What must happen.
pub(crate) fn of(family: Family, ty: QpType, class: Class, kind: Kind) -> Expect {
    match (family, ty) {
        (Family::Ib, QpType::Rc) => reliable(class, kind),
        (Family::Ib, _) => unreliable(class),
        (Family::Iwarp, _) => stream(class, kind),
    }
}

fn local(status: WcStatus) -> &'static [WcStatus] {
    match status {
        LocLenErr => &[LocLenErr],
        LocQpOpErr => &[LocQpOpErr],
        _ => &[LocProtErr],
    }
}

/// RC of the InfiniBand family.
fn reliable(class: Class, kind: Kind) -> Expect {
    match class {
        // IBTA §9.9.2.3, class B of the requester: only this end knows.
        Class::Local(status) => Expect {
            work: local(status),
            behind: &[WrFlushErr],
            a: QpState::Err,
            a_counts: &[Counter::ReqCqeError, Counter::SendErr],
            ..FINE
        },
        Class::Access => Expect {
            work: &[RemAccessErr],
            receives: access_receives(kind),
            // IBTA table 57: without a receive in use an event tells of class C errors, with one its completion does.
            event: Some(QpEvent::AccessError),
            event_may_be_missing: kind == Kind::WriteImm,
            a_counts: &[Counter::ReqCqeError, Counter::ReqRemoteAccessErrors],
            b_counts: &[Counter::RespRemoteAccessErrors],
            ..BROKEN
        },
        Class::Unsupported | Class::Invalid => Expect {
            work: &[RemInvReqErr],
            event: Some(QpEvent::RequestError),
            a_counts: &[Counter::ReqCqeError, Counter::ReqRemoteInvalidRequest],
            ..BROKEN
        },
        Class::TooLong => Expect {
            work: &[RemInvReqErr],
            receives: Receives::First(&[LocLenErr]),
            a_counts: &[Counter::ReqRemoteInvalidRequest],
            b_counts: &[Counter::RespCqeError, Counter::RespLocalLengthError],
            ..BROKEN
        },
        // IBTA §9.9.3, class B of the responder: the connection lives there.
        Class::NotReady => Expect {
            work: &[RnrRetryExcErr],
            behind: &[WrFlushErr],
            a: QpState::Err,
            a_counts: &[Counter::RcvdRnrErr, Counter::RetryRnrExceededErr],
            b_counts: &[Counter::SendRnrErr],
            ..FINE
        },
        Class::OwnMemory => Expect {
            work: &[RemOpErr],
            receives: Receives::First(&[LocProtErr]),
            b_counts: &[Counter::RespCqeError],
            ..BROKEN
        },
        // IBTA table 57, class J: the message has arrived, its key stays; both ends are through.
        Class::Invalidate => Expect {
            work: &[RemAccessErr, RemInvReqErr],
            receives: Receives::First(&[LocAccessErr, RemInvReqErr, LocProtErr]),
            ..BROKEN
        },
    }
}

/// A WRITE with immediate in one packet has taken a receive by the time its key is looked at, or not yet: IBTA §9.7.4.1
/// leaves the order of these checks open.
fn access_receives(kind: Kind) -> Receives {
    match kind {
        Kind::WriteImm => Receives::First(&[LocAccessErr, WrFlushErr]),
        _ => Receives::Flushed,
    }
}

/// UC and UD: the sender learns nothing, the receiver drops what is wrong (IBTA §9.9.3, class D).
fn unreliable(class: Class) -> Expect {
    match class {
        // IBTA §10.3.1.6: the send queue stops, receiving goes on.
        Class::Local(status) => Expect {
            work: local(status),
            behind: &[WrFlushErr],
            a: QpState::Sqe,
            a_counts: &[Counter::ReqCqeError, Counter::SendErr],
            ..FINE
        },
        // Class E: the consumer's own mistake.
        Class::OwnMemory => Expect {
            b: QpState::Err,
            receives: Receives::First(&[LocProtErr]),
            b_counts: &[Counter::RespCqeError],
            ..FINE
        },
        Class::NotReady => Expect { receives: Receives::Next, b_counts: &[Counter::OutOfBuffer], ..FINE },
        _ => Expect { receives: Receives::Next, ..FINE },
    }
}

/// RC on iWARP.
fn stream(class: Class, kind: Kind) -> Expect {
    let refused: &[WcStatus] = match kind.fetches() {
        // RFC 5040 §7.2: the TERMINATE message carries the header of the READ that it refuses.
        true => &[RemAccessErr, RemOpErr, RemInvReqErr, WrFlushErr],
        false => &[Success, RemAccessErr, RemOpErr, RemInvReqErr, WrFlushErr],
    };
    let broken = Expect { behind: &[Success, WrFlushErr], work: refused, ..BROKEN };
    match class {
        Class::Local(status) => Expect { work: local(status), behind: &[WrFlushErr], ..broken },
        Class::TooLong => Expect { receives: Receives::First(&[LocLenErr, WrFlushErr]), ..broken },
        Class::OwnMemory => Expect { receives: Receives::First(&[LocProtErr, WrFlushErr]), ..broken },
        Class::Invalidate => Expect {
            receives: Receives::First(&[LocAccessErr, LocProtErr, RemInvReqErr, WrFlushErr]),
            ..broken
        },
        Class::Access if kind == Kind::WriteImm => Expect { receives: Receives::Flushed, ..broken },
        _ => broken,
    }
}
