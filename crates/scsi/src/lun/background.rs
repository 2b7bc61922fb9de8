//! Work that outlives its command: tasks whose transport is gone, SANITIZE, SYNCHRONIZE CACHE with IMMED.
//!
//! There is no executor here. A program spawns [`LogicalUnit::drive`], which carries on what is left behind. Without it every
//! command that comes to the logical unit takes a step, and so does whoever waits (task management, tasks behind it).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::LogicalUnit;
use crate::lock;
use crate::sense::Failure;
use crate::task_set::Aborted;

type Left = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(crate) struct Background {
    left: Mutex<Vec<Left>>,
    /// How many there are, those being polled now included.
    count: AtomicUsize,
    /// Who drives it, if anybody does.
    driver: Mutex<Option<Waker>>,
}

impl Background {
    fn wake_driver(&self) -> bool {
        lock(&self.driver).as_ref().inspect(|driver| driver.wake_by_ref()).is_some()
    }
}

/// Lets others run: a backend in memory never makes a command wait, however long it is.
pub(super) async fn give_way() {
    let mut gave = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The end of work that was left behind, for the command that began it.
#[derive(Default)]
pub(super) struct Completion(Mutex<Ending>);

#[derive(Default)]
struct Ending {
    result: Option<Result<(), Failure>>,
    waiting: Option<Waker>,
}

impl Completion {
    pub(super) fn complete(&self, result: Result<(), Failure>) {
        let mut there = lock(&self.0);
        there.result = Some(result);
        if let Some(waker) = there.waiting.take() {
            waker.wake();
        }
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut there = lock(&self.0);
        match there.result {
            Some(result) => Poll::Ready(result),
            None => {
                there.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl LogicalUnit {
    /// Takes care of `future` from now on.
    pub(crate) fn leave_behind(&self, mut future: Left) {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.background.count.fetch_add(1, Ordering::AcqRel);
            lock(&self.background.left).push(future);
            self.background.wake_driver();
        }
    }

    /// Takes a step with what was left behind.
    pub(crate) fn poll_left_behind(&self, cx: &mut Context<'_>) {
        // A driver that is there takes the step: futures remember one waker, and it should be the driver's.
        if self.background.count.load(Ordering::Acquire) != 0 && !self.background.wake_driver() {
            self.step(cx);
        }
    }

    fn step(&self, cx: &mut Context<'_>) {
        // Not under the lock: a future that ends may wake others, or leave something behind.
        let mut left = std::mem::take(&mut *lock(&self.background.left));
        let before = left.len();
        left.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        self.background.count.fetch_sub(before - left.len(), Ordering::AcqRel);
        lock(&self.background.left).append(&mut left);
    }

    /// Carries on what is left behind, for as long as it is polled. One at a time.
    pub async fn drive(self: Arc<Self>) {
        std::future::poll_fn(|cx| {
            *lock(&self.background.driver) = Some(cx.waker().clone());
            self.step(cx);
            Poll::<()>::Pending
        })
        .await;
    }

    /// Nobody waits for a task any more; true if it must come to its end.
    pub(crate) fn give_up(&self, task: u64) -> bool {
        lock(&self.tasks).give_up(task)
    }

    /// See [`TaskSet::abort`](crate::task_set::TaskSet::abort).
    pub(crate) fn abort(
        &self,
        which: impl Fn(u64, u64) -> bool,
        how: impl Fn(u64) -> Aborted,
    ) -> (Vec<u64>, Vec<u64>) {
        lock(&self.tasks).abort(which, how)
    }

    /// See [`TaskSet::is_draining`](crate::task_set::TaskSet::is_draining).
    pub(crate) fn is_draining(&self, running: &[u64], waker: &Waker) -> bool {
        lock(&self.tasks).is_draining(running, waker)
    }
}
