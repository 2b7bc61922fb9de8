//! The target's half of the login.
//!
//! Read RFC 7143 §6.3, §7.3 (session reinstatement: the gate's), §11.12 and §11.13. One [`Login`] a connection; what is
//! behind it (names, access, sessions) is asked of a [`Gate`]. A login that breaks the rules is answered with a status and
//! the connection is to be closed.

use std::net::SocketAddr;

use super::chap::{self, Authenticator, ChapError, ChapPolicy, Nonce};
use super::{
    FULL_FEATURE, Identity, LoginStatus, MAX_LOGIN_PDUS, OPERATIONAL, SECURITY, SessionKind, VERSION,
    phase_of,
};
use crate::keys::text::{self, Pairs, TextBuffer};
use crate::keys::{Key, Negotiation, Offers, Params, Side};
use crate::name::{IscsiName, Isid};
use crate::pdu::{CONTINUE, Header, LoginRequest, LoginResponse, Pdu};

/// Why a login is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the initiator is told.
    pub status: LoginStatus,
    /// Where the target went, for a redirection: `address:port[,tpgt]`.
    pub moved_to: Option<String>,
    /// What the log is told: the rule that decided.
    pub why: String,
}

impl Refusal {
    /// With a status and the reason for the log.
    pub fn new(status: LoginStatus, why: impl ToString) -> Refusal {
        Refusal { status, moved_to: None, why: why.to_string() }
    }
}

/// What an initiator that may log in gets.
#[derive(Debug, Clone)]
pub struct Admission {
    /// How it must say who it is.
    pub chap: ChapPolicy,
    /// What the target wants of the session.
    pub offers: Offers,
    /// Portal group of the portal that it came by.
    pub portal_group: u16,
    /// TargetAlias.
    pub alias: Option<String>,
}

/// What the login asks of the rest of the target.
pub trait Gate {
    /// May this initiator log in to this, from there?
    ///
    /// # Errors
    /// What to answer instead.
    fn admit(&self, identity: &Identity, peer: SocketAddr, portal: SocketAddr) -> Result<Admission, Refusal>;

    /// The login is complete: a handle for the session (TSIH, not 0). A session of the same initiator, ISID and portal group
    /// ends by this (RFC 7143 §6.3.5).
    ///
    /// # Errors
    /// What to answer instead.
    fn open(&self, identity: &Identity, portal_group: u16) -> Result<u16, Refusal>;

    /// A login that wants to join the session of this handle: how it is refused. More than one connection a session is not
    /// offered (MaxConnections=1).
    fn join(&self, tsih: u16) -> Refusal;
}

/// A login that succeeded.
#[derive(Debug, Clone)]
pub struct Established {
    /// Who logged in to what.
    pub identity: Identity,
    /// The session's handle.
    pub tsih: u16,
    /// The connection.
    pub cid: u16,
    /// Portal group.
    pub portal_group: u16,
    /// What was agreed.
    pub params: Params,
    /// The negotiation, for what is said in the full feature phase.
    pub negotiation: Negotiation,
    /// CmdSN of the first command.
    pub cmd_sn: u32,
    /// StatSN of the next response.
    pub stat_sn: u32,
}

/// What to do after a request.
#[derive(Debug)]
pub enum Step {
    /// Send this and wait for the next request.
    Reply(Pdu),
    /// Send this; then the full feature phase begins, with the parameters agreed.
    Done(Pdu, Box<Established>),
    /// Send this, then close.
    Refused(Pdu, Refusal),
}

/// One login.
#[derive(Debug)]
pub struct Login {
    peer: SocketAddr,
    portal: SocketAddr,
    nonce: Nonce,
    rdma_capable: bool,
    stat_sn: u32,
    pdus: u32,
    text: TextBuffer,
    first: Option<LoginRequest>,
    stage: u8,
    session: Option<Box<Entered>>,
}

/// A login whose names are known.
#[derive(Debug)]
struct Entered {
    identity: Identity,
    admission: Admission,
    negotiation: Negotiation,
    authenticator: Option<Authenticator>,
    authenticated: bool,
    greeted: bool,
}

impl Login {
    /// A connection from `peer` to `portal`. `rdma_capable`: RDMAExtensions=Yes may be agreed.
    pub fn new(peer: SocketAddr, portal: SocketAddr, rdma_capable: bool, nonce: Nonce) -> Login {
        Login {
            peer,
            portal,
            nonce,
            rdma_capable,
            stat_sn: 0,
            pdus: 0,
            text: TextBuffer::default(),
            first: None,
            stage: SECURITY,
            session: None,
        }
    }

    /// The initiator, once it has said who it is.
    pub fn initiator(&self) -> Option<&IscsiName> {
        self.session.as_ref().map(|session| &session.identity.initiator)
    }

    /// The next PDU of the connection.
    pub fn receive(&mut self, gate: &dyn Gate, pdu: &Pdu) -> Step {
        let Header::LoginRequest(request) = pdu.header else {
            let why = format!("a {} before the login was complete", pdu.header.name());
            // RFC 7143 §6.3: anything else than a login request ends the login.
            let request = self.first.unwrap_or_default();
            return self.refuse(&request, Refusal::new(LoginStatus::InvalidRequest, why));
        };
        match self.request(gate, &request, pdu) {
            Ok(step) => step,
            Err(refusal) => self.refuse(&request, refusal),
        }
    }

    fn refuse(&mut self, request: &LoginRequest, refusal: Refusal) -> Step {
        let (class, detail) = refusal.status.bytes();
        let moved = refusal.moved_to.as_deref().map(|to| text::emit([("TargetAddress", to)]));
        let response = LoginResponse { class, detail, flags: request.flags & 0x0c, ..self.response(request) };
        Step::Refused(Pdu::with_data(response, moved.unwrap_or_default()), refusal)
    }

    fn response(&mut self, request: &LoginRequest) -> LoginResponse {
        let stat_sn = self.stat_sn;
        self.stat_sn = self.stat_sn.wrapping_add(1);
        LoginResponse {
            version_max: VERSION,
            version_active: VERSION,
            isid: request.isid,
            tsih: request.tsih,
            itt: request.itt,
            stat_sn,
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: request.cmd_sn,
            ..LoginResponse::default()
        }
    }

    fn request(&mut self, gate: &dyn Gate, request: &LoginRequest, pdu: &Pdu) -> Result<Step, Refusal> {
        let wrong = |why: &str| Refusal::new(LoginStatus::InitiatorError, why);
        self.pdus += 1;
        if self.pdus > MAX_LOGIN_PDUS {
            return Err(wrong("more login requests than any login needs"));
        }
        self.check_header(gate, request)?;
        self.text.push(&pdu.data).map_err(|e| wrong(&e.to_string()))?;
        let goes_on = request.flags & CONTINUE != 0;
        let transit = request.flags & LoginRequest::TRANSIT != 0;
        if goes_on {
            if transit {
                return Err(wrong("T and C bits together (RFC 7143 §11.12.2)"));
            }
            let flags = request.flags & 0x0c;
            return Ok(Step::Reply(Pdu::new(LoginResponse { flags, ..self.response(request) })));
        }
        let pairs = self.text.take().map_err(|e| wrong(&e.to_string()))?;
        if self.session.is_none() {
            self.session = Some(Box::new(self.enter(gate, request, &pairs)?));
        }
        self.answer(gate, request, &pairs, transit)
    }

    /// What must hold for every request (RFC 7143 §11.12).
    fn check_header(&mut self, gate: &dyn Gate, request: &LoginRequest) -> Result<(), Refusal> {
        let wrong = |why: &str| Err(Refusal::new(LoginStatus::InitiatorError, why));
        if request.version_min > VERSION {
            let why = format!("versions {} to {} are asked for", request.version_min, request.version_max);
            return Err(Refusal::new(LoginStatus::UnsupportedVersion, why));
        }
        let (stage, next) = (request.current(), request.next());
        if stage != SECURITY && stage != OPERATIONAL {
            return wrong("a current stage that the login does not have (RFC 7143 §11.12.3)");
        }
        if request.flags & LoginRequest::TRANSIT != 0 && (next <= stage || next == 2) {
            return wrong("a next stage that does not follow (RFC 7143 §11.12.3)");
        }
        match &self.first {
            None => {
                self.stat_sn = request.exp_stat_sn;
                self.stage = stage;
                self.first = Some(*request);
                if request.tsih != 0 {
                    return Err(gate.join(request.tsih));
                }
            }
            Some(first) => {
                let same = (first.isid, first.tsih, first.itt, first.cid, first.cmd_sn)
                    == (request.isid, request.tsih, request.itt, request.cid, request.cmd_sn);
                if !same {
                    return wrong("ISID, TSIH, ITT, CID or CmdSN changed during the login (RFC 7143 §11.12)");
                }
            }
        }
        if stage != self.stage {
            return wrong("a current stage other than the login's (RFC 7143 §6.3)");
        }
        Ok(())
    }

    /// The first text: names and the session's type (RFC 7143 §6.3.1).
    fn enter(&self, gate: &dyn Gate, request: &LoginRequest, pairs: &Pairs) -> Result<Entered, Refusal> {
        let find =
            |key: Key| pairs.iter().find(|(name, _)| name == key.name()).map(|(_, value)| value.as_str());
        let missing =
            |key: Key| Refusal::new(LoginStatus::MissingParameter, format_args!("{} is missing", key.name()));
        let name = |key: Key, status: LoginStatus| {
            let text = find(key).ok_or_else(|| missing(key))?;
            text.parse::<IscsiName>()
                .map_err(|e| Refusal::new(status, format_args!("{}={text}: {e}", key.name())))
        };
        let initiator = name(Key::InitiatorName, LoginStatus::InitiatorError)?;
        let kind = match find(Key::SessionType).unwrap_or("Normal") {
            "Discovery" => SessionKind::Discovery,
            "Normal" => SessionKind::Normal(name(Key::TargetName, LoginStatus::NotFound)?),
            other => return Err(Refusal::new(LoginStatus::SessionType, format_args!("SessionType={other}"))),
        };
        let identity = Identity { initiator, isid: Isid(request.isid), kind };
        let admission = gate.admit(&identity, self.peer, self.portal)?;
        let mut offers = admission.offers.clone();
        offers.set(Key::AuthMethod, if admission.chap.required() { "CHAP" } else { "None" });
        if let Some(alias) = &admission.alias {
            offers.set(Key::TargetAlias, alias);
        }
        let mut negotiation = Negotiation::new(Side::Target, offers);
        negotiation.discovery = identity.kind == SessionKind::Discovery;
        negotiation.rdma_capable = self.rdma_capable;
        let authenticated = !admission.chap.required();
        if request.current() != SECURITY && !authenticated {
            let why = "the login begins with the operational stage, and CHAP is required";
            return Err(Refusal::new(LoginStatus::AuthenticationFailure, why));
        }
        Ok(Entered { identity, admission, negotiation, authenticator: None, authenticated, greeted: false })
    }

    fn answer(
        &mut self,
        gate: &dyn Gate,
        request: &LoginRequest,
        pairs: &Pairs,
        transit: bool,
    ) -> Result<Step, Refusal> {
        let stage = self.stage;
        let Some(session) = &mut self.session else {
            return Err(Refusal::new(LoginStatus::TargetError, "no session was begun"));
        };
        let mut answers = session.answers(stage, self.nonce, pairs)?;
        let may_go = stage != SECURITY || session.authenticated;
        let goes = transit && may_go;
        if goes && request.next() == FULL_FEATURE || stage == OPERATIONAL {
            answers.extend(session.declare());
        }
        // Offers of this side that are not answered keep the stage open (RFC 7143 §6.3.4).
        let goes = goes && session.negotiation.open().next().is_none();
        let data = text::emit(answers.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let mut flags = stage << 2;
        if goes {
            flags |= LoginRequest::TRANSIT | request.next();
        }
        if !goes || request.next() != FULL_FEATURE {
            if goes {
                self.stage = request.next();
            }
            return Ok(Step::Reply(Pdu::with_data(LoginResponse { flags, ..self.response(request) }, data)));
        }
        let (identity, portal_group) = (session.identity.clone(), session.admission.portal_group);
        let negotiation = session.negotiation.clone();
        let tsih = gate.open(&identity, portal_group)?;
        let response = LoginResponse { flags, tsih, ..self.response(request) };
        let established = Established {
            identity,
            tsih,
            cid: request.cid,
            portal_group,
            params: Params::of(&negotiation, Side::Target),
            negotiation,
            cmd_sn: request.cmd_sn,
            stat_sn: self.stat_sn,
        };
        Ok(Step::Done(Pdu::with_data(response, data), Box::new(established)))
    }
}

impl Entered {
    /// The answers to one text.
    fn answers(&mut self, stage: u8, nonce: Nonce, pairs: &Pairs) -> Result<Pairs, Refusal> {
        let mut answers = Pairs::new();
        // Linux says it last, and what the others mean depends on it (RFC 7145 §6.2).
        let is_rdma = |pair: &&(String, String)| pair.0 == Key::RDMAExtensions.name();
        let (first, rest) = (pairs.iter().filter(is_rdma), pairs.iter().filter(|pair| !is_rdma(pair)));
        for (name, value) in first.chain(rest).filter(|(name, _)| !chap::is_chap_key(name)) {
            let answer = self.negotiation.receive(phase_of(stage), name, value);
            answers.extend(answer.map_err(|e| Refusal::new(LoginStatus::InitiatorError, e))?);
        }
        if !self.greeted {
            self.greeted = true;
            // RFC 7143 §13.9: in the first response of a normal session.
            if !self.negotiation.discovery {
                answers.push(("TargetPortalGroupTag".to_owned(), self.admission.portal_group.to_string()));
            }
            answers.extend(self.negotiation.offer(Key::TargetAlias).filter(|(_, alias)| !alias.is_empty()));
        }
        if stage == SECURITY {
            answers.extend(self.authenticate(nonce, pairs, &answers)?);
        }
        Ok(answers)
    }

    fn authenticate(&mut self, nonce: Nonce, pairs: &Pairs, answers: &Pairs) -> Result<Pairs, Refusal> {
        let failed = |e: ChapError| Refusal::new(LoginStatus::AuthenticationFailure, e);
        let method =
            answers.iter().find(|(name, _)| name == Key::AuthMethod.name()).map(|(_, value)| value.as_str());
        if method == Some("Reject") {
            let why =
                if self.admission.chap.required() { "CHAP is required" } else { "only None is offered" };
            return Err(Refusal::new(LoginStatus::AuthenticationFailure, format_args!("AuthMethod: {why}")));
        }
        if method == Some("CHAP") {
            self.authenticator = Some(Authenticator::new(nonce));
            // The algorithm comes in the next request; some send it at once.
            if !pairs.iter().any(|(name, _)| name == "CHAP_A") {
                return Ok(Pairs::new());
            }
        }
        let Some(authenticator) = &mut self.authenticator else { return Ok(Pairs::new()) };
        if !self.authenticated && !pairs.iter().any(|(name, _)| chap::is_chap_key(name)) {
            return Err(failed(ChapError::Missing("CHAP_A or CHAP_R")));
        }
        let answer = authenticator.step(&self.admission.chap, pairs).map_err(failed)?;
        self.authenticated = authenticator.is_done();
        Ok(answer)
    }

    /// What a target says of its own accord, once.
    fn declare(&mut self) -> Pairs {
        let rdma = self.negotiation.value(Key::RDMAExtensions) == "Yes";
        let key = match rdma {
            // open-iscsi ends a login at the first key that it does not know: this one is told to those who know it.
            true if self.negotiation.is_settled(Key::MaxOutstandingUnexpectedPDUs) => {
                Key::MaxOutstandingUnexpectedPDUs
            }
            true => return Pairs::new(),
            false => Key::MaxRecvDataSegmentLength,
        };
        self.negotiation.offer(key).into_iter().collect()
    }
}
