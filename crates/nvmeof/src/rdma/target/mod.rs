//! The target on RDMA: listeners, connections, shutdown.
//!
//! [`NvmeTarget`] shares one [`Target`] among all connections of a thread. Each connection runs its commands to completion
//! where they arrive (see [`connection`]). Association states: connections come with Connect, and all of an association
//! go when its admin queue goes, its keep alive expires, or the target says so.

mod accept;
mod command;
mod connection;
mod half_open;

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
use everywire_verbs::peer_log::PeerLog;
use half_open::HalfOpen;
pub use half_open::HalfOpenCounters;

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
    /// Connections at most that hosts have asked for and not completed; one more takes the place of the oldest.
    pub half_open: usize,
    /// The same of one address; one more is refused.
    pub half_open_per_host: usize,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self {
            data_pool: 32 << 20,
            rd_atomic: 16,
            backlog: 128,
            disconnect_timeout: Duration::from_secs(5),
            half_open: 256,
            half_open_per_host: 32,
        }
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
    half_open: Rc<HalfOpen>,
    /// What the peers of each listener may write into the log, and the listener's name there.
    logs: RefCell<Vec<(Rc<PeerLog>, Rc<str>)>>,
}

/// A target. Cheap to clone; lives on one thread.
#[derive(Clone)]
pub struct NvmeTarget(Rc<Shared>);

impl NvmeTarget {
    /// Serves what `target` holds.
    pub fn new(rt: Rt, target: Target, options: TargetOptions) -> Self {
        let half_open = HalfOpen::new(options.half_open, options.half_open_per_host);
        Self(Rc::new(Shared {
            rt,
            half_open,
            logs: RefCell::default(),
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
        // Whoever asked for it says so where its user looks.
        tracing::debug!(device = device.name(), "listening on {}", Scoped(local, interface.as_deref()));
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

    /// Connections that hosts have asked for and not completed.
    pub fn half_open(&self) -> usize {
        self.0.half_open.len()
    }

    /// What became of those that were not completed.
    pub fn half_open_counters(&self) -> HalfOpenCounters {
        self.0.half_open.counters.get()
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
        // What the log left out is told before the end.
        shared.logs.borrow().iter().for_each(|(log, whose)| log.renew(whose));
        let backends = shared.target.borrow().backends();
        for backend in backends {
            if let Err(error) = backend.flush().await {
                tracing::error!("{}: {error}", backend.describe());
            }
        }
    }
}

impl Shared {
    /// Renews a listener's allowance of log lines for as long as there are any.
    fn keep_log(&self, log: &Rc<PeerLog>, whose: String) {
        let whose: Rc<str> = whose.into();
        self.logs.borrow_mut().push((log.clone(), whose.clone()));
        let (rt, log) = (self.rt.clone(), log.clone());
        self.rt.spawn(async move { log.keep(&rt.clone(), &whose).await });
    }

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
