//! `everywire nvme info`: what a controller says about itself and its namespaces.

use everywire_nvmeof::pdu::discovery::text;
use everywire_nvmeof::rdma::Controller;
use everywire_nvmeof::rdma::initiator::NamespaceInfo;
use serde_json::{Value, json};

use super::{Ground, Place, impatient, nvme};
use crate::error::{CliError, print};

/// Flags of `everywire nvme info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  everywire nvme info 192.0.2.1 nqn.2026-11.example:disk")]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints it.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on(async {
        let controller = ground.connect(args.place.subsystem.as_ref(), impatient()).await?;
        let shown = show(&controller, &ground, args);
        controller.disconnect().await.map_err(nvme)?;
        shown
    })
}

fn show(controller: &Controller, ground: &Ground, args: &Args) -> Result<(), CliError> {
    args.place.check_nsid(ground, controller)?;
    let id = controller.identify().ok_or_else(|| CliError::peer("the controller went away"))?;
    let (local, remote) = controller.addresses();
    let wanted = |n: &NamespaceInfo| args.place.nsid.is_none_or(|nsid| nsid == n.nsid);
    let namespaces: Vec<NamespaceInfo> = controller.namespaces().into_iter().filter(wanted).collect();
    let version = format!("{}.{}.{}", id.ver >> 16, id.ver >> 8 & 0xff, id.ver & 0xff);
    if args.json {
        let namespaces: Vec<Value> = namespaces.iter().map(as_json).collect();
        return print(format_args!(
            "{:#}",
            json!({
                "subnqn": text(&id.subnqn), "model": text(&id.mn), "serial": text(&id.sn), "firmware": text(&id.fr),
                "version": version, "cntlid": id.cntlid, "mdts": id.mdts, "local": local.map(|a| a.to_string()),
                "remote": remote.to_string(), "namespaces": namespaces,
            })
        ));
    }
    let local = local.map_or_else(|| "this host".to_owned(), |a| a.to_string());
    print(format_args!("subsystem {} at {remote}, from {local}", text(&id.subnqn)))?;
    print(format_args!("  {} serial {} firmware {}", text(&id.mn), text(&id.sn), text(&id.fr)))?;
    print(format_args!("  NVMe {version}, controller {}", id.cntlid))?;
    for namespace in &namespaces {
        let size = everywire_block::format_size(namespace.bytes());
        let uuid = namespace.uuid.map_or_else(String::new, |uuid| format!(", UUID {uuid}"));
        let how = if namespace.read_only { ", read only" } else { "" };
        let block = namespace.block_size;
        print(format_args!("  namespace {}: {size} in blocks of {block} bytes{how}{uuid}", namespace.nsid))?;
    }
    Ok(())
}

fn as_json(namespace: &NamespaceInfo) -> Value {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    json!({
        "nsid": namespace.nsid, "block_size": namespace.block_size, "blocks": namespace.blocks, "bytes": namespace.bytes(),
        "uuid": namespace.uuid.map(|uuid| uuid.to_string()), "nguid": namespace.nguid.map(|id| hex(&id)),
        "eui64": namespace.eui64.map(|id| hex(&id)), "read_only": namespace.read_only,
        "max_transfer": namespace.max_transfer,
    })
}
