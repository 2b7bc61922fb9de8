//! The clock's way in.
//!
//! Each connection and each SIDR exchange has one timer; this runs those that are due, earliest first.

use std::time::Instant;

use super::Cm;

impl Cm {
    /// Runs every timer due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.conns.next_timer()
            && at <= now
        {
            self.on_timer(now, id);
        }
        while let Some((at, id)) = self.sidrs.next_timer()
            && at <= now
        {
            self.on_sidr_timer(now, id);
        }
    }
}
