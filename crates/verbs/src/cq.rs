//! Completion queues: exact depth, and notification that never misses.
//!
//! Read IBTA vol. 1 §11.4.2 (Poll, Request Completion Notification) and §10.8 first. A queue holds exactly as many entries
//! as it was made for; one more ends it (CQ_ERR) and takes the attached queue pairs to ERR, which `state` does. Arming
//! works as with verbs: an event is raised by the first completion added *after* the call. [`Cq::wait`] needs no arming:
//! looking and going to sleep are one step under the device's lock.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use everywire_transport::ib::{Completion, CqId, WcStatus};

use crate::device::Device;
use crate::error::{ErrorKind, VerbsError};
use crate::waker::{WakerKey, WakerSet, Wakers};

/// Which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arm {
    /// Receives whose sender asked for it, and every completion in error.
    Solicited,
    /// The next completion.
    Any,
}

/// The queue has overflowed: completions were lost, and it is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completion queue {} of {depth} entries has overflowed", id.0)]
pub struct CqError {
    /// Which queue.
    pub id: CqId,
    /// How many entries it has.
    pub depth: u32,
}

/// Set in [`CqShared::ready`] once the queue has overflowed.
const FAILED: u32 = 1 << 31;

/// What can be seen without the lock.
#[derive(Default)]
pub(crate) struct CqShared {
    /// Entries in the queue, and [`FAILED`].
    ready: AtomicU32,
}

/// A queue, inside the device.
pub(crate) struct CqState {
    id: CqId,
    queue: VecDeque<Completion>,
    depth: u32,
    failed: bool,
    armed: Option<Arm>,
    /// Events raised and not yet fetched.
    events: u32,
    /// Futures that wait for an event.
    event_wakers: WakerSet,
    /// Futures that wait for entries.
    entry_wakers: WakerSet,
    shared: Arc<CqShared>,
}

impl CqState {
    pub(crate) fn new(depth: u32) -> CqState {
        CqState {
            id: CqId(0),
            queue: VecDeque::new(),
            depth,
            failed: false,
            armed: None,
            events: 0,
            event_wakers: WakerSet::default(),
            entry_wakers: WakerSet::default(),
            shared: Arc::default(),
        }
    }

    /// Adds an entry; false if it was lost. `first` tells whether this very call made the queue fail.
    #[inline]
    pub(crate) fn push(&mut self, entry: Completion, solicited: bool, wakes: &mut Wakers) -> Pushed {
        if self.failed {
            return Pushed::Lost;
        }
        if self.queue.len() as u32 >= self.depth {
            self.failed = true;
            self.publish();
            self.entry_wakers.drain_into(wakes);
            self.raise(wakes); // whoever sleeps must learn that nothing comes any more
            return Pushed::Overflow;
        }
        let wanted = if solicited || entry.status != WcStatus::Success { Arm::Solicited } else { Arm::Any };
        self.queue.push_back(entry);
        self.publish();
        self.entry_wakers.drain_into(wakes);
        if self.armed.is_some_and(|armed| armed >= wanted) {
            self.raise(wakes);
        }
        Pushed::Added
    }

    fn raise(&mut self, wakes: &mut Wakers) {
        self.armed = None;
        self.events = self.events.saturating_add(1);
        self.event_wakers.drain_into(wakes);
    }

    fn publish(&self) {
        let failed = if self.failed { FAILED } else { 0 };
        self.shared.ready.store(self.queue.len() as u32 | failed, Ordering::Release);
    }

    fn take(&mut self, out: &mut Vec<Completion>, max: usize) -> Result<usize, CqError> {
        let count = max.min(self.queue.len());
        out.extend(self.queue.drain(..count));
        self.publish();
        if count == 0 && self.failed && max > 0 {
            return Err(CqError { id: self.id, depth: self.depth });
        }
        Ok(count)
    }

    fn take_event(&mut self) -> bool {
        let raised = self.events > 0;
        self.events -= u32::from(raised);
        raised
    }
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// In the queue.
    Added,
    /// Lost, and with it the queue.
    Overflow,
    /// Lost as others before it.
    Lost,
}

/// A completion queue. Cheap to clone; it lives as long as any handle on it or on a queue pair that uses it.
#[derive(Clone)]
pub struct Cq(Arc<CqInner>);

struct CqInner {
    device: Device,
    id: CqId,
    shared: Arc<CqShared>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let mut state = self.device.lock();
        let removed = state.core.cqs.remove(self.id.0);
        state.core.events.forget(|event| *event == crate::AsyncEvent::CqError(self.id));
        drop(state);
        drop(removed); // its wakers, outside the lock
    }
}

impl Device {
    /// Creates a completion queue of exactly `depth` entries.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, VerbsError> {
        let limits = self.limits();
        check_depth(self, depth)?;
        let queue = CqState::new(depth);
        let shared = queue.shared.clone();
        let mut state = self.lock();
        let id = state.core.cqs.insert(queue);
        let id = id.ok_or_else(|| VerbsError::full(self.name(), "max_cq", u64::from(limits.max_cq)))?;
        if let Some(queue) = state.core.cqs.get_mut(id) {
            queue.id = CqId(id);
        }
        drop(state);
        Ok(Cq(Arc::new(CqInner { device: self.clone(), id: CqId(id), shared })))
    }
}

fn check_depth(device: &Device, depth: u32) -> Result<(), VerbsError> {
    let max = device.limits().max_cqe;
    match depth {
        0 => Err(VerbsError::new(ErrorKind::InvalidArgument, device.name(), "a CQ has at least one entry")),
        depth if depth > max => Err(VerbsError::limit(device.name(), "max_cqe", depth.into(), max.into())),
        _ => Ok(()),
    }
}

impl Cq {
    /// Its number on the device.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How many entries it holds at most.
    pub fn depth(&self) -> u32 {
        self.with(|queue| queue.depth)
    }

    /// Moves up to `max` completions to the end of `out`, oldest first, and says how many. On an empty queue it runs the
    /// driver once, if nobody else does. Fails once the queue has overflowed and what it held has been taken.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Completion>, max: usize) -> Result<usize, CqError> {
        if self.0.shared.ready.load(Ordering::Acquire) == 0
            && (max == 0 || !self.0.device.drive_inline() || self.0.shared.ready.load(Ordering::Acquire) == 0)
        {
            return Ok(0);
        }
        self.with(|queue| queue.take(out, max))
    }

    /// Asks for one event (see [`Cq::next_event`]) at the next completion of this kind that is added after this call. A
    /// call that follows before the event was raised adds to it: `Any` wins.
    pub fn arm(&self, arm: Arm) {
        self.with(|queue| queue.armed = queue.armed.max(Some(arm)));
    }

    /// Takes one event if one was raised.
    pub fn try_event(&self) -> bool {
        self.with(CqState::take_event)
    }

    /// Waits for an event and takes it.
    pub fn next_event(&self) -> NextEvent {
        NextEvent { cq: self.clone(), key: None }
    }

    /// Waits until there are completions, and moves up to `max` of them to `out`. Needs no arming and misses nothing.
    pub fn wait<'a>(&'a self, out: &'a mut Vec<Completion>, max: usize) -> Wait<'a> {
        Wait { cq: self, out, max: max.max(1), key: None }
    }

    /// Changes the depth to exactly `depth`; refused if more completions than that are in the queue.
    pub fn resize(&self, depth: u32) -> Result<(), VerbsError> {
        let device = &self.0.device;
        check_depth(device, depth)?;
        let held = self.with(|queue| {
            let held = queue.queue.len() as u32;
            if held <= depth {
                queue.depth = depth;
            }
            held
        });
        if held <= depth {
            return Ok(());
        }
        let what = format!("cannot resize to {depth} entries, {held} completions are in the queue");
        Err(VerbsError::new(ErrorKind::InvalidArgument, self.to_string(), what))
    }

    fn with<T>(&self, run: impl FnOnce(&mut CqState) -> T) -> T {
        let mut state = self.0.device.lock();
        match state.core.cqs.get_mut(self.0.id.0) {
            Some(queue) => run(queue),
            // The table holds the queue for as long as a handle lives; this keeps a mistake there from being a panic.
            None => run(&mut CqState::new(0)),
        }
    }
}

impl fmt::Display for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CQ {}", self.0.device.name(), self.0.id.0)
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({self})")
    }
}

/// The future of [`Cq::next_event`]. Dropped before it is ready, it has taken no event.
pub struct NextEvent {
    cq: Cq,
    key: Option<WakerKey>,
}

impl Future for NextEvent {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.cq.0.device.lock();
        let Some(queue) = state.core.cqs.get_mut(this.cq.0.id.0) else { return Poll::Pending };
        if queue.take_event() {
            return Poll::Ready(());
        }
        let replaced = queue.event_wakers.register(&mut this.key, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for NextEvent {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut state = self.cq.0.device.lock();
        let removed = state.core.cqs.get_mut(self.cq.0.id.0).and_then(|queue| queue.event_wakers.remove(key));
        state.discard(removed);
    }
}

/// The future of [`Cq::wait`]. Dropped before it is ready, it has taken nothing.
pub struct Wait<'a> {
    cq: &'a Cq,
    out: &'a mut Vec<Completion>,
    max: usize,
    key: Option<WakerKey>,
}

impl Future for Wait<'_> {
    type Output = Result<usize, CqError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.cq.0.device.lock();
        let Some(queue) = state.core.cqs.get_mut(this.cq.0.id.0) else { return Poll::Pending };
        match queue.take(this.out, this.max) {
            Ok(0) => {
                let replaced = queue.entry_wakers.register(&mut this.key, cx.waker());
                state.discard(replaced);
                Poll::Pending
            }
            done => Poll::Ready(done),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut state = self.cq.0.device.lock();
        let removed = state.core.cqs.get_mut(self.cq.0.id.0).and_then(|queue| queue.entry_wakers.remove(key));
        state.discard(removed);
    }
}
