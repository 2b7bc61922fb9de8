//! The InfiniBand transport and connection manager as state machines: no socket, thread or clock.
#![forbid(unsafe_code)]

pub mod cm;
pub mod congestion;
pub mod ib;
pub mod mad;
pub mod memory;
