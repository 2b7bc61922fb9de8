//! Volumes: blocks with a name, which NVMe, iSCSI and SRP may serve at once, as `volume:NAME`.
//!
//! A volume is one logical unit of SCSI, whoever serves it: one order of commands, one set of reservations. What is served by one
//! alone needs no name.

use std::collections::HashSet;
use std::path::PathBuf;

use everywire_block::BackendSpec;
use everywire_scsi::lun::MAX_SERIAL;
use serde::Deserialize;

/// Longest name of a volume.
const MAX_NAME: usize = 64;
/// What comes before a volume's name where a backend is expected.
const PREFIX: &str = "volume:";

/// `[[volume]]`, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeFile {
    name: String,
    backend: String,
    serial: Option<String>,
    #[serde(default)]
    removable: bool,
    reservations: Option<PathBuf>,
}

/// Blocks with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its blocks.
    pub backend: BackendSpec,
    /// The same, as written.
    pub backend_text: String,
    /// Unit serial number; derived if `None`.
    pub serial: Option<String>,
    /// Its medium can be ejected.
    pub removable: bool,
    /// Where reservations are kept that must outlive a restart (APTPL).
    pub reservations: Option<PathBuf>,
}

/// Where the blocks of a namespace or of a logical unit are.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// In a backend of its own.
    Own(BackendSpec),
    /// In the volume of this name.
    Volume(String),
}

impl Source {
    /// Reads `volume:NAME`, or a backend's text.
    pub fn parse(text: &str) -> Result<Source, String> {
        match text.strip_prefix(PREFIX) {
            Some(name) => Ok(Source::Volume(name.to_owned())),
            None => BackendSpec::parse(text).map(Source::Own).map_err(|e| e.to_string()),
        }
    }

    /// The backend, where it belongs to nobody else.
    pub fn own(&self) -> Option<&BackendSpec> {
        match self {
            Source::Own(backend) => Some(backend),
            Source::Volume(_) => None,
        }
    }
}

/// From the file, with what `--volume NAME=BACKEND` adds.
pub(super) fn resolve(files: Vec<VolumeFile>, flags: &[String]) -> Result<Vec<Volume>, String> {
    let parse = |name: &str, text: &str| BackendSpec::parse(text).map_err(|e| format!("volume {name}: {e}"));
    let mut volumes = Vec::new();
    for file in files {
        let VolumeFile { name, backend: backend_text, serial, removable, reservations } = file;
        let backend = parse(&name, &backend_text)?;
        volumes.push(Volume { name, backend, backend_text, serial, removable, reservations });
    }
    for text in flags {
        let (name, backend_text) = text
            .split_once('=')
            .ok_or_else(|| format!("--volume {text}: NAME=BACKEND is needed, as in disk=ram:256MiB"))?;
        volumes.push(Volume {
            name: name.to_owned(),
            backend: parse(name, backend_text)?,
            backend_text: backend_text.to_owned(),
            serial: None,
            removable: false,
            reservations: None,
        });
    }
    Ok(volumes)
}

/// Volumes against whoever uses them: namespaces and logical units by whose they are.
pub(super) fn check(volumes: &[Volume], users: &[(&str, &Source)]) -> Result<(), String> {
    let used: HashSet<&str> = users
        .iter()
        .filter_map(|(_, source)| match source {
            Source::Volume(name) => Some(name.as_str()),
            Source::Own(_) => None,
        })
        .collect();
    let mut there = HashSet::new();
    for Volume { name, serial, .. } in volumes {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(|c| c.is_control() || c == '=') {
            return Err(format!("volume {name:?}: a name has 1 to {MAX_NAME} bytes, and no `=`"));
        }
        if !there.insert(name.as_str()) {
            return Err(format!("volume {name} is described twice"));
        }
        if serial.as_ref().is_some_and(|serial| !(1..=MAX_SERIAL).contains(&serial.len())) {
            return Err(format!("volume {name}: serial: 1 to {MAX_SERIAL} characters are needed"));
        }
        if !used.contains(name.as_str()) {
            return Err(format!(
                "volume {name} is served by nobody; `volume:{name}` in place of a backend serves it"
            ));
        }
    }
    for (whose, source) in users {
        if let Source::Volume(name) = source
            && !there.contains(name.as_str())
        {
            return Err(format!("{whose}: there is no volume {name}; describe it by [[volume]] or --volume"));
        }
    }
    Ok(())
}
