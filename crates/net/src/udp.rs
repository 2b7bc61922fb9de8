//! RoCE v2 on ordinary, unprivileged UDP sockets: options, batches both ways, errors, and the sockets of one device.
//!
//! Start with `port.rs`, which the driver uses; `socket.rs` says why each option is set.

mod counters;
mod errqueue;
mod owner;
mod port;
mod recv;
mod send;
mod socket;
#[cfg(test)]
mod tests;

pub use counters::{PathEvent, PortCounters};
pub use errqueue::PathError;
pub(crate) use owner::describe as describe_owner;
pub use owner::describe_tcp;
pub use port::{FIRST_SOURCE_PORT, MAX_GROUPS, MAX_SOURCE_PORTS, PortOptions, UdpPort};
pub(crate) use recv::socket_addr;
pub use recv::{MAX_TRAIN, Received, RecvBatch};
pub use send::{MAX_SEND_BATCH, MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, Outgoing, SendBatch};
pub use socket::{
    DEFAULT_BUFFER, DEFAULT_HOP_LIMIT, ROCE_V2_PORT, RoceSocket, Role, SocketOptions, check_device_address,
    needs_scope,
};
