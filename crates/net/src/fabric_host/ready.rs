//! Waiting for many descriptors that come and go: which of them have something.
//!
//! poll(2) rather than epoll: a fabric has some dozens of them, and their owners need not register and forget them.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::driver::timespec;

/// Waits shorter than this are spent looking: the kernel wakes a sleeper some 50 µs late.
const SPIN: Duration = Duration::from_micros(30);

/// Descriptors that have something, or have room.
#[derive(Debug, Default)]
pub(super) struct Ready {
    fds: Vec<RawFd>,
}

impl Ready {
    /// Waits until one of them has something, or `deadline`.
    pub(super) fn wait<'a>(
        fds: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
        deadline: Option<Instant>,
    ) -> Ready {
        let mut polled: Vec<PollFd<'_>> = fds
            .map(|(fd, writing)| {
                let flags = if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(fd, flags)
            })
            .collect();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| if left < SPIN { Duration::ZERO } else { left });
        if poll(&mut polled, timeout.map(timespec).as_ref()).is_err() {
            return Ready::default();
        }
        let some = polled.iter().filter(|one| !one.revents().is_empty());
        let mut fds: Vec<RawFd> = some.map(|one| std::os::fd::AsFd::as_fd(one).as_raw_fd()).collect();
        fds.sort_unstable();
        Ready { fds }
    }

    /// Whether this one has something.
    pub(super) fn has(&self, fd: BorrowedFd<'_>) -> bool {
        self.fds.binary_search(&fd.as_raw_fd()).is_ok()
    }

    /// Whether none has.
    pub(super) fn is_empty(&self) -> bool {
        self.fds.is_empty()
    }
}
