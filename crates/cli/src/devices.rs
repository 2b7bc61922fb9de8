//! `everywire devices`: what can be opened here, and with `--device` what one device can do.

use everywire_net::possible_devices;
use serde_json::json;

use crate::device::{self, DeviceArgs};
use crate::error::CliError;

/// Flags of `everywire devices`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// One JSON object a device.
    #[arg(long)]
    json: bool,
}

/// Lists every device, or shows one in full.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.device.device {
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
            println!(
                "{}",
                json!({"device": device.name, "address": device.ip.to_string(), "interface": interface.name, "interface_mtu": interface.mtu, "active_mtu": mtu})
            );
        } else {
            let mtu = mtu.map_or_else(|| "too small for RoCE".to_owned(), |mtu| format!("path MTU {mtu}"));
            println!("{:<40} {:<12} interface MTU {:<6} {mtu}", device.name, interface.name, interface.mtu);
        }
    }
    if found.is_empty() && !as_json {
        eprintln!("no interface has an address");
    }
    Ok(())
}

fn show(name: &str, as_json: bool) -> Result<(), CliError> {
    let host = device::open(name, &everywire_net::OpenOptions::default())?;
    let device = host.device();
    let (attributes, port) = (device.attributes(), device.port());
    if as_json {
        println!(
            "{}",
            json!({"device": name, "attributes": format!("{attributes:?}"), "port": format!("{port:?}")})
        );
        return Ok(());
    }
    println!("{name}\n{attributes:#?}\n{port:#?}");
    Ok(())
}
