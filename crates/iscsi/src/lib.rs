//! iSCSI (RFC 7143) and iSER (RFC 7145): target and initiator.
//!
//! Start with `session`, which splits the protocol from the transport that moves data: `tcp` and `rdma` are its bindings. `pdu`
//! is bytes, `keys` and `login` how a session begins, [`target`] and [`initiator`] what programs use. No socket, clock or entropy
//! of its own: streams come through `tcp::ByteStream`, time and entropy through `everywire_verbs::rt::Rt`.
#![forbid(unsafe_code)]

pub mod initiator;
pub mod keys;
pub mod login;
pub mod name;
pub mod pdu;
pub mod rdma;
pub mod session;
pub mod target;
pub mod tcp;

/// The port of iSCSI (IANA).
pub const PORT: u16 = 3260;
