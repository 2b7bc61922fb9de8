//! RoCE v2 and v1 on raw Ethernet (AF_PACKET), for where CAP_NET_RAW is there: every header seen, every ICRC checked in full.
//!
//! Start with `port.rs`. Slower than `udp/`, which the kernel helps with trains; its use is to see and write what a UDP
//! socket hides.

mod frame;
mod neighbour;
mod netlink;
mod port;
mod socket;
#[cfg(test)]
mod tests;

pub use frame::Tagging;
pub use neighbour::router_to;
pub use port::RawPort;
pub use socket::permitted;
