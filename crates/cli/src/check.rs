//! `everywire check CONFIG`: everything that `serve` would refuse before it opens anything, and what it would serve.

use std::path::PathBuf;

use everywire_block::{BackendSpec, format_size};

use crate::error::{CliError, print};
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
    for subsystem in &config.subsystems {
        let hosts = match &subsystem.hosts {
            Some(hosts) => hosts.iter().map(|h| h.to_string()).collect::<Vec<_>>().join(", "),
            None => "any host".to_owned(),
        };
        print(format_args!("subsystem {} for {hosts}", subsystem.nqn))?;
        for namespace in &subsystem.namespaces {
            let nsid = namespace.nsid.map_or_else(String::new, |n| n.to_string());
            let geometry = geometry(&namespace.backend);
            print(format_args!("  namespace {nsid}: {}, {geometry}", namespace.backend_text))?;
        }
    }
    if let Some(warning) = memory_warning(&config) {
        eprintln!("everywire: warning: {warning}");
    }
    Ok(())
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
