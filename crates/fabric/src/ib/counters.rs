//! What a port has counted, without ever wrapping: PortCounters and its extension are windows on these.
//!
//! Read IBTA §16.1.3.5 (PortCounters) and §16.1.4.11 (PortCountersExtended) first. Counting is here, saturation and clearing
//! are the performance agent's ([`super::agent`]).

/// Since the port exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Words sent, VCRC not counted, all lanes.
    pub xmit_words: u64,
    /// Words received.
    pub rcv_words: u64,
    /// Packets sent, all lanes.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Packets to multicast LIDs sent.
    pub multicast_xmit: u64,
    /// Packets to multicast LIDs received.
    pub multicast_rcv: u64,
    /// Packets that the wire damaged and link-level retry sent again.
    pub symbol_errors: u64,
    /// Times that the link trained again by itself.
    pub link_error_recovery: u64,
    /// Times that the link went down.
    pub link_downed: u64,
    /// Packets dropped for a wrong VCRC, length or state.
    pub rcv_errors: u64,
    /// Packets that no forwarding table knows a way for.
    pub rcv_switch_relay_errors: u64,
    /// Packets that were to be sent and were dropped: link down, too long for the neighbour, too old, no lane.
    pub xmit_discards: u64,
    /// Packets not sent for their partition or for being raw.
    pub xmit_constraint_errors: u64,
    /// Packets received and dropped for their partition or for being raw.
    pub rcv_constraint_errors: u64,
    /// Times that damaged packets outran whole ones by the threshold of PortInfo:LocalPhyErrors.
    pub local_link_integrity_errors: u64,
    /// Packets that found no room in the buffer: stays zero, as senders obey their credits.
    pub buffer_overruns: u64,
    /// Packets of lane 15 dropped, which alone has no flow control.
    pub vl15_dropped: u64,
    /// MADs to QP1 dropped by the agents: wrong Q_Key.
    pub qp1_dropped: u64,
    /// Packets of an adapter's host refused, as their source LID is none of the port's.
    pub foreign_sources: u64,
    /// Nanoseconds in which something waited to be sent and the wire was free.
    pub xmit_wait_ns: u64,
}
