//! From a configuration to the target that `everywire-nvmeof` serves.
//!
//! A dry run, with nothing in place of every backend, is how `check` finds what the target itself would refuse.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use everywire_block::{Backend, BackendSpec, NullBackend, format_size};
use everywire_nvmeof::target::{Limits, NamespaceConfig, SubsystemConfig, Target};

use super::config::volume::Source;
use super::config::{Config, Subsystem};
use super::units::Units;
use crate::error::CliError;

/// Opens every backend and builds the target.
pub fn open(config: &Config, units: &Units) -> Result<Target, CliError> {
    let mut target = Target::new(limits(config));
    for subsystem in &config.subsystems {
        let backends = subsystem.namespaces.iter().map(|namespace| {
            let failed = |e: &dyn Display| CliError::failed(format_args!("subsystem {}: {e}", subsystem.nqn));
            match &namespace.backend {
                Source::Own(backend) => backend.open().map_err(|e| failed(&e)),
                Source::Volume(name) => {
                    units.for_nvme(name).ok_or_else(|| failed(&format_args!("there is no volume {name}")))
                }
            }
        });
        let backends = backends.collect::<Result<Vec<_>, _>>()?;
        target.add_subsystem(&described(subsystem, backends)).map_err(CliError::usage)?;
    }
    Ok(target)
}

/// What building the target would refuse; opens nothing. Gives the identifier of each namespace, in order.
pub fn rehearse(config: &Config) -> Result<Vec<u32>, String> {
    let mut target = Target::new(limits(config));
    let mut given = Vec::new();
    for subsystem in &config.subsystems {
        let added = target.add_subsystem(&described(subsystem, Vec::new()));
        added.map_err(|e| e.to_string())?;
        for namespace in &subsystem.namespaces {
            let nothing = Arc::new(NullBackend::new(512, 1)) as Arc<dyn Backend>;
            let nsid = NamespaceConfig {
                nsid: namespace.nsid,
                uuid: namespace.uuid,
                ..NamespaceConfig::new(nothing)
            };
            given.push(target.add_namespace(&subsystem.nqn, &nsid).map_err(|e| e.to_string())?);
        }
    }
    for (whose, backend) in config.backends() {
        if let BackendSpec::File { path, options } = backend {
            check_file(path, options.size).map_err(|e| format!("{whose}: {e}"))?;
        }
    }
    Ok(given)
}

/// What can be said of a file without opening it.
fn check_file(path: &Path, size: Option<u64>) -> Result<(), String> {
    let shown = path.display();
    if path.is_dir() {
        return Err(format!("{shown} is a directory; a file or a block device is needed"));
    }
    if size.is_none() && !path.exists() {
        return Err(format!("{shown} does not exist; add `,size=1GiB` (or another size) to create it"));
    }
    Ok(())
}

/// What is to be said of RAM disks that are larger than memory: nothing is wrong with them until they are written.
pub fn memory_warning(config: &Config) -> Option<String> {
    let ram = config.backends().filter_map(|(_, backend)| match backend {
        BackendSpec::Ram { bytes, .. } => Some(*bytes),
        _ => None,
    });
    let ram = ram.fold(0_u64, u64::saturating_add);
    warning_of(ram, everywire_block::memory::total()?)
}

fn warning_of(ram: u64, memory: u64) -> Option<String> {
    (ram > memory).then(|| {
        format!(
            "ram: disks of {} in all, and memory of {:.1} GiB: they are sparse, but whoever writes more than that of \
             them makes the system end this process",
            format_size(ram),
            memory as f64 / f64::from(1 << 30)
        )
    })
}

/// The target's limits, with those that are configured.
pub fn limits(config: &Config) -> Limits {
    let default = Limits::default();
    Limits {
        max_queue_entries: config.max_queue_entries.unwrap_or(default.max_queue_entries),
        max_io_queues: config.max_io_queues.unwrap_or(default.max_io_queues),
        in_capsule_data: config.in_capsule_data.unwrap_or(default.in_capsule_data),
        ..default
    }
}

fn described(subsystem: &Subsystem, backends: Vec<Arc<dyn Backend>>) -> SubsystemConfig {
    let default = SubsystemConfig::new(subsystem.nqn.clone());
    let namespaces = subsystem.namespaces.iter().zip(backends);
    SubsystemConfig {
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone().unwrap_or_else(|| default.model.clone()),
        hosts: subsystem.hosts.clone(),
        namespaces: namespaces
            .map(|(namespace, backend)| NamespaceConfig {
                nsid: namespace.nsid,
                uuid: namespace.uuid,
                ..NamespaceConfig::new(backend)
            })
            .collect(),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ram_than_memory_is_told() {
        assert_eq!(warning_of(8 << 30, 8 << 30), None);
        let warning = warning_of(256 << 30, 25_769_803_776).expect("too much");
        assert!(warning.contains("256GiB") && warning.contains("24.0 GiB"), "{warning}");
    }
}
