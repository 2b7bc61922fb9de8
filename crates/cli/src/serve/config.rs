//! The configuration of `everywire serve`: a TOML file, or the same from flags, checked before anything is opened.
//!
//! Unknown keys are mistakes, and named with their line. What the parts decide (NQN syntax, backend texts, device names) is asked
//! of the parts, so that `everywire check` and `everywire serve` never differ.

mod fields;
pub mod iscsi;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use everywire_block::{BackendSpec, FileIdentity};
use everywire_net::{DeviceSpec, WireKind};
use everywire_nvmeof::Nqn;
use everywire_verbs::DeviceLimits;
use serde::Deserialize;
use uuid::Uuid;

use super::target;
use crate::error::CliError;
use crate::fabric::topology;

/// NVMe over RDMA's port (IANA).
pub const NVME_PORT: u16 = 4420;
/// Smallest queue limit: a host's admin queue has 32 entries.
const MIN_QUEUE_ENTRIES: u16 = 32;
/// Most in-capsule data: every receive of every queue has room for it.
const MAX_IN_CAPSULE: u32 = 64 << 10;
/// Most bytes of a configuration file.
const MAX_FILE: u64 = 1 << 20;
/// Where a target listens if nothing is said.
const DEFAULT_DEVICE: &str = "rocev2:127.0.0.1";

/// The file, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    devices: Vec<String>,
    #[serde(default)]
    nvme: NvmeFile,
    #[serde(default)]
    iscsi: iscsi::IscsiFile,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NvmeFile {
    #[serde(default = "default_port", deserialize_with = "fields::port")]
    port: u16,
    #[serde(default, deserialize_with = "fields::max_queue_entries")]
    max_queue_entries: Option<u16>,
    #[serde(default, deserialize_with = "fields::max_io_queues")]
    max_io_queues: Option<u16>,
    #[serde(default, deserialize_with = "fields::in_capsule_data")]
    in_capsule_data: Option<u32>,
    #[serde(default)]
    subsystem: Vec<SubsystemFile>,
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
struct SubsystemFile {
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
    pub backend: BackendSpec,
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

/// Everything that a server needs, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Device names.
    pub devices: Vec<String>,
    /// Port of NVMe over RDMA.
    pub nvme_port: u16,
    /// Largest queue, if limited.
    pub max_queue_entries: Option<u16>,
    /// Most I/O queues of a host, if limited.
    pub max_io_queues: Option<u16>,
    /// Bytes of data in a capsule, if set.
    pub in_capsule_data: Option<u32>,
    /// What is served over NVMe.
    pub subsystems: Vec<Subsystem>,
    /// What is served over iSCSI.
    pub iscsi: iscsi::Iscsi,
}

/// What the command line adds: devices and port replace those of the file, exports are added to it.
#[derive(Debug, Default)]
pub struct Flags<'a> {
    /// Device names.
    pub devices: &'a [String],
    /// `NQN=BACKEND`.
    pub exports: &'a [String],
    /// Port of NVMe over RDMA.
    pub nvme_port: Option<u16>,
    /// `IQN=BACKEND`.
    pub iscsi: &'a [String],
    /// TCP portals.
    pub tcp: &'a [String],
}

impl Config {
    /// From a file (or nothing), with what flags add.
    pub fn resolve(path: Option<&Path>, flags: &Flags<'_>) -> Result<Config, CliError> {
        match path {
            Some(path) => Config::of(read(path)?, &path.display().to_string(), flags),
            None => Config::of(File::default(), "command line", flags),
        }
    }

    /// The same of what the file said; `whence` names it in errors.
    fn of(file: File, whence: &str, flags: &Flags<'_>) -> Result<Config, CliError> {
        let wrong = |why: String| CliError::usage(format_args!("{whence}: {why}"));
        let mut names = if flags.devices.is_empty() { file.devices } else { flags.devices.to_vec() };
        let iscsi = iscsi::resolve(file.iscsi, flags).map_err(wrong)?;
        let only_tcp =
            !iscsi.targets.is_empty() && file.nvme.subsystem.is_empty() && flags.exports.is_empty();
        if names.is_empty() && !only_tcp {
            names.push(DEFAULT_DEVICE.to_owned());
        }
        for name in &names {
            DeviceSpec::parse(name).map_err(|e| wrong(e.to_string()))?;
        }
        let mut subsystems =
            file.nvme.subsystem.into_iter().map(subsystem).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        for text in flags.exports {
            add_export(&mut subsystems, text).map_err(CliError::usage)?;
        }
        let mut config = Config {
            devices: names,
            nvme_port: flags.nvme_port.unwrap_or(file.nvme.port),
            max_queue_entries: file.nvme.max_queue_entries,
            max_io_queues: file.nvme.max_io_queues,
            in_capsule_data: file.nvme.in_capsule_data,
            subsystems,
            iscsi,
        };
        config.check().map_err(wrong)?;
        let given = target::rehearse(&config).map_err(wrong)?;
        let namespaces = config.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.namespaces);
        namespaces.zip(given).for_each(|(namespace, nsid)| namespace.nsid = Some(nsid));
        Ok(config)
    }

    /// What no part can see alone.
    fn check(&self) -> Result<(), String> {
        self.iscsi.check()?;
        if self.subsystems.is_empty() && self.iscsi.targets.is_empty() {
            return Err(
                "nothing to serve: give --nvme NQN=ram:256MiB or a [[nvme.subsystem]], or --iscsi".to_owned()
            );
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.devices.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(format!("device {twice} is listed twice"));
        }
        self.check_addresses()?;
        self.check_limits()?;
        let mut seen = HashSet::new();
        if let Some(twice) = self.subsystems.iter().find(|s| !seen.insert(s.nqn.as_str())) {
            return Err(format!("subsystem {} is described twice", twice.nqn));
        }
        for subsystem in &self.subsystems {
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
        self.check_files()
    }

    /// One device owns an address: of RoCE its UDP port, of iWARP the TCP ports.
    fn check_addresses(&self) -> Result<(), String> {
        let mut seen = HashMap::new();
        for name in &self.devices {
            let Ok(spec) = DeviceSpec::parse(name) else { continue };
            if matches!(spec.wire, WireKind::Fabric(_)) {
                continue;
            }
            let tcp = spec.wire == WireKind::Tcp;
            if let Some(other) = seen.insert((spec.ip, spec.scope_id, tcp), name) {
                let ip = spec.ip;
                return Err(format!(
                    "devices {other} and {name} have one address, {ip}; one device owns an address"
                ));
            }
        }
        Ok(())
    }

    /// A file that is written belongs to one namespace, by whatever names it goes.
    fn check_files(&self) -> Result<(), String> {
        let mut seen: HashMap<FileIdentity, (&Path, bool)> = HashMap::new();
        for (path, read_only, identity) in self.files() {
            if let Some((other, other_ro)) = seen.insert(identity, (path, read_only))
                && !(read_only && other_ro)
            {
                let (path, other) = (path.display(), other.display());
                return Err(if path.to_string() == other.to_string() {
                    format!("{path} is the backend of two namespaces; a file has one writer")
                } else {
                    format!(
                        "{path} and {other} are one file, and the backend of two namespaces; a file has one writer"
                    )
                });
            }
        }
        Ok(())
    }

    /// The files of all backends that can be looked at, and whether they are only read.
    fn files(&self) -> impl Iterator<Item = (&Path, bool, FileIdentity)> {
        let namespaces = self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let luns = self.iscsi.targets.iter().flat_map(|target| &target.luns);
        namespaces.map(|one| &one.backend).chain(luns.map(|one| &one.backend)).filter_map(|backend| {
            let BackendSpec::File { path, options } = backend else { return None };
            Some((path.as_path(), options.read_only, FileIdentity::of(path).ok()?))
        })
    }

    /// The backend that a capture to this file would overwrite.
    pub fn backend_at(&self, capture: &Path) -> Option<&Path> {
        let wanted = FileIdentity::of(capture).ok()?;
        self.files().find(|(.., identity)| *identity == wanted).map(|(path, ..)| path)
    }
}

impl Config {
    /// Limits that would make a target nobody can use.
    fn check_limits(&self) -> Result<(), String> {
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

fn read(path: &Path) -> Result<File, CliError> {
    let wrong = |why: &dyn Display| CliError::usage(format_args!("cannot read {}: {why}", path.display()));
    let mut text = String::new();
    // What has no end (/dev/zero) is not read for ever.
    let file = std::fs::File::open(path).map_err(|e| wrong(&e))?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|e| wrong(&e))?;
    if text.len() as u64 > MAX_FILE {
        return Err(wrong(&"it has more than 1 MiB, the most that a configuration may have"));
    }
    parse(&text, &path.display().to_string())
}

fn parse(text: &str, whence: &str) -> Result<File, CliError> {
    // The error names line and column, shows the line, and lists the keys that exist there.
    toml::from_str(text).map_err(|e| match topology::parse(text, whence, "fabric") {
        Ok(_) => CliError::usage(format_args!(
            "{whence} is a fabric's topology (`everywire fabric run {whence}`), no configuration of `everywire serve`"
        )),
        Err(_) => CliError::usage(format_args!("{whence}: {e}")),
    })
}

fn subsystem(file: SubsystemFile) -> Result<Subsystem, String> {
    let nqn = parse_nqn(&file.nqn)?;
    let namespaces = file.namespace.into_iter().map(|n| namespace(&nqn, n)).collect::<Result<Vec<_>, _>>()?;
    let hosts = match file.hosts {
        Some(hosts) => Some(hosts.iter().map(|host| parse_nqn(host)).collect::<Result<Vec<_>, _>>()?),
        None => None,
    };
    Ok(Subsystem { nqn, serial: file.serial, model: file.model, hosts, namespaces })
}

fn namespace(nqn: &Nqn, file: NamespaceFile) -> Result<Namespace, String> {
    let backend = BackendSpec::parse(&file.backend).map_err(|e| format!("subsystem {nqn}: {e}"))?;
    Ok(Namespace { nsid: file.nsid, backend, backend_text: file.backend, uuid: file.uuid })
}

/// `NQN=BACKEND`: a namespace more of the subsystem of that name.
fn add_export(subsystems: &mut Vec<Subsystem>, text: &str) -> Result<(), String> {
    let (nqn, backend_text) = text
        .split_once('=')
        .ok_or_else(|| format!("--nvme {text}: NQN=BACKEND is needed, as in NQN=ram:256MiB"))?;
    let nqn = parse_nqn(nqn).map_err(|e| format!("--nvme {text}: {e}"))?;
    let backend = BackendSpec::parse(backend_text).map_err(|e| format!("--nvme {text}: {e}"))?;
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

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
