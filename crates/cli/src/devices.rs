//! `everywire devices`: what can be opened here, and with `--device` what one device can do.

use everywire_net::fabric_host::snapshot::Snapshot;
use everywire_net::fabric_host::{control, place};
use everywire_net::{Host, OpenOptions, PossibleDevice, possible_devices, raw};
use everywire_verbs::{DeviceLimits, Mtu, Wire};
use serde_json::{Map, Value, json};

use crate::device;
use crate::error::{CliError, print};

/// Flags of `everywire devices`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  everywire devices    # RoCE v2, raw Ethernet where CAP_NET_RAW is there, iWARP, ports of running fabrics\n  everywire devices --device rocev2:127.0.0.1 --json"
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
        line(&device.name, device, as_json, device.active_mtu)?;
    }
    // Raw Ethernet where there is Ethernet, and a frame has room for a packet.
    let raw = found.iter().filter(|device| device.interface.mac.is_some() && device.active_mtu.is_some());
    for device in raw.filter(|_| raw::permitted()) {
        for wire in ["rocev2-raw", "rocev1"] {
            let name = format!("{wire}:{}/{}", device.interface.name, device.ip);
            line(&name, device, as_json, device.active_mtu)?;
        }
    }
    for device in &found {
        line(&device.name.replacen("rocev2", "iwarp", 1), device, as_json, None)?;
    }
    for fabric in place::running() {
        // One that ends meanwhile has no ports.
        if let Ok(snapshot) = control::show(&fabric) {
            ports(&snapshot, as_json)?;
        }
    }
    if found.is_empty() && !as_json {
        eprintln!("no interface has an address");
    }
    Ok(())
}

/// A device on an interface; iWARP has no path MTU of its own.
fn line(name: &str, device: &PossibleDevice, as_json: bool, mtu: Option<Mtu>) -> Result<(), CliError> {
    let (interface, mtu) = (&device.interface, mtu.map(|mtu| mtu.bytes()));
    if as_json {
        return print(json!({
            "device": name, "address": device.ip.to_string(), "interface": interface.name,
            "interface_mtu": interface.mtu, "active_mtu": mtu,
        }));
    }
    let mtu = match mtu {
        Some(mtu) => format!("active MTU {mtu}"),
        None if name.starts_with("iwarp") => "TCP".to_owned(),
        None => "too small for RoCE".to_owned(),
    };
    print(format_args!("{name:<40} {:<12} interface MTU {:<6} {mtu}", interface.name, interface.mtu))
}

/// The ports of a fabric's hosts.
fn ports(fabric: &Snapshot, as_json: bool) -> Result<(), CliError> {
    for node in fabric.hosts() {
        for port in &node.end_ports {
            let name = format!("ib:{}/{}/{}", fabric.name, node.name, port.port);
            let address = port.ip.map(|ip| ip.to_string());
            if as_json {
                print(json!({
                    "device": name, "address": address, "fabric": fabric.name, "port_state": port.state.name(),
                    "lid": port.lid, "process": port.process,
                }))?;
                continue;
            }
            let taken =
                port.process.map_or_else(String::new, |process| format!(", process {process} has it"));
            let address = address.unwrap_or_default();
            print(format_args!(
                "{name:<40} {address:<12} port {}, LID {}{taken}",
                port.state.name(),
                port.lid
            ))?;
        }
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
    // An iWARP device has addresses, and neither GIDs of a type, nor address handles, nor multicast.
    let iwarp = device.wire() == Wire::Iwarp;
    let gids = device.gids().iter().enumerate();
    let gids: Vec<Value> = gids
        .map(|(i, gid)| match iwarp {
            true => json!(gid.ip.to_string()),
            false => json!(format!("{i}: {} {}", gid.gid(), gid.ty.name())),
        })
        .collect();
    let mut rows = vec![
        ("device", json!(device.name())),
        (if iwarp { "addresses" } else { "gids" }, json!(gids)),
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
    ];
    rows.retain(|(name, _)| !(iwarp && ["max_ah", "max_mcast_grp"].contains(name)));
    rows
}
