//! iSCSI (RFC 7143) and iSER (RFC 7145): target and initiator.
#![forbid(unsafe_code)]

pub mod keys;
pub mod login;
pub mod name;
pub mod pdu;
pub mod rdma;
pub mod session;
pub mod target;
pub mod tcp;
