//! Work requests that touch no wire: invalidate, bind, fast register. The send queues of both transports call it.
//!
//! Read IBTA vol. 1 §10.6.5 and §11.4.1 first. When their turn comes is the send queue's affair.

use everywire_wire::Qpn;

use super::wr::{SendOp, WcStatus};
use crate::memory::{Memory, PdId};

/// Does a local operation; the status it fails with, if it does. Any other operation is left alone.
pub(crate) fn local_operation<M: Memory>(
    memory: &mut M,
    pd: PdId,
    qpn: Qpn,
    op: &SendOp,
) -> Option<WcStatus> {
    let done = match op {
        SendOp::LocalInv(key) => memory.invalidate_local(pd, qpn, *key),
        SendOp::BindMw(bind) => memory.bind_window(pd, qpn, bind).map(drop),
        SendOp::FastReg(reg) => memory.fast_register(pd, qpn, reg),
        _ => Ok(()),
    };
    done.err().map(|_| WcStatus::MwBindErr)
}
