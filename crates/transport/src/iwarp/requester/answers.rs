//! What comes back to the requester: READ responses and atomic responses.
//!
//! Read RFC 5040 §5.2 and RFC 7306 §5.2. Answers come in the order of their requests. Each is held against the oldest request
//! without an answer before a byte lands; one that does not fit is the peer's error and ends the connection.

use everywire_wire::RKey;
use everywire_wire::rdmap::{AtomicResponse, TaggedError};

use super::Requester;
use super::emit::sink_of;
use crate::ib::env::QpEnv;
use crate::ib::wr::{SendOp, WcStatus};
use crate::iwarp::fault::Refusal;
use crate::iwarp::shared::Shared;
use crate::memory::Memory;

/// A segment of a READ response.
pub(in crate::iwarp) struct ReadResponse<'a> {
    pub(in crate::iwarp) stag: RKey,
    pub(in crate::iwarp) to: u64,
    pub(in crate::iwarp) last: bool,
    pub(in crate::iwarp) payload: &'a [u8],
}

impl Requester {
    pub(in crate::iwarp) fn read_response<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        response: &ReadResponse<'_>,
        written: u64,
    ) -> Result<(), Refusal> {
        if self.rtr_answer && response.payload.is_empty() && response.last {
            self.rtr_answer = false;
            return Ok(());
        }
        let index = self.oldest_read().ok_or(Refusal::UNEXPECTED)?;
        let wqe = &self.sq[index];
        if !matches!(wqe.wr.op, SendOp::Read { .. }) {
            return Err(Refusal::UNEXPECTED);
        }
        let (stag, to) = sink_of(&wqe.wr);
        let landed = self.landed as usize + response.payload.len();
        if !response.payload.is_empty() {
            if response.stag != stag {
                return Err(Refusal::tagged(TaggedError::InvalidStag));
            }
            let in_order = response.to == to.wrapping_add(u64::from(self.landed));
            if !in_order || landed > wqe.length as usize {
                return Err(Refusal::tagged(TaggedError::BaseBounds));
            }
            let offset = u64::from(self.landed);
            if env.memory().scatter(sh.pd(), &wqe.wr.sges, offset, response.payload).is_err() {
                self.fail_answer(sh, env, index, written);
                return Ok(());
            }
            self.landed = landed as u32;
        }
        if !response.last {
            return Ok(());
        }
        if landed != self.sq[index].length as usize {
            return Err(Refusal::TOO_SHORT);
        }
        self.answered(sh, env, index, written);
        Ok(())
    }

    pub(in crate::iwarp) fn atomic_response<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        response: &AtomicResponse,
        written: u64,
    ) -> Result<(), Refusal> {
        let index = self.oldest_read().ok_or(Refusal::UNEXPECTED)?;
        let wqe = &self.sq[index];
        let atomic = matches!(wqe.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if !atomic || response.request_id != wqe.msn {
            return Err(Refusal::UNEXPECTED);
        }
        let value = response.original.to_ne_bytes();
        if env.memory().scatter(sh.pd(), &wqe.wr.sges, 0, &value).is_err() {
            self.fail_answer(sh, env, index, written);
        } else {
            self.answered(sh, env, index, written);
        }
        Ok(())
    }

    fn oldest_read(&self) -> Option<usize> {
        self.reads.front().map(|seq| (seq - self.first) as usize)
    }

    fn answered<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, index: usize, written: u64) {
        self.sq[index].answered = true;
        self.reads.pop_front();
        self.landed = 0;
        self.retire(sh, env, written);
    }

    /// The sink was fine when the request went and is not any more.
    fn fail_answer<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, index: usize, written: u64) {
        self.sq[index].failed = Some(WcStatus::LocProtErr);
        self.stopped = true;
        self.retire(sh, env, written);
    }
}
