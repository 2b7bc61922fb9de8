//! What the connection manager is told once, its bounds, and the standard's way to write times.
//!
//! Read first: IBTA volume 1 §12.7.1–12.7.35 (field meanings). The defaults are the values that Linux's rdma_cm puts on the
//! wire, so that a connection to or from Linux looks the same whoever made it.

use std::time::Duration;

use everywire_wire::{Guid, Mtu};

use super::types::ConnectParams;

/// Services that can be listened on at once.
pub const MAX_LISTENERS: usize = 1024;
/// Connections of any state but time-wait.
pub const MAX_CONNECTIONS: usize = 65_536;
/// Connections in time-wait; beyond it the oldest leaves early and is counted.
pub const MAX_TIMEWAIT: usize = 16_384;
/// SIDR exchanges of both directions.
pub const MAX_SIDR: usize = 4096;
/// MADs that wait for [`poll_transmit`](super::Cm::poll_transmit); beyond it answers are dropped and counted.
pub const MAX_QUEUED_MADS: usize = 8192;
/// Requests that wait for the program's answer on one listener, at most.
pub const MAX_BACKLOG: usize = 4096;
/// Largest response time code taken from a peer (17.2 s): a hostile 31 would hold a connection for days.
pub const MAX_RESPONSE_TIMEOUT: u8 = 22;
/// Longest local ACK timeout that a peer can give a queue pair of ours: 4.096 µs × 2^22 is 17 s.
pub(super) const MAX_PEER_ACK_TIMEOUT: u8 = 22;
/// Largest MRA service time code honoured (68.7 s); Linux's rdma_cm asks for exactly this.
pub const MAX_SERVICE_TIMEOUT: u8 = 24;
/// MRAs honoured for one REQ or REP.
pub const MAX_MRAS: u8 = 16;
/// DREQ retransmissions when the program has let go of the connection.
pub const ABANDONED_DREQ_RETRIES: u8 = 3;

/// Private data a REQ can carry, bytes (IBTA §12.6.5). rdma_cm spends 36 of them on its header.
pub const REQ_PRIVATE_DATA: usize = 92;
/// Private data a REP can carry, bytes (IBTA §12.6.8).
pub const REP_PRIVATE_DATA: usize = 196;
/// Private data an RTU can carry, bytes (IBTA §12.6.9).
pub const RTU_PRIVATE_DATA: usize = 224;
/// Private data a REJ can carry, bytes (IBTA §12.6.7).
pub const REJ_PRIVATE_DATA: usize = 148;
/// Additional reject information a REJ can carry, bytes (IBTA §12.6.7.2).
pub const REJ_INFO: usize = 72;
/// Private data a DREQ can carry, bytes (IBTA §12.6.10).
pub const DREQ_PRIVATE_DATA: usize = 220;
/// Private data a SIDR_REQ can carry, bytes (IBTA §12.11.1). rdma_cm spends 36 of them on its header.
pub const SIDR_REQ_PRIVATE_DATA: usize = 216;
/// Private data a SIDR_REP can carry, bytes (IBTA §12.11.2).
pub const SIDR_REP_PRIVATE_DATA: usize = 136;

/// The connection manager's configuration.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// The channel adapter's GUID, sent in REQ and REP.
    pub node_guid: Guid,
    /// How long we take to answer a MAD at most, and what we expect of the peer: 4.096 µs × 2^n. 20 as Linux.
    pub response_timeout: u8,
    /// How often a MAD is sent again, 0–15. 15 as Linux.
    pub max_retries: u8,
    /// How long this adapter takes to acknowledge a packet at most: 4.096 µs × 2^n, "target ACK delay" in REP.
    pub ack_delay: u8,
    /// How long a packet lives in the network: 4.096 µs × 2^n. 18 as Linux on RoCE.
    pub packet_life_time: u8,
    /// The service time that an MRA asks for when the peer repeats its REQ: 4.096 µs × 2^n. 24 as Linux.
    pub service_timeout: u8,
    /// Largest path MTU our port takes; a REQ with a larger one is rejected.
    pub max_mtu: Mtu,
    /// Most outstanding READs and atomics a queue pair serves as responder.
    pub max_responder_resources: u8,
    /// Top byte of every communication id and SIDR request id, where several processes share one address and a
    /// packet filter steers by that byte.
    pub id_slot: Option<u8>,
    /// Connections in time-wait, at most [`MAX_TIMEWAIT`].
    pub max_timewait: usize,
    /// Connections outside time-wait, at most [`MAX_CONNECTIONS`].
    pub max_connections: usize,
}

impl Default for CmConfig {
    fn default() -> CmConfig {
        CmConfig {
            node_guid: Guid(0),
            response_timeout: 20,
            max_retries: 15,
            ack_delay: 15,
            packet_life_time: 18,
            service_timeout: 24,
            max_mtu: Mtu::M4096,
            max_responder_resources: 128,
            id_slot: None,
            max_timewait: MAX_TIMEWAIT,
            max_connections: MAX_CONNECTIONS,
        }
    }
}

impl CmConfig {
    /// The primary local ACK timeout written in REQ: a packet's way there and back plus our ACK delay.
    ///
    /// IBTA §12.7.34, rounded as Linux does (19 for a packet life time of 18 and an ACK delay of 15).
    pub fn local_ack_timeout(&self) -> u8 {
        ack_timeout(self.ack_delay, self.packet_life_time)
    }

    /// The primary local ACK timeout of one REQ.
    pub(super) fn request_ack_timeout(&self, p: &ConnectParams) -> u8 {
        p.ack_timeout.unwrap_or_else(|| self.local_ack_timeout()).min(31)
    }

    /// The local ACK timeout for a queue pair whose peer's REQ asks for `code`. 0 would mean for ever (IBTA §9.9.2.1.1),
    /// so that a lost packet is never noticed, and 31 is 2.4 hours: neither is a peer's to decide.
    pub(super) fn peer_ack_timeout(&self, code: u8) -> u8 {
        if code == 0 { self.local_ack_timeout() } else { code.min(MAX_PEER_ACK_TIMEOUT) }
    }

    /// How long a connection rests in time-wait: what its packets may still live, twice, or as its peers agreed if that is
    /// longer (IBTA §12.9.8.4).
    pub(super) fn time_wait(&self, ack_timeout: u8) -> Duration {
        let round_trip = self.packet_life_time.saturating_add(1);
        cm_time(ack_timeout.max(round_trip).min(MAX_RESPONSE_TIMEOUT))
    }

    /// The time between two transmissions of a MAD when the peer answers within `response_timeout`.
    pub(super) fn retry_interval(response_timeout: u8, ack_timeout: u8) -> Duration {
        cm_time(response_timeout.min(MAX_RESPONSE_TIMEOUT)) + cm_time(ack_timeout.min(MAX_RESPONSE_TIMEOUT))
    }
}

/// The round trip and the ACK delay as one time code: the sum of two powers of two, rounded up.
pub fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let round_trip = packet_life_time.saturating_add(1);
    let code = if round_trip >= ack_delay {
        round_trip + u8::from(ack_delay >= packet_life_time)
    } else {
        ack_delay + u8::from(round_trip + 1 >= ack_delay)
    };
    code.min(31)
}

/// A time code of the standard: 4.096 µs × 2^`code` (IBTA §12.7.4).
pub fn cm_time(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_values() {
        // captures/rping.pcap: REQ carries a primary local ACK timeout of 19.
        assert_eq!(CmConfig::default().local_ack_timeout(), 19);
        // As large as the round trip: one more.
        assert_eq!(ack_timeout(18, 18), 20);
        assert_eq!(ack_timeout(25, 18), 25);
        assert_eq!(ack_timeout(20, 18), 21);
        assert_eq!(ack_timeout(31, 31), 31);
    }

    #[test]
    fn a_peer_decides_within_reason() {
        let config = CmConfig::default();
        let codes = [(0, 19), (1, 1), (14, 14), (19, 19), (22, 22), (23, 22), (31, 22)];
        for (asked, given) in codes {
            assert_eq!(config.peer_ack_timeout(asked), given, "{asked}");
        }
        // Twice a packet life time of 18 is 2^19 · 4.096 µs.
        for short in [0, 1, 19] {
            assert_eq!(config.time_wait(short).as_millis(), 2147);
        }
        assert_eq!(config.time_wait(20).as_millis(), 4294);
    }

    #[test]
    fn time_codes() {
        assert_eq!(cm_time(0), Duration::from_nanos(4096));
        // 4.29 s, the value of 20 in the standard's table.
        assert_eq!(cm_time(20).as_millis(), 4294);
        assert_eq!(cm_time(31).as_secs(), 8796);
    }
}
