//! Drivers: a verbs device on real UDP sockets or raw Ethernet.

pub mod baseline;
pub mod capture;
pub mod error;
pub mod raw;
pub mod route;
mod sockopt;
pub mod udp;

pub use error::OpenError;
