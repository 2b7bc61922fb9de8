//! `everywire check CONFIG`: everything that `serve` would refuse before it opens anything, and what it would serve.

use std::path::PathBuf;

use crate::error::{CliError, print};
use crate::serve::config::{Config, Flags};

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
            let nsid = namespace.nsid.map_or_else(|| "next free".to_owned(), |n| n.to_string());
            print(format_args!("  namespace {nsid}: {}", namespace.backend_text))?;
        }
    }
    Ok(())
}
