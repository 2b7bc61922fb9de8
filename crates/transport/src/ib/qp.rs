//! The queue pair: the two queues, the state they are in, and the driving contract.
//!
//! Read IBTA vol. 1 §10.3.1 (states), §9.6 (packet header validation) first. A queue pair is driven by its device: one
//! post, packet, modify or timeout at a time, then [`Qp::poll_transmit`] until it says false, then [`Qp::poll_timeout`].
//! Time never runs backwards. Completions, events and memory go through [`QpEnv`]. The send half is `requester` (answers
//! in `completer`), the receive half `responder`; here packets are validated and dispatched, and state changes carried
//! out. Creating completion queues, keys and numbers is the device's work.

use std::time::Instant;

use everywire_wire::{PKey, Qpn, RocePacket, Service};

use super::attr::{QpAttr, QpConfig, QpState, QpType};
use super::burst::Burst;
use super::env::{Counter, QpEnv, QpEvent};
use super::packet::PacketMeta;
use super::post::{admit_recv, admit_send, check_send};
use super::qp_state::{ModifyError, StateEvent, check_modify, next_state};
use super::requester::Requester;
use super::responder::{Responder, complete_error};
use super::retry::earlier;
use super::shared::Shared;
use super::wr::{PostError, RecvWr, SendWr, WcStatus};

/// A queue pair of any service. See the module for how it is driven.
#[derive(Debug)]
pub struct Qp {
    shared: Shared,
    requester: Requester,
    responder: Responder,
    /// Answers go first in every other burst, so that neither half starves the other.
    answers_last: bool,
}

impl Qp {
    /// A queue pair in RESET. The device has checked the capabilities with [`QpCaps::check`] and its own limits.
    pub fn new(config: QpConfig) -> Qp {
        debug_assert!(config.caps.check().is_ok());
        Qp {
            shared: Shared::new(config),
            requester: Requester::default(),
            responder: Responder::default(),
            answers_last: false,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.shared.qpn()
    }

    /// What it was made with.
    pub fn config(&self) -> &QpConfig {
        &self.shared.config
    }

    /// Gives it another entry of the port's partition table.
    pub fn set_pkey(&mut self, index: u16, pkey: PKey) {
        self.shared.config.pkey = pkey;
        self.shared.attr.pkey_index = Some(index);
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.state
    }

    /// Every attribute that has been set, and the state.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            state: Some(self.shared.state),
            cur_state: Some(self.shared.state),
            ..self.shared.attr.clone()
        }
    }

    /// Send work requests outstanding.
    pub fn sends_outstanding(&self) -> usize {
        self.requester.len()
    }

    /// Receive work requests outstanding, without those of a shared queue.
    pub fn receives_outstanding(&self) -> usize {
        self.responder.len()
    }

    /// Changes attributes and state, as one step: on an error nothing has changed.
    ///
    /// Before a move to RESET, drain [`Qp::poll_transmit`] after a call to [`Qp::hurry`], so that what was received is
    /// acknowledged.
    pub fn modify<E: QpEnv>(&mut self, env: &mut E, attr: &QpAttr) -> Result<(), ModifyError> {
        let from = self.shared.state;
        let to = check_modify(&self.shared.config, from, attr)?;
        let leaves_sqd = from == QpState::Sqd && matches!(to, QpState::Rts | QpState::Sqd);
        if leaves_sqd && !self.requester.is_drained() {
            return Err(ModifyError::StillDraining);
        }
        self.shared.apply(attr);
        match (from, to) {
            (_, QpState::Reset) => self.reset(env),
            (_, QpState::Err) => self.fail_to(env, QpState::Err),
            _ => self.enter(env, from, to),
        }
        Ok(())
    }

    /// Moves between states that keep the queues.
    fn enter<E: QpEnv>(&mut self, env: &mut E, from: QpState, to: QpState) {
        let sh = &mut self.shared;
        let (rq_psn, sq_psn) = (sh.attr.rq_psn.unwrap_or_default(), sh.attr.sq_psn.unwrap_or_default());
        sh.state = to;
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.responder.start(rq_psn),
            (QpState::Rtr, QpState::Rts) => {
                self.requester.configure(sh);
                self.requester.start(sq_psn);
            }
            (QpState::Rts, QpState::Sqd) => {
                self.requester.begin_drain();
                self.requester.check_drained(sh, env);
            }
            (QpState::Sqd, QpState::Sqd | QpState::Rts) => self.requester.configure(sh),
            _ => {}
        }
    }

    fn reset<E: QpEnv>(&mut self, env: &mut E) {
        self.requester.clear(&self.shared, env);
        self.responder.clear();
        self.shared = Shared::new(self.shared.config.clone());
    }

    /// Enters ERR or SQE: flushes what that state flushes.
    fn fail_to<E: QpEnv>(&mut self, env: &mut E, to: QpState) {
        let before = self.shared.state;
        self.shared.state = to;
        self.shared.fault = None;
        self.requester.flush(&self.shared, env);
        if to != QpState::Err {
            return;
        }
        self.responder.flush(&self.shared, env);
        // IBTA §11.6.3.1: no further receive of the shared queue will be completed for this queue pair.
        if self.shared.config.srq.is_some() && before != QpState::Err {
            env.event(self.qpn(), QpEvent::LastWqeReached);
        }
    }

    /// Carries out what an error during the call asked for.
    fn settle<E: QpEnv>(&mut self, env: &mut E) {
        if let Some(fault) = self.shared.fault.take()
            && let Some(to) = next_state(self.shared.ty(), self.shared.state, fault)
        {
            self.fail_to(env, to);
        }
    }

    /// Moves it to ERR for a reason of the device (a completion queue that overflowed): raises QP_FATAL and flushes.
    pub fn fail<E: QpEnv>(&mut self, env: &mut E) {
        if let Some(to) = next_state(self.shared.ty(), self.shared.state, StateEvent::ReceiveError) {
            env.event(self.qpn(), QpEvent::Fatal);
            self.fail_to(env, to);
        }
    }

    /// Acknowledgements owed leave with the next [`Qp::poll_transmit`] instead of waiting for company. Call this and
    /// drain before RESET and before [`Qp::close`].
    pub fn hurry(&mut self) {
        self.responder.hurry();
    }

    /// To be called before it is dropped: gives its share of windows back. Nothing is completed (IBTA C10-19).
    pub fn close<E: QpEnv>(&mut self, env: &mut E) {
        self.reset(env);
    }

    /// Queues a send. In ERR and SQE it completes at once, flushed, after all before it.
    pub fn post_send<E: QpEnv>(&mut self, env: &mut E, wr: SendWr) -> Result<(), PostError> {
        let state = self.shared.state;
        let config = &self.shared.config;
        admit_send(config, state, self.requester.len(), || check_send(config, &wr))?;
        self.requester.push(wr);
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.requester.flush(&self.shared, env);
        }
        Ok(())
    }

    /// Queues a receive. In ERR it completes at once, flushed, after all before it.
    pub fn post_recv<E: QpEnv>(&mut self, env: &mut E, wr: RecvWr) -> Result<(), PostError> {
        let state = self.shared.state;
        admit_recv(&self.shared.config, state, self.responder.len(), wr.sges.len())?;
        if state == QpState::Err {
            env.count(Counter::RespCqeFlushError, 1);
            complete_error(&self.shared, env, &wr, WcStatus::WrFlushErr, 0);
        } else {
            self.responder.push(wr);
        }
        Ok(())
    }

    /// A packet for this queue pair, its ICRC checked.
    pub fn handle_packet<E: QpEnv>(
        &mut self,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
        meta: &PacketMeta,
    ) {
        if let Err(reason) = self.validate(packet, meta) {
            return env.count(reason, 1);
        }
        let sh = &mut self.shared;
        if !sh.state.receives() {
            // A refused request that comes again gets the same NAK; for the rest the queue pair is dead.
            let repeated = sh.state == QpState::Err
                && packet.bth.opcode.is_request()
                && self.responder.repeat_refusal(packet.bth.psn);
            if !repeated {
                env.count(Counter::DropBadState, 1);
            }
            return;
        }
        env.count(Counter::RcvdPkts, 1);
        if sh.state == QpState::Rtr && !sh.heard {
            sh.heard = true;
            env.event(sh.qpn(), QpEvent::CommEstablished);
        }
        match sh.ty() {
            QpType::Ud => self.responder.handle_ud(sh, env, packet, meta),
            QpType::Uc => self.responder.handle_uc(sh, env, packet),
            QpType::Rc if packet.bth.opcode.is_request() => self.responder.handle_rc(sh, env, now, packet),
            QpType::Rc if matches!(sh.state, QpState::Rts | QpState::Sqd) => {
                self.requester.handle_response(sh, env, now, packet);
            }
            QpType::Rc => env.count(Counter::DropBadState, 1),
        }
        self.settle(env);
    }

    /// IBTA §9.6.1: everything about the header that does not depend on what came before.
    fn validate(&self, packet: &RocePacket<'_>, meta: &PacketMeta) -> Result<(), Counter> {
        let sh = &self.shared;
        let service = match sh.ty() {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
        };
        if packet.bth.opcode.service() != service {
            return Err(Counter::DropBadOpcode);
        }
        if packet.bth.tver != 0 {
            return Err(Counter::DropMalformed);
        }
        if !sh.pkey().matches(packet.bth.pkey) {
            return Err(Counter::DropBadPkey);
        }
        // IBTA C9-44: a connected queue pair hears only its peer.
        if sh.ty() != QpType::Ud && !meta.is_from_peer_of(&sh.path) {
            return Err(Counter::DropWrongPeer);
        }
        Ok(())
    }

    /// Fills `burst` (cleared first) with the next packets to send; false if there are none now. Call until false.
    ///
    /// One call gives one burst, so a device that serves its queue pairs in turn keeps a long READ from crowding out the
    /// others.
    pub fn poll_transmit<E: QpEnv>(&mut self, env: &mut E, now: Instant, burst: &mut Burst) -> bool {
        burst.clear();
        if matches!(self.shared.state, QpState::Reset | QpState::Init) {
            return false;
        }
        if self.shared.is_rc() && self.responder.missed_a_ride() {
            // Else a stream of single packets would keep it waiting until the windows close.
            self.responder.transmit_ack(&self.shared, env, now, burst);
            self.settle(env);
            return true;
        }
        self.answers_last = !self.answers_last;
        if self.answers_last {
            self.transmit_requests(env, now, burst);
            if burst.is_empty() {
                self.transmit_answers(env, now, burst);
            }
        } else {
            self.transmit_answers(env, now, burst);
            if burst.is_empty() {
                self.transmit_requests(env, now, burst);
            }
        }
        if self.shared.is_rc() {
            self.responder.transmit_ack(&self.shared, env, now, burst);
        }
        self.settle(env);
        !burst.is_empty()
    }

    fn transmit_requests<E: QpEnv>(&mut self, env: &mut E, now: Instant, burst: &mut Burst) {
        self.requester.transmit(&mut self.shared, env, now, burst);
    }

    fn transmit_answers<E: QpEnv>(&mut self, env: &mut E, now: Instant, burst: &mut Burst) {
        if self.shared.is_rc() {
            self.responder.transmit(&mut self.shared, env, now, burst);
        }
    }

    /// When to call [`Qp::handle_timeout`] and then [`Qp::poll_transmit`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        earlier(self.requester.poll_timeout(), self.responder.poll_timeout())
    }

    /// Time has passed.
    pub fn handle_timeout<E: QpEnv>(&mut self, env: &mut E, now: Instant) {
        self.requester.handle_timeout(&mut self.shared, env, now);
        self.settle(env);
    }
}
