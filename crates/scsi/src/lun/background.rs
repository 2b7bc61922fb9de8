//! Work that outlives its command: tasks whose transport is gone, SANITIZE and SYNCHRONIZE CACHE with IMMED.
//!
//! There is no executor here. What is left behind is polled by every command that comes to the logical unit, and by whoever
//! waits for it (task management, tasks behind it); [`LogicalUnit::background`] is for programs that would drive it on.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::LogicalUnit;
use crate::lock;
use crate::task_set::Aborted;

type Left = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(crate) struct Background {
    left: Mutex<Vec<Left>>,
    /// How many there are, those being polled now included.
    count: AtomicUsize,
}

impl LogicalUnit {
    /// Takes care of `future` from now on.
    pub(crate) fn leave_behind(&self, mut future: Left) {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.background.count.fetch_add(1, Ordering::AcqRel);
            lock(&self.background.left).push(future);
        }
    }

    /// Polls what was left behind.
    pub(crate) fn poll_left_behind(&self, cx: &mut Context<'_>) {
        if self.background.count.load(Ordering::Acquire) == 0 {
            return;
        }
        // Not under the lock: a future that ends may wake others, or leave something behind.
        let mut left = std::mem::take(&mut *lock(&self.background.left));
        let before = left.len();
        left.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        self.background.count.fetch_sub(before - left.len(), Ordering::AcqRel);
        lock(&self.background.left).append(&mut left);
    }

    /// Ends when nothing is left behind.
    pub async fn background(self: Arc<Self>) {
        std::future::poll_fn(|cx| {
            self.poll_left_behind(cx);
            if self.background.count.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
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
