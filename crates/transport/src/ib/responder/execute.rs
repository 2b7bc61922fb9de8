//! Executes new requests: SEND, WRITE, READ and atomics.
//!
//! Read IBTA vol. 1 §9.7.4.1.5 (R_Key checks) and §9.4 (operations). Everything that can refuse a packet comes before the
//! first byte moves, in the standard's order: resources, length, permission.

use std::time::Instant;

use everywire_wire::{Opcode, Reth, RocePacket};

use super::duplicate::Executed;
use super::sequence::Inbound;
use super::{Landing, Refusal, Responder, WriteCursor, recv_completion};
use crate::ib::env::{Counter, QpEnv};
use crate::ib::shared::Shared;
use crate::ib::wr::{RecvWr, WcOpcode};
use crate::memory::{Access, AtomicOp, Memory, RemoteAccess};

impl Responder {
    pub(super) fn execute<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        if opcode.is_send() {
            self.execute_send(sh, env, packet)?;
        } else if opcode.is_write() {
            self.execute_write(sh, env, packet)?;
        } else if opcode == Opcode::RC_READ_REQUEST {
            return self.execute_read(sh, env, now, packet);
        } else {
            return self.execute_atomic(sh, env, now, packet);
        }
        self.executed_one(1);
        self.ack_psn = packet.bth.psn;
        if packet.bth.ack_req {
            // The receiver of a message is likely to answer soon, and the acknowledgement can ride along.
            let consumed = opcode.ends_message() && (opcode.is_send() || opcode.has_immdt());
            self.replies.acknowledge(env, packet.bth.psn, now, consumed);
        }
        Ok(())
    }

    pub(super) fn execute_send<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        if opcode.starts_message() {
            let wr = self.take_receive(sh, env).ok_or(Refusal::NotReady)?;
            self.land(sh, env, wr, packet.payload.len())?;
        }
        let Some(landing) = &mut self.landing else { return Err(Refusal::INVALID) };
        let len = packet.payload.len() as u64;
        // IBTA C9-60: never past the end of the receive.
        if landing.landed + len > landing.room {
            return Err(Refusal::TOO_LONG);
        }
        if len > 0 {
            let memory = env.memory();
            memory
                .scatter(sh.pd(), &landing.wr.sges, landing.landed, packet.payload)
                .map_err(|_| Refusal::OWN_MEMORY)?;
        }
        landing.landed += len;
        if opcode.ends_message() {
            self.finish_send(sh, env, packet)?;
        } else {
            self.inbound = Inbound::Send;
        }
        Ok(())
    }

    /// Starts a message in this receive. Its segments are checked at once, unless the message is empty.
    fn land<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        wr: RecvWr,
        first_len: usize,
    ) -> Result<(), Refusal> {
        let checked = if first_len == 0 { Ok(0) } else { env.memory().check_local(sh.pd(), &wr.sges, true) };
        self.landing = Some(Landing { wr, room: checked.unwrap_or(0), landed: 0 });
        checked.map(drop).map_err(|_| Refusal::OWN_MEMORY)
    }

    fn finish_send<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        if let Some(ieth) = packet.ieth {
            // IBTA §10.6.5.2: the key goes before the completion is seen.
            env.memory().invalidate_remote(sh.pd(), sh.qpn(), ieth.rkey).map_err(|_| Refusal::ACCESS)?;
        }
        let Some(landing) = self.landing.take() else { return Err(Refusal::INVALID) };
        let mut completion = recv_completion(sh, landing.wr.wr_id);
        completion.byte_len = landing.landed as u32;
        completion.imm = packet.immdt.map(|i| i.0);
        completion.invalidated = packet.ieth.map(|i| i.rkey);
        completion.solicited = packet.bth.solicited;
        self.inbound = Inbound::Idle;
        self.count_message();
        env.complete(sh.config.recv_cq, completion, packet.bth.solicited);
        Ok(())
    }

    pub(super) fn execute_write<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        let len = packet.payload.len() as u64;
        let cursor = match packet.reth {
            Some(reth) => self.begin_write(sh, env, &reth)?,
            None => self.write,
        };
        // IBTA C9-59: the packets add up to the announced length, no sooner and no later.
        let adds_up = if opcode.ends_message() { len == cursor.left } else { len < cursor.left };
        if !adds_up {
            return Err(Refusal::INVALID);
        }
        let receive = if opcode.has_immdt() {
            Some(self.take_receive(sh, env).ok_or(Refusal::NotReady)?)
        } else {
            None
        };
        if len > 0 {
            let at = access(sh, cursor.rkey, cursor.va, len, Access::REMOTE_WRITE);
            if env.memory().write_remote(&at, packet.payload).is_err() {
                self.landing = receive.map(|wr| Landing { wr, room: 0, landed: 0 });
                return Err(Refusal::ACCESS);
            }
        }
        self.write = WriteCursor { va: cursor.va.wrapping_add(len), left: cursor.left - len, ..cursor };
        if opcode.ends_message() {
            self.finish_write(sh, env, packet, receive);
        } else {
            self.inbound = Inbound::Write;
        }
        Ok(())
    }

    /// Checks the whole range of a WRITE before its first byte lands. One of length 0 is never refused (cases RX-20).
    fn begin_write<E: QpEnv>(&self, sh: &Shared, env: &mut E, reth: &Reth) -> Result<WriteCursor, Refusal> {
        check_remote(sh, env, reth, Access::REMOTE_WRITE)?;
        Ok(WriteCursor { va: reth.va, rkey: reth.rkey, left: u64::from(reth.length), total: reth.length })
    }

    fn finish_write<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        packet: &RocePacket<'_>,
        receive: Option<RecvWr>,
    ) {
        env.count(Counter::RxWriteRequests, 1);
        env.count(Counter::RdmaRecvs, 1);
        self.inbound = Inbound::Idle;
        self.count_message();
        if let Some(wr) = receive {
            let mut completion = recv_completion(sh, wr.wr_id);
            completion.opcode = WcOpcode::RecvRdmaWithImm;
            completion.byte_len = self.write.total;
            completion.imm = packet.immdt.map(|i| i.0);
            completion.solicited = packet.bth.solicited;
            env.complete(sh.config.recv_cq, completion, packet.bth.solicited);
        }
    }

    fn execute_read<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.reth else { return Err(Refusal::INVALID) };
        self.check_responder_resources(sh)?;
        check_remote(sh, env, &reth, Access::REMOTE_READ)?;
        let packets = (reth.length as usize).div_ceil(sh.mtu).max(1) as u32;
        self.executed_one(packets);
        self.count_message();
        let done = Executed::read(packet.bth.psn, packets, &reth, self.msn, now);
        self.remember(sh, done);
        self.replies.queue_read(&done, now);
        env.count(Counter::RxReadRequests, 1);
        env.count(Counter::RdmaRecvs, 1);
        Ok(())
    }

    fn execute_atomic<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let Some(eth) = packet.atomic_eth else { return Err(Refusal::INVALID) };
        check_offered(sh, Access::REMOTE_ATOMIC)?;
        self.check_responder_resources(sh)?;
        // IBTA §9.4.5: the address is a multiple of eight.
        if !eth.va.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let op = if packet.bth.opcode == Opcode::RC_COMPARE_SWAP {
            AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_add }
        } else {
            AtomicOp::FetchAdd { add: eth.swap_add }
        };
        let at = access(sh, eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC);
        let original = env.memory().atomic(&at, op).map_err(|_| Refusal::ACCESS)?;
        self.executed_one(1);
        self.count_message();
        let done = Executed::atomic(packet.bth.psn, packet.bth.opcode, original, self.msn, now);
        self.remember(sh, done);
        self.replies.queue_atomic(&done, now);
        env.count(Counter::RxAtomicRequests, 1);
        Ok(())
    }

    /// IBTA C9-88: the requester may have no more READs and atomics outstanding than was agreed.
    fn check_responder_resources(&self, sh: &Shared) -> Result<(), Refusal> {
        if self.replies.queued() >= sh.max_dest_rd_atomic { Err(Refusal::INVALID) } else { Ok(()) }
    }
}

/// Whether the queue pair takes this kind of request at all, of whatever length. IBTA table 57: one that it is not set up
/// for is an unsupported opcode, not a matter of keys.
fn check_offered(sh: &Shared, need: Access) -> Result<(), Refusal> {
    if sh.access.contains(need) { Ok(()) } else { Err(Refusal::INVALID) }
}

/// A request's R_Key against the queue pair's own permission and the key table. The key of length 0 is never checked.
pub(super) fn check_remote<E: QpEnv>(
    sh: &Shared,
    env: &mut E,
    reth: &Reth,
    need: Access,
) -> Result<(), Refusal> {
    check_offered(sh, need)?;
    if reth.length == 0 {
        return Ok(());
    }
    let at = access(sh, reth.rkey, reth.va, u64::from(reth.length), need);
    env.memory().check_remote(&at).map_err(|_| Refusal::ACCESS)
}

pub(super) fn access(
    sh: &Shared,
    rkey: everywire_wire::RKey,
    va: u64,
    length: u64,
    need: Access,
) -> RemoteAccess {
    RemoteAccess { pd: sh.pd(), qpn: sh.qpn(), rkey, va, length, need }
}
