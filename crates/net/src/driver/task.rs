//! The driver as a task on tokio's current-thread runtime: device, sessions and commands run to completion on one thread.
//!
//! The task takes turns with the others as long as there is work, spins briefly where that has lately paid, and sleeps in
//! the runtime's epoll otherwise. Deadlines go through a timer descriptor, since tokio's own timers round to a millisecond.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use everywire_verbs::rt::yield_now;
use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::shared::{Mode, Patience, Shared};
use super::thread::timespec;

/// How often to let the other tasks run after a few datagrams came: the first task that they wake may wake a second, and
/// what that one sends should leave before an acknowledgement does. After more, sending early keeps both sides at work.
const YIELDS: usize = 2;
/// What is few.
const FEW: usize = 4;
/// How often to look where no alarm can be set.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What the driver sleeps on.
pub(crate) struct Bed {
    all: AsyncFd<OwnedFd>,
    alarm: Alarm,
}

impl Bed {
    /// Makes it; within the runtime that is to watch it.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn new(shared: &Shared) -> io::Result<Bed> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sockets = shared.lock().epoll().try_clone_to_owned()?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        for fd in [sockets.as_fd(), timer.as_fd()] {
            epoll::add(&all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        // SAFETY: the AsyncFd owns the descriptor and nothing else closes it, so it stays open for as long as it is registered.
        let all = unsafe { AsyncFd::register(all) }?;
        Ok(Bed { all, alarm: Alarm { timer, set: None } })
    }
}

/// Runs until the host is closed. Nothing but the end of the runtime ends it before: where no alarm can be set, it looks
/// every now and then.
pub(crate) async fn run(shared: Arc<Shared>, bed: Bed) -> io::Result<()> {
    let Bed { all, mut alarm } = bed;
    let mut patience = Patience::default();
    while shared.mode() == Mode::Task {
        let (awake, received, deadline) = {
            let mut engine = shared.lock();
            let turn = shared.turn_among_tasks(&mut engine);
            if turn.progress {
                patience.progress();
            }
            let awake = turn.more || patience.spin(Instant::now()) || engine.going_idle();
            (awake, turn.received, engine.deadline())
        };
        if awake {
            for _ in 0..if (1..=FEW).contains(&received) { YIELDS } else { 1 } {
                yield_now().await;
            }
            continue;
        }
        if let Err(error) = alarm.set(deadline) {
            tracing::debug!(%error, "the driver's alarm cannot be set");
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        let before = Instant::now();
        sleep(&shared, &all, deadline).await?;
        patience.woken(before.elapsed());
    }
    Ok(())
}

/// Waits for a socket, the timer or a kick.
async fn sleep(shared: &Shared, all: &AsyncFd<OwnedFd>, deadline: Option<Instant>) -> io::Result<()> {
    let mut asleep = None;
    poll_fn(|cx| {
        drop(asleep.take());
        let ready = match all.poll_read_ready(cx) {
            Poll::Ready(Ok(mut ready)) => {
                // Whatever is readable is drained by the turns that follow; what comes meanwhile is a new event.
                ready.clear_ready();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        if ready.is_pending() {
            asleep = shared.fall_asleep(deadline, cx.waker());
            if asleep.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
        ready
    })
    .await
}

/// A timer descriptor that is set again only when the deadline moves to an earlier time, or has passed.
struct Alarm {
    timer: OwnedFd,
    set: Option<Instant>,
}

impl Alarm {
    fn set(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let now = Instant::now();
        if self.set.is_some_and(|set| set <= now) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.timer, &mut count);
            self.set = None;
        }
        let Some(deadline) = deadline else { return Ok(()) };
        // An alarm that is too early does no harm: the turn finds nothing due, and sets the next.
        if self.set.is_some_and(|set| set <= deadline) {
            return Ok(());
        }
        let after = deadline.saturating_duration_since(now).max(Duration::from_nanos(1));
        let value = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(after) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        self.set = Some(deadline);
        Ok(())
    }
}
