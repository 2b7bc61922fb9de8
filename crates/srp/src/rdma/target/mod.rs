//! The target on RDMA: target ports with their logical units, listeners, channels, shutdown.
//!
//! [`SrpTarget`] shares one [`Gate`] among all channels of a thread. The channels of one I_T nexus share its
//! [`everywire_scsi::target::Nexus`], which ends with the last of them and takes its tasks along.

mod accept;
mod channel;
mod command;
mod data;
mod manage;
mod nexus;
mod slot;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use everywire_scsi::Protocol;
use everywire_scsi::target::{LunMap, Port, PortConfig};
use everywire_verbs::peer_log::PeerLog;
use everywire_verbs::pool::BufferPool;
use everywire_verbs::rt::{Notify, Rt};
use everywire_verbs::{CmError, Device, VerbsError};

use crate::PortId;
use crate::iu::LogoutReason;
use crate::target::{ChannelId, Gate, Limits, TargetPort};
use channel::Channel;
use nexus::Nexuses;

/// How the target uses a device.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Bytes of data buffers per listener, shared by its channels.
    pub data_pool: usize,
    /// Most bytes of data that one command moves.
    pub max_transfer: u32,
    /// READs a channel may have outstanding.
    pub rd_atomic: u8,
    /// Entries of a channel's send queue; a command that needs more waits for room again and again.
    pub send_queue: u32,
    /// Requests that may wait for an answer.
    pub backlog: usize,
    /// How long an initiator may take to complete a connection.
    pub login_timeout: Duration,
    /// How long a channel that ends is kept for the initiator to confirm.
    pub disconnect_timeout: Duration,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self {
            data_pool: 64 << 20,
            // What a logical unit announces as its MAXIMUM TRANSFER LENGTH must get through.
            max_transfer: everywire_scsi::lun::MAX_TRANSFER,
            rd_atomic: 16,
            send_queue: 512,
            backlog: 128,
            login_timeout: Duration::from_secs(10),
            disconnect_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a target could not listen, or take a target port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The connection manager refused.
    #[error("cannot listen: {0}")]
    Cm(#[from] CmError),
    /// The device refused.
    #[error("cannot listen: {0}")]
    Verbs(#[from] VerbsError),
    /// The identifier is another port's.
    #[error("target port {0} is described twice")]
    Taken(crate::PortId),
    /// The SCSI device has all the ports it can have.
    #[error("target port {0}: the device has no room for another port")]
    TooMany(crate::PortId),
}

/// What a target port leads to.
struct Shown {
    /// The SCSI port by which logical units are reached.
    port: Arc<Port>,
    map: Arc<LunMap>,
    /// Those of initiators that see others.
    maps: HashMap<PortId, Arc<LunMap>>,
}

impl Shown {
    fn to(&self, initiator: PortId) -> &Arc<LunMap> {
        self.maps.get(&initiator).unwrap_or(&self.map)
    }
}

/// What every channel shares.
struct Shared {
    rt: Rt,
    gate: RefCell<Gate>,
    /// What each of the gate's ports leads to.
    maps: RefCell<Vec<Shown>>,
    nexuses: Nexuses,
    channels: RefCell<HashMap<ChannelId, Rc<Channel>>>,
    options: TargetOptions,
    /// Channels on their way down.
    closing: Cell<usize>,
    closed: Notify,
    stopping: Cell<bool>,
    stop: RefCell<Vec<Notify>>,
    pools: RefCell<Vec<Weak<BufferPool>>>,
    /// What initiators provoke is their choice: so many lines a second of it are written.
    log: Rc<PeerLog>,
}

/// A target. Cheap to clone; lives on one thread.
#[derive(Clone)]
pub struct SrpTarget(Rc<Shared>);

impl SrpTarget {
    /// Without target ports.
    pub fn new(rt: Rt, limits: Limits, options: TargetOptions) -> Self {
        Self(Rc::new(Shared {
            log: PeerLog::kept(&rt, "SRP target"),
            rt,
            gate: RefCell::new(Gate::new(limits)),
            maps: RefCell::default(),
            nexuses: Nexuses::default(),
            channels: RefCell::default(),
            options,
            closing: Cell::new(0),
            closed: Notify::new(),
            stopping: Cell::new(false),
            stop: RefCell::default(),
            pools: RefCell::default(),
        }))
    }

    /// Adds a target port that leads to the logical units of `map`, in target port group `group`.
    ///
    /// # Errors
    /// Its identifier is taken, or the SCSI device has too many ports.
    pub fn add_port(&self, port: TargetPort, map: Arc<LunMap>, group: u16) -> Result<(), TargetError> {
        let (id, name) = (port.id, port.name.clone());
        let mut gate = self.0.gate.borrow_mut();
        if gate.ports().iter().any(|other| other.id == id) {
            return Err(TargetError::Taken(id));
        }
        let config =
            PortConfig { protocol: Protocol::Srp, name: id.to_string(), device_name: String::new(), group };
        let scsi = map.target().add_port(config).ok_or(TargetError::TooMany(id))?;
        tracing::debug!("target port {id} is {name}");
        gate.add(port);
        self.0.maps.borrow_mut().push(Shown { port: scsi, map, maps: HashMap::new() });
        Ok(())
    }

    /// Shows the logical units of `map`, a map of the same SCSI device, to one initiator of a target port, from its next login on.
    pub fn show(&self, port: PortId, initiator: PortId, map: Arc<LunMap>) {
        let at = self.0.gate.borrow().ports().iter().position(|one| one.id == port);
        let mut all = self.0.maps.borrow_mut();
        if let Some(shown) = at.and_then(|at| all.get_mut(at)) {
            shown.maps.insert(initiator, map);
        }
    }

    /// Listens on an address of `device`, for logins by RDMA/CM. Gives the address with its port.
    ///
    /// # Errors
    /// The device has no memory for it, or the address or port is not to be had.
    pub fn listen(&self, device: &Device, address: SocketAddr) -> Result<SocketAddr, TargetError> {
        let entrance = accept::Entrance::new(&self.0, device, address)?;
        let local = entrance.local_addr();
        self.start(entrance);
        Ok(local)
    }

    /// Offers a service of InfiniBand's connection manager on `device`, for logins that go by its id.
    ///
    /// # Errors
    /// The device has no memory for it or no such services, or the service is offered already.
    pub fn listen_service(&self, device: &Device, service_id: u64) -> Result<(), TargetError> {
        self.start(accept::Entrance::service(&self.0, device, service_id)?);
        Ok(())
    }

    /// What device management tells of these target ports, with logins to each at `service_id`; `guid` is the controller's.
    pub fn dm_agent(&self, guid: u64, name: &str, service_id: u64) -> crate::dm::Agent {
        let gate = self.0.gate.borrow();
        let ports: Vec<_> = gate.ports().iter().map(|port| (port.id, service_id)).collect();
        crate::dm::Agent::new(guid, name, &ports)
    }

    fn start(&self, entrance: accept::Entrance) {
        let stop = Notify::new();
        self.0.stop.borrow_mut().push(stop.clone());
        self.0.rt.spawn(entrance.run(stop));
    }

    /// Open channels.
    pub fn channels(&self) -> usize {
        self.0.channels.borrow().len()
    }

    /// I_T nexuses.
    pub fn nexuses(&self) -> usize {
        self.0.nexuses.len()
    }

    /// Bytes of data buffers that commands hold now, over all listeners.
    pub fn data_in_use(&self) -> usize {
        self.0.pools.borrow().iter().filter_map(Weak::upgrade).map(|pool| pool.in_use()).sum()
    }

    /// Tells the initiators of every channel to a target port of a condition (SRP_AER_REQ).
    pub fn event(&self, port: crate::PortId, lun: u64, sense: &[u8]) {
        let channels: Vec<_> = self.0.channels.borrow().values().cloned().collect();
        channels.iter().filter(|channel| channel.target_port() == port).for_each(|c| c.event(lun, sense));
    }

    /// Ends every channel to a target port: for tests, and for a port that goes.
    pub fn disconnect(&self, port: crate::PortId, reason: LogoutReason) {
        let channels: Vec<_> = self.0.channels.borrow().values().cloned().collect();
        for channel in channels.iter().filter(|channel| channel.target_port() == port) {
            channel.log_out(reason, &"ended by this side");
        }
    }

    /// Stops listening, logs every initiator out, and waits until they confirmed or the time for that is over.
    pub async fn shutdown(&self) {
        let shared = &self.0;
        shared.stopping.set(true);
        shared.stop.borrow().iter().for_each(Notify::notify_one);
        let channels: Vec<_> = shared.channels.borrow().values().cloned().collect();
        channels.iter().for_each(|channel| channel.log_out(LogoutReason::NONE, &"the target shuts down"));
        while shared.closing.get() != 0 {
            shared.closed.notified().await;
        }
    }
}
