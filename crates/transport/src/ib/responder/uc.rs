//! The responder of an unreliable connection.
//!
//! Read IBTA vol. 1 §9.8.2.2 (UC responder) and §9.9.3 (errors, classes D and E). A gap or a packet out of sequence drops
//! the message it belongs to, silently; the next first or only packet starts afresh. Nothing is answered.

use everywire_wire::{Opcode, RocePacket};

use super::sequence::{Inbound, fits_its_kind, follows};
use super::{Refusal, Responder};
use crate::ib::env::{Counter, QpEnv};
use crate::ib::packet::UC_BIT;
use crate::ib::qp_state::StateEvent;
use crate::ib::shared::Shared;
use crate::ib::wr::WcStatus;

impl Responder {
    /// A request on a UC queue pair.
    pub(in crate::ib) fn handle_uc<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        packet: &RocePacket<'_>,
    ) {
        let rc_opcode = Opcode(packet.bth.opcode.0 & !UC_BIT);
        let mut request = *packet;
        request.bth.opcode = rc_opcode;
        let gap = request.bth.psn != self.epsn;
        self.epsn = request.bth.psn.next();
        if gap {
            env.count(Counter::OutOfSeqRequest, 1);
            self.abandon();
        }
        if rc_opcode.starts_message() {
            self.abandon();
            self.skipping = false;
        } else if self.skipping || !follows(self.inbound, rc_opcode) {
            self.skip();
            return;
        }
        if !fits_its_kind(sh, &request) {
            env.count(Counter::DropMalformed, 1);
            return self.skip();
        }
        let outcome = if rc_opcode.is_send() {
            self.execute_send(sh, env, &request)
        } else {
            self.execute_write(sh, env, &request)
        };
        match outcome {
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                env.count(Counter::OutOfBuffer, 1);
                self.skip();
            }
            // A receive that cannot be used is the consumer's own error and ends the queue pair (class E).
            Err(refusal) if refusal == Refusal::OWN_MEMORY => {
                if let Some(landing) = self.landing.take() {
                    env.count(Counter::RespCqeError, 1);
                    super::complete_error(sh, env, &landing.wr, WcStatus::LocProtErr, 0);
                }
                sh.raise(StateEvent::ReceiveError);
            }
            // Anything else is the sender's: the message is dropped (class D).
            Err(_) => {
                env.count(Counter::DropMalformed, 1);
                self.skip();
            }
        }
    }

    /// Drops the current message; its receive is used for the next one.
    fn abandon(&mut self) {
        self.inbound = Inbound::Idle;
        if let Some(landing) = self.landing.take() {
            self.put_back(landing.wr);
        }
    }

    /// Drops the current message and what still comes of it.
    fn skip(&mut self) {
        self.abandon();
        self.skipping = true;
    }
}
