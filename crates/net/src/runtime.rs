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
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use everywire_verbs::rt::{LocalFuture, Rt, Runtime};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::driver::{Patience, Shared, entropy, inline_hosts, timespec};

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
    /// The system gives no epoll.
    pub fn new() -> io::Result<TokioRt> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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

    /// Runs `future` on this runtime whenever it runs.
    pub(crate) fn spawn_local(&self, future: impl Future<Output = ()> + 'static) {
        let _guard = self.runtime.enter();
        // Dropping tokio's handle lets the task run on.
        drop(self.local.spawn_local(future));
    }
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
    let signal = Arc::new(Signal::new());
    let waker = Waker::from(signal.clone());
    let mut cx = Context::from_waker(&waker);
    let mut patience = Patience::default();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        while !signal.take() {
            wait(&signal, &mut patience);
        }
    }
}

/// Drives inline hosts once; sleeps if there was nothing to do, and spinning does not pay.
fn wait(signal: &Signal, patience: &mut Patience) {
    let hosts = inline_hosts();
    let mut deadline: Option<Instant> = None;
    let mut more = false;
    for host in &hosts {
        let mut engine = host.lock();
        let turn = host.turn(&mut engine);
        if turn.progress {
            patience.progress();
        }
        if !turn.more {
            engine.going_idle();
        }
        more |= turn.more;
        deadline = deadline.into_iter().chain(engine.deadline()).min();
    }
    let spin = more || (!hosts.is_empty() && patience.spin(Instant::now()));
    if !spin && !signal.is_set() {
        let before = Instant::now();
        sleep(signal, &hosts, deadline);
        patience.woken(before.elapsed());
    }
}

fn sleep(signal: &Signal, hosts: &[Arc<Shared>], deadline: Option<Instant>) {
    let mut fds: Vec<OwnedFd> = Vec::new();
    for host in hosts {
        fds.extend(host.lock().epoll().try_clone_to_owned());
        fds.extend(host.event().try_clone_to_owned());
    }
    let asleep: Vec<&Arc<Shared>> = hosts.iter().filter(|host| host.fall_asleep(deadline)).collect();
    if asleep.len() == hosts.len() && !signal.is_set() {
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        polled.push(PollFd::from_borrowed_fd(signal.event.as_fd(), PollFlags::IN));
        let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        // Whatever it says, the caller looks at everything again.
        let _ = poll(&mut polled, timeout.as_ref());
    }
    for host in asleep {
        host.awake();
        host.clear_event();
    }
}

/// Wakes `block_on`.
struct Signal {
    set: AtomicBool,
    event: OwnedFd,
}

impl Signal {
    fn new() -> Signal {
        // Without an eventfd there is no waiting; descriptors have run out then.
        match eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC) {
            Ok(event) => Signal { set: AtomicBool::new(false), event },
            Err(error) => panic!("block_on needs an eventfd: {error}"),
        }
    }

    fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    fn take(&self) -> bool {
        let set = self.set.swap(false, Ordering::SeqCst);
        if set {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
        set
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.set.swap(true, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_verbs::rt::channel;
    use std::time::Duration;

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
