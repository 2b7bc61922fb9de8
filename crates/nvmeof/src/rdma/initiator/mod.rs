//! The initiator on RDMA: discover, connect, do I/O, reconnect, disconnect.
//!
//! Start at [`Controller::connect`] and [`Namespace`]. Registered buffers ([`IoBuffer`]) are read and written by the
//! controller in place; nothing is registered per command. A lost controller is reconnected with growing pauses, and
//! commands wait for that and are sent again, as the Linux host does.
//! What is not here: multipath, authentication, metadata.

mod association;
mod controller;
mod discover;
mod error;
mod namespace;
mod parts;
mod queue;
mod upkeep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everywire_verbs::rt::Rt;
use everywire_verbs::{Device, Pd};
use uuid::Uuid;

use crate::Nqn;
use crate::scoped::interface_of;
pub use controller::Controller;
pub use discover::discover;
pub use error::{NvmeError, NvmeErrorKind};
pub use namespace::{IoBuffer, Namespace, NamespaceInfo};

/// Who the host is. NVMe Base 2.0 §§4.5, 5.27.1.25.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN.
    pub nqn: Nqn,
    /// Host identifier.
    pub id: [u8; 16],
}

impl HostIdentity {
    /// The identity that a UUID gives: host identifier, and the UUID form of the NQN.
    pub fn from_uuid(uuid: Uuid) -> Self {
        let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
        Self { nqn: nqn.parse().expect("the UUID form is an NQN"), id: uuid.into_bytes() }
    }
}

/// How to connect to a controller.
#[derive(Debug, Clone)]
pub struct InitiatorOptions {
    /// Address to connect from.
    pub source: Option<SocketAddr>,
    /// I/O queues; the controller may grant fewer.
    pub io_queues: u16,
    /// Entries of an I/O queue; the controller may allow fewer.
    pub queue_entries: u16,
    /// Keep alive timeout; `None` is no keep alive.
    pub keep_alive: Option<Duration>,
    /// A command without an answer for this long means that the controller is lost.
    pub io_timeout: Duration,
    /// How long connecting to a controller may take in all, until its namespaces are known.
    pub connect_timeout: Duration,
    /// How long a lost controller is tried before commands fail; zero never reconnects.
    pub loss_timeout: Duration,
    /// READs that the controller may have outstanding on a queue.
    pub rd_atomic: u8,
}

impl Default for InitiatorOptions {
    fn default() -> Self {
        Self {
            source: None,
            io_queues: 1,
            queue_entries: 128,
            keep_alive: Some(Duration::from_secs(5)),
            io_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            loss_timeout: Duration::from_secs(600),
            rd_atomic: 16,
        }
    }
}

impl InitiatorOptions {
    fn kato_ms(&self) -> u32 {
        self.keep_alive.map_or(0, |timeout| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))
    }
}

/// What an initiator stands on, over all reconnects.
struct Environment {
    rt: Rt,
    device: Device,
    pd: Pd,
    address: SocketAddr,
    interface: Option<Arc<str>>,
    identity: HostIdentity,
}

impl Environment {
    fn new(
        rt: &Rt,
        device: &Device,
        address: SocketAddr,
        identity: &HostIdentity,
    ) -> Result<Self, NvmeError> {
        let pd = device.alloc_pd().map_err(|error| NvmeError {
            local: None,
            remote: address,
            interface: interface_of(device, address),
            subsystem: Nqn::discovery(),
            step: "allocating a protection domain",
            kind: Box::new(error.into()),
        })?;
        let interface = interface_of(device, address);
        let (rt, device, identity) = (rt.clone(), device.clone(), identity.clone());
        Ok(Self { rt, device, pd, address, interface, identity })
    }
}
