//! The initiator on RDMA: log in, any CDB, task management, reconnect, log out.
//!
//! Start at [`Initiator::connect`] and [`Disk`]. Data lie in registered buffers, which the target reads and writes in place;
//! nothing is registered per command. A lost target is logged in to again with growing pauses, and commands wait for that and
//! are sent again, as Linux's ib_srp does with its fast_io_fail_tmo off.
//! What is not here: multipath, choosing devices.

mod association;
mod channel;
mod disk;
mod error;

use std::net::SocketAddr;
use std::time::Duration;

use crate::PortId;
pub use association::{Completion, Initiator, IoData, TagCell};
pub use disk::{Capacity, Disk};
pub use error::{SrpError, SrpErrorKind};

/// How to log in to a target.
#[derive(Debug, Clone)]
pub struct InitiatorOptions {
    /// Address to connect from.
    pub source: Option<SocketAddr>,
    /// Log in to this service of InfiniBand's connection manager, as found by device management, instead of RDMA/CM.
    pub service_id: Option<u64>,
    /// This initiator port.
    pub initiator: PortId,
    /// Channels; more than one asks for multi-channel operation.
    pub channels: usize,
    /// Requests that a channel may have outstanding, if the target grants as many.
    pub queue: u16,
    /// Most bytes of immediate data with a command; 0 asks for none.
    pub immediate: u32,
    /// Descriptors that fit into a command; more are fetched by the target.
    pub descriptors: usize,
    /// Most bytes that one descriptor describes, where a target is to be shown many.
    pub segment: Option<u32>,
    /// READs that the target may have outstanding.
    pub rd_atomic: u8,
    /// A command without an answer for this long means that the target is lost.
    pub io_timeout: Duration,
    /// How long a lost target is tried before commands fail; `None` is for ever, zero never reconnects.
    pub loss_timeout: Option<Duration>,
}

impl Default for InitiatorOptions {
    fn default() -> Self {
        Self {
            source: None,
            service_id: None,
            initiator: PortId::new(0, 1),
            channels: 1,
            queue: 128,
            immediate: 8192,
            descriptors: 12,
            segment: None,
            rd_atomic: 16,
            io_timeout: Duration::from_secs(30),
            loss_timeout: None,
        }
    }
}
