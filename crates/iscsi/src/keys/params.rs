//! What a login came to, as numbers and flags that the session works with.
//!
//! Read RFC 7143 §13 and RFC 7145 §6. Values were checked when they were negotiated; nothing here can fail.

use super::negotiate::{Negotiation, Side};
use super::table::Key;
use super::text;
use crate::pdu::Digests;

/// How tasks that were aborted are told of (RFC 7143 §13.23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskReporting {
    /// As RFC 3720 has it.
    #[default]
    Rfc3720,
    /// A fence before responses.
    ResponseFence,
    /// Aborted at once.
    FastAbort,
}

/// Operational parameters of a session of one connection. Lengths in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// HeaderDigest and DataDigest.
    pub digests: Digests,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// Most data in a PDU that this side takes.
    pub max_recv: usize,
    /// Most data in a PDU that the peer takes.
    pub max_send: usize,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// FirstBurstLength, never more than MaxBurstLength.
    pub first_burst: u32,
    /// DefaultTime2Wait.
    pub time2wait: u16,
    /// DefaultTime2Retain.
    pub time2retain: u16,
    /// MaxOutstandingR2T.
    pub max_r2t: u16,
    /// DataPDUInOrder.
    pub pdu_in_order: bool,
    /// DataSequenceInOrder.
    pub sequence_in_order: bool,
    /// TaskReporting.
    pub task_reporting: TaskReporting,
    /// RDMAExtensions: the connection goes on as iSER.
    pub rdma: bool,
    /// MaxOutstandingUnexpectedPDUs of the peer; 0 is no limit.
    pub max_unexpected: u32,
    /// iSERHelloRequired.
    pub hello_required: bool,
    /// TaggedBufferForSolicitedDataOnly.
    pub tagged_solicited_only: bool,
}

impl Params {
    /// From the half of `side`.
    pub fn of(negotiation: &Negotiation, side: Side) -> Params {
        let number = |key: Key| text::number(key.name(), negotiation.value(key)).unwrap_or_default();
        let declared = |key: Key| text::number(key.name(), negotiation.declared(key)).unwrap_or_default();
        let yes = |key: Key| negotiation.value(key) == "Yes";
        let rdma = yes(Key::RDMAExtensions);
        let (to_target, to_initiator) =
            (number(Key::TargetRecvDataSegmentLength), number(Key::InitiatorRecvDataSegmentLength));
        // RFC 7145 §6.2: these take MaxRecvDataSegmentLength's place.
        let (max_recv, max_send) = match (rdma, side) {
            (true, Side::Target) => (to_target, to_initiator),
            (true, Side::Initiator) => (to_initiator, to_target),
            (false, _) => (declared(Key::MaxRecvDataSegmentLength), number(Key::MaxRecvDataSegmentLength)),
        };
        let max_burst = number(Key::MaxBurstLength);
        let crc = |key: Key| negotiation.value(key) == "CRC32C";
        let hello = if side == Side::Target {
            yes(Key::iSERHelloRequired)
        } else {
            negotiation.declared(Key::iSERHelloRequired) == "Yes"
        };
        Params {
            digests: Digests { header: crc(Key::HeaderDigest), data: crc(Key::DataDigest) },
            initial_r2t: yes(Key::InitialR2T),
            immediate_data: yes(Key::ImmediateData),
            max_recv: max_recv as usize,
            max_send: max_send as usize,
            max_burst,
            first_burst: number(Key::FirstBurstLength).min(max_burst),
            time2wait: number(Key::DefaultTime2Wait) as u16,
            time2retain: number(Key::DefaultTime2Retain) as u16,
            max_r2t: number(Key::MaxOutstandingR2T) as u16,
            pdu_in_order: yes(Key::DataPDUInOrder),
            sequence_in_order: yes(Key::DataSequenceInOrder),
            task_reporting: match negotiation.value(Key::TaskReporting) {
                "ResponseFence" => TaskReporting::ResponseFence,
                "FastAbort" => TaskReporting::FastAbort,
                _ => TaskReporting::Rfc3720,
            },
            rdma,
            max_unexpected: number(Key::MaxOutstandingUnexpectedPDUs),
            hello_required: hello,
            tagged_solicited_only: yes(Key::TaggedBufferForSolicitedDataOnly),
        }
    }
}
