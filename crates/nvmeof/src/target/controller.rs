//! A controller: one association of one host with one subsystem. NVMe Base 2.0 §3.1.
//!
//! States: disabled (CC.EN 0), enabled (CSTS.RDY), shut down (CSTS.SHST). The binding's connections are named by
//! [`QueueId`] only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::QueueId;
use super::config::ERROR_LOG_ENTRIES;
use super::events::Notice;
use super::features::Features;
use super::subsystem::Namespaces;
use crate::Nqn;
use crate::pdu::Status;
use crate::pdu::log::ErrorEntry;
use crate::pdu::properties::{CC_EN, CC_SHN, CSTS_RDY, CSTS_SHST, CSTS_SHST_COMPLETE};
use everywire_verbs::peer_log::PeerLog;

/// Granularity of the keep alive timeout (KAS), in milliseconds.
pub(super) const KEEP_ALIVE_GRANULARITY_MS: u32 = 1000;

pub(super) struct Controller {
    /// The subsystem's namespaces, as of their last change: I/O looks nowhere else.
    pub(super) namespaces: Namespaces,
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
    pub(super) hostid: [u8; 16],
    pub(super) cntlid: u16,
    pub(super) admin_queue: QueueId,
    /// I/O queues by identifier.
    pub(super) queues: BTreeMap<u16, QueueId>,
    pub(super) cc: u32,
    pub(super) csts: u32,
    pub(super) kato_ms: u32,
    pub(super) last_seen: Instant,
    pub(super) features: Features,
    pub(super) async_config: u32,
    /// Asynchronous event requests held, by command identifier.
    pub(super) held_events: Vec<u16>,
    pub(super) pending_notices: Vec<Notice>,
    pub(super) masked_notices: Vec<Notice>,
    pub(super) changed_namespaces: BTreeSet<u32>,
    pub(super) errors: VecDeque<ErrorEntry>,
    pub(super) error_count: u64,
    /// Its listener's allowance of log lines.
    pub(super) log: Rc<PeerLog>,
}

impl Controller {
    /// When the host counts as dead; `None` without a timeout. The keep alive timer runs while the controller is enabled
    /// and not shut down (NVMe Base 2.0 §3.9); a host that neither enables it nor goes has `patience`.
    pub(super) fn keep_alive_deadline(&self, patience: Duration) -> Option<Instant> {
        if !self.takes_io() {
            return Some(self.last_seen + patience.max(Duration::from_millis(self.kato_ms.into())));
        }
        if self.kato_ms == 0 {
            return None;
        }
        let rounded = u64::from(self.kato_ms.div_ceil(KEEP_ALIVE_GRANULARITY_MS));
        Some(self.last_seen + Duration::from_millis(rounded * u64::from(KEEP_ALIVE_GRANULARITY_MS)))
    }

    /// Commands other than fabrics commands are allowed.
    pub(super) fn is_ready(&self) -> bool {
        self.cc & CC_EN != 0 && self.csts & CSTS_RDY != 0
    }

    /// I/O commands and queues are allowed: enabled, and not shut down since. NVMe Base 2.0 §3.6.2.
    pub(super) fn takes_io(&self) -> bool {
        self.is_ready() && self.csts & CSTS_SHST == 0
    }

    /// Writes CC. NVMe Base 2.0 §3.1.3.5. Gives the I/O queues that a reset deletes.
    #[must_use]
    pub(super) fn set_cc(&mut self, value: u32) -> BTreeMap<u16, QueueId> {
        let mut deleted = BTreeMap::new();
        let (was, shutting) = (self.cc, value & CC_SHN != 0 && self.cc & CC_SHN == 0);
        self.cc = value;
        if value & CC_EN == 0 && was & CC_EN != 0 {
            deleted = self.reset();
        }
        if value & CC_EN != 0 && was & CC_EN == 0 {
            self.csts = CSTS_RDY;
        }
        if shutting {
            self.csts |= CSTS_SHST_COMPLETE;
        } else if value & CC_SHN == 0 && value & CC_EN == 0 {
            self.csts = 0;
        }
        deleted
    }

    /// Controller level reset: features and events go back to their defaults, I/O queues are deleted. NVMe Base 2.0 §3.7.2.
    fn reset(&mut self) -> BTreeMap<u16, QueueId> {
        self.csts &= CSTS_SHST_COMPLETE;
        self.features = Features::default();
        self.async_config = 0;
        self.held_events.clear();
        self.pending_notices.clear();
        self.masked_notices.clear();
        self.changed_namespaces.clear();
        std::mem::take(&mut self.queues)
    }

    /// Records an error; the status then says that there is more to know.
    pub(super) fn log_error(&mut self, qid: u16, cid: u16, status: Status) -> Status {
        let status = Status(status.0 | Status::MORE);
        self.error_count += 1;
        if self.errors.len() == ERROR_LOG_ENTRIES {
            self.errors.pop_back();
        }
        let entry = ErrorEntry {
            count: self.error_count,
            sqid: qid,
            cid,
            status: status.0 << 1,
            location: 0xffff,
            ..Default::default()
        };
        self.errors.push_front(entry);
        status
    }
}
