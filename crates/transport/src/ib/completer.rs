//! The requester's ear: ACKs, NAKs, READ responses and atomic responses.
//!
//! Read IBTA vol. 1 §9.7.5.1 (coalesced and implied acknowledgements), §9.7.6 (errors seen by the requester) and table 56
//! first. Every response is first held against the PSNs in flight; one from the past or for something never sent is
//! dropped. A response for a later PSN acknowledges all before it, save READs and atomics, whose missing answer is an
//! implied NAK.

use std::time::Instant;

use everywire_wire::{NakCode, Opcode, Psn, RocePacket, SyndromeKind};

use super::env::{Counter, QpEnv};
use super::requester::{PendingRead, Requester};
use super::retry::Verdict;
use super::shared::Shared;
use super::wr::{SendOp, WcStatus};
use crate::memory::Memory;

impl Requester {
    /// A response packet from the peer.
    pub(super) fn handle_response<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) {
        let psn = packet.bth.psn;
        // Only what is in flight can be answered (IBTA C9-111: others are ghosts or duplicates).
        let in_flight = self.una().at_or_before(psn) && psn.before(self.sent_end());
        if !in_flight {
            return;
        }
        match packet.bth.opcode {
            Opcode::RC_ACK => self.handle_ack(sh, env, now, packet),
            Opcode::RC_ATOMIC_ACK => self.handle_atomic_response(sh, env, now, packet),
            _ => self.handle_read_response(sh, env, now, packet),
        }
    }

    fn handle_ack<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant, packet: &RocePacket<'_>) {
        let (psn, Some(aeth)) = (packet.bth.psn, packet.aeth) else { return };
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { .. } => {
                if !self.advance(sh, env, now, psn.next()) {
                    self.implied_nak(sh, env, now, psn);
                }
            }
            SyndromeKind::Rnr { timer } => {
                env.count(Counter::RcvdRnrErr, 1);
                if self.advance(sh, env, now, psn) {
                    self.not_ready(sh, env, now, timer);
                } else {
                    self.implied_nak(sh, env, now, psn);
                }
            }
            SyndromeKind::Nak(NakCode::PsnSequence) => {
                env.count(Counter::RcvdSeqErr, 1);
                self.advance(sh, env, now, psn);
                self.sequence_nak(sh, env, now);
            }
            SyndromeKind::Nak(code) => {
                if self.advance(sh, env, now, psn) {
                    if sh.fault.is_none() {
                        self.fail_front(sh, env, nak_status(code), u32::from(aeth.syndrome.0));
                    }
                } else {
                    self.implied_nak(sh, env, now, psn);
                }
            }
            SyndromeKind::Reserved => env.count(Counter::DropMalformed, 1),
        }
    }

    /// The responder misses the packet at `una`: all from there goes again.
    fn sequence_nak<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant) {
        // Already going back: a second NAK of the same loss says nothing new.
        if sh.fault.is_some() || !self.outstanding() || self.retry_mut().is_echo(now) {
            return;
        }
        env.window(sh.path.dst).lost();
        self.setback(sh, env, now);
    }

    fn not_ready<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant, timer: u8) {
        if sh.fault.is_some() || self.retry_mut().waits() {
            return;
        }
        match self.retry_mut().not_ready(now, timer) {
            Verdict::Again => self.go_back(sh, env),
            Verdict::GiveUp => self.fail_front(sh, env, WcStatus::RnrRetryExcErr, 0),
        }
    }

    /// A response ahead of `una` shows that one in between was lost (IBTA §9.7.5.1.1).
    ///
    /// After going back, responses of the first round keep arriving in order; only one that is not later than those
    /// already seen belongs to the next round and shows another loss.
    fn implied_nak<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant, psn: Psn) {
        let known = self.retry_mut().is_echo(now) || !self.is_new_gap(psn);
        if sh.fault.is_some() || !self.outstanding() || known {
            return;
        }
        env.count(Counter::ImpliedNakSeqErr, 1);
        env.read_window().lost();
        self.setback(sh, env, now);
        self.see_gap(psn);
    }

    fn handle_atomic_response<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) {
        let psn = packet.bth.psn;
        self.advance(sh, env, now, psn);
        if self.una() != psn {
            return self.implied_nak(sh, env, now, psn);
        }
        let Some(pending) = self.pending_read(sh.mtu) else { return };
        let (true, Some(ack)) = (pending.atomic, packet.atomic_ack) else {
            return self.fail_front(sh, env, WcStatus::BadRespErr, 0);
        };
        self.accept(sh, env, now, 0, &ack.original.to_ne_bytes());
    }

    fn handle_read_response<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) {
        let psn = packet.bth.psn;
        self.advance(sh, env, now, psn);
        if sh.fault.is_some() {
            return;
        }
        if self.una() != psn {
            return self.implied_nak(sh, env, now, psn);
        }
        let Some(pending) = self.pending_read(sh.mtu) else { return };
        match check_read_response(&pending, packet) {
            ResponseFit::Good => self.accept(sh, env, now, pending.offset, packet.payload),
            // A response to an earlier round, cut differently.
            ResponseFit::Stale => {}
            ResponseFit::Bad => self.fail_front(sh, env, WcStatus::BadRespErr, 0),
        }
    }

    /// Takes the response at `una` into local memory.
    fn accept<E: QpEnv>(&mut self, sh: &mut Shared, env: &mut E, now: Instant, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            let Some(front) = self.front() else { return };
            if env.memory().scatter(sh.pd(), &front.sges, offset, bytes).is_err() {
                return self.fail_front(sh, env, WcStatus::LocProtErr, 0);
            }
        }
        self.answered_one(sh, env, now, bytes.len());
    }
}

enum ResponseFit {
    Good,
    Stale,
    Bad,
}

/// Whether a READ response is the one that is due: kind by its place in the run, length by its place in the message
/// (IBTA §9.7.5.2.6, C9-130).
fn check_read_response(pending: &PendingRead, packet: &RocePacket<'_>) -> ResponseFit {
    let opcode = packet.bth.opcode;
    let expected = match (pending.index, pending.index + 1 == pending.packets) {
        (0, true) => Opcode::RC_READ_RESPONSE_ONLY,
        (0, false) => Opcode::RC_READ_RESPONSE_FIRST,
        (_, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
        (_, true) => Opcode::RC_READ_RESPONSE_LAST,
    };
    let positive = packet.aeth.is_none_or(|a| matches!(a.syndrome.kind(), SyndromeKind::Ack { .. }));
    let fits = !pending.atomic && packet.payload.len() == pending.payload_len && positive;
    match (fits, pending.pristine) {
        (true, true) if opcode == expected => ResponseFit::Good,
        // Once asked again, the same bytes may come as part of the first run or of the second.
        (true, false) if opcode.is_read_response() => ResponseFit::Good,
        (_, true) => ResponseFit::Bad,
        (_, false) => ResponseFit::Stale,
    }
}

/// IBTA table 58: what a NAK makes of the work request.
fn nak_status(code: NakCode) -> WcStatus {
    match code {
        NakCode::InvalidRequest | NakCode::InvalidRdRequest => WcStatus::RemInvReqErr,
        NakCode::RemoteAccess => WcStatus::RemAccessErr,
        NakCode::RemoteOperational => WcStatus::RemOpErr,
        NakCode::PsnSequence => WcStatus::RetryExcErr,
    }
}

impl SendOp {
    /// Whether the answer is an atomic response.
    pub(super) fn is_atomic(&self) -> bool {
        matches!(self, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}
