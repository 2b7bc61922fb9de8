//! Work requests and their completions.
//!
//! Read IBTA vol. 1 §11.4 (processing work requests) and §11.4.2 (completion return status). Numbers and texts of
//! [`WcStatus`] and [`WcOpcode`] are those of libibverbs, so that logs and the C library can pass them through.
//! A work request owed is a token: each one posted ends in exactly one completion, or none if it was unsignalled and
//! succeeded.

use everywire_wire::{Lid, QKey, Qpn, RKey};
use smallvec::SmallVec;

use super::path::Path;
pub use super::post::PostError;
use crate::memory::{BindWindow, FastRegister, Sge};

/// Longest message of RC and UC, in bytes (IBTA vol. 1 §9.7.1).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// Scatter/gather list, inline up to the usual lengths.
pub type SgeList = SmallVec<[Sge; 4]>;

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's region.
    pub addr: u64,
    /// The peer's key.
    pub rkey: RKey,
}

/// What a send work request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data (as a host-order number).
    SendImm(u32),
    /// SEND with Invalidate of a key of the peer.
    SendInv(RKey),
    /// RDMA WRITE.
    Write {
        /// Target.
        remote: Remote,
    },
    /// RDMA WRITE with immediate data.
    WriteImm {
        /// Target.
        remote: Remote,
        /// Immediate, host order.
        imm: u32,
    },
    /// RDMA READ into the work request's segments.
    Read {
        /// Source.
        remote: Remote,
    },
    /// Compare and swap; the original value (8 bytes, host order) lands in the segments.
    CompareSwap {
        /// Target, 8-byte aligned.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store on equality.
        swap: u64,
    },
    /// Fetch and add; the original value (8 bytes, host order) lands in the segments.
    FetchAdd {
        /// Target, 8-byte aligned.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
    /// Invalidate a local key, once everything before it is complete.
    LocalInv(RKey),
    /// Bind a memory window.
    BindMw(BindWindow),
    /// Fast-register a region.
    FastReg(FastRegister),
}

impl SendOp {
    /// The completion opcode of this operation on the send side.
    pub fn wc_opcode(&self) -> WcOpcode {
        match self {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::LocalInv(_) => WcOpcode::LocalInv,
            SendOp::BindMw(_) => WcOpcode::BindMw,
            SendOp::FastReg(_) => WcOpcode::FastReg,
        }
    }

    /// Whether the peer answers with data that lands in local memory.
    pub fn is_read_or_atomic(&self) -> bool {
        matches!(self, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Whether it is done by the local device alone.
    pub fn is_local(&self) -> bool {
        matches!(self, SendOp::LocalInv(_) | SendOp::BindMw(_) | SendOp::FastReg(_))
    }

    /// The libibverbs name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            SendOp::Send => "SEND",
            SendOp::SendImm(_) => "SEND_WITH_IMM",
            SendOp::SendInv(_) => "SEND_WITH_INV",
            SendOp::Write { .. } => "RDMA_WRITE",
            SendOp::WriteImm { .. } => "RDMA_WRITE_WITH_IMM",
            SendOp::Read { .. } => "RDMA_READ",
            SendOp::CompareSwap { .. } => "ATOMIC_CMP_AND_SWP",
            SendOp::FetchAdd { .. } => "ATOMIC_FETCH_AND_ADD",
            SendOp::LocalInv(_) => "LOCAL_INV",
            SendOp::BindMw(_) => "BIND_MW",
            SendOp::FastReg(_) => "REG_MR",
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// Address vector.
    pub path: Path,
    /// Queue pair at the peer.
    pub qpn: Qpn,
    /// Q_Key; a privileged one (high bit) is replaced by the sender's own (IBTA C10-15).
    pub qkey: QKey,
}

/// A send work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The caller's token.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory: source, or sink of READs and atomics.
    pub sges: SgeList,
    /// Payload taken at post time instead of `sges`.
    pub inline: Option<Vec<u8>>,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Asks for an event at the receiver.
    pub solicited: bool,
    /// Starts only after all earlier READs and atomics are complete.
    pub fence: bool,
    /// Destination on a UD queue pair; ignored elsewhere.
    pub ud: Option<UdDest>,
}

impl SendWr {
    /// A signalled work request with no segments; fill in what else it needs.
    pub fn new(wr_id: u64, op: SendOp) -> SendWr {
        SendWr {
            wr_id,
            op,
            sges: SgeList::new(),
            inline: None,
            signaled: true,
            solicited: false,
            fence: false,
            ud: None,
        }
    }

    /// The same with these segments.
    pub fn with_sges(mut self, sges: impl IntoIterator<Item = Sge>) -> SendWr {
        self.sges.extend(sges);
        self
    }

    /// The same with one more segment.
    #[inline]
    pub fn with_sge(mut self, sge: Sge) -> SendWr {
        self.sges.push(sge);
        self
    }

    /// The same with inline payload.
    pub fn with_inline(mut self, bytes: impl Into<Vec<u8>>) -> SendWr {
        self.inline = Some(bytes.into());
        self
    }

    /// The same, making no completion on success.
    pub fn unsignaled(mut self) -> SendWr {
        self.signaled = false;
        self
    }

    /// Payload bytes, as the caller gave them.
    pub fn length(&self) -> u64 {
        match &self.inline {
            Some(bytes) => bytes.len() as u64,
            None => self.sges.iter().map(|s| u64::from(s.length)).sum(),
        }
    }
}

/// A receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// The caller's token.
    pub wr_id: u64,
    /// Where the message lands.
    pub sges: SgeList,
}

impl RecvWr {
    /// A receive into these segments.
    pub fn new(wr_id: u64, sges: impl IntoIterator<Item = Sge>) -> RecvWr {
        RecvWr { wr_id, sges: sges.into_iter().collect() }
    }
}

/// How a work request ended. The discriminants are `ibv_wc_status`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// A receive too short for the message, or a send too long for the service.
    LocLenErr = 1,
    /// The queue pair could not do the operation.
    LocQpOpErr = 2,
    /// A segment of the work request failed its check.
    LocProtErr = 4,
    /// The queue pair was in ERR (or SQE) before the work request was done.
    WrFlushErr = 5,
    /// A memory window bind was refused.
    MwBindErr = 6,
    /// The peer answered with something that makes no sense.
    BadRespErr = 7,
    /// Local memory failed its check while a peer's request ran.
    LocAccessErr = 8,
    /// The peer refused the request as invalid.
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not carry out the request.
    RemOpErr = 11,
    /// No acknowledgement within the retries allowed.
    RetryExcErr = 12,
    /// Receiver not ready for longer than the retries allowed.
    RnrRetryExcErr = 13,
    /// The operation was aborted.
    RemAbortErr = 16,
    /// The device failed.
    FatalErr = 19,
    /// No response in time.
    RespTimeoutErr = 20,
    /// Anything else.
    GeneralErr = 21,
}

impl WcStatus {
    /// The text of `ibv_wc_status_str`.
    pub fn as_str(self) -> &'static str {
        match self {
            WcStatus::Success => "success",
            WcStatus::LocLenErr => "local length error",
            WcStatus::LocQpOpErr => "local QP operation error",
            WcStatus::LocProtErr => "local protection error",
            WcStatus::WrFlushErr => "Work Request Flushed Error",
            WcStatus::MwBindErr => "memory management operation error",
            WcStatus::BadRespErr => "bad response error",
            WcStatus::LocAccessErr => "local access error",
            WcStatus::RemInvReqErr => "remote invalid request error",
            WcStatus::RemAccessErr => "remote access error",
            WcStatus::RemOpErr => "remote operation error",
            WcStatus::RetryExcErr => "transport retry counter exceeded",
            WcStatus::RnrRetryExcErr => "RNR retry counter exceeded",
            WcStatus::RemAbortErr => "aborted error",
            WcStatus::FatalErr => "fatal error",
            WcStatus::RespTimeoutErr => "response timeout error",
            WcStatus::GeneralErr => "general error",
        }
    }
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.as_str(), *self as u8)
    }
}

/// What completed. The discriminants are `ibv_wc_opcode`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// A SEND of any kind.
    Send = 0,
    /// An RDMA WRITE, with or without immediate.
    RdmaWrite = 1,
    /// An RDMA READ.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// Bind memory window.
    BindMw = 5,
    /// Local invalidate.
    LocalInv = 6,
    /// Fast register (the kernel's `IB_WC_REG_MR`; user verbs have no name for it).
    FastReg = 7,
    /// A receive that took a SEND.
    Recv = 128,
    /// A receive that took an RDMA WRITE with immediate.
    RecvRdmaWithImm = 129,
}

/// A completion queue entry.
///
/// On error only `wr_id`, `status`, `qpn` and `vendor_err` mean something (as with `ibv_poll_cq`); `opcode` is still
/// right here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Token of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received, or read. For a datagram it includes the 40 bytes of the GRH.
    pub byte_len: u32,
    /// Immediate data, host order.
    pub imm: Option<u32>,
    /// Key that the peer's SEND with Invalidate invalidated.
    pub invalidated: Option<RKey>,
    /// The local queue pair.
    pub qpn: Qpn,
    /// Sender of a datagram; the peer on RC and UC.
    pub src_qp: Qpn,
    /// Whether the first 40 bytes of the buffer are a GRH.
    pub grh: bool,
    /// LID that a datagram came from; 0 where there are no LIDs.
    pub slid: Lid,
    /// Service level that a datagram came with.
    pub sl: u8,
    /// Low bits of the LID that a datagram was sent to, as many as the port's LMC.
    pub dlid_path_bits: u8,
    /// Whether the sender asked for an event.
    pub solicited: bool,
    /// More about an error: the NAK's syndrome if the peer sent one, else 0.
    pub vendor_err: u32,
}

impl Completion {
    /// One in success, with nothing in it but whose it is and what ended.
    #[inline]
    pub(crate) fn of(wr_id: u64, opcode: WcOpcode, qpn: Qpn, src_qp: Qpn) -> Completion {
        Completion {
            wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn,
            src_qp,
            grh: false,
            slid: Lid(0),
            sl: 0,
            dlid_path_bits: 0,
            solicited: false,
            vendor_err: 0,
        }
    }
}
