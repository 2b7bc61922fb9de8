//! What is refused at the call on an iWARP queue pair, before a work request is queued.
//!
//! Read RFC 5040 §1.2 (the operations) and RFC 7306 (atomics and immediate data, by option). The rest is as on a reliable
//! connection of InfiniBand, which `ib::post` judges. Keys and lengths are judged when a work request's turn comes.

use super::params::IwarpConfig;
use crate::ib::attr::{QpConfig, QpType};
use crate::ib::post::{self, PostError};
use crate::ib::wr::{SendOp, SendWr};

/// Segments of a READ's sink: the request names one STag (RFC 5040 §4.4; cases IW-12).
pub const MAX_READ_SGE: u32 = 1;

pub(super) fn check_send(config: &QpConfig, iwarp: &IwarpConfig, wr: &SendWr) -> Result<(), PostError> {
    let offered = match wr.op {
        // RFC 7306 has immediate data behind a WRITE only.
        SendOp::SendImm(_) => false,
        SendOp::WriteImm { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => iwarp.rfc7306,
        _ => config.ty == QpType::Rc,
    };
    if !offered {
        return Err(PostError::UnsupportedOp { op: wr.op.name(), service: "iWARP" });
    }
    post::check_send(config, wr)?;
    match wr.op {
        SendOp::Read { .. } => post::check_sges(wr.sges.len(), MAX_READ_SGE),
        _ => Ok(()),
    }
}
