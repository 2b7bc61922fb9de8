//! `everywire iscsi discover`: SendTargets, RFC 7143 appendix C.

use serde_json::{Value, json};

use super::Portal;
use crate::error::{CliError, note, print};

/// Flags of `everywire iscsi discover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  everywire iscsi discover 192.0.2.1 --json")]
pub struct Args {
    #[command(flatten)]
    portal: Portal,
    /// A JSON array with an object a target.
    #[arg(long)]
    json: bool,
}

/// Prints what the portal offers, as iscsiadm does: address, group, name.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = args.portal.open()?;
    let found = ground.block_on(ground.discover())?;
    if args.json {
        let targets = found
            .iter()
            .map(|one| json!({ "name": one.name.as_str(), "addresses": one.addresses }))
            .collect();
        return print(format_args!("{:#}", Value::Array(targets)));
    }
    for target in &found {
        for address in &target.addresses {
            print(format_args!("{address} {}", target.name))?;
        }
    }
    note(format_args!("{} targets at {}", found.len(), ground.address));
    Ok(())
}
