//! The door for OpenSM and infiniband-diags: ibsim's protocol, spoken by libumad2sim.
//!
//! Start with `server.rs`; `control.rs` lets clients in, `peer.rs` says whose messages are heard, `message.rs` is the bytes,
//! `client.rs` who waits for which answer. A client is a MAD agent on a host's port: what it sends goes into the subnet as if
//! the port's driver had sent it, and nothing is answered here that the subnet's own agents answer.

mod client;
mod control;
#[cfg(test)]
mod fuzz;
pub(super) mod message;
mod peer;
mod server;

pub(super) use server::{Ibsim, IbsimEvent};
