//! What a target asks of its binding on its own account, and asynchronous events to hosts. NVMe Base 2.0 §5.2.

use super::controller::Controller;
use super::{ControllerKey, QueueId, Target};
use crate::pdu::features::{AEC_DISCOVERY_LOG, AEC_NAMESPACE_ATTRIBUTE};
use crate::pdu::{Cqe, Status, log};
use everywire_verbs::peer_log::About;

/// Something to do outside a command.
#[derive(Debug, Clone, Copy)]
pub enum TargetEvent {
    /// Send this completion of a held command.
    Respond {
        /// The queue.
        queue: QueueId,
        /// The completion.
        cqe: Cqe,
    },
    /// Disconnect this queue; `close_queue` is not needed any more.
    Close {
        /// The queue.
        queue: QueueId,
        /// Why.
        reason: CloseReason,
    },
    /// The queue's deadline is another one now, perhaps an earlier one: [`Target::queue_deadline`] tells.
    Deadline {
        /// The queue.
        queue: QueueId,
    },
}

/// Why a queue is closed from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// No Connect came in time.
    NoConnect,
    /// No Connect had come, all connections were taken, and another host asked for one.
    Displaced,
    /// No command came within the keep alive timeout.
    KeepAliveExpired,
    /// The host disabled the controller (CC.EN), which deletes its I/O queues.
    ControllerReset,
    /// The association's admin queue is gone.
    AdminQueueGone,
    /// The host was taken off the subsystem's list.
    HostRemoved,
    /// The subsystem was removed.
    SubsystemRemoved,
    /// The target is shutting down.
    Shutdown,
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoConnect => "no Connect command came in time",
            Self::Displaced => {
                "no Connect command had come, and all connections are taken: given up for a newer one"
            }
            Self::KeepAliveExpired => "the keep alive timer expired",
            Self::ControllerReset => "the host disabled the controller",
            Self::AdminQueueGone => "the admin queue's connection is gone",
            Self::HostRemoved => "the host is no longer allowed",
            Self::SubsystemRemoved => "the subsystem was removed",
            Self::Shutdown => "the target shuts down",
        })
    }
}

/// Asynchronous events a controller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    NamespaceAttribute,
    DiscoveryLog,
}

impl Notice {
    fn enabled_by(self) -> u32 {
        match self {
            Self::NamespaceAttribute => AEC_NAMESPACE_ATTRIBUTE,
            Self::DiscoveryLog => AEC_DISCOVERY_LOG,
        }
    }

    fn dword0(self) -> u32 {
        match self {
            Self::NamespaceAttribute => {
                log::async_event(log::EVENT_NOTICE, log::NOTICE_NAMESPACE_ATTRIBUTE, log::CHANGED_NAMESPACES)
            }
            Self::DiscoveryLog => {
                log::async_event(log::EVENT_NOTICE, log::NOTICE_DISCOVERY_LOG, log::DISCOVERY)
            }
        }
    }

    fn cleared_by(self) -> u8 {
        match self {
            Self::NamespaceAttribute => log::CHANGED_NAMESPACES,
            Self::DiscoveryLog => log::DISCOVERY,
        }
    }
}

impl Controller {
    /// Takes the next event that may be reported. An event stays masked until its log page is read.
    pub(super) fn next_notice(&mut self) -> Option<u64> {
        let at = self.pending_notices.iter().position(|notice| !self.masked_notices.contains(notice))?;
        let notice = self.pending_notices.remove(at);
        self.masked_notices.push(notice);
        Some(u64::from(notice.dword0()))
    }

    /// The log page was read without Retain Asynchronous Event.
    pub(super) fn unmask(&mut self, log: u8) {
        self.masked_notices.retain(|notice| notice.cleared_by() != log);
    }
}

impl Target {
    /// Notes an event for a controller and reports it if a request is held.
    pub(super) fn notify(&mut self, key: ControllerKey, notice: Notice) {
        let Some(controller) = self.controllers.get_mut(&key) else { return };
        if controller.async_config & notice.enabled_by() == 0 || controller.pending_notices.contains(&notice)
        {
            return;
        }
        controller.pending_notices.push(notice);
        self.report(key);
    }

    /// Answers held requests while there are events to report.
    pub(super) fn report(&mut self, key: ControllerKey) {
        while let Some(controller) = self.controllers.get_mut(&key)
            && !controller.held_events.is_empty()
            && let Some(result) = controller.next_notice()
        {
            let (cid, queue) = (controller.held_events.remove(0), controller.admin_queue);
            if let Some(cqe) = self.respond(queue, cid, Ok(result)) {
                self.events.push_back(TargetEvent::Respond { queue, cqe });
            }
        }
    }

    /// Completes a held request with Command Abort Requested; false if `cid` is not held.
    pub(super) fn abort_held(&mut self, key: ControllerKey, cid: u16) -> bool {
        let Some(controller) = self.controllers.get_mut(&key) else { return false };
        let Some(at) = controller.held_events.iter().position(|&held| held == cid) else { return false };
        controller.held_events.remove(at);
        let queue = controller.admin_queue;
        if let Some(cqe) = self.respond(queue, cid, Err(Status::ABORT_REQUESTED.into())) {
            self.events.push_back(TargetEvent::Respond { queue, cqe });
        }
        true
    }

    /// Forgets a queue and has its connection closed.
    pub(super) fn close(&mut self, queue: QueueId, reason: CloseReason) {
        if self.queues.remove(&queue).is_some() {
            self.events.push_back(TargetEvent::Close { queue, reason });
        }
    }

    /// Ends an association: its controller and all its queues.
    pub(super) fn end_association(&mut self, key: ControllerKey, reason: CloseReason) {
        let Some(controller) = self.controllers.remove(&key) else { return };
        let Controller { host, subsystem, cntlid, .. } = &controller;
        if controller.log.may(About::Event) {
            tracing::info!(
                "host {host}, subsystem {subsystem}, controller {cntlid}: association ended: {reason}"
            );
        }
        if let Some(subsystem) = self.subsystems.get_mut(&controller.subsystem) {
            subsystem.release(controller.cntlid);
        }
        for queue in controller.queues.values() {
            self.close(*queue, reason);
        }
        self.close(controller.admin_queue, reason);
    }
}
