//! `everywire srp discover`: asks a port's device management for its SRP targets, as ibsrpdm does. IBTA vol. 1 §16.3.

use everywire_srp::dm::{self, FindError};
use serde_json::{Value, json};

use super::{Ground, open_ground};
use crate::device::DeviceArgs;
use crate::error::{CliError, note, print};
use crate::peer::PeerName;

/// Flags of `everywire srp discover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire srp discover --device ib:lab/h2 10.0.0.1\n\n\
    A line a target, in the words of ib_srp's add_target file. RDMA/CM has no discovery: over RoCE and iWARP the identifiers are\n\
    those that `everywire serve` printed.")]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// The target's address or GID.
    #[arg(value_name = "ADDRESS")]
    address: PeerName,
    /// A JSON array with an object a target.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = open_ground(&args.device, &args.address)?;
    let found = ground.block_on(find(&ground))?;
    if args.json {
        let targets = found.iter().map(|one| {
            json!({
                "id_ext": format!("{:016x}", one.id.ext),
                "ioc_guid": format!("{:016x}", one.id.guid),
                "service_id": format!("{:016x}", one.service_id),
                "controller": one.controller,
            })
        });
        return print(format_args!("{:#}", Value::Array(targets.collect())));
    }
    for one in &found {
        print(format_args!(
            "id_ext={:016x},ioc_guid={:016x},service_id={:016x}",
            one.id.ext, one.id.guid, one.service_id
        ))?;
    }
    note(format_args!("{} targets at {}", found.len(), ground.address.ip()));
    Ok(())
}

async fn find(ground: &Ground) -> Result<Vec<dm::Found>, CliError> {
    let scope_id = match ground.address {
        std::net::SocketAddr::V6(v6) => v6.scope_id(),
        std::net::SocketAddr::V4(_) => 0,
    };
    let found = dm::find(&ground.rt(), ground.device(), ground.address.ip(), scope_id).await;
    found.map_err(|error| match error {
        FindError::Verbs(_) => CliError::failed(error),
        _ => CliError::peer(error),
    })
}
