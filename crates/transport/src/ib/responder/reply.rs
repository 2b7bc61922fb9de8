//! The responder's answers on their way out: READ responses, atomic responses, ACKs and NAKs.
//!
//! Read IBTA vol. 1 §9.7.5.1 (generating responses) and §9.7.5.1.9 (coalescing). READ and atomic answers wait in PSN
//! order, each request at most once, so that a repetition rewinds an answer instead of adding one: memory is bounded by
//! the responder resources. After a rewind they are paced (`pace`). One pending ACK stands for all before it; it and the NAK leave after the queue is empty. One
//! burst a poll is all that leaves at once.

use std::collections::VecDeque;
use std::time::Instant;

use everywire_wire::{Aeth, AtomicAckEth, Opcode, Psn, RKey, Syndrome};

use super::ACK_DELAY;
use super::duplicate::{Executed, What};
use super::execute::access;
use super::pace::{Mark, Pace};
use crate::ib::burst::Burst;
use crate::ib::env::{Counter, QpEnv};
use crate::ib::shared::Shared;
use crate::memory::{Access, AccessError, Memory};

/// An answer that is being sent.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// First packet of this run of responses.
    first: Psn,
    packets: u32,
    /// Packets of the run already sent.
    sent: u32,
    msn: u32,
    /// Asked for again after it had been sent in full: holds none of the agreed resources.
    again: bool,
    what: Content,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    Read { va: u64, rkey: RKey, length: u32 },
    Atomic { original: u64 },
}

impl Answer {
    fn of(run: &Executed, again: bool) -> Answer {
        let what = match run.what {
            What::Read { va, rkey, length } => Content::Read { va, rkey, length },
            What::Atomic { original, .. } => Content::Atomic { original },
        };
        Answer { first: run.first, packets: run.packets, sent: 0, msn: run.msn, again, what }
    }

    fn next(&self) -> Psn {
        self.first.add(self.sent)
    }
}

/// An acknowledgement owed.
#[derive(Clone, Copy, Debug)]
struct Ack {
    psn: Psn,
    /// It may wait until then for a packet to ride behind.
    due: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Nak {
    psn: Psn,
    syndrome: Syndrome,
    fatal: bool,
}

#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Answer>,
    pace: Pace,
    ack: Option<Ack>,
    nak: Option<Nak>,
    /// The NAK that ended the connection, for repetition.
    refusal: Option<Nak>,
    /// Nothing waits for a ride any more.
    hurried: bool,
    /// The pending ACK or NAK could not ride behind the last burst: it is the next one.
    missed: bool,
}

impl Replies {
    /// Answers that hold the resources agreed for READs and atomics.
    pub(super) fn queued(&self) -> usize {
        self.queue.iter().filter(|a| !a.again).count()
    }

    pub(super) fn queue_read(&mut self, run: &Executed, now: Instant) {
        // Its response acknowledges what came before (IBTA §9.7.5.1.1).
        if self.ack.is_some_and(|a| a.psn.before(run.first)) {
            self.ack = None;
        }
        self.pace.asked(run.packets, now);
        self.queue.push_back(Answer::of(run, false));
    }

    pub(super) fn queue_atomic(&mut self, run: &Executed, now: Instant) {
        self.queue_read(run, now);
    }

    /// Answers from `to` on are asked for again; for the rest see [`Pace::rewound`]. Those that wait are no loss.
    pub(super) fn note_repeat(
        &mut self,
        to: Mark,
        whole: bool,
        newest: Psn,
        requests: impl Iterator<Item = Mark>,
    ) {
        let sent = self.queue.front().is_none_or(|a| to.psn.before(a.next()));
        if sent && !self.hurried {
            self.pace.rewound(to, whole, newest, requests);
        }
    }

    /// The READ `whole` was asked for again from the start of `rest`.
    pub(super) fn queue_read_again(&mut self, rest: &Executed, whole: &Executed) {
        if let Some(waiting) = self.queue.iter_mut().find(|a| whole.holds(a.first)) {
            // Still under way: it only has to go back, if it is past that point.
            if rest.first.before(waiting.next()) {
                *waiting = Answer::of(rest, waiting.again);
            }
            return;
        }
        self.insert(Answer::of(rest, true));
    }

    pub(super) fn queue_atomic_again(&mut self, run: &Executed) {
        if !self.queue.iter().any(|a| a.first == run.first) {
            self.insert(Answer::of(run, true));
        }
    }

    fn insert(&mut self, answer: Answer) {
        let at = self.queue.iter().position(|a| answer.first.before(a.first)).unwrap_or(self.queue.len());
        self.queue.insert(at, answer);
    }

    /// Owes an ACK for everything up to `psn`. `may_ride`: it may wait a moment for a packet to ride behind, if it is
    /// the only one.
    pub(super) fn acknowledge<E: QpEnv>(&mut self, env: &mut E, psn: Psn, now: Instant, may_ride: bool) {
        let due = match self.ack {
            None if may_ride && !self.hurried => {
                env.count(Counter::AckDeferred, 1);
                now + ACK_DELAY
            }
            _ => now,
        };
        self.ack = Some(Ack { psn, due });
    }

    /// Owes a NAK; it stands for a pending ACK as well. `fatal`: nothing is answered after it.
    pub(super) fn nak(&mut self, psn: Psn, syndrome: Syndrome, fatal: bool) {
        self.ack = None;
        let nak = Nak { psn, syndrome, fatal };
        if fatal {
            self.refusal = Some(nak);
        }
        self.nak = Some(nak);
    }

    /// The refused request came again: so does its NAK.
    pub(super) fn repeat_refusal(&mut self, psn: Psn) -> bool {
        match self.refusal.filter(|n| n.psn == psn) {
            Some(nak) => {
                self.nak = Some(nak);
                true
            }
            None => false,
        }
    }

    /// The queue pair left the states that answer.
    pub(super) fn wind_up(&mut self) {
        if self.nak.is_none_or(|n| !n.fatal) {
            self.queue.clear();
            self.nak = None;
        }
        self.hurry();
    }

    /// Nothing waits for a ride any more, nor for its time.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
        self.pace.end();
    }

    /// Whether the pending ACK or NAK comes before any other packet.
    pub(super) fn missed_a_ride(&self) -> bool {
        self.missed && self.queue.is_empty() && (self.ack.is_some() || self.nak.is_some())
    }

    /// When the pending ACK stops waiting, or the next answer.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.queue.is_empty() { self.ack.map(|a| a.due) } else { self.pace.poll_timeout() }
    }

    /// READ and atomic responses, as many as fit and may leave. An error: memory that was checked before can no longer be read.
    pub(super) fn transmit<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
    ) -> Result<(), Psn> {
        let before = burst.packets();
        let most = if self.queue.is_empty() { 0 } else { self.pace.allowance(now) as usize };
        while burst.packets() - before < most
            && let Some(answer) = self.queue.front_mut()
        {
            let psn = answer.next();
            match emit(sh, env, burst, answer) {
                Ok(true) => answer.sent += 1,
                Ok(false) => break,
                // The key went after the repetition was queued. The requester has its data, or it could not have let
                // the key go.
                Err(_) if answer.again => answer.sent = answer.packets,
                Err(_) => {
                    self.queue.clear();
                    return Err(psn);
                }
            }
            if answer.sent == answer.packets {
                self.queue.pop_front();
            }
        }
        let sent = burst.packets() - before;
        self.pace.sent(sent as u32);
        env.count(Counter::SentPkts, sent as u64);
        Ok(())
    }

    /// The pending NAK or ACK, if it is due (or rides behind request packets) and all answers before it are out.
    ///
    /// It rides behind two packets and more. A single one leaves alone, since a train of two arrives later than it would
    /// (docs/performance.md); the ACK is the next burst then, as it is where a shorter packet has ended the train.
    pub(super) fn transmit_ack<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
        msn: u32,
    ) {
        if !self.queue.is_empty() {
            return;
        }
        let riding = burst.packets() > 1;
        if !burst.is_empty() && (!riding || !burst.admits(Opcode::RC_ACK.header_len(), 0)) {
            self.missed = self.ack.is_some() || self.nak.is_some();
            return;
        }
        let (psn, syndrome) = match (self.nak, self.ack) {
            (Some(nak), _) => (nak.psn, nak.syndrome),
            // IBTA §9.7.5.1.1: no end-to-end credits are kept, which code 31 says.
            (None, Some(ack)) if riding || self.hurried || self.missed || ack.due <= now => {
                (ack.psn, Syndrome::ACK_NO_CREDITS)
            }
            _ => return,
        };
        let mut packet = sh.packet(Opcode::RC_ACK, psn);
        packet.aeth = Some(Aeth { syndrome, msn });
        let pushed: Result<(), std::convert::Infallible> = burst.push(&sh.path, &packet, 0, |_| Ok(()));
        debug_assert!(pushed.is_ok());
        (self.nak, self.ack, self.missed) = (None, None, false);
        env.count(Counter::SentPkts, 1);
    }
}

/// One packet of an answer; false if the burst has no room for it.
fn emit<E: QpEnv>(sh: &Shared, env: &mut E, burst: &mut Burst, answer: &Answer) -> Result<bool, AccessError> {
    let aeth = Aeth { syndrome: Syndrome::ACK_NO_CREDITS, msn: answer.msn };
    match answer.what {
        Content::Atomic { original } => {
            let opcode = Opcode::RC_ATOMIC_ACK;
            if !burst.admits(opcode.header_len(), 0) {
                return Ok(false);
            }
            let mut packet = sh.packet(opcode, answer.first);
            packet.aeth = Some(aeth);
            packet.atomic_ack = Some(AtomicAckEth { original });
            burst.push(&sh.path, &packet, 0, |_| Ok(()))?;
        }
        Content::Read { va, rkey, length } => {
            let opcode = match (answer.sent == 0, answer.sent + 1 == answer.packets) {
                (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
                (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
                (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                (false, true) => Opcode::RC_READ_RESPONSE_LAST,
            };
            let offset = answer.sent as usize * sh.mtu;
            let len = sh.mtu.min(length as usize - offset);
            if !burst.admits(opcode.header_len(), len) {
                return Ok(false);
            }
            let mut packet = sh.packet(opcode, answer.next());
            packet.aeth = opcode.has_aeth().then_some(aeth);
            let at = access(sh, rkey, va.wrapping_add(offset as u64), len as u64, Access::REMOTE_READ);
            burst.push(&sh.path, &packet, len, |into| {
                if into.is_empty() { Ok(()) } else { env.memory().read_remote(&at, into) }
            })?;
        }
    }
    Ok(true)
}
