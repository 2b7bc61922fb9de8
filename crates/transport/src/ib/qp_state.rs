//! The state machine of a queue pair: which (state, event) leads where, and what a modify must and may carry.
//!
//! Read IBTA vol. 1 §10.3.1 (states) and §11.2.5.2 (Modify QP, its table of required and optional attributes). Linux's
//! `ib_modify_qp_is_ok` accepts the same sets. Two tables say it all: [`next_state`] for every (state, event) pair and
//! [`attributes`] for every legal transition. Carrying out a transition (flush, drain, reset) is `qp`'s part.

use bitflags::bitflags;

use super::attr::{AttrError, MAX_RD_ATOMIC, PathMigState, QpAttr, QpConfig, QpState, QpType};
use super::path::PathLink;
use crate::memory::Access;

bitflags! {
    /// Attributes of a modify; the bits are `ibv_qp_attr_mask`'s.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrMask: u32 {
        /// Target state.
        const STATE = 1;
        /// Assumed current state.
        const CUR_STATE = 1 << 1;
        /// Event once drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Remote access.
        const ACCESS_FLAGS = 1 << 3;
        /// P_Key index.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retry count.
        const RETRY_CNT = 1 << 10;
        /// RNR retry count.
        const RNR_RETRY = 1 << 11;
        /// First PSN of the receive side.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// RNR timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN of the send side.
        const SQ_PSN = 1 << 16;
        /// READs and atomics held as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

impl AttrMask {
    /// The attributes that `attr` carries.
    pub fn of(attr: &QpAttr) -> AttrMask {
        let rows = [
            (AttrMask::STATE, attr.state.is_some()),
            (AttrMask::CUR_STATE, attr.cur_state.is_some()),
            (AttrMask::EN_SQD_ASYNC_NOTIFY, attr.en_sqd_async_notify.is_some()),
            (AttrMask::ACCESS_FLAGS, attr.access.is_some()),
            (AttrMask::PKEY_INDEX, attr.pkey_index.is_some()),
            (AttrMask::PORT, attr.port.is_some()),
            (AttrMask::QKEY, attr.qkey.is_some()),
            (AttrMask::AV, attr.path.is_some()),
            (AttrMask::PATH_MTU, attr.path_mtu.is_some()),
            (AttrMask::TIMEOUT, attr.timeout.is_some()),
            (AttrMask::RETRY_CNT, attr.retry_cnt.is_some()),
            (AttrMask::RNR_RETRY, attr.rnr_retry.is_some()),
            (AttrMask::RQ_PSN, attr.rq_psn.is_some()),
            (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic.is_some()),
            (AttrMask::ALT_PATH, attr.alt_path.is_some()),
            (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer.is_some()),
            (AttrMask::SQ_PSN, attr.sq_psn.is_some()),
            (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic.is_some()),
            (AttrMask::PATH_MIG_STATE, attr.path_mig_state.is_some()),
            (AttrMask::DEST_QPN, attr.dest_qp.is_some()),
        ];
        rows.into_iter().filter(|(_, set)| *set).map(|(bit, _)| bit).collect()
    }

    /// The names, as `IBV_QP_*` without the prefix, joined by commas.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.iter_names().map(|(name, _)| name).collect();
        names.join(", ")
    }
}

/// What can happen to a queue pair's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateEvent {
    /// Modify to a state (also to the current one).
    Modify(QpState),
    /// A send work request completed in error.
    SendError,
    /// The responder met an error that ends the connection, or the device failed the queue pair.
    ReceiveError,
}

/// Where `event` leads from `state`; `None` where it cannot happen (a modify is refused).
pub fn next_state(ty: QpType, state: QpState, event: StateEvent) -> Option<QpState> {
    use QpState::*;
    use StateEvent::*;
    match (state, event) {
        // IBTA §10.3.1: RESET and ERR are reached from anywhere.
        (_, Modify(Reset)) => Some(Reset),
        (_, Modify(Err)) => Some(Err),
        (Reset, Modify(Init)) => Some(Init),
        (Init, Modify(to @ (Init | Rtr))) => Some(to),
        (Rtr, Modify(Rts)) => Some(Rts),
        (Rts, Modify(to @ (Rts | Sqd))) => Some(to),
        (Sqd, Modify(to @ (Sqd | Rts))) => Some(to),
        (Sqe, Modify(Rts)) if ty != QpType::Rc => Some(Rts),
        (_, Modify(_)) => None,
        // IBTA §10.3.1.6: only unreliable services survive a send error.
        (Rts | Sqd, SendError) if ty != QpType::Rc => Some(Sqe),
        (Rts | Sqd, SendError) => Some(Err),
        (Rtr | Rts | Sqd | Sqe, ReceiveError) => Some(Err),
        (_, SendError | ReceiveError) => None,
    }
}

/// Required and optional attributes of a legal transition, STATE apart.
pub fn attributes(ty: QpType, from: QpState, to: QpState) -> (AttrMask, AttrMask) {
    use AttrMask as A;
    use QpState::*;
    let none = A::empty();
    let connected = ty != QpType::Ud;
    let rc = ty == QpType::Rc;
    let pick = |cond: bool, mask: AttrMask| if cond { mask } else { none };
    // Allowed wherever a running queue pair is modified.
    let running = A::CUR_STATE
        | pick(connected, A::ACCESS_FLAGS | A::ALT_PATH | A::PATH_MIG_STATE)
        | pick(rc, A::MIN_RNR_TIMER)
        | pick(!connected, A::QKEY);
    match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => {
            (A::PKEY_INDEX | A::PORT | pick(connected, A::ACCESS_FLAGS) | pick(!connected, A::QKEY), none)
        }
        (Init, Init) => {
            (none, A::PKEY_INDEX | A::PORT | pick(connected, A::ACCESS_FLAGS) | pick(!connected, A::QKEY))
        }
        (Init, Rtr) => (
            pick(connected, A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN)
                | pick(rc, A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER),
            A::PKEY_INDEX | pick(connected, A::ALT_PATH | A::ACCESS_FLAGS) | pick(!connected, A::QKEY),
        ),
        (Rtr, Rts) => {
            (A::SQ_PSN | pick(rc, A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC), running)
        }
        (Rts, Rts) | (Sqd, Rts) => (none, running),
        (Rts, Sqd) => (none, A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            none,
            A::PKEY_INDEX
                | pick(connected, A::AV | A::ALT_PATH | A::ACCESS_FLAGS | A::PATH_MIG_STATE)
                | pick(
                    rc,
                    A::PORT
                        | A::TIMEOUT
                        | A::RETRY_CNT
                        | A::RNR_RETRY
                        | A::MAX_QP_RD_ATOMIC
                        | A::MAX_DEST_RD_ATOMIC
                        | A::MIN_RNR_TIMER,
                )
                | pick(!connected, A::QKEY),
        ),
        (Sqe, Rts) => (none, A::CUR_STATE | pick(connected, A::ACCESS_FLAGS) | pick(!connected, A::QKEY)),
        _ => (none, none),
    }
}

/// Why a modify was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// No such transition.
    #[error("{} queue pairs have no transition from {} to {}", ty.name(), from.name(), to.name())]
    NoTransition {
        /// Service.
        ty: QpType,
        /// Current state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// `cur_state` was not the current state.
    #[error("the queue pair is in {}, not in {}", actual.name(), assumed.name())]
    WrongCurrentState {
        /// Current state.
        actual: QpState,
        /// What the caller believed.
        assumed: QpState,
    },
    /// Required attributes are missing.
    #[error("{} to {} of a {} queue pair needs {}", from.name(), to.name(), ty.name(), missing.names())]
    Missing {
        /// Service.
        ty: QpType,
        /// Current state.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// What is missing.
        missing: AttrMask,
    },
    /// Attributes that this transition may not carry.
    #[error("{} to {} of a {} queue pair does not take {}", from.name(), to.name(), ty.name(), surplus.names())]
    NotAllowed {
        /// Service.
        ty: QpType,
        /// Current state.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// What is too much.
        surplus: AttrMask,
    },
    /// The send queue has not drained yet.
    #[error("the send queue is still draining: wait for the SQ_DRAINED event")]
    StillDraining,
    /// A value out of range.
    #[error(transparent)]
    Value(#[from] AttrError),
    /// Something this device does not offer.
    #[error("{what} is not offered by this device")]
    Unsupported {
        /// Attribute or value.
        what: &'static str,
    },
}

/// Checks a modify against both tables and the ranges of its values; gives the state it leads to.
pub fn check_modify(config: &QpConfig, state: QpState, attr: &QpAttr) -> Result<QpState, ModifyError> {
    let ty = config.ty;
    if let Some(assumed) = attr.cur_state
        && assumed != state
    {
        return Err(ModifyError::WrongCurrentState { actual: state, assumed });
    }
    let to = attr.state.unwrap_or(state);
    if next_state(ty, state, StateEvent::Modify(to)).is_none() {
        return Err(ModifyError::NoTransition { ty, from: state, to });
    }
    let given = AttrMask::of(attr) - AttrMask::STATE;
    let (required, optional) = attributes(ty, state, to);
    let missing = required - given;
    if !missing.is_empty() {
        return Err(ModifyError::Missing { ty, from: state, to, missing });
    }
    let surplus = given - required - optional;
    if !surplus.is_empty() {
        return Err(ModifyError::NotAllowed { ty, from: state, to, surplus });
    }
    check_values(config, attr)?;
    Ok(to)
}

/// Ranges of the values of a modify.
pub(crate) fn check_values(config: &QpConfig, attr: &QpAttr) -> Result<(), ModifyError> {
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let allowed = Access::LOCAL_WRITE | remote | Access::MW_BIND;
    let rows = [
        ("PKEY_INDEX", attr.pkey_index.map(u64::from), 0),
        ("TIMEOUT", attr.timeout.map(u64::from), 31),
        ("RETRY_CNT", attr.retry_cnt.map(u64::from), 7),
        ("RNR_RETRY", attr.rnr_retry.map(u64::from), 7),
        ("MIN_RNR_TIMER", attr.min_rnr_timer.map(u64::from), 31),
        ("MAX_QP_RD_ATOMIC", attr.max_rd_atomic.map(u64::from), u64::from(MAX_RD_ATOMIC)),
        ("MAX_DEST_RD_ATOMIC", attr.max_dest_rd_atomic.map(u64::from), u64::from(MAX_RD_ATOMIC)),
        ("PORT", attr.port.map(u64::from), 1),
        ("PATH_MTU", attr.path_mtu.map(|m| m.bytes() as u64), config.port_mtu.bytes() as u64),
        ("ACCESS_FLAGS", attr.access.map(|a| u64::from((a - allowed).bits())), 0),
    ];
    for (name, value, limit) in rows {
        if let Some(value) = value
            && value > limit
        {
            return Err(AttrError { name, value, limit }.into());
        }
    }
    if attr.port == Some(0) {
        return Err(ModifyError::Unsupported { what: "port 0" });
    }
    if attr.alt_path.is_some() {
        return Err(ModifyError::Unsupported { what: "an alternate path" });
    }
    if attr.path_mig_state.is_some_and(|s| s != PathMigState::Migrated) {
        return Err(ModifyError::Unsupported { what: "path migration" });
    }
    if attr.path.is_some_and(|p| p.link == PathLink::Udp && p.src.is_ipv4() != p.dst.is_ipv4()) {
        return Err(ModifyError::Unsupported { what: "a path between IPv4 and IPv6" });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
