//! Credits across the socket, for either end: what may be sent, and what room is granted, a lane each.
//!
//! As in IBTA §7.9.4 both are totals since the attachment began, modulo 2^32, so that a message lost to a full socket is
//! made good by the next one. Who counts wrongly has broken the protocol; see `message.rs`.

use super::message::{LANES, WINDOW, allows};

/// How much room must have become free before it is told: a quarter of the window.
const WORTH_TELLING: u32 = WINDOW / 4;

/// One end's books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Packets sent.
    sent: [u32; LANES],
    /// Packets that may have been sent.
    limit: [u32; LANES],
    /// Packets received.
    received: [u32; LANES],
    /// Packets received that take no room any more.
    consumed: [u32; LANES],
    /// Packets that the other end has been told it may have sent.
    told: [u32; LANES],
}

impl Default for Credits {
    /// Both ends begin with a window of room on every lane.
    fn default() -> Credits {
        Credits {
            sent: [0; LANES],
            limit: [WINDOW; LANES],
            received: [0; LANES],
            consumed: [0; LANES],
            told: [WINDOW; LANES],
        }
    }
}

impl Credits {
    /// Whether a packet of this lane may be sent.
    pub fn may_send(&self, lane: u8) -> bool {
        allows(self.limit[at(lane)], self.sent[at(lane)])
    }

    /// One was sent.
    pub fn sent(&mut self, lane: u8) {
        self.sent[at(lane)] = self.sent[at(lane)].wrapping_add(1);
    }

    /// The other end says how many may have been sent. False if that is less than before, or more than a window ahead.
    #[must_use]
    pub fn granted(&mut self, lane: u8, total: u32) -> bool {
        let before = &mut self.limit[at(lane)];
        let legal =
            total.wrapping_sub(*before) <= WINDOW && total.wrapping_sub(self.sent[at(lane)]) <= WINDOW;
        if legal {
            *before = total;
        }
        legal
    }

    /// One arrived. False if there was no credit for it.
    #[must_use]
    pub fn received(&mut self, lane: u8) -> bool {
        let lane = at(lane);
        let legal = allows(self.told[lane], self.received[lane]);
        self.received[lane] = self.received[lane].wrapping_add(1);
        legal
    }

    /// One of those that arrived takes no room any more.
    pub fn consumed(&mut self, lane: u8) {
        self.consumed[at(lane)] = self.consumed[at(lane)].wrapping_add(1);
    }

    /// The next lane whose room is worth telling of, and the total to tell. It counts as told.
    pub fn next_grant(&mut self) -> Option<(u8, u32)> {
        (0..LANES).find_map(|lane| {
            let total = self.consumed[lane].wrapping_add(WINDOW);
            let worth = total.wrapping_sub(self.told[lane]) >= WORTH_TELLING;
            worth.then(|| {
                self.told[lane] = total;
                (lane as u8, total)
            })
        })
    }
}

fn at(lane: u8) -> usize {
    usize::from(lane) % LANES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_used_up_and_renewed_and_nothing_beyond_it_is_legal() {
        let (mut a, mut b) = (Credits::default(), Credits::default());
        for round in 0..10 {
            let mut moved = 0;
            while a.may_send(3) {
                a.sent(3);
                assert!(b.received(3), "round {round}");
                moved += 1;
            }
            assert!(moved > 0 && moved <= WINDOW);
            assert!(!b.clone().received(3) || moved < WINDOW, "one more is one too many");
            (0..moved).for_each(|_| b.consumed(3));
            let (lane, total) = b.next_grant().unwrap();
            assert_eq!(lane, 3);
            assert!(a.granted(lane, total));
            assert_eq!(b.next_grant(), None);
        }
        assert!(a.may_send(15), "lanes are apart");
        assert!(!a.granted(3, 5), "credits never go back");
    }

    #[test]
    fn totals_wrap() {
        let near = u32::MAX - 3;
        let mut a = Credits { sent: [near; LANES], limit: [near; LANES], ..Credits::default() };
        assert!(!a.may_send(0));
        assert!(a.granted(0, near.wrapping_add(8)));
        (0..8).for_each(|_| {
            assert!(a.may_send(0));
            a.sent(0);
        });
        assert!(!a.may_send(0));
    }
}
