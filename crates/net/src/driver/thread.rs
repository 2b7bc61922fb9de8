//! The background driver: a thread that sleeps on its sockets when nothing happens, for programs that block.
//!
//! It spins briefly where that has lately paid (`Patience`), sleeps otherwise, and steps back while a program polls so
//! busily that it drives the device itself; then it only looks now and then whether that is still so.

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::shared::{Mode, Patience, Shared};
use crate::event::Signal;

/// So many inline turns since the last look mean that a program drives the device.
const BUSY_INLINE_TURNS: u64 = 32;
/// How often to look whether it still does.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What the driver sleeps on.
pub(crate) struct Bed {
    sockets: OwnedFd,
    signal: Arc<Signal>,
}

impl Bed {
    /// Makes it.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn new(shared: &Shared) -> io::Result<Bed> {
        Ok(Bed { sockets: shared.lock().epoll().try_clone_to_owned()?, signal: Signal::new()? })
    }
}

/// Runs until the host is closed. Nothing ends it before: where it cannot sleep, it looks every now and then.
pub(crate) fn run(shared: &Arc<Shared>, bed: &Bed) {
    let Bed { sockets, signal } = bed;
    let waker = Waker::from(signal.clone());
    // Acknowledgements wait for 20 µs; with the usual slack of the kernel's timers it would be 70.
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1000));
    let mut patience = Patience::default();
    let mut inline_seen = shared.inline_turns();
    while shared.mode() == Mode::Thread {
        let (awake, deadline) = {
            let mut engine = shared.lock();
            let turn = shared.turn(&mut engine);
            if turn.progress {
                patience.progress();
            }
            let awake = turn.more || patience.spin(Instant::now()) || engine.going_idle();
            (awake, engine.deadline())
        };
        if awake {
            std::hint::spin_loop();
            continue;
        }
        inline_seen = step_back(shared, inline_seen);
        let before = Instant::now();
        let fds = std::iter::once(sockets.as_fd()).chain(signal.fd());
        if let Err(error) = sleep(shared, fds, deadline, &waker) {
            tracing::debug!(%error, "the driver's thread cannot sleep on its sockets");
            std::thread::sleep(LOOK_EVERY);
        }
        signal.take();
        patience.woken(before.elapsed());
    }
}

/// Waits for as long as a program drives the device by polling.
fn step_back(shared: &Shared, seen: u64) -> u64 {
    let mut seen = seen;
    loop {
        let now_seen = shared.inline_turns();
        if now_seen.wrapping_sub(seen) < BUSY_INLINE_TURNS || shared.mode() != Mode::Thread {
            return now_seen;
        }
        seen = now_seen;
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Waits for a socket, a kick or the deadline, to the nanosecond: epoll_wait would round it up to a millisecond.
fn sleep<'a>(
    shared: &Shared,
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    deadline: Option<Instant>,
    waker: &Waker,
) -> io::Result<()> {
    let Some(_asleep) = shared.fall_asleep(deadline, waker) else { return Ok(()) };
    let mut polled: SmallVec<[PollFd<'_>; 2]> =
        fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
