//! The configuration of `everywire serve`: a TOML file, or the same from flags, checked before anything is opened.
//!
//! Unknown keys are mistakes, and named with their line. What the parts decide (NQN syntax, backend texts, device names) is asked
//! of the parts, so that `everywire check` and `everywire serve` never differ.

pub mod access;
mod devices;
mod fields;
pub mod iscsi;
mod nvme;
pub mod srp;
pub mod volume;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use everywire_block::{BackendSpec, FileIdentity};
use everywire_net::DeviceSpec;
use serde::Deserialize;

use super::target;
use crate::error::CliError;
use crate::fabric::topology;
pub use nvme::{NVME_PORT, Subsystem};
use volume::{Source, Volume, VolumeFile};

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
    volume: Vec<VolumeFile>,
    #[serde(default)]
    nvme: nvme::NvmeFile,
    #[serde(default)]
    iscsi: iscsi::IscsiFile,
    #[serde(default)]
    srp: srp::SrpFile,
}

/// Everything that a server needs, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Device names.
    pub devices: Vec<String>,
    /// What more than one may serve.
    pub volumes: Vec<Volume>,
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
    /// What is served over SRP.
    pub srp: srp::Srp,
}

/// What the command line adds: devices and port replace those of the file, exports are added to it.
#[derive(Debug, Default)]
pub struct Flags<'a> {
    /// Device names.
    pub devices: &'a [String],
    /// `NAME=BACKEND`.
    pub volumes: &'a [String],
    /// `NQN=BACKEND`.
    pub exports: &'a [String],
    /// Port of NVMe over RDMA.
    pub nvme_port: Option<u16>,
    /// `IQN=BACKEND`.
    pub iscsi: &'a [String],
    /// TCP portals.
    pub tcp: &'a [String],
    /// SRP.
    pub srp: srp::SrpFlags<'a>,
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
        let srp = srp::resolve(file.srp, &flags.srp).map_err(wrong)?;
        let rdma = !srp.targets.is_empty() || !file.nvme.subsystem.is_empty() || !flags.exports.is_empty();
        let only_tcp = !iscsi.targets.is_empty() && !iscsi.portals.is_empty() && !rdma;
        if names.is_empty() && !only_tcp {
            names.push(DEFAULT_DEVICE.to_owned());
        }
        for name in &names {
            DeviceSpec::parse(name).map_err(|e| wrong(e.to_string()))?;
        }
        let mut subsystems = file
            .nvme
            .subsystem
            .into_iter()
            .map(nvme::subsystem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(wrong)?;
        for text in flags.exports {
            nvme::add_export(&mut subsystems, text).map_err(CliError::usage)?;
        }
        let mut config = Config {
            devices: names,
            volumes: volume::resolve(file.volume, flags.volumes).map_err(wrong)?,
            nvme_port: flags.nvme_port.unwrap_or(file.nvme.port),
            max_queue_entries: file.nvme.max_queue_entries,
            max_io_queues: file.nvme.max_io_queues,
            in_capsule_data: file.nvme.in_capsule_data,
            subsystems,
            iscsi,
            srp,
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
        if self.subsystems.is_empty() && self.iscsi.targets.is_empty() && self.srp.targets.is_empty() {
            let what = "--nvme NQN=ram:256MiB or a [[nvme.subsystem]], or --iscsi, or --srp";
            return Err(format!("nothing to serve: give {what}"));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.devices.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(format!("device {twice} is listed twice"));
        }
        devices::check_addresses(&self.devices)?;
        self.srp.check()?;
        self.check_limits()?;
        nvme::check_subsystems(&self.subsystems)?;
        volume::check(&self.volumes, &self.sources().collect::<Vec<_>>())?;
        self.check_files()
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
                    format!(
                        "{path} is the backend of two namespaces or logical units; a file has one writer, and a [[volume]] serves many"
                    )
                } else {
                    format!(
                        "{path} and {other} are one file, and the backend of two namespaces or logical units; a file has one writer, \
                         and a [[volume]] serves many"
                    )
                });
            }
        }
        Ok(())
    }

    /// What namespaces and logical units are made of, and whose each is.
    fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        let namespaces = self
            .subsystems
            .iter()
            .flat_map(|one| one.namespaces.iter().map(|namespace| (one.nqn.as_str(), &namespace.backend)));
        let iscsi = self.iscsi.targets.iter().map(|target| (target.name.as_str(), &target.luns));
        let srp = self.srp.targets.iter().map(|target| (target.name.as_str(), &target.luns));
        let luns = iscsi.chain(srp);
        namespaces.chain(luns.flat_map(|(name, luns)| luns.iter().map(move |lun| (name, &lun.backend))))
    }

    /// Every backend, with whom it serves.
    pub fn backends(&self) -> impl Iterator<Item = (&str, &BackendSpec)> {
        let volumes = self.volumes.iter().map(|volume| (volume.name.as_str(), &volume.backend));
        volumes.chain(self.sources().filter_map(|(whose, source)| Some((whose, source.own()?))))
    }

    /// The files of all backends that can be looked at, and whether they are only read.
    fn files(&self) -> impl Iterator<Item = (&Path, bool, FileIdentity)> {
        self.backends().filter_map(|(_, backend)| {
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

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
