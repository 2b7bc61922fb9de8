//! The states of an iWARP queue pair, under the names of the InfiniBand ones.
//!
//! Read RFC 5040 §5 and the state diagram of draft-hilland-rddp-verbs §6.2. IDLE is RESET and INIT here, RTS is RTS, TERMINATE
//! and ERROR are ERR; CLOSING is RTS after `disconnect`. There is no RTR: the move from INIT to RTS is start-up's, never a
//! modify's. SQD stops the send queue as on InfiniBand.

use crate::ib::attr::{QpAttr, QpConfig, QpState};
use crate::ib::qp_state::{AttrMask, ModifyError, check_values};

/// Where a modify may lead, and the attributes it may carry.
fn allowed(from: QpState, to: QpState) -> Option<AttrMask> {
    use AttrMask as A;
    use QpState::*;
    Some(match (from, to) {
        (_, Reset | Err) => A::empty(),
        (Reset | Init, Init) => A::ACCESS_FLAGS | A::PKEY_INDEX | A::PORT,
        (Rts, Rts) | (Sqd, Sqd | Rts) => A::CUR_STATE | A::ACCESS_FLAGS,
        (Rts, Sqd) => A::CUR_STATE | A::EN_SQD_ASYNC_NOTIFY,
        _ => return None,
    })
}

/// Checks a modify; gives the state it leads to.
pub(super) fn check_modify(config: &QpConfig, from: QpState, attr: &QpAttr) -> Result<QpState, ModifyError> {
    let ty = config.ty;
    if let Some(assumed) = attr.cur_state
        && assumed != from
    {
        return Err(ModifyError::WrongCurrentState { actual: from, assumed });
    }
    let to = attr.state.unwrap_or(from);
    let Some(allowed) = allowed(from, to) else { return Err(ModifyError::NoTransition { ty, from, to }) };
    let surplus = AttrMask::of(attr) - AttrMask::STATE - AttrMask::CUR_STATE - allowed;
    if !surplus.is_empty() {
        return Err(ModifyError::NotAllowed { ty, from, to, surplus });
    }
    check_values(config, attr)?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// draft-hilland-rddp-verbs §6.2, with SQD of InfiniBand.
    #[test]
    fn every_pair_of_states() {
        let row = |from: QpState| -> Vec<&str> {
            QpState::ALL.iter().filter(|to| allowed(from, **to).is_some()).map(|to| to.name()).collect()
        };
        assert_eq!(row(QpState::Reset), ["RESET", "INIT", "ERR"]);
        assert_eq!(row(QpState::Init), ["RESET", "INIT", "ERR"]);
        assert_eq!(row(QpState::Rts), ["RESET", "RTS", "SQD", "ERR"]);
        assert_eq!(row(QpState::Sqd), ["RESET", "RTS", "SQD", "ERR"]);
        assert_eq!(row(QpState::Err), ["RESET", "ERR"]);
    }
}
