//! One connection of a target on a byte stream, as one task: login, then a session until it ends.
//!
//! Read RFC 7143 §6.3 and §7 (level 0: an error of the stream ends the session). Everything is decided by `login::target`,
//! `session::target` and the mover; here is only waiting: for bytes, for room, for futures of commands, for time.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use everywire_verbs::peer_log::About;
use everywire_verbs::rt::{Notify, Rt};

use super::mover::Mover;
use super::{ByteStream, Outbox};
use crate::login::chap::Nonce;
use crate::login::target::{Established, Login, Step};
use crate::login::{LoginStatus, MAX_LOGIN_DATA};
use crate::pdu::{FrameError, Framer, Header, NO_TAG, Pdu, RejectReason};
use crate::session::target::{Action, Session};
use crate::target::{Ended, Inbox, Order, Target};

/// Why a connection is to be waited for no longer.
enum Event {
    Read(io::Result<usize>),
    Flushed(io::Result<()>),
    Poked,
    Time,
}

struct Connection<S> {
    rt: Rt,
    stream: S,
    framer: Framer,
    out: Outbox,
}

impl<S: ByteStream> Connection<S> {
    /// Waits for bytes, for everything to be written (if `flush`, only that), for a call, or for the time.
    async fn next(&mut self, poke: &Notify, until: Option<Instant>, flush: bool) -> Event {
        let mut poked = pin!(poke.notified());
        let mut sleep = until.map(|at| self.rt.sleep_until(at));
        let Self { stream, framer, out, .. } = self;
        poll_fn(move |cx| {
            if !out.is_empty() || flush {
                match out.poll_flush(cx, stream) {
                    Poll::Ready(Ok(())) if !flush => {}
                    Poll::Ready(result) => return Poll::Ready(Event::Flushed(result)),
                    Poll::Pending => {}
                }
            }
            if poked.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Poked);
            }
            if !out.is_full()
                && !flush
                && let Poll::Ready(result) = stream.poll_read(cx, framer.space())
            {
                return Poll::Ready(Event::Read(result));
            }
            match &mut sleep {
                Some(sleep) => sleep.as_mut().poll(cx).map(|()| Event::Time),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Writes what is queued, until a time.
    async fn flush(&mut self, until: Instant) {
        let never = Notify::default();
        while !matches!(self.next(&never, Some(until), true).await, Event::Flushed(_) | Event::Time) {}
    }

    /// The next PDU of the login.
    async fn login_pdu(&mut self, until: Instant) -> Result<Pdu, String> {
        let never = Notify::default();
        loop {
            if let Some(pdu) = self.framer.next_pdu().map_err(|e| e.to_string())? {
                return Ok(pdu);
            }
            match self.next(&never, Some(until), false).await {
                Event::Read(Ok(0)) => {
                    return Err("the initiator closed the connection during the login".to_owned());
                }
                Event::Read(Err(error)) | Event::Flushed(Err(error)) => return Err(error.to_string()),
                Event::Time => return Err("the login took too long".to_owned()),
                Event::Read(Ok(_)) | Event::Flushed(Ok(())) | Event::Poked => {}
            }
        }
    }
}

/// Serves one connection to its end; gives why it ended.
pub(crate) async fn serve<S: ByteStream>(
    target: &Target,
    stream: S,
    peer: SocketAddr,
    portal: SocketAddr,
) -> String {
    let rt = target.rt().clone();
    let framer = Framer::new(MAX_LOGIN_DATA);
    let mut connection = Connection { rt: rt.clone(), stream, framer, out: Outbox::default() };
    let until = rt.now() + target.options().login_timeout;
    let established = match login(target, &mut connection, peer, portal, until).await {
        Ok(established) => established,
        Err(why) => return format!("login: {why}"),
    };
    let (who, tsih) = (established.identity.initiator.clone(), established.tsih);
    let order = target.take_place(tsih).await;
    let params = &established.params;
    connection.framer.set(params.digests, params.max_recv);
    connection.out.set_digests(params.digests);
    if target.may_log(About::Event) {
        tracing::info!("{who} at {peer} logged in by {portal}: {}", established.identity.kind);
    }
    let session = target.session(rt.now(), *established, peer, portal, false);
    let why = match session {
        Ok(session) => run(target, &mut connection, session, &order).await,
        Err(why) => why,
    };
    connection.flush(rt.now() + target.options().linger).await;
    target.ended(tsih, &order);
    if target.may_log(About::Event) {
        tracing::info!("{who} at {peer}: session ended: {why}");
    }
    why
}

async fn login<S: ByteStream>(
    target: &Target,
    connection: &mut Connection<S>,
    peer: SocketAddr,
    portal: SocketAddr,
    until: Instant,
) -> Result<Box<Established>, String> {
    let rt = connection.rt.clone();
    let mut login = Login::new(peer, portal, false, Nonce::new(|| rt.entropy()));
    loop {
        let pdu = connection.login_pdu(until).await?;
        match login.receive(target, &pdu) {
            Step::Reply(reply) => connection.out.push(&reply),
            Step::Done(reply, established) => {
                connection.out.push(&reply);
                return Ok(established);
            }
            Step::Refused(reply, refusal) => {
                connection.out.push(&reply);
                connection.flush(until).await;
                let who = login.initiator().map_or_else(|| "an initiator".to_owned(), ToString::to_string);
                if refusal.status != LoginStatus::Success && target.may_log(About::Trouble) {
                    tracing::warn!("{who} at {peer}: login refused: {}: {}", refusal.status, refusal.why);
                }
                return Err(refusal.why);
            }
        }
    }
}

/// The full feature phase.
async fn run<S: ByteStream>(
    target: &Target,
    connection: &mut Connection<S>,
    mut session: Session,
    order: &Rc<Order>,
) -> String {
    let inbox = Rc::new(Inbox::default());
    order.wake_with(&inbox.poke_fn());
    let mut mover = Mover::default();
    loop {
        let now = connection.rt.now();
        if let Err(why) = take_in(connection, &mut session, &mut mover, now) {
            session.close(why);
        }
        inbox.drain(&mut session);
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
        if let Some(why) = act(target, connection, &mut session, &mut mover, &inbox) {
            return why;
        }
        match connection.next(&inbox.poke, session.deadline(), false).await {
            Event::Read(Ok(0)) => return "the initiator closed the connection".to_owned(),
            Event::Read(Err(error)) | Event::Flushed(Err(error)) => return error.to_string(),
            Event::Read(Ok(_)) | Event::Flushed(Ok(())) | Event::Poked | Event::Time => {}
        }
    }
}

/// Every whole PDU that has come.
fn take_in<S>(
    connection: &mut Connection<S>,
    session: &mut Session,
    mover: &mut Mover,
    now: Instant,
) -> Result<(), String> {
    loop {
        let pdu = match connection.framer.next_pdu() {
            Ok(Some(pdu)) => pdu,
            Ok(None) => return Ok(()),
            Err(FrameError::Opcode(header)) => {
                session.reject_header(&header[..], RejectReason::NotSupported);
                continue;
            }
            Err(error) => {
                // Level 0: what a bad digest has lost is recovered by the session's end (RFC 7143 §7.8).
                if let FrameError::DataDigest(header) = &error {
                    session.reject_header(&Pdu::new(**header).bhs(), RejectReason::DataDigest);
                }
                return Err(error.to_string());
            }
        };
        match pdu.header {
            Header::DataOut(header) if header.ttt != NO_TAG => {
                mover.data_out(session, &header, &pdu.data, &mut connection.out);
                session.heard(now);
            }
            _ => session.control(now, pdu),
        }
    }
}

/// Carries out what the session asks for; gives why to close, if that is among it.
fn act<S>(
    target: &Target,
    connection: &mut Connection<S>,
    session: &mut Session,
    mover: &mut Mover,
    inbox: &Rc<Inbox>,
) -> Option<String> {
    while let Some(action) = session.poll() {
        match action {
            Action::Send(pdu) => connection.out.push(&pdu),
            Action::Allocate { task, len } => {
                let memory = mover.allocate(task, len);
                session.memory(task, memory);
            }
            Action::GetData { task, lun, from, to } => {
                mover.get_data(session, task, lun, from, to, &mut connection.out);
            }
            Action::Run(task, future) => {
                let inbox = inbox.clone();
                connection.rt.spawn(async move { inbox.task(task, future.await) });
            }
            Action::Manage(id, future) => {
                let inbox = inbox.clone();
                connection.rt.spawn(async move { inbox.management(id, future.await) });
            }
            Action::Respond(response) => mover.respond(session, &response, &mut connection.out),
            Action::Release(task) => mover.release(task),
            Action::Drain(task) => mover.drain(session, task),
            // The mover asks the session.
            Action::MaxSend(_) => {}
            Action::ColdReset => target.cold_reset(&session.identity().kind),
            Action::Close(why) => return Some(why),
        }
    }
    None
}
