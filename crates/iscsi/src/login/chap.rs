//! CHAP: secrets, digests, and both roles of the exchange of keys.
//!
//! Read RFC 7143 §12.1.3 and §9.2.1, RFC 1994 §4. Digests: MD5 (5), SHA-1 (6), SHA-256 (7), SHA3-256 (8), of IANA's PPP
//! authentication algorithms. Compared in constant time; a challenge that comes back to its sender, and a secret used in both
//! directions, are refused.

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use subtle::ConstantTimeEq;

use crate::keys::text::{self, Pairs, TextError};

/// Longest secret and name.
pub const MAX_SECRET: usize = 256;
/// Bytes of a challenge that is sent.
pub const CHALLENGE: usize = 16;

/// A digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, which every implementation has.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA3-256.
    Sha3,
}

impl Algorithm {
    /// What an initiator offers, strongest first. Not 7: tgt and other heirs of IET take that number for SHA-1 and would fail a
    /// login that another digest lets succeed.
    pub const OFFERED: [Algorithm; 3] = [Algorithm::Sha3, Algorithm::Sha1, Algorithm::Md5];
    /// What a target takes.
    pub const ALL: [Algorithm; 4] = [Algorithm::Sha3, Algorithm::Sha256, Algorithm::Sha1, Algorithm::Md5];

    /// Its number in CHAP_A.
    pub fn code(self) -> u32 {
        match self {
            Algorithm::Md5 => 5,
            Algorithm::Sha1 => 6,
            Algorithm::Sha256 => 7,
            Algorithm::Sha3 => 8,
        }
    }

    fn of(text: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.code().to_string() == text)
    }

    /// The response to a challenge (RFC 1994 §4.1): the digest of identifier, secret and challenge.
    pub fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn of<D: Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            D::new().chain_update([id]).chain_update(secret).chain_update(challenge).finalize().to_vec()
        }
        match self {
            Algorithm::Md5 => of::<Md5>(id, secret, challenge),
            Algorithm::Sha1 => of::<Sha1>(id, secret, challenge),
            Algorithm::Sha256 => of::<Sha256>(id, secret, challenge),
            Algorithm::Sha3 => of::<Sha3_256>(id, secret, challenge),
        }
    }
}

/// A name and its secret. The secret is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    secret: Vec<u8>,
}

impl Credentials {
    /// Of a name and a secret.
    ///
    /// # Errors
    /// [`ChapError::BadCredentials`]: one of them is empty or longer than [`MAX_SECRET`] bytes.
    pub fn new(name: &str, secret: &[u8]) -> Result<Credentials, ChapError> {
        let well = |len: usize| len > 0 && len <= MAX_SECRET;
        if !well(name.len()) || !well(secret.len()) || name.contains('\0') {
            return Err(ChapError::BadCredentials);
        }
        Ok(Credentials { name: name.to_owned(), secret: secret.to_vec() })
    }

    /// Whether both have the same secret, which RFC 7143 §9.2.1 forbids for the two directions.
    pub fn same_secret(&self, other: &Credentials) -> bool {
        self.secret.ct_eq(&other.secret).into()
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a target asks of initiators.
#[derive(Debug, Clone, Default)]
pub struct ChapPolicy {
    /// Who may log in; nobody needs to say who they are if this is empty.
    pub initiators: Vec<Credentials>,
    /// How the target says who it is, to those that ask.
    pub target: Option<Credentials>,
}

impl ChapPolicy {
    /// Whether CHAP is needed.
    pub fn required(&self) -> bool {
        !self.initiators.is_empty()
    }

    /// The same secret must not serve both directions.
    ///
    /// # Errors
    /// [`ChapError::SameSecret`].
    pub fn check(&self) -> Result<(), ChapError> {
        match &self.target {
            Some(own) if self.initiators.iter().any(|one| one.same_secret(own)) => Err(ChapError::SameSecret),
            _ => Ok(()),
        }
    }
}

/// Entropy of one exchange, given by the caller.
#[derive(Debug, Clone, Copy)]
pub struct Nonce {
    id: u8,
    challenge: [u8; CHALLENGE],
}

impl Nonce {
    /// From a source of entropy.
    pub fn new(mut entropy: impl FnMut() -> u64) -> Nonce {
        let mut challenge = [0; CHALLENGE];
        challenge.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&entropy().to_le_bytes()));
        Nonce { id: entropy() as u8, challenge }
    }
}

/// Why CHAP failed. What a peer is told is only "authentication failure".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChapError {
    /// A key is malformed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A key that should be there is not.
    #[error("{0} is missing (RFC 7143 §12.1.3)")]
    Missing(&'static str),
    /// None of the digests offered is known.
    #[error("none of the CHAP algorithms {0} is supported (5, 6, 7 and 8 are)")]
    Algorithm(String),
    /// No such name.
    #[error("CHAP name {0:?} is unknown")]
    UnknownName(String),
    /// The response is wrong.
    #[error("the CHAP response of {0:?} is wrong: another secret")]
    WrongResponse(String),
    /// The peer wants to know who this is, and there is nothing to say.
    #[error("the initiator wants mutual CHAP, and no secret of the target is configured")]
    NoMutual,
    /// A challenge came back.
    #[error("the peer's CHAP challenge is this side's own: a reflection attack (RFC 7143 §9.2.1)")]
    Reflected,
    /// One secret for both directions.
    #[error("mutual secret equals initiator secret: each direction needs its own (RFC 7143 §9.2.1)")]
    SameSecret,
    /// An empty or overlong name or secret.
    #[error("a CHAP name and secret have 1 to {MAX_SECRET} bytes")]
    BadCredentials,
}

fn find<'a>(pairs: &'a Pairs, key: &'static str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn need<'a>(pairs: &'a Pairs, key: &'static str) -> Result<&'a str, ChapError> {
    find(pairs, key).ok_or(ChapError::Missing(key))
}

fn identifier(text: &str) -> Result<u8, ChapError> {
    let id = text::number("CHAP_I", text)?;
    let wanted = "0 to 255 is needed";
    let wrong = || TextError::Value { key: "CHAP_I".to_owned(), value: text.to_owned(), wanted };
    u8::try_from(id).map_err(|_| wrong().into())
}

fn pair(key: &str, value: impl ToString) -> (String, String) {
    (key.to_owned(), value.to_string())
}

/// Whether a pair belongs to CHAP.
pub fn is_chap_key(key: &str) -> bool {
    matches!(key, "CHAP_A" | "CHAP_I" | "CHAP_C" | "CHAP_N" | "CHAP_R")
}

/// The target's role.
#[derive(Debug)]
pub struct Authenticator {
    nonce: Nonce,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    WantsAlgorithm,
    WantsResponse(Algorithm),
    Done,
}

impl Authenticator {
    /// AuthMethod=CHAP was agreed.
    pub fn new(nonce: Nonce) -> Authenticator {
        Authenticator { nonce, state: State::WantsAlgorithm }
    }

    /// The initiator is who it says it is.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The initiator's keys of one text; gives the answer.
    ///
    /// # Errors
    /// See [`ChapError`]: the login fails.
    pub fn step(&mut self, policy: &ChapPolicy, pairs: &Pairs) -> Result<Pairs, ChapError> {
        match self.state {
            State::WantsAlgorithm => {
                let offered = need(pairs, "CHAP_A")?;
                let algorithm = offered.split(',').find_map(Algorithm::of);
                let algorithm = algorithm.ok_or_else(|| ChapError::Algorithm(offered.to_owned()))?;
                self.state = State::WantsResponse(algorithm);
                let challenge = text::hex(&self.nonce.challenge);
                Ok(vec![
                    pair("CHAP_A", algorithm.code()),
                    pair("CHAP_I", self.nonce.id),
                    pair("CHAP_C", challenge),
                ])
            }
            State::WantsResponse(algorithm) => {
                let answer = self.check(policy, algorithm, pairs)?;
                self.state = State::Done;
                Ok(answer)
            }
            State::Done => Ok(Pairs::new()),
        }
    }

    fn check(&self, policy: &ChapPolicy, algorithm: Algorithm, pairs: &Pairs) -> Result<Pairs, ChapError> {
        let name = need(pairs, "CHAP_N")?;
        let response = text::binary("CHAP_R", need(pairs, "CHAP_R")?)?;
        let known = policy.initiators.iter().find(|one| one.name == name);
        let known = known.ok_or_else(|| ChapError::UnknownName(name.to_owned()))?;
        let wanted = algorithm.response(self.nonce.id, &known.secret, &self.nonce.challenge);
        if !bool::from(wanted.ct_eq(&response)) {
            return Err(ChapError::WrongResponse(name.to_owned()));
        }
        let Some(challenge) = find(pairs, "CHAP_C") else { return Ok(Pairs::new()) };
        let challenge = text::binary("CHAP_C", challenge)?;
        let id = identifier(need(pairs, "CHAP_I")?)?;
        let own = policy.target.as_ref().ok_or(ChapError::NoMutual)?;
        if challenge == self.nonce.challenge {
            return Err(ChapError::Reflected);
        }
        if own.same_secret(known) {
            return Err(ChapError::SameSecret);
        }
        let response = algorithm.response(id, &own.secret, &challenge);
        Ok(vec![pair("CHAP_N", &own.name), pair("CHAP_R", text::hex(&response))])
    }
}

/// The initiator's role.
#[derive(Debug)]
pub struct Supplicant {
    own: Credentials,
    target: Option<Credentials>,
    nonce: Nonce,
    algorithm: Option<Algorithm>,
    answered: bool,
}

impl Supplicant {
    /// With what this side says, and, for mutual CHAP, what the target must say.
    ///
    /// # Errors
    /// [`ChapError::SameSecret`].
    pub fn new(own: Credentials, target: Option<Credentials>, nonce: Nonce) -> Result<Supplicant, ChapError> {
        if target.as_ref().is_some_and(|target| target.same_secret(&own)) {
            return Err(ChapError::SameSecret);
        }
        Ok(Supplicant { own, target, nonce, algorithm: None, answered: false })
    }

    /// What follows AuthMethod=CHAP.
    pub fn start(&self) -> Pairs {
        let codes: Vec<String> = Algorithm::OFFERED.iter().map(|one| one.code().to_string()).collect();
        vec![pair("CHAP_A", codes.join(","))]
    }

    /// The response was sent: the login may go on once the target agrees.
    pub fn has_answered(&self) -> bool {
        self.answered
    }

    /// The target's challenge; gives the answer.
    ///
    /// # Errors
    /// See [`ChapError`].
    pub fn challenge(&mut self, pairs: &Pairs) -> Result<Pairs, ChapError> {
        let chosen = need(pairs, "CHAP_A")?;
        let algorithm = Algorithm::of(chosen).ok_or_else(|| ChapError::Algorithm(chosen.to_owned()))?;
        let id = identifier(need(pairs, "CHAP_I")?)?;
        let challenge = text::binary("CHAP_C", need(pairs, "CHAP_C")?)?;
        if challenge == self.nonce.challenge {
            return Err(ChapError::Reflected);
        }
        self.algorithm = Some(algorithm);
        self.answered = true;
        let response = algorithm.response(id, &self.own.secret, &challenge);
        let mut answer = vec![pair("CHAP_N", &self.own.name), pair("CHAP_R", text::hex(&response))];
        if self.target.is_some() {
            answer.push(pair("CHAP_I", self.nonce.id));
            answer.push(pair("CHAP_C", text::hex(&self.nonce.challenge)));
        }
        Ok(answer)
    }

    /// The target accepted; with mutual CHAP it must have said who it is.
    ///
    /// # Errors
    /// See [`ChapError`].
    pub fn finish(&self, pairs: &Pairs) -> Result<(), ChapError> {
        let (Some(target), Some(algorithm)) = (&self.target, self.algorithm) else { return Ok(()) };
        let name = need(pairs, "CHAP_N")?;
        if name != target.name {
            return Err(ChapError::UnknownName(name.to_owned()));
        }
        let response = text::binary("CHAP_R", need(pairs, "CHAP_R")?)?;
        let wanted = algorithm.response(self.nonce.id, &target.secret, &self.nonce.challenge);
        if !bool::from(wanted.ct_eq(&response)) {
            return Err(ChapError::WrongResponse(name.to_owned()));
        }
        Ok(())
    }
}
