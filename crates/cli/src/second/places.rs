//! Devices that a second process may have, so that the one that was named can talk to it: on the same wire, with the same options.
//!
//! Sockets find a loopback address; over IPv6 there is one, so RoCE v2 needs another address of this host, and iWARP shares the
//! address, since TCP has ports. A port of a fabric talks to another host of that fabric. Raw Ethernet has nobody here to talk to.

use std::net::IpAddr;

use everywire_net::fabric_host::control;
use everywire_net::{DeviceSpec, FabricWire, OpenError, WireKind, possible_devices};

use super::{FIRST, TRIES};
use crate::error::CliError;

/// The two commands that do by hand what a second process would; `everywire ` comes before each.
#[derive(Debug, Clone, Copy)]
pub struct ByHand<'a> {
    /// The server's, up to its device.
    pub server: &'a str,
    /// The client's, up to its target.
    pub client: &'a str,
}

/// The devices to try, in order, for the second process beside the device `named`; without one, of RoCE v2.
pub fn beside(named: Option<&str>, by_hand: ByHand<'_>) -> Result<Vec<String>, CliError> {
    let named = named.unwrap_or("rocev2");
    if let "rocev2" | "iwarp" = named {
        return Ok(loopback(named, ""));
    }
    let spec = DeviceSpec::parse(named).map_err(CliError::usage)?;
    let options = named.find(',').map_or("", |at| &named[at..]);
    match &spec.wire {
        WireKind::Udp if spec.ip.is_ipv4() => Ok(loopback("rocev2", options)),
        WireKind::Tcp if spec.ip.is_ipv4() => Ok(loopback("iwarp", options)),
        WireKind::Tcp => Ok(vec![named.to_owned()]),
        WireKind::Udp => other_ipv6(named, spec.ip, by_hand),
        WireKind::Fabric(port) => other_hosts(named, port, by_hand),
        WireKind::Raw(_) => Err(two_commands(
            named,
            "raw Ethernet reaches other hosts and network namespaces, not a second process here",
            &format!("{}:INTERFACE/ADDRESS", named.split(':').next().unwrap_or(named)),
            by_hand,
        )),
    }
}

/// Loopback addresses on a wire of sockets, with what follows the address in the name.
pub fn loopback(wire: &str, options: &str) -> Vec<String> {
    (FIRST..FIRST + TRIES).map(|byte| format!("{wire}:127.0.0.{byte}{options}")).collect()
}

/// Other IPv6 addresses of this host, those of loopback's kind first.
fn other_ipv6(named: &str, own: IpAddr, by_hand: ByHand<'_>) -> Result<Vec<String>, CliError> {
    let possible =
        possible_devices().map_err(|e| CliError::failed(format_args!("cannot list addresses: {e}")))?;
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut others: Vec<_> =
        possible.iter().filter(|d| d.ip.is_ipv6() && d.ip != own && !is_link_local(d.ip)).collect();
    others.sort_by_key(|device| device.ip.is_loopback() != own.is_loopback());
    if others.is_empty() {
        return Err(two_commands(
            named,
            "this host has no second IPv6 address, and a device owns its address; add one (ip address add fd00::2/64 dev lo)",
            "rocev2:ADDRESS",
            by_hand,
        ));
    }
    Ok(others.iter().map(|device| format!("rocev2:{}", device.ip)).collect())
}

/// Ports of other hosts of the same fabric that nobody is attached to, where the subnet manager is last.
fn other_hosts(named: &str, own: &FabricWire, by_hand: ByHand<'_>) -> Result<Vec<String>, CliError> {
    let open = |source| OpenError::Fabric { name: named.to_owned(), source };
    let fabric = control::show(&own.fabric).map_err(|e| CliError::failed(open(e)))?;
    let host = own.port.rsplit_once('/').map_or("", |(host, _)| host);
    let hosts = fabric.nodes.iter().filter(|node| !node.switch && !node.router && node.name != host);
    let free = hosts.flat_map(|node| {
        let ports = node.end_ports.iter().filter(|port| port.process.is_none());
        ports.map(|port| format!("ib:{}/{}/{}", own.fabric, node.name, port.port))
    });
    let mut free: Vec<String> = free.collect();
    let is_manager =
        |device: &String| fabric.sm.split(" and ").any(|port| device.ends_with(&format!("/{port}")));
    free.sort_by_key(is_manager);
    if free.is_empty() {
        let why = format!("no other host of fabric {} has a free port for a second process", own.fabric);
        return Err(two_commands(named, &why, &format!("ib:{}/HOST/PORT", own.fabric), by_hand));
    }
    Ok(free)
}

fn two_commands(named: &str, why: &str, server: &str, by_hand: ByHand<'_>) -> CliError {
    CliError::usage(format_args!(
        "{why}. Type there:\n  everywire {} --device {server}\nand here, with its ADDRESS:\n  everywire {} ADDRESS --device {named}",
        by_hand.server, by_hand.client
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_HAND: ByHand<'static> = ByHand { server: "perf --listen", client: "perf write" };

    fn first(named: Option<&str>) -> String {
        beside(named, BY_HAND).unwrap().swap_remove(0)
    }

    #[test]
    fn the_same_wire_with_the_same_options() {
        for (named, second) in [
            (None, "rocev2:127.0.0.101"),
            (Some("rocev2"), "rocev2:127.0.0.101"),
            (Some("rocev2:127.0.0.7"), "rocev2:127.0.0.101"),
            (Some("iwarp"), "iwarp:127.0.0.101"),
            (Some("iwarp:127.0.0.7,rfc7306,crc=off"), "iwarp:127.0.0.101,rfc7306,crc=off"),
            (Some("iwarp:::1,mpa=1"), "iwarp:::1,mpa=1"),
        ] {
            assert_eq!(first(named), second);
        }
        if let Ok(others) = beside(Some("rocev2:::1"), BY_HAND) {
            assert!(others.iter().all(|o| o != "rocev2:::1" && o.starts_with("rocev2:")), "{others:?}");
        }
    }

    #[test]
    fn where_there_is_no_second_place_both_commands_are_told() {
        let error = beside(Some("rocev1:eth0/192.0.2.1"), BY_HAND).unwrap_err().to_string();
        for line in [
            "\n  everywire perf --listen --device rocev1:INTERFACE/ADDRESS\n",
            "\n  everywire perf write ADDRESS --device rocev1:eth0/192.0.2.1",
        ] {
            assert!(error.contains(line), "{error}");
        }
        assert!(beside(Some("127.0.0.1"), BY_HAND).unwrap_err().to_string().contains("rocev2:127.0.0.1"));
        let error = beside(Some("ib:nowhere/h1/1"), BY_HAND).unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
    }
}
