//! The one runtime handle of async protocol code: time, sleep, spawn and entropy, nothing else.
//!
//! Read DESIGN §3 (run to completion) first. Two worlds implement [`Runtime`]: real sockets on tokio's current-thread
//! runtime, and the simulator's executor in virtual time. Protocol code is single-threaded, so futures need not be `Send`.
//! Everything here is deterministic: branches are polled in the order written, waiters are served first come, first
//! served, so that a seed replays. This module holds no executor, no clock and no thread.

mod channel;
mod sync;
#[cfg(test)]
pub(crate) mod tests;

pub use channel::{Closed, Receiver, Sender, TrySendError, channel};
pub use sync::{Acquire, Notified, Notify, Permit, Semaphore};

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A boxed future of one thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// What a world gives to protocol code.
pub trait Runtime {
    /// The current time; in the simulator, virtual.
    fn now(&self) -> Instant;
    /// A future that is ready once `now()` has reached `at`.
    fn sleep_until(&self, at: Instant) -> LocalFuture<()>;
    /// Runs `task` on this thread until it ends or the runtime does.
    fn spawn(&self, task: LocalFuture<()>);
    /// 64 bits of entropy; in the simulator, from the seed.
    fn entropy(&self) -> u64;
}

/// A cheap, cloneable handle on a [`Runtime`].
#[derive(Clone)]
pub struct Rt(Rc<dyn Runtime>);

impl std::fmt::Debug for Rt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rt")
    }
}

/// The time given to [`Rt::timeout`] passed before the future was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

impl Rt {
    /// Wraps a runtime.
    pub fn new(runtime: Rc<dyn Runtime>) -> Rt {
        Rt(runtime)
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Sleeps for `duration`.
    pub fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        self.0.sleep_until(self.0.now() + duration)
    }

    /// Sleeps until `at`.
    pub fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        self.0.sleep_until(at)
    }

    /// 64 bits of entropy.
    pub fn entropy(&self) -> u64 {
        self.0.entropy()
    }

    /// Runs `future` as a task. Dropping the handle lets the task run on.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let shared = Rc::new(RefCell::new(Join { state: JoinState::Running, joiner: None, task: None }));
        let task = Task { future: Some(Box::pin(future)), shared: shared.clone() };
        self.0.spawn(Box::pin(task));
        JoinHandle { shared }
    }

    /// Runs `future` for at most `duration`. On the deadline itself the future, polled first, wins.
    pub async fn timeout<T>(
        &self,
        duration: Duration,
        future: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        match select(future, self.sleep(duration)).await {
            Either::First(value) => Ok(value),
            Either::Second(()) => Err(Elapsed),
        }
    }
}

enum JoinState<T> {
    Running,
    Aborting,
    Done(T),
    Cancelled,
}

struct Join<T> {
    state: JoinState<T>,
    joiner: Option<Waker>,
    task: Option<Waker>,
}

/// Waits for a task, or ends it. A task whose runtime was dropped counts as cancelled.
pub struct JoinHandle<T> {
    shared: Rc<RefCell<Join<T>>>,
}

/// The task was aborted, or its runtime was dropped, before it returned a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task was cancelled")]
pub struct Cancelled;

impl<T> JoinHandle<T> {
    /// Drops the task's future at its next turn; a task that has already returned is left alone.
    pub fn abort(&self) {
        let waker = {
            let mut join = self.shared.borrow_mut();
            if !matches!(join.state, JoinState::Running) {
                return;
            }
            join.state = JoinState::Aborting;
            join.task.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the task has ended, by itself or by [`abort`](JoinHandle::abort).
    pub fn is_finished(&self) -> bool {
        matches!(self.shared.borrow().state, JoinState::Done(_) | JoinState::Cancelled)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut join = self.shared.borrow_mut();
        match join.state {
            JoinState::Running | JoinState::Aborting => {
                join.joiner = Some(cx.waker().clone());
                Poll::Pending
            }
            JoinState::Cancelled => Poll::Ready(Err(Cancelled)),
            JoinState::Done(_) => match std::mem::replace(&mut join.state, JoinState::Cancelled) {
                JoinState::Done(value) => Poll::Ready(Ok(value)),
                _ => Poll::Ready(Err(Cancelled)),
            },
        }
    }
}

/// The spawned side of a [`JoinHandle`].
struct Task<T> {
    future: Option<LocalFuture<T>>,
    shared: Rc<RefCell<Join<T>>>,
}

impl<T> Task<T> {
    fn finish(&mut self, state: JoinState<T>) {
        self.future = None;
        let joiner = {
            let mut join = self.shared.borrow_mut();
            join.state = state;
            join.task = None;
            join.joiner.take()
        };
        if let Some(waker) = joiner {
            waker.wake();
        }
    }
}

impl<T> Future for Task<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if matches!(this.shared.borrow().state, JoinState::Aborting) {
            this.finish(JoinState::Cancelled);
            return Poll::Ready(());
        }
        let Some(future) = this.future.as_mut() else { return Poll::Ready(()) };
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => {
                this.finish(JoinState::Done(value));
                Poll::Ready(())
            }
            Poll::Pending if matches!(this.shared.borrow().state, JoinState::Aborting) => {
                // The task aborted itself while it ran: nobody else will wake it.
                this.finish(JoinState::Cancelled);
                Poll::Ready(())
            }
            Poll::Pending => {
                this.shared.borrow_mut().task = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.finish(JoinState::Cancelled);
        }
    }
}

/// Which of two futures was ready first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first one.
    First(A),
    /// The second one; the first was not ready at that moment.
    Second(B),
}

/// Waits for either future and drops the other. The first is always polled first, so runs replay.
pub async fn select<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> Either<A, B> {
    let mut first = std::pin::pin!(first);
    let mut second = std::pin::pin!(second);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(value));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
}

/// Lets every other runnable task have a turn.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
