//! Channel, notification and semaphore for tasks of one thread.
//!
//! All are bounded, first come first served, and cancel-safe: a future dropped before it was ready has taken nothing,
//! and what was already handed to it goes to the next in line. They are not for use between threads.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

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

/// One waiter of a semaphore; shared by the queue and the future.
struct Waiter {
    wanted: usize,
    granted: bool,
    waker: Option<Waker>,
}

struct Sem {
    permits: usize,
    closed: bool,
    waiters: VecDeque<Rc<RefCell<Waiter>>>,
}

impl Sem {
    /// Hands permits to waiters in order; a large request is never overtaken. Returns whom to wake.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wake = Vec::new();
        while let Some(first) = self.waiters.front() {
            let wanted = first.borrow().wanted;
            if !self.closed {
                if self.permits < wanted {
                    break;
                }
                self.permits -= wanted;
            }
            if let Some(first) = self.waiters.pop_front() {
                let mut waiter = first.borrow_mut();
                waiter.granted = true;
                wake.extend(waiter.waker.take());
            }
        }
        wake
    }
}

/// Counts permits; requests are served in order.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<Sem>>);

impl Semaphore {
    /// A semaphore of `permits`.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(RefCell::new(Sem { permits, closed: false, waiters: VecDeque::new() })))
    }

    /// Permits that nobody holds.
    pub fn available(&self) -> usize {
        self.0.borrow().permits
    }

    /// Waits for `wanted` permits.
    pub fn acquire(&self, wanted: usize) -> Acquire {
        Acquire { sem: self.clone(), wanted, waiter: None }
    }

    /// Takes `wanted` permits if they are there and nobody waits.
    pub fn try_acquire(&self, wanted: usize) -> Option<Permit> {
        let mut sem = self.0.borrow_mut();
        if !sem.closed {
            if !sem.waiters.is_empty() || sem.permits < wanted {
                return None;
            }
            sem.permits -= wanted;
        }
        Some(Permit { sem: self.clone(), count: wanted })
    }

    /// Adds `count` permits.
    pub fn release(&self, count: usize) {
        let wake = {
            let mut sem = self.0.borrow_mut();
            sem.permits = sem.permits.saturating_add(count);
            sem.grant()
        };
        wake.into_iter().for_each(Waker::wake);
    }

    /// Grants every request from now on: used where waiting has lost its sense.
    fn close(&self) {
        let wake = {
            let mut sem = self.0.borrow_mut();
            sem.closed = true;
            sem.grant()
        };
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Permits of a [`Semaphore`], given back when dropped.
pub struct Permit {
    sem: Semaphore,
    count: usize,
}

impl Permit {
    /// Keeps the permits out of the semaphore for good.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.sem.release(self.count);
        }
    }
}

/// The future of [`Semaphore::acquire`].
pub struct Acquire {
    sem: Semaphore,
    wanted: usize,
    waiter: Option<Rc<RefCell<Waiter>>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        if let Some(waiter) = &this.waiter {
            let mut entry = waiter.borrow_mut();
            if !entry.granted {
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            drop(entry);
            this.waiter = None;
            return Poll::Ready(Permit { sem: this.sem.clone(), count: this.wanted });
        }
        if let Some(permit) = this.sem.try_acquire(this.wanted) {
            return Poll::Ready(permit);
        }
        let waiter = Waiter { wanted: this.wanted, granted: false, waker: Some(cx.waker().clone()) };
        let waiter = Rc::new(RefCell::new(waiter));
        this.sem.0.borrow_mut().waiters.push_back(waiter.clone());
        this.waiter = Some(waiter);
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.borrow().granted {
            self.sem.release(self.wanted);
            return;
        }
        let wake = {
            let mut sem = self.sem.0.borrow_mut();
            sem.waiters.retain(|other| !Rc::ptr_eq(other, &waiter));
            sem.grant() // a large request at the head may have held up smaller ones
        };
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Wakes tasks that wait for something to change.
#[derive(Clone)]
pub struct Notify(Rc<RefCell<NotifyState>>);

struct NotifyState {
    /// One stored `notify_one` that found nobody waiting.
    stored: bool,
    waiters: VecDeque<Rc<RefCell<Waiter>>>,
}

impl Default for Notify {
    fn default() -> Self {
        Notify::new()
    }
}

impl Notify {
    /// A notification nobody has sent yet.
    pub fn new() -> Notify {
        Notify(Rc::new(RefCell::new(NotifyState { stored: false, waiters: VecDeque::new() })))
    }

    /// Wakes the longest waiting task; with none waiting, the next one to wait is let through at once.
    pub fn notify_one(&self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            match state.waiters.pop_front() {
                Some(waiter) => {
                    let mut waiter = waiter.borrow_mut();
                    waiter.granted = true;
                    waiter.waker.take()
                }
                None => {
                    state.stored = true;
                    None
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes every task that waits now; stores nothing.
    pub fn notify_waiters(&self) {
        let waiters = std::mem::take(&mut self.0.borrow_mut().waiters);
        for waiter in waiters {
            let waker = {
                let mut waiter = waiter.borrow_mut();
                waiter.granted = true;
                waiter.wanted = 0; // a broadcast is not handed on when its receiver is dropped
                waiter.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Waits for a notification sent after this call (or stored before it).
    pub fn notified(&self) -> Notified {
        let mut state = self.0.borrow_mut();
        let granted = std::mem::take(&mut state.stored);
        let waiter = Rc::new(RefCell::new(Waiter { wanted: 1, granted, waker: None }));
        if !granted {
            state.waiters.push_back(waiter.clone());
        }
        Notified { notify: self.clone(), waiter: Some(waiter) }
    }
}

/// The future of [`Notify::notified`]; it waits from its creation, not from its first poll.
pub struct Notified {
    notify: Notify,
    waiter: Option<Rc<RefCell<Waiter>>>,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(waiter) = &self.waiter else { return Poll::Ready(()) };
        {
            let mut entry = waiter.borrow_mut();
            if !entry.granted {
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.waiter = None;
        Poll::Ready(())
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let (granted, single) = {
            let entry = waiter.borrow();
            (entry.granted, entry.wanted == 1)
        };
        if granted && single {
            self.notify.notify_one();
        } else if !granted {
            self.notify.0.borrow_mut().waiters.retain(|other| !Rc::ptr_eq(other, &waiter));
        }
    }
}
