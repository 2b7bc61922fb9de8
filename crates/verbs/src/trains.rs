//! The order of a target's sends: the data of several commands, then their answers.
//!
//! Equal packets make trains (docs/performance.md), so the RDMA WRITEs of short commands go together, and then what was pushed
//! between them. Each WRITE stays ahead of what was pushed behind it; a train's worth of data at most keeps an answer waiting.

use crate::{SendOp, SendWr};

/// Bytes of data that answers wait behind: about what one UDP train carries.
const TRAIN: u64 = 60 << 10;

/// Work requests that are collected to be posted together.
#[derive(Default)]
pub struct Trains {
    /// In the order of posting.
    work: Vec<SendWr>,
    /// What follows the data that is yet to come in this train.
    behind: Vec<SendWr>,
    /// Bytes of data in the train.
    data: u64,
}

impl Trains {
    /// Adds one. A WRITE without a completion may go before what was pushed ahead of it; anything else keeps its place, so that
    /// completions come in the order of pushing.
    pub fn push(&mut self, wr: SendWr) {
        match wr.op {
            SendOp::Write { .. } if !wr.signaled => {
                let len = wr.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
                if self.data + len > TRAIN {
                    self.close();
                }
                self.data += len;
                self.work.push(wr);
            }
            _ => self.behind.push(wr),
        }
    }

    /// Whether there is nothing to post.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty() && self.behind.is_empty()
    }

    /// All that was pushed, in the order to post it in.
    pub fn drain(&mut self) -> impl Iterator<Item = SendWr> {
        self.close();
        self.work.drain(..)
    }

    fn close(&mut self) {
        self.data = 0;
        self.work.append(&mut self.behind);
    }
}

#[cfg(test)]
mod tests {
    use everywire_wire::RKey;

    use super::*;
    use crate::{LKey, Remote, Sge};

    fn write(id: u64, length: u32) -> SendWr {
        let remote = Remote { addr: 0, rkey: RKey(0) };
        let sge = Sge { addr: 0, length, lkey: LKey(0) };
        SendWr::new(id, SendOp::Write { remote }).with_sges([sge]).unsignaled()
    }

    fn order(trains: &mut Trains) -> Vec<u64> {
        trains.drain().map(|wr| wr.wr_id).collect()
    }

    #[test]
    fn data_goes_together_and_stays_ahead_of_its_answer() {
        let mut trains = Trains::default();
        for id in [0, 2, 4] {
            trains.push(write(id, 4096));
            trains.push(SendWr::new(id + 1, SendOp::Send));
        }
        assert_eq!(order(&mut trains), [0, 2, 4, 1, 3, 5]);
        assert!(trains.is_empty());
    }

    #[test]
    fn a_train_is_as_long_as_udp_carries() {
        let mut trains = Trains::default();
        for id in [0, 2, 4] {
            trains.push(write(id, 40 << 10));
            trains.push(SendWr::new(id + 1, SendOp::Send));
        }
        assert_eq!(order(&mut trains), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_not_data_keeps_its_order() {
        let mut trains = Trains::default();
        trains.push(SendWr::new(0, SendOp::Send));
        trains.push(SendWr::new(1, SendOp::LocalInv(RKey(7))));
        trains.push(SendWr { signaled: true, ..write(2, 64) });
        assert_eq!(order(&mut trains), [0, 1, 2]);
    }
}
