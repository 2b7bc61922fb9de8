//! A single-threaded executor in virtual time: it polls futures and keeps timers, and time moves only when told to.
//!
//! Tasks run in the order in which they were woken, timers of one nanosecond fire in the order in which they were set,
//! and entropy comes from a seed, so a run depends on nothing else. Tasks belong to a group (a host's incarnation): when the host is
//! killed its tasks are dropped where they stand. What advances time is the caller's affair (see [`crate::world`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use everywire_fabric::clock::{SimTime, VirtualClock};
use everywire_verbs::rt::{LocalFuture, Rt, Runtime};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The most polls between two advances of time; beyond it some task or device spins without end.
pub const MAX_POLLS_AT_ONE_INSTANT: u64 = 10_000_000;

/// Whose tasks these are; [`Executor::cancel`] ends a group as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u64);

type TaskId = u64;

/// The tasks that have been woken, in that order.
type ReadyQueue = Arc<Mutex<VecDeque<TaskId>>>;

struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    ready: ReadyQueue,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.id);
        }
    }
}

struct Task {
    group: Group,
    /// Taken out while the task runs.
    future: Option<LocalFuture<()>>,
    waker: Arc<TaskWaker>,
}

struct Shared {
    clock: RefCell<VirtualClock>,
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    next_task: RefCell<TaskId>,
    ready: ReadyQueue,
    /// By time, then by the order in which they were set.
    timers: RefCell<BTreeMap<(SimTime, u64), Waker>>,
    next_timer: RefCell<u64>,
    polls_at_this_instant: RefCell<u64>,
    seed: u64,
}

/// The executor; clones are handles on the same one.
#[derive(Clone)]
pub struct Executor {
    shared: Rc<Shared>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor")
            .field("now", &self.elapsed())
            .field("tasks", &self.shared.tasks.borrow().len())
            .field("timers", &self.shared.timers.borrow().len())
            .finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor whose virtual time starts at `base` and whose entropy follows from `seed`.
    pub fn new(base: Instant, seed: u64) -> Self {
        Executor {
            shared: Rc::new(Shared {
                clock: RefCell::new(VirtualClock::new(base)),
                tasks: RefCell::default(),
                next_task: RefCell::default(),
                ready: ReadyQueue::default(),
                timers: RefCell::default(),
                next_timer: RefCell::default(),
                polls_at_this_instant: RefCell::default(),
                seed,
            }),
        }
    }

    /// The runtime handle of a group, for protocol code.
    pub fn rt(&self, group: Group) -> Rt {
        let rng = ChaCha8Rng::seed_from_u64(self.shared.seed ^ group.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Rt::new(Rc::new(GroupRuntime { shared: self.shared.clone(), group, rng: RefCell::new(rng) }))
    }

    /// The present instant.
    pub fn now(&self) -> Instant {
        self.shared.clock.borrow().now()
    }

    /// The present in virtual time.
    pub fn elapsed(&self) -> SimTime {
        self.shared.clock.borrow().elapsed()
    }

    /// The virtual time of an instant.
    pub fn sim_time(&self, at: Instant) -> SimTime {
        self.shared.clock.borrow().sim_time(at)
    }

    /// Polls every woken task until none is left; whether any was.
    ///
    /// # Panics
    /// When tasks go on waking each other [`MAX_POLLS_AT_ONE_INSTANT`] times without time moving.
    pub fn run_ready(&self) -> bool {
        let mut ran = false;
        loop {
            let next = self.shared.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(id) = next else { return ran };
            ran = true;
            self.run_task(id);
        }
    }

    /// Whether a task has been woken and not yet polled.
    pub fn has_ready(&self) -> bool {
        !self.shared.ready.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// When the earliest timer is due.
    pub fn next_timer(&self) -> Option<SimTime> {
        self.shared.timers.borrow().first_key_value().map(|(&(at, _), _)| at)
    }

    /// Moves time forward to `to` and wakes every timer that is due by then.
    pub fn advance_to(&self, to: SimTime) {
        if to > self.elapsed() {
            *self.shared.polls_at_this_instant.borrow_mut() = 0;
        }
        self.shared.clock.borrow_mut().advance_to(to);
        let now = self.elapsed();
        loop {
            let mut timers = self.shared.timers.borrow_mut();
            let Some(entry) = timers.first_entry() else { return };
            if entry.key().0 > now {
                return;
            }
            let waker = entry.remove();
            drop(timers);
            waker.wake();
        }
    }

    /// Drops every task of `group`. A task that is running (it may be the caller) is dropped when it next yields.
    pub fn cancel(&self, group: Group) {
        let doomed: Vec<TaskId> =
            self.shared.tasks.borrow().iter().filter(|(_, t)| t.group == group).map(|(&id, _)| id).collect();
        for id in doomed {
            // The future's own drop may spawn or cancel: the table is not borrowed meanwhile.
            let task = self.shared.tasks.borrow_mut().remove(&id);
            drop(task);
        }
    }

    /// Drops every task.
    pub fn cancel_all(&self) {
        while let Some((_, task)) = { self.shared.tasks.borrow_mut().pop_first() } {
            drop(task);
        }
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.shared.tasks.borrow().len()
    }

    fn run_task(&self, id: TaskId) {
        {
            let mut polls = self.shared.polls_at_this_instant.borrow_mut();
            *polls += 1;
            assert!(
                *polls < MAX_POLLS_AT_ONE_INSTANT,
                "tasks spin at {:?}: time cannot advance",
                self.elapsed()
            );
        }
        let (mut future, waker) = {
            let mut tasks = self.shared.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&id) else { return };
            task.waker.queued.store(false, Ordering::Relaxed);
            let Some(future) = task.future.take() else { return };
            (future, Waker::from(task.waker.clone()))
        };
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.shared.tasks.borrow_mut();
        let leftover = match tasks.get_mut(&id) {
            Some(_) if done => tasks.remove(&id).and_then(|task| task.future),
            Some(task) => task.future.replace(future),
            None => Some(future), // cancelled while it ran
        };
        drop(tasks);
        drop(leftover);
    }
}

/// The [`Runtime`] of one group.
struct GroupRuntime {
    shared: Rc<Shared>,
    group: Group,
    rng: RefCell<ChaCha8Rng>,
}

impl Runtime for GroupRuntime {
    fn now(&self) -> Instant {
        self.shared.clock.borrow().now()
    }

    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        let at = self.shared.clock.borrow().sim_time(at);
        Box::pin(Sleep { shared: self.shared.clone(), at, key: None })
    }

    fn spawn(&self, task: LocalFuture<()>) {
        let id = {
            let mut next = self.shared.next_task.borrow_mut();
            *next += 1;
            *next
        };
        let ready = self.shared.ready.clone();
        let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready });
        let task = Task { group: self.group, future: Some(task), waker: waker.clone() };
        self.shared.tasks.borrow_mut().insert(id, task);
        waker.wake();
    }

    fn entropy(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }
}

/// Ready once virtual time has reached `at`.
struct Sleep {
    shared: Rc<Shared>,
    at: SimTime,
    key: Option<(SimTime, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.shared.clock.borrow().elapsed() >= this.at {
            return Poll::Ready(());
        }
        let key = *this.key.get_or_insert_with(|| {
            let mut next = this.shared.next_timer.borrow_mut();
            *next += 1;
            (this.at, *next)
        });
        this.shared.timers.borrow_mut().insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.timers.borrow_mut().remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use everywire_verbs::rt::{channel, yield_now};

    use super::*;

    fn run(executor: &Executor) {
        loop {
            if executor.run_ready() {
                continue;
            }
            let Some(at) = executor.next_timer() else { return };
            executor.advance_to(at);
        }
    }

    #[test]
    fn timers_fire_in_time_order_and_cost_no_real_time() {
        let executor = Executor::new(Instant::now(), 1);
        let rt = executor.rt(Group(0));
        let log = Rc::new(RefCell::new(Vec::new()));
        for (tag, secs) in [(1, 3_600), (2, 1), (3, 86_400), (4, 1)] {
            let (rt2, log) = (rt.clone(), log.clone());
            drop(rt.spawn(async move {
                rt2.sleep(Duration::from_secs(secs)).await;
                log.borrow_mut().push((tag, rt2.now()));
            }));
        }
        let base = executor.now();
        run(&executor);
        let seen: Vec<_> = log.borrow().iter().map(|&(tag, at)| (tag, (at - base).as_secs())).collect();
        assert_eq!(seen, [(2, 1), (4, 1), (1, 3_600), (3, 86_400)]);
        assert_eq!(executor.task_count(), 0);
    }

    #[test]
    fn a_cancelled_group_is_dropped_where_it_stands() {
        let executor = Executor::new(Instant::now(), 1);
        let (doomed, other) = (executor.rt(Group(1)), executor.rt(Group(2)));
        let alive = Rc::new(());
        let held = alive.clone();
        let rt = doomed.clone();
        drop(doomed.spawn(async move {
            let _held = held;
            rt.sleep(Duration::from_secs(9)).await;
            unreachable!("the task was cancelled");
        }));
        // A task that cancels its own group ends at its next yield.
        let (e, mine) = (executor.clone(), alive.clone());
        drop(doomed.spawn(async move {
            let _mine = mine;
            e.cancel(Group(1));
            yield_now().await;
            unreachable!("the task was cancelled");
        }));
        let survivor = other.clone();
        let handle = other.spawn(async move { survivor.sleep(Duration::from_secs(10)).await });
        run(&executor);
        assert_eq!(Rc::strong_count(&alive), 1);
        assert!(handle.is_finished());
        assert!(executor.next_timer().is_none());
    }

    #[test]
    fn tasks_wake_each_other_in_order_and_entropy_follows_the_seed() {
        let entropy = |seed, group| {
            let rt = Executor::new(Instant::now(), seed).rt(Group(group));
            (rt.entropy(), rt.entropy())
        };
        assert_eq!(entropy(1, 1), entropy(1, 1));
        assert_ne!(entropy(1, 1), entropy(2, 1));
        assert_ne!(entropy(1, 1), entropy(1, 2));

        let executor = Executor::new(Instant::now(), 1);
        let rt = executor.rt(Group(0));
        let (tx, mut rx) = channel(1);
        let producer = rt.spawn(async move {
            for i in 0..100 {
                tx.send(i).await.expect("the receiver lives");
            }
        });
        let consumer = rt.spawn(async move {
            let mut sum = 0;
            while let Some(i) = rx.recv().await {
                sum += i;
            }
            sum
        });
        run(&executor);
        assert!(producer.is_finished());
        let sum = rt.spawn(async move { consumer.await.map(|sum: i32| assert_eq!(sum, 4950)) });
        run(&executor);
        assert!(sum.is_finished());
    }
}
