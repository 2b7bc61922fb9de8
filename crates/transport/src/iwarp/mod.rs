//! The iWARP transport: RDMAP over DDP over MPA on a TCP stream, as one state machine a queue pair.
//!
//! Read RFC 5040 (operations), 5041 (placement) and 5044 (framing) first. Start at [`qp::Qp`]. Work requests, completions,
//! attributes and what a queue pair asks of its device are those of [`crate::ib`]. Start-up frames are `cm::iwarp`'s; sockets
//! the driver's.

pub mod burst;
pub mod ending;
mod fault;
mod inbound;
pub mod nudge;
pub mod params;
pub mod post;
pub mod qp;
mod refusal;
mod requester;
mod responder;
mod rx;
mod shared;
mod state;
pub mod tx;

pub use burst::{Piece, StreamBurst};
pub use params::{Close, ConnId, IwarpConfig, LARGE_ULPDU, Rtr, StreamEvent, StreamFault, StreamParams};
pub use qp::Qp;
pub(crate) use refusal::refusal;

#[cfg(test)]
mod tests;
