//! Connections that a host has asked for and not completed: how many there may be, in all and of one address.
//!
//! Anybody can send a request, with any source address, and need not answer what comes back. So such attempts have room of
//! their own, apart from the connections that hosts use; when it is full, the oldest goes, as in a SYN queue: a host that
//! means it answers within a round trip. One address alone never gets that far. IBTA vol. 1 §12.9.7 (REQ, REP, RTU).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use everywire_verbs::rt::Notify;

/// Counts of attempts that came to nothing on the target's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HalfOpenCounters {
    /// Refused, because the address had its share of half-open ones.
    pub refused: u64,
    /// Given up for a newer one, because all the room was taken.
    pub displaced: u64,
    /// Given up because the time for completing them was over.
    pub expired: u64,
}

/// The half-open connections of a target.
pub(super) struct HalfOpen {
    max: usize,
    max_per_host: usize,
    attempts: RefCell<Attempts>,
    pub(super) counters: Cell<HalfOpenCounters>,
}

#[derive(Default)]
struct Attempts {
    next: u64,
    /// By age.
    all: BTreeMap<u64, (IpAddr, Notify)>,
    /// Never 0.
    per_host: HashMap<IpAddr, usize>,
}

impl Attempts {
    fn remove(&mut self, number: u64) -> Option<Notify> {
        let (host, displaced) = self.all.remove(&number)?;
        if let Some(count) = self.per_host.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.per_host.remove(&host);
            }
        }
        Some(displaced)
    }
}

/// One attempt; its room is free again when this is dropped.
pub(super) struct Attempt {
    table: Rc<HalfOpen>,
    number: u64,
    /// Told when a newer attempt takes the room.
    pub(super) displaced: Notify,
}

impl HalfOpen {
    /// At least one is always possible.
    pub(super) fn new(max: usize, max_per_host: usize) -> Rc<Self> {
        Rc::new(Self {
            max: max.max(1),
            max_per_host: max_per_host.max(1),
            attempts: RefCell::default(),
            counters: Cell::default(),
        })
    }

    /// Room for an attempt of `host`; `None` if it has its share.
    pub(super) fn begin(self: &Rc<Self>, host: IpAddr) -> Option<Attempt> {
        let attempts = &mut *self.attempts.borrow_mut();
        let count = attempts.per_host.entry(host).or_default();
        if *count >= self.max_per_host {
            self.count(|counters| counters.refused += 1);
            return None;
        }
        *count += 1;
        let number = attempts.next;
        attempts.next += 1;
        let displaced = Notify::new();
        attempts.all.insert(number, (host, displaced.clone()));
        if attempts.all.len() > self.max
            && let Some((&oldest, _)) = attempts.all.first_key_value()
            && let Some(oldest) = attempts.remove(oldest)
        {
            self.count(|counters| counters.displaced += 1);
            oldest.notify_one();
        }
        Some(Attempt { table: self.clone(), number, displaced })
    }

    /// Half-open connections now.
    pub(super) fn len(&self) -> usize {
        self.attempts.borrow().all.len()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut HalfOpenCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.table.attempts.borrow_mut().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[test]
    fn one_address_has_its_share_and_no_more() {
        let table = HalfOpen::new(8, 2);
        let first = table.begin(host(1)).expect("room");
        let _second = table.begin(host(1)).expect("room");
        assert!(table.begin(host(1)).is_none());
        assert!(table.begin(host(2)).is_some(), "it is no other host's business");
        drop(first);
        assert!(table.begin(host(1)).is_some());
        assert_eq!(table.counters.get(), HalfOpenCounters { refused: 1, ..Default::default() });
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_oldest() {
        let table = HalfOpen::new(3, 2);
        let held: Vec<Attempt> = (0..5).map(|n| table.begin(host(n)).expect("room")).collect();
        assert_eq!((table.len(), table.counters.get().displaced), (3, 2));
        drop(held);
        assert_eq!(table.len(), 0);
        assert!(table.attempts.borrow().per_host.is_empty(), "nothing is kept of addresses that have gone");
    }
}
