//! One connection of an initiator on a byte stream: login, then a session until it ends.
//!
//! Read RFC 7143 §6.3 and §7. What to do is decided by `login::initiator`, `session::initiator` and `transfers`; here is only
//! waiting. Reconnecting is `crate::initiator`'s.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use everywire_verbs::rt::{Notify, Rt};

use super::transfers::Transfers;
use super::{ByteStream, Outbox};
use crate::initiator::{Carrier, IscsiError, Work};
use crate::login::MAX_LOGIN_DATA;
use crate::login::chap::Nonce;
use crate::login::initiator::{LoggedIn, Login, LoginOptions, Progress};
use crate::pdu::{Framer, Header, Pdu};
use crate::session::initiator::{Action, Session, SessionOptions};

enum Event {
    Read(io::Result<usize>),
    Failed(io::Error),
    Poked,
    Time,
}

/// A connection.
pub struct Connection<S> {
    rt: Rt,
    stream: S,
    framer: Framer,
    out: Outbox,
    transfers: Transfers,
}

impl<S: ByteStream> Connection<S> {
    /// On a stream that is connected.
    pub(crate) fn new(rt: Rt, stream: S) -> Connection<S> {
        let framer = Framer::new(MAX_LOGIN_DATA);
        Connection { rt, stream, framer, out: Outbox::default(), transfers: Transfers::default() }
    }

    async fn next(&mut self, poke: &Notify, until: Instant) -> Event {
        let mut poked = pin!(poke.notified());
        let mut sleep = self.rt.sleep_until(until);
        let Self { stream, framer, out, .. } = self;
        poll_fn(move |cx| {
            if !out.is_empty()
                && let Poll::Ready(Err(error)) = out.poll_flush(cx, stream)
            {
                return Poll::Ready(Event::Failed(error));
            }
            if poked.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Poked);
            }
            if let Poll::Ready(result) = stream.poll_read(cx, framer.space()) {
                return Poll::Ready(Event::Read(result));
            }
            sleep.as_mut().poll(cx).map(|()| Event::Time)
        })
        .await
    }
}

impl<S: ByteStream> Carrier for Connection<S> {
    async fn login(&mut self, options: LoginOptions, until: Instant) -> Result<Box<LoggedIn>, IscsiError> {
        let rt = self.rt.clone();
        let (mut login, first) = Login::start(options, false, Nonce::new(|| rt.entropy()))?;
        self.out.push(&first);
        let never = Notify::default();
        loop {
            while let Some(pdu) = self.framer.next_pdu().map_err(|e| IscsiError::Protocol(e.to_string()))? {
                match login.receive(&pdu)? {
                    Progress::Send(next) => self.out.push(&next),
                    Progress::Done(done) => {
                        self.framer.set(done.params.digests, done.params.max_recv);
                        self.out.set_digests(done.params.digests);
                        return Ok(done);
                    }
                }
            }
            match self.next(&never, until).await {
                Event::Read(Ok(0)) => {
                    return Err(IscsiError::Lost(
                        "the target closed the connection during the login".to_owned(),
                    ));
                }
                Event::Read(Err(error)) | Event::Failed(error) => {
                    return Err(IscsiError::Lost(error.to_string()));
                }
                Event::Time => {
                    return Err(IscsiError::Lost("the target did not answer the login".to_owned()));
                }
                Event::Read(Ok(_)) | Event::Poked => {}
            }
        }
    }

    async fn run(&mut self, login: &LoggedIn, options: SessionOptions, work: &Work) -> String {
        let mut session = Session::new(self.rt.now(), login, options);
        loop {
            let now = self.rt.now();
            if let Err(why) = self.take_in(&mut session, now) {
                return why;
            }
            if session.deadline() <= now {
                session.tick(now);
            }
            work.feed(&mut session, |itt, lun, data| {
                self.transfers.add(itt, lun, data.out(), data.data_in());
            });
            while let Some(action) = session.poll() {
                match action {
                    Action::Send(pdu) => self.out.push(&pdu),
                    Action::Done(itt, result) => {
                        let data = self.transfers.take(itt);
                        work.done(itt, result, data.len(), data);
                    }
                    Action::Managed(itt, result) => work.managed(itt, result),
                    Action::Text(itt, result) => work.text(itt, result),
                    Action::Event(lun, sense) => {
                        tracing::info!("LUN {lun:#x}: event, sense data {sense:02x?}")
                    }
                    Action::LogoutRequested(seconds) => {
                        tracing::info!("the target asks to log out within {seconds} s");
                        session.logout(crate::pdu::LogoutReason::CloseSession);
                    }
                    Action::Close(why) => return why,
                }
            }
            while let Some((itt, pdu)) = session.start(now) {
                self.transfers.start(&session, itt, pdu, &mut self.out);
            }
            match self.next(work.poke(), session.deadline()).await {
                Event::Read(Ok(0)) => return "the target closed the connection".to_owned(),
                Event::Read(Err(error)) | Event::Failed(error) => return error.to_string(),
                Event::Read(Ok(_)) | Event::Poked | Event::Time => {}
            }
        }
    }
}

impl<S: ByteStream> Connection<S> {
    fn take_in(&mut self, session: &mut Session, now: Instant) -> Result<(), String> {
        while let Some(pdu) = self.framer.next_pdu().map_err(|e| e.to_string())? {
            self.take_one(session, now, &pdu)?;
        }
        Ok(())
    }

    fn take_one(&mut self, session: &mut Session, now: Instant, pdu: &Pdu) -> Result<(), String> {
        match &pdu.header {
            Header::DataIn(header) => self.transfers.data_in(session.params(), header, &pdu.data)?,
            Header::R2t(header) => self.transfers.r2t(session, header, &mut self.out)?,
            _ => {}
        }
        session.receive(now, pdu);
        Ok(())
    }
}
