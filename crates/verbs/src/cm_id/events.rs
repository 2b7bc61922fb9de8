//! What the connection manager reports, drawn into records.
//!
//! An event for a record that nobody holds any more changes nothing: its handle has been dropped, and the program hears of
//! it no more.

use std::time::Instant;

use everywire_transport::cm::ib::{CmEvent, CommId, Failure};

use everywire_wire::Mtu;
use everywire_wire::cm::RejReason;

use super::error::{CmErrorKind, DisconnectReason};
use super::record::End;
use crate::state::State;

impl State {
    /// Takes every event there is, and those that follow from them.
    pub(super) fn cm_events(&mut self, now: Instant) {
        while let Some(event) = self.cm.engine.poll_event() {
            self.cm_event(now, event);
        }
    }

    fn cm_event(&mut self, now: Instant, event: CmEvent) {
        match event {
            CmEvent::Request(request) => self.cm_request(now, &request),
            CmEvent::Reply(reply) => self.cm_reply(now, &reply),
            CmEvent::Established { id, .. } => self.cm_established(now, id),
            CmEvent::Rejected { id, rejection } => {
                let r = *rejection;
                if self.cm_smaller_mtu(now, id, r.reason, &r.info) {
                    return;
                }
                let record = self.cm.records.of_comm(id).and_then(|key| self.cm.records.get(key));
                let asked_mtu = record.and_then(|record| record.asked_mtu);
                let (reason, info, private_data) = (r.reason, r.info, r.private_data);
                self.cm_failed(id, CmErrorKind::Rejected { reason, info, asked_mtu, private_data });
            }
            CmEvent::Failed { id, failure } => self.cm_failed(id, self.failure_kind(failure)),
            CmEvent::Disconnected { id, cause, .. } => {
                let Some(key) = self.cm.records.of_comm(id) else { return };
                self.cm_end(key, End::Closed(DisconnectReason::from_cause(&cause)));
            }
            CmEvent::TimewaitExit { id, .. } => {
                let Some(key) = self.cm.records.of_comm(id) else { return };
                self.cm.records.take_comm(key);
                if let Some(record) = self.cm.records.get_mut(key) {
                    record.rested = true;
                }
                self.cm_wake(key);
            }
            CmEvent::SidrRequest { id, listener, path, private_data } => {
                self.cm_ud_request(id, listener, &path, private_data);
            }
            CmEvent::SidrReply { id, answer } => self.cm_answered(id, *answer),
            CmEvent::SidrFailed { id, failure } => {
                self.cm_ud_gone(id);
                self.cm_failed(id, self.failure_kind(failure));
            }
        }
    }

    /// RTU or data has come: the passive queue pair goes to RTS.
    fn cm_established(&mut self, now: Instant, id: CommId) {
        let Some(key) = self.cm.records.of_comm(id) else { return };
        let Some(params) = self.cm.engine.qp_params(id) else { return };
        match self.cm_to_rts(key, &params) {
            Ok(()) => self.cm_up(key),
            Err(kind) => {
                // The program has taken the queue pair elsewhere meanwhile.
                let _ = self.cm.engine.disconnect(now, id, &[]);
                self.cm_end(key, End::Failed(kind));
            }
        }
    }

    fn cm_failed(&mut self, id: CommId, kind: CmErrorKind) {
        let Some(key) = self.cm.records.of_comm(id) else { return };
        if !self.cm_unqueue(key) {
            self.cm_end(key, End::Failed(kind));
        }
        // An id that the engine has forgotten may be another's next: this record must not end that one's life. Those in
        // time-wait are cut off when it is over.
        if !self.cm.engine.knows(id) {
            self.cm.records.take_comm(key);
        }
    }

    fn failure_kind(&self, failure: Failure) -> CmErrorKind {
        match failure {
            Failure::TimedOut { tries, .. } => CmErrorKind::TimedOut { tries },
            Failure::Unreachable if self.cm.port_unreachable => CmErrorKind::PortUnreachable,
            Failure::Unreachable => CmErrorKind::Unreachable,
            Failure::NotAnswered => CmErrorKind::NotAnsweredInTime,
            Failure::Stale => CmErrorKind::Superseded,
        }
    }
}

/// The path MTU that the peer says would do, of a rejection because of it (IBTA table 110, code 26: 8 bits, an MTU's code).
pub(super) fn acceptable_mtu(reason: RejReason, info: &[u8]) -> Option<Mtu> {
    info.first().filter(|_| reason == RejReason::InvalidPathMtu).and_then(|code| Mtu::from_code(*code))
}

/// The same in words, after those of the reason, and what was asked for.
pub(super) fn most(reason: RejReason, info: &[u8], asked: Option<Mtu>) -> String {
    if reason != RejReason::InvalidPathMtu {
        return String::new();
    }
    let most = acceptable_mtu(reason, info).map(|mtu| format!("{} bytes at most", mtu.bytes()));
    let asked = asked.map(|mtu| format!("asked for were {}", mtu.bytes()));
    let told: Vec<String> = most.into_iter().chain(asked).collect();
    if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) }
}
