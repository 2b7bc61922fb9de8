//! From an FPDU to the operation: header validation and dispatch.
//!
//! Read RFC 5041 §5.3 and §8 and RFC 5040 §7 (what is checked, in which layer, in which order) first. Each check answers with
//! the error of the layer that makes it. What an operation does is the responder's or the requester's business.

use std::time::Instant;

use everywire_wire::ddp::{self, DdpHeader, DdpTarget};
use everywire_wire::rdmap::{
    self, ATOMIC_RESPONSE_QUEUE, AtomicRequest, AtomicResponse, RdmapControl, RdmapError, RdmapOpcode,
    ReadRequest, TERMINATE_QUEUE, TaggedError, UntaggedError,
};

use super::fault::Refusal;
use super::params::Rtr;
use super::qp::Qp;
use super::requester::ReadResponse;
use super::responder::Place;
use crate::ib::env::{Counter, QpEnv, QpEvent};

impl Qp {
    /// A whole FPDU.
    pub(super) fn frame<E: QpEnv>(&mut self, env: &mut E, now: Instant, raw: &[u8]) {
        match self.rx.open(raw) {
            Err(error) => {
                env.count(Counter::DropMalformed, 1);
                self.refuse(env, now, Refusal::llp(error), None);
            }
            Ok(segment) => {
                env.count(Counter::RcvdPkts, 1);
                let handled = self.segment(env, now, &segment);
                self.hear(env);
                if let Err(refusal) = handled {
                    self.refuse(env, now, refusal, Some(&segment));
                }
            }
        }
    }

    /// The first FPDU at the responder: it may send from now on.
    fn hear<E: QpEnv>(&mut self, env: &mut E) {
        self.nudge.stop();
        if !std::mem::replace(&mut self.heard, true) {
            env.event(self.qpn(), QpEvent::CommEstablished);
        }
    }

    fn segment<E: QpEnv>(&mut self, env: &mut E, now: Instant, segment: &[u8]) -> Result<(), Refusal> {
        // RFC 6581 §9: an FPDU without a segment makes ready and does nothing else.
        if segment.is_empty() {
            return Ok(());
        }
        let header = DdpHeader::parse(segment).map_err(|_| Refusal::TOO_SHORT)?;
        if header.version != ddp::VERSION {
            return Err(match header.target {
                DdpTarget::Tagged { .. } => Refusal::tagged(TaggedError::Version),
                DdpTarget::Untagged { .. } => Refusal::untagged(UntaggedError::Version),
            });
        }
        if let DdpTarget::Untagged { qn, .. } = header.target
            && qn > self.last_queue()
        {
            return Err(Refusal::untagged(UntaggedError::InvalidQn));
        }
        let control = RdmapControl::from_byte(header.ulp);
        if control.version != rdmap::VERSION {
            return Err(Refusal::operation(RdmapError::Version));
        }
        let opcode = self.opcode(control.opcode)?;
        let payload = &segment[header.header_len()..];
        match (header.target, opcode.queue()) {
            (DdpTarget::Tagged { stag, to }, None) => {
                let last = header.last;
                if opcode == RdmapOpcode::Write {
                    return self.responder.write(&self.shared, env, stag, to, last, payload);
                }
                let response = ReadResponse { stag, to, last, payload };
                self.requester.read_response(&self.shared, env, &response, self.tx.written)
            }
            (DdpTarget::Untagged { ulp, qn, msn, mo }, Some(queue)) if qn == queue => {
                let place = Place { opcode, last: header.last, msn, mo, ulp };
                self.untagged(env, now, &place, payload)
            }
            // RFC 5040 §7.1: the opcode does not go with the queue, or with the buffer model.
            _ => Err(Refusal::UNEXPECTED),
        }
    }

    /// RFC 7306 adds a queue, only where it was switched on.
    fn last_queue(&self) -> u32 {
        if self.shared.iwarp.rfc7306 { ATOMIC_RESPONSE_QUEUE } else { TERMINATE_QUEUE }
    }

    /// RFC 7306's operations exist only where they were switched on.
    fn opcode(&self, bits: u8) -> Result<RdmapOpcode, Refusal> {
        let opcode = RdmapOpcode::from_bits(bits).ok_or(Refusal::UNEXPECTED)?;
        let extension = opcode as u8 > RdmapOpcode::Terminate as u8;
        if extension && !self.shared.iwarp.rfc7306 { Err(Refusal::UNEXPECTED) } else { Ok(opcode) }
    }

    fn untagged<E: QpEnv>(
        &mut self,
        env: &mut E,
        now: Instant,
        place: &Place,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let only_ready = self.is_rtr_send(place, payload);
        let (sh, responder) = (&self.shared, &mut self.responder);
        match place.opcode {
            RdmapOpcode::ReadRequest => {
                responder.check_single(place, ReadRequest::LEN, payload)?;
                let read = ReadRequest::parse(payload).map_err(|_| Refusal::TOO_SHORT)?;
                responder.read(sh, env, place, read)
            }
            RdmapOpcode::AtomicRequest => {
                responder.check_single(place, AtomicRequest::LEN, payload)?;
                let request = AtomicRequest::parse(payload).map_err(|_| Refusal::TOO_SHORT)?;
                responder.atomic(sh, env, &request)
            }
            RdmapOpcode::AtomicResponse => {
                responder.check_single(place, AtomicResponse::LEN, payload)?;
                let response = AtomicResponse::parse(payload).map_err(|_| Refusal::TOO_SHORT)?;
                self.requester.atomic_response(sh, env, &response, self.tx.written)
            }
            RdmapOpcode::Immediate | RdmapOpcode::ImmediateSe => responder.immediate(sh, env, place, payload),
            RdmapOpcode::Terminate => {
                self.terminated(env, now, payload);
                Ok(())
            }
            _ if only_ready => {
                responder.skip_send();
                Ok(())
            }
            _ => responder.send(sh, env, place, payload),
        }
    }

    /// Some peers send an empty SEND where an empty FPDU was agreed on: as the very first frame it makes ready, too.
    fn is_rtr_send(&self, place: &Place, payload: &[u8]) -> bool {
        let agreed = self.shared.stream.is_some_and(|s| !s.initiator && s.rtr == Some(Rtr::Send));
        let first = !self.heard && (place.msn, place.mo) == (1, 0);
        agreed && first && place.opcode == RdmapOpcode::Send && place.last && payload.is_empty()
    }
}
