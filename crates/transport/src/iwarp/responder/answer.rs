//! Answers to READs and atomics: executed in the order of arrival, sent as the stream has room.
//!
//! Read RFC 5040 §5.2 and RFC 7306 §5. A READ's bytes are read when they are sent, each segment checked again: its region may
//! have gone meanwhile. An atomic is done when it arrives; only its result waits.

use everywire_wire::ddp::{DdpHeader, DdpTarget};
use everywire_wire::rdmap::{AtomicRequest, AtomicResponse, RdmapError, RdmapOpcode, ReadRequest};

use super::{Place, Responder};
use crate::ib::env::{Counter, QpEnv};
use crate::iwarp::burst::StreamBurst;
use crate::iwarp::fault::Refusal;
use crate::iwarp::requester::{Step, tagged, untagged};
use crate::iwarp::shared::Shared;
use crate::iwarp::tx::{Source, Tx};
use crate::memory::{Access, AccessError, AtomicOp, Memory};

/// Bytes of a READ request's segment.
const READ_SEGMENT: usize = DdpHeader::UNTAGGED_LEN + ReadRequest::LEN;

/// What is to be sent.
#[derive(Debug)]
pub(super) enum Answer {
    /// With its place, by which the requester knows it if it can't be answered after all.
    Read {
        request: ReadRequest,
        place: Place,
    },
    Atomic(AtomicResponse),
}

impl Responder {
    /// RFC 7306 §5.1: does an atomic on 8 aligned bytes, whole or by its masks.
    pub(in crate::iwarp) fn atomic<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        request: &AtomicRequest,
    ) -> Result<(), Refusal> {
        self.check_depth(sh)?;
        let op = match request.operation {
            AtomicRequest::COMPARE_SWAP => AtomicOp::MaskedCompareSwap {
                compare: request.compare,
                compare_mask: request.compare_mask,
                swap: request.add_swap,
                swap_mask: request.add_swap_mask,
            },
            AtomicRequest::FETCH_ADD => {
                AtomicOp::MaskedFetchAdd { add: request.add_swap, boundary: request.add_swap_mask }
            }
            _ => return Err(Refusal::operation(RdmapError::Unspecified)),
        };
        if !request.to.is_multiple_of(8) {
            return Err(Refusal::operation(RdmapError::Unspecified));
        }
        if !sh.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Refusal::source(AccessError::Permission));
        }
        let at = sh.remote(request.stag, request.to, 8, Access::REMOTE_ATOMIC);
        let original = env.memory().atomic(&at, op).map_err(Refusal::source)?;
        self.answers.push_back(Answer::Atomic(AtomicResponse { request_id: request.request_id, original }));
        env.count(Counter::RxAtomicRequests, 1);
        Ok(())
    }

    /// Adds the next FPDU of an answer to `burst`.
    pub(in crate::iwarp) fn transmit<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        tx: &mut Tx,
        burst: &mut StreamBurst,
    ) -> Result<Step, Refusal> {
        let Some(answer) = self.answers.front() else { return Ok(Step::Nothing) };
        let (left, header) = match answer {
            Answer::Read { request: read, .. } => {
                let to = read.sink_to.wrapping_add(u64::from(self.answered));
                let header = tagged(RdmapOpcode::ReadResponse, false, read.sink_stag, to);
                ((read.length - self.answered) as usize, header)
            }
            Answer::Atomic(_) => {
                (AtomicResponse::LEN, untagged(RdmapOpcode::AtomicResponse, false, self.answer_msn, 0))
            }
        };
        let len = tx.max_payload(header.header_len()).min(left);
        if !tx.admits(burst, header.header_len() + len) {
            return Ok(Step::Full);
        }
        let done = len == left;
        let mut head = [0; DdpHeader::UNTAGGED_LEN];
        DdpHeader { last: done, ..header }.emit(&mut head);
        let mut response = [0; AtomicResponse::LEN];
        let source = match answer {
            Answer::Atomic(atomic) => {
                atomic.emit(&mut response);
                Source::Bytes(&response)
            }
            Answer::Read { .. } if len == 0 => Source::Bytes(&[]),
            Answer::Read { request: read, .. } => {
                let from = read.source_to.wrapping_add(u64::from(self.answered));
                Source::Remote(sh.remote(read.source_stag, from, len as u64, Access::REMOTE_READ))
            }
        };
        tx.push(burst, env.memory(), &head[..header.header_len()], &source, len).map_err(Refusal::source)?;
        self.sent(len, done);
        Ok(Step::Sent { done })
    }

    /// The segment that asked for the READ in front.
    pub(in crate::iwarp) fn unanswerable(&self) -> Option<[u8; READ_SEGMENT]> {
        let Answer::Read { request, place } = self.answers.front()? else { return None };
        let mut segment = [0; READ_SEGMENT];
        let mut header = untagged(RdmapOpcode::ReadRequest, place.last, place.msn, place.mo);
        if let DdpTarget::Untagged { ulp, .. } = &mut header.target {
            *ulp = place.ulp;
        }
        header.emit(&mut segment);
        request.emit(&mut segment[DdpHeader::UNTAGGED_LEN..]);
        Some(segment)
    }

    fn sent(&mut self, len: usize, done: bool) {
        if !done {
            self.answered += len as u32;
            return;
        }
        self.answered = 0;
        if let Some(Answer::Atomic(_)) = self.answers.pop_front() {
            self.answer_msn = self.answer_msn.wrapping_add(1);
        }
    }

    /// Whether an answer was begun and not finished.
    pub(in crate::iwarp) fn is_amid(&self) -> bool {
        self.answered > 0
    }
}
