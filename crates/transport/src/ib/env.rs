//! What a queue pair asks of its device while it runs: memory, completions, shared receives, events, counters, windows.
//!
//! The device implements [`QpEnv`] over borrowed parts of itself and passes it into each call; nothing here is stored
//! by a queue pair. Counters carry the names Linux shows under `hw_counters`, so that the same tools and dashboards read
//! them. This module does not define when an event is raised; `qp`, `requester` and `responder` do.

use std::net::IpAddr;

use everywire_wire::Qpn;

use super::wr::{Completion, RecvWr};
use crate::congestion::window::PeerWindow;
use crate::memory::Memory;

/// A completion queue of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// An affiliated asynchronous event of a queue pair (IBTA vol. 1 §11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// A packet arrived while the queue pair was in RTR: the peer is there (IBV_EVENT_COMM_EST).
    CommEstablished,
    /// The send queue has drained in SQD (IBV_EVENT_SQ_DRAINED).
    SqDrained,
    /// The last receive taken from the shared receive queue was completed after the queue pair went to ERR
    /// (IBV_EVENT_QP_LAST_WQE_REACHED).
    LastWqeReached,
    /// The queue pair went to ERR for a reason of its own device, such as a completion queue overflow
    /// (IBV_EVENT_QP_FATAL).
    Fatal,
    /// The peer sent a request that breaks the protocol (IBV_EVENT_QP_REQ_ERR).
    RequestError,
    /// The peer asked for memory it may not have (IBV_EVENT_QP_ACCESS_ERR).
    AccessError,
}

/// Something counted per device. [`Counter::name`] gives the `hw_counters` file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Counter {
    /// Packets sent.
    SentPkts,
    /// Packets accepted by a queue pair.
    RcvdPkts,
    /// Requests that had been executed before.
    DuplicateRequest,
    /// Requests that came ahead of the expected PSN.
    OutOfSeqRequest,
    /// RNR NAKs received.
    RcvdRnrErr,
    /// RNR NAKs sent.
    SendRnrErr,
    /// PSN sequence NAKs received.
    RcvdSeqErr,
    /// Acknowledgements held back to be coalesced.
    AckDeferred,
    /// Queue pairs that ran out of transport retries.
    RetryExceededErr,
    /// Queue pairs that ran out of RNR retries.
    RetryRnrExceededErr,
    /// Work requests whose sending failed locally.
    SendErr,
    /// RDMA WRITE and READ work requests completed by the requester.
    RdmaSends,
    /// RDMA WRITE and READ requests executed by the responder.
    RdmaRecvs,
    /// Gaps detected in READ or atomic responses.
    ImpliedNakSeqErr,
    /// Local ACK timeouts that made the requester go back.
    LocalAckTimeoutErr,
    /// Packets sent again.
    RetransmittedPkts,
    /// Datagrams or UC messages dropped because no receive was posted.
    OutOfBuffer,
    /// Send work requests completed in error (not flushed).
    ReqCqeError,
    /// Send work requests flushed.
    ReqCqeFlushError,
    /// Remote access errors reported to the requester.
    ReqRemoteAccessErrors,
    /// Remote invalid request errors reported to the requester.
    ReqRemoteInvalidRequest,
    /// Receive work requests completed in error (not flushed).
    RespCqeError,
    /// Receive work requests flushed.
    RespCqeFlushError,
    /// Messages longer than the posted receive.
    RespLocalLengthError,
    /// Peer accesses refused by the key table.
    RespRemoteAccessErrors,
    /// Atomic requests executed.
    RxAtomicRequests,
    /// READ requests executed.
    RxReadRequests,
    /// WRITE requests executed.
    RxWriteRequests,
    /// Packets dropped: source address or port of another peer.
    DropWrongPeer,
    /// Packets dropped: P_Key of another partition.
    DropBadPkey,
    /// Packets dropped: wrong Q_Key.
    DropBadQkey,
    /// Packets dropped: transport service other than the queue pair's, or a reserved opcode.
    DropBadOpcode,
    /// Packets dropped: queue pair not in a state that receives.
    DropBadState,
    /// Packets dropped: malformed for their opcode, or answers nobody asked for.
    DropMalformed,
}

impl Counter {
    /// Every counter, in the order of its number.
    pub const ALL: [Counter; Counter::COUNT] = {
        use Counter::*;
        [
            SentPkts,
            RcvdPkts,
            DuplicateRequest,
            OutOfSeqRequest,
            RcvdRnrErr,
            SendRnrErr,
            RcvdSeqErr,
            AckDeferred,
            RetryExceededErr,
            RetryRnrExceededErr,
            SendErr,
            RdmaSends,
            RdmaRecvs,
            ImpliedNakSeqErr,
            LocalAckTimeoutErr,
            RetransmittedPkts,
            OutOfBuffer,
            ReqCqeError,
            ReqCqeFlushError,
            ReqRemoteAccessErrors,
            ReqRemoteInvalidRequest,
            RespCqeError,
            RespCqeFlushError,
            RespLocalLengthError,
            RespRemoteAccessErrors,
            RxAtomicRequests,
            RxReadRequests,
            RxWriteRequests,
            DropWrongPeer,
            DropBadPkey,
            DropBadQkey,
            DropBadOpcode,
            DropBadState,
            DropMalformed,
        ]
    };
    /// How many there are.
    pub const COUNT: usize = Counter::DropMalformed as usize + 1;

    /// The name of the file under `hw_counters`, as Linux's rxe and mlx5 drivers have it where they count the same.
    pub fn name(self) -> &'static str {
        use Counter::*;
        match self {
            SentPkts => "sent_pkts",
            RcvdPkts => "rcvd_pkts",
            DuplicateRequest => "duplicate_request",
            OutOfSeqRequest => "out_of_seq_request",
            RcvdRnrErr => "rcvd_rnr_err",
            SendRnrErr => "send_rnr_err",
            RcvdSeqErr => "rcvd_seq_err",
            AckDeferred => "ack_deferred",
            RetryExceededErr => "retry_exceeded_err",
            RetryRnrExceededErr => "retry_rnr_exceeded_err",
            SendErr => "send_err",
            RdmaSends => "rdma_sends",
            RdmaRecvs => "rdma_recvs",
            ImpliedNakSeqErr => "implied_nak_seq_err",
            LocalAckTimeoutErr => "local_ack_timeout_err",
            RetransmittedPkts => "retransmitted_pkts",
            OutOfBuffer => "out_of_buffer",
            ReqCqeError => "req_cqe_error",
            ReqCqeFlushError => "req_cqe_flush_error",
            ReqRemoteAccessErrors => "req_remote_access_errors",
            ReqRemoteInvalidRequest => "req_remote_invalid_request",
            RespCqeError => "resp_cqe_error",
            RespCqeFlushError => "resp_cqe_flush_error",
            RespLocalLengthError => "resp_local_length_error",
            RespRemoteAccessErrors => "resp_remote_access_errors",
            RxAtomicRequests => "rx_atomic_requests",
            RxReadRequests => "rx_read_requests",
            RxWriteRequests => "rx_write_requests",
            DropWrongPeer => "drop_wrong_peer",
            DropBadPkey => "drop_bad_pkey",
            DropBadQkey => "drop_bad_qkey",
            DropBadOpcode => "drop_bad_opcode",
            DropBadState => "drop_bad_state",
            DropMalformed => "drop_malformed",
        }
    }
}

/// The device, as a running queue pair sees it.
pub trait QpEnv {
    /// The device's memory.
    type Mem: Memory;

    /// The key table and the bytes behind it.
    fn memory(&mut self) -> &mut Self::Mem;
    /// Adds a completion to a queue. `solicited` is true for receives whose sender asked for an event and for every
    /// error. If the queue is full, the device raises its own error and moves the attached queue pairs to ERR *after*
    /// this call, through [`Qp::fail`](super::qp::Qp::fail).
    fn complete(&mut self, cq: CqId, completion: Completion, solicited: bool);
    /// Takes the next receive of a shared receive queue.
    fn srq_take(&mut self, srq: SrqId) -> Option<RecvWr>;
    /// Raises an affiliated event of queue pair `qpn`.
    fn event(&mut self, qpn: Qpn, event: QpEvent);
    /// Counts.
    fn count(&mut self, counter: Counter, by: u64);
    /// The window of request bytes in flight to a peer address. The same one for every RC queue pair to that peer.
    fn window(&mut self, peer: IpAddr) -> &mut PeerWindow;
    /// The window of READ response bytes that this device has asked for: it protects our own receive buffer.
    fn read_window(&mut self) -> &mut PeerWindow;
}
