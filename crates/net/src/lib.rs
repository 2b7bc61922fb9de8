//! Drivers: a verbs device on real UDP sockets or raw Ethernet, and the raw baselines that speed is judged by.
//!
//! Start at [`Host`]: it opens a device by name (`rocev2:127.0.0.1`) and drives it, on a background thread
//! ([`Host::spawn_thread`]), as a task beside protocol code ([`Host::run`], [`TokioRt`]) or only while the program polls.
//! [`udp`] is the socket layer, [`raw`] the one on raw Ethernet, [`capture`] writes pcapng, [`baseline`] measures raw UDP.
//! No protocol is in this crate, and no reliability: that is the transport's.

// Test helpers shared with tests/ name the crate as those must.
#[cfg(test)]
extern crate self as everywire_net;

pub mod baseline;
pub mod capture;
mod driver;
pub mod error;
mod event;
pub mod fabric_host;
pub mod fabric_port;
mod link;
mod rarely;
pub mod raw;
pub mod route;
mod runtime;
mod sockopt;
mod spec;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod udp;

pub use driver::{Host, OpenOptions, PossibleDevice, possible_devices};
pub use error::{OpenError, raise_descriptor_limit, with_limit};
pub use runtime::{TokioRt, block_on};
pub use spec::{DeviceSpec, FabricWire, WireKind, address};
pub use udp::describe_tcp as tcp_owner;
