//! What a target says: statuses in their order, its window, pings, events, rejects.
//!
//! Read RFC 7143 §4.2.2, §7.9, §11.4, §11.9, §11.17 and §11.19.

use std::time::Instant;

use bytes::Bytes;

use super::{Action, Failure, Kind, Session, Status};
use crate::pdu::{
    AsyncEvent, AsyncMessage, DataIn, Header, LogoutResult, NO_TAG, NopIn, Pdu, RejectReason, ScsiResponse,
    TaskResult,
};
use crate::session::before;
use crate::session::scsi::Residual;

impl Session {
    /// A PDU came. Data-In and R2T too, after the binding did its part.
    pub fn receive(&mut self, now: Instant, pdu: &Pdu) {
        (self.heard, self.pinged) = (now, None);
        match pdu.header {
            Header::ScsiResponse(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) {
                    self.response(&h, pdu);
                }
            }
            Header::DataIn(h) if h.flags & DataIn::STATUS != 0 => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) && self.ends(h.itt).is_some() {
                    let status = Status {
                        status: h.status,
                        sense: Vec::new(),
                        residual: residual(h.flags, h.residual),
                    };
                    self.actions.push_back(Action::Done(h.itt, Ok(status)));
                }
            }
            Header::DataIn(h) => self.window(h.exp_cmd_sn, h.max_cmd_sn),
            Header::R2t(h) => self.window(h.exp_cmd_sn, h.max_cmd_sn),
            Header::NopIn(h) => self.nop_in(&h, pdu),
            Header::TaskResponse(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn)
                    && let Some(Kind::Management(function)) = self.ends(h.itt)
                {
                    let result = TaskResult::from_code(h.response).ok_or(Failure::Target(h.response));
                    self.managed(h.itt, function, result);
                }
            }
            Header::TextResponse(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) && self.ends(h.itt).is_some() {
                    let more = (h.ttt != NO_TAG).then_some(h.ttt);
                    self.actions.push_back(Action::Text(h.itt, Ok((pdu.data.clone(), more))));
                }
            }
            Header::LogoutResponse(h) => {
                let result = LogoutResult::from_code(h.response);
                let text =
                    result.map_or_else(|| format!("response {:#04x}", h.response), |one| one.to_string());
                self.close(format!("logged out: {text}"));
            }
            Header::AsyncMessage(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) {
                    self.told(&h, pdu);
                }
            }
            Header::Reject(h) => {
                if self.numbered(h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn) {
                    self.rejected(h.reason, &pdu.data);
                }
            }
            other => self.close(format!("a target sent a {} in the full feature phase", other.name())),
        }
    }

    fn ends(&mut self, itt: u32) -> Option<Kind> {
        let known = self.requests.remove(&itt);
        if known.is_none() {
            tracing::debug!("an answer to tag {itt:#x}, which nothing waits for");
        }
        known
    }

    /// Whether a status has the number that is next; level 0 ends the session where one was lost (RFC 7143 §7.9).
    fn numbered(&mut self, stat_sn: u32, exp_cmd_sn: u32, max_cmd_sn: u32) -> bool {
        if stat_sn != self.exp_stat_sn {
            self.close(format!("StatSN {stat_sn} came, {} was next (RFC 7143 §4.2.2.2)", self.exp_stat_sn));
            return false;
        }
        self.exp_stat_sn = self.exp_stat_sn.wrapping_add(1);
        self.window(exp_cmd_sn, max_cmd_sn);
        true
    }

    /// RFC 7143 §4.2.2.1: the window only ever goes forward.
    fn window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        let sane = !before(max_cmd_sn, exp_cmd_sn.wrapping_sub(1));
        if sane && before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    fn response(&mut self, header: &ScsiResponse, pdu: &Pdu) {
        if self.ends(header.itt).is_none() {
            return;
        }
        if header.response != 0 {
            return self.actions.push_back(Action::Done(header.itt, Err(Failure::Target(header.response))));
        }
        let sense = match pdu.data.get(..2) {
            Some(len) => {
                let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
                pdu.data[2..].iter().take(len).copied().collect()
            }
            None => Vec::new(),
        };
        let residual = residual(header.flags, header.residual);
        let status = Status { status: header.status, sense, residual };
        self.actions.push_back(Action::Done(header.itt, Ok(status)));
    }

    /// RFC 7143 §11.19: a target's ping has no Initiator Task Tag and does not advance StatSN.
    fn nop_in(&mut self, nop: &NopIn, pdu: &Pdu) {
        if nop.itt == NO_TAG {
            self.window(nop.exp_cmd_sn, nop.max_cmd_sn);
        } else if !self.numbered(nop.stat_sn, nop.exp_cmd_sn, nop.max_cmd_sn) {
            return;
        } else {
            self.ends(nop.itt);
        }
        if nop.ttt != NO_TAG {
            self.nop_out(NO_TAG, nop.ttt, nop.lun, pdu.data.clone());
        }
    }

    fn told(&mut self, message: &AsyncMessage, pdu: &Pdu) {
        match AsyncEvent::from_code(message.event) {
            Some(AsyncEvent::Scsi) => {
                let sense = pdu.data.slice(pdu.data.len().min(2)..);
                self.actions.push_back(Action::Event(message.lun, sense));
            }
            Some(AsyncEvent::LogoutRequest) => {
                self.actions.push_back(Action::LogoutRequested(message.parameter3));
            }
            Some(event @ (AsyncEvent::DroppingConnection | AsyncEvent::DroppingSession)) => {
                self.close(event.to_string());
            }
            Some(event) => tracing::info!("the target says: {event}"),
            None => tracing::info!("the target says: asynchronous event {}", message.event),
        }
    }

    /// What was rejected is named by its header (RFC 7143 §11.17).
    fn rejected(&mut self, reason: u8, data: &Bytes) {
        let reason = RejectReason::from_code(reason).unwrap_or(RejectReason::Protocol);
        let header = data.first_chunk().and_then(Header::parse);
        let failure = Failure::Rejected(reason);
        let (itt, kind) = match header {
            Some(Header::ScsiCommand(h)) => (h.itt, "SCSI Command"),
            Some(Header::TaskRequest(h)) => (h.itt, "Task Management Function Request"),
            Some(Header::TextRequest(h)) => (h.itt, "Text Request"),
            other => {
                let name = other.map_or("PDU", |header| header.name());
                return self.close(format!("the target rejected a {name}: {reason}"));
            }
        };
        match self.requests.remove(&itt) {
            Some(Kind::Scsi(_)) => self.actions.push_back(Action::Done(itt, Err(failure))),
            Some(Kind::Management(function)) => self.managed(itt, function, Err(failure)),
            Some(Kind::Text) => self.actions.push_back(Action::Text(itt, Err(failure))),
            Some(Kind::Ping | Kind::Logout) | None => {
                tracing::debug!("the target rejected a {kind} that nothing waits for: {reason}");
            }
        }
    }
}

fn residual(flags: u8, count: u32) -> Residual {
    if flags & ScsiResponse::UNDERFLOW != 0 {
        Residual::Under(count)
    } else if flags & ScsiResponse::OVERFLOW != 0 {
        Residual::Over(count)
    } else {
        Residual::None
    }
}
