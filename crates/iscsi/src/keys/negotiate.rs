//! One side's half of the negotiation of keys: what it offers, what it answers, and what holds in the end.
//!
//! Read RFC 7143 §6.2 (lists, simple values, Reject, Irrelevant, NotUnderstood, at most once a login) and §13 for each rule, which
//! is in `table`. Which answers end a login is said by [`KeyError`]; the login's status is the caller's.

use super::table::{Irrelevant, KEYS, Key, Rule, Sender, Stage, TABLE};
use super::text::{self, TextError};

/// Whose half this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The initiator's.
    Initiator,
    /// The target's.
    Target,
}

/// Where in a connection's life a key came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// CSG 0.
    Security,
    /// CSG 1.
    Operational,
    /// After the login.
    FullFeature,
}

/// Why a key ends the negotiation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text or a value is wrong.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Sent where or by whom it must not be.
    #[error("{0} must not be sent {1} (RFC 7143 §13)")]
    Misplaced(&'static str, &'static str),
    /// The peer rejected what was offered.
    #[error("the peer answered {0}={1}")]
    Refused(&'static str, String),
    /// The peer's answer is not what the rule gives.
    #[error("the peer answered {key}={answer}, where {offered} was offered (RFC 7143 §6.2)")]
    Inadmissible {
        /// The key.
        key: &'static str,
        /// Its answer.
        answer: String,
        /// The offer.
        offered: String,
    },
}

/// What one side wants: a value for each key; the standard's default where it wants nothing else.
#[derive(Debug, Clone)]
pub struct Offers(Vec<Option<String>>);

impl Default for Offers {
    fn default() -> Self {
        Self(vec![None; KEYS])
    }
}

impl Offers {
    /// With this value; of a list, in the order of preference, separated by commas.
    pub fn with(mut self, key: Key, value: impl ToString) -> Offers {
        self.set(key, value);
        self
    }

    /// Sets a value.
    pub fn set(&mut self, key: Key, value: impl ToString) {
        self.0[key as usize] = Some(value.to_string());
    }

    /// Nothing is wanted any more: the default holds, and nothing is said.
    pub fn unset(&mut self, key: Key) {
        self.0[key as usize] = None;
    }

    /// What is wanted.
    pub fn get(&self, key: Key) -> &str {
        self.0[key as usize].as_deref().unwrap_or(key.row().default)
    }

    /// Keys that were set.
    fn named(&self) -> impl Iterator<Item = Key> {
        TABLE.iter().map(|row| row.key).filter(|&key| self.0[key as usize].is_some())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Talk {
    /// Nobody said anything.
    #[default]
    Silent,
    /// This side offered.
    Offered,
    /// Settled, or declared.
    Settled,
}

/// One side's half.
#[derive(Debug, Clone)]
pub struct Negotiation {
    side: Side,
    offers: Offers,
    talk: [Talk; KEYS],
    /// What the peer declared, where each side has a value of its own; otherwise what was agreed.
    values: Vec<Option<String>>,
    /// What this side declared.
    declared: Vec<Option<String>>,
    /// A discovery session.
    pub discovery: bool,
    /// On a stream that RDMA can take over.
    pub rdma_capable: bool,
}

const IRRELEVANT: &str = "Irrelevant";
const REJECT: &str = "Reject";
const NOT_UNDERSTOOD: &str = "NotUnderstood";

impl Negotiation {
    /// Nothing said yet.
    pub fn new(side: Side, offers: Offers) -> Negotiation {
        let nothing = vec![None; KEYS];
        Negotiation {
            side,
            offers,
            talk: [Talk::Silent; KEYS],
            values: nothing.clone(),
            declared: nothing,
            discovery: false,
            rdma_capable: false,
        }
    }

    /// What was agreed, or declared by the peer, or is the default.
    pub fn value(&self, key: Key) -> &str {
        if self.is_decided(key) {
            return self.offers.get(key);
        }
        self.values[key as usize].as_deref().unwrap_or(key.row().default)
    }

    /// What this side declared, or the default.
    pub fn declared(&self, key: Key) -> &str {
        self.declared[key as usize].as_deref().unwrap_or(key.row().default)
    }

    /// Whether the key was agreed on, or declared by the peer.
    pub fn is_settled(&self, key: Key) -> bool {
        self.values[key as usize].is_some()
    }

    /// Offers made that the peer has not answered, and must.
    pub fn open(&self) -> impl Iterator<Item = Key> {
        let offered = |&key: &Key| self.talk[key as usize] == Talk::Offered;
        TABLE.iter().map(|row| row.key).filter(offered).filter(|&key| !self.is_decided(key))
    }

    /// Whether this side's offer decides by itself, so that an answer is optional: No to AND, Yes to OR (RFC 7143 §6.2.2).
    fn is_decided(&self, key: Key) -> bool {
        let deciding = match key.row().rule {
            Rule::And => "No",
            Rule::Or => "Yes",
            _ => return false,
        };
        self.talk[key as usize] == Talk::Offered && self.offers.get(key) == deciding
    }

    fn means_nothing(&self, key: Key) -> bool {
        match key.row().irrelevant {
            Irrelevant::Never => false,
            Irrelevant::Discovery => self.discovery,
            Irrelevant::WithoutRdma => self.value(Key::RDMAExtensions) != "Yes",
        }
    }

    /// Every key that was set and belongs into `phase`, as pairs to send; each once.
    pub fn offer_all(&mut self, phase: Phase) -> Vec<(String, String)> {
        let keys: Vec<Key> = self.offers.named().filter(|&key| self.belongs(key, phase)).collect();
        keys.into_iter().filter_map(|key| self.offer(key)).collect()
    }

    /// One key as a pair to send; `None` if it was said already, or means nothing here.
    pub fn offer(&mut self, key: Key) -> Option<(String, String)> {
        let offered_rdma = self.talk[Key::RDMAExtensions as usize] == Talk::Offered;
        let nothing =
            self.means_nothing(key) && !(key.row().irrelevant == Irrelevant::WithoutRdma && offered_rdma);
        if self.talk[key as usize] != Talk::Silent && !is_declared(key.row().rule) || nothing {
            return None;
        }
        let value = self.offers.get(key).to_owned();
        if is_declared(key.row().rule) {
            if self.declared[key as usize].as_ref() == Some(&value) {
                return None;
            }
            self.declared[key as usize] = Some(value.clone());
        } else {
            self.talk[key as usize] = Talk::Offered;
        }
        Some((key.name().to_owned(), value))
    }

    fn belongs(&self, key: Key, phase: Phase) -> bool {
        let row = key.row();
        let mine = matches!(
            (row.sender, self.side),
            (Sender::Both, _) | (Sender::Initiator, Side::Initiator) | (Sender::Target, Side::Target)
        );
        let then = match row.stage {
            Stage::Security => phase == Phase::Security,
            Stage::Operational | Stage::Any => phase == Phase::Operational,
            Stage::Login | Stage::FullFeature => false,
        };
        mine && then
    }

    /// The peer sent a pair; gives the answer to send, if there is one. Names and session types, which are no negotiation,
    /// are only noted: [`Negotiation::value`] has them.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn receive(
        &mut self,
        phase: Phase,
        name: &str,
        value: &str,
    ) -> Result<Option<(String, String)>, KeyError> {
        let answer = |value: &str| Ok(Some((name.to_owned(), value.to_owned())));
        let Some(key) = Key::of(name) else {
            // Answers that are no offers are not answered (§6.2).
            return if is_word(value) { Ok(None) } else { answer(NOT_UNDERSTOOD) };
        };
        if self.talk[key as usize] == Talk::Offered {
            return self.answered(key, value).map(|()| None);
        }
        if is_word(value) {
            // What this side declared needs no answer, and some peers give one.
            let declared = self.declared[key as usize].is_some();
            return if declared { Ok(None) } else { Err(KeyError::Refused(key.name(), value.to_owned())) };
        }
        self.check_place(key, phase)?;
        let again = self.values[key as usize].is_some();
        if again && !(phase == Phase::FullFeature && key == Key::MaxRecvDataSegmentLength) {
            return Err(TextError::Twice(name.to_owned()).into());
        }
        if self.means_nothing(key) {
            return answer(IRRELEVANT);
        }
        if is_declared(key.row().rule) {
            check_value(key, value)?;
            self.values[key as usize] = Some(value.to_owned());
            return Ok(None);
        }
        match self.decide(key, value)? {
            Some(agreed) => {
                self.values[key as usize] = Some(agreed.clone());
                self.talk[key as usize] = Talk::Settled;
                answer(&agreed)
            }
            None => answer(REJECT),
        }
    }

    fn check_place(&self, key: Key, phase: Phase) -> Result<(), KeyError> {
        let row = key.row();
        let when = match (row.stage, phase) {
            (Stage::Any, _) | (Stage::Login, Phase::Security | Phase::Operational) => None,
            (Stage::Security, Phase::Security) | (Stage::Operational, Phase::Operational) => None,
            (Stage::FullFeature, Phase::FullFeature) => None,
            // Some initiators go through the security stage and say all they have there.
            (Stage::Operational, Phase::Security) => Some("in the security stage"),
            (_, Phase::FullFeature) => Some("after the login"),
            _ => Some("in this stage of the login"),
        };
        let from_peer = match (row.sender, self.side) {
            (Sender::Initiator, Side::Initiator) => Some("by a target"),
            (Sender::Target, Side::Target) => Some("by an initiator"),
            _ => None,
        };
        // A target echoes names in answers to SendTargets, which are not negotiated.
        match when.or(from_peer) {
            Some(why) => Err(KeyError::Misplaced(row.name, why)),
            None => Ok(()),
        }
    }

    /// As the responder: what the rule makes of the peer's offer and this side's wish; `None` rejects it.
    fn decide(&self, key: Key, offered: &str) -> Result<Option<String>, KeyError> {
        let own = self.offers.get(key);
        let name = key.name();
        let yes = |yes: bool| Some(if yes { "Yes" } else { "No" }.to_owned());
        Ok(match key.row().rule {
            Rule::And => {
                let able = key != Key::RDMAExtensions || self.rdma_capable;
                yes(text::boolean(name, offered)? && own == "Yes" && able)
            }
            Rule::Or => yes(text::boolean(name, offered)? || own == "Yes"),
            Rule::Min(low, high) => {
                let theirs = text::number(name, offered)?;
                (low..=high)
                    .contains(&theirs)
                    .then(|| own.parse().map_or(theirs, |own: u32| own.min(theirs)).to_string())
            }
            Rule::Max(low, high) => {
                let theirs = text::number(name, offered)?;
                (low..=high)
                    .contains(&theirs)
                    .then(|| own.parse().map_or(theirs, |own: u32| own.max(theirs)).to_string())
            }
            Rule::List => {
                let takes = |wanted: &&str| own.split(',').any(|mine| mine == *wanted);
                // Digests are none on a connection that RDMA takes over (RFC 7145 §6.1).
                let plain = self.value(Key::RDMAExtensions) == "Yes"
                    && matches!(key, Key::HeaderDigest | Key::DataDigest);
                offered
                    .split(',')
                    .find(|wanted| if plain { *wanted == "None" } else { takes(wanted) })
                    .map(str::to_owned)
            }
            Rule::Number { .. } | Rule::Flag | Rule::Text => None,
        })
    }

    /// As the originator: the peer's answer to this side's offer.
    fn answered(&mut self, key: Key, answer: &str) -> Result<(), KeyError> {
        self.talk[key as usize] = Talk::Settled;
        let offered = self.offers.get(key).to_owned();
        if is_word(answer) {
            // Irrelevant and NotUnderstood leave the default; for most keys that is what a peer without it does.
            let harmless = answer != REJECT && self.default_is_harmless(key);
            return if harmless { Ok(()) } else { Err(KeyError::Refused(key.name(), answer.to_owned())) };
        }
        let inadmissible = || KeyError::Inadmissible {
            key: key.name(),
            answer: answer.to_owned(),
            offered: offered.clone(),
        };
        let name = key.name();
        let admissible = match key.row().rule {
            Rule::And => !text::boolean(name, answer)? || offered == "Yes",
            Rule::Or => text::boolean(name, answer)? || offered == "No",
            Rule::Min(low, high) => {
                let got = text::number(name, answer)?;
                got >= low && got <= offered.parse().unwrap_or(high)
            }
            Rule::Max(low, high) => {
                let got = text::number(name, answer)?;
                got <= high && got >= offered.parse().unwrap_or(low)
            }
            Rule::List => offered.split(',').any(|mine| mine == answer),
            Rule::Number { .. } | Rule::Flag | Rule::Text => true,
        };
        if !admissible {
            return Err(inadmissible());
        }
        self.values[key as usize] = Some(answer.to_owned());
        Ok(())
    }

    fn default_is_harmless(&self, key: Key) -> bool {
        key != Key::AuthMethod && (key != Key::RDMAExtensions || self.offers.get(key) != "Yes")
    }
}

/// The words that answer in place of a value.
fn is_word(value: &str) -> bool {
    matches!(value, IRRELEVANT | REJECT | NOT_UNDERSTOOD)
}

/// Whether each side has a value of its own.
fn is_declared(rule: Rule) -> bool {
    matches!(rule, Rule::Number { .. } | Rule::Flag | Rule::Text)
}

fn check_value(key: Key, value: &str) -> Result<(), KeyError> {
    match key.row().rule {
        Rule::Number { low, high, zero } => {
            let number = text::number(key.name(), value)?;
            let fits = (low..=high).contains(&number) || zero && number == 0;
            if !fits {
                let value = value.to_owned();
                let wanted = "the number is out of the key's range (RFC 7143 §13)";
                return Err(TextError::Value { key: key.name().to_owned(), value, wanted }.into());
            }
        }
        Rule::Flag => drop(text::boolean(key.name(), value)?),
        _ => {}
    }
    Ok(())
}
