//! Builds request segments: which one is next, whether it may go now, and its headers.
//!
//! Read RFC 5040 §4 (headers by operation) and RFC 5041 §5 (segmentation: MSN, MO, the L flag). A message is sent to its end
//! before another begins: only whole messages of both directions take turns, which is the queue pair's business.

use everywire_wire::RKey;
use everywire_wire::ddp::{self, DdpHeader, DdpTarget};
use everywire_wire::rdmap::{AtomicRequest, RdmapControl, RdmapOpcode, ReadRequest, SEND_QUEUE};

use super::Requester;
use crate::ib::env::QpEnv;
use crate::ib::wr::{SendOp, SendWr, WcStatus};
use crate::iwarp::burst::StreamBurst;
use crate::iwarp::params::Rtr;
use crate::iwarp::shared::Shared;
use crate::iwarp::tx::{Source, Tx};
use crate::memory::{AccessError, PdId};

/// The STag of a ready-to-receive message: some receivers refuse zero even for no bytes (cases IW-03); Linux siw sends one.
const RTR_STAG: RKey = RKey(1);

/// Bytes of the longest header with what RDMAP puts behind it.
const MAX_HEADER: usize = DdpHeader::UNTAGGED_LEN + AtomicRequest::LEN;

/// What came of trying to send one FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::iwarp) enum Step {
    /// Sent; its message is complete or not.
    Sent {
        /// It was the last of its message.
        done: bool,
    },
    /// Nothing to send now.
    Nothing,
    /// The burst or the stream is full.
    Full,
}

/// A segment's header and what is fixed behind it.
struct Head {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

impl Head {
    fn new(header: &DdpHeader) -> Head {
        let mut bytes = [0; MAX_HEADER];
        header.emit(&mut bytes);
        Head { bytes, len: header.header_len() }
    }

    /// Adds what `emit` writes in `len` bytes.
    fn with(mut self, len: usize, emit: impl FnOnce(&mut [u8])) -> Head {
        emit(&mut self.bytes[self.len..]);
        self.len += len;
        self
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Header of an untagged segment.
pub(in crate::iwarp) fn untagged(opcode: RdmapOpcode, last: bool, msn: u32, mo: u32) -> DdpHeader {
    let qn = opcode.queue().unwrap_or(SEND_QUEUE);
    let target = DdpTarget::Untagged { ulp: [0; 4], qn, msn, mo };
    DdpHeader { last, reserved: 0, version: ddp::VERSION, ulp: RdmapControl::new(opcode).to_byte(), target }
}

/// Header of a tagged segment.
pub(in crate::iwarp) fn tagged(opcode: RdmapOpcode, last: bool, stag: RKey, to: u64) -> DdpHeader {
    let target = DdpTarget::Tagged { stag, to };
    DdpHeader { last, reserved: 0, version: ddp::VERSION, ulp: RdmapControl::new(opcode).to_byte(), target }
}

impl Requester {
    /// Adds the next FPDU to `burst`.
    pub(in crate::iwarp) fn transmit<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        tx: &mut Tx,
        burst: &mut StreamBurst,
    ) -> Step {
        if let Some(rtr) = self.rtr {
            return self.send_rtr(env, tx, burst, rtr);
        }
        while self.next < self.sq.len() && !self.begun {
            if !self.begin(sh, env, tx.written) || self.stopped {
                return Step::Nothing;
            }
        }
        if self.next >= self.sq.len() || self.stopped {
            return Step::Nothing;
        }
        match self.sq[self.next].wr.op {
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                self.send_request(env, tx, burst)
            }
            _ if self.owes_immediate => self.send_immediate(env, tx, burst),
            _ => self.send_payload(sh, env, tx, burst),
        }
    }

    /// RFC 6581 §9: the first frame of a peer-to-peer connection.
    fn send_rtr<E: QpEnv>(&mut self, env: &mut E, tx: &mut Tx, burst: &mut StreamBurst, rtr: Rtr) -> Step {
        let head = match rtr {
            Rtr::Send => Head { bytes: [0; MAX_HEADER], len: 0 },
            Rtr::Write => empty_write(),
            Rtr::Read => {
                let read =
                    ReadRequest { sink_stag: RTR_STAG, source_stag: RTR_STAG, ..ReadRequest::default() };
                let header = untagged(RdmapOpcode::ReadRequest, true, self.request_msn, 0);
                Head::new(&header).with(ReadRequest::LEN, |out| read.emit(out))
            }
        };
        if !push_head(env, tx, burst, &head) {
            return Step::Full;
        }
        if rtr == Rtr::Read {
            self.request_msn = self.request_msn.wrapping_add(1);
            self.rtr_answer = true;
        }
        self.rtr = None;
        Step::Sent { done: true }
    }

    /// One segment of a SEND or WRITE.
    fn send_payload<E: QpEnv>(
        &mut self,
        sh: &Shared,
        env: &mut E,
        tx: &mut Tx,
        burst: &mut StreamBurst,
    ) -> Step {
        let wqe = &self.sq[self.next];
        let (offset, left) = (self.offset, wqe.length - self.offset);
        let mut header = match wqe.wr.op {
            SendOp::Write { remote } | SendOp::WriteImm { remote, .. } => {
                tagged(RdmapOpcode::Write, false, remote.rkey, remote.addr.wrapping_add(u64::from(offset)))
            }
            _ => send_header(&wqe.wr, wqe.msn, offset),
        };
        let len = tx.max_payload(header.header_len()).min(left as usize);
        header.last = len == left as usize;
        let head = Head::new(&header);
        if !tx.admits(burst, head.len + len) {
            return Step::Full;
        }
        let source = source_of(&wqe.wr, sh.pd(), offset, len);
        if tx.push(burst, env.memory(), head.bytes(), &source, len).is_err() {
            self.fail_next(sh, env, WcStatus::LocProtErr, tx.written);
            return Step::Nothing;
        }
        if !header.last {
            self.offset += len as u32;
            return Step::Sent { done: false };
        }
        if matches!(wqe.wr.op, SendOp::WriteImm { .. }) {
            self.owes_immediate = true;
            return Step::Sent { done: false };
        }
        self.finish_message(tx.pos);
        Step::Sent { done: true }
    }

    /// RFC 7306 §6: immediate data follow the WRITE as a message of their own, eight bytes; ours are the low four.
    fn send_immediate<E: QpEnv>(&mut self, env: &mut E, tx: &mut Tx, burst: &mut StreamBurst) -> Step {
        let wqe = &self.sq[self.next];
        let SendOp::WriteImm { imm, .. } = wqe.wr.op else { return Step::Nothing };
        let opcode = if wqe.wr.solicited { RdmapOpcode::ImmediateSe } else { RdmapOpcode::Immediate };
        let bytes = u64::from(imm).to_be_bytes();
        let header = untagged(opcode, true, wqe.msn, 0);
        let head = Head::new(&header).with(bytes.len(), |out| out[..8].copy_from_slice(&bytes));
        if !push_head(env, tx, burst, &head) {
            return Step::Full;
        }
        self.owes_immediate = false;
        self.finish_message(tx.pos);
        Step::Sent { done: true }
    }

    /// A READ or atomic request.
    fn send_request<E: QpEnv>(&mut self, env: &mut E, tx: &mut Tx, burst: &mut StreamBurst) -> Step {
        let wqe = &self.sq[self.next];
        let head = match wqe.wr.op {
            SendOp::Read { remote } => {
                let (sink_stag, sink_to) = sink_of(&wqe.wr);
                let read = ReadRequest {
                    sink_stag,
                    sink_to,
                    length: wqe.length,
                    source_stag: remote.rkey,
                    source_to: remote.addr,
                };
                let header = untagged(RdmapOpcode::ReadRequest, true, wqe.msn, 0);
                Head::new(&header).with(ReadRequest::LEN, |out| read.emit(out))
            }
            _ => {
                let request = atomic_of(&wqe.wr, wqe.msn);
                let header = untagged(RdmapOpcode::AtomicRequest, true, wqe.msn, 0);
                Head::new(&header).with(AtomicRequest::LEN, |out| request.emit(out))
            }
        };
        if !push_head(env, tx, burst, &head) {
            return Step::Full;
        }
        self.reads.push_back(self.first + self.next as u64);
        self.finish_message(tx.pos);
        Step::Sent { done: true }
    }
}

/// A WRITE that touches nothing.
fn empty_write() -> Head {
    Head::new(&tagged(RdmapOpcode::Write, true, RTR_STAG, 0))
}

/// Adds one if there is room.
pub(in crate::iwarp) fn push_empty_write<E: QpEnv>(env: &mut E, tx: &mut Tx, burst: &mut StreamBurst) {
    push_head(env, tx, burst, &empty_write());
}

/// An FPDU of a header alone; false if there is no room.
fn push_head<E: QpEnv>(env: &mut E, tx: &mut Tx, burst: &mut StreamBurst, head: &Head) -> bool {
    if !tx.admits(burst, head.len) {
        return false;
    }
    let pushed: Result<(), AccessError> = tx.push(burst, env.memory(), head.bytes(), &Source::Bytes(&[]), 0);
    debug_assert!(pushed.is_ok());
    true
}

fn send_header(wr: &SendWr, msn: u32, offset: u32) -> DdpHeader {
    let (plain, solicited, stag) = match wr.op {
        SendOp::SendInv(rkey) => (RdmapOpcode::SendInv, RdmapOpcode::SendSeInv, rkey.0),
        _ => (RdmapOpcode::Send, RdmapOpcode::SendSe, 0),
    };
    let mut header = untagged(if wr.solicited { solicited } else { plain }, false, msn, offset);
    if let DdpTarget::Untagged { ulp, .. } = &mut header.target {
        *ulp = stag.to_be_bytes();
    }
    header
}

fn source_of(wr: &SendWr, pd: PdId, offset: u32, len: usize) -> Source<'_> {
    match &wr.inline {
        _ if len == 0 => Source::Bytes(&[]),
        Some(bytes) => Source::Bytes(&bytes[offset as usize..]),
        None => Source::Local { pd, sges: &wr.sges, offset: u64::from(offset) },
    }
}

/// Where a READ's answer lands, as the peer is told.
pub(super) fn sink_of(wr: &SendWr) -> (RKey, u64) {
    wr.sges.first().map_or((RTR_STAG, 0), |sge| (RKey(sge.lkey.0), sge.addr))
}

fn atomic_of(wr: &SendWr, request_id: u32) -> AtomicRequest {
    match wr.op {
        SendOp::CompareSwap { remote, compare, swap } => AtomicRequest {
            operation: AtomicRequest::COMPARE_SWAP,
            request_id,
            stag: remote.rkey,
            to: remote.addr,
            add_swap: swap,
            add_swap_mask: u64::MAX,
            compare,
            compare_mask: u64::MAX,
            reserved: 0,
        },
        SendOp::FetchAdd { remote, add } => AtomicRequest {
            operation: AtomicRequest::FETCH_ADD,
            request_id,
            stag: remote.rkey,
            to: remote.addr,
            add_swap: add,
            ..AtomicRequest::default()
        },
        _ => AtomicRequest::default(),
    }
}
