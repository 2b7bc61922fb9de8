//! The part of the configuration that NVMe has: port, limits, subsystems, namespaces.
//!
//! NQN syntax is asked of `everywire-nvmeof`; numbers are held against NVMe Base 2.0 and NVMe-oF 1.1.

use std::collections::HashSet;

use everywire_nvmeof::Nqn;
use everywire_verbs::DeviceLimits;
use serde::Deserialize;
use uuid::Uuid;

use super::volume::Source;
use super::{Config, fields};

/// NVMe over RDMA's port (IANA).
pub const NVME_PORT: u16 = 4420;
/// Smallest queue limit: a host's admin queue has 32 entries.
pub(super) const MIN_QUEUE_ENTRIES: u16 = 32;
/// Most in-capsule data: every receive of every queue has room for it.
pub(super) const MAX_IN_CAPSULE: u32 = 64 << 10;
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NvmeFile {
    #[serde(default = "default_port", deserialize_with = "fields::port")]
    pub(super) port: u16,
    #[serde(default, deserialize_with = "fields::max_queue_entries")]
    pub(super) max_queue_entries: Option<u16>,
    #[serde(default, deserialize_with = "fields::max_io_queues")]
    pub(super) max_io_queues: Option<u16>,
    #[serde(default, deserialize_with = "fields::in_capsule_data")]
    pub(super) in_capsule_data: Option<u32>,
    #[serde(default)]
    pub(super) subsystem: Vec<SubsystemFile>,
}

impl Default for NvmeFile {
    fn default() -> NvmeFile {
        NvmeFile {
            port: NVME_PORT,
            max_queue_entries: None,
            max_io_queues: None,
            in_capsule_data: None,
            subsystem: Vec::new(),
        }
    }
}

fn default_port() -> u16 {
    NVME_PORT
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemFile {
    nqn: String,
    #[serde(default, deserialize_with = "fields::serial")]
    serial: Option<String>,
    #[serde(default, deserialize_with = "fields::model")]
    model: Option<String>,
    #[serde(default, deserialize_with = "fields::hosts")]
    hosts: Option<Vec<String>>,
    #[serde(default)]
    namespace: Vec<NamespaceFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceFile {
    #[serde(default, deserialize_with = "fields::nsid")]
    nsid: Option<u32>,
    backend: String,
    #[serde(default, deserialize_with = "fields::uuid")]
    uuid: Option<Uuid>,
}

/// A namespace to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    /// Its number; the next free one if `None`.
    pub nsid: Option<u32>,
    /// Its blocks.
    pub backend: Source,
    /// The same, as written.
    pub backend_text: String,
    /// Its UUID; derived if `None`.
    pub uuid: Option<Uuid>,
}

/// A subsystem to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number; derived if `None`.
    pub serial: Option<String>,
    /// Model number.
    pub model: Option<String>,
    /// Hosts that may connect; all if `None`.
    pub hosts: Option<Vec<Nqn>>,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
}

/// What no subsystem can see alone.
pub(super) fn check_subsystems(subsystems: &[Subsystem]) -> Result<(), String> {
    let mut seen = HashSet::new();
    if let Some(twice) = subsystems.iter().find(|s| !seen.insert(s.nqn.as_str())) {
        return Err(format!("subsystem {} is described twice", twice.nqn));
    }
    for subsystem in subsystems {
        let mut seen = HashSet::new();
        if let Some(twice) =
            subsystem.namespaces.iter().filter_map(|n| n.nsid).find(|nsid| !seen.insert(*nsid))
        {
            return Err(format!("subsystem {}: namespace {twice} is described twice", subsystem.nqn));
        }
        let mut seen = HashSet::new();
        if let Some(twice) =
            subsystem.namespaces.iter().filter_map(|n| n.uuid).find(|uuid| !seen.insert(*uuid))
        {
            return Err(format!(
                "subsystem {}: uuid {twice} is given to two namespaces; hosts would take them for one",
                subsystem.nqn
            ));
        }
        if subsystem.namespaces.is_empty() {
            return Err(format!("subsystem {} has no namespace", subsystem.nqn));
        }
    }
    Ok(())
}

impl Config {
    /// Limits that would make a target nobody can use.
    pub(super) fn check_limits(&self) -> Result<(), String> {
        if self.nvme_port == 0 {
            return Err("nvme.port: 0 is no port that hosts could be told".to_owned());
        }
        if self.max_queue_entries.is_some_and(|entries| entries < MIN_QUEUE_ENTRIES) {
            return Err(format!("nvme.max_queue_entries: at least {MIN_QUEUE_ENTRIES} (NVMe-oF 1.1 §3.3)"));
        }
        let device = DeviceLimits::default().max_qp_wr;
        if let Some(entries) = self.max_queue_entries.filter(|&entries| u32::from(entries) > device) {
            return Err(format!(
                "nvme.max_queue_entries: {entries} is more than a queue of a device has work requests, {device}"
            ));
        }
        if self.max_io_queues == Some(0) {
            return Err("nvme.max_io_queues: a host needs at least one I/O queue".to_owned());
        }
        if let Some(bytes) = self.in_capsule_data
            && (!bytes.is_multiple_of(16) || bytes > MAX_IN_CAPSULE)
        {
            return Err(format!(
                "nvme.in_capsule_data: {bytes} is not a multiple of 16 up to {MAX_IN_CAPSULE} (IOCCSZ counts 16 bytes)"
            ));
        }
        Ok(())
    }
}

pub(super) fn subsystem(file: SubsystemFile) -> Result<Subsystem, String> {
    let nqn = parse_nqn(&file.nqn)?;
    let namespaces = file.namespace.into_iter().map(|n| namespace(&nqn, n)).collect::<Result<Vec<_>, _>>()?;
    let hosts = match file.hosts {
        Some(hosts) => Some(hosts.iter().map(|host| parse_nqn(host)).collect::<Result<Vec<_>, _>>()?),
        None => None,
    };
    Ok(Subsystem { nqn, serial: file.serial, model: file.model, hosts, namespaces })
}

fn namespace(nqn: &Nqn, file: NamespaceFile) -> Result<Namespace, String> {
    let backend = Source::parse(&file.backend).map_err(|e| format!("subsystem {nqn}: {e}"))?;
    Ok(Namespace { nsid: file.nsid, backend, backend_text: file.backend, uuid: file.uuid })
}

/// `NQN=BACKEND`: a namespace more of the subsystem of that name.
pub(super) fn add_export(subsystems: &mut Vec<Subsystem>, text: &str) -> Result<(), String> {
    let (nqn, backend_text) = text
        .split_once('=')
        .ok_or_else(|| format!("--nvme {text}: NQN=BACKEND is needed, as in NQN=ram:256MiB"))?;
    let nqn = parse_nqn(nqn).map_err(|e| format!("--nvme {text}: {e}"))?;
    let backend = Source::parse(backend_text).map_err(|e| format!("--nvme {text}: {e}"))?;
    let namespace = Namespace { nsid: None, backend, backend_text: backend_text.to_owned(), uuid: None };
    match subsystems.iter_mut().find(|s| s.nqn == nqn) {
        Some(subsystem) => subsystem.namespaces.push(namespace),
        None => subsystems.push(Subsystem {
            nqn,
            serial: None,
            model: None,
            hosts: None,
            namespaces: vec![namespace],
        }),
    }
    Ok(())
}

fn parse_nqn(text: &str) -> Result<Nqn, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}
