//! One connection of an initiator on RDMA: connect, log in, then a session until it ends.
//!
//! Read RFC 7145 §5.1, §5.1.3 and §10.1. The mirror of `tcp::initiator`: the same login, session and work, with messages in place
//! of a stream. Receives for every answer are posted before anything is sent. Reconnecting is `crate::initiator`'s.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_verbs::rt::{Notify, Rt};
use everywire_verbs::{Access, ConnParam, ConnectOptions, Device, Pd, SendOp, VerbsError};

use super::commands::{Commands, Done, MAX_COMMANDS};
use super::link::{Came, Ends, Event, Link, MAX_DATA, Message, message};
use super::place::Memory;
use super::{ControlHeader, Header, Hello, PrivateData, VERSION};
use crate::initiator::{Binding, Carrier, ConnectError, IscsiError, Work};
use crate::keys::Key;
use crate::login::SessionKind;
use crate::login::chap::Nonce;
use crate::login::initiator::{LoggedIn, Login, LoginOptions, Progress};
use crate::pdu::{self, Pdu};
use crate::session::initiator::{Action, Session, SessionOptions};

/// PDUs beyond answers to commands that the target may send: pings, events, answers to what is no command.
const UNEXPECTED: u32 = 32;
/// Entries of the send queue for each command: its registration, its SEND, its invalidation.
const SENDS: u32 = 3;
/// READs and atomics that the target may have outstanding here.
const RD_ATOMIC: u8 = 16;
/// How long a connection that has ended waits for the target's word.
const PARTING: Duration = Duration::from_secs(1);

/// Connects over a device. Cheap to clone; the memory of commands is shared.
#[derive(Clone)]
pub struct RdmaBinding {
    device: Device,
    local: Option<SocketAddr>,
    memory: Rc<Memory>,
}

impl RdmaBinding {
    /// From an address of the device, or the one that routing gives.
    ///
    /// # Errors
    /// The device has no room for the memory of commands.
    pub fn new(device: &Device, local: Option<SocketAddr>) -> Result<RdmaBinding, VerbsError> {
        let memory = Memory::new(device.alloc_pd()?)?;
        Ok(RdmaBinding { device: device.clone(), local, memory })
    }

    async fn connect(
        &self,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<(Ends, everywire_verbs::Connection), ConnectError> {
        let receives = MAX_COMMANDS + UNEXPECTED;
        let ends = Ends::new(
            self.memory.pd(),
            receives,
            SENDS * MAX_COMMANDS + UNEXPECTED,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        );
        let ends = ends?;
        let private = PrivateData { no_zero_based: true, no_send_invalidate: false };
        let param = ConnParam {
            responder_resources: RD_ATOMIC,
            // Nothing here READs.
            initiator_depth: 0,
            ..ConnParam::with_private_data(private.emit())
        };
        let options = ConnectOptions::new(to, &ends.qp).param(param).timeout(limit);
        let options = match self.local {
            Some(local) => options.src(SocketAddr::new(local.ip(), 0)),
            None => options,
        };
        Ok((ends, self.device.connect(options).await?))
    }
}

impl Binding for RdmaBinding {
    type Carrier = Connection;

    fn pd(&self) -> Option<&Pd> {
        Some(self.memory.pd())
    }

    async fn open(&self, rt: &Rt, to: SocketAddr, limit: Duration) -> Result<Connection, ConnectError> {
        let (ends, cm) = self.connect(to, limit).await?;
        let commands = Commands::new(self.memory.clone())?;
        Ok(Connection { rt: rt.clone(), link: Link::new(rt.clone(), ends, cm), commands, max_recv: MAX_DATA })
    }
}

/// A connection.
pub struct Connection {
    rt: Rt,
    link: Link<Done>,
    commands: Commands,
    max_recv: usize,
}

/// What a session over RDMA is to be (RFC 7145 §6).
fn on_rdma(options: &mut LoginOptions) {
    let offers = &mut options.offers;
    offers.set(Key::HeaderDigest, "None");
    offers.set(Key::DataDigest, "None");
    if options.kind == SessionKind::Discovery {
        return offers.set(Key::MaxRecvDataSegmentLength, MAX_DATA);
    }
    offers.unset(Key::MaxRecvDataSegmentLength);
    offers.set(Key::RDMAExtensions, "Yes");
    offers.set(Key::InitiatorRecvDataSegmentLength, MAX_DATA);
    offers.set(Key::TargetRecvDataSegmentLength, MAX_DATA);
    offers.set(Key::TaggedBufferForSolicitedDataOnly, "Yes");
    offers.set(Key::MaxOutstandingUnexpectedPDUs, UNEXPECTED);
}

impl Carrier for Connection {
    async fn login(
        &mut self,
        mut options: LoginOptions,
        until: Instant,
    ) -> Result<Box<LoggedIn>, IscsiError> {
        on_rdma(&mut options);
        let normal = options.kind != SessionKind::Discovery;
        let rt = self.rt.clone();
        let (mut login, first) = Login::start(options, true, Nonce::new(|| rt.entropy()))?;
        self.say(&first).map_err(IscsiError::Lost)?;
        let done = loop {
            let pdu = self.login_pdu(until).await?;
            match login.receive(&pdu)? {
                Progress::Send(next) => self.say(&next).map_err(IscsiError::Lost)?,
                Progress::Done(done) => break done,
            }
        };
        if normal && !done.params.rdma {
            let why = "the target does not agree to RDMAExtensions=Yes (RFC 7145 §6.3)";
            return Err(IscsiError::Protocol(why.to_owned()));
        }
        if done.params.hello_required {
            self.hello(until).await?;
        }
        Ok(done)
    }

    async fn run(&mut self, login: &LoggedIn, options: SessionOptions, work: &Work) -> String {
        let mut session = Session::new(self.rt.now(), login, options);
        let why = self.full_feature(&mut session, work).await;
        self.link.settle(self.rt.now() + PARTING).await;
        self.link.disconnect(PARTING).await;
        why
    }
}

impl Connection {
    fn say(&mut self, pdu: &Pdu) -> Result<(), String> {
        let bytes = message(&Header::Control(ControlHeader::default()), Some(pdu));
        self.link.send(None, SendOp::Send, bytes, Done::Sent)
    }

    /// The next message before the session begins.
    async fn message(&mut self, until: Instant) -> Result<Message, IscsiError> {
        let never = Notify::default();
        loop {
            while let Some(came) = self.link.take() {
                if let Came::Message { message, .. } = came {
                    return message.map_err(|e| IscsiError::Protocol(e.to_string()));
                }
            }
            self.link.flush().map_err(IscsiError::Lost)?;
            if self.rt.now() >= until {
                return Err(IscsiError::Lost("the target did not answer the login".to_owned()));
            }
            if let Event::Ended(why) = self.link.wait(&never, Some(until)).await {
                return Err(IscsiError::Lost(format!("during the login: {why}")));
            }
        }
    }

    async fn login_pdu(&mut self, until: Instant) -> Result<Pdu, IscsiError> {
        let message = self.message(until).await?;
        match message.header {
            Header::Control(_) => {
                Pdu::from_bytes(&message.pdu, MAX_DATA).map_err(|e| IscsiError::Protocol(e.to_string()))
            }
            _ => Err(IscsiError::Protocol("an iSER Hello came during the login".to_owned())),
        }
    }

    /// RFC 7145 §5.1.3: what this side asked for.
    async fn hello(&mut self, until: Instant) -> Result<(), IscsiError> {
        let hello = Hello {
            max_version: VERSION,
            min_version: VERSION,
            ird: self.link.cm().param().initiator_depth.into(),
        };
        let bytes = message(&Header::Hello(hello), None);
        self.link.send(None, SendOp::Send, bytes, Done::Sent).map_err(IscsiError::Lost)?;
        match self.message(until).await?.header {
            Header::HelloReply(reply) if !reply.reject && reply.version == VERSION => Ok(()),
            other => Err(IscsiError::Protocol(format!("the target answers the iSER Hello with {other:?}"))),
        }
    }

    async fn full_feature(&mut self, session: &mut Session, work: &Work) -> String {
        loop {
            let now = self.rt.now();
            let acted = self.take_in(session, work, now).and_then(|()| {
                if session.deadline() <= now {
                    session.tick(now);
                }
                work.feed(session, |itt, _, data| self.commands.add(itt, data.clone()));
                // What was asked for before a command goes before it; a command may be refused.
                match self.act(session, work)? {
                    Some(why) => Ok(Some(why)),
                    None => {
                        self.commands.pump(session, now, &mut self.link, work.poke())?;
                        self.act(session, work)
                    }
                }
            });
            match acted {
                Ok(None) => {}
                Ok(Some(why)) | Err(why) => return why,
            }
            if let Err(why) = self.link.flush() {
                return why;
            }
            if let Event::Ended(why) = self.link.wait(work.poke(), Some(session.deadline())).await {
                return why;
            }
        }
    }

    fn take_in(&mut self, session: &mut Session, work: &Work, now: Instant) -> Result<(), String> {
        while let Some(came) = self.link.take() {
            match came {
                Came::Message { message, invalidated } => {
                    let message = message.map_err(|e| e.to_string())?;
                    let Header::Control(_) = message.header else {
                        return Err("an iSER Hello came in the full feature phase".to_owned());
                    };
                    let pdu = Pdu::from_bytes(&message.pdu, self.max_recv).map_err(|e| e.to_string())?;
                    let itt = match pdu.header {
                        pdu::Header::ScsiResponse(header) => Some(header.itt),
                        pdu::Header::DataIn(_) | pdu::Header::R2t(_) => {
                            return Err(format!(
                                "a {} PDU, which iSER does not have (RFC 7145 §7.3)",
                                pdu.header.name()
                            ));
                        }
                        _ => None,
                    };
                    self.commands.invalidated(itt, invalidated)?;
                    session.receive(now, &pdu);
                }
                Came::Done(done) => {
                    if let Some(ended) = self.commands.done(done) {
                        work.done(ended.itt, ended.result, ended.came, ended.data);
                    }
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, session: &mut Session, work: &Work) -> Result<Option<String>, String> {
        while let Some(action) = session.poll() {
            match action {
                Action::Send(pdu) => self.say(&pdu)?,
                Action::Done(itt, result) => {
                    if let Some(ended) = self.commands.ended(&mut self.link, itt, result) {
                        work.done(ended.itt, ended.result, ended.came, ended.data);
                    }
                }
                Action::Managed(itt, result) => work.managed(itt, result),
                Action::Text(itt, result) => work.text(itt, result),
                Action::Event(lun, sense) => {
                    tracing::info!("LUN {lun:#x}: event, sense data {sense:02x?}");
                }
                Action::LogoutRequested(seconds) => {
                    tracing::info!("the target asks to log out within {seconds} s");
                    session.logout(pdu::LogoutReason::CloseSession);
                }
                Action::Close(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }
}
