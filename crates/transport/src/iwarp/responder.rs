//! The responder: what an iWARP queue pair does with the peer's requests.
//!
//! Read RFC 5041 §5.3 (validation of untagged segments) and §5.4 (placement), RFC 5040 §5 (what each operation does). Everything
//! that can refuse a segment comes before its first byte moves. READs and atomics wait in a queue of the agreed depth for
//! their answers to be sent (`answer`).

mod answer;

use std::collections::VecDeque;

use everywire_wire::RKey;
use everywire_wire::rdmap::{
    ATOMIC_RESPONSE_QUEUE, RdmapError, RdmapOpcode, ReadRequest, TaggedError, UntaggedError,
};

use super::fault::Refusal;
use super::shared::Shared;
use crate::ib::env::{Counter, QpEnv};
use crate::ib::wr::{RecvWr, WcOpcode, WcStatus};
use crate::memory::{Access, Memory};
use answer::Answer;

/// A receive that a message is landing in.
#[derive(Debug)]
struct Landing {
    wr: RecvWr,
    /// Bytes it has room for; known once there are any.
    room: Option<u64>,
    /// Bytes landed.
    landed: u64,
    opcode: RdmapOpcode,
}

/// An untagged segment's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) opcode: RdmapOpcode,
    pub(super) last: bool,
    pub(super) msn: u32,
    pub(super) mo: u32,
    /// RDMAP's four bytes: the STag to invalidate.
    pub(super) ulp: [u8; 4],
}

#[derive(Debug)]
pub(super) struct Responder {
    rq: VecDeque<RecvWr>,
    landing: Option<Landing>,
    /// MSN due on queues 0, 1 and 3.
    send_msn: u32,
    request_msn: u32,
    response_msn: u32,
    /// MSN of our next atomic response.
    answer_msn: u32,
    /// Bytes of the WRITE under way, or of the one that was the last message.
    write_len: u64,
    write_open: bool,
    answers: VecDeque<Answer>,
    /// Bytes of the first answer that were sent.
    answered: u32,
}

impl Default for Responder {
    fn default() -> Responder {
        Responder {
            rq: VecDeque::new(),
            landing: None,
            send_msn: 1,
            request_msn: 1,
            response_msn: 1,
            answer_msn: 1,
            write_len: 0,
            write_open: false,
            answers: VecDeque::new(),
            answered: 0,
        }
    }
}

impl Responder {
    pub(super) fn push(&mut self, wr: RecvWr) {
        self.rq.push_back(wr);
    }

    pub(super) fn len(&self) -> usize {
        self.rq.len()
    }

    /// Whether a message is under way in either direction.
    pub(super) fn is_busy(&self) -> bool {
        self.is_amid_message() || !self.answers.is_empty()
    }

    /// Whether a message of the peer's has begun to arrive and is not complete.
    pub(super) fn is_amid_message(&self) -> bool {
        self.landing.is_some() || self.write_open
    }

    /// RFC 5041 §5.3: MSNs of a queue come one by one, and so do the offsets of a message.
    pub(super) fn check_single(&mut self, place: &Place, need: usize, payload: &[u8]) -> Result<(), Refusal> {
        let msn = match place.opcode.queue() {
            Some(ATOMIC_RESPONSE_QUEUE) => &mut self.response_msn,
            _ => &mut self.request_msn,
        };
        if place.msn != *msn {
            return Err(Refusal::untagged(UntaggedError::MsnRange));
        }
        if place.mo != 0 {
            return Err(Refusal::untagged(UntaggedError::InvalidMo));
        }
        if payload.len() > need || !place.last {
            return Err(Refusal::untagged(UntaggedError::TooLong));
        }
        if payload.len() < need {
            return Err(Refusal::TOO_SHORT);
        }
        *msn = msn.wrapping_add(1);
        Ok(())
    }

    /// A segment of a SEND.
    pub(super) fn send<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        place: &Place,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if place.msn != self.send_msn {
            return Err(Refusal::untagged(UntaggedError::MsnRange));
        }
        if self.landing.is_none() {
            // Before a receive is spent on it.
            if place.mo != 0 {
                return Err(Refusal::untagged(UntaggedError::InvalidMo));
            }
            self.write_len = 0;
            self.land(sh, env, place.opcode)?;
        }
        let Some(landing) = &mut self.landing else { return Err(Refusal::UNEXPECTED) };
        if landing.opcode != place.opcode {
            return Err(Refusal::UNEXPECTED);
        }
        if u64::from(place.mo) != landing.landed {
            return Err(Refusal::untagged(UntaggedError::InvalidMo));
        }
        if !payload.is_empty() {
            let room = match landing.room {
                Some(room) => room,
                None => env
                    .memory()
                    .check_local(sh.pd(), &landing.wr.sges, true)
                    .map_err(|_| Refusal::OWN_MEMORY)?,
            };
            landing.room = Some(room);
            if landing.landed + payload.len() as u64 > room {
                return Err(Refusal::TOO_LONG);
            }
            env.memory()
                .scatter(sh.pd(), &landing.wr.sges, landing.landed, payload)
                .map_err(|_| Refusal::OWN_MEMORY)?;
            landing.landed += payload.len() as u64;
        }
        if place.last { self.finish_send(sh, env, place) } else { Ok(()) }
    }

    /// Takes the next receive for a message.
    fn land<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, opcode: RdmapOpcode) -> Result<(), Refusal> {
        let own = self.rq.pop_front();
        let taken = own.or_else(|| sh.config.srq.and_then(|srq| env.srq_take(srq)));
        let Some(wr) = taken else {
            env.count(Counter::OutOfBuffer, 1);
            return Err(Refusal::untagged(UntaggedError::NoBuffer));
        };
        self.landing = Some(Landing { wr, room: None, landed: 0, opcode });
        Ok(())
    }

    fn finish_send<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, place: &Place) -> Result<(), Refusal> {
        let stag = place.opcode.invalidates().then(|| RKey(u32::from_be_bytes(place.ulp)));
        if let Some(stag) = stag {
            // RFC 5040 §5.1: the STag is invalid before the completion is seen.
            env.memory().invalidate_remote(sh.pd(), sh.qpn(), stag).map_err(Refusal::invalidate)?;
        }
        let Some(landing) = self.landing.take() else { return Err(Refusal::UNEXPECTED) };
        self.send_msn = self.send_msn.wrapping_add(1);
        let mut completion = sh.recv_completion(landing.wr.wr_id);
        completion.byte_len = landing.landed as u32;
        completion.invalidated = stag;
        completion.solicited = place.opcode.solicited();
        env.complete(sh.config.recv_cq, completion, completion.solicited);
        Ok(())
    }

    /// A zero-length SEND that only makes us ready: it takes no receive.
    pub(super) fn skip_send(&mut self) {
        self.write_len = 0;
        self.send_msn = self.send_msn.wrapping_add(1);
    }

    /// RFC 7306 §6: immediate data, which complete a receive.
    pub(super) fn immediate<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        place: &Place,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if place.msn != self.send_msn {
            return Err(Refusal::untagged(UntaggedError::MsnRange));
        }
        if place.mo != 0 || !place.last {
            return Err(Refusal::untagged(UntaggedError::InvalidMo));
        }
        let bytes: [u8; 8] = payload.try_into().map_err(|_| Refusal::TOO_SHORT)?;
        if self.landing.is_some() {
            return Err(Refusal::UNEXPECTED);
        }
        self.land(sh, env, place.opcode)?;
        let Some(landing) = self.landing.take() else { return Err(Refusal::UNEXPECTED) };
        self.send_msn = self.send_msn.wrapping_add(1);
        let mut completion = sh.recv_completion(landing.wr.wr_id);
        completion.opcode = WcOpcode::RecvRdmaWithImm;
        // Of the WRITE right before it: none other is its.
        completion.byte_len = std::mem::take(&mut self.write_len) as u32;
        completion.imm = Some(u64::from_be_bytes(bytes) as u32);
        completion.solicited = place.opcode.solicited();
        env.complete(sh.config.recv_cq, completion, completion.solicited);
        Ok(())
    }

    /// A segment of a WRITE. One of no bytes is never refused, whatever its STag (cases IW-03).
    pub(super) fn write<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        stag: RKey,
        to: u64,
        last: bool,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let len = payload.len() as u64;
        if len > 0 {
            if !sh.access.contains(Access::REMOTE_WRITE) {
                return Err(Refusal::write(crate::memory::AccessError::Permission));
            }
            to.checked_add(len).ok_or(Refusal::tagged(TaggedError::ToWrap))?;
            let at = sh.remote(stag, to, len, Access::REMOTE_WRITE);
            env.memory().write_remote(&at, payload).map_err(Refusal::write)?;
        }
        self.write_len = if self.write_open { self.write_len + len } else { len };
        self.write_open = !last;
        if last {
            env.count(Counter::RxWriteRequests, 1);
            env.count(Counter::RdmaRecvs, 1);
        }
        Ok(())
    }

    /// A READ request: checked in full, then queued.
    pub(super) fn read<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        place: &Place,
        read: ReadRequest,
    ) -> Result<(), Refusal> {
        self.check_depth(sh)?;
        if read.length > 0 {
            if !sh.access.contains(Access::REMOTE_READ) {
                return Err(Refusal::source(crate::memory::AccessError::Permission));
            }
            let len = u64::from(read.length);
            let wraps = read.source_to.checked_add(len).is_none() || read.sink_to.checked_add(len).is_none();
            if wraps {
                return Err(Refusal::to_wrap());
            }
            let at = sh.remote(read.source_stag, read.source_to, len, Access::REMOTE_READ);
            env.memory().check_remote(&at).map_err(Refusal::source)?;
        }
        self.answers.push_back(Answer::Read { request: read, place: *place });
        env.count(Counter::RxReadRequests, 1);
        env.count(Counter::RdmaRecvs, 1);
        Ok(())
    }

    /// The peer may have no more READs and atomics outstanding than was agreed: one more finds no buffer on queue 1.
    fn check_depth(&self, sh: &Shared) -> Result<(), Refusal> {
        if self.answers.len() >= sh.ird() {
            return Err(Refusal::untagged(UntaggedError::NoBuffer));
        }
        Ok(())
    }

    /// Ends the receive in use in error. False if there is none.
    pub(super) fn fail_landing<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        status: WcStatus,
        vendor_err: u32,
    ) -> bool {
        let Some(landing) = self.landing.take() else { return false };
        env.count(Counter::RespCqeError, 1);
        sh.complete_error(env, &landing.wr, status, vendor_err);
        true
    }

    /// Completes everything with "flushed": the receive in use, then the queue, in order. Answers are given up.
    pub(super) fn flush<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        let in_use = self.landing.take().map(|l| l.wr);
        for wr in in_use.into_iter().chain(std::mem::take(&mut self.rq)) {
            env.count(Counter::RespCqeFlushError, 1);
            sh.complete_error(env, &wr, WcStatus::WrFlushErr, 0);
        }
        *self = Responder::default();
    }
}

impl Refusal {
    fn to_wrap() -> Refusal {
        Refusal::source(crate::memory::AccessError::OutOfBounds).with(RdmapError::ToWrap)
    }
}
