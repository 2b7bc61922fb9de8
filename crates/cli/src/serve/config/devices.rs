//! Devices of one process beside each other. An address of RoCE is its UDP port, of iWARP its TCP ports.

use std::collections::HashMap;

use everywire_net::{DeviceSpec, WireKind};

/// One device owns an address.
pub(super) fn check_addresses(devices: &[String]) -> Result<(), String> {
    let mut seen = HashMap::new();
    for name in devices {
        let Ok(spec) = DeviceSpec::parse(name) else { continue };
        if matches!(spec.wire, WireKind::Fabric(_)) {
            continue;
        }
        let tcp = spec.wire == WireKind::Tcp;
        if let Some(other) = seen.insert((spec.ip, spec.scope_id, tcp), name) {
            let ip = spec.ip;
            return Err(format!(
                "devices {other} and {name} have one address, {ip}; one device owns an address"
            ));
        }
    }
    Ok(())
}
