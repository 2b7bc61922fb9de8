//! The start-up of an iWARP connection: one request, one reply, on the TCP stream that goes on to carry FPDUs.
//!
//! Read RFC 5044 §7.1 (start frames) and RFC 6581 (depths, peer to peer) first. An [`Initiator`] or a [`Responder`] is one
//! start-up; feed it the stream until it says what became of it, and give the bytes it did not consume to the queue pair.
//! Sockets, listeners and retries on a new connection are the device's.

mod initiator;
mod responder;
mod stream_error;
pub mod types;

pub use initiator::Initiator;
pub use responder::Responder;
pub use stream_error::StreamError;
pub use types::{
    AcceptParams, Agreed, Blame, Failure, InitiatorConfig, MpaError, MpaEvent, Request, ResponderConfig,
    RtrSet,
};

use everywire_wire::mpa::{Enhanced, StartFrame, StartKind};

/// Takes bytes of the peer's start frame: adds what belongs to it to `partial` and says how many those were. The frame is
/// whole when the second value is true.
fn take_frame(
    kind: StartKind,
    partial: &mut Vec<u8>,
    bytes: &[u8],
) -> Result<(usize, bool), everywire_wire::WireError> {
    let before = partial.len();
    // Never more than the header before its length field is known, nor more than that says.
    while partial.len() - before < bytes.len() {
        let goal = StartFrame::length(kind, partial)?.unwrap_or(StartFrame::HEADER_LEN);
        if partial.len() == goal {
            break;
        }
        let rest = &bytes[partial.len() - before..];
        partial.extend_from_slice(&rest[..rest.len().min(goal - partial.len())]);
    }
    let length = StartFrame::length(kind, partial)?;
    Ok((partial.len() - before, length == Some(partial.len())))
}

/// The RTR frames that a block names.
fn rtr_set(block: &Enhanced) -> RtrSet {
    let rows =
        [(block.rtr_send, RtrSet::SEND), (block.rtr_write, RtrSet::WRITE), (block.rtr_read, RtrSet::READ)];
    rows.into_iter().filter(|(on, _)| *on).map(|(_, set)| set).collect()
}

/// A block that names these RTR frames.
fn block_of(peer_to_peer: bool, rtr: RtrSet, ird: u16, ord: u16) -> Enhanced {
    Enhanced {
        peer_to_peer,
        rtr_send: rtr.contains(RtrSet::SEND),
        rtr_write: rtr.contains(RtrSet::WRITE),
        rtr_read: rtr.contains(RtrSet::READ),
        ird: ird.min(Enhanced::MAX_DEPTH),
        ord: ord.min(Enhanced::MAX_DEPTH),
    }
}

#[cfg(test)]
mod tests;
