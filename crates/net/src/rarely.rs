//! Lines that strangers could make too many of: one at once, then one in ten seconds with the number of those left out.

use std::time::{Duration, Instant};

/// How long after a line none follows.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// One kind of line.
#[derive(Debug, Default)]
pub(crate) struct Rarely {
    last: Option<Instant>,
    untold: u64,
    /// All that was noted.
    pub(crate) total: u64,
}

impl Rarely {
    /// Notes `more`; how many there were since the last line, if another is due.
    pub(crate) fn note(&mut self, now: Instant, more: u64) -> Option<u64> {
        self.total += more;
        self.untold += more;
        if self.last.is_some_and(|at| now.saturating_duration_since(at) < AGAIN_AFTER) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_together() {
        let (mut line, start) = (Rarely::default(), Instant::now());
        assert_eq!(line.note(start, 3), Some(3));
        for after in 1..10 {
            assert_eq!(line.note(start + Duration::from_secs(after), 2), None);
        }
        assert_eq!((line.note(start + AGAIN_AFTER, 1), line.total), (Some(19), 22));
    }
}
