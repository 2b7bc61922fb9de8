//! One queue of an association: its connection, its size and its head. NVMe-oF 1.1 §2.4 (flow control).
//!
//! SQHD advances once for each completion, so that an advertised free entry always has a receive buffer behind it: the
//! binding posts the buffer again before it sends the completion.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::{ControllerKey, QueueOrigin};
use crate::pdu::cm::CmRequest;
use crate::{Nqn, Scoped};
use everywire_verbs::peer_log::PeerLog;

/// Where a queue is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connected at the transport; Connect has not come.
    AwaitingConnect,
    /// Part of an association.
    Connected {
        /// Its controller.
        controller: ControllerKey,
        /// Its queue identifier.
        qid: u16,
    },
}

pub(super) struct Queue {
    pub(super) phase: Phase,
    pub(super) port_id: u16,
    pub(super) info: Rc<QueueInfo>,
    pub(super) opened: Instant,
    /// What the CM request said; Connect must agree.
    pub(super) cm_qid: u16,
    pub(super) cm_hsqsize: u16,
    /// Entries, 1-based; from Connect.
    pub(super) entries: u16,
    sqhd: u16,
    /// Connect disabled flow control: SQHD reads FFFFh.
    pub(super) no_flow_control: bool,
    /// Refusals before Connect that were logged.
    pub(super) refusals: u8,
    /// Its listener's allowance of log lines.
    pub(super) log: Rc<PeerLog>,
}

impl Queue {
    pub(super) fn new(now: Instant, origin: QueueOrigin, request: &CmRequest, log: Rc<PeerLog>) -> Self {
        Self {
            phase: Phase::AwaitingConnect,
            port_id: origin.port_id,
            info: Rc::new(QueueInfo::new(origin, request.qid)),
            opened: now,
            cm_qid: request.qid,
            cm_hsqsize: request.hsqsize,
            entries: request.hsqsize.saturating_add(1),
            sqhd: 0,
            no_flow_control: false,
            refusals: 0,
            log,
        }
    }

    /// SQHD of the next completion.
    pub(super) fn advance(&mut self) -> u16 {
        if self.no_flow_control {
            return 0xffff;
        }
        self.sqhd = if self.sqhd + 1 >= self.entries { 0 } else { self.sqhd + 1 };
        self.sqhd
    }
}

/// Whose a queue is, for logs; its text names both addresses and, once connected, host, subsystem and controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    /// The host's address.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// The interface that link-local addresses belong to.
    pub interface: Option<Arc<str>>,
    /// Queue identifier.
    pub qid: u16,
    /// The host's NQN, once connected.
    pub host: Option<Nqn>,
    /// The subsystem's NQN, once connected.
    pub subsystem: Option<Nqn>,
    /// The controller identifier, once connected.
    pub cntlid: Option<u16>,
}

impl QueueInfo {
    fn new(origin: QueueOrigin, qid: u16) -> Self {
        let QueueOrigin { port_id: _, peer, local, interface } = origin;
        Self { peer, local, interface, qid, host: None, subsystem: None, cntlid: None }
    }
}

impl fmt::Display for QueueInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = self.interface.as_deref();
        let (peer, local) = (Scoped(self.peer, interface), Scoped(self.local, interface));
        write!(f, "{peer} -> {local} queue {}", self.qid)?;
        if let (Some(host), Some(subsystem), Some(cntlid)) = (&self.host, &self.subsystem, self.cntlid) {
            write!(f, ", host {host}, subsystem {subsystem}, controller {cntlid}")?;
        }
        Ok(())
    }
}
