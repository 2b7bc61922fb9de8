//! One queue of an association: its connection, its size and its head. NVMe-oF 1.1 §2.4 (flow control).
//!
//! SQHD advances once for each completion, so that an advertised free entry always has a receive buffer behind it: the
//! binding posts the buffer again before it sends the completion.

use std::net::SocketAddr;
use std::time::Instant;

use super::{ControllerKey, QueueOrigin};
use crate::Nqn;
use crate::pdu::cm::CmRequest;

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
    pub(super) origin: QueueOrigin,
    pub(super) opened: Instant,
    /// What the CM request said; Connect must agree.
    pub(super) cm_qid: u16,
    pub(super) cm_hsqsize: u16,
    /// Entries, 1-based; from Connect.
    pub(super) entries: u16,
    sqhd: u16,
    /// Connect disabled flow control: SQHD reads FFFFh.
    pub(super) no_flow_control: bool,
}

impl Queue {
    pub(super) fn new(now: Instant, origin: QueueOrigin, request: &CmRequest) -> Self {
        Self {
            phase: Phase::AwaitingConnect,
            origin,
            opened: now,
            cm_qid: request.qid,
            cm_hsqsize: request.hsqsize,
            entries: request.hsqsize.saturating_add(1),
            sqhd: 0,
            no_flow_control: false,
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

/// What is known of a queue.
#[derive(Debug, Clone)]
pub struct QueueInfo {
    /// The host's address.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// Queue identifier.
    pub qid: u16,
    /// The host's NQN, once connected.
    pub host: Option<Nqn>,
    /// The subsystem's NQN, once connected.
    pub subsystem: Option<Nqn>,
    /// The controller identifier, once connected.
    pub cntlid: Option<u16>,
}
