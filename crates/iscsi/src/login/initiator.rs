//! The initiator's half of the login.
//!
//! Read RFC 7143 §6.3, §11.12 and §11.13. Starts in the security stage, offering CHAP where there are credentials and None
//! otherwise, then says everything it wants in one request of the operational stage. Redirections are the caller's to follow.

use super::chap::{self, ChapError, Credentials, Nonce, Supplicant};
use super::{
    FULL_FEATURE, LoginStatus, MAX_LOGIN_DATA, MAX_LOGIN_PDUS, OPERATIONAL, SECURITY, SessionKind, VERSION,
    phase_of,
};
use crate::keys::text::{self, Pairs, TextBuffer};
use crate::keys::{Key, KeyError, Negotiation, Offers, Params, Phase, Side};
use crate::name::{IscsiName, Isid};
use crate::pdu::{CONTINUE, Header, LoginRequest, LoginResponse, Pdu};

/// Who logs in to what, and how.
#[derive(Debug, Clone)]
pub struct LoginOptions {
    /// This node.
    pub initiator: IscsiName,
    /// Its part of the session's identity; the same again takes an old session's place.
    pub isid: Isid,
    /// What the session is for.
    pub kind: SessionKind,
    /// What this side says in CHAP.
    pub chap: Option<Credentials>,
    /// What the target must say (mutual CHAP).
    pub chap_target: Option<Credentials>,
    /// What is wanted of the session.
    pub offers: Offers,
    /// CmdSN of the first command.
    pub cmd_sn: u32,
}

/// Why a login failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target refused.
    #[error("login refused: {0}")]
    Refused(LoginStatus),
    /// The target is elsewhere.
    #[error("{status}: {address}")]
    Moved {
        /// For now, or for good.
        status: LoginStatus,
        /// `address[:port][,tpgt]`, as the target said it.
        address: String,
    },
    /// CHAP failed here.
    #[error(transparent)]
    Chap(#[from] ChapError),
    /// A key makes no sense.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The target breaks the rules.
    #[error("{0}")]
    Protocol(String),
}

impl From<text::TextError> for LoginError {
    fn from(error: text::TextError) -> LoginError {
        LoginError::Key(error.into())
    }
}

/// A login that succeeded.
#[derive(Debug, Clone)]
pub struct LoggedIn {
    /// The session's handle.
    pub tsih: u16,
    /// What was agreed.
    pub params: Params,
    /// Portal group, if the target said it.
    pub portal_group: Option<u16>,
    /// TargetAlias, if the target said it.
    pub alias: Option<String>,
    /// CmdSN of the first command.
    pub cmd_sn: u32,
    /// Last command that may be sent.
    pub max_cmd_sn: u32,
    /// Next StatSN expected.
    pub exp_stat_sn: u32,
}

/// What to do after a response.
#[derive(Debug)]
pub enum Progress {
    /// Send this.
    Send(Pdu),
    /// The full feature phase begins.
    Done(Box<LoggedIn>),
}

/// One login.
#[derive(Debug)]
pub struct Login {
    options: LoginOptions,
    negotiation: Negotiation,
    supplicant: Option<Supplicant>,
    stage: u8,
    text: TextBuffer,
    exp_stat_sn: Option<u32>,
    /// Parts of a text that does not fit one PDU.
    waiting: Vec<u8>,
    transit: bool,
    pdus: u32,
}

const ITT: u32 = 0;

impl Login {
    /// The login and its first request.
    ///
    /// # Errors
    /// [`ChapError::SameSecret`].
    pub fn start(
        options: LoginOptions,
        rdma_capable: bool,
        nonce: Nonce,
    ) -> Result<(Login, Pdu), LoginError> {
        let supplicant = match &options.chap {
            Some(own) => Some(Supplicant::new(own.clone(), options.chap_target.clone(), nonce)?),
            None => None,
        };
        let mut offers = options.offers.clone();
        // Without credentials for the target itself, a target that wants none is fine.
        let method = match (&options.chap, &options.chap_target) {
            (None, _) => "None",
            (Some(_), None) => "CHAP,None",
            (Some(_), Some(_)) => "CHAP",
        };
        offers.set(Key::AuthMethod, method);
        let mut negotiation = Negotiation::new(Side::Initiator, offers);
        negotiation.discovery = options.kind == SessionKind::Discovery;
        negotiation.rdma_capable = rdma_capable;
        let mut login = Login {
            options,
            negotiation,
            supplicant,
            stage: SECURITY,
            text: TextBuffer::default(),
            exp_stat_sn: None,
            waiting: Vec::new(),
            transit: false,
            pdus: 0,
        };
        let mut pairs = vec![(Key::InitiatorName.name().to_owned(), login.options.initiator.to_string())];
        match &login.options.kind {
            SessionKind::Discovery => pairs.push(("SessionType".to_owned(), "Discovery".to_owned())),
            SessionKind::Normal(target) => {
                pairs.push(("SessionType".to_owned(), "Normal".to_owned()));
                pairs.push(("TargetName".to_owned(), target.to_string()));
            }
        }
        pairs.extend(login.negotiation.offer(Key::AuthMethod));
        let transit = login.supplicant.is_none();
        let first = login.say(&pairs, transit);
        Ok((login, first))
    }

    /// A request with these pairs; what does not fit goes with later ones.
    fn say(&mut self, pairs: &Pairs, transit: bool) -> Pdu {
        self.waiting.extend(text::emit(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))));
        self.transit = transit;
        self.request()
    }

    fn request(&mut self) -> Pdu {
        let rest = self.waiting.split_off(self.waiting.len().min(MAX_LOGIN_DATA));
        let data = std::mem::replace(&mut self.waiting, rest);
        let mut flags = self.stage << 2;
        if !self.waiting.is_empty() {
            flags |= CONTINUE;
        } else if self.transit {
            let next = if self.stage == SECURITY { OPERATIONAL } else { FULL_FEATURE };
            flags |= LoginRequest::TRANSIT | next;
        }
        let request = LoginRequest {
            flags,
            version_max: VERSION,
            version_min: VERSION,
            isid: self.options.isid.0,
            itt: ITT,
            cmd_sn: self.options.cmd_sn,
            exp_stat_sn: self.exp_stat_sn.unwrap_or_default(),
            ..LoginRequest::default()
        };
        Pdu::with_data(request, data).immediate()
    }

    /// The target's answer.
    ///
    /// # Errors
    /// See [`LoginError`]: the connection is to be closed.
    pub fn receive(&mut self, pdu: &Pdu) -> Result<Progress, LoginError> {
        let Header::LoginResponse(response) = pdu.header else {
            return Err(LoginError::Protocol(format!("a {} came during the login", pdu.header.name())));
        };
        self.pdus += 1;
        if self.pdus > MAX_LOGIN_PDUS {
            return Err(LoginError::Protocol("the login does not come to an end".to_owned()));
        }
        self.text.push(&pdu.data)?;
        self.check(&response)?;
        if response.flags & CONTINUE != 0 {
            self.transit = false;
            return Ok(Progress::Send(self.request()));
        }
        if !self.waiting.is_empty() {
            return Ok(Progress::Send(self.request()));
        }
        let pairs = self.text.take()?;
        let went = response.flags & LoginRequest::TRANSIT != 0;
        match self.stage {
            SECURITY => self.security(&response, &pairs, went),
            _ => self.operational(&response, &pairs, went),
        }
    }

    fn check(&mut self, response: &LoginResponse) -> Result<(), LoginError> {
        let status = LoginStatus::from_bytes(response.class, response.detail);
        match status {
            LoginStatus::Success => {}
            LoginStatus::MovedTemporarily | LoginStatus::MovedPermanently => {
                let pairs = self.text.take()?;
                let address = pairs.into_iter().find(|(key, _)| key == Key::TargetAddress.name());
                let address = address.map(|(_, value)| value).ok_or(LoginError::Refused(status))?;
                return Err(LoginError::Moved { status, address });
            }
            other => return Err(LoginError::Refused(other)),
        }
        let wrong =
            |what: &str| Err(LoginError::Protocol(format!("login response: {what} (RFC 7143 §11.13)")));
        if response.itt != ITT || response.isid != self.options.isid.0 {
            return wrong("its tag or ISID is not the request's");
        }
        if response.current() != self.stage {
            return wrong("its current stage is not the request's");
        }
        if self.exp_stat_sn.is_some_and(|expected| expected != response.stat_sn) {
            return wrong("its StatSN is not the next one");
        }
        self.exp_stat_sn = Some(response.stat_sn.wrapping_add(1));
        Ok(())
    }

    fn note(&mut self, phase: Phase, pairs: &Pairs) -> Result<Pairs, LoginError> {
        let mut answers = Pairs::new();
        for (name, value) in pairs.iter().filter(|(name, _)| !chap::is_chap_key(name)) {
            answers.extend(self.negotiation.receive(phase, name, value)?);
        }
        Ok(answers)
    }

    fn security(
        &mut self,
        response: &LoginResponse,
        pairs: &Pairs,
        went: bool,
    ) -> Result<Progress, LoginError> {
        let mut answers = self.note(phase_of(SECURITY), pairs)?;
        let chap = self.negotiation.value(Key::AuthMethod) == "CHAP";
        if went {
            match &self.supplicant {
                Some(supplicant) if chap && supplicant.has_answered() => supplicant.finish(pairs)?,
                Some(_) if chap => return Err(LoginError::Protocol("the target skipped CHAP".to_owned())),
                _ => {}
            }
            return self.went_on(response, answers);
        }
        let Some(supplicant) = self.supplicant.as_mut().filter(|_| chap) else {
            // Nothing to prove: ask again to go on.
            return Ok(Progress::Send(self.say(&answers, true)));
        };
        if pairs.iter().any(|(name, _)| name == "CHAP_C") {
            answers.extend(supplicant.challenge(pairs)?);
            return Ok(Progress::Send(self.say(&answers, true)));
        }
        if supplicant.has_answered() {
            return Err(LoginError::Protocol(
                "the target neither accepts nor refuses the CHAP response".to_owned(),
            ));
        }
        answers.extend(supplicant.start());
        Ok(Progress::Send(self.say(&answers, false)))
    }

    /// Into the next stage.
    fn went_on(&mut self, response: &LoginResponse, answers: Pairs) -> Result<Progress, LoginError> {
        match response.next() {
            OPERATIONAL if self.stage == SECURITY => {
                self.stage = OPERATIONAL;
                let mut pairs = answers;
                pairs.extend(self.negotiation.offer_all(Phase::Operational));
                Ok(Progress::Send(self.say(&pairs, true)))
            }
            FULL_FEATURE => self.done(response),
            _ => Err(LoginError::Protocol("login response: a next stage that was not asked for".to_owned())),
        }
    }

    fn operational(
        &mut self,
        response: &LoginResponse,
        pairs: &Pairs,
        went: bool,
    ) -> Result<Progress, LoginError> {
        let answers = self.note(Phase::Operational, pairs)?;
        if went {
            return self.went_on(response, answers);
        }
        Ok(Progress::Send(self.say(&answers, true)))
    }

    fn done(&mut self, response: &LoginResponse) -> Result<Progress, LoginError> {
        if response.tsih == 0 {
            return Err(LoginError::Protocol(
                "the last login response has TSIH 0 (RFC 7143 §11.13.3)".to_owned(),
            ));
        }
        if let Some(key) = self.negotiation.open().next() {
            return Err(LoginError::Protocol(format!("the target never answered {}", key.name())));
        }
        let group = self.negotiation.value(Key::TargetPortalGroupTag).parse().ok();
        let alias = Some(self.negotiation.value(Key::TargetAlias)).filter(|alias| !alias.is_empty());
        Ok(Progress::Done(Box::new(LoggedIn {
            tsih: response.tsih,
            params: Params::of(&self.negotiation, Side::Initiator),
            portal_group: group,
            alias: alias.map(str::to_owned),
            cmd_sn: self.options.cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            exp_stat_sn: response.stat_sn.wrapping_add(1),
        })))
    }
}
