//! The request limit at both ends: how many requests an initiator may have outstanding. SRP r16a §5.4.
//!
//! Every response carries a delta. A request that ends without a response (an aborted task) still gives its place back: with the
//! next response, or with SRP_CRED_REQ when none will come soon. An initiator keeps one place for task management.

/// The target's side.
#[derive(Debug)]
pub struct RequestLimit {
    /// Places in all.
    limit: i32,
    /// Requests that the initiator may still send.
    open: i32,
    /// Requests that have neither been answered nor ended.
    active: i32,
    /// Places to give back.
    owed: i32,
}

impl RequestLimit {
    /// As the login response says.
    pub fn new(limit: u16) -> Self {
        Self { limit: limit.into(), open: limit.into(), active: 0, owed: 0 }
    }

    /// A request came. False: it was one too many.
    #[must_use]
    pub fn take(&mut self) -> bool {
        let may = self.open > 0;
        if may {
            self.open -= 1;
            self.active += 1;
        }
        may
    }

    /// A request ends; with a response, [`RequestLimit::delta`] comes next.
    pub fn end(&mut self) {
        self.active -= 1;
        self.owed += 1;
        debug_assert!(self.active >= 0 && self.open + self.active + self.owed == self.limit);
    }

    /// REQUEST LIMIT DELTA of whatever is sent now.
    pub fn delta(&mut self) -> i32 {
        let delta = std::mem::take(&mut self.owed);
        self.open += delta;
        delta
    }

    /// Whether places wait that no response will bring soon.
    pub fn is_stranded(&self) -> bool {
        self.owed > 0 && (self.active == 0 || self.open <= self.limit / 4)
    }

    /// Requests that have not ended.
    pub fn active(&self) -> usize {
        self.active.max(0) as usize
    }
}

/// The initiator's side.
#[derive(Debug)]
pub struct Credits {
    /// Requests that may be sent now.
    available: i32,
}

/// Places that commands leave to task management.
const RESERVED: i32 = 1;

impl Credits {
    /// As the login response says.
    pub fn new(limit: i32) -> Self {
        Self { available: limit }
    }

    /// Takes a place for a command.
    #[must_use]
    pub fn take_for_command(&mut self) -> bool {
        let may = self.has_room();
        if may {
            self.available -= 1;
        }
        may
    }

    /// Takes a place for task management.
    #[must_use]
    pub fn take_for_management(&mut self) -> bool {
        let may = self.available > 0;
        if may {
            self.available -= 1;
        }
        may
    }

    /// Whether a command may be sent.
    pub fn has_room(&self) -> bool {
        self.available > RESERVED
    }

    /// A REQUEST LIMIT DELTA came; a hostile one does not wrap.
    pub fn add(&mut self, delta: i32) {
        self.available = self.available.saturating_add(delta);
    }

    /// Requests that may be sent now.
    pub fn available(&self) -> i32 {
        self.available
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_the_ends() {
        let (mut target, mut initiator) = (RequestLimit::new(8), Credits::new(8));
        for _ in 0..7 {
            assert!(initiator.take_for_command() && target.take());
        }
        assert!(!initiator.take_for_command(), "one is kept");
        assert!(initiator.take_for_management() && target.take());
        assert!(!target.take(), "one too many");
        // Seven end in silence, the eighth brings all of their places.
        (0..7).for_each(|_| target.end());
        assert!(target.is_stranded(), "the initiator can send nothing");
        target.end();
        initiator.add(target.delta());
        assert_eq!((initiator.available(), target.active(), target.is_stranded()), (8, 0, false));
    }

    #[test]
    fn hostile_deltas_do_not_wrap() {
        let mut credits = Credits::new(i32::MAX);
        credits.add(i32::MAX);
        assert!(credits.has_room());
        credits.add(i32::MIN);
        credits.add(i32::MIN);
        assert!(!credits.has_room() && !credits.take_for_management());
    }
}
