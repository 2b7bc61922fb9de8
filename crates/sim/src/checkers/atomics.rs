//! Atomic operations on one 64-bit word must have happened in some order, one at a time.
//!
//! Each operation reports the value it found. Given those, the values the operations lead to, the first and the last
//! value of the word, the checker walks the chain of values; an operation whose fate is unknown may be taken or left. Operations of
//! one queue pair happen in the order in which they were posted. Words are used so that no value comes twice (random addends and
//! swaps), except through operations that change nothing.

use std::collections::HashMap;

use super::Violation;
use crate::{ensure, violation};

/// What an atomic operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicKind {
    /// Adds, modulo 2^64.
    FetchAdd(u64),
    /// Stores `swap` where it finds `compare`.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What is stored then.
        swap: u64,
    },
}

impl AtomicKind {
    /// The word after the operation found `value`.
    pub fn apply(self, value: u64) -> u64 {
        match self {
            AtomicKind::FetchAdd(add) => value.wrapping_add(add),
            AtomicKind::CompareSwap { compare, swap } if compare == value => swap,
            AtomicKind::CompareSwap { .. } => value,
        }
    }
}

/// What is known of one operation's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pending,
    Found(u64),
    Unknown,
    NotDone,
}

#[derive(Debug, Clone)]
struct Op {
    queue: u64,
    kind: AtomicKind,
    fate: Fate,
}

/// The history of one word.
#[derive(Debug, Clone)]
pub struct AtomicWord {
    name: String,
    start: u64,
    ops: Vec<Op>,
}

/// An operation in the history of its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpId(usize);

impl AtomicWord {
    /// A word that holds `start`.
    pub fn new(name: impl Into<String>, start: u64) -> Self {
        AtomicWord { name: name.into(), start, ops: Vec::new() }
    }

    /// The program posted an operation on queue pair `queue`.
    pub fn posted(&mut self, queue: u64, kind: AtomicKind) -> OpId {
        self.ops.push(Op { queue, kind, fate: Fate::Pending });
        OpId(self.ops.len() - 1)
    }

    /// The operation succeeded and reported `original`.
    pub fn found(&mut self, op: OpId, original: u64) {
        self.ops[op.0].fate = Fate::Found(original);
    }

    /// The operation failed after it may have been executed.
    pub fn unknown(&mut self, op: OpId) {
        self.ops[op.0].fate = Fate::Unknown;
    }

    /// The operation cannot have been executed.
    pub fn not_done(&mut self, op: OpId) {
        self.ops[op.0].fate = Fate::NotDone;
    }

    /// Checks the whole history against the word's last value. Every operation must have ended.
    pub fn verify(&self, last: u64) -> Result<(), Violation> {
        let mut changing: HashMap<u64, usize> = HashMap::new();
        let mut idle: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut unknown = Vec::new();
        let mut confirmed = 0;
        for (i, op) in self.ops.iter().enumerate() {
            match op.fate {
                Fate::Pending => return Err(violation!("{}: operation {i} never ended", self.name)),
                Fate::NotDone => {}
                Fate::Unknown => unknown.push(i),
                Fate::Found(value) => {
                    confirmed += 1;
                    if op.kind.apply(value) == value {
                        idle.entry(value).or_default().push(i);
                    } else if let Some(other) = changing.insert(value, i) {
                        return Err(violation!(
                            "{}: operations {other} and {i} both found {value:#x} and changed it",
                            self.name
                        ));
                    }
                }
            }
        }
        // Few of the unknown ones were executed, as a rule: ways with fewer are tried first.
        let mut walk = Walk { word: self, changing, idle, unknown, last, confirmed, most: 0, steps: 0 };
        while walk.most <= walk.unknown.len() && walk.steps <= MAX_STEPS {
            let mut place = Place { value: self.start, seen: 0, latest: HashMap::new(), taken: Vec::new() };
            if walk.from(&mut place) {
                return Ok(());
            }
            walk.most += 1;
        }
        Err(violation!(
            "{}: no order of its {} atomic operations leads from {:#x} to {last:#x} with the values they reported: {:?}",
            self.name,
            self.ops.len(),
            self.start,
            self.ops
        ))
    }
}

/// Where a walk stands.
#[derive(Clone)]
struct Place {
    value: u64,
    /// Confirmed operations passed.
    seen: usize,
    /// By queue: the last operation passed.
    latest: HashMap<u64, usize>,
    /// Unknown operations taken.
    taken: Vec<usize>,
}

struct Walk<'a> {
    word: &'a AtomicWord,
    changing: HashMap<u64, usize>,
    idle: HashMap<u64, Vec<usize>>,
    unknown: Vec<usize>,
    last: u64,
    confirmed: usize,
    /// Unknown operations that may be taken.
    most: usize,
    steps: usize,
}

/// The most tries of unknown operations before the search is given up as a failure.
const MAX_STEPS: usize = 1_000_000;

impl Walk<'_> {
    /// Follows confirmed operations, and branches over the unknown ones where none fits.
    fn from(&mut self, place: &mut Place) -> bool {
        loop {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return false;
            }
            // Those that found this value and left it must come before the one that changed it.
            let idle = self.idle.get(&place.value).cloned().unwrap_or_default();
            if !idle.iter().all(|&i| self.pass(place, i)) {
                return false;
            }
            place.seen += idle.len();
            match self.changing.get(&place.value).copied() {
                Some(i) => {
                    if !self.pass(place, i) {
                        return false;
                    }
                    place.seen += 1;
                    place.value = self.word.ops[i].kind.apply(place.value);
                }
                None => break,
            }
        }
        if place.seen == self.confirmed && place.value == self.last {
            return true;
        }
        if place.taken.len() == self.most {
            return false;
        }
        for i in self.unknown.clone() {
            let op = &self.word.ops[i];
            let next = op.kind.apply(place.value);
            if place.taken.contains(&i) || next == place.value {
                continue;
            }
            let mut branch = place.clone();
            branch.taken.push(i);
            branch.value = next;
            // Several unknown operations of one queue may have been executed out of a longer row, but not backwards.
            if self.pass(&mut branch, i) && self.from(&mut branch) {
                return true;
            }
        }
        false
    }

    /// Notes that operation `i` happens now; false when a later one of its queue already did.
    fn pass(&self, place: &mut Place, i: usize) -> bool {
        let queue = self.word.ops[i].queue;
        let in_order = place.latest.get(&queue).is_none_or(|&before| before < i);
        place.latest.insert(queue, i);
        in_order
    }
}

/// A counter to which every operation adds one: values reported are distinct, rise per queue, and add up.
///
/// The same as [`AtomicWord`] with addends of one, where unknown operations make gaps.
#[derive(Debug, Clone)]
pub struct Counter {
    name: String,
    /// By queue: the last value reported.
    latest: HashMap<u64, u64>,
    reported: Vec<u64>,
    pending: u64,
    unknown: u64,
}

impl Counter {
    /// A counter that stands at zero.
    pub fn new(name: impl Into<String>) -> Self {
        Counter { name: name.into(), latest: HashMap::new(), reported: Vec::new(), pending: 0, unknown: 0 }
    }

    /// An increment was posted.
    pub fn posted(&mut self) {
        self.pending += 1;
    }

    /// An increment of `queue` reported `value`.
    pub fn found(&mut self, queue: u64, value: u64) -> Result<(), Violation> {
        self.pending -= 1;
        if let Some(before) = self.latest.insert(queue, value) {
            ensure!(before < value, "{}: queue {queue} read {value} after {before}", self.name);
        }
        self.reported.push(value);
        Ok(())
    }

    /// An increment failed after it may have been executed.
    pub fn unknown(&mut self) {
        self.pending -= 1;
        self.unknown += 1;
    }

    /// An increment cannot have been executed.
    pub fn not_done(&mut self) {
        self.pending -= 1;
    }

    /// Checks the history against the counter's last value. Every increment must have ended.
    pub fn verify(&self, last: u64) -> Result<(), Violation> {
        ensure!(self.pending == 0, "{}: {} increments never ended", self.name, self.pending);
        let mut values = self.reported.clone();
        values.sort_unstable();
        for pair in values.windows(2) {
            ensure!(pair[0] != pair[1], "{}: two increments reported {}", self.name, pair[0]);
        }
        let done = values.len() as u64;
        let most = done + self.unknown;
        ensure!(
            (done..=most).contains(&last),
            "{}: stands at {last} after {done} increments and {} of unknown fate",
            self.name,
            self.unknown
        );
        ensure!(values.last().is_none_or(|&v| v < last), "{}: reported a value above {last}", self.name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_that_has_an_order_passes() {
        let mut word = AtomicWord::new("w", 10);
        let a = word.posted(1, AtomicKind::FetchAdd(5));
        let b = word.posted(2, AtomicKind::CompareSwap { compare: 15, swap: 100 });
        let c = word.posted(1, AtomicKind::CompareSwap { compare: 1, swap: 2 });
        let lost = word.posted(2, AtomicKind::FetchAdd(7));
        let d = word.posted(1, AtomicKind::FetchAdd(1));
        word.found(a, 10);
        word.found(b, 15);
        word.found(c, 100);
        word.unknown(lost);
        word.found(d, 107);
        word.verify(108).unwrap();
        // The lost one was executed: without it there is no order.
        word.not_done(lost);
        assert!(word.verify(108).is_err());
    }

    #[test]
    fn a_lost_update_is_seen() {
        let mut word = AtomicWord::new("w", 0);
        let a = word.posted(1, AtomicKind::FetchAdd(5));
        let b = word.posted(2, AtomicKind::FetchAdd(9));
        word.found(a, 0);
        word.found(b, 0);
        assert!(word.verify(9).is_err());
        word.found(b, 5);
        word.verify(14).unwrap();
        assert!(word.verify(15).is_err());
    }

    #[test]
    fn operations_of_one_queue_keep_their_order() {
        let mut word = AtomicWord::new("w", 0);
        let a = word.posted(1, AtomicKind::FetchAdd(5));
        let b = word.posted(1, AtomicKind::FetchAdd(9));
        word.found(b, 0);
        word.found(a, 9);
        assert!(word.verify(14).is_err());
    }

    #[test]
    fn a_replayed_increment_is_seen() {
        let mut counter = Counter::new("c");
        for _ in 0..3 {
            counter.posted();
        }
        counter.found(1, 0).unwrap();
        counter.found(1, 1).unwrap();
        counter.unknown();
        counter.verify(2).unwrap();
        counter.verify(3).unwrap();
        assert!(counter.verify(4).is_err());
        counter.posted();
        assert!(counter.verify(3).is_err());
        assert!(counter.found(1, 1).is_err());
    }
}
