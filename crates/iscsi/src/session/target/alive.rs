//! Signs of life, and what a target says on its own account: NOP-In, NOP-Out, asynchronous messages.
//!
//! Read RFC 7143 §11.9, §11.18, §11.19. A ping of the target has no Initiator Task Tag and does not advance StatSN. Nothing
//! unasked is sent before the initiator's first PDU of the full feature phase, for which it may not have a buffer yet.

use std::time::{Duration, Instant};

use super::{Action, Numbers, Session};
use crate::pdu::{
    AsyncEvent, AsyncMessage, FINAL, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, NO_TAG,
    NopIn, NopOut, Pdu,
};

/// Who was heard when.
#[derive(Debug)]
pub(super) struct Alive {
    heard: Instant,
    /// The initiator has spoken since the login.
    spoken: bool,
    pinged: Option<Instant>,
    ttt: u32,
    /// When the connection closes, whatever the initiator does.
    ends: Option<Instant>,
    /// The initiator was told that it is logged out.
    logged_out: bool,
}

impl Alive {
    pub(super) fn new(now: Instant) -> Alive {
        Alive { heard: now, spoken: false, pinged: None, ttt: 0, ends: None, logged_out: false }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.spoken = true;
        self.pinged = None;
    }
}

impl Session {
    /// The initiator sent something that the binding kept for itself.
    pub fn heard(&mut self, now: Instant) {
        self.alive.heard(now);
    }

    /// When [`Session::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let ping = match self.alive.pinged {
            Some(at) => at + self.options.ping_timeout,
            None => self.alive.heard + self.options.ping_after,
        };
        let ping = Some(ping).filter(|_| self.alive.spoken && !self.closing);
        ping.into_iter().chain(self.alive.ends).chain(self.managing.deadline()).min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.give_up_draining(now);
        if self.alive.ends.is_some_and(|end| end <= now) {
            self.alive.ends = None;
            return self.close("the initiator did not log out when it was asked to");
        }
        if !self.alive.spoken || self.closing {
            return;
        }
        match self.alive.pinged {
            Some(at) if at + self.options.ping_timeout <= now => {
                let waited = self.options.ping_after + self.options.ping_timeout;
                self.close(format_args!("no sign of life from the initiator for {waited:?}"));
            }
            None if self.alive.heard + self.options.ping_after <= now => {
                self.alive.pinged = Some(now);
                self.alive.ttt = (self.alive.ttt + 1) & 0x7fff_ffff;
                let ttt = self.alive.ttt;
                let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
                let nop = NopIn { flags: FINAL, lun: 0, itt: NO_TAG, ttt, stat_sn, exp_cmd_sn, max_cmd_sn };
                self.actions.push_back(Action::Send(Pdu::new(nop)));
            }
            _ => {}
        }
    }

    /// The answer to a ping of this side: hearing it was all.
    pub(super) fn pong(&mut self, nop: &NopOut) {
        tracing::trace!("{}: NOP-Out of TTT {:#x}", self.identity.initiator, nop.ttt);
    }

    /// A ping of the initiator: its data comes back (RFC 7143 §11.19).
    pub(super) fn ping(&mut self, request: &NopOut, pdu: &Pdu) {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let nop =
            NopIn { flags: FINAL, lun: 0, itt: request.itt, ttt: NO_TAG, stat_sn, exp_cmd_sn, max_cmd_sn };
        let data = pdu.data.slice(..pdu.data.len().min(self.params.max_send));
        self.actions.push_back(Action::Send(Pdu::with_data(nop, data)));
    }

    /// Asks the initiator to log out, and closes the connection if it has not within `wait` (RFC 7143 §11.9.1, event 1).
    pub fn request_logout(&mut self, now: Instant, wait: Duration) {
        if !self.alive.spoken || self.closing {
            return self.close("the target ends");
        }
        self.alive.ends = Some(now + wait);
        self.tell(AsyncEvent::LogoutRequest, self.cid, 0, wait.as_secs().min(3600) as u16);
    }

    /// The initiator leaves (RFC 7143 §11.14, §11.15).
    pub(super) fn logout(&mut self, request: &LogoutRequest, immediate: bool) {
        let reason = LogoutReason::from_code(request.flags & 0x7f);
        let result = match reason {
            Some(LogoutReason::CloseSession) => LogoutResult::Closed,
            Some(LogoutReason::CloseConnection) if request.cid == self.cid => LogoutResult::Closed,
            Some(LogoutReason::CloseConnection) => LogoutResult::NoConnection,
            // Error recovery level 0 (RFC 7143 §11.14.1).
            Some(LogoutReason::Recovery) => LogoutResult::NoRecovery,
            None => LogoutResult::Failed,
        };
        let closes = result == LogoutResult::Closed;
        if closes {
            self.abort_all();
        }
        if !immediate {
            self.window.advance();
        }
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let response = LogoutResponse {
            flags: FINAL,
            response: result.code(),
            itt: request.itt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            time2wait: self.params.time2wait,
            time2retain: 0,
        };
        self.actions.push_back(Action::Send(Pdu::new(response)));
        if closes {
            self.alive.logged_out = true;
            let why = reason.map_or_else(String::new, |reason| reason.to_string());
            self.close(format_args!("logged out: {why}"));
        }
    }

    /// Whether the initiator has left by a Logout Request, and was told so.
    pub fn logged_out(&self) -> bool {
        self.alive.logged_out
    }

    /// Says that the session ends, and ends it (event 3); `reason` is for the log.
    pub fn drop_session(&mut self, reason: &str) {
        if self.alive.spoken && !self.closing {
            self.abort_all();
            self.tell(AsyncEvent::DroppingSession, 0, self.params.time2wait, 0);
        }
        self.close(reason);
    }

    fn tell(&mut self, event: AsyncEvent, parameter1: u16, parameter2: u16, parameter3: u16) {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let message = AsyncMessage {
            flags: FINAL,
            lun: 0,
            itt: NO_TAG,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            event: event.code(),
            vcode: 0,
            parameter1,
            parameter2,
            parameter3,
        };
        self.actions.push_back(Action::Send(Pdu::new(message)));
    }
}
