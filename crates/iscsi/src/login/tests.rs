//! Logins against clauses of RFC 7143, and both halves against each other.

use std::cell::Cell;
use std::net::SocketAddr;

use super::chap::{Algorithm, ChapPolicy, Credentials, Nonce};
use super::initiator::{self, LoginError, LoginOptions, Progress};
use super::target::{Admission, Established, Gate, Login, Refusal, Step};
use super::*;
use crate::keys::text;
use crate::keys::{Key, Offers};
use crate::pdu::{CONTINUE, Header, LoginRequest, LoginResponse, Pdu, ScsiCommand};

const INITIATOR: &str = "iqn.2001-04.com.example:host";
const TARGET: &str = "iqn.2001-04.com.example:disk";

const MD5: &str = "0x46e47770030e2b4e26a0db72a7efec00";
const SHA1: &str = "0x011f25d29fe1baaced569c0d7e4878e40ddb7d7e";
const SHA256: &str = "0x2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4";
const SHA3: &str = "0x9444877c4dff778ed2add0f102dcd561e11944e7e948ee1b89508451a9e680ad";

#[derive(Default)]
struct Door {
    chap: ChapPolicy,
    offers: Offers,
    moved_to: Option<&'static str>,
    opened: Cell<u16>,
}

impl Gate for Door {
    fn admit(&self, identity: &Identity, _: SocketAddr, _: SocketAddr) -> Result<Admission, Refusal> {
        if let Some(to) = self.moved_to {
            let refusal = Refusal::new(LoginStatus::MovedTemporarily, "moved");
            return Err(Refusal { moved_to: Some(to.to_owned()), ..refusal });
        }
        match &identity.kind {
            SessionKind::Normal(name) if name.as_str() != TARGET => {
                Err(Refusal::new(LoginStatus::NotFound, "no such name"))
            }
            _ => Ok(Admission {
                chap: self.chap.clone(),
                offers: self.offers.clone(),
                portal_group: 1,
                alias: None,
            }),
        }
    }

    fn open(&self, _: &Identity, _: u16) -> Result<u16, Refusal> {
        self.opened.set(self.opened.get() + 1);
        Ok(self.opened.get())
    }

    fn join(&self, _: u16) -> Refusal {
        Refusal::new(LoginStatus::NoSession, "")
    }
}

fn login() -> Login {
    let address = "192.0.2.1:3260".parse().unwrap();
    Login::new(address, address, false, Nonce::new(|| 0x0123_4567_89ab_cdef))
}

fn request(flags: u8, pairs: &[(&str, &str)]) -> Pdu {
    let header =
        LoginRequest { flags, isid: [0x80, 1, 2, 3, 4, 5], itt: 9, cmd_sn: 5, ..LoginRequest::default() };
    Pdu::with_data(header, text::emit(pairs.iter().copied())).immediate()
}

fn names() -> Vec<(&'static str, &'static str)> {
    vec![("InitiatorName", INITIATOR), ("SessionType", "Normal"), ("TargetName", TARGET)]
}

fn reply(step: Step) -> (LoginResponse, Vec<(String, String)>) {
    let (Step::Reply(pdu) | Step::Done(pdu, _) | Step::Refused(pdu, _)) = step;
    let Header::LoginResponse(response) = pdu.header else { panic!("{pdu:?}") };
    (response, text::parse(&pdu.data).unwrap())
}

fn status(step: Step) -> LoginStatus {
    let (response, _) = reply(step);
    LoginStatus::from_bytes(response.class, response.detail)
}

/// RFC 7143 §6.3.1: the operational stage may come first where no authentication is needed; §11.13.3: TSIH in the last response.
#[test]
fn one_request_can_be_a_login() {
    let mut pairs = names();
    pairs.push(("InitialR2T", "No"));
    let step = login().receive(&Door::default(), &request(0x87, &pairs));
    let Step::Done(_, established) = &step else { panic!("{step:?}") };
    assert_eq!((established.tsih, established.cmd_sn, established.stat_sn), (1, 5, 1));
    let (response, answers) = reply(step);
    assert_eq!((response.flags, response.tsih, response.itt, response.exp_cmd_sn), (0x87, 1, 9, 5));
    assert!(answers.contains(&("TargetPortalGroupTag".to_owned(), "1".to_owned())));
    assert!(answers.contains(&("InitialR2T".to_owned(), "Yes".to_owned())));
}

/// RFC 7143 §11.13.5, each refusal by its code.
#[test]
fn refusals() {
    let door = Door::default();
    let one = |flags, pairs: &[(&str, &str)]| status(login().receive(&door, &request(flags, pairs)));
    assert_eq!(one(0x87, &names()[..1]), LoginStatus::MissingParameter);
    assert_eq!(one(0x87, &names()[1..]), LoginStatus::MissingParameter);
    assert_eq!(one(0x87, &[("InitiatorName", INITIATOR), ("SessionType", "Odd")]), LoginStatus::SessionType);
    assert_eq!(one(0x87, &[names()[0], ("TargetName", "iqn.2001-04.com.example:no")]), LoginStatus::NotFound);
    assert_eq!(one(0x84, &names()), LoginStatus::InitiatorError, "NSG 0 does not follow CSG 1");
    assert_eq!(one(0x88, &names()), LoginStatus::InitiatorError, "CSG 2 does not exist");
    assert_eq!(one(0x87 | CONTINUE, &names()), LoginStatus::InitiatorError, "T and C");
    let scsi = Pdu::new(ScsiCommand::default());
    assert_eq!(status(login().receive(&door, &scsi)), LoginStatus::InvalidRequest);
    let mut join = request(0x87, &names());
    join.header = LoginRequest { tsih: 7, flags: 0x87, ..LoginRequest::default() }.into();
    assert_eq!(status(login().receive(&door, &join)), LoginStatus::NoSession);
    join.header = LoginRequest { version_min: 1, flags: 0x87, ..LoginRequest::default() }.into();
    assert_eq!(status(login().receive(&door, &join)), LoginStatus::UnsupportedVersion);
}

/// IS-07: a name sent twice is answered with a login reject.
#[test]
fn names_come_once() {
    let mut pairs = names();
    pairs.push(("InitiatorName", INITIATOR));
    assert_eq!(
        status(login().receive(&Door::default(), &request(0x87, &pairs))),
        LoginStatus::InitiatorError
    );
}

/// RFC 7143 §6.2: text over several PDUs; the answer to one with C is empty.
#[test]
fn text_goes_on_over_pdus() {
    let (mut login, door) = (login(), Door::default());
    let mut first = request(0x04 | CONTINUE, &names());
    let rest = first.data.split_off(20);
    let (response, answers) = reply(login.receive(&door, &first));
    assert_eq!((response.flags, answers.len()), (0x04, 0));
    let mut last = request(0x87, &[]);
    last.data = rest;
    assert!(matches!(login.receive(&door, &last), Step::Done(..)));
}

/// RFC 1994 §4.1 with RFC 1321: MD5 over id, secret, challenge; computed with `printf '\x01secretchallenge' | md5sum` and kin.
#[test]
fn digests() {
    let hex = |algorithm: Algorithm| text::hex(&algorithm.response(1, b"secret", b"challenge"));
    assert_eq!(hex(Algorithm::Md5), MD5);
    assert_eq!(hex(Algorithm::Sha1), SHA1);
    assert_eq!(hex(Algorithm::Sha256), SHA256);
    assert_eq!(hex(Algorithm::Sha3), SHA3);
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials::new(name, secret.as_bytes()).unwrap()
}

fn options() -> LoginOptions {
    LoginOptions {
        initiator: INITIATOR.parse().unwrap(),
        isid: Isid::random(1, 2),
        kind: SessionKind::Normal(TARGET.parse().unwrap()),
        chap: None,
        chap_target: None,
        offers: Offers::default()
            .with(Key::MaxRecvDataSegmentLength, 65536)
            .with(Key::HeaderDigest, "CRC32C,None"),
        cmd_sn: 1,
    }
}

/// Runs both halves against each other.
fn both(
    door: &Door,
    options: LoginOptions,
    nonce: u64,
) -> Result<(initiator::LoggedIn, Established), LoginError> {
    let (mut theirs, mut ours) = (login(), None);
    let (mut login, mut pdu) = initiator::Login::start(options, false, Nonce::new(|| nonce))?;
    for _ in 0..10 {
        let reply = match theirs.receive(door, &pdu) {
            Step::Reply(reply) | Step::Refused(reply, _) => reply,
            Step::Done(reply, established) => {
                ours = Some(*established);
                reply
            }
        };
        match login.receive(&reply)? {
            Progress::Send(next) => pdu = next,
            Progress::Done(done) => return Ok((*done, ours.unwrap())),
        }
    }
    panic!("no end");
}

#[test]
fn both_halves_agree() {
    let door = Door {
        offers: Offers::default()
            .with(Key::HeaderDigest, "None,CRC32C")
            .with(Key::MaxRecvDataSegmentLength, 262_144),
        ..Door::default()
    };
    let (host, target) = both(&door, options(), 3).unwrap();
    assert!(host.params.digests.header && target.params.digests.header);
    assert_eq!((host.params.max_recv, host.params.max_send), (65536, 262_144));
    assert_eq!((target.params.max_recv, target.params.max_send), (262_144, 65536));
    assert_eq!((host.tsih, host.portal_group, host.exp_stat_sn), (target.tsih, Some(1), target.stat_sn));
}

#[test]
fn chap_one_way_and_mutual() {
    let chap = ChapPolicy {
        initiators: vec![credentials("host", "abcdefghijkl")],
        target: Some(credentials("disk", "mnopqrstuvwx")),
    };
    let door = Door { chap, ..Door::default() };
    let with = |own: Option<Credentials>, theirs: Option<Credentials>, nonce| {
        both(&door, LoginOptions { chap: own, chap_target: theirs, ..options() }, nonce).map(|_| ())
    };
    let good = || Some(credentials("host", "abcdefghijkl"));
    let refused = Err(LoginError::Refused(LoginStatus::AuthenticationFailure));
    assert_eq!(with(good(), None, 3), Ok(()));
    assert_eq!(with(good(), Some(credentials("disk", "mnopqrstuvwx")), 3), Ok(()));
    assert_eq!(with(None, None, 3), refused);
    assert_eq!(with(Some(credentials("host", "wrong")), None, 3), refused);
    assert_eq!(with(Some(credentials("other", "abcdefghijkl")), None, 3), refused);
    let wrong = with(good(), Some(credentials("disk", "another")), 3);
    assert_eq!(wrong, Err(chap::ChapError::WrongResponse("disk".to_owned()).into()));
    // The target's challenge, sent back to it: refused here before anything is sent.
    let reflected = with(good(), Some(credentials("disk", "mnopqrstuvwx")), 0x0123_4567_89ab_cdef);
    assert_eq!(reflected, Err(chap::ChapError::Reflected.into()));
    // IS-12.
    let same = with(good(), Some(credentials("disk", "abcdefghijkl")), 3).unwrap_err();
    assert!(same.to_string().contains("mutual secret equals initiator secret"));
}

/// CHAP cannot be gone around: by skipping the stage, or by asking to leave it early.
#[test]
fn chap_cannot_be_skipped() {
    let chap = ChapPolicy { initiators: vec![credentials("host", "abcdefghijkl")], target: None };
    let door = Door { chap, ..Door::default() };
    assert_eq!(status(login().receive(&door, &request(0x87, &names()))), LoginStatus::AuthenticationFailure);
    let mut early = login();
    let mut pairs = names();
    pairs.push(("AuthMethod", "CHAP"));
    let (response, _) = reply(early.receive(&door, &request(0x83, &pairs)));
    assert_eq!(response.flags, 0, "T is not answered with T");
    assert_eq!(status(early.receive(&door, &request(0x83, &[]))), LoginStatus::AuthenticationFailure);
    let mut none = login();
    pairs.pop();
    let (response, _) = reply(none.receive(&door, &request(0x83, &pairs)));
    assert_eq!(response.flags, 0, "no AuthMethod is no authentication");
}

#[test]
fn redirection() {
    let door = Door { moved_to: Some("192.0.2.9:3260,1"), ..Door::default() };
    let moved = both(&door, options(), 3).unwrap_err();
    let address = "192.0.2.9:3260,1".to_owned();
    assert_eq!(moved, LoginError::Moved { status: LoginStatus::MovedTemporarily, address });
}
