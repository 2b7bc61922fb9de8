//! Nudges: empty WRITEs of an initiator whose first words have brought no answer yet.
//!
//! Read RFC 5044 §7.1 (the initiator sends the first FPDU, and may as soon as it has the reply) first. Linux siw sends MPA's
//! reply before it takes the socket over. What comes in between lies in its socket and wakes nobody, until something else
//! comes. So until the peer's first FPDU an initiator that has nothing else to send says something that does nothing: a WRITE
//! of no bytes (RFC 5040 §5.1 lets no receiver look at its STag), a few times, ever further apart. Who answers in time never
//! sees one.

use std::time::{Duration, Instant};

/// From what was sent last to the first nudge. The others follow after twice the time before.
pub const FIRST_NUDGE: Duration = Duration::from_millis(50);
/// How many there are at most: the last about 13 s after the first words.
pub const MAX_NUDGES: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Nudge {
    /// Those still to come; none at a responder, nor once the peer was heard of.
    left: u32,
    due: Option<Instant>,
    owed: bool,
}

impl Nudge {
    /// Of an initiator at the beginning of its stream.
    pub(super) fn begin() -> Nudge {
        Nudge { left: MAX_NUDGES, ..Nudge::default() }
    }

    /// No more of them: the peer was heard of, or the connection ends.
    pub(super) fn stop(&mut self) {
        if self.left > 0 || self.owed {
            *self = Nudge::default();
        }
    }

    /// Something was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.owed = false;
        if self.left > 0 && self.due.is_none() {
            self.due = now.checked_add(FIRST_NUDGE * (1 << (MAX_NUDGES - self.left)));
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether one is to be sent, if nothing else is.
    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// Time has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.left -= 1;
            self.owed = true;
        }
    }
}
