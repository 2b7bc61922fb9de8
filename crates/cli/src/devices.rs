//! `everywire devices`: what can be opened here, and with `--device` what one device can do.

use everywire_net::{Host, OpenOptions, possible_devices};
use everywire_verbs::DeviceLimits;
use serde_json::{Map, Value, json};

use crate::device;
use crate::error::{CliError, print};

/// Flags of `everywire devices`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  everywire devices\n  everywire devices --device rocev2:127.0.0.1 --json"
)]
pub struct Args {
    /// Show what this device can do, instead of listing all.
    #[arg(long, value_name = "WIRE:ADDRESS")]
    device: Option<String>,
    /// A JSON object, one a line for a list.
    #[arg(long)]
    json: bool,
}

/// Lists every device, or shows one in full.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.device {
        Some(name) => show(name, args.json),
        None => list(args.json),
    }
}

fn list(as_json: bool) -> Result<(), CliError> {
    let found =
        possible_devices().map_err(|e| CliError::failed(format_args!("cannot list addresses: {e}")))?;
    for device in &found {
        let mtu = device.active_mtu.map(|mtu| mtu.bytes());
        let interface = &device.interface;
        if as_json {
            print(json!({
                "device": device.name, "address": device.ip.to_string(), "interface": interface.name,
                "interface_mtu": interface.mtu, "active_mtu": mtu,
            }))?;
        } else {
            let mtu = mtu.map_or_else(|| "too small for RoCE".to_owned(), |mtu| format!("active MTU {mtu}"));
            let line = format_args!(
                "{:<40} {:<12} interface MTU {:<6} {mtu}",
                device.name, interface.name, interface.mtu
            );
            print(line)?;
        }
    }
    if found.is_empty() && !as_json {
        eprintln!("no interface has an address");
    }
    Ok(())
}

fn show(name: &str, as_json: bool) -> Result<(), CliError> {
    let host = device::open(name, &OpenOptions::default())?;
    let rows = rows(&host);
    if as_json {
        let object: Map<String, Value> =
            rows.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        return print(Value::Object(object));
    }
    for (key, value) in rows {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        print(format_args!("{key:<24} {text}"))?;
    }
    Ok(())
}

/// Attributes under the names that libibverbs has for them.
fn rows(host: &Host) -> Vec<(&'static str, Value)> {
    let device = host.device();
    let (attributes, port) = (device.attributes(), device.port());
    let DeviceLimits {
        max_qp,
        max_qp_wr,
        max_sge,
        max_inline,
        max_cq,
        max_cqe,
        max_mr,
        max_mr_size,
        max_mw,
        max_pd,
        max_srq,
        max_srq_wr,
        max_ah,
        max_qp_rd_atom,
        max_mcast_grp,
        ..
    } = attributes.limits;
    let gids = device.gids().iter().enumerate();
    let gids: Vec<Value> =
        gids.map(|(i, gid)| json!(format!("{i}: {} {}", gid.gid(), gid.ty.name()))).collect();
    vec![
        ("device", json!(device.name())),
        ("gids", json!(gids)),
        ("interface", json!(host.interface().name)),
        ("node_guid", json!(format!("{:016x}", attributes.node_guid.0))),
        ("fw_ver", json!(attributes.fw_ver)),
        ("port_state", json!(format!("{:?}", port.state))),
        ("active_mtu", json!(port.active_mtu.bytes())),
        ("max_mtu", json!(port.max_mtu.bytes())),
        ("max_msg_sz", json!(port.max_msg_sz)),
        ("atomic_cap", json!(format!("{:?}", attributes.atomic_cap))),
        ("max_qp", json!(max_qp)),
        ("max_qp_wr", json!(max_qp_wr)),
        ("max_sge", json!(max_sge)),
        ("max_inline_data", json!(max_inline)),
        ("max_cq", json!(max_cq)),
        ("max_cqe", json!(max_cqe)),
        ("max_mr", json!(max_mr)),
        ("max_mr_size", json!(max_mr_size)),
        ("max_mw", json!(max_mw)),
        ("max_pd", json!(max_pd)),
        ("max_srq", json!(max_srq)),
        ("max_srq_wr", json!(max_srq_wr)),
        ("max_ah", json!(max_ah)),
        ("max_qp_rd_atom", json!(max_qp_rd_atom)),
        ("max_mcast_grp", json!(max_mcast_grp)),
    ]
}
