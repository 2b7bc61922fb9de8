//! Shared receive queues: one pool of receives for many queue pairs.
//!
//! Read IBTA vol. 1 §10.2.9 first. Receives are taken in the order they were posted, by whichever queue pair needs one. An
//! armed limit raises SRQ_LIMIT_REACHED once fewer receives than that are left, and is disarmed by it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use everywire_transport::ib::{PostError, RecvWr, SrqId};

use crate::device::Device;
use crate::error::{ErrorKind, PostListError, VerbsError};
use crate::events::AsyncEvent;
use crate::pd::Pd;

/// A queue, inside the device.
pub(crate) struct SrqState {
    queue: VecDeque<RecvWr>,
    max_wr: u32,
    max_sge: u32,
    /// 0: not armed.
    limit: u32,
}

impl SrqState {
    /// The next receive, and whether the limit was passed by taking it.
    pub(crate) fn take(&mut self) -> (Option<RecvWr>, bool) {
        let taken = self.queue.pop_front();
        // o10-2: the event comes when the number of receives falls below the limit, and only once.
        let reached = self.limit > 0 && (self.queue.len() as u32) < self.limit;
        if reached {
            self.limit = 0;
        }
        (taken, reached)
    }

    fn post(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.queue.len() as u32 >= self.max_wr {
            return Err(PostError::QueueFull { what: "shared receive", limit: self.max_wr });
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges { count: wr.sges.len(), limit: self.max_sge });
        }
        self.queue.push_back(wr);
        Ok(())
    }
}

/// What a shared receive queue is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives outstanding.
    pub max_wr: u32,
    /// Segments of a receive.
    pub max_sge: u32,
}

impl Default for SrqInit {
    fn default() -> SrqInit {
        SrqInit { max_wr: 256, max_sge: 1 }
    }
}

/// A shared receive queue. Cheap to clone; it lives as long as any handle on it or on a queue pair that uses it.
#[derive(Clone)]
pub struct Srq(Arc<SrqInner>);

struct SrqInner {
    pd: Pd,
    id: SrqId,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let mut state = self.pd.device().lock();
        let removed = state.core.srqs.remove(self.id.0);
        state.core.events.forget(|event| *event == AsyncEvent::SrqLimitReached(self.id));
        drop(state);
        drop(removed);
    }
}

impl Pd {
    /// Creates a shared receive queue.
    pub fn create_srq(&self, init: SrqInit) -> Result<Srq, VerbsError> {
        let device = self.device();
        let limits = device.limits();
        let who = device.name();
        if init.max_wr == 0 || init.max_wr > limits.max_srq_wr {
            return Err(VerbsError::limit(who, "max_srq_wr", init.max_wr.into(), limits.max_srq_wr.into()));
        }
        if init.max_sge > limits.max_sge {
            return Err(VerbsError::limit(who, "max_sge", init.max_sge.into(), limits.max_sge.into()));
        }
        let SrqInit { max_wr, max_sge } = init;
        let queue = SrqState { queue: VecDeque::new(), max_wr, max_sge, limit: 0 };
        let id = device.lock().core.srqs.insert(queue);
        let id = id.ok_or_else(|| VerbsError::full(who, "max_srq", limits.max_srq.into()))?;
        Ok(Srq(Arc::new(SrqInner { pd: self.clone(), id: SrqId(id) })))
    }
}

impl Srq {
    /// Its number on the device.
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        self.0.pd.device()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Posts a receive.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        let mut state = self.device().lock();
        match state.core.srqs.get_mut(self.0.id.0) {
            Some(queue) => queue.post(wr),
            None => Err(PostError::QueueFull { what: "shared receive", limit: 0 }),
        }
    }

    /// Posts receives in order, up to the first that is refused.
    pub fn post_recv_list(&self, list: impl IntoIterator<Item = RecvWr>) -> Result<(), PostListError> {
        let mut state = self.device().lock();
        let Some(queue) = state.core.srqs.get_mut(self.0.id.0) else { return Ok(()) };
        for (index, wr) in list.into_iter().enumerate() {
            queue.post(wr).map_err(|error| PostListError { index, error })?;
        }
        Ok(())
    }

    /// Arms the limit: one SRQ_LIMIT_REACHED once fewer than `limit` receives are left. 0 disarms. If fewer are left
    /// already, the event comes when the next one is taken.
    pub fn arm_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let mut state = self.device().lock();
        let Some(queue) = state.core.srqs.get_mut(self.0.id.0) else { return Ok(()) };
        if limit > queue.max_wr {
            let what = format!("limit {limit}, but the queue holds at most {}", queue.max_wr);
            return Err(VerbsError::new(ErrorKind::InvalidArgument, self.to_string(), what));
        }
        queue.limit = limit;
        Ok(())
    }

    /// Receives in the queue, and the armed limit.
    pub fn query(&self) -> (usize, u32) {
        let state = self.device().lock();
        state.core.srqs.get(self.0.id.0).map_or((0, 0), |queue| (queue.queue.len(), queue.limit))
    }
}

impl fmt::Display for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SRQ {}", self.device().name(), self.0.id.0)
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({self})")
    }
}
