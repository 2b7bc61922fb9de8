//! The SCSI device: its ports, the maps of logical units that initiators see, and their nexuses. SAM-5 §4.
//!
//! One [`Target`] holds the ports of every protocol. A [`LunMap`] is what one kind of initiator sees; one
//! [`LogicalUnit`](crate::lun::LogicalUnit) may be in many. A transport asks for a [`Nexus`] with a map, a port and an
//! initiator's name.

mod manage;
mod map;
mod nexus;
pub(crate) mod path;
mod port;
mod running;
mod task;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lock;
use crate::sense::Asc;
use crate::transport_id::TransportId;
pub(crate) use manage::drained;
pub use manage::{Function, Response};
pub use map::{LunMap, MAX_LUN, MapError};
pub(crate) use nexus::Inner as NexusInner;
pub use nexus::{Nexus, Request, Submitted};
pub(crate) use port::Group;
pub use port::{AccessState, MAX_PORTS, Port, PortConfig};
pub(crate) use running::Running;
pub(crate) use task::Slot;
pub use task::{Outcome, Residual, Task};

/// A SCSI target device.
#[derive(Default)]
pub struct Target {
    ports: Mutex<Vec<Arc<Port>>>,
    nexuses: Mutex<Vec<Weak<NexusInner>>>,
    next: AtomicU64,
}

impl Target {
    /// Without ports.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a port; `None` once there are [`MAX_PORTS`].
    pub fn add_port(&self, config: PortConfig) -> Option<Arc<Port>> {
        let mut ports = lock(&self.ports);
        if ports.len() >= MAX_PORTS {
            return None;
        }
        let group = ports.iter().find(|port| port.group.id == config.group).map(|port| port.group.clone());
        let group = group.unwrap_or_else(|| Group::new(config.group));
        let port = Arc::new(Port { relative_id: relative_id(&config, &ports), config, group });
        ports.push(port.clone());
        Some(port)
    }

    /// Sets the state of a target port group, and tells every nexus whose port is in it (SPC-4 §5.11.2.1).
    pub fn set_group_state(&self, group: u16, state: AccessState) {
        for port in lock(&self.ports).iter().filter(|port| port.group.id == group) {
            port.group.set_state(state);
        }
        self.tell(Asc::ASYMMETRIC_ACCESS_CHANGED, |nexus| nexus.port.group.id == group);
    }

    /// A new map of logical units, without any.
    pub fn lun_map(self: &Arc<Self>) -> Arc<LunMap> {
        LunMap::new(self.clone())
    }

    /// A new I_T nexus.
    pub fn nexus(self: &Arc<Self>, map: &Arc<LunMap>, port: &Arc<Port>, initiator: TransportId) -> Nexus {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let nexus = Nexus::new(id, self.clone(), map.clone(), port.clone(), initiator);
        let mut nexuses = lock(&self.nexuses);
        nexuses.retain(|nexus| nexus.strong_count() != 0);
        nexuses.push(Arc::downgrade(&nexus.0));
        nexus
    }

    /// The ports.
    pub fn ports(&self) -> Vec<Arc<Port>> {
        lock(&self.ports).clone()
    }

    /// A unit attention at every logical unit, for the nexuses that `who` picks.
    pub(crate) fn tell(&self, asc: Asc, who: impl Fn(&NexusInner) -> bool) {
        let nexuses: Vec<_> = lock(&self.nexuses).iter().filter_map(Weak::upgrade).collect();
        nexuses.iter().filter(|nexus| who(nexus)).for_each(|nexus| nexus.tell(asc));
    }
}

/// RELATIVE TARGET PORT IDENTIFIER (SPC-4 §7.8.6.2.4) of a new port: by its name, not by what other ports there are or who was asked for
/// first, because registrations that outlive a restart are those of an initiator at a port of this number.
fn relative_id(config: &PortConfig, there: &[Arc<Port>]) -> u16 {
    // FNV-1a; 0 is reserved.
    let hash = config
        .name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let mut id = (hash % 0xffff) as u16 + 1;
    while there.iter().any(|port| port.relative_id == id) {
        id = id.checked_add(1).unwrap_or(1);
    }
    id
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a target with {} ports", lock(&self.ports).len())
    }
}

#[cfg(test)]
mod tests;
