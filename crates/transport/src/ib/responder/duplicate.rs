//! Requests that were executed before: acknowledged again, READ again, or answered from the atomic replay cache.
//!
//! Read IBTA vol. 1 §9.7.4.5 (duplicate requests) and §9.7.7 (what the responder must remember) first. A SEND or WRITE is
//! never executed twice; a READ may be, in whole or from a later packet on; an atomic's first result is given again.
//! Nothing here touches the place within the current message (cases RX-01).

use std::time::Instant;

use everywire_wire::{Opcode, Psn, RKey, Reth, RocePacket};

use super::Responder;
use super::execute::check_remote;
use super::pace::Mark;
use crate::ib::env::{Counter, QpEnv};
use crate::ib::shared::Shared;
use crate::memory::Access;

/// A READ or atomic that was executed and may be asked for again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executed {
    pub(super) first: Psn,
    pub(super) packets: u32,
    /// Message sequence number that its answer carries.
    pub(super) msn: u32,
    /// When the request came.
    at: Instant,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Read { va: u64, rkey: RKey, length: u32 },
    Atomic { opcode: Opcode, original: u64 },
}

impl Executed {
    pub(super) fn read(first: Psn, packets: u32, reth: &Reth, msn: u32, at: Instant) -> Executed {
        Executed {
            first,
            packets,
            msn,
            at,
            what: What::Read { va: reth.va, rkey: reth.rkey, length: reth.length },
        }
    }

    pub(super) fn atomic(first: Psn, opcode: Opcode, original: u64, msn: u32, at: Instant) -> Executed {
        Executed { first, packets: 1, msn, at, what: What::Atomic { opcode, original } }
    }

    fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    pub(super) fn holds(&self, psn: Psn) -> bool {
        self.first.at_or_before(psn) && psn.before(self.end())
    }

    /// The rest of this READ from `psn` on, if that is exactly what `reth` asks for (IBTA C9-108: a repeated READ may
    /// begin later, but lies within the original).
    fn resume(&self, psn: Psn, reth: &Reth, mtu: usize) -> Option<Executed> {
        let What::Read { va, rkey, length } = self.what else { return None };
        let skipped = self.first.distance(psn) as u32 * mtu as u32;
        let rest = length - skipped.min(length);
        let same = reth.rkey == rkey && reth.va == va.wrapping_add(u64::from(skipped)) && reth.length <= rest;
        let packets = (reth.length as usize).div_ceil(mtu).max(1) as u32;
        same.then(|| Executed::read(psn, packets, reth, self.msn, self.at))
    }
}

impl Responder {
    /// Keeps a READ or atomic for repetition; the oldest makes room (IBTA C9-88: as many as may be outstanding).
    pub(super) fn remember(&mut self, sh: &Shared, done: Executed) {
        while self.executed.len() >= sh.max_dest_rd_atomic.max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(done);
    }

    pub(super) fn handle_duplicate<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) {
        env.count(Counter::DuplicateRequest, 1);
        let (opcode, psn) = (packet.bth.opcode, packet.bth.psn);
        if opcode.is_send() || opcode.is_write() {
            // Never a READ response's PSN: that would acknowledge data that may be lost (cases RX-02).
            self.replies.acknowledge(env, self.ack_psn, now, false);
            return;
        }
        let Some(done) = self.executed.iter().find(|e| e.holds(psn)).copied() else { return };
        match (packet.reth, done.what) {
            (Some(reth), What::Read { .. }) => {
                // A key that was withdrawn since then is no reason to end the connection: the answer is not needed.
                if let Some(rest) = done.resume(psn, &reth, sh.mtu)
                    && check_remote(sh, env, &reth, Access::REMOTE_READ).is_ok()
                {
                    let requests = self.executed.iter().map(|e| Mark { psn: e.first, at: e.at });
                    self.replies.note_repeat(Mark { psn, at: now }, psn == done.first, self.epsn, requests);
                    self.replies.queue_read_again(&rest, &done);
                }
            }
            // IBTA C9-150: executed once, answered from memory.
            (None, What::Atomic { opcode: original, .. }) if original == opcode => {
                self.replies.queue_atomic_again(&done);
            }
            _ => {}
        }
    }
}
