//! Where asynchronous programs run on real hosts: [`TokioRt`] for protocols, [`block_on`] for everything small.
//!
//! [`TokioRt`] implements `everywire_verbs::rt::Runtime` on tokio's current-thread runtime: one thread runs devices
//! ([`crate::Host::run`]), sessions and commands. [`block_on`] waits for one future on the calling thread, and drives the
//! hosts that nobody else drives meanwhile.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use everywire_verbs::rt::{LocalFuture, Rt, Runtime};
use rustix::event::{PollFd, PollFlags, poll};

use crate::driver::{Mode, Patience, Shared, entropy, inline_hosts, timespec};
use crate::error::with_limit;
use crate::event::Signal;

/// The runtime of protocol code on real sockets: tokio, one thread.
#[derive(Debug)]
pub struct TokioRt {
    runtime: tokio::runtime::Runtime,
    local: Rc<tokio::task::LocalSet>,
}

impl TokioRt {
    /// Makes one.
    ///
    /// # Errors
    /// The system gives no epoll, or not the descriptors for it; the limit is named.
    pub fn new() -> io::Result<TokioRt> {
        spare_descriptors().map_err(with_limit)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(with_limit)?;
        Ok(TokioRt { runtime, local: Rc::new(tokio::task::LocalSet::new()) })
    }

    /// The handle that protocol code takes.
    pub fn handle(&self) -> Rt {
        Rt::new(Rc::new(Handle { local: Rc::downgrade(&self.local) }))
    }

    /// Runs `future`, and everything that was spawned, until `future` ends.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.local.block_on(&self.runtime, future)
    }

    /// Makes this the runtime that descriptors are watched by, until the guard is dropped.
    pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Runs `future` on this runtime whenever it runs.
    pub(crate) fn spawn_local(&self, future: impl Future<Output = ()> + 'static) {
        let _guard = self.runtime.enter();
        // Dropping tokio's handle lets the task run on.
        drop(self.local.spawn_local(future));
    }
}

/// Descriptors that a runtime takes: its epoll, its wakers, and the pipes of signals.
const RUNTIME_DESCRIPTORS: usize = 10;
/// How often to look where no descriptor tells.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// That there are descriptors for a runtime: tokio panics where it gets none for signals.
fn spare_descriptors() -> io::Result<()> {
    let held = (0..RUNTIME_DESCRIPTORS).map(|_| Signal::new()).collect::<io::Result<Vec<_>>>();
    held.map(drop)
}

struct Handle {
    local: std::rc::Weak<tokio::task::LocalSet>,
}

impl Runtime for Handle {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        Box::pin(async move { tokio::time::sleep_until(at.into()).await })
    }

    fn spawn(&self, task: LocalFuture<()>) {
        // Without its runtime a task is dropped, which its JoinHandle reports as cancelled.
        if let Some(local) = self.local.upgrade() {
            drop(local.spawn_local(task));
        }
    }

    fn entropy(&self) -> u64 {
        // getrandom(2) fails on no kernel that this crate runs on; the time is better than a panic.
        entropy().unwrap_or_else(|_| Instant::now().elapsed().as_nanos() as u64)
    }
}

/// Waits for `future` on this thread. Hosts without a driver of their own are driven meanwhile, briefly spinning where that
/// pays, else asleep until a socket or a waker calls.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    // Where descriptors have run out, it waits by looking now and then.
    let signal = Signal::new().unwrap_or_else(|_| Signal::without_descriptor());
    let waker = Waker::from(signal.clone());
    let mut cx = Context::from_waker(&waker);
    let mut patience = Patience::default();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        while !signal.take() {
            wait(&signal, &waker, &mut patience);
        }
    }
}

/// Drives inline hosts once; sleeps if there was nothing to do, and spinning does not pay.
fn wait(signal: &Signal, waker: &Waker, patience: &mut Patience) {
    let hosts = inline_hosts();
    let (more, deadline) = drive(&hosts, patience);
    let spin = more || (!hosts.is_empty() && patience.spin(Instant::now()));
    if !spin && !signal.is_set() {
        let before = Instant::now();
        sleep(signal, waker, &hosts, deadline);
        patience.woken(before.elapsed());
    }
}

/// A turn of each host that still has no driver of its own; whether there is more to do, and when there will be.
pub(crate) fn drive(hosts: &[Arc<Shared>], patience: &mut Patience) -> (bool, Option<Instant>) {
    let mut deadline: Option<Instant> = None;
    let mut more = false;
    for host in hosts {
        let mut engine = host.lock();
        if host.mode() != Mode::Inline {
            // Somebody has become its driver since, who would not hear of what this turn leaves to be done.
            continue;
        }
        let turn = host.turn(&mut engine);
        host.tell_sleepers(&engine);
        if turn.progress {
            patience.progress();
        }
        more |= turn.more;
        deadline = deadline.into_iter().chain(engine.deadline()).min();
    }
    (more, deadline)
}

fn sleep(signal: &Signal, waker: &Waker, hosts: &[Arc<Shared>], deadline: Option<Instant>) {
    let mut fds: Vec<OwnedFd> = Vec::new();
    let mut asleep = Vec::new();
    for host in hosts {
        let mut engine = host.lock();
        if host.mode() != Mode::Inline {
            continue;
        }
        if engine.going_idle() {
            return;
        }
        fds.extend(engine.epoll().try_clone_to_owned());
        drop(engine);
        match host.fall_asleep(deadline, waker) {
            Some(one) => asleep.push(one),
            None => return,
        }
    }
    if signal.is_set() {
        return;
    }
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    polled.extend(signal.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let blind = polled.len() <= hosts.len();
    let wait = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    let timeout = wait.into_iter().chain(blind.then_some(LOOK_EVERY)).min().map(timespec);
    // Whatever it says, the caller looks at everything again.
    let _ = poll(&mut polled, timeout.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_verbs::rt::channel;

    #[test]
    fn block_on_waits_for_another_thread() {
        let (tx, rx) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            tx.send(7).unwrap();
        });
        assert_eq!(block_on(rx).unwrap(), 7);
        thread.join().unwrap();
    }

    #[test]
    fn tasks_sleep_and_talk() {
        let runtime = TokioRt::new().unwrap();
        let rt = runtime.handle();
        let sum = runtime.block_on(async {
            let (tx, rx) = channel(4);
            let sleeper = rt.clone();
            let task = rt.spawn(async move {
                for i in 0..3 {
                    sleeper.sleep(Duration::from_millis(2)).await;
                    tx.send(i).await.unwrap();
                }
                "done"
            });
            let mut sum = 0;
            let mut rx = rx;
            while let Some(i) = rx.recv().await {
                sum += i;
            }
            assert_eq!(task.await.unwrap(), "done");
            assert!(rt.timeout(Duration::from_millis(2), std::future::pending::<()>()).await.is_err());
            sum
        });
        assert_eq!(sum, 3);
        assert_ne!(rt.entropy(), rt.entropy());
    }
}
