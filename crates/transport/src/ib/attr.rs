//! The attributes of a queue pair: what it is made with, and what `modify` changes and `query` shows.
//!
//! Read IBTA vol. 1 §10.3 (queue pair states) and §11.2.5 (Create, Modify, Query QP). Which attribute is required or
//! allowed in which transition is the table in `qp_state`; this file only names them and their ranges.

use everywire_wire::{Mtu, PKey, Psn, QKey, Qpn};

use super::env::{CqId, SrqId};
use super::path::Path;
use crate::memory::{Access, PdId};

/// Most RDMA READs and atomics a queue pair may have outstanding, in either role. Linux's rxe advertises as many.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Deepest send or receive queue.
pub const MAX_QUEUE_DEPTH: u32 = 16_384;
/// Most segments of one work request.
pub const MAX_SGE: u32 = 32;
/// Most inline bytes of one work request.
pub const MAX_INLINE: u32 = 4096;

/// Transport service. The numbers are `ibv_qp_type`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
}

impl QpType {
    /// "RC", "UC", "UD".
    pub fn name(self) -> &'static str {
        match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
        }
    }
}

/// State of a queue pair (IBTA vol. 1 §10.3.1). The numbers are `ibv_qp_state`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Made, or reset.
    Reset = 0,
    /// Receives may be posted; nothing is sent or received.
    Init = 1,
    /// Receives.
    Rtr = 2,
    /// Receives and sends.
    Rts = 3,
    /// Finishes what it had begun to send, starts nothing new.
    Sqd = 4,
    /// The send queue stopped on an error (UC, UD); receives go on.
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// Every state, in the order of its number.
    pub const ALL: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    /// The standard's name.
    pub fn name(self) -> &'static str {
        match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        }
    }

    /// Whether packets are taken in (IBTA C10-26: RTR and above, not ERR).
    pub fn receives(self) -> bool {
        matches!(self, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }
}

/// Path migration state. The numbers are `ibv_mig_state`'s. Migration itself is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PathMigState {
    /// The only state there is without alternate paths; packets carry MigReq = 1 in it.
    Migrated = 0,
    /// Rearm.
    Rearm = 1,
    /// Armed.
    Armed = 2,
}

/// Queue depths and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding; meaningless with a shared receive queue.
    pub max_recv_wr: u32,
    /// Segments of a send.
    pub max_send_sge: u32,
    /// Segments of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes of a send.
    pub max_inline_data: u32,
}

impl Default for QpCaps {
    fn default() -> QpCaps {
        QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256 }
    }
}

impl QpCaps {
    /// Checks against this module's limits. The device may have lower ones of its own.
    pub fn check(&self) -> Result<(), AttrError> {
        let rows = [
            ("max_send_wr", self.max_send_wr, MAX_QUEUE_DEPTH),
            ("max_recv_wr", self.max_recv_wr, MAX_QUEUE_DEPTH),
            ("max_send_sge", self.max_send_sge, MAX_SGE),
            ("max_recv_sge", self.max_recv_sge, MAX_SGE),
            ("max_inline_data", self.max_inline_data, MAX_INLINE),
        ];
        for (name, value, limit) in rows {
            if value > limit {
                return Err(AttrError { name, value: u64::from(value), limit: u64::from(limit) });
            }
        }
        Ok(())
    }
}

/// A value out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value}, but at most {limit} is possible")]
pub struct AttrError {
    /// Attribute.
    pub name: &'static str,
    /// Value asked for.
    pub value: u64,
    /// Largest value allowed.
    pub limit: u64,
}

/// What a queue pair is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Transport service.
    pub ty: QpType,
    /// Its number.
    pub qpn: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// Completions of sends.
    pub send_cq: CqId,
    /// Completions of receives.
    pub recv_cq: CqId,
    /// Shared receive queue, if it uses one.
    pub srq: Option<SrqId>,
    /// Queue depths.
    pub caps: QpCaps,
    /// Every send makes a completion, whatever its `signaled` says.
    pub sq_sig_all: bool,
    /// The partition table entry it may use (P_Key index 0).
    pub pkey: PKey,
    /// The port's active MTU: the longest datagram, and the largest path MTU that a modify may set.
    pub port_mtu: Mtu,
}

/// Attributes for [`Qp::modify`](super::qp::Qp::modify) and from [`Qp::query`](super::qp::Qp::query). `None` leaves as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// State to move to; `None` stays (IBV_QP_STATE).
    pub state: Option<QpState>,
    /// State the caller believes it is in (IBV_QP_CUR_STATE).
    pub cur_state: Option<QpState>,
    /// In a move to SQD: raise an event once drained.
    pub en_sqd_async_notify: Option<bool>,
    /// What peers may do: `REMOTE_*`.
    pub access: Option<Access>,
    /// Only index 0 exists.
    pub pkey_index: Option<u16>,
    /// Only port 1 exists.
    pub port: Option<u8>,
    /// Q_Key of a datagram queue pair.
    pub qkey: Option<QKey>,
    /// Address vector of a connected queue pair.
    pub path: Option<Path>,
    /// Path MTU: payload bytes of a packet.
    pub path_mtu: Option<Mtu>,
    /// Local ACK timeout exponent, 0..=31: 4.096 µs · 2^t; 0 waits forever.
    pub timeout: Option<u8>,
    /// Retries without progress before RETRY_EXC_ERR, 0..=7.
    pub retry_cnt: Option<u8>,
    /// RNR NAKs without progress before RNR_RETRY_EXC_ERR, 0..=6; 7 retries forever.
    pub rnr_retry: Option<u8>,
    /// First PSN expected from the peer.
    pub rq_psn: Option<Psn>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// Alternate path: not offered, refused with its name.
    pub alt_path: Option<Path>,
    /// RNR timer code sent when no receive is posted, 0..=31 (IBTA table 45).
    pub min_rnr_timer: Option<u8>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// READs and atomics held as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// Only `Migrated` exists.
    pub path_mig_state: Option<PathMigState>,
    /// The peer's queue pair.
    pub dest_qp: Option<Qpn>,
}

impl QpAttr {
    /// Only a change of state.
    pub fn to(state: QpState) -> QpAttr {
        QpAttr { state: Some(state), ..QpAttr::default() }
    }
}
