//! What the driver's users share: the engine behind its lock, and who must be woken when there is work.
//!
//! Three kinds of drivers meet here: a background thread, a task of a runtime, and programs that poll an empty completion
//! queue (inline). Whoever gets the engine's lock drives; nobody ever waits for it while holding the device's lock, so
//! any mix of them is free of deadlocks.
//!
//! Nothing is missed: whoever is about to sleep says so first, then looks for work once more; whoever makes work notes it
//! first, then looks whether somebody sleeps.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::time::{Duration, Instant};

use everywire_verbs::{Progress, StreamError};
use smallvec::SmallVec;

use super::either::Engine;
use super::engine::Turn;
use crate::tcp::Listening;

/// Who drives besides programs that poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Nobody.
    Inline = 0,
    /// A background thread.
    Thread = 1,
    /// A task; programs that poll leave the driving to it.
    Task = 2,
    /// The host is closed.
    Closed = 3,
}

/// Shared between a host, its driver and its device.
#[derive(Debug)]
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    mode: AtomicU8,
    /// The device has work since a turn last began.
    queued: AtomicBool,
    /// Who sleeps and must be woken for work: the thread, the task, or calls of `block_on`. Each has a waker of its own, so
    /// that none can take another's call for its own.
    sleepers: Mutex<Sleepers>,
    /// How many they are.
    asleep: AtomicUsize,
    /// Nanoseconds since `base` at which the sleepers wake by themselves.
    wakes_at: AtomicU64,
    base: Instant,
    /// Turns that polling programs have driven.
    inline_turns: AtomicU64,
    /// The listening sockets of a device on TCP.
    pub(crate) listening: Option<Arc<Listening>>,
}

impl Shared {
    pub(crate) fn new(engine: Engine, listening: Option<Arc<Listening>>) -> Shared {
        Shared {
            engine: Mutex::new(engine),
            mode: AtomicU8::new(Mode::Inline as u8),
            queued: AtomicBool::new(true),
            sleepers: Mutex::default(),
            asleep: AtomicUsize::new(0),
            wakes_at: AtomicU64::new(u64::MAX),
            base: Instant::now(),
            inline_turns: AtomicU64::new(0),
            listening,
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Acquire) {
            0 => Mode::Inline,
            1 => Mode::Thread,
            2 => Mode::Task,
            _ => Mode::Closed,
        }
    }

    /// Changes who drives, unless somebody has done so already.
    pub(crate) fn claim(&self, mode: Mode) -> Result<(), Mode> {
        match self.mode.compare_exchange(Mode::Inline as u8, mode as u8, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(self.mode()),
        }
    }

    /// Nobody drives after all: whoever claimed it could not begin.
    pub(crate) fn release(&self) {
        self.mode.store(Mode::Inline as u8, Ordering::Release);
    }

    /// Ends all driving but that of whoever closes.
    pub(crate) fn close(&self) {
        self.mode.store(Mode::Closed as u8, Ordering::Release);
        self.wake();
    }

    /// The engine, to drive it. A panic of an earlier driver does not take the sockets away.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// One turn of the engine.
    pub(crate) fn turn(&self, engine: &mut Engine) -> Turn {
        engine.turn(self.take_queued(), false)
    }

    /// One turn between those of other tasks of this thread: what a batch makes goes out with the next turn, together with
    /// what those tasks answer.
    pub(crate) fn turn_among_tasks(&self, engine: &mut Engine) -> Turn {
        engine.turn(self.take_queued(), true)
    }

    #[inline]
    fn take_queued(&self) -> bool {
        // Looked at first: a program that spins here mostly finds nothing.
        self.queued.load(Ordering::SeqCst) && self.queued.swap(false, Ordering::SeqCst)
    }

    /// Whether the device has work.
    pub(crate) fn has_work(&self) -> bool {
        self.queued.load(Ordering::SeqCst)
    }

    /// Announces that the caller is about to sleep until `deadline` or until `waker` is called; `None` if there is work, and
    /// no sleeping then.
    pub(crate) fn fall_asleep(&self, deadline: Option<Instant>, waker: &Waker) -> Option<Asleep<'_>> {
        let at = deadline.map_or(u64::MAX, |deadline| self.since_base(deadline));
        self.wakes_at.store(at, Ordering::Relaxed);
        let key = self.sleepers().add(waker);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let asleep = Asleep { shared: self, key };
        if self.has_work() || self.mode() == Mode::Closed { None } else { Some(asleep) }
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a turn of somebody who may drive no more: whoever sleeps must not sleep past a deadline that is new.
    pub(crate) fn tell_sleepers(&self, engine: &Engine) {
        if self.asleep.load(Ordering::SeqCst) > 0
            && let Some(deadline) = engine.deadline()
        {
            let at = self.since_base(deadline);
            if self.wakes_at.fetch_min(at, Ordering::Relaxed) > at {
                self.wake();
            }
        }
    }

    /// Turns driven by polling programs so far.
    pub(crate) fn inline_turns(&self) -> u64 {
        self.inline_turns.load(Ordering::Relaxed)
    }

    #[cold]
    fn wake(&self) {
        let wakers: SmallVec<[Waker; 2]> =
            self.sleepers().list.iter().map(|(_, waker)| waker.clone()).collect();
        for waker in wakers {
            waker.wake();
        }
    }

    fn since_base(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_nanos() as u64
    }
}

/// Wakers of sleepers, by a number that each is given.
#[derive(Debug, Default)]
struct Sleepers {
    next: u64,
    list: SmallVec<[(u64, Waker); 2]>,
}

impl Sleepers {
    fn add(&mut self, waker: &Waker) -> u64 {
        self.next += 1;
        self.list.push((self.next, waker.clone()));
        self.next
    }
}

/// Somebody sleeps, until this is dropped.
#[derive(Debug)]
pub(crate) struct Asleep<'a> {
    shared: &'a Shared,
    key: u64,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.shared.asleep.fetch_sub(1, Ordering::SeqCst);
        let waker = {
            let mut sleepers = self.shared.sleepers();
            let at = sleepers.list.iter().position(|(key, _)| *key == self.key);
            at.map(|at| sleepers.list.swap_remove(at))
        };
        // What the others wake at is not known, so that the next deadline wakes them.
        self.shared.wakes_at.store(u64::MAX, Ordering::Relaxed);
        drop(waker); // without the lock: it may be the last of its task
    }
}

impl Progress for Shared {
    fn reserve_stream(&self, addr: SocketAddr) -> Result<SocketAddr, StreamError> {
        self.listening.as_ref().map_or(Ok(addr), |listening| listening.reserve(addr))
    }

    fn release_stream(&self, addr: SocketAddr) {
        if let Some(listening) = &self.listening {
            listening.release(addr);
        }
    }

    fn kick(&self) {
        // Work that was noted and not looked at has woken whoever slept.
        if !self.queued.swap(true, Ordering::SeqCst) && self.asleep.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    fn drive_inline(&self) -> bool {
        // A task that spins on a queue must not starve the driver's task, which runs on the same thread.
        if self.mode() == Mode::Closed {
            return false;
        }
        let Some(mut engine) = self.try_lock() else { return false };
        // Only the holder of the engine writes it.
        self.inline_turns.store(self.inline_turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let sleepers = self.asleep.load(Ordering::SeqCst) > 0;
        let turn = engine.turn(self.take_queued(), !sleepers);
        self.tell_sleepers(&engine);
        if turn.progress {
            *engine.empty_turns() = 0;
            if !sleepers && turn.more {
                // What was fed goes out with this program's next poll. If it polls no more, whoever has meanwhile looked for
                // work for the last time must not sleep on it.
                self.queued.store(true, Ordering::SeqCst);
                if self.asleep.load(Ordering::SeqCst) > 0 {
                    self.wake();
                }
            }
            return true;
        }
        let empty_turns = engine.empty_turns();
        *empty_turns += 1;
        let (patient, look_around) = (*empty_turns < PATIENT_TURNS, *empty_turns % PATIENT_TURNS == 0);
        if look_around {
            engine.going_idle();
        }
        drop(engine);
        if !patient {
            // It has polled in vain for a hundred microseconds: on a busy machine the peer may need the processor.
            std::thread::yield_now();
        }
        true
    }
}

/// Empty inline turns in a row before a polling program gives its processor away now and then.
const PATIENT_TURNS: u64 = 256;

/// How long to spin before sleeping: as long as that has lately caught what came, not at all where it has not.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    budget: Duration,
    since: Option<Instant>,
}

/// Longest spin.
const MAX_SPIN: Duration = Duration::from_micros(50);
/// A shorter spin is not worth its while.
const MIN_SPIN: Duration = Duration::from_micros(5);

impl Patience {
    /// Something came: spin on for a while.
    pub(crate) fn progress(&mut self) {
        self.since = None;
    }

    /// Nothing came: whether to look again at once.
    pub(crate) fn spin(&mut self, now: Instant) -> bool {
        if self.budget.is_zero() {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now - since < self.budget {
            return true;
        }
        // In vain: half as long next time.
        self.budget /= 2;
        if self.budget < MIN_SPIN {
            self.budget = Duration::ZERO;
        }
        self.since = None;
        false
    }

    /// Woken after having slept for `slept`: a sleep so short was a spin that should have been.
    pub(crate) fn woken(&mut self, slept: Duration) {
        if slept < MAX_SPIN {
            self.budget = MAX_SPIN;
        }
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_with_traffic_and_ends_without() {
        let mut patience = Patience::default();
        let start = Instant::now();
        assert!(!patience.spin(start), "nothing has come yet");
        patience.woken(Duration::from_millis(5));
        assert!(!patience.spin(start), "a long sleep teaches nothing");
        patience.woken(Duration::from_micros(20));
        let mut now = start;
        let mut spun = Duration::ZERO;
        for _ in 0..100 {
            while patience.spin(now) {
                now += Duration::from_micros(1);
                spun += Duration::from_micros(1);
            }
        }
        assert!(spun >= MAX_SPIN && spun <= 2 * MAX_SPIN + Duration::from_micros(10), "{spun:?}");
        assert!(!patience.spin(now));
    }
}
