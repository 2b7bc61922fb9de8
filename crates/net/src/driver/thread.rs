//! The background driver: a thread that sleeps in epoll when nothing happens, for programs that block.
//!
//! It spins briefly where that has lately paid (`Patience`), sleeps otherwise, and steps back while a program polls so
//! busily that it drives the device itself; then it only looks now and then whether that is still so.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::shared::{Mode, Patience, Shared};

/// So many inline turns since the last look mean that a program drives the device.
const BUSY_INLINE_TURNS: u64 = 32;
/// How often to look whether it still does.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Runs until the host is closed.
pub(crate) fn run(shared: &Arc<Shared>) -> io::Result<()> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let sockets = shared.lock().epoll().try_clone_to_owned()?;
    for fd in [sockets.as_fd(), shared.event()] {
        epoll::add(&all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    let mut patience = Patience::default();
    let mut inline_seen = shared.inline_turns();
    while shared.mode() == Mode::Thread {
        let (turn, deadline) = {
            let mut engine = shared.lock();
            let turn = shared.turn(&mut engine);
            if !turn.more {
                engine.going_idle();
            }
            (turn, engine.deadline())
        };
        if turn.progress {
            patience.progress();
        }
        if turn.more || patience.spin(Instant::now()) {
            std::hint::spin_loop();
            continue;
        }
        inline_seen = step_back(shared, inline_seen);
        let before = Instant::now();
        sleep(shared, &all, deadline)?;
        patience.woken(before.elapsed());
    }
    Ok(())
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

fn sleep(shared: &Shared, all: &OwnedFd, deadline: Option<Instant>) -> io::Result<()> {
    if !shared.fall_asleep(deadline) {
        return Ok(());
    }
    let timeout = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
    let mut events =
        [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
    let result = epoll::wait(all, &mut events[..], timeout.as_ref());
    shared.awake();
    shared.clear_event();
    match result {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
