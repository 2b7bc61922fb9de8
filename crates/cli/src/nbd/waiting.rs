//! Clients that have connected and not yet begun: they hold descriptors and have said little or nothing. There is room for so many;
//! where one more comes, or descriptors run out, the one that has waited longest goes. Lines about that are few.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Clients that may wait.
pub const MAX_WAITING: usize = 64;
/// Between two lines about the same trouble.
const QUIET: Duration = Duration::from_secs(10);

/// Those that wait, the oldest first.
#[derive(Default)]
pub struct Waiting {
    queue: RefCell<VecDeque<(u64, oneshot::Sender<()>)>>,
    last: Cell<u64>,
}

/// One's place; what it holds is ready when it has to go.
pub struct Place {
    pub number: u64,
    pub gone: oneshot::Receiver<()>,
}

impl Waiting {
    /// One more; whether the oldest had to go for it.
    pub fn enter(&self) -> (Place, bool) {
        let full = self.queue.borrow().len() >= MAX_WAITING;
        let evicted = full && self.evict();
        let (go, gone) = oneshot::channel();
        let number = self.last.get() + 1;
        self.last.set(number);
        self.queue.borrow_mut().push_back((number, go));
        (Place { number, gone }, evicted)
    }

    /// The oldest has to go, if there is one.
    pub fn evict(&self) -> bool {
        self.queue.borrow_mut().pop_front().is_some_and(|(_, go)| go.send(()).is_ok())
    }

    /// One has begun, or left.
    pub fn leave(&self, number: u64) {
        self.queue.borrow_mut().retain(|(other, _)| *other != number);
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
    fn the_oldest_goes_when_there_is_no_room() {
        let waiting = Waiting::default();
        let mut places: Vec<Place> = (0..MAX_WAITING).map(|_| waiting.enter().0).collect();
        waiting.leave(places[0].number);
        assert!(!waiting.enter().1, "one has left");
        assert!(waiting.enter().1);
        assert!(places[1].gone.try_recv().is_ok(), "the oldest");
        assert!(places[2].gone.try_recv().is_err());
        assert!(waiting.evict() && places[2].gone.try_recv().is_ok());
        assert!(!Waiting::default().evict());
    }

    #[test]
    fn the_same_is_not_said_again_and_again() {
        let (seldom, now) = (Seldom::default(), Instant::now());
        assert_eq!((seldom.say(now), seldom.say(now), seldom.say(now + QUIET / 2)), (Some(0), None, None));
        assert_eq!((seldom.say(now + QUIET), seldom.say(now + QUIET)), (Some(2), None));
    }
}
