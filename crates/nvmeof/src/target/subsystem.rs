//! Subsystems and namespaces: identity, access, controller identifiers. NVMe Base 2.0 §§3.2.1, 4.5, 4.7.
//!
//! A namespace's UUID and NGUID are derived from the subsystem NQN and the NSID, so a host recognises a disk after the
//! target was restarted, moved or rebuilt; configured values win.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use everywire_block::{Backend, Geometry};
use uuid::Uuid;

use super::config::{ConfigError, ControllerModel, MAX_NSID, NamespaceConfig, SubsystemConfig};
use crate::Nqn;
use crate::pdu::fabrics::{CNTLID_DYNAMIC, CNTLID_STATIC_ANY};

/// Largest controller identifier; FFF0h and up are reserved. NVMe Base 2.0 §3.1.
const MAX_CNTLID: u16 = 0xffef;

/// Namespace of the name-based UUIDs here (itself a random UUID, fixed for ever).
const UUID_SPACE: Uuid = Uuid::from_u128(0x6f0b_96a4_5f5c_4c0e_9a3b_7d21_e4c8_5a17);

/// Identity of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceIds {
    /// UUID.
    pub uuid: Uuid,
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI-64; zero is none.
    pub eui64: [u8; 8],
}

impl NamespaceIds {
    fn derive(nqn: &Nqn, nsid: u32, config: &NamespaceConfig) -> Self {
        let derived = |kind: &str| Uuid::new_v5(&UUID_SPACE, format!("{nqn}\0{nsid}\0{kind}").as_bytes());
        Self {
            uuid: config.uuid.unwrap_or_else(|| derived("uuid")),
            nguid: config.nguid.unwrap_or_else(|| derived("nguid").into_bytes()),
            eui64: config.eui64.unwrap_or_default(),
        }
    }
}

/// A namespace.
pub struct Namespace {
    /// Identifier.
    pub nsid: u32,
    /// Its blocks.
    pub backend: Arc<dyn Backend>,
    /// The backend's geometry, which never changes.
    pub geometry: Geometry,
    /// Identity.
    pub ids: NamespaceIds,
    pub(super) stats: Stats,
}

/// Counts for the SMART log.
#[derive(Default)]
pub(super) struct Stats {
    pub(super) reads: Cell<u64>,
    pub(super) writes: Cell<u64>,
    pub(super) blocks_read: Cell<u64>,
    pub(super) blocks_written: Cell<u64>,
    pub(super) media_errors: Cell<u64>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "namespace {} ({})", self.nsid, self.backend.describe())
    }
}

/// Namespaces by identifier; a change makes a new map.
pub(super) type Namespaces = Rc<BTreeMap<u32, Rc<Namespace>>>;

pub(super) struct Subsystem {
    pub(super) nqn: Nqn,
    pub(super) serial: String,
    pub(super) model: String,
    pub(super) hosts: Option<BTreeSet<Nqn>>,
    ports: Option<Vec<u16>>,
    pub(super) namespaces: Namespaces,
    pub(super) controllers: ControllerModel,
    cntlids: BTreeSet<u16>,
    next_cntlid: u16,
}

/// Why no controller identifier could be given.
pub(super) enum NoController {
    /// The host asked for one that cannot be.
    Invalid,
    /// All are in use.
    Busy,
}

impl Subsystem {
    pub(super) fn new(config: &SubsystemConfig) -> Result<Self, ConfigError> {
        if let ControllerModel::Static(ids) = &config.controllers
            && let Some(&bad) = ids.iter().find(|&&id| id > MAX_CNTLID)
        {
            return Err(ConfigError::BadControllerId(bad));
        }
        let derived = || {
            let id = Uuid::new_v5(&UUID_SPACE, config.nqn.as_str().as_bytes());
            format!("{:016x}", id.as_u64_pair().0)
        };
        let mut subsystem = Self {
            nqn: config.nqn.clone(),
            serial: config.serial.clone().unwrap_or_else(derived),
            model: config.model.clone(),
            hosts: config.hosts.as_ref().map(|hosts| hosts.iter().cloned().collect()),
            ports: config.ports.clone(),
            namespaces: Namespaces::default(),
            controllers: config.controllers.clone(),
            cntlids: BTreeSet::new(),
            next_cntlid: 1,
        };
        for namespace in &config.namespaces {
            subsystem.add_namespace(namespace)?;
        }
        Ok(subsystem)
    }

    pub(super) fn add_namespace(&mut self, config: &NamespaceConfig) -> Result<u32, ConfigError> {
        let free = || (1..=MAX_NSID).find(|nsid| !self.namespaces.contains_key(nsid)).unwrap_or(MAX_NSID + 1);
        let nsid = config.nsid.unwrap_or_else(free);
        if nsid == 0 || nsid > MAX_NSID {
            return Err(ConfigError::BadNsid(nsid));
        }
        if self.namespaces.contains_key(&nsid) {
            return Err(ConfigError::DuplicateNamespace { nqn: self.nqn.clone(), nsid });
        }
        let namespace = Namespace {
            nsid,
            geometry: config.backend.geometry(),
            backend: config.backend.clone(),
            ids: NamespaceIds::derive(&self.nqn, nsid, config),
            stats: Stats::default(),
        };
        Rc::make_mut(&mut self.namespaces).insert(nsid, Rc::new(namespace));
        Ok(nsid)
    }

    /// May this host use the subsystem?
    pub(super) fn allows(&self, host: &Nqn) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
    }

    /// Is the subsystem reachable through this listener?
    pub(super) fn listens_on(&self, port_id: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port_id))
    }

    /// Some namespace loses completed writes in a power failure.
    pub(super) fn has_volatile_cache(&self) -> bool {
        self.namespaces.values().any(|namespace| namespace.geometry.volatile_cache)
    }

    /// Gives out a controller identifier for what Connect asked.
    pub(super) fn allocate(&mut self, asked: u16) -> Result<u16, NoController> {
        let id = match &self.controllers {
            ControllerModel::Dynamic if asked != CNTLID_DYNAMIC => return Err(NoController::Invalid),
            // Identifiers go round, so that one is not reused while a stale host may still name it.
            ControllerModel::Dynamic => (0..MAX_CNTLID)
                .map(|step| (u32::from(self.next_cntlid) - 1 + u32::from(step)) % u32::from(MAX_CNTLID) + 1)
                .map(|id| id as u16)
                .find(|id| !self.cntlids.contains(id))
                .ok_or(NoController::Busy)?,
            ControllerModel::Static(ids) if asked == CNTLID_STATIC_ANY => {
                *ids.iter().find(|id| !self.cntlids.contains(id)).ok_or(NoController::Busy)?
            }
            ControllerModel::Static(ids) if !ids.contains(&asked) => return Err(NoController::Invalid),
            ControllerModel::Static(_) if self.cntlids.contains(&asked) => return Err(NoController::Busy),
            ControllerModel::Static(_) => asked,
        };
        self.cntlids.insert(id);
        self.next_cntlid = if id >= MAX_CNTLID { 1 } else { id + 1 };
        Ok(id)
    }

    pub(super) fn release(&mut self, cntlid: u16) {
        self.cntlids.remove(&cntlid);
    }
}
