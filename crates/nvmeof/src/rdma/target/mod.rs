//! The target on RDMA: listeners, connections, shutdown.
//!
//! [`NvmeTarget`] shares one [`Target`] among all connections of a thread. Each connection runs its commands to completion
//! where they arrive (see [`connection`]). Association states: connections come with Connect, and all of an association
//! go when its admin queue goes, its keep alive expires, or the target says so.

mod accept;
mod command;
mod connection;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use everywire_verbs::rt::{Notify, Rt};
use everywire_verbs::{CmError, Device, VerbsError};

use crate::Scoped;
use crate::pdu::discovery::PRTYPE_ROCE_V2;
use crate::rdma::pool::DataPool;
use crate::target::{ConfigError, Listener, QueueId, Target, TargetEvent};
use connection::Connection;

/// How the target uses a device.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Bytes of data buffers per listener, shared by its connections.
    pub data_pool: usize,
    /// READs a connection may have outstanding.
    pub rd_atomic: u8,
    /// Requests that may wait for an answer.
    pub backlog: usize,
    /// How long a connection that ends is kept for the host to confirm.
    pub disconnect_timeout: Duration,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self { data_pool: 32 << 20, rd_atomic: 16, backlog: 128, disconnect_timeout: Duration::from_secs(5) }
    }
}

/// Why a target could not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The connection manager refused.
    #[error("cannot listen: {0}")]
    Cm(#[from] CmError),
    /// The device refused.
    #[error("cannot listen: {0}")]
    Verbs(#[from] VerbsError),
    /// The configuration refused.
    #[error("cannot listen: {0}")]
    Config(#[from] ConfigError),
}

/// What every connection shares.
struct Shared {
    rt: Rt,
    target: RefCell<Target>,
    connections: RefCell<HashMap<QueueId, Rc<Connection>>>,
    options: TargetOptions,
    next_port: Cell<u16>,
    /// Connections on their way down.
    closing: Cell<usize>,
    closed: Notify,
    stopping: Cell<bool>,
    stop: RefCell<Vec<Notify>>,
    pools: RefCell<Vec<Weak<DataPool>>>,
}

/// A target. Cheap to clone; lives on one thread.
#[derive(Clone)]
pub struct NvmeTarget(Rc<Shared>);

impl NvmeTarget {
    /// Serves what `target` holds.
    pub fn new(rt: Rt, target: Target, options: TargetOptions) -> Self {
        Self(Rc::new(Shared {
            rt,
            target: RefCell::new(target),
            connections: RefCell::default(),
            options,
            next_port: Cell::new(1),
            closing: Cell::new(0),
            closed: Notify::new(),
            stopping: Cell::new(false),
            stop: RefCell::default(),
            pools: RefCell::default(),
        }))
    }

    /// Listens on an address of `device`, and puts it into the discovery log. Gives the address with its port.
    pub fn listen(&self, device: &Device, address: SocketAddr) -> Result<SocketAddr, ListenError> {
        let entrance = accept::Entrance::new(&self.0, device, address)?;
        let (local, port_id, interface) = (entrance.local_addr(), entrance.port_id(), entrance.interface());
        let listener = Listener { port_id, address: local, provider: PRTYPE_ROCE_V2 };
        self.with(|target| target.add_listener(listener))?;
        let stop = Notify::new();
        self.0.stop.borrow_mut().push(stop.clone());
        tracing::info!(device = device.name(), "listening on {}", Scoped(local, interface.as_deref()));
        self.0.rt.spawn(entrance.run(stop));
        Ok(local)
    }

    /// Looks at or changes the target: subsystems, namespaces, hosts. What follows from it happens before this returns.
    pub fn with<T>(&self, change: impl FnOnce(&mut Target) -> T) -> T {
        let value = change(&mut self.0.target.borrow_mut());
        self.0.dispatch();
        value
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.0.connections.borrow().len()
    }

    /// Bytes of data buffers that commands hold now, over all listeners.
    pub fn data_in_use(&self) -> usize {
        self.0.pools.borrow().iter().filter_map(Weak::upgrade).map(|pool| pool.in_use()).sum()
    }

    /// Stops listening, ends every association, waits until the hosts confirmed or the time for that is over, and
    /// flushes the backends.
    pub async fn shutdown(&self) {
        let shared = &self.0;
        shared.stopping.set(true);
        shared.stop.borrow().iter().for_each(Notify::notify_one);
        self.with(|target| target.shutdown());
        while shared.closing.get() != 0 {
            shared.closed.notified().await;
        }
        let backends = shared.target.borrow().backends();
        for backend in backends {
            if let Err(error) = backend.flush().await {
                tracing::error!("{}: {error}", backend.describe());
            }
        }
    }
}

impl Shared {
    /// Carries out what the target asked for on its own account.
    fn dispatch(&self) {
        loop {
            let Some(event) = self.target.borrow_mut().poll_event() else { return };
            match event {
                TargetEvent::Respond { queue, cqe } => {
                    let connection = self.connections.borrow().get(&queue).cloned();
                    if let Some(connection) = connection {
                        connection.event(cqe);
                    }
                }
                TargetEvent::Deadline { queue } => {
                    let connection = self.connections.borrow().get(&queue).cloned();
                    if let Some(connection) = connection {
                        connection.rearm();
                    }
                }
                TargetEvent::Close { queue, reason } => {
                    let connection = self.connections.borrow().get(&queue).cloned();
                    if let Some(connection) = connection {
                        connection.tear_down(&reason);
                    }
                }
            }
        }
    }
}
