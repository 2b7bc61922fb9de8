//! A task that runs, or waits for others to end. Dropped while it runs, it goes on in its logical unit's care, because what the
//! backend was given cannot be called back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::lun::LogicalUnit;

/// Work with an end.
pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The task, until it has ended.
pub(crate) struct Running<T: 'static> {
    future: Option<Boxed<T>>,
    /// The logical unit, and the task in its task set.
    place: (Arc<LogicalUnit>, u64),
}

impl<T> Running<T> {
    /// `future` owns the task's [`Slot`](super::task::Slot).
    pub(crate) fn new(future: Boxed<T>, place: (Arc<LogicalUnit>, u64)) -> Self {
        Self { future: Some(future), place }
    }
}

impl<T> Future for Running<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        let (unit, id) = &self.place;
        if let Some(mut future) = self.future.take()
            && unit.give_up(*id)
        {
            unit.leave_behind(Box::pin(async move {
                std::future::poll_fn(|cx| future.as_mut().poll(cx).map(drop)).await;
            }));
        }
    }
}
