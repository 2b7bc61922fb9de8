//! A descriptor that a waker makes readable: how futures wake a thread that sleeps in epoll or poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

/// Set by its waker, taken by the one thread that it belongs to.
#[derive(Debug)]
pub(crate) struct Signal {
    set: AtomicBool,
    /// `None` where there was none to be had; whoever waits must look now and then.
    event: Option<OwnedFd>,
}

impl Signal {
    /// One that is not set.
    pub(crate) fn new() -> io::Result<Arc<Signal>> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Signal { set: AtomicBool::new(false), event: Some(event) }))
    }

    /// One that no descriptor shows.
    pub(crate) fn without_descriptor() -> Arc<Signal> {
        Arc::new(Signal { set: AtomicBool::new(false), event: None })
    }

    /// Readable once it is set.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// Whether it is set.
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// Unsets it and says whether it was set.
    pub(crate) fn take(&self) -> bool {
        let set = self.set.swap(false, Ordering::SeqCst);
        if set && let Some(event) = &self.event {
            // A waker that has not written yet makes the descriptor readable once too often, no more.
            let mut count = [0; 8];
            let _ = rustix::io::read(event, &mut count);
        }
        set
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.set.swap(true, Ordering::SeqCst)
            && let Some(event) = &self.event
        {
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}
