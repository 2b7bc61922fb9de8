//! The transports (InfiniBand, iWARP) and their connection managers as state machines: no socket, thread or clock.
#![forbid(unsafe_code)]

pub mod cm;
pub mod congestion;
pub mod ib;
pub mod iwarp;
pub mod mad;
pub mod memory;
