//! The logical units of `everywire serve`: opened once, whoever serves them, driven while it runs, flushed at its end.
//!
//! Targets that serve a volume are ports of one SCSI device, so that the ports through which it is reached are numbered in one space
//! and reservations tell them apart (SPC-4 §5.13). The others are devices of their own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use everywire_block::{Backend, BackendSpec};
use everywire_scsi::lun::{LogicalUnit, LunConfig};
use everywire_scsi::reservations::FileStore;
use everywire_scsi::target::{LunMap, Target as ScsiTarget};
use everywire_verbs::rt::Rt;

use super::config::access::LunNumbers;
use super::config::iscsi::Lun;
use super::config::volume::{Source, Volume};
use crate::error::CliError;

/// All of them.
pub struct Units {
    volumes: HashMap<String, Arc<LogicalUnit>>,
    all: Vec<Arc<LogicalUnit>>,
    /// The device that targets with volumes belong to.
    shared: Arc<ScsiTarget>,
}

/// The logical units of a target, by number.
pub struct Numbered {
    units: Vec<(u16, Arc<LogicalUnit>)>,
    device: Arc<ScsiTarget>,
}

impl Units {
    /// Opens the volumes.
    pub fn open(volumes: &[Volume]) -> Result<Units, CliError> {
        let mut units = Units { volumes: HashMap::new(), all: Vec::new(), shared: ScsiTarget::new() };
        for volume in volumes {
            let who = format!("volume {}", volume.name);
            let backend = Own {
                backend: &volume.backend,
                serial: volume.serial.as_ref(),
                removable: volume.removable,
                reservations: volume.reservations.as_ref(),
            };
            let unit = backend.open(&who, who.clone())?;
            units.volumes.insert(volume.name.clone(), unit.clone());
            units.all.push(unit);
        }
        Ok(units)
    }

    /// A volume as a backend of NVMe's; `None` if there is none of that name.
    pub fn for_nvme(&self, name: &str) -> Option<Arc<dyn Backend>> {
        self.volumes.get(name).map(LogicalUnit::for_outsiders)
    }

    /// Opens the logical units of the target `whose`.
    pub fn of(&mut self, whose: &str, luns: &[Lun]) -> Result<Numbered, CliError> {
        let mut units = Vec::new();
        let mut device = None;
        for lun in luns {
            let who = format!("target {whose} LUN {}", lun.number);
            let unit = match &lun.backend {
                Source::Volume(name) => {
                    device = Some(self.shared.clone());
                    let unit = self.volumes.get(name).cloned();
                    unit.ok_or_else(|| CliError::usage(format_args!("{who}: there is no volume {name}")))?
                }
                Source::Own(backend) => {
                    let (serial, reservations) = (lun.serial.as_ref(), lun.reservations.as_ref());
                    let own = Own { backend, serial, removable: lun.removable, reservations };
                    let unit = own.open(&who, format!("{whose}/{}", lun.number))?;
                    self.all.push(unit.clone());
                    unit
                }
            };
            units.push((lun.number, unit));
        }
        Ok(Numbered { units, device: device.unwrap_or_else(ScsiTarget::new) })
    }

    /// Has what units leave behind carried on while the program runs.
    pub fn drive(&self, rt: &Rt) {
        for unit in &self.all {
            rt.spawn(unit.clone().drive());
        }
    }

    /// What was written is kept from now on.
    pub async fn flush(&self) {
        for unit in &self.all {
            let backend = unit.backend();
            if let Err(error) = backend.flush().await {
                tracing::warn!("{}: {error}", backend.describe());
            }
        }
    }
}

impl Numbered {
    /// A map of all of them, or of those that some initiators see.
    pub fn map(&self, seen: Option<&LunNumbers>) -> Result<Arc<LunMap>, CliError> {
        let map = self.device.lun_map();
        for (number, unit) in &self.units {
            let here = |(as_seen, there): (&u16, &u16)| (there == number).then_some(*as_seen);
            let numbers: Vec<u16> =
                seen.map_or_else(|| vec![*number], |seen| seen.iter().filter_map(here).collect());
            for number in numbers {
                map.add(number, unit.clone()).map_err(CliError::usage)?;
            }
        }
        Ok(map)
    }
}

/// A logical unit that is to be opened.
struct Own<'a> {
    backend: &'a BackendSpec,
    serial: Option<&'a String>,
    removable: bool,
    reservations: Option<&'a PathBuf>,
}

impl Own<'_> {
    /// `who` names it in errors, `name` gives it its identity.
    fn open(&self, who: &str, name: String) -> Result<Arc<LogicalUnit>, CliError> {
        let backend = self.backend.open().map_err(|e| CliError::failed(format_args!("{who}: {e}")))?;
        let store = self.store().map(|path| Arc::new(FileStore::new(path)) as Arc<_>);
        let config = LunConfig {
            serial: self.serial.cloned(),
            removable: self.removable,
            // Memory is written whole or, when the power goes, not at all.
            atomic_writes: matches!(self.backend, BackendSpec::Ram { .. }),
            store,
            ..LunConfig::new(name, backend)
        };
        LogicalUnit::new(config).map_err(|e| CliError::failed(format_args!("{who}: {e}")))
    }

    /// Where reservations that outlive a restart are kept: beside an image file, if nothing else is said.
    fn store(&self) -> Option<PathBuf> {
        let beside = match self.backend {
            BackendSpec::File { path, options } if !options.read_only && path.is_file() => {
                let mut name = path.clone().into_os_string();
                name.push(".reservations");
                Some(name.into())
            }
            _ => None,
        };
        self.reservations.cloned().or(beside)
    }
}
