//! `everywire iscsi login`: logs in, shows the logical unit, logs out.

use everywire_block::format_size;
use everywire_iscsi::initiator::{Disk, Transfer};
use serde_json::json;

use super::{Place, failed};
use crate::error::{CliError, print};

/// Bytes asked of INQUIRY: standard data up to the revision.
const INQUIRY: u8 = 36;

/// Flags of `everywire iscsi login`.
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
        let session = args.place.login(&ground).await?;
        let disk = args.place.disk(&session).await?;
        let shown = show(&disk, args.json).await;
        session.logout().await;
        shown
    })
}

async fn show(disk: &Disk, as_json: bool) -> Result<(), CliError> {
    let done =
        disk.execute(&[0x12, 0, 0, 0, INQUIRY, 0], Transfer::In(INQUIRY.into())).await.map_err(failed)?;
    let text = |range: std::ops::Range<usize>| {
        let bytes = done.data.get(range).unwrap_or_default();
        String::from_utf8_lossy(bytes).trim().to_owned()
    };
    let (vendor, product, revision) = (text(8..16), text(16..32), text(32..36));
    let capacity = disk.capacity();
    if as_json {
        return print(json!({
            "vendor": vendor,
            "product": product,
            "revision": revision,
            "blocks": capacity.blocks,
            "block_size": capacity.block_size,
        }));
    }
    print(format_args!(
        "{vendor} {product} {revision}: {} in {} blocks of {} bytes",
        format_size(capacity.bytes()),
        capacity.blocks,
        capacity.block_size
    ))
}
