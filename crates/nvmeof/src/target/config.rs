//! What a target serves, to whom, and its limits. Every limit here is what the controller advertises or refuses by.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::Backend;
use uuid::Uuid;

use crate::Nqn;

/// Asynchronous event requests one controller holds (AERL + 1).
pub const MAX_ASYNC_EVENTS: usize = 4;
/// Entries of the error log (ELPE + 1).
pub const ERROR_LOG_ENTRIES: usize = 16;
/// Largest NSID.
pub const MAX_NSID: u32 = 1024;
/// Entries of an admin submission queue that discovery advertises (ASQSZ).
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// Bounds of a target.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most entries of a submission queue (MQES + 1).
    pub max_queue_entries: u16,
    /// Most I/O queues of a controller.
    pub max_io_queues: u16,
    /// Most controllers at once, over all subsystems.
    pub max_controllers: usize,
    /// Most connections at once.
    pub max_connections: usize,
    /// Bytes of in-capsule data a command may carry; a multiple of 16.
    pub in_capsule_data: u32,
    /// Most keyed descriptors in a command; see [`Limits::sgl_descriptors`].
    pub max_sgl_descriptors: u8,
    /// log2 of the largest transfer, in 4 KiB pages (MDTS).
    pub mdts: u8,
    /// Time from the connection to its Connect command.
    pub connect_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_queue_entries: 1024,
            max_io_queues: 64,
            max_controllers: 1024,
            max_connections: 4096,
            in_capsule_data: 4096,
            max_sgl_descriptors: 16,
            mdts: 8,
            connect_timeout: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// Largest transfer in bytes.
    pub fn max_transfer(&self) -> u32 {
        4096 << self.mdts
    }

    /// Keyed descriptors that a command may have (MSDBD): one in the entry, or as many as the capsule has room for behind
    /// it, 16 bytes each. Never 0, which would say "no limit". NVMe-oF 1.1 §4.1.
    pub fn sgl_descriptors(&self) -> u8 {
        let room = (self.in_capsule_data / 16).max(1);
        self.max_sgl_descriptors.max(1).min(u8::try_from(room).unwrap_or(u8::MAX))
    }
}

/// A namespace to add.
#[derive(Clone)]
pub struct NamespaceConfig {
    /// Identifier; the lowest free one if `None`.
    pub nsid: Option<u32>,
    /// Its blocks.
    pub backend: Arc<dyn Backend>,
    /// UUID; derived from the subsystem NQN and the NSID if `None`, so that it stays the same over restarts.
    pub uuid: Option<Uuid>,
    /// NGUID; derived likewise.
    pub nguid: Option<[u8; 16]>,
    /// EUI-64; none if `None`.
    pub eui64: Option<[u8; 8]>,
}

impl NamespaceConfig {
    /// A namespace with derived identifiers.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { nsid: None, backend, uuid: None, nguid: None, eui64: None }
    }
}

/// How controller identifiers are given out. NVMe-oF 1.1 §1.5.1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ControllerModel {
    /// A fresh controller for each association; the host must ask for FFFFh.
    #[default]
    Dynamic,
    /// These controllers exist; the host asks for one of them, or for any with FFFEh.
    Static(Vec<u16>),
}

/// A subsystem to add.
#[derive(Clone)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number; derived from the name if `None`.
    pub serial: Option<String>,
    /// Model number.
    pub model: String,
    /// Hosts that may connect; `None` is any.
    pub hosts: Option<Vec<Nqn>>,
    /// Listeners it is reachable through; `None` is all.
    pub ports: Option<Vec<u16>>,
    /// Controller identifiers.
    pub controllers: ControllerModel,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceConfig>,
}

impl SubsystemConfig {
    /// A subsystem that any host may use, on every listener.
    pub fn new(nqn: Nqn) -> Self {
        Self {
            nqn,
            serial: None,
            model: "Everywire".to_owned(),
            hosts: None,
            ports: None,
            controllers: ControllerModel::Dynamic,
            namespaces: Vec::new(),
        }
    }

    /// With one more namespace.
    pub fn namespace(mut self, namespace: NamespaceConfig) -> Self {
        self.namespaces.push(namespace);
        self
    }
}

/// An address that hosts reach the target at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Port identifier in the discovery log.
    pub port_id: u16,
    /// Address and port; an unspecified address is shown to a host as the one it came by.
    pub address: SocketAddr,
    /// RDMA provider type in the discovery log, `discovery::PRTYPE_*`.
    pub provider: u8,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The NQN is in use.
    #[error("subsystem {0} exists already")]
    DuplicateSubsystem(Nqn),
    /// The discovery NQN is no NVM subsystem.
    #[error("{0} is the discovery service's name")]
    DiscoveryName(Nqn),
    /// Taking one host off a list needs a list.
    #[error(
        "subsystem {0} is open to any host, so no single host can be taken off; describe it with a list of hosts first"
    )]
    OpenToAnyHost(Nqn),
    /// No such subsystem.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Nqn),
    /// The NSID is in use.
    #[error("namespace {nsid} of {nqn} exists already")]
    DuplicateNamespace {
        /// The subsystem.
        nqn: Nqn,
        /// The namespace.
        nsid: u32,
    },
    /// No such namespace.
    #[error("{nqn} has no namespace {nsid}")]
    NoNamespace {
        /// The subsystem.
        nqn: Nqn,
        /// The namespace.
        nsid: u32,
    },
    /// NSID 0 or over the limit.
    #[error("namespace identifier {0} is not in 1..={MAX_NSID}")]
    BadNsid(u32),
    /// The listener's port identifier is in use.
    #[error("port identifier {0} is in use")]
    DuplicatePort(u16),
    /// A static controller identifier is reserved.
    #[error("controller identifier {0:#x} is reserved (0xfff0 and up)")]
    BadControllerId(u16),
}
