//! What connections are made with.
//!
//! Read IBTA vol. 1 §12.7 first. The defaults are those of Linux's rdma_cm users: seven retries, endless RNR retries, the
//! ACK timeout from the connection manager.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_wire::Qpn;

use crate::qp::Qp;

/// Requests that may wait on a listener unless it says otherwise.
const DEFAULT_BACKLOG: usize = 128;
/// READs and atomics in flight each way unless the program says otherwise.
const DEFAULT_RD_ATOMIC: u8 = 16;
/// RNR timer code 12: 0.64 ms (IBTA table 45).
const DEFAULT_RNR_TIMER: u8 = 12;

/// Parameters of a connection: ours on the way out, the peer's where a handle gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// What the programs tell each other: at most 56 bytes in a request, 196 in an acceptance. Received ones always have
    /// full length, padded with zeros. Over iWARP at most 508 bytes, and received as given.
    pub private_data: Vec<u8>,
    /// READs and atomics that the other side may have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics that this side wants to have outstanding.
    pub initiator_depth: u8,
    /// Transport retries of both sides, 0–7; decided by who connects.
    pub retry_count: u8,
    /// How often the other side may retry when this one has no receive posted, 0–7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// How long the other side waits before such a retry, a code of IBTA table 45. Not on the wire: a received one is 0.
    pub min_rnr_timer: u8,
    /// Local ACK timeout of both sides, 4.096 µs · 2^n; decided by who connects. `None`: 19 (2.1 s) as Linux.
    pub ack_timeout: Option<u8>,
    /// Of a peer: whether it has a shared receive queue. Ours is taken from the queue pair.
    pub srq: bool,
    /// Of a peer: its queue pair. Ours is taken from the queue pair.
    pub qp_num: Qpn,
}

impl Default for ConnParam {
    fn default() -> ConnParam {
        ConnParam {
            private_data: Vec::new(),
            responder_resources: DEFAULT_RD_ATOMIC,
            initiator_depth: DEFAULT_RD_ATOMIC,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: DEFAULT_RNR_TIMER,
            ack_timeout: None,
            srq: false,
            qp_num: Qpn::new(0),
        }
    }
}

impl ConnParam {
    /// The defaults with private data.
    pub fn with_private_data(data: impl Into<Vec<u8>>) -> ConnParam {
        ConnParam { private_data: data.into(), ..ConnParam::default() }
    }

    /// Brings READs and atomics down to what the device can do.
    pub(super) fn limited(mut self, max_rd_atomic: u8) -> ConnParam {
        self.responder_resources = self.responder_resources.min(max_rd_atomic);
        self.initiator_depth = self.initiator_depth.min(max_rd_atomic);
        self
    }
}

/// Where to connect, and with what.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The peer. A link-local address needs its scope.
    pub dst: SocketAddr,
    /// The address and port to connect from. Port 0 takes a free one; an unspecified address is the route's.
    pub src: Option<SocketAddr>,
    /// A connected queue pair in RESET or INIT; in INIT it may hold receives.
    pub qp: Qp,
    /// Parameters.
    pub param: ConnParam,
    /// IPv4 TOS or IPv6 traffic class of the connection's packets, both ways.
    pub traffic_class: u8,
    /// Low bits of our LID on InfiniBand, below 2^LMC: which of several paths. `None`: the device's
    /// ([`DeviceConfig::path_bits`](crate::DeviceConfig::path_bits)).
    pub path_bits: Option<u8>,
    /// The service of InfiniBand's connection manager to ask for, without RDMA/CM: `dst`'s port and the IP CM header have no part in
    /// it, and the request's private data are all the program's, 92 bytes.
    pub service_id: Option<u64>,
    /// Gives up after this time; `None` leaves it to the retries (98 s for a silent peer, as Linux).
    pub timeout: Option<Duration>,
}

impl ConnectOptions {
    /// To `dst` with everything else at its default.
    pub fn new(dst: SocketAddr, qp: &Qp) -> ConnectOptions {
        ConnectOptions {
            dst,
            src: None,
            qp: qp.clone(),
            param: ConnParam::default(),
            traffic_class: 0,
            path_bits: None,
            service_id: None,
            timeout: None,
        }
    }

    /// With these parameters.
    pub fn param(mut self, param: ConnParam) -> ConnectOptions {
        self.param = param;
        self
    }

    /// From this address.
    pub fn src(mut self, src: SocketAddr) -> ConnectOptions {
        self.src = Some(src);
        self
    }

    /// By the path from our LID with these low bits.
    pub fn path_bits(mut self, path_bits: u8) -> ConnectOptions {
        self.path_bits = Some(path_bits);
        self
    }

    /// For this service, without RDMA/CM.
    pub fn service_id(mut self, service_id: u64) -> ConnectOptions {
        self.service_id = Some(service_id);
        self
    }

    /// Giving up after this time.
    pub fn timeout(mut self, timeout: Duration) -> ConnectOptions {
        self.timeout = Some(timeout);
        self
    }
}

/// How to listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Requests that may wait for an answer; more are rejected with reason 3, "no resources available".
    pub backlog: usize,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions { backlog: DEFAULT_BACKLOG }
    }
}
