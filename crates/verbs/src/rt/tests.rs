//! A small executor in virtual time, and the tests of the runtime handle and its primitives.

use super::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Wake;

/// Single-threaded, first come first served; when nothing can run, time goes to the earliest sleeper.
pub(crate) struct TestRuntime {
    now: Cell<Instant>,
    tasks: RefCell<Vec<Option<LocalFuture<()>>>>,
    ready: Arc<Mutex<VecDeque<usize>>>,
    sleepers: Rc<RefCell<Vec<(Instant, Waker)>>>,
}

struct TaskWaker(usize, Arc<Mutex<VecDeque<usize>>>);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.1.lock().unwrap();
        if !ready.contains(&self.0) {
            ready.push_back(self.0);
        }
    }
}

impl TestRuntime {
    pub(crate) fn new() -> Rc<TestRuntime> {
        Rc::new(TestRuntime {
            now: Cell::new(Instant::now()),
            tasks: RefCell::default(),
            ready: Arc::default(),
            sleepers: Rc::default(),
        })
    }

    /// Runs until nothing can run and nobody sleeps.
    pub(crate) fn run(&self) {
        loop {
            while let Some(id) = { self.ready.lock().unwrap().pop_front() } {
                let Some(mut task) = self.tasks.borrow_mut()[id].take() else { continue };
                let waker = Waker::from(Arc::new(TaskWaker(id, self.ready.clone())));
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                    self.tasks.borrow_mut()[id] = Some(task);
                }
            }
            let Some(next) = self.sleepers.borrow().iter().map(|sleeper| sleeper.0).min() else { return };
            self.now.set(self.now.get().max(next));
            let now = self.now.get();
            let (due, rest) = self.sleepers.take().into_iter().partition(|sleeper| sleeper.0 <= now);
            self.sleepers.replace(rest);
            let due: Vec<(Instant, Waker)> = due;
            due.into_iter().for_each(|sleeper| sleeper.1.wake());
        }
    }
}

/// The runtime as protocol code sees it.
struct Shared(Rc<TestRuntime>);

impl Runtime for Shared {
    fn now(&self) -> Instant {
        self.0.now.get()
    }
    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        let runtime = self.0.clone();
        Box::pin(std::future::poll_fn(move |cx| {
            if runtime.now.get() >= at {
                return Poll::Ready(());
            }
            runtime.sleepers.borrow_mut().push((at, cx.waker().clone()));
            Poll::Pending
        }))
    }
    fn spawn(&self, task: LocalFuture<()>) {
        let mut tasks = self.0.tasks.borrow_mut();
        tasks.push(Some(task));
        self.0.ready.lock().unwrap().push_back(tasks.len() - 1);
    }
    fn entropy(&self) -> u64 {
        4
    }
}

/// Runs `body` as the first task and everything it spawns, and returns what it returned.
pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(body: impl FnOnce(Rt) -> F) -> T {
    let runtime = TestRuntime::new();
    let rt = Rt::new(Rc::new(Shared(runtime.clone())));
    let out = Rc::new(RefCell::new(None));
    let slot = out.clone();
    let future = body(rt.clone());
    rt.spawn(async move { *slot.borrow_mut() = Some(future.await) });
    runtime.run();
    let value = out.borrow_mut().take();
    value.expect("the first task never ended")
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn join_gives_the_value_and_abort_cancels() {
    run(|rt| async move {
        let task = rt.spawn(async { 5 });
        assert!(!task.is_finished());
        assert_eq!(task.await, Ok(5));

        let dropped = Rc::new(());
        let held = dropped.clone();
        let sleeper = rt.clone();
        let task = rt.spawn(async move {
            sleeper.sleep(SECOND * 100).await;
            drop(held);
        });
        yield_now().await;
        task.abort();
        assert_eq!(task.await, Err(Cancelled));
        assert_eq!(Rc::strong_count(&dropped), 1, "the aborted future is dropped");

        let done = rt.spawn(async { 1 });
        yield_now().await;
        done.abort();
        assert_eq!(done.await, Ok(1), "abort after the end changes nothing");
    });
}

#[test]
fn a_task_may_abort_itself() {
    run(|rt| async move {
        let slot: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let own = slot.clone();
        let task = rt.spawn(async move {
            own.borrow().as_ref().unwrap().abort();
            std::future::pending::<()>().await;
        });
        *slot.borrow_mut() = Some(task);
        yield_now().await;
        assert!(slot.borrow().as_ref().unwrap().is_finished());
    });
}

#[test]
fn timeout_prefers_the_future() {
    run(|rt| async move {
        let start = rt.now();
        assert_eq!(rt.timeout(SECOND, std::future::pending::<()>()).await, Err(Elapsed));
        assert_eq!(rt.now() - start, SECOND);
        assert_eq!(rt.timeout(SECOND, rt.sleep(SECOND)).await, Ok(()), "a tie goes to the future");
        assert_eq!(select(async { 1 }, async { 2 }).await, Either::<i32, i32>::First(1));
        assert_eq!(select(std::future::pending::<()>(), async { 2 }).await, Either::Second(2));
    });
}

#[test]
fn channel_is_bounded_ordered_and_closes() {
    run(|rt| async move {
        let (sender, mut receiver) = channel(2);
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        let second = sender.clone();
        let task = rt.spawn(async move { second.send(3).await });
        yield_now().await;
        assert!(!task.is_finished(), "no room yet");
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(task.await, Ok(Ok(())));
        drop(sender);
        assert_eq!((receiver.recv().await, receiver.recv().await), (Some(2), Some(3)));
        assert_eq!(receiver.recv().await, None);

        let (sender, receiver) = channel(1);
        sender.send(1).await.unwrap();
        let waiting = sender.clone();
        let task = rt.spawn(async move { waiting.send(2).await });
        yield_now().await;
        drop(receiver);
        assert_eq!(task.await, Ok(Err(Closed)), "a sender that waits sees the end");
        assert_eq!(sender.try_send(3), Err(TrySendError::Closed(3)));
    });
}

#[test]
fn a_cancelled_send_has_sent_nothing() {
    run(|rt| async move {
        let (sender, mut receiver) = channel(1);
        sender.try_send(1).unwrap();
        assert!(rt.timeout(SECOND, sender.send(2)).await.is_err());
        assert_eq!(receiver.try_recv(), Some(1));
        assert_eq!(receiver.try_recv(), None);
        sender.try_send(3).unwrap();
        assert!(rt.timeout(SECOND, async { receiver.recv().await }).await == Ok(Some(3)));
    });
}

#[test]
fn semaphore_is_fair_and_cancel_safe() {
    run(|rt| async move {
        let sem = Semaphore::new(2);
        let held = sem.acquire(2).await;
        let (s1, s2) = (sem.clone(), sem.clone());
        let large = rt.spawn(async move { s1.acquire(2).await });
        yield_now().await;
        let small = rt.spawn(async move { s2.acquire(1).await.forget() });
        yield_now().await;
        assert!(sem.try_acquire(0).is_none(), "nobody overtakes those who wait");
        large.abort();
        let _ = large.await;
        assert!(!small.is_finished());
        drop(held);
        small.await.unwrap();
        assert_eq!(sem.available(), 1, "one was forgotten");

        // A grant to a future that is then dropped goes to the next in line.
        let held = sem.try_acquire(1).unwrap();
        let mut first = Box::pin(sem.acquire(1));
        let second = rt.spawn({
            let sem = sem.clone();
            async move { drop(sem.acquire(1).await) }
        });
        assert!(rt.timeout(SECOND, &mut first).await.is_err());
        drop(held);
        drop(first);
        second.await.unwrap();
        assert_eq!(sem.available(), 1);
    });
}

#[test]
fn notify_stores_one_and_hands_on() {
    run(|rt| async move {
        let notify = Notify::new();
        notify.notify_one();
        notify.notify_one();
        notify.notified().await;
        assert!(rt.timeout(SECOND, notify.notified()).await.is_err(), "only one is stored");

        let first = notify.notified();
        let second = notify.notified();
        notify.notify_one();
        drop(first); // it had been told: the second must hear of it
        assert_eq!(rt.timeout(SECOND, second).await, Ok(()));

        let (first, second) = (notify.notified(), notify.notified());
        notify.notify_waiters();
        drop(first);
        second.await;
        assert!(rt.timeout(SECOND, notify.notified()).await.is_err(), "a broadcast is not stored");
    });
}
