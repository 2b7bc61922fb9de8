//! Clients that have connected and not yet begun: they hold descriptors and have said little or nothing. There is room for so
//! many; one more stays at the door until another has begun. Where none begins, the one that has been silent for longest goes
//! after a while, and at once where descriptors run out. Lines about that are few.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use everywire_verbs::rt::Rt;
use tokio::sync::{Notify, oneshot};

/// Clients that may wait.
pub const MAX_WAITING: usize = 64;
/// How long a client may be silent while others stand at the door: an honest one begins within a few milliseconds.
const SILENT_FOR: Duration = Duration::from_millis(500);
/// Between two lines about the same trouble.
const QUIET: Duration = Duration::from_secs(10);

/// Those that wait, the oldest first.
#[derive(Default)]
pub struct Waiting {
    queue: RefCell<VecDeque<Client>>,
    last: Cell<u64>,
    /// One has begun or left.
    moved: Notify,
}

struct Client {
    number: u64,
    since: Instant,
    /// It has begun, and waits for a seat.
    ready: bool,
    go: oneshot::Sender<()>,
}

/// One's place; what it holds is ready when it has to go.
pub struct Place {
    pub number: u64,
    pub gone: oneshot::Receiver<()>,
}

impl Waiting {
    /// Waits for room for one more; whether another had to go for it.
    pub async fn room(&self, rt: &Rt) -> bool {
        loop {
            if self.queue.borrow().len() < MAX_WAITING {
                return false;
            }
            let moved = self.moved.notified();
            let Some(silent_until) = self.silent_until() else {
                moved.await; // all of them have begun
                continue;
            };
            let now = rt.now();
            if now >= silent_until {
                return self.evict();
            }
            let _ = rt.timeout(silent_until - now, moved).await;
        }
    }

    /// When the time of the oldest silent one is over.
    fn silent_until(&self) -> Option<Instant> {
        self.queue.borrow().iter().find(|client| !client.ready).map(|client| client.since + SILENT_FOR)
    }

    /// One more.
    pub fn enter(&self, now: Instant) -> Place {
        let (go, gone) = oneshot::channel();
        let number = self.last.get() + 1;
        self.last.set(number);
        self.queue.borrow_mut().push_back(Client { number, since: now, ready: false, go });
        Place { number, gone }
    }

    /// The oldest silent one has to go, or the oldest if all have begun; if there is one.
    pub fn evict(&self) -> bool {
        let mut queue = self.queue.borrow_mut();
        let at = queue.iter().position(|client| !client.ready).unwrap_or(0);
        queue.remove(at).is_some_and(|client| client.go.send(()).is_ok())
    }

    /// One has begun, and waits for a seat.
    pub fn begun(&self, number: u64) {
        if let Some(client) = self.queue.borrow_mut().iter_mut().find(|client| client.number == number) {
            client.ready = true;
        }
        self.moved.notify_waiters();
    }

    /// One has its seat, or left.
    pub fn leave(&self, number: u64) {
        self.queue.borrow_mut().retain(|client| client.number != number);
        self.moved.notify_waiters();
    }
}

/// What is said at most once in [`QUIET`].
#[derive(Default)]
pub struct Seldom {
    last: Cell<Option<Instant>>,
    left_out: Cell<u64>,
}

impl Seldom {
    /// Whether it may be said again, and how often it was not since the last time.
    pub fn say(&self, now: Instant) -> Option<u64> {
        if self.last.get().is_some_and(|last| now < last + QUIET) {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.left_out.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_waits_until_another_begins_or_has_been_silent_for_long() {
        let (runtime, soon) = (everywire_net::TokioRt::new().unwrap(), SILENT_FOR / 5);
        let (waiting, rt) = (Waiting::default(), runtime.handle());
        let room = |within| runtime.block_on(async { rt.timeout(within, waiting.room(&rt)).await.ok() });
        let mut places: Vec<Place> = (0..MAX_WAITING).map(|_| waiting.enter(rt.now())).collect();
        assert_eq!(room(soon), None, "nobody is sent away yet");
        waiting.leave(places[0].number);
        assert_eq!(room(soon), Some(false), "one has left");
        let last = waiting.enter(rt.now());
        waiting.begun(places[1].number);
        assert_eq!(room(2 * SILENT_FOR), Some(true));
        assert!(places[1].gone.try_recv().is_err(), "it is not silent");
        assert!(places[2].gone.try_recv().is_ok(), "the oldest silent one");
        waiting.enter(rt.now());
        let others = places.iter().chain([&last]).map(|place| place.number).collect::<Vec<_>>();
        others.iter().for_each(|number| waiting.begun(*number));
        waiting.begun(last.number + 1);
        assert_eq!(room(2 * SILENT_FOR), None, "all have begun");
        assert!(waiting.evict(), "descriptors have run out");
        assert!(!Waiting::default().evict());
    }

    #[test]
    fn the_same_is_not_said_again_and_again() {
        let (seldom, now) = (Seldom::default(), Instant::now());
        assert_eq!((seldom.say(now), seldom.say(now), seldom.say(now + QUIET / 2)), (Some(0), None, None));
        assert_eq!((seldom.say(now + QUIET), seldom.say(now + QUIET)), (Some(2), None));
    }
}
