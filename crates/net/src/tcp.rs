//! TCP for iWARP devices: ordinary non-blocking sockets, thousands on one thread.
//!
//! Read first: tcp(7), epoll(7); the contract of streams in `everywire_verbs::stream`. [`port`](self) has connections and
//! what they owe, `listen` the listening sockets that a device and a plain service may share, [`PlainListener`] what is left
//! for the service. No connection has a buffer of its own while nothing waits to be sent. MPA is the device's business.

mod accept;
mod capture;
mod conn;
mod listen;
mod plain;
mod port;
#[cfg(test)]
mod tests;

pub use plain::PlainListener;

pub(crate) use capture::StreamCapture;
pub(crate) use listen::Listening;
pub(crate) use port::{Arrival, TcpPort};
