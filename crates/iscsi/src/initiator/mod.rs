//! The initiator: log in, discover, any CDB, and coming back after a loss.
//!
//! Read RFC 7143 §7.4 (session recovery: what level 0 has), §6.3.5 (the same ISID takes the lost session's place). Commands
//! without status are sent again after a new login, in their order; a caller notices a pause, or an error once the loss has
//! lasted too long. The stream comes from a [`Connector`], so that this runs on sockets and in a simulator.

mod binding;
mod buffer;
mod discovery;
mod disk;
mod work;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_verbs::rt::{LocalFuture, Rt};
use everywire_verbs::{Pd, VerbsError};

pub use binding::ConnectError;
pub(crate) use binding::{Binding, Carrier};
pub use buffer::{Buffer, Span};
pub use discovery::{discover, discover_rdma};
pub use disk::{Capacity, Disk};
pub(crate) use work::Work;
pub use work::{Completion, TagCell, Transfer};

use crate::keys::text::TextError;
use crate::keys::{Key, Offers};
use crate::login::chap::Credentials;
use crate::login::initiator::{LoggedIn, LoginError, LoginOptions};
use crate::login::{LoginStatus, SessionKind};
use crate::name::{IscsiName, Isid};
use crate::pdu::{LogoutReason, TaskFunction, TaskResult};
use crate::rdma::RdmaBinding;
use crate::session::initiator::{Failure, SessionOptions};
use crate::tcp::ByteStream;
use binding::Streams;

/// Redirections that are followed.
const MAX_MOVES: usize = 4;
/// First pause between attempts to come back; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Opens connections.
pub trait Connector {
    /// What it opens.
    type Stream: ByteStream + 'static;

    /// Connects.
    fn connect(&self, to: SocketAddr) -> LocalFuture<io::Result<Self::Stream>>;
}

/// Who the initiator is, and what it wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name.
    pub name: IscsiName,
    /// What it says in CHAP.
    pub chap: Option<Credentials>,
    /// What the target must say (mutual CHAP).
    pub chap_target: Option<Credentials>,
    /// What is wanted of sessions.
    pub offers: Offers,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// How long to try to come back before commands fail.
    pub loss_timeout: Duration,
    /// Pings.
    pub session: SessionOptions,
}

impl Options {
    /// What suits most targets.
    pub fn new(name: IscsiName) -> Options {
        let offers = Offers::default()
            .with(Key::HeaderDigest, "None")
            .with(Key::DataDigest, "None")
            .with(Key::MaxRecvDataSegmentLength, 256 << 10)
            .with(Key::MaxBurstLength, 1 << 20)
            .with(Key::FirstBurstLength, 256 << 10)
            .with(Key::MaxOutstandingR2T, 16)
            .with(Key::InitialR2T, "No")
            .with(Key::ImmediateData, "Yes")
            .with(Key::MaxConnections, 1)
            .with(Key::DefaultTime2Wait, 0)
            .with(Key::DefaultTime2Retain, 0)
            .with(Key::ErrorRecoveryLevel, 0);
        Options {
            name,
            chap: None,
            chap_target: None,
            offers,
            login_timeout: Duration::from_secs(15),
            loss_timeout: Duration::from_secs(30),
            session: SessionOptions::default(),
        }
    }

    fn login(&self, isid: Isid, kind: SessionKind) -> LoginOptions {
        LoginOptions {
            initiator: self.name.clone(),
            isid,
            kind,
            chap: self.chap.clone(),
            chap_target: self.chap_target.clone(),
            offers: self.offers.clone(),
            cmd_sn: 1,
        }
    }
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IscsiError {
    /// The login failed.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// No connection could be made.
    #[error("connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        source: ConnectError,
    },
    /// The connection was lost and did not come back.
    #[error("{0}")]
    Lost(String),
    /// There is no memory for it.
    #[error("memory for data: {0}")]
    Memory(#[from] VerbsError),
    /// The target breaks the rules.
    #[error("{0}")]
    Protocol(String),
    /// This request failed; the session goes on.
    #[error(transparent)]
    Request(#[from] Failure),
    /// A text makes no sense.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A command ended with another status than GOOD.
    #[error("{what}: status {status:#04x}{}", sense_text(.sense))]
    Status {
        /// The command.
        what: &'static str,
        /// Its status.
        status: u8,
        /// Its sense data.
        sense: Vec<u8>,
    },
    /// The caller asked for something that cannot be.
    #[error("{0}")]
    Argument(String),
    /// The session was logged out.
    #[error("the session has ended")]
    Ended,
}

fn sense_text(sense: &[u8]) -> String {
    match sense {
        [0x70 | 0x71, _, key, ..] if sense.len() >= 14 => {
            format!(", sense key {:#x}, additional sense {:02x}{:02x}h", key & 15, sense[12], sense[13])
        }
        [0x72 | 0x73, key, asc, ascq, ..] => {
            format!(", sense key {:#x}, additional sense {asc:02x}{ascq:02x}h", key & 15)
        }
        _ => String::new(),
    }
}

impl IscsiError {
    /// Whether another attempt may succeed without anything being changed.
    fn may_retry(&self) -> bool {
        match self {
            IscsiError::Lost(_) | IscsiError::Connect { .. } => true,
            IscsiError::Login(LoginError::Refused(status)) => status.may_retry(),
            _ => false,
        }
    }
}

/// A session with one target. Cheap to clone; it logs out by [`Initiator::logout`] only.
#[derive(Clone)]
pub struct Initiator {
    work: Rc<Work>,
    /// What memory is registered in.
    pd: Option<Pd>,
}

struct Task<B> {
    rt: Rt,
    binding: B,
    address: SocketAddr,
    options: Options,
    isid: Isid,
    kind: SessionKind,
    work: Rc<Work>,
}

impl Initiator {
    /// Logs in to `target` at `address`, and keeps the session up from then on.
    ///
    /// # Errors
    /// The first login failed.
    pub async fn connect<C: Connector + 'static>(
        rt: &Rt,
        connector: C,
        address: SocketAddr,
        target: &IscsiName,
        options: Options,
    ) -> Result<Initiator, IscsiError> {
        let kind = SessionKind::Normal(target.clone());
        Initiator::start(rt, Streams(connector), address, kind, options).await
    }

    /// The same over RDMA (iSER).
    ///
    /// # Errors
    /// The first login failed.
    pub async fn connect_rdma(
        rt: &Rt,
        binding: RdmaBinding,
        address: SocketAddr,
        target: &IscsiName,
        options: Options,
    ) -> Result<Initiator, IscsiError> {
        let kind = SessionKind::Normal(target.clone());
        Initiator::start(rt, binding, address, kind, options).await
    }

    async fn start<B: Binding>(
        rt: &Rt,
        binding: B,
        address: SocketAddr,
        kind: SessionKind,
        options: Options,
    ) -> Result<Initiator, IscsiError> {
        let work = Rc::new(Work::default());
        let isid = Isid::random(rt.entropy(), rt.entropy() as u16);
        let pd = binding.pd().cloned();
        let mut task = Task { rt: rt.clone(), binding, address, options, isid, kind, work: work.clone() };
        let (connection, login) = task.login().await?;
        rt.spawn(async move { task.keep(connection, *login).await });
        Ok(Initiator { work, pd })
    }

    /// Zeroed memory for [`Transfer::Into`] and [`Transfer::From`], of this session and of others by the same binding.
    ///
    /// # Errors
    /// The device has no room for another region.
    pub fn buffer(&self, len: usize) -> Result<Buffer, IscsiError> {
        Ok(Buffer::new(self.pd.as_ref(), len)?)
    }

    /// Sends a command; waits for its status, over losses of the connection.
    ///
    /// # Errors
    /// No status came: see [`IscsiError`]. A status other than GOOD is no error here.
    pub async fn execute(&self, lun: u64, cdb: &[u8], transfer: Transfer) -> Result<Completion, IscsiError> {
        self.work.command(lun, cdb, transfer, None)?.completion().await
    }

    /// The same; `tag` names it to [`Initiator::abort`].
    ///
    /// # Errors
    /// As [`Initiator::execute`]; [`Failure::Aborted`] if it was aborted.
    pub async fn execute_tagged(
        &self,
        lun: u64,
        cdb: &[u8],
        transfer: Transfer,
        tag: &TagCell,
    ) -> Result<Completion, IscsiError> {
        self.work.command(lun, cdb, transfer, Some(tag))?.completion().await
    }

    /// ABORT TASK of a command; [`TaskResult::NoTask`] if it has ended. Its caller has its end before this has its answer, but for data
    /// that is still being given back.
    ///
    /// # Errors
    /// As [`Initiator::manage`].
    pub async fn abort(&self, tag: &TagCell) -> Result<TaskResult, IscsiError> {
        self.work.abort(tag).await
    }

    /// A task management function on a logical unit, or on the target. Commands of this session that it aborts, those included that
    /// have not gone out, end with [`Failure::Aborted`]. ABORT TASK is [`Initiator::abort`].
    ///
    /// # Errors
    /// The session was lost: its tasks have ended, but nobody said so. They are sent again.
    pub async fn manage(&self, function: TaskFunction, lun: u64) -> Result<TaskResult, IscsiError> {
        self.work.manage(function, lun).await
    }

    /// The logical unit of this number (0 to 16383).
    ///
    /// # Errors
    /// Its capacity cannot be read.
    pub async fn disk(&self, lun: u16) -> Result<Disk, IscsiError> {
        Disk::open(self.clone(), lun).await
    }

    /// Logs out and waits for the answer.
    pub async fn logout(&self) {
        self.work.logout(LogoutReason::CloseSession).await;
    }

    /// Times that the session was lost and came back.
    pub fn reconnects(&self) -> u64 {
        self.work.reconnects()
    }
}

impl<B: Binding> Task<B> {
    /// Connects and logs in, following redirections.
    async fn login(&mut self) -> Result<(B::Carrier, Box<LoggedIn>), IscsiError> {
        let mut address = self.address;
        for _ in 0..MAX_MOVES {
            let until = self.rt.now() + self.options.login_timeout;
            let opened = self.binding.open(&self.rt, address, self.options.login_timeout).await;
            let mut connection = opened.map_err(|source| IscsiError::Connect { address, source })?;
            match connection.login(self.options.login(self.isid, self.kind.clone()), until).await {
                Err(IscsiError::Login(LoginError::Moved { status, address: text })) => {
                    address = portal(&text).map_err(IscsiError::Protocol)?;
                    tracing::info!("{status}: {address}");
                    if status == LoginStatus::MovedPermanently {
                        self.address = address;
                    }
                }
                other => return other.map(|login| (connection, login)),
            }
        }
        Err(IscsiError::Protocol(format!("the target moved {MAX_MOVES} times")))
    }

    /// Keeps the session up.
    async fn keep(mut self, connection: B::Carrier, login: LoggedIn) {
        let mut session = Some((connection, Box::new(login)));
        let mut pause = FIRST_PAUSE;
        while let Some((mut connection, login)) = session.take() {
            let began = self.rt.now();
            let why = connection.run(&login, self.options.session.clone(), &self.work).await;
            drop(connection);
            // Two that take each other's place (one name and ISID twice) must not do so without a pause.
            let lived = self.rt.now() - began;
            pause = if lived > LONGEST_PAUSE { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            if self.work.is_over() {
                return self.work.end(&IscsiError::Ended);
            }
            tracing::warn!("the session was lost: {why}; logging in again");
            self.work.lost();
            let lost = self.rt.now();
            self.rt.sleep(pause / 2).await;
            match self.come_back(&why).await {
                Ok(back) => {
                    tracing::warn!("the session is back after {:.1?}", self.rt.now() - lost);
                    session = Some(back);
                }
                Err(error) => return self.work.end(&error),
            }
        }
    }

    async fn come_back(&mut self, why: &str) -> Result<(B::Carrier, Box<LoggedIn>), IscsiError> {
        let until = self.rt.now() + self.options.loss_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.login().await {
                Ok(back) => {
                    self.work.came_back();
                    return Ok(back);
                }
                Err(error) if error.may_retry() && self.rt.now() + pause < until && !self.work.is_over() => {
                    tracing::debug!("{error}; again in {pause:?}");
                    self.rt.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => {
                    return Err(IscsiError::Lost(format!(
                        "the session was lost ({why}) and did not come back: {error}"
                    )));
                }
            }
        }
    }
}

/// `address[:port][,group]` of TargetAddress; names are not resolved.
fn portal(text: &str) -> Result<SocketAddr, String> {
    let place = text.split(',').next().unwrap_or_default();
    let parsed = place.parse::<SocketAddr>().ok();
    let bare = || place.trim_matches(['[', ']']).parse().ok().map(|ip| SocketAddr::new(ip, crate::PORT));
    parsed
        .or_else(bare)
        .ok_or_else(|| format!("TargetAddress={text}: an address is needed, names are not resolved"))
}
