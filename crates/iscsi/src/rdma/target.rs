//! One connection of a target on RDMA, as one task: login in SENDs, then a session until it ends.
//!
//! Read RFC 7145 §5.1 (login), §5.1.3 (Hello, where the initiator asks for it) and §10.1 (level 0: every error ends the
//! connection). Everything is decided by `login::target`, `session::target` and the mover; here is only waiting. Linux's ends
//! log in over the RDMA connection itself, on iWARP too, and never say Hello.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use everywire_verbs::SendOp;
use everywire_verbs::peer_log::About;
use everywire_verbs::rt::Notify;

use super::link::{Came, Event, Link, MAX_DATA, Message, message};
use super::mover::{Done, Memory, Mover, Peer};
use super::{ControlHeader, Header, Hello, HelloReply, VERSION};
use crate::keys::Key;
use crate::login::chap::Nonce;
use crate::login::target::{Admission, Established, Gate, Login, Refusal, Step};
use crate::login::{Identity, LoginStatus, SessionKind};
use crate::pdu::{FrameError, LoginResponse, Pdu, RejectReason};
use crate::session::target::{Action, Session};
use crate::target::{Ended, Inbox, Order, Target};

/// PDUs beyond the window that an initiator may send at once: pings, task management, text.
pub(super) const UNEXPECTED: u32 = 32;

/// Data-Out PDUs that a command may bring unasked, where any may come so.
pub(super) const UNASKED: u32 = 2;

/// The target as logins over RDMA see it.
struct RdmaGate<'a> {
    target: &'a Target,
    /// Data may come unasked.
    unsolicited: bool,
}

impl Gate for RdmaGate<'_> {
    fn admit(&self, identity: &Identity, peer: SocketAddr, portal: SocketAddr) -> Result<Admission, Refusal> {
        let mut admission = self.target.admit(identity, peer, portal)?;
        let offers = &mut admission.offers;
        // RFC 7145 §6.1, §6.2: the wire has its own sums, and what a PDU may hold has its own keys.
        offers.set(Key::HeaderDigest, "None");
        offers.set(Key::DataDigest, "None");
        offers.set(Key::RDMAExtensions, "Yes");
        offers.set(Key::TargetRecvDataSegmentLength, MAX_DATA);
        offers.set(Key::MaxRecvDataSegmentLength, MAX_DATA);
        offers.set(Key::MaxOutstandingUnexpectedPDUs, UNEXPECTED);
        // Data-Out PDUs that nobody asked for take receives that no window counts (§8.1): as many as there are.
        if self.unsolicited {
            let most = UNASKED as usize * MAX_DATA;
            let first = offers.get(Key::FirstBurstLength).parse().map_or(most, |own: usize| own.min(most));
            offers.set(Key::FirstBurstLength, first);
        } else {
            offers.set(Key::InitialR2T, "Yes");
        }
        Ok(admission)
    }

    fn open(&self, identity: &Identity, portal_group: u16) -> Result<u16, Refusal> {
        self.target.open(identity, portal_group)
    }

    fn join(&self, tsih: u16) -> Refusal {
        self.target.join(tsih)
    }
}

/// One connection.
pub(super) struct Connection {
    pub(super) target: Target,
    pub(super) link: Link<Done>,
    pub(super) memory: Rc<Memory>,
    /// SEND with Invalidate was agreed on.
    pub(super) invalidate: bool,
    /// Data may come unasked ([`super::RdmaOptions::unsolicited`]).
    pub(super) unsolicited: bool,
    /// READs that may be outstanding.
    pub(super) ord: u8,
    pub(super) peer: SocketAddr,
    pub(super) portal: SocketAddr,
    /// The initiator has left, and it is its turn to disconnect.
    pub(super) logged_out: bool,
}

/// A PDU out of a message.
fn pdu_of(message: &Message, max_data: usize) -> Result<(ControlHeader, Result<Pdu, FrameError>), String> {
    match message.header {
        Header::Control(header) => Ok((header, Pdu::from_bytes(&message.pdu, max_data))),
        Header::Hello(_) | Header::HelloReply(_) => {
            Err("an iSER Hello where none was agreed on (RFC 7145 §5.1.3)".to_owned())
        }
    }
}

impl Connection {
    /// Serves it to its end; gives why it ended.
    pub(super) async fn serve(mut self, until: Instant) -> String {
        let target = self.target.clone();
        let (rt, linger) = (target.rt().clone(), target.options().linger);
        let why = match self.login(until).await {
            Ok(established) => {
                let (who, tsih) = (established.identity.initiator.clone(), established.tsih);
                let order = target.take_place(tsih).await;
                let (peer, portal) = (self.peer, self.portal);
                if target.may_log(About::Event) {
                    tracing::info!(
                        "{who} at {peer} logged in by {portal}, iSER: {}",
                        established.identity.kind
                    );
                }
                let why = self.session(*established, &order).await;
                self.link.settle(rt.now() + linger).await;
                target.ended(tsih, &order);
                if target.may_log(About::Event) {
                    tracing::info!("{who} at {peer}: session ended: {why}");
                }
                if self.logged_out {
                    // Linux's siw takes a SEND for failed whose connection the answer's sender has closed at once.
                    self.link.gone(rt.now() + linger).await;
                }
                why
            }
            Err(why) => {
                self.link.settle(rt.now() + linger).await;
                format!("login: {why}")
            }
        };
        self.link.disconnect(linger).await;
        why
    }

    fn say(&mut self, pdu: &Pdu) -> Result<(), String> {
        let bytes = message(&Header::Control(ControlHeader::default()), Some(pdu));
        self.link.send(None, SendOp::Send, bytes, Done::Sent { _memory: None })
    }

    /// The next message before the session begins.
    async fn message(&mut self, until: Instant) -> Result<Message, String> {
        let never = Notify::default();
        loop {
            while let Some(came) = self.link.take() {
                if let Came::Message { message, .. } = came {
                    return message.map_err(|e| e.to_string());
                }
            }
            self.link.flush()?;
            if self.target.rt().now() >= until {
                return Err("the login took too long".to_owned());
            }
            if let Event::Ended(why) = self.link.wait(&never, Some(until)).await {
                return Err(why);
            }
        }
    }

    async fn login(&mut self, until: Instant) -> Result<Box<Established>, String> {
        let (target, rt) = (self.target.clone(), self.target.rt().clone());
        let gate = RdmaGate { target: &target, unsolicited: self.unsolicited };
        let mut login = Login::new(self.peer, self.portal, true, Nonce::new(|| rt.entropy()));
        loop {
            let (_, pdu) = pdu_of(&self.message(until).await?, MAX_DATA)?;
            let pdu = pdu.map_err(|e| e.to_string())?;
            match login.receive(&gate, &pdu) {
                Step::Reply(reply) => self.say(&reply)?,
                Step::Done(reply, established) => return self.logged_in(&reply, established),
                Step::Refused(reply, refusal) => {
                    self.say(&reply)?;
                    let who =
                        login.initiator().map_or_else(|| "an initiator".to_owned(), ToString::to_string);
                    if refusal.status != LoginStatus::Success && target.may_log(About::Trouble) {
                        let peer = self.peer;
                        tracing::warn!("{who} at {peer}: login refused: {}: {}", refusal.status, refusal.why);
                    }
                    return Err(refusal.why);
                }
            }
        }
    }

    /// RFC 7145 §5.1: without RDMAExtensions a session would go on as a stream, which this connection is not.
    fn logged_in(&mut self, reply: &Pdu, established: Box<Established>) -> Result<Box<Established>, String> {
        if established.params.rdma || established.identity.kind == SessionKind::Discovery {
            return self.say(reply).map(|()| established);
        }
        let mut refusal = Pdu { data: Bytes::new(), ..reply.clone() };
        if let crate::pdu::Header::LoginResponse(response) = &mut refusal.header {
            let (class, detail) = LoginStatus::InitiatorError.bytes();
            *response = LoginResponse { class, detail, tsih: 0, flags: response.flags & 0x0c, ..*response };
        }
        // Nobody waits for its place.
        let (target, tsih) = (self.target.clone(), established.tsih);
        let order = target.forget(tsih);
        target.ended(tsih, &order);
        self.say(&refusal)?;
        Err("RDMAExtensions=Yes was not agreed on, and the connection is RDMA (RFC 7145 §6.3)".to_owned())
    }

    async fn session(&mut self, mut established: Established, order: &Rc<Order>) -> String {
        if established.identity.kind == SessionKind::Discovery {
            // Its receives are those of the login, whatever it says of streams.
            established.params.max_send = established.params.max_send.min(MAX_DATA);
        }
        let target = self.target.clone();
        let negotiation = &established.negotiation;
        let peer = Peer {
            invalidate: self.invalidate,
            // RFC 7145 §6.8. Linux's initiators say nothing, and mean Yes.
            solicited_only: established.params.tagged_solicited_only
                || !negotiation.is_settled(Key::TaggedBufferForSolicitedDataOnly),
        };
        let hello = established.params.hello_required;
        let session = target.session(target.rt().now(), established, self.peer, self.portal, true);
        let greeted = if hello { self.hello().await } else { Ok(()) };
        match greeted.and(session) {
            Ok(session) => self.run(session, peer, order).await,
            Err(why) => why,
        }
    }

    /// RFC 7145 §5.1.3 and §9.5: the initiator's Hello, and its answer.
    async fn hello(&mut self) -> Result<(), String> {
        let until = self.target.rt().now() + self.target.options().login_timeout;
        let Header::Hello(hello) = self.message(until).await?.header else {
            return Err("the first message is no iSER Hello, which the initiator wanted".to_owned());
        };
        let Hello { max_version, min_version, ird } = hello;
        let reject = !(min_version..=max_version).contains(&VERSION);
        let ord = u16::from(self.ord).min(ird);
        let reply = HelloReply { reject, max_version: VERSION, version: VERSION, ord };
        let bytes = message(&Header::HelloReply(reply), None);
        self.link.send(None, SendOp::Send, bytes, Done::Sent { _memory: None })?;
        self.link.flush()?;
        if reject {
            return Err(format!("iSER versions {min_version} to {max_version}, {VERSION} is spoken here"));
        }
        Ok(())
    }

    /// The full feature phase.
    async fn run(&mut self, mut session: Session, peer: Peer, order: &Rc<Order>) -> String {
        let (target, rt) = (self.target.clone(), self.target.rt().clone());
        let inbox = Rc::new(Inbox::default());
        order.wake_with(&inbox.poke_fn());
        let commands = target.options().session.queue_depth as usize;
        let mut mover = Mover::new(self.memory.clone(), peer, commands, inbox.poke.clone());
        loop {
            let now = rt.now();
            if let Err(why) = self.take_in(&mut session, &mut mover, now) {
                session.close(why);
            }
            inbox.drain(&mut session);
            mover.feed(&mut session);
            match order.take() {
                Some(Ended::Reinstated) => {
                    return "another session of the same initiator took its place".to_owned();
                }
                Some(Ended::Shutdown) => session.request_logout(now, target.options().logout_wait),
                Some(Ended::Reset) => session.drop_session("TARGET COLD RESET"),
                None => {}
            }
            if session.deadline().is_some_and(|at| at <= now) {
                session.tick(now);
            }
            match self.act(&mut session, &mut mover, &inbox) {
                Ok(None) => {}
                Ok(Some(why)) | Err(why) => {
                    self.logged_out = session.logged_out();
                    return why;
                }
            }
            if let Err(why) = self.link.flush() {
                return why;
            }
            if let Event::Ended(why) = self.link.wait(&inbox.poke, session.deadline()).await {
                return why;
            }
        }
    }

    /// Everything that has come.
    fn take_in(&mut self, session: &mut Session, mover: &mut Mover, now: Instant) -> Result<(), String> {
        while let Some(came) = self.link.take() {
            let message = match came {
                Came::Message { message, .. } => message.map_err(|e| e.to_string())?,
                Came::Done(Done::Fetched { task, .. }) => {
                    session.heard(now);
                    session.fetched(task);
                    continue;
                }
                Came::Done(Done::Sent { .. }) => continue,
            };
            let (header, pdu) = pdu_of(&message, MAX_DATA)?;
            match pdu {
                Ok(pdu) => {
                    if let crate::pdu::Header::ScsiCommand(command) = pdu.header {
                        mover.command(session, command.itt, header);
                    }
                    session.control(now, pdu);
                }
                Err(FrameError::Opcode(header)) => {
                    session.reject_header(&header[..], RejectReason::NotSupported);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Carries out what the session asks for; gives why to close, if that is among it.
    fn act(
        &mut self,
        session: &mut Session,
        mover: &mut Mover,
        inbox: &Rc<Inbox>,
    ) -> Result<Option<String>, String> {
        while let Some(action) = session.poll() {
            match action {
                Action::Send(pdu) => self.say(&pdu)?,
                Action::Allocate { task, len } => mover.allocate(session, task, len),
                Action::GetData { task, from, to, .. } => {
                    mover.get_data(session, &mut self.link, task, from, to);
                }
                Action::Run(task, future) => {
                    let (inbox, memory) = (inbox.clone(), mover.buffer(task));
                    self.target.rt().spawn(async move {
                        let outcome = future.await;
                        // Whatever became of the task: until here the backend had its memory.
                        drop(memory);
                        inbox.task(task, outcome);
                    });
                }
                Action::Manage(id, future) => {
                    let inbox = inbox.clone();
                    self.target.rt().spawn(async move { inbox.management(id, future.await) });
                }
                Action::Respond(response) => mover.respond(session, &mut self.link, &response)?,
                // The READ has its memory until it ends, and tells of that.
                Action::Release(task) | Action::Drain(task) => mover.release(task),
                // Data-In is not cut into PDUs here.
                Action::MaxSend(_) => {}
                Action::ColdReset => self.target.cold_reset(&session.identity().kind),
                Action::Close(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }
}
