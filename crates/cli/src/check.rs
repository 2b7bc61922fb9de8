//! `everywire check CONFIG`: everything that `serve` would refuse before it opens anything, and what it would serve.

use std::path::PathBuf;

use everywire_block::{BackendSpec, format_size};

use crate::error::{CliError, print};
use crate::serve::config::iscsi::Lun;
use crate::serve::config::volume::Source;
use crate::serve::config::{Config, Flags};
use crate::serve::memory_warning;

/// Flags of `everywire check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  everywire check target.toml && everywire serve target.toml")]
pub struct Args {
    /// The configuration of `everywire serve`.
    config: PathBuf,
}

/// Checks the file and prints what it says.
pub fn run(args: &Args) -> Result<(), CliError> {
    let config = Config::resolve(Some(&args.config), &Flags::default())?;
    for device in &config.devices {
        print(format_args!("device {device}, NVMe on port {}", config.nvme_port))?;
    }
    for volume in &config.volumes {
        print(format_args!(
            "volume {}: {}, {}",
            volume.name,
            volume.backend_text,
            geometry(&volume.backend)
        ))?;
    }
    for subsystem in &config.subsystems {
        let hosts = match &subsystem.hosts {
            Some(hosts) => hosts.iter().map(|h| h.to_string()).collect::<Vec<_>>().join(", "),
            None => "any host".to_owned(),
        };
        print(format_args!("subsystem {} for {hosts}", subsystem.nqn))?;
        for namespace in &subsystem.namespaces {
            let nsid = namespace.nsid.map_or_else(String::new, |n| n.to_string());
            let what = described(&namespace.backend_text, &namespace.backend);
            print(format_args!("  namespace {nsid}: {what}"))?;
        }
    }
    for target in &config.iscsi.targets {
        print(format_args!(
            "iSCSI target {} for {}",
            target.name,
            who(target.access.len(), !target.chap.initiators.is_empty())
        ))?;
        units(&target.luns)?;
    }
    for target in &config.srp.targets {
        let named = target.initiators.as_ref().map_or(0, Vec::len);
        print(format_args!("SRP target {} ({}) for {}", target.name, target.id, who(named, false)))?;
        units(&target.luns)?;
    }
    if let Some(warning) = memory_warning(&config) {
        eprintln!("everywire: warning: {warning}");
    }
    Ok(())
}

/// Who may log in, in short.
fn who(rules: usize, chap: bool) -> String {
    let who = if rules == 0 { "any initiator".to_owned() } else { format!("initiators by {rules} rules") };
    if chap { format!("{who}, with CHAP") } else { who }
}

fn units(luns: &[Lun]) -> Result<(), CliError> {
    luns.iter().try_for_each(|lun| {
        print(format_args!("  LUN {}: {}", lun.number, described(&lun.backend_text, &lun.backend)))
    })
}

/// The backend's text, with its size where it is not a volume's.
fn described(text: &str, source: &Source) -> String {
    source.own().map_or_else(|| text.to_owned(), |backend| format!("{text}, {}", geometry(backend)))
}

/// Size and block size, as far as they are known before anything is opened.
fn geometry(backend: &BackendSpec) -> String {
    let (bytes, block_size) = match backend {
        &BackendSpec::Ram { bytes, block_size } | &BackendSpec::Null { bytes, block_size } => {
            (Some(bytes), block_size)
        }
        BackendSpec::File { path, options } => {
            let file = std::fs::metadata(path).ok().filter(|file| file.is_file());
            (file.map(|file| file.len()).or(options.size), options.block_size)
        }
    };
    let size = bytes.map_or_else(|| "as large as the device".to_owned(), format_size);
    format!("{size} in blocks of {block_size} bytes")
}
