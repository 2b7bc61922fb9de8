//! Answers to READs and atomics: executed in the order of arrival, sent as the stream has room.
//!
//! Read RFC 5040 §5.2 and RFC 7306 §5. A READ's bytes are read when they are sent, each segment checked again: its region may
//! have gone meanwhile. An atomic is done when it arrives; only its result waits.

use everywire_wire::ddp::DdpHeader;
use everywire_wire::rdmap::{AtomicRequest, AtomicResponse, RdmapError, RdmapOpcode, ReadRequest};

use super::Responder;
use crate::ib::env::{Counter, QpEnv};
use crate::iwarp::burst::StreamBurst;
use crate::iwarp::fault::Refusal;
use crate::iwarp::requester::{Step, tagged, untagged};
use crate::iwarp::shared::Shared;
use crate::iwarp::tx::{Source, Tx};
use crate::memory::{Access, AccessError, AtomicOp, Memory};

/// The mask of an add over all 64 bits: no carry stops, or only the one that leaves the word.
const WHOLE_ADD: [u64; 2] = [0, 1 << 63];

/// What is to be sent.
#[derive(Debug)]
pub(super) enum Answer {
    Read(ReadRequest),
    Atomic(AtomicResponse),
}

impl Responder {
    /// RFC 7306 §5.1: does an atomic, on 8 aligned bytes with the whole word.
    pub(in crate::iwarp) fn atomic<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        request: &AtomicRequest,
    ) -> Result<(), Refusal> {
        self.check_depth(sh)?;
        let whole = request.add_swap_mask == u64::MAX && request.compare_mask == u64::MAX;
        let op = match request.operation {
            AtomicRequest::COMPARE_SWAP if whole => {
                AtomicOp::CompareSwap { compare: request.compare, swap: request.add_swap }
            }
            AtomicRequest::FETCH_ADD if WHOLE_ADD.contains(&request.add_swap_mask) => {
                AtomicOp::FetchAdd { add: request.add_swap }
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
            Answer::Read(read) => {
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
            Answer::Read(_) if len == 0 => Source::Bytes(&[]),
            Answer::Read(read) => {
                let from = read.source_to.wrapping_add(u64::from(self.answered));
                Source::Remote(sh.remote(read.source_stag, from, len as u64, Access::REMOTE_READ))
            }
        };
        tx.push(burst, env.memory(), &head[..header.header_len()], &source, len).map_err(Refusal::source)?;
        self.sent(len, done);
        Ok(Step::Sent { done })
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
