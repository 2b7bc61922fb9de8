//! iSER: iSCSI over RDMA (RFC 7145).
//!
//! Read RFC 7145 §5 (login, then RDMA), §7 (how PDUs are carried), §9 (messages), and `session::target::Action`, which is all that
//! a binding does. A message is an iSER header and a PDU in a SEND. `link` moves them, `mover` a target's data: RDMA READs from the
//! initiator's write STag, RDMA WRITEs to its read STag before the response (SEND with Invalidate where that was offered);
//! `commands` is the initiator's part of that: a registration for each command.
//! R2T, Data-In and solicited Data-Out PDUs do not exist here. Every wire of verbs is the same to it.

mod commands;
mod header;
pub(crate) mod initiator;
mod link;
mod listener;
mod mover;
mod place;
mod target;

pub use header::{ControlHeader, HEADER_LEN, Header, HeaderError, Hello, HelloReply, PrivateData, Tagged};
pub use initiator::RdmaBinding;
pub use listener::{ListenError, RdmaOptions, RdmaPortal};

/// The version of iSER in a Hello (RFC 7145 §9.4).
pub const VERSION: u8 = 10;
