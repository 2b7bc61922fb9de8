//! The side that is asked: judges the request, sends the reply that the upper layer decides on.
//!
//! Read RFC 5044 §7.1.3 and RFC 6581 §9. The reply keeps the request's revision. Our ORD is lowered to what the initiator can
//! hold, our IRD answers what it wants; asked for the peer-to-peer model we grant it and name one frame, or refuse with the
//! reason. Nothing of ours follows the reply until the queue pair has seen the initiator's first FPDU.

use std::time::Instant;

use everywire_wire::mpa::{Enhanced, StartFrame, StartKind};

use super::initiator::split;
use super::types::{
    AcceptParams, Agreed, Failure, MAX_PRIVATE_DATA, MpaError, MpaEvent, Request, ResponderConfig, RtrSet,
};
use super::{StreamError, block_of, rtr_set, take_frame};
use crate::iwarp::{Rtr, StreamParams};

#[derive(Debug)]
enum State {
    /// The request has not come, or not all of it.
    Waiting,
    /// The upper layer is to answer.
    Asked(Request),
    /// Answered, failed or closed.
    Done,
}

/// One start-up, from the side that accepts it.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    state: State,
    partial: Vec<u8>,
    reply: Option<Vec<u8>>,
    event: Option<MpaEvent>,
    deadline: Option<Instant>,
}

impl Responder {
    /// Begins on a connection that was accepted.
    pub fn new(now: Instant, config: ResponderConfig) -> Responder {
        let deadline = now.checked_add(config.timeout);
        Responder { config, state: State::Waiting, partial: Vec::new(), reply: None, event: None, deadline }
    }

    /// Whether the first bytes of a stream can be an MPA request: how a port that other protocols share tells them apart.
    /// `None` while there are too few.
    pub fn recognizes(bytes: &[u8]) -> Option<bool> {
        match StartFrame::length(StartKind::Request, bytes) {
            Err(_) => Some(false),
            Ok(_) if bytes.len() < StartKind::Request.key().len() => None,
            Ok(_) => Some(true),
        }
    }

    /// Bytes from the peer. Gives how many belong to the start-up; the others are the queue pair's.
    pub fn handle_stream(&mut self, _now: Instant, bytes: &[u8]) -> usize {
        match self.state {
            State::Waiting => {}
            // RFC 5044 §7.1.2: the initiator waits for the reply.
            State::Asked(_) if !bytes.is_empty() => {
                self.finish(MpaEvent::Failed(Failure::Early { bytes: bytes.len() }));
                return bytes.len();
            }
            State::Asked(_) | State::Done => return 0,
        }
        match take_frame(StartKind::Request, &mut self.partial, bytes) {
            Ok((taken, false)) => taken,
            Ok((taken, true)) if taken == bytes.len() => {
                match self.judge() {
                    Ok(request) => {
                        self.deadline = None;
                        self.partial = Vec::new();
                        self.event = Some(MpaEvent::Request(request.clone()));
                        self.state = State::Asked(request);
                    }
                    Err(failure) => self.finish(MpaEvent::Failed(failure)),
                }
                taken
            }
            Ok((taken, true)) => {
                self.finish(MpaEvent::Failed(Failure::Early { bytes: bytes.len() - taken }));
                bytes.len()
            }
            Err(error) => {
                self.finish(MpaEvent::Failed(error.into()));
                bytes.len()
            }
        }
    }

    fn judge(&self) -> Result<Request, Failure> {
        let frame = StartFrame::parse(StartKind::Request, &self.partial)?;
        if frame.revision == 0 || frame.revision > 2 {
            return Err(Failure::Revision { revision: frame.revision });
        }
        let (block, private) = split(&frame)?;
        let depth = |value: u16| (value != Enhanced::MAX_DEPTH).then_some(value);
        Ok(Request {
            private_data: private.to_vec(),
            revision: frame.revision,
            enhanced: block.is_some(),
            crc: frame.crc,
            markers: frame.markers,
            ird: block.and_then(|b| depth(b.ird)),
            ord: block.and_then(|b| depth(b.ord)),
            peer_to_peer: block.is_some_and(|b| b.peer_to_peer),
            rtr: block.map(|b| rtr_set(&b)).unwrap_or_default(),
        })
    }

    /// The upper layer accepts: the reply is ready and an [`MpaEvent::Accepted`] says what was agreed.
    ///
    /// If no ready-to-receive frame is common to both, the reply refuses instead and the event is
    /// [`MpaEvent::Failed`].
    pub fn accept(&mut self, accept: AcceptParams) -> Result<(), MpaError> {
        let State::Asked(request) = &self.state else { return Err(MpaError::NoRequest) };
        let request = request.clone();
        check_private(&request, &accept.private_data)?;
        let rtr = match request.peer_to_peer {
            true => match (request.rtr & self.config.rtr).choose() {
                Some(rtr) => Some(rtr),
                None => return self.refuse(&request, Failure::NoMatchingRtr),
            },
            false => None,
        };
        let agreed = self.agree(&request, &accept, rtr);
        let block = block_of(request.peer_to_peer, set_of(rtr), agreed.ird, agreed.ord);
        self.reply = Some(self.reply_of(&request, &block, &accept.private_data, false));
        self.finish(MpaEvent::Accepted(agreed));
        Ok(())
    }

    /// The upper layer refuses.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), MpaError> {
        let State::Asked(request) = &self.state else { return Err(MpaError::NoRequest) };
        check_private(request, private_data)?;
        let block = Enhanced::default();
        self.reply = Some(self.reply_of(request, &block, private_data, true));
        self.state = State::Done;
        Ok(())
    }

    fn refuse(&mut self, request: &Request, failure: Failure) -> Result<(), MpaError> {
        let block = block_of(true, self.config.rtr, 0, 0);
        self.reply = Some(self.reply_of(request, &block, &[], true));
        self.finish(MpaEvent::Failed(failure));
        Ok(())
    }

    /// RFC 6581 §9: the depths of both ends held against each other (cases IW-04).
    fn agree(&self, request: &Request, accept: &AcceptParams, rtr: Option<Rtr>) -> Agreed {
        // We need hold no more READs than the initiator will send, and send no more than it can hold. A READ that makes us
        // ready needs a place as well.
        let least = u16::from(rtr == Some(Rtr::Read));
        let ird = accept.ird.min(request.ord.unwrap_or(StreamParams::MAX_DEPTH));
        Agreed {
            private_data: request.private_data.clone(),
            revision: request.revision,
            crc: self.config.crc || request.crc,
            markers_send: request.markers,
            markers_receive: self.config.markers,
            ird: ird.max(least),
            ord: accept.ord.min(request.ird.unwrap_or(accept.ord)),
            initiator: false,
            rtr,
        }
    }

    fn reply_of(&self, request: &Request, block: &Enhanced, private_data: &[u8], reject: bool) -> Vec<u8> {
        let mut private = Vec::new();
        if request.enhanced {
            private.extend_from_slice(&block.to_bytes());
        }
        private.extend_from_slice(private_data);
        let frame = StartFrame {
            kind: StartKind::Reply,
            markers: self.config.markers,
            crc: self.config.crc || request.crc,
            reject,
            enhanced: request.enhanced,
            reserved: 0,
            revision: request.revision,
            private_data: &private,
        };
        let mut out = Vec::new();
        frame.emit(&mut out);
        out
    }

    /// The connection ended: by the peer's FIN, or for what TCP says.
    pub fn closed(&mut self, cause: Option<StreamError>) {
        if !matches!(self.state, State::Done) {
            self.finish(MpaEvent::Failed(Failure::Closed { what: "MPA request", cause, older: false }));
        }
    }

    /// Bytes to send.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.reply.take()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<MpaEvent> {
        self.event.take()
    }

    /// When to call [`Responder::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|t| t <= now) {
            let timeout = self.config.timeout;
            self.finish(MpaEvent::Failed(Failure::Timeout { what: "MPA request", timeout }));
        }
    }

    fn finish(&mut self, event: MpaEvent) {
        self.state = State::Done;
        self.deadline = None;
        self.partial = Vec::new();
        self.event = Some(event);
    }
}

fn set_of(rtr: Option<Rtr>) -> RtrSet {
    match rtr {
        None => RtrSet::empty(),
        Some(Rtr::Send) => RtrSet::SEND,
        Some(Rtr::Write) => RtrSet::WRITE,
        Some(Rtr::Read) => RtrSet::READ,
    }
}

fn check_private(request: &Request, private_data: &[u8]) -> Result<(), MpaError> {
    let limit = if request.enhanced { MAX_PRIVATE_DATA } else { StartFrame::MAX_PRIVATE_DATA };
    let length = private_data.len();
    if length > limit { Err(MpaError::PrivateDataTooLong { length, limit }) } else { Ok(()) }
}
