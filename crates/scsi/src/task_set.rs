//! The task set of a logical unit: task attributes, ranges that must not interleave, aborts. SAM-5 §8, §7.
//!
//! A task is *held* while its data come, *ready* when it may run but must wait for others, *running* once its commands
//! reach the backend. SIMPLE waits for older ORDERED and for every HEAD OF QUEUE; ORDERED waits for everything older;
//! HEAD OF QUEUE waits for nobody (§8.6). A task with an exclusive range (COMPARE AND WRITE and the like) does not
//! overlap in time with any other that touches those blocks.
//! An aborted task stays until its transport lets go of it, so that it ends exactly once and without a status; one that
//! runs is waited for, since what the backend was given cannot be called back.

use std::collections::BTreeMap;
use std::task::Waker;

/// Most tasks of one logical unit, from all nexuses; the next one is answered with TASK SET FULL.
pub const MAX_TASKS: usize = 16384;

/// The nexus of tasks that came by a protocol that is not SCSI: its task management is not SCSI's either, so that no function
/// aborts them.
pub(crate) const OUTSIDER: u64 = u64::MAX;

/// Task attribute. SAM-5 §8.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attribute {
    /// In any order among its like.
    #[default]
    Simple,
    /// After everything older, before everything newer.
    Ordered,
    /// At once.
    HeadOfQueue,
}

/// Blocks that a task touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) exclusive: bool,
}

impl Range {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    Ready,
    Running,
}

/// What an abort leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aborted {
    /// No status (SAM-5 §5.3.1: TAS 0, or the same nexus asked).
    Silent,
    /// TASK ABORTED status.
    WithStatus,
}

struct Entry {
    nexus: u64,
    tag: u64,
    attribute: Attribute,
    range: Option<Range>,
    state: State,
    aborted: Option<Aborted>,
    waker: Option<Waker>,
}

impl Entry {
    /// Still counts for the order of others: an aborted task that did not start never will.
    fn counts(&self) -> bool {
        self.aborted.is_none() || self.state == State::Running
    }

    fn special(&self) -> bool {
        self.attribute != Attribute::Simple || self.range.is_some_and(|range| range.exclusive)
    }
}

/// Whether a task may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Go,
    Wait,
    Aborted(Aborted),
}

#[derive(Default)]
pub(crate) struct TaskSet {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// Entries that are more than simple: while there are none, nothing ever waits.
    special: usize,
    /// Entries that wait for others.
    waiting: usize,
    /// Task management that waits for running tasks to end.
    drains: Vec<Waker>,
}

impl TaskSet {
    /// Adds a task; `None` when the set is full.
    pub(crate) fn insert(
        &mut self,
        nexus: u64,
        tag: u64,
        attribute: Attribute,
        range: Option<Range>,
    ) -> Option<u64> {
        if self.entries.len() >= MAX_TASKS {
            return None;
        }
        let id = self.next;
        self.next += 1;
        let entry = Entry { nexus, tag, attribute, range, state: State::Held, aborted: None, waker: None };
        self.special += usize::from(entry.special());
        self.entries.insert(id, entry);
        Some(id)
    }

    /// The task's data are there: may it run? With [`Start::Wait`] its waker is called when to ask again.
    pub(crate) fn start(&mut self, id: u64, waker: Option<&Waker>) -> Start {
        let Some(entry) = self.entries.get(&id) else { return Start::Aborted(Aborted::Silent) };
        if let Some(aborted) = entry.aborted {
            return Start::Aborted(aborted);
        }
        let blocked = self.special != 0 && self.is_blocked(id, entry);
        let was_ready = entry.state == State::Ready;
        let Some(entry) = self.entries.get_mut(&id) else { return Start::Aborted(Aborted::Silent) };
        entry.state = if blocked { State::Ready } else { State::Running };
        entry.waker = if blocked { waker.cloned() } else { None };
        match (was_ready, blocked) {
            (false, true) => self.waiting += 1,
            (true, false) => self.waiting -= 1,
            _ => {}
        }
        if blocked { Start::Wait } else { Start::Go }
    }

    fn is_blocked(&self, id: u64, entry: &Entry) -> bool {
        self.entries.iter().any(|(&other_id, other)| {
            if other_id == id || !other.counts() {
                return false;
            }
            let older = other_id < id;
            let by_attribute = match entry.attribute {
                Attribute::HeadOfQueue => false,
                Attribute::Ordered => older || other.attribute == Attribute::HeadOfQueue,
                Attribute::Simple => {
                    other.attribute == Attribute::HeadOfQueue
                        || older && other.attribute == Attribute::Ordered
                }
            };
            let overlaps = match (&entry.range, &other.range) {
                (Some(ours), Some(theirs)) => ours.conflicts(theirs),
                _ => false,
            };
            // A ready, older task with a conflicting range goes first, so that a stream of reads cannot starve it.
            by_attribute
                || overlaps && (other.state == State::Running || older && other.state == State::Ready)
        })
    }

    /// The task ended, or its transport gave it up. Tells whether and how it was aborted meanwhile.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Aborted> {
        let entry = self.entries.remove(&id)?;
        // An abort before the start has taken it out of the counts already.
        if entry.counts() {
            self.special -= usize::from(entry.special());
            self.waiting -= usize::from(entry.state == State::Ready);
        }
        self.wake_waiting();
        if entry.aborted.is_some() {
            self.drains.drain(..).for_each(Waker::wake);
        }
        entry.aborted
    }

    fn wake_waiting(&mut self) {
        if self.waiting != 0 {
            self.entries.values_mut().filter_map(|entry| entry.waker.take()).for_each(Waker::wake);
        }
    }

    /// Aborts every task that `which(nexus, tag)` picks; `how` decides by nexus what is left of it. Gives those that run
    /// and must be waited for, also where they were aborted before, and the nexuses of those that were not.
    pub(crate) fn abort(
        &mut self,
        which: impl Fn(u64, u64) -> bool,
        how: impl Fn(u64) -> Aborted,
    ) -> (Vec<u64>, Vec<u64>) {
        let (mut running, mut nexuses) = (Vec::new(), Vec::new());
        for (&id, entry) in &mut self.entries {
            if entry.nexus == OUTSIDER || !which(entry.nexus, entry.tag) {
                continue;
            }
            if entry.aborted.is_some() {
                if entry.state == State::Running {
                    running.push(id);
                }
                continue;
            }
            if entry.state == State::Running {
                running.push(id);
            } else {
                self.special -= usize::from(entry.special());
                self.waiting -= usize::from(entry.state == State::Ready);
            }
            if !nexuses.contains(&entry.nexus) {
                nexuses.push(entry.nexus);
            }
            entry.aborted = Some(how(entry.nexus));
            if let Some(waker) = entry.waker.take() {
                waker.wake();
            }
        }
        self.wake_waiting();
        (running, nexuses)
    }

    /// Whether any of `ids` still runs; if so `waker` is called when to ask again.
    pub(crate) fn is_draining(&mut self, ids: &[u64], waker: &Waker) -> bool {
        let draining = ids.iter().any(|id| self.entries.contains_key(id));
        if draining {
            self.drains.push(waker.clone());
        }
        draining
    }

    /// The task only waits for work that goes on without it, so that an abort need not wait for the task. True if there was
    /// one; `waker` is called when there is.
    pub(crate) fn detach(&mut self, id: u64, waker: &Waker) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if entry.aborted.is_none() => {
                entry.state = State::Held;
                entry.waker = Some(waker.clone());
                false
            }
            _ => true,
        }
    }

    /// Nobody waits for the task's outcome any more. True if it runs, so that it must come to its end.
    pub(crate) fn give_up(&mut self, id: u64) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if entry.state == State::Running => {
                entry.aborted = entry.aborted.or(Some(Aborted::Silent));
                true
            }
            _ => false,
        }
    }

    /// Tasks in the set.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(set: &mut TaskSet, attribute: Attribute) -> u64 {
        set.insert(1, set.next, attribute, None).expect("room")
    }

    fn add_range(set: &mut TaskSet, start: u64, end: u64, exclusive: bool) -> u64 {
        set.insert(1, set.next, Attribute::Simple, Some(Range { start, end, exclusive })).expect("room")
    }

    #[test]
    fn ordered_waits_for_older_and_holds_newer() {
        let mut set = TaskSet::default();
        let (first, ordered, last) = (
            add(&mut set, Attribute::Simple),
            add(&mut set, Attribute::Ordered),
            add(&mut set, Attribute::Simple),
        );
        assert_eq!(set.start(ordered, None), Start::Wait);
        assert_eq!(set.start(last, None), Start::Wait);
        assert_eq!(set.start(first, None), Start::Go);
        set.remove(first);
        assert_eq!(set.start(last, None), Start::Wait);
        assert_eq!(set.start(ordered, None), Start::Go);
        set.remove(ordered);
        assert_eq!(set.start(last, None), Start::Go);
        set.remove(last);
        assert_eq!((set.len(), set.special, set.waiting), (0, 0, 0));
    }

    #[test]
    fn head_of_queue_passes_everything() {
        let mut set = TaskSet::default();
        let (simple, ordered, head) = (
            add(&mut set, Attribute::Simple),
            add(&mut set, Attribute::Ordered),
            add(&mut set, Attribute::HeadOfQueue),
        );
        assert_eq!(set.start(simple, None), Start::Wait);
        assert_eq!(set.start(head, None), Start::Go);
        assert_eq!(set.start(ordered, None), Start::Wait);
        set.remove(head);
        assert_eq!(set.start(simple, None), Start::Go);
    }

    /// UNMAP, whose blocks only its parameter list tells, is like one that touches all.
    #[test]
    fn any_block_waits_for_an_exclusive_range() {
        let mut set = TaskSet::default();
        let exclusive = add_range(&mut set, 8, 9, true);
        let any = add_range(&mut set, 0, u64::MAX, false);
        assert_eq!(set.start(exclusive, None), Start::Go);
        assert_eq!(set.start(any, None), Start::Wait);
        set.remove(exclusive);
        assert_eq!(set.start(any, None), Start::Go);
    }

    #[test]
    fn exclusive_ranges_do_not_overlap_in_time() {
        let mut set = TaskSet::default();
        let read = add_range(&mut set, 0, 8, false);
        let compare = add_range(&mut set, 4, 5, true);
        let (late, aside) = (add_range(&mut set, 0, 8, false), add_range(&mut set, 8, 16, false));
        assert_eq!(set.start(read, None), Start::Go);
        assert_eq!(set.start(compare, None), Start::Wait);
        assert_eq!(set.start(late, None), Start::Wait, "behind the older exclusive one");
        assert_eq!(set.start(aside, None), Start::Go);
        set.remove(read);
        assert_eq!(set.start(late, None), Start::Wait);
        assert_eq!(set.start(compare, None), Start::Go);
        set.remove(compare);
        assert_eq!(set.start(late, None), Start::Go);
    }

    #[test]
    fn an_aborted_task_ends_once_and_blocks_nobody() {
        let mut set = TaskSet::default();
        let (ordered, simple) = (add(&mut set, Attribute::Ordered), add(&mut set, Attribute::Simple));
        assert_eq!(set.start(simple, None), Start::Wait);
        let (running, nexuses) = set.abort(|_, tag| tag == 0, |_| Aborted::Silent);
        assert_eq!((running, nexuses), (vec![], vec![1]));
        assert_eq!(set.start(simple, None), Start::Go);
        assert_eq!(set.start(ordered, None), Start::Aborted(Aborted::Silent));
        assert_eq!(set.remove(ordered), Some(Aborted::Silent));
        let (running, _) = set.abort(|_, _| true, |_| Aborted::WithStatus);
        assert_eq!(running, [simple]);
        assert!(set.is_draining(&running, Waker::noop()));
        let again = set.abort(|_, _| true, |_| Aborted::Silent);
        assert_eq!(again, (vec![simple], vec![]), "whoever asks later waits for it, too");
        assert_eq!(set.remove(simple), Some(Aborted::WithStatus));
        assert!(!set.is_draining(&running, Waker::noop()));
        assert_eq!((set.len(), set.special, set.waiting), (0, 0, 0));
    }

    #[test]
    fn the_set_is_bounded() {
        let mut set = TaskSet::default();
        for _ in 0..MAX_TASKS {
            add(&mut set, Attribute::Simple);
        }
        assert_eq!(set.insert(1, 0, Attribute::Simple, None), None);
    }
}
