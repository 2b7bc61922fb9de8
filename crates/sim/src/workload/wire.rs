//! What the wires lack and do differently, as far as the workload notices: data, so that nothing else is left out anywhere.
//!
//! Read RFC 5040 §5.1 (what iWARP has), §5.5 (ordering and completion) and RFC 5041 §5.3 first. The same of the verbs themselves,
//! opcode by opcode, is in the conformance suite.

use everywire_verbs::Wire;

use super::connection::SEGMENTS;
use super::ops::{KINDS, RC_WEIGHTS};

/// How a wire is.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// Whether it has UC and UD, and shows peers' refusals in the request's own status; iWARP has one reliable stream, and a
    /// request that the peer refuses has often succeeded by then (RFC 5040 §7).
    pub is_ib: bool,
    /// Whether a program can connect queue pairs by itself: iWARP's need a TCP connection.
    pub by_hand: bool,
    /// Whether a message may wait for its receive (RNR); iWARP's ends the connection (RFC 5041 §5.3, no buffer).
    pub waits_for_receives: bool,
    /// Whether success of a WRITE says that its bytes are at the peer; on iWARP that its buffer is free (RFC 5040 §5.5).
    pub success_is_placement: bool,
    /// Segments of a READ's sink: a READ request of iWARP names one STag (RFC 5040 §4.4).
    pub read_segments: usize,
    /// How often each [`super::Kind`] comes on a reliable connection.
    pub weights: &'static [usize; KINDS],
}

/// RoCE and InfiniBand.
const IB: Traits = Traits {
    is_ib: true,
    by_hand: true,
    waits_for_receives: true,
    success_is_placement: true,
    read_segments: SEGMENTS,
    weights: &RC_WEIGHTS,
};

/// iWARP without the extensions of RFC 7306: no immediate data, no atomics.
const IWARP: Traits = Traits {
    is_ib: false,
    by_hand: false,
    waits_for_receives: false,
    success_is_placement: false,
    read_segments: 1,
    weights: &[18, 0, 8, 20, 0, 14, 3, 0, 0, 5, 5, 2],
};

/// The same with them: immediate data after a WRITE (RFC 7306 §6, none with a SEND), and atomics.
const IWARP_7306: Traits = Traits { weights: &[14, 0, 8, 16, 6, 14, 3, 6, 8, 5, 5, 2], ..IWARP };

/// How this wire is; `rfc7306` says whether iWARP has those extensions.
pub fn traits(wire: Wire, rfc7306: bool) -> &'static Traits {
    match wire {
        Wire::RoceV2 | Wire::RoceV1 | Wire::InfiniBand => &IB,
        Wire::Iwarp if rfc7306 => &IWARP_7306,
        Wire::Iwarp => &IWARP,
    }
}
