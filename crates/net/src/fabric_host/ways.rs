//! When to look which hosts have no way to the subnet manager, and when to tell: soon after a sweep or a change of cables, at
//! most once a second, and only what is new.

use std::time::{Duration, Instant};

use super::built::Built;
use super::plan::PortRef;

/// How long after what may have changed something; and the least time between two looks.
const SETTLE: Duration = Duration::from_secs(1);

/// What was told last, and when to look again.
#[derive(Debug)]
pub(super) struct Ways {
    due: Option<Instant>,
    told: Vec<PortRef>,
}

impl Ways {
    pub(super) fn new(now: Instant) -> Ways {
        Ways { due: Some(now + SETTLE), told: Vec::new() }
    }

    /// Something may have changed.
    pub(super) fn want(&mut self, now: Instant) {
        self.due.get_or_insert(now + SETTLE);
    }

    /// When to look.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.due
    }

    /// The names of ports without a way, if they are others than the last time.
    pub(super) fn look(&mut self, built: &Built, now: Instant) -> Option<Vec<String>> {
        self.due.take_if(|due| *due <= now)?;
        let found = built.plan.without_way(|link| built.plugged[link]);
        if found == self.told {
            return None;
        }
        let names = found.iter().map(|port| built.plan.port_name(*port)).collect();
        self.told = found;
        Some(names)
    }
}
