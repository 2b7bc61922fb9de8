//! The side that asks: sends the request, judges the reply.
//!
//! Read RFC 5044 §7.1.2 and RFC 6581 §9. A reply may lower what was asked for, never raise it; a reply of revision 1 to a
//! request of revision 2 means that its sender took our block for private data, so the connection is of no use.

use std::time::{Duration, Instant};

use everywire_wire::mpa::{Enhanced, StartFrame, StartKind};

use super::types::{Agreed, Failure, InitiatorConfig, MAX_PRIVATE_DATA, MpaError, MpaEvent, RtrSet};
use super::{StreamError, block_of, rtr_set, take_frame};
use crate::iwarp::Rtr;

/// One start-up, from the side that begins it.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    /// The request, or the last word.
    out: Option<Vec<u8>>,
    partial: Vec<u8>,
    event: Option<MpaEvent>,
    /// What was agreed on, until the pause is over.
    held: Option<MpaEvent>,
    deadline: Option<Instant>,
}

impl Initiator {
    /// Begins on a connection that is established: [`Initiator::poll_transmit`] has the request.
    pub fn new(now: Instant, mut config: InitiatorConfig) -> Result<Initiator, MpaError> {
        let limit = if config.enhanced { MAX_PRIVATE_DATA } else { StartFrame::MAX_PRIVATE_DATA };
        let length = config.private_data.len();
        if length > limit {
            return Err(MpaError::PrivateDataTooLong { length, limit });
        }
        if config.peer_to_peer.is_some() && !config.enhanced {
            return Err(MpaError::NeedsEnhanced);
        }
        // A READ that says "ready" is outstanding as every other one is: a request that offers it with an ORD of 0 makes
        // Linux's siw answer with an IRD of 0, and then fail on that very READ.
        if config.peer_to_peer.is_some_and(|rtr| rtr.has(Rtr::Read)) {
            config.ord = config.ord.max(1);
        }
        let out = Some(request_of(&config));
        let deadline = now.checked_add(config.timeout);
        Ok(Initiator { config, out, partial: Vec::new(), event: None, held: None, deadline })
    }

    /// Bytes from the peer. Gives how many belong to the start-up; the others are the queue pair's.
    pub fn handle_stream(&mut self, now: Instant, bytes: &[u8]) -> usize {
        if let Some(event) = self.held.take() {
            // The peer has done with start-up.
            self.finish(event);
        }
        if self.is_done() {
            return 0;
        }
        match take_frame(StartKind::Reply, &mut self.partial, bytes) {
            Ok((taken, false)) => taken,
            Ok((taken, true)) => {
                let event = self.judge().unwrap_or_else(MpaEvent::Failed);
                let pauses = !self.config.pause.is_zero() && taken == bytes.len();
                match event {
                    MpaEvent::Accepted(_) if pauses => {
                        self.held = Some(event);
                        self.deadline = now.checked_add(self.config.pause);
                    }
                    event => self.finish(event),
                }
                taken
            }
            Err(error) => {
                self.finish(MpaEvent::Failed(error.into()));
                bytes.len()
            }
        }
    }

    /// The connection ended: by the peer's FIN, or for what TCP says.
    pub fn closed(&mut self, cause: Option<StreamError>) {
        if let Some(event) = self.held.take() {
            // Start-up was done: it is the connection that has ended, as whoever has it is told next.
            self.finish(event);
        }
        if !self.is_done() {
            let older = self.config.enhanced && self.partial.is_empty() && cause.is_none();
            self.finish(MpaEvent::Failed(Failure::Closed { what: "MPA reply", cause, older }));
        }
    }

    /// Bytes to send.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.take()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<MpaEvent> {
        self.event.take()
    }

    /// When to call [`Initiator::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|t| t <= now) {
            if let Some(event) = self.held.take() {
                return self.finish(event);
            }
            let timeout: Duration = self.config.timeout;
            self.finish(MpaEvent::Failed(Failure::Timeout { what: "MPA reply", timeout }));
        }
    }

    fn is_done(&self) -> bool {
        self.deadline.is_none()
    }

    fn finish(&mut self, event: MpaEvent) {
        (self.deadline, self.held) = (None, None);
        self.partial = Vec::new();
        self.event = Some(event);
    }

    fn judge(&mut self) -> Result<MpaEvent, Failure> {
        let frame = StartFrame::parse(StartKind::Reply, &self.partial)?;
        if frame.revision == 0 || frame.revision > 2 {
            return Err(Failure::Revision { revision: frame.revision });
        }
        // RFC 6581: an answer in revision 1 comes from a peer that did not understand the request.
        if self.config.enhanced && frame.revision < 2 && !frame.reject {
            return Err(Failure::Downgraded { revision: frame.revision });
        }
        let (block, private) = split(&frame)?;
        if frame.reject {
            return Ok(MpaEvent::Rejected { private_data: private.to_vec() });
        }
        let mut agreed = Agreed {
            private_data: private.to_vec(),
            revision: frame.revision,
            // RFC 5044 §7.1: one side's wish is enough.
            crc: self.config.crc || frame.crc,
            markers_send: frame.markers,
            markers_receive: self.config.markers,
            ird: self.config.ird,
            ord: self.config.ord,
            initiator: true,
            rtr: None,
        };
        if let (true, Some(block)) = (self.config.enhanced, block)
            && let Err(failure) = self.settle(&mut agreed, &block)
        {
            // RFC 6581 §9: the responder, which believes it is connected, is told by a TERMINATE message.
            self.out = failure.llp_error().and_then(|error| agreed.refusal(error));
            return Err(failure);
        }
        Ok(MpaEvent::Accepted(agreed))
    }

    /// RFC 6581 §9: what the reply's block makes of our wishes.
    fn settle(&self, agreed: &mut Agreed, block: &Enhanced) -> Result<(), Failure> {
        // All ones: the peer leaves the depth to the upper layer.
        if block.ird != Enhanced::MAX_DEPTH {
            agreed.ord = agreed.ord.min(block.ird);
        }
        if block.ord != Enhanced::MAX_DEPTH && block.ord > agreed.ird {
            return Err(Failure::InsufficientIrd { ord: block.ord, ird: agreed.ird });
        }
        let Some(offered) = self.config.peer_to_peer else { return Ok(()) };
        // Without A in the reply the peer declines the model; with it, it names the frame (cases IW-02).
        if block.peer_to_peer {
            let mut common: RtrSet = offered & rtr_set(block);
            if agreed.ord == 0 {
                // The peer takes no READ, not even an empty one.
                common.remove(RtrSet::READ);
            }
            agreed.rtr = Some(common.choose().ok_or(Failure::NoMatchingRtr)?);
        }
        Ok(())
    }
}

/// The enhanced block of a frame that has one, and the upper layer's bytes.
pub(super) fn split<'a>(frame: &StartFrame<'a>) -> Result<(Option<Enhanced>, &'a [u8]), Failure> {
    if frame.revision < 2 || !frame.enhanced {
        return Ok((None, frame.private_data));
    }
    let block = Enhanced::parse(frame.private_data).map_err(|_| Failure::NoEnhancedBlock)?;
    Ok((Some(block), &frame.private_data[Enhanced::LEN..]))
}

fn request_of(config: &InitiatorConfig) -> Vec<u8> {
    let mut private = Vec::new();
    if config.enhanced {
        let rtr = config.peer_to_peer.unwrap_or_default();
        let block = block_of(config.peer_to_peer.is_some(), rtr, config.ird, config.ord);
        private.extend_from_slice(&block.to_bytes());
    }
    private.extend_from_slice(&config.private_data);
    let frame = StartFrame {
        kind: StartKind::Request,
        markers: config.markers,
        crc: config.crc,
        reject: false,
        enhanced: config.enhanced,
        reserved: 0,
        revision: if config.enhanced { 2 } else { 1 },
        private_data: &private,
    };
    let mut out = Vec::new();
    frame.emit(&mut out);
    out
}
