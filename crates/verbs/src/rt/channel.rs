//! A bounded queue between tasks of one thread.
//!
//! First come first served, and cancel-safe: a future dropped before it was ready has sent or taken nothing. Room is
//! counted by a [`Semaphore`]. Not for use between threads.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::sync::{Permit, Semaphore};

/// The other side of a channel is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("channel is closed")]
pub struct Closed;

/// Why [`Sender::try_send`] did not take a value; the value comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The channel holds as many values as it may.
    #[error("channel is full")]
    Full(T),
    /// The receiver is gone.
    #[error("channel is closed")]
    Closed(T),
}

struct Chan<T> {
    queue: VecDeque<T>,
    receiver: Option<Waker>,
    senders: usize,
    receiver_gone: bool,
}

/// The sending half of a [`channel`]; cheap to clone.
pub struct Sender<T> {
    chan: Rc<RefCell<Chan<T>>>,
    room: Semaphore,
}

/// The receiving half of a [`channel`].
pub struct Receiver<T> {
    chan: Rc<RefCell<Chan<T>>>,
    room: Semaphore,
}

/// A queue of at most `bound` values (at least one) between tasks.
pub fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let chan = Chan { queue: VecDeque::new(), receiver: None, senders: 1, receiver_gone: false };
    let chan = Rc::new(RefCell::new(chan));
    let room = Semaphore::new(bound.max(1));
    (Sender { chan: chan.clone(), room: room.clone() }, Receiver { chan, room })
}

impl<T> Sender<T> {
    /// Waits for room and sends. Dropped before it is ready, it has sent nothing.
    pub async fn send(&self, value: T) -> Result<(), Closed> {
        let permit = self.room.acquire(1).await;
        self.push(permit, value).map_err(|_| Closed)
    }

    /// Sends if there is room now.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.is_closed() {
            return Err(TrySendError::Closed(value));
        }
        match self.room.try_acquire(1) {
            Some(permit) => self.push(permit, value).map_err(TrySendError::Closed),
            None => Err(TrySendError::Full(value)),
        }
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.chan.borrow().receiver_gone
    }

    fn push(&self, permit: Permit, value: T) -> Result<(), T> {
        let waker = {
            let mut chan = self.chan.borrow_mut();
            if chan.receiver_gone {
                return Err(value);
            }
            chan.queue.push_back(value);
            chan.receiver.take()
        };
        permit.forget(); // given back when the value is received
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.chan.borrow_mut().senders += 1;
        Sender { chan: self.chan.clone(), room: self.room.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut chan = self.chan.borrow_mut();
            chan.senders -= 1;
            if chan.senders == 0 { chan.receiver.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next value, or `None` once every sender is gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next value if one is queued.
    pub fn try_recv(&mut self) -> Option<T> {
        let value = self.chan.borrow_mut().queue.pop_front();
        if value.is_some() {
            self.room.release(1);
        }
        value
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(value) = self.try_recv() {
            return Poll::Ready(Some(value));
        }
        let mut chan = self.chan.borrow_mut();
        if chan.senders == 0 {
            return Poll::Ready(None);
        }
        chan.receiver = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let values = {
            let mut chan = self.chan.borrow_mut();
            chan.receiver_gone = true;
            std::mem::take(&mut chan.queue)
        };
        // Senders that wait for room must see the end too.
        self.room.close();
        drop(values);
    }
}
