//! What is judged when a work request is begun: its length and its segments.
//!
//! Read RFC 5040 §5.2 (the sink of a READ) first. Nothing here touches the queue; local operations are `ib::local`'s.

use everywire_wire::RKey;

use crate::ib::env::QpEnv;
use crate::ib::wr::{MAX_MESSAGE, SendOp, SendWr, WcStatus};
use crate::iwarp::shared::Shared;
use crate::memory::{Access, Memory};

/// Checks a work request's segments and gives its length.
pub(super) fn measure<E: QpEnv>(sh: &Shared, env: &mut E, wr: &SendWr) -> Result<u32, WcStatus> {
    let asked = wr.length();
    if asked > MAX_MESSAGE {
        return Err(WcStatus::LocLenErr);
    }
    let atomic = matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    if atomic && asked < 8 {
        return Err(WcStatus::LocLenErr);
    }
    let sink = wr.op.is_read_or_atomic();
    if sink && sh.ord() == 0 {
        return Err(WcStatus::LocQpOpErr);
    }
    if wr.inline.is_none() && asked > 0 {
        env.memory().check_local(sh.pd(), &wr.sges, sink).map_err(|_| WcStatus::LocProtErr)?;
    }
    // RFC 5040 §5.2: the answer comes to the sink as a peer's write does (cases IW-06).
    if let (SendOp::Read { .. }, true, true) = (&wr.op, sh.iwarp.strict_read_sink, asked > 0) {
        let sge = &wr.sges[0];
        let at = sh.remote(RKey(sge.lkey.0), sge.addr, asked, Access::REMOTE_WRITE);
        env.memory().check_remote(&at).map_err(|_| WcStatus::LocProtErr)?;
    }
    Ok(if atomic { 8 } else { asked as u32 })
}
