//! How many lines a peer may put into the log. What peers provoke (refusals, comings and goings, broken commands) is their
//! choice, and a hostile one's packets must not become as many lines; so each listener has an allowance a period, and what
//! went beyond it is told in one line at the period's end. It reads no clock: whoever serves calls [`PeerLog::renew`].

use std::cell::Cell;
use std::rc::Rc;

use crate::rt::{Notify, Rt};

/// Lines a period about what went wrong.
const WARNINGS: u32 = 10;
/// Lines a period about connections that come and go as they should: a host with many queues brings many at once.
const EVENTS: u32 = 200;
/// The period.
const PERIOD: std::time::Duration = std::time::Duration::from_secs(1);

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Something refused, broken or given up.
    Trouble,
    /// Something that is as it should be.
    Event,
}

/// One kind's allowance.
struct Allowance {
    lines: u32,
    used: Cell<u32>,
    left_out: Cell<u64>,
}

impl Allowance {
    fn new(lines: u32) -> Self {
        Self { lines, used: Cell::new(0), left_out: Cell::new(0) }
    }

    fn take(&self) -> bool {
        let may = self.used.get() < self.lines;
        if may {
            self.used.set(self.used.get() + 1);
        } else {
            self.left_out.set(self.left_out.get() + 1);
        }
        may
    }

    fn renew(&self) -> u64 {
        self.used.set(0);
        self.left_out.take()
    }
}

/// The allowance of one listener's peers.
pub struct PeerLog {
    trouble: Allowance,
    event: Allowance,
    used: Notify,
}

impl Default for PeerLog {
    fn default() -> Self {
        Self { trouble: Allowance::new(WARNINGS), event: Allowance::new(EVENTS), used: Notify::new() }
    }
}

impl PeerLog {
    /// One that is renewed from now on; `whose` is the listener.
    pub fn kept(rt: &Rt, whose: impl std::fmt::Display + 'static) -> Rc<Self> {
        let log = Rc::new(Self::default());
        let (its_rt, kept) = (rt.clone(), log.clone());
        rt.spawn(async move { kept.keep(&its_rt, &whose).await });
        log
    }

    /// Whether a line may be written; counted either way.
    pub fn may(&self, about: About) -> bool {
        self.used.notify_one();
        match about {
            About::Trouble => self.trouble.take(),
            About::Event => self.event.take(),
        }
    }

    /// A new period begins; says what the last one left out. `whose` is the listener.
    pub fn renew(&self, whose: &dyn std::fmt::Display) {
        let (trouble, event) = (self.trouble.renew(), self.event.renew());
        if trouble != 0 {
            tracing::warn!("{whose}: {trouble} more like this left out");
        }
        if event != 0 {
            tracing::info!("{whose}: {event} more lines about connections left out");
        }
    }

    /// Renews, for as long as it is polled; waits for lines, so that a quiet listener costs nothing.
    pub async fn keep(&self, rt: &Rt, whose: &dyn std::fmt::Display) {
        loop {
            self.used.notified().await;
            rt.sleep(PERIOD).await;
            self.renew(whose);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_allowance_lines_are_counted_and_not_written() {
        let log = PeerLog::default();
        let written = (0..1000).filter(|_| log.may(About::Trouble)).count();
        assert_eq!(written, 10);
        assert!(log.may(About::Event), "trouble does not silence what is as it should be");
        assert_eq!(log.trouble.renew(), 990);
        assert!(log.may(About::Trouble));
        assert_eq!(log.trouble.renew(), 0, "told once");
    }
}
