//! An InfiniBand device's way to a running fabric: the attaching program's end of the socket.
//!
//! Start with `port.rs`; `message.rs` is what goes over the socket, `credits.rs` why nothing is ever dropped on it.

pub(crate) mod channel;
pub(crate) mod credits;
#[cfg(test)]
mod fuzz;
mod greeting;
pub(crate) mod message;
pub(crate) mod port;

pub(crate) use greeting::Greeting;
pub(crate) use port::{FabricPort, Said};
