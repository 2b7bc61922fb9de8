//! Unit attention conditions: one queue for each I_T nexus and logical unit. SAM-5 §5.14.
//!
//! Conditions are reported in the order in which they were established, each once; the same condition is not queued
//! twice (§5.14.2 lets a device server keep one), which bounds the queue by the number of codes. A pending one is seen
//! by one atomic load on the path of every command.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock;
use crate::sense::Asc;

/// Pending unit attentions of one nexus at one logical unit.
#[derive(Debug, Default)]
pub(crate) struct UnitAttentions {
    queue: Mutex<VecDeque<Asc>>,
    pending: AtomicBool,
}

impl UnitAttentions {
    /// Adds a condition. A reset makes every other condition meaningless and replaces them (SAM-5 §5.14.2, table 48).
    pub(crate) fn establish(&self, asc: Asc) {
        let mut queue = lock(&self.queue);
        if matches!(asc, Asc::POWER_ON_OR_RESET | Asc::BUS_DEVICE_RESET) {
            queue.clear();
        }
        if !queue.contains(&asc) {
            queue.push_back(asc);
        }
        self.pending.store(true, Ordering::Release);
    }

    /// Whether there is one. Cheap.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes the oldest one: it is about to be reported.
    pub(crate) fn take(&self) -> Option<Asc> {
        let mut queue = lock(&self.queue);
        let first = queue.pop_front();
        self.pending.store(!queue.is_empty(), Ordering::Release);
        first
    }

    /// Drops one condition, because a command made it known.
    pub(crate) fn clear(&self, asc: Asc) {
        let mut queue = lock(&self.queue);
        queue.retain(|pending| *pending != asc);
        self.pending.store(!queue.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_once_in_order() {
        let attentions = UnitAttentions::default();
        assert!(!attentions.is_pending());
        attentions.establish(Asc::MODE_PARAMETERS_CHANGED);
        attentions.establish(Asc::REPORTED_LUNS_CHANGED);
        attentions.establish(Asc::MODE_PARAMETERS_CHANGED);
        assert_eq!(attentions.take(), Some(Asc::MODE_PARAMETERS_CHANGED));
        assert!(attentions.is_pending());
        attentions.clear(Asc::REPORTED_LUNS_CHANGED);
        assert!(!attentions.is_pending());
        assert_eq!(attentions.take(), None);
    }

    #[test]
    fn a_reset_replaces_the_rest() {
        let attentions = UnitAttentions::default();
        attentions.establish(Asc::MODE_PARAMETERS_CHANGED);
        attentions.establish(Asc::BUS_DEVICE_RESET);
        assert_eq!(attentions.take(), Some(Asc::BUS_DEVICE_RESET));
        assert_eq!(attentions.take(), None);
    }
}
