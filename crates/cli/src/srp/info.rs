//! `everywire srp info`: logs in, shows the logical unit and what was agreed, logs out.

use everywire_block::format_size;
use everywire_srp::rdma::Initiator;
use everywire_srp::rdma::initiator::Disk;
use serde_json::json;

use super::{Place, failed};
use crate::error::{CliError, print};

/// Flags of `everywire srp info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// A JSON object.
    #[arg(long)]
    json: bool,
}

/// Logs in and shows.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on(async {
        let (initiator, disk) = args.place.disk(&ground).await?;
        let shown = show(&initiator, &disk, args.json).await;
        initiator.log_out().await;
        shown
    })
}

async fn show(initiator: &Initiator, disk: &Disk, as_json: bool) -> Result<(), CliError> {
    let [vendor, product, revision] = disk.inquiry().await.map_err(failed)?;
    let capacity = disk.capacity();
    let (credits, immediate) = (initiator.credits(), initiator.immediate());
    let limit: i64 = credits.iter().map(|(open, _)| i64::from(*open)).sum();
    if as_json {
        return print(json!({
            "vendor": vendor,
            "product": product,
            "revision": revision,
            "blocks": capacity.blocks,
            "block_size": capacity.block_size,
            "thin": capacity.thin,
            "channels": credits.len(),
            "request_limit": limit,
            "immediate_data": immediate,
        }));
    }
    print(format_args!(
        "{vendor} {product} {revision}: {} in {} blocks of {} bytes",
        format_size(capacity.bytes()),
        capacity.blocks,
        capacity.block_size
    ))?;
    print(format_args!(
        "{} channels, {limit} requests at a time, immediate data up to {immediate} bytes",
        credits.len()
    ))
}
