//! The end of a connection: DREQ, DREP, REJ after the handshake, letting go, and LAP, which is refused.
//!
//! Read first: IBTA volume 1 §12.9.9 (both sides may start, even at once) and §12.8.2 (LAP and APR). Every connection that
//! was established ends in exactly one [`CmEvent::Disconnected`], whoever starts and whatever is lost.

use std::time::Instant;

use everywire_wire::cm::{AprStatus, Drep, Dreq, Lap, Rej, RejReason};

use super::config::{ABANDONED_DREQ_RETRIES, DREQ_PRIVATE_DATA};
use super::events::{CmCallError, CmEvent};
use super::message::{self, Reject, check_private};
use super::state::{Act, Input, State, step};
use super::types::{CommId, DisconnectCause, Failure, Rejection};
use super::{Cm, MadPath};

impl Cm {
    /// Sends DREQ. Ends in [`CmEvent::Disconnected`].
    ///
    /// An error says that the connection is not established any more (or not yet); when it is over already, that is
    /// harmless, as its one event is on its way.
    pub fn disconnect(&mut self, now: Instant, id: CommId, private_data: &[u8]) -> Result<(), CmCallError> {
        check_private("DREQ", DREQ_PRIVATE_DATA, private_data)?;
        let step = self.allowed(id, Input::Disconnect, "disconnect")?;
        self.send_dreq(now, id, private_data);
        self.settle(now, id, step.next);
        Ok(())
    }

    /// The program lets go: whatever is under way ends with the peer being told, and no event follows.
    pub fn abandon(&mut self, now: Instant, id: CommId) {
        if self.sidrs.contains(id) {
            return self.sidr_abandon(id);
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.owned = false;
        let step = step(conn.state, Input::Abandon);
        match step.act {
            Act::Cancel => self.send_timeout_rej(id),
            Act::SendRej => self.send_rej(id, &Reject::consumer(&[])),
            Act::SendDreq => {
                conn.retries = conn.retries.min(ABANDONED_DREQ_RETRIES);
                self.send_dreq(now, id, &[]);
            }
            _ => {
                conn.retries_left = conn.retries_left.min(ABANDONED_DREQ_RETRIES);
                return;
            }
        }
        self.settle(now, id, step.next);
    }

    fn send_dreq(&mut self, now: Instant, id: CommId, private_data: &[u8]) {
        if let Some(mad) = self.conns.get(id).and_then(|conn| message::dreq(conn, private_data)) {
            self.send_and_wait(now, id, mad);
        }
    }

    pub(super) fn tell_disconnected(&mut self, id: CommId, cause: DisconnectCause, private_data: Vec<u8>) {
        if cause == DisconnectCause::TimedOut {
            self.counters.timed_out += 1;
        }
        self.tell(id, CmEvent::Disconnected { id, cause, private_data });
    }

    pub(super) fn on_dreq(&mut self, now: Instant, from: MadPath, tid: u64, dreq: &Dreq) {
        let found = self.pair(&from, dreq.remote_comm_id, dreq.local_comm_id);
        let Some(conn) = found.and_then(|id| self.conns.get(id)) else {
            // IBTA §12.9.9: a peer that disconnects from nothing is told that it succeeded.
            self.counters.stray += 1;
            return self.send(from, message::drep(tid, dreq));
        };
        if conn.qpn != Some(dreq.remote_qpn) {
            self.counters.malformed += 1;
            return;
        }
        let (id, state) = (conn.id, conn.state);
        let step = step(state, Input::Dreq);
        match step.act {
            Act::Disconnected => {
                self.send(from, message::drep(tid, dreq));
                let cause =
                    if state == State::DreqSent { DisconnectCause::Local } else { DisconnectCause::Peer };
                self.tell_disconnected(id, cause, dreq.private_data.to_vec());
                self.settle(now, id, step.next);
            }
            Act::AnswerDreq => {
                self.counters.duplicates += 1;
                self.send(from, message::drep(tid, dreq));
            }
            _ => self.counters.unexpected += 1,
        }
    }

    pub(super) fn on_drep(&mut self, now: Instant, from: MadPath, drep: &Drep) {
        let Some(id) = self.find_pair(&from, drep.remote_comm_id, drep.local_comm_id) else { return };
        let Some(state) = self.state(id) else { return };
        let step = step(state, Input::Drep);
        match step.act {
            Act::DisconnectDone => {
                self.tell_disconnected(id, DisconnectCause::Local, drep.private_data.to_vec());
                self.settle(now, id, step.next);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    pub(super) fn on_rej(&mut self, now: Instant, from: MadPath, rej: &Rej) {
        let Some(id) = self.rejected_conn(&from, rej) else {
            self.counters.stray += 1;
            return;
        };
        let Some(state) = self.state(id) else { return };
        let input = if rej.reason == RejReason::StaleConnection { Input::RejStale } else { Input::Rej };
        let step = step(state, input);
        match step.act {
            Act::Rejected => {
                let rejection = Rejection {
                    reason: rej.reason,
                    info: message::rej_info(rej).to_vec(),
                    private_data: rej.private_data.to_vec(),
                };
                self.tell(id, CmEvent::Rejected { id, rejection: Box::new(rejection) });
            }
            Act::PeerGaveUp if state == State::DreqSent => {
                self.tell_disconnected(id, DisconnectCause::Local, rej.private_data.to_vec());
            }
            Act::PeerGaveUp => {
                self.tell_disconnected(id, DisconnectCause::Rejected(rej.reason), rej.private_data.to_vec());
            }
            _ => {
                self.counters.unexpected += 1;
                return;
            }
        }
        self.settle(now, id, step.next);
    }

    /// The connection a REJ speaks of (IBTA §12.6.7).
    fn rejected_conn(&self, from: &MadPath, rej: &Rej) -> Option<CommId> {
        if rej.reason == RejReason::Timeout && rej.remote_comm_id == 0 {
            // The sender never learnt our id: only its own tells which request it withdraws.
            return self.conns.by_remote_id(from.remote, rej.local_comm_id);
        }
        let conn = self.conns.get(CommId(rej.remote_comm_id)).filter(|conn| Cm::same_peer(conn, from))?;
        let awaits_reply = matches!(conn.state, State::ReqSent | State::ReqMraReceived);
        if rej.message_rejected == message::OF_REQ {
            // Only a REQ that is still out can be rejected; a late REJ must not end what came of a second one.
            return awaits_reply.then_some(conn.id);
        }
        let known = conn.remote_id.is_some_and(|id| id == rej.local_comm_id);
        (known || awaits_reply).then_some(conn.id)
    }

    /// LAP: alternate paths are not supported, which APR has a status for (IBTA table 116).
    pub(super) fn on_lap(&mut self, from: MadPath, tid: u64, lap: &Lap) {
        let found = self.pair(&from, lap.remote_comm_id, lap.local_comm_id);
        let state = found.and_then(|id| self.state(id));
        match state.map(|state| step(state, Input::Lap).act) {
            Some(Act::AnswerLap) => self.send(from, message::apr(tid, lap, AprStatus::NotSupported)),
            Some(_) => self.counters.unexpected += 1,
            None => {
                self.counters.stray += 1;
                self.send(from, message::apr(tid, lap, AprStatus::InvalidCommId));
            }
        }
    }

    /// The timer of a waiting state fired.
    pub(super) fn on_timer(&mut self, now: Instant, id: CommId) {
        self.conns.disarm(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        let input = if conn.retries_left > 0 { Input::Retry } else { Input::Expire };
        let step = step(conn.state, input);
        match step.act {
            Act::Repeat => {
                conn.retries_left -= 1;
                let at = now + conn.interval;
                self.counters.retransmitted += 1;
                self.repeat(id);
                self.conns.arm(id, at);
            }
            Act::GiveUp => self.give_up(id),
            Act::TooLate => self.too_late(id),
            Act::DisconnectTimedOut => self.tell_disconnected(id, DisconnectCause::TimedOut, Vec::new()),
            Act::Forget => return self.forget(id),
            _ => return,
        }
        self.settle(now, id, step.next);
    }

    /// The failure of a SIDR exchange whose time is over.
    pub(super) fn sidr_timed_out(retries: u8) -> Failure {
        Failure::TimedOut { state: State::ReqSent, tries: retries.saturating_add(1) }
    }
}
