//! A task: from its place in the task set, over its data, to exactly one outcome. SAM-5 §5.4, §5.5 and §8.
//!
//! The transport brings [`Task::data_out`] bytes into memory that also has room for [`Task::data_in`], and runs the task.
//! Reads and writes of a backend that answers at once end at once, without an allocation of their own. A task that is
//! dropped before it ran leaves the set; one that is dropped while it runs is left to its logical unit, because what the
//! backend was given cannot be called back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use everywire_block::{IoBuf, IoFuture};

use super::NexusInner;
use super::path::Path;
use super::running::Running;
use crate::lock;
use crate::lun::{Done, LogicalUnit, Plan, Run};
use crate::sense::{Failure, SenseData};
use crate::status::Status;
use crate::task_set::{Aborted, Attribute, Range, Start};

/// How far a command's length was from what the initiator expected. SAM-5 §5.4.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// Not at all.
    #[default]
    None,
    /// So many bytes fewer.
    Under(u32),
    /// So many bytes more, which were not moved.
    Over(u32),
}

impl Residual {
    fn of(length: u64, expected: u32) -> Self {
        let expected_bytes = u64::from(expected);
        if length > expected_bytes {
            Self::Over(u32::try_from(length - expected_bytes).unwrap_or(u32::MAX))
        } else if length < expected_bytes {
            Self::Under((expected_bytes - length) as u32)
        } else {
            Self::None
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Status.
    pub status: Status,
    /// Sense data, with CHECK CONDITION.
    pub sense: Option<SenseData>,
    /// Bytes of the memory that go to the initiator, from its start.
    pub data_in: u32,
    /// Lengths that differ.
    pub residual: Residual,
}

/// What the initiator is ready to send and to take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) out: u32,
    pub(super) into: u32,
}

impl Expected {
    /// Nothing was moved.
    pub(super) fn failed(self, failure: Failure, descriptor: bool) -> Outcome {
        let (status, sense) = match failure {
            Failure::Check(sense) => (Status::CHECK_CONDITION, Some(sense.emit(descriptor))),
            Failure::Status(status) => (status, None),
        };
        Outcome { status, sense, data_in: 0, residual: Residual::of(0, self.out.max(self.into)) }
    }

    fn done(self, wanted_out: u64, done: Done) -> Outcome {
        // No command here moves data both ways; which residual counts is the one of the direction it has.
        let into = self.into > 0 || self.out == 0 && done.data > 0;
        let residual =
            if into { Residual::of(done.data, self.into) } else { Residual::of(wanted_out, self.out) };
        Outcome {
            status: done.status,
            sense: None,
            data_in: done.data.min(u64::from(self.into)) as u32,
            residual,
        }
    }
}

/// Parameter data that no logical unit is needed for.
pub(super) struct Answer {
    pub(super) data: Vec<u8>,
    pub(super) alloc: u32,
}

/// A task's place in the task set; left when dropped.
pub(crate) struct Slot {
    pub(crate) unit: Arc<LogicalUnit>,
    pub(crate) id: u64,
    left: bool,
}

impl Slot {
    pub(crate) fn new(
        unit: &Arc<LogicalUnit>,
        nexus: u64,
        tag: u64,
        attribute: Attribute,
        range: Option<Range>,
    ) -> Option<Self> {
        let id = lock(&unit.tasks).insert(nexus, tag, attribute, range)?;
        Some(Self { unit: unit.clone(), id, left: false })
    }

    pub(crate) fn start(&self, waker: Option<&Waker>) -> Start {
        lock(&self.unit.tasks).start(self.id, waker)
    }

    /// Waits until the task may run; how it was aborted if it was before that.
    pub(crate) async fn started(&self) -> Option<Aborted> {
        std::future::poll_fn(|cx| {
            self.unit.poll_left_behind(cx);
            match self.start(Some(cx.waker())) {
                Start::Wait => Poll::Pending,
                Start::Go => Poll::Ready(None),
                Start::Aborted(aborted) => Poll::Ready(Some(aborted)),
            }
        })
        .await
    }

    pub(crate) fn leave(mut self) -> Option<Aborted> {
        self.left = true;
        lock(&self.unit.tasks).remove(self.id)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.left {
            lock(&self.unit.tasks).remove(self.id);
        }
    }
}

enum Work {
    Answer(Answer),
    Unit(Box<UnitWork>),
}

struct UnitWork {
    slot: Slot,
    nexus: Arc<NexusInner>,
    path: Arc<Path>,
    plan: Plan,
}

/// A command in the task set.
pub struct Task {
    work: Work,
    expected: Expected,
}

impl Task {
    pub(super) fn new(
        slot: Slot,
        nexus: Arc<NexusInner>,
        path: Arc<Path>,
        plan: Plan,
        expected: Expected,
    ) -> Self {
        Self { work: Work::Unit(Box::new(UnitWork { slot, nexus, path, plan })), expected }
    }

    pub(super) fn answering(answer: Answer, expected: Expected) -> Self {
        Self { work: Work::Answer(answer), expected }
    }

    /// Bytes to have in memory before it runs.
    pub fn data_out(&self) -> u32 {
        match &self.work {
            Work::Answer(_) => 0,
            Work::Unit(work) => work.plan.out.min(u64::from(self.expected.out)) as u32,
        }
    }

    /// Most bytes that it puts into memory.
    pub fn data_in(&self) -> u32 {
        match &self.work {
            Work::Answer(answer) => (answer.data.len() as u32).min(answer.alloc).min(self.expected.into),
            Work::Unit(work) => work.plan.into.min(u64::from(self.expected.into)) as u32,
        }
    }

    /// Runs it. `memory` holds [`Task::data_out`] bytes and has room for [`Task::data_in`]. `None`: it was aborted, and no
    /// status is due.
    pub fn execute(self, memory: IoBuf) -> IoFuture<Option<Outcome>> {
        let (out, into, expected) = (self.data_out(), self.data_in(), self.expected);
        let work = match self.work {
            Work::Answer(Answer { data, alloc }) => {
                memory.store(0, &data[..into as usize]);
                let done = Done::data((data.len() as u64).min(alloc.into()));
                return IoFuture::ready(Some(expected.done(0, done)));
            }
            Work::Unit(work) => work,
        };
        let execution = Execution { work, expected, memory, out, into };
        match execution.work.slot.start(None) {
            Start::Go => execution.go(),
            Start::Aborted(aborted) => IoFuture::ready(execution.aborted(aborted)),
            Start::Wait => {
                let place = execution.place();
                IoFuture::pending(Running::new(Box::pin(execution.wait_and_go()), place))
            }
        }
    }
}

/// A task that has its data.
struct Execution {
    work: Box<UnitWork>,
    expected: Expected,
    memory: IoBuf,
    out: u32,
    into: u32,
}

impl Execution {
    fn aborted(&self, aborted: Aborted) -> Option<Outcome> {
        match aborted {
            Aborted::Silent => None,
            Aborted::WithStatus => Some(self.expected.failed(Failure::Status(Status::TASK_ABORTED), false)),
        }
    }

    fn place(&self) -> (Arc<LogicalUnit>, u64) {
        (self.work.slot.unit.clone(), self.work.slot.id)
    }

    /// Backends in memory end here, without waiting.
    fn go(self) -> IoFuture<Option<Outcome>> {
        let UnitWork { slot, plan, .. } = &*self.work;
        let (out, into) = (u64::from(self.out), u64::from(self.into));
        if let Some((done, io)) = slot.unit.at_once(plan, &self.memory, out, into) {
            return match io.into_ready() {
                Ok(result) => {
                    let result = result.map_err(|error| slot.unit.failed(&error)).map(|()| done);
                    IoFuture::ready(self.end(result))
                }
                Err(io) => {
                    let place = self.place();
                    let future = async move {
                        let result = io.await;
                        let result =
                            result.map_err(|error| self.work.slot.unit.failed(&error)).map(|()| done);
                        self.end(result)
                    };
                    IoFuture::pending(Running::new(Box::pin(future), place))
                }
            };
        }
        let place = self.place();
        let mut future: Boxed = Box::pin(self.run());
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => IoFuture::ready(outcome),
            Poll::Pending => IoFuture::pending(Running::new(future, place)),
        }
    }

    async fn wait_and_go(self) -> Option<Outcome> {
        match self.work.slot.started().await {
            Some(aborted) => self.aborted(aborted),
            None => self.run().await,
        }
    }

    async fn run(self) -> Option<Outcome> {
        let UnitWork { slot, nexus, path, plan } = &*self.work;
        let run = Run {
            unit: &slot.unit,
            task: slot.id,
            nexus,
            path,
            plan,
            memory: &self.memory,
            out: self.out.into(),
            into: self.into.into(),
        };
        let result = run.run().await;
        self.end(result)
    }

    fn end(self, result: Result<Done, Failure>) -> Option<Outcome> {
        let descriptor = self.work.slot.unit.descriptor_sense();
        let outcome = match result {
            Ok(done) => self.expected.done(self.work.plan.out, done),
            Err(failure) => {
                tracing::debug!(
                    "{}: {:?}: {failure:?}",
                    self.work.path.name.initiator,
                    self.work.plan.command
                );
                self.expected.failed(failure, descriptor)
            }
        };
        let Self { work, expected, .. } = self;
        match work.slot.leave() {
            None => Some(outcome),
            Some(Aborted::Silent) => None,
            Some(Aborted::WithStatus) => Some(expected.failed(Failure::Status(Status::TASK_ABORTED), false)),
        }
    }
}

type Boxed = Pin<Box<dyn Future<Output = Option<Outcome>> + Send>>;
