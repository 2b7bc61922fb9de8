//! `everywire nvme discover`: the discovery log, NVMe-oF 1.1 §5.

use everywire_nvmeof::pdu::discovery::{
    ADRFAM_IPV4, ADRFAM_IPV6, DiscoveryEntry, PRTYPE_ROCE_V2, SUBTYPE_CURRENT_DISCOVERY, SUBTYPE_NVM,
    SUBTYPE_REFERRAL, TRTYPE_RDMA, TRTYPE_TCP, text,
};
use serde_json::{Value, json};

use super::Target;
use crate::error::{CliError, note, print};

/// Flags of `everywire nvme discover`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  everywire nvme discover 192.0.2.1 --json")]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// A JSON array with an object an entry.
    #[arg(long)]
    json: bool,
}

/// Prints what the service offers to this host.
pub fn run(args: &Args) -> Result<(), CliError> {
    let ground = args.target.open()?;
    let entries = ground.block_on(ground.discover())?;
    if args.json {
        let entries: Vec<Value> = entries.iter().map(as_json).collect();
        return print(format_args!("{:#}", Value::Array(entries)));
    }
    for entry in &entries {
        print(line(entry))?;
    }
    note(format_args!("{} entries for {}", entries.len(), ground.identity.nqn));
    Ok(())
}

fn line(entry: &DiscoveryEntry) -> String {
    let (address, port) = (text(&entry.traddr), text(&entry.trsvcid));
    let address =
        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
    format!("{} {address} {} {}", transport(entry.trtype), kind(entry.subtype), entry.subsystem())
}

fn as_json(entry: &DiscoveryEntry) -> Value {
    let family = match entry.adrfam {
        ADRFAM_IPV4 => json!("ipv4"),
        ADRFAM_IPV6 => json!("ipv6"),
        other => json!(other),
    };
    json!({
        "trtype": transport(entry.trtype),
        "adrfam": family,
        "traddr": text(&entry.traddr),
        "trsvcid": text(&entry.trsvcid),
        "subtype": kind(entry.subtype),
        "subnqn": entry.subsystem(),
        "portid": entry.portid,
        "cntlid": entry.cntlid,
        "asqsz": entry.asqsz,
        "rdma_prtype": if entry.rdma_prtype == PRTYPE_ROCE_V2 { json!("roce-v2") } else { json!(entry.rdma_prtype) },
    })
}

fn transport(code: u8) -> String {
    match code {
        TRTYPE_RDMA => "rdma".to_owned(),
        TRTYPE_TCP => "tcp".to_owned(),
        other => format!("transport-{other}"),
    }
}

fn kind(code: u8) -> String {
    match code {
        SUBTYPE_REFERRAL => "referral".to_owned(),
        SUBTYPE_NVM => "nvme".to_owned(),
        SUBTYPE_CURRENT_DISCOVERY => "discovery".to_owned(),
        other => format!("type-{other}"),
    }
}
