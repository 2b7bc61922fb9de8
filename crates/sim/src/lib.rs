//! Whole systems in virtual time: hosts on a simulated network, an executor, kill and restart, and checkers.
//!
//! The same `Device` and protocol code that runs on real sockets runs here, driven by one seed. Start at [`world`].
#![forbid(unsafe_code)]

mod capture;
pub mod checkers;
pub mod digest;
pub mod executor;
mod host;
mod ib;
pub mod nic;
mod tcp;
pub mod world;

pub use executor::Executor;
pub use ib::IbShape;
pub use world::{HostConfig, HostId, Stalled, World};
pub mod workload;
