//! Unreliable datagrams: one packet a message, a destination a work request.
//!
//! Read IBTA vol. 1 §9.8.3 (UD), §10.2.5 (Q_Keys) and §11.4.1.2 (the 40 bytes of GRH that lead every receive). Over IPv4
//! the last 20 of these hold the IPv4 header, as Linux delivers it; over IPv6 they are the IPv6 header. Multicast groups
//! are the device's: it hands each attached queue pair its own copy.

use everywire_wire::{Deth, ImmDt, Opcode, Psn, QKey, RocePacket};

use super::burst::Burst;
use super::env::{Counter, QpEnv};
use super::packet::{GRH_LEN, PacketMeta, grh_of};
use super::qp_state::StateEvent;
use super::requester::{Requester, Step, fill};
use super::responder::{Responder, complete_error, recv_completion};
use super::shared::Shared;
use super::wr::{SendOp, WcStatus};
use crate::memory::Memory;

impl Requester {
    /// The datagram at the cursor, unless the burst goes elsewhere.
    pub(super) fn send_datagram<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        burst: &mut Burst,
        psn: Psn,
    ) -> Step {
        let Some(wr) = self.at_cursor() else { return Step::Stop };
        let Some(dest) = wr.ud else { return self.fail_cursor(sh, env, WcStatus::LocQpOpErr) };
        let (opcode, immdt) = match wr.op {
            SendOp::SendImm(imm) => (Opcode::UD_SEND_ONLY_IMM, Some(ImmDt(imm))),
            _ => (Opcode::UD_SEND_ONLY, None),
        };
        let elsewhere = burst.path().is_some_and(|p| *p != dest.path || burst.dest_qp() != dest.qpn);
        let length = wr.length() as usize;
        if elsewhere || !burst.admits(opcode.header_len(), length) {
            return Step::Stop;
        }
        let mut packet = sh.packet(opcode, psn);
        packet.bth.dest_qp = dest.qpn;
        packet.bth.solicited = wr.solicited;
        packet.immdt = immdt;
        packet.deth = Some(Deth { qkey: qkey_to_send(dest.qkey, sh.qkey), reserved: 0, src_qp: sh.qpn() });
        let filled = burst.push(&dest.path, &packet, length, |into| fill(env.memory(), sh, wr, 0, into));
        if filled.is_err() {
            return self.fail_cursor(sh, env, WcStatus::LocProtErr);
        }
        self.sent_unreliably(sh, env, psn, true);
        Step::On
    }
}

/// A privileged Q_Key in a work request means the queue pair's own (IBTA C10-15).
fn qkey_to_send(asked: QKey, own: QKey) -> QKey {
    if asked.is_privileged() { own } else { asked }
}

impl Responder {
    /// A datagram. Whatever is wrong with it drops it silently (IBTA §9.9.3, class D); only a receive whose own
    /// segments are bad ends the queue pair.
    pub(super) fn handle_ud<E: QpEnv>(
        &mut self,
        sh: &mut Shared,
        env: &mut E,
        packet: &RocePacket<'_>,
        meta: &PacketMeta,
    ) {
        let Some(deth) = packet.deth else { return };
        // IBTA C9-46.
        if deth.qkey != sh.qkey {
            return env.count(Counter::DropBadQkey, 1);
        }
        if packet.payload.len() > sh.mtu {
            return env.count(Counter::DropMalformed, 1);
        }
        let Some(wr) = self.take_receive(sh, env) else { return env.count(Counter::OutOfBuffer, 1) };
        let landed = env.memory().check_local(sh.pd(), &wr.sges, true).and_then(|room| {
            let need = (GRH_LEN + packet.payload.len()) as u64;
            if room < need {
                return Ok(false);
            }
            let memory = env.memory();
            memory.scatter(sh.pd(), &wr.sges, 0, &grh_of(meta))?;
            memory.scatter(sh.pd(), &wr.sges, GRH_LEN as u64, packet.payload)?;
            Ok(true)
        });
        match landed {
            Ok(true) => {
                let mut completion = recv_completion(sh, wr.wr_id);
                completion.byte_len = (GRH_LEN + packet.payload.len()) as u32;
                completion.imm = packet.immdt.map(|i| i.0);
                completion.src_qp = deth.src_qp;
                completion.grh = meta.has_grh();
                if let Some(came) = meta.local_route() {
                    completion.slid = came.slid;
                    completion.sl = came.sl;
                    completion.dlid_path_bits = meta.dlid_path_bits;
                }
                completion.solicited = packet.bth.solicited;
                env.complete(sh.config.recv_cq, completion, packet.bth.solicited);
            }
            Ok(false) => {
                // Too long for the receive, which stays for the next one.
                self.put_back(wr);
                env.count(Counter::RespLocalLengthError, 1);
            }
            Err(_) => {
                env.count(Counter::RespCqeError, 1);
                complete_error(sh, env, &wr, WcStatus::LocProtErr, 0);
                sh.raise(StateEvent::ReceiveError);
            }
        }
    }
}
