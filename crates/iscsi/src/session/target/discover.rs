//! Text in the full feature phase: SendTargets, and lengths that are declared anew.
//!
//! Read RFC 7143 §4.3, §11.10, §11.11 and appendix C. An answer longer than one PDU is fetched piece by piece with a Target
//! Transfer Tag; a new request without a tag drops what was not fetched.

use super::{Action, Numbers, Session};
use crate::keys::text::{self, Pairs, TextBuffer};
use crate::keys::{Key, Params, Phase, Side};
use crate::login::SessionKind;
use crate::name::IscsiName;
use crate::pdu::{CONTINUE, FINAL, NO_TAG, Pdu, RejectReason, TextRequest, TextResponse};

/// A target, as SendTargets shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: IscsiName,
    /// `address:port,group` of each portal.
    pub addresses: Vec<String>,
}

/// Who knows what targets there are.
pub trait Directory {
    /// Targets that this initiator may see: all, or the one named.
    fn targets(&self, initiator: &IscsiName, only: Option<&IscsiName>) -> Vec<Listed>;
}

/// An answer of which not everything was sent.
#[derive(Debug, Default)]
pub(super) struct Answer {
    rest: Vec<u8>,
    tag: u32,
}

impl Session {
    pub(super) fn text(&mut self, request: &TextRequest, pdu: &Pdu) {
        let going_on =
            request.ttt != NO_TAG && request.ttt == self.text_out.tag && !self.text_out.rest.is_empty();
        if going_on && pdu.data.is_empty() {
            return self.answer_text(request);
        }
        if request.ttt == NO_TAG {
            // A new exchange (§11.10.4): what was left of another is forgotten.
            self.text_out.rest.clear();
            self.text_in = TextBuffer::default();
        }
        let (last, more) = (request.flags & FINAL != 0, request.flags & CONTINUE != 0);
        if last && more {
            return self.reject(pdu, RejectReason::InvalidField);
        }
        if self.text_in.push(&pdu.data).is_err() {
            return self.reject(pdu, RejectReason::LongOperation);
        }
        if more {
            self.text_out.tag = self.text_out.tag.wrapping_add(1) & 0x7fff_ffff;
            return self.say(request, 0, Vec::new());
        }
        let answers = match self.text_in.take() {
            Ok(pairs) => self.answers(&pairs),
            Err(error) => Err(error.to_string()),
        };
        match answers {
            Ok(answers) => {
                self.text_out.rest =
                    text::emit(answers.iter().map(|(key, value)| (key.as_str(), value.as_str())));
                self.answer_text(request);
            }
            Err(error) => {
                tracing::debug!("{}: text request: {error}", self.identity.initiator);
                self.reject(pdu, RejectReason::Protocol);
            }
        }
    }

    /// As much of the answer as one PDU holds.
    fn answer_text(&mut self, request: &TextRequest) {
        let fits = self.text_out.rest.len().min(self.params.max_send);
        let rest = self.text_out.rest.split_off(fits);
        let now = std::mem::replace(&mut self.text_out.rest, rest);
        let flags = match (self.text_out.rest.is_empty(), request.flags & FINAL) {
            (false, _) => CONTINUE,
            // The initiator has more to say, and may not be told that this is the end (§11.11.1).
            (true, 0) => 0,
            (true, _) => FINAL,
        };
        if flags != FINAL {
            self.text_out.tag = self.text_out.tag.wrapping_add(1) & 0x7fff_ffff;
        }
        self.say(request, flags, now);
    }

    fn say(&mut self, request: &TextRequest, flags: u8, data: Vec<u8>) {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let response = TextResponse {
            flags,
            lun: request.lun,
            itt: request.itt,
            ttt: if flags == FINAL { NO_TAG } else { self.text_out.tag },
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
        };
        self.actions.push_back(Action::Send(Pdu::with_data(response, data)));
    }

    fn answers(&mut self, pairs: &Pairs) -> Result<Pairs, String> {
        let mut answers = Pairs::new();
        for (name, value) in pairs {
            if name == Key::SendTargets.name() {
                answers.extend(self.send_targets(value)?);
                continue;
            }
            let answer =
                self.negotiation.receive(Phase::FullFeature, name, value).map_err(|e| e.to_string())?;
            answers.extend(answer);
        }
        let max_send = Params::of(&self.negotiation, Side::Target).max_send;
        if max_send != self.params.max_send {
            self.params.max_send = max_send;
            self.actions.push_back(Action::MaxSend(max_send));
        }
        Ok(answers)
    }

    /// RFC 7143 appendix C: `All` only in a discovery session; nothing or its own name in a normal one.
    fn send_targets(&self, which: &str) -> Result<Pairs, String> {
        let named = |text: &str| text.parse::<IscsiName>().map_err(|e| format!("SendTargets={text}: {e}"));
        let only = match (&self.identity.kind, which) {
            (SessionKind::Discovery, "All") => None,
            (SessionKind::Discovery, "") => {
                return Err("SendTargets without a value in a discovery session".to_owned());
            }
            (SessionKind::Discovery, name) => Some(named(name)?),
            (SessionKind::Normal(own), "") => Some(own.clone()),
            (SessionKind::Normal(_), "All") => {
                return Ok(vec![(Key::SendTargets.name().to_owned(), "Reject".to_owned())]);
            }
            (SessionKind::Normal(own), name) => match named(name)? {
                name if name == *own => Some(name),
                _ => return Ok(Pairs::new()),
            },
        };
        let mut pairs = Pairs::new();
        for target in self.directory.targets(&self.identity.initiator, only.as_ref()) {
            pairs.push((Key::TargetName.name().to_owned(), target.name.to_string()));
            for address in target.addresses {
                pairs.push((Key::TargetAddress.name().to_owned(), address));
            }
        }
        Ok(pairs)
    }
}
