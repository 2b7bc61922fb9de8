//! Wakers of futures that wait for the same thing, each removed when its future is dropped.
//!
//! Dropping a waker may drop the last reference to a task, and with it futures that lock the device: so nothing here
//! drops one. What is replaced or removed is handed back, to be dropped when the device is unlocked.

use std::task::Waker;

use smallvec::SmallVec;

/// Which waker of a [`WakerSet`] is whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakerKey(u64);

/// Wakers on their way out of the lock.
pub(crate) type Wakers = SmallVec<[Waker; 4]>;

/// A few wakers.
#[derive(Default)]
pub(crate) struct WakerSet {
    next: u64,
    wakers: Vec<(u64, Waker)>,
}

impl WakerSet {
    /// Registers `waker`, in the place of the one registered under `key` before, which is given back.
    #[must_use]
    pub(crate) fn register(&mut self, key: &mut Option<WakerKey>, waker: &Waker) -> Option<Waker> {
        if let Some(WakerKey(id)) = *key
            && let Some(entry) = self.wakers.iter_mut().find(|entry| entry.0 == id)
        {
            if entry.1.will_wake(waker) {
                return None;
            }
            return Some(std::mem::replace(&mut entry.1, waker.clone()));
        }
        self.next += 1;
        self.wakers.push((self.next, waker.clone()));
        *key = Some(WakerKey(self.next));
        None
    }

    /// Forgets a waker; one that has been woken is gone already.
    #[must_use]
    pub(crate) fn remove(&mut self, key: WakerKey) -> Option<Waker> {
        let index = self.wakers.iter().position(|entry| entry.0 == key.0)?;
        Some(self.wakers.remove(index).1)
    }

    /// Moves all wakers to `out`, to be woken without any lock held.
    #[inline]
    pub(crate) fn drain_into(&mut self, out: &mut Wakers) {
        if !self.wakers.is_empty() {
            out.extend(self.wakers.drain(..).map(|entry| entry.1));
        }
    }
}
