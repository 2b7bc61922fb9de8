//! The full feature phase, without sockets: numbers, windows, tasks, and what is said between the two ends.
//!
//! Read RFC 7143 §4.2 (numbering), §11 (PDUs), §7 (errors), and RFC 5047 for the split that this follows: a session speaks in
//! control PDUs and asks its *datamover* to fetch or put a command's data. On TCP that becomes R2T, Data-Out and Data-In PDUs
//! (`tcp`), on iSER RDMA READs and WRITEs (`rdma`), which the session never sees. Error recovery level 0, one connection.

pub mod initiator;
pub mod scsi;
pub mod target;
mod window;

pub use window::{Arrival, Window, before};

use crate::pdu::Header;

/// Numbers that every PDU from a target carries (RFC 7143 §11.4.8 ff.).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// StatSN.
    pub stat_sn: u32,
    /// ExpCmdSN.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN.
    pub max_cmd_sn: u32,
}

impl Numbers {
    /// Puts them into a header of a target's control PDU; others have none, or get theirs from whoever makes them.
    fn put(self, header: &mut Header) {
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = match header {
            Header::NopIn(h) => (&mut h.stat_sn, &mut h.exp_cmd_sn, &mut h.max_cmd_sn),
            Header::TaskResponse(h) => (&mut h.stat_sn, &mut h.exp_cmd_sn, &mut h.max_cmd_sn),
            Header::TextResponse(h) => (&mut h.stat_sn, &mut h.exp_cmd_sn, &mut h.max_cmd_sn),
            Header::LogoutResponse(h) => (&mut h.stat_sn, &mut h.exp_cmd_sn, &mut h.max_cmd_sn),
            Header::AsyncMessage(h) => (&mut h.stat_sn, &mut h.exp_cmd_sn, &mut h.max_cmd_sn),
            Header::Reject(h) => (&mut h.stat_sn, &mut h.exp_cmd_sn, &mut h.max_cmd_sn),
            _ => return,
        };
        (*stat_sn, *exp_cmd_sn, *max_cmd_sn) = (self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
    }
}
