//! How much of the windows one burst may use: the peer's for requests, our own for READ responses.
//!
//! Read `congestion::window` first. Windows are read once before a burst and charged once after it. A closed window is
//! passed by two exceptions only: the overdraft after long waiting, and a READ's repetition, which has to ask for all
//! that it is short of.

use super::{READ_RUN_BYTES, Requester, read_cost};
use crate::ib::env::QpEnv;
use crate::ib::shared::Shared;

/// What the windows leave for this burst.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) free: usize,
    pub(super) spent: usize,
    pub(super) read_free: usize,
    pub(super) read_spent: usize,
    /// One packet may go although a window is closed.
    pub(super) overdraft: bool,
    /// Nothing may go beside what is in flight.
    pub(super) probing: bool,
}

impl Budget {
    pub(super) fn admits(&self, cost: usize) -> bool {
        let within = self.spent + cost <= self.free;
        (within || (self.overdraft && self.spent == 0)) && !(self.probing && self.spent > 0)
    }

    /// Whether a READ may ask for responses of this cost. A repetition has to ask for all that it is short of, so with
    /// none of our own under way room for one packet will do.
    pub(super) fn admits_read(&self, cost: usize, charged: usize, one_packet: usize) -> bool {
        let within = self.read_spent + cost <= self.read_free;
        let idle = charged + self.read_spent == 0;
        within || (idle && (self.overdraft || self.read_free >= one_packet))
    }

    /// Whether a packet of this cost leaves no room for another like it.
    pub(super) fn closes(&self, cost: usize) -> bool {
        self.probing || self.spent + 2 * cost > self.free
    }
}

impl Requester {
    pub(super) fn budget<E: QpEnv>(&self, sh: &Shared, env: &mut E) -> Budget {
        let (free, read_free) = if sh.is_rc() {
            (env.window(sh.path.dst).available(), env.read_window().available())
        } else {
            (usize::MAX / 2, 0)
        };
        let answer_due = self.charged > 0 && self.unasked == 0;
        Budget {
            free,
            spent: 0,
            read_free,
            read_spent: 0,
            overdraft: self.overdraft && !answer_due,
            probing: self.probing,
        }
    }

    pub(super) fn settle<E: QpEnv>(&mut self, sh: &Shared, env: &mut E, budget: &Budget) {
        if !sh.is_rc() {
            return;
        }
        if budget.spent > 0 {
            self.charged += budget.spent;
            env.window(sh.path.dst).charge(budget.spent);
        }
        if budget.read_spent > 0 {
            self.read_charged += budget.read_spent;
            env.read_window().charge(budget.read_spent);
        }
    }

    /// How many packets to ask for with one new READ request; 0: better wait until more of our window is free.
    pub(super) fn read_run(&self, sh: &Shared, budget: &Budget, left: u32) -> u32 {
        let most = left.min((READ_RUN_BYTES / sh.mtu) as u32);
        let free = budget.read_free.saturating_sub(budget.read_spent) / read_cost(sh.mtu, 1);
        let idle = self.read_charged + budget.read_spent == 0;
        match (free as u32).min(most) {
            0 if idle && budget.overdraft => 1,
            fits if fits == most || idle => fits,
            // Small runs cost as much to answer as large ones.
            fits if fits * 2 >= most => fits,
            _ => 0,
        }
    }
}
