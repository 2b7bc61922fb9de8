//! Names of queues and controllers inside a target.
//!
//! They count up and are never reused, so a stale one finds nothing; hosts cannot choose them.

/// A queue of an association, for as long as its connection lives. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(u64);

/// A controller, within the whole target. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ControllerKey(u64);

impl QueueId {
    pub(super) fn new(count: u64) -> Self {
        Self(count)
    }
}

impl ControllerKey {
    pub(super) fn new(count: u64) -> Self {
        Self(count)
    }
}
