//! The responder: what a connected queue pair does with requests.
//!
//! Read IBTA vol. 1 §9.7.4 (responder), §9.7.5 (acknowledging) and §9.9.3 (errors) first. An RC request goes through
//! stages, each a method here or in a submodule:
//! PSN class ([`Responder::handle_rc`]) → opcode sequence (`sequence`) → resources, length, permission and execution
//! (`execute`) → acknowledgement. Duplicates branch off to `duplicate` and touch nothing that new requests rely on.
//! Answers leave through `reply`, ordered by PSN, at the pace that `pace` has found. UC takes the same stages in `uc` with silence instead of NAKs.

mod duplicate;
mod execute;
mod pace;
mod reply;
mod sequence;
mod uc;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use everywire_wire::{NakCode, Psn, RKey, RocePacket, Syndrome};

use super::attr::QpState;
use super::burst::Burst;
use super::env::{Counter, QpEnv, QpEvent};
use super::qp_state::StateEvent;
use super::shared::Shared;
use super::wr::{Completion, RecvWr, WcOpcode, WcStatus};
use duplicate::Executed;
use reply::Replies;
use sequence::Inbound;

/// An acknowledgement that may soon travel with an answering message waits this long for it.
pub const ACK_DELAY: Duration = Duration::from_micros(20);

/// A receive that a message is landing in.
#[derive(Debug)]
struct Landing {
    wr: RecvWr,
    /// Bytes it has room for.
    room: u64,
    /// Bytes landed.
    landed: u64,
}

/// Where a WRITE is landing.
#[derive(Clone, Copy, Debug, Default)]
struct WriteCursor {
    va: u64,
    rkey: RKey,
    left: u64,
    total: u32,
}

#[derive(Debug, Default)]
pub(super) struct Responder {
    rq: VecDeque<RecvWr>,
    /// PSN of the next new request.
    epsn: Psn,
    /// Messages completed, modulo 2^24.
    msn: u32,
    /// PSN of the newest SEND or WRITE packet executed: what a repeated acknowledgement carries (cases RX-02).
    ack_psn: Psn,
    /// What the last packet leaves us expecting.
    inbound: Inbound,
    landing: Option<Landing>,
    write: WriteCursor,
    /// A sequence NAK was sent for `epsn`: the highest PSN seen beyond it since.
    nak_high: Option<Psn>,
    /// READs and atomics that may be repeated, oldest first.
    executed: VecDeque<Executed>,
    replies: Replies,
    /// UC: the rest of the current message is to be dropped.
    skipping: bool,
}

/// Why an RC request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No receive is posted (IBTA class B: the connection lives).
    NotReady,
    /// The connection ends: NAK code, status of the receive in use if there is one, event if there is none.
    Fatal { code: NakCode, status: WcStatus, event: QpEvent },
}

impl Refusal {
    /// A request against the protocol (IBTA §9.9.3, class C).
    const INVALID: Refusal = Refusal::Fatal {
        code: NakCode::InvalidRequest,
        status: WcStatus::RemInvReqErr,
        event: QpEvent::RequestError,
    };
    /// A key that does not give what is asked.
    const ACCESS: Refusal = Refusal::Fatal {
        code: NakCode::RemoteAccess,
        status: WcStatus::LocAccessErr,
        event: QpEvent::AccessError,
    };
    /// A message longer than the receive.
    const TOO_LONG: Refusal = Refusal::Fatal {
        code: NakCode::InvalidRequest,
        status: WcStatus::LocLenErr,
        event: QpEvent::RequestError,
    };
    /// A receive whose own segments fail their check.
    const OWN_MEMORY: Refusal = Refusal::Fatal {
        code: NakCode::RemoteOperational,
        status: WcStatus::LocProtErr,
        event: QpEvent::Fatal,
    };
}

impl Responder {
    /// A move to RTR: the first PSN that is expected.
    pub(super) fn start(&mut self, psn: Psn) {
        self.epsn = psn;
        self.ack_psn = psn.sub(1);
    }

    pub(super) fn push(&mut self, wr: RecvWr) {
        self.rq.push_back(wr);
    }

    pub(super) fn len(&self) -> usize {
        self.rq.len()
    }

    /// A request on an RC queue pair.
    pub(super) fn handle_rc<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) {
        // IBTA §9.7.4.1.2: one PSN is expected, 2^23 before it are duplicates, the others are ahead.
        match self.epsn.distance(packet.bth.psn) {
            0 => self.handle_expected(sh, env, now, packet),
            ..0 => self.handle_duplicate(sh, env, now, packet),
            1.. => self.handle_ahead(env, packet.bth.psn),
        }
    }

    fn handle_expected<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) {
        self.nak_high = None;
        let outcome = self.check_sequence(sh, packet).and_then(|()| self.execute(sh, env, now, packet));
        match outcome {
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                env.count(Counter::SendRnrErr, 1);
                self.replies.nak(packet.bth.psn, Syndrome::rnr(sh.min_rnr_timer), false);
                // What follows is out of sequence; it comes again after the requester's wait.
                self.nak_high = Some(packet.bth.psn);
            }
            Err(Refusal::Fatal { code, status, event }) => {
                self.refuse(sh, env, packet.bth.psn, code, status, event);
            }
        }
    }

    /// IBTA §9.7.4.1.3: one sequence NAK for a gap. A second one if the packet right after the gap comes again, for then
    /// the requester has gone back and the missing packet was lost once more.
    fn handle_ahead<E: QpEnv>(&mut self, env: &mut E, psn: Psn) {
        env.count(Counter::OutOfSeqRequest, 1);
        let again = psn == self.epsn.next() && self.nak_high.is_some_and(|high| psn.at_or_before(high));
        let first = self.nak_high.is_none();
        if first || again {
            self.replies.nak(self.epsn, Syndrome::nak(NakCode::PsnSequence), false);
        }
        if self.nak_high.is_none_or(|high| high.before(psn)) {
            self.nak_high = Some(psn);
        }
    }

    /// Ends the connection: NAK, the receive in use completed in error or else an event, and ERR.
    fn refuse<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        psn: Psn,
        code: NakCode,
        status: WcStatus,
        event: QpEvent,
    ) {
        match status {
            WcStatus::LocLenErr => env.count(Counter::RespLocalLengthError, 1),
            WcStatus::LocAccessErr => env.count(Counter::RespRemoteAccessErrors, 1),
            _ => {}
        }
        self.replies.nak(psn, Syndrome::nak(code), true);
        match self.landing.take() {
            Some(landing) => {
                env.count(Counter::RespCqeError, 1);
                let syndrome = u32::from(Syndrome::nak(code).0);
                complete_error(sh, env, &landing.wr, status, syndrome);
            }
            None => env.event(sh.qpn(), event),
        }
        sh.raise(StateEvent::ReceiveError);
    }

    /// One request packet was executed: the PSN moves on.
    fn executed_one(&mut self, psns: u32) {
        self.epsn = self.epsn.add(psns);
    }

    /// One message was completed.
    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0x00ff_ffff;
    }

    /// Takes the next receive: one that was put back, the queue's or the shared queue's.
    pub(super) fn take_receive<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) -> Option<RecvWr> {
        let own = self.rq.pop_front();
        own.or_else(|| sh.config.srq.and_then(|srq| env.srq_take(srq)))
    }

    /// Keeps a receive that was taken in vain for the next message.
    pub(super) fn put_back(&mut self, wr: RecvWr) {
        self.rq.push_front(wr);
    }

    /// Completes everything with "flushed": the receive in use, then the queue, in order (IBTA §10.3.1.7).
    pub(super) fn flush<E: QpEnv>(&mut self, sh: &Shared, env: &mut E) {
        self.inbound = Inbound::Idle;
        let in_use = self.landing.take().map(|l| l.wr);
        for wr in in_use.into_iter().chain(std::mem::take(&mut self.rq)) {
            env.count(Counter::RespCqeFlushError, 1);
            complete_error(sh, env, &wr, WcStatus::WrFlushErr, 0);
        }
        // What was executed is still acknowledged; READs still queued only if the connection ended by a NAK of ours,
        // which must come after them.
        self.replies.wind_up();
    }

    /// Whether a NAK of ours ended the connection; then a repetition of the refused request gets it again.
    pub(super) fn repeat_refusal(&mut self, psn: Psn) -> bool {
        self.replies.repeat_refusal(psn)
    }

    pub(super) fn clear(&mut self) {
        *self = Responder::default();
    }

    /// READ and atomic responses. Memory that was checked before and can no longer be read ends the connection.
    pub(super) fn transmit<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
    ) {
        if let Err(psn) = self.replies.transmit(sh, env, now, burst)
            && sh.state != QpState::Err
        {
            let Refusal::Fatal { code, status, event } = Refusal::ACCESS else { return };
            self.refuse(sh, env, psn, code, status, event);
        }
    }

    /// The ACK or NAK owed, if it is due or can ride.
    pub(super) fn transmit_ack<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        burst: &mut Burst,
    ) {
        self.replies.transmit_ack(sh, env, now, burst, self.msn);
    }

    /// Whether the ACK or NAK owed comes before any other packet.
    pub(super) fn missed_a_ride(&self) -> bool {
        self.replies.missed_a_ride()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.replies.poll_timeout()
    }

    /// An answering message is not going to carry the acknowledgement: it is due at once.
    pub(super) fn hurry(&mut self) {
        self.replies.hurry();
    }
}

/// A receive that ends in error or flushed.
pub(super) fn complete_error<E: QpEnv>(
    sh: &Shared,
    env: &mut E,
    wr: &RecvWr,
    status: WcStatus,
    vendor_err: u32,
) {
    let completion = Completion { status, vendor_err, ..recv_completion(sh, wr.wr_id) };
    env.complete(sh.config.recv_cq, completion, true);
}

/// A receive completion with the fields that are always the same.
pub(super) fn recv_completion(sh: &Shared, wr_id: u64) -> Completion {
    Completion::of(wr_id, WcOpcode::Recv, sh.qpn(), sh.dest_qp)
}
