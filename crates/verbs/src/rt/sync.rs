//! Semaphore and notification for tasks of one thread.
//!
//! First come first served, and cancel-safe: a future dropped before it was ready has taken nothing, and what was already
//! handed to it goes to the next in line. Not for use between threads.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

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
    pub(super) fn close(&self) {
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
