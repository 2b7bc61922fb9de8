//! `--device` and `--capture`: which device a command runs on.
//!
//! Without `--device` a client takes the address that the kernel would use toward its peer; where that peer is on this host,
//! a free loopback address, because one address belongs to one process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use everywire_net::{DeviceSpec, Host, OpenError, OpenOptions, WireKind, possible_devices, route};
use everywire_nvmeof::Scoped;
use everywire_verbs::Mtu;

use crate::error::CliError;

/// Loopback addresses tried for a client: 127.0.0.2 and up.
const LOOPBACK_TRIES: u8 = 60;

/// Flags of every command that opens a device.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DeviceArgs {
    /// The device: rocev2:ADDRESS (UDP sockets), iwarp:ADDRESS (TCP sockets) or ib:FABRIC/HOST/PORT (a port of a fabric that
    /// `everywire fabric run` runs), no privileges; rocev2-raw:INTERFACE/ADDRESS
    /// or rocev1:INTERFACE/ADDRESS (CAP_NET_RAW; ,vlan=VID and ,priority=PCP tag its frames). A client may name the wire
    /// alone: iwarp. After iwarp:ADDRESS what to ask of peers, each with a comma before it: crc=off, markers, mpa=1, rtr=send,
    /// rtr=write, rtr=read (peer to peer), rfc7306 (atomics and immediate data), pause=MS (before the first message to a peer;
    /// where it may fill the window of a slow Linux siw that does not look yet).
    #[arg(long, value_name = "WIRE:ADDRESS")]
    pub device: Option<String>,
    /// Write every packet of the device to this pcapng file, which Wireshark opens.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
}

impl DeviceArgs {
    /// On this wire, with the address that suits.
    pub fn on_wire(wire: &str) -> DeviceArgs {
        DeviceArgs { device: Some(wire.to_owned()), capture: None }
    }

    /// The wire of devices whose address is chosen: the named one's, where it is a wire of sockets.
    pub fn wire(&self) -> &'static str {
        let named = self.device.as_deref().unwrap_or_default();
        if named.split(':').next() == Some("iwarp") { "iwarp" } else { "rocev2" }
    }

    fn options(&self) -> OpenOptions {
        OpenOptions { capture: self.capture.clone(), ..OpenOptions::default() }
    }

    /// Opens the device of a server: the one named, or 127.0.0.1.
    pub fn open_to_serve(&self) -> Result<Host, CliError> {
        let name = self.device.as_deref().unwrap_or("rocev2:127.0.0.1");
        open(name, &self.options())
    }

    /// Opens the device of a client of `peer`.
    pub fn open_for_peer(&self, peer: SocketAddr) -> Result<Host, CliError> {
        check_peer(peer.ip()).map_err(CliError::usage)?;
        self.open_toward(peer)
    }

    /// The same for a peer or a multicast group.
    pub fn open_toward(&self, peer: SocketAddr) -> Result<Host, CliError> {
        let wire = self.wire();
        if let Some(name) = self.device.as_ref().filter(|name| *name != wire) {
            let spec = DeviceSpec::parse(name).map_err(blame)?;
            if !matches!(spec.wire, WireKind::Fabric(_)) && spec.ip.is_ipv4() != peer.is_ipv4() {
                let family = |v4: bool| if v4 { "IPv4" } else { "IPv6" };
                let (own, other) = (family(spec.ip.is_ipv4()), family(peer.is_ipv4()));
                return Err(CliError::usage(format_args!(
                    "device {name} has an {own} address and {} is an {other} one: neither reaches the other",
                    peer.ip()
                )));
            }
            let beside = spec.wire == WireKind::Udp;
            let options = if beside { self.options_between(&spec, peer) } else { self.options() };
            return open(name, &options);
        }
        let scope = scope_of(peer);
        let path = route::resolve(peer.ip(), None, scope)
            .map_err(|e| CliError::peer(format_args!("no route to {}: {e}", peer.ip())))?;
        match path.src {
            IpAddr::V4(v4) if v4.is_loopback() || path.src == peer.ip() => {
                return self.open_loopback(v4, peer.ip());
            }
            IpAddr::V6(_) if path.src == peer.ip() => return self.open_beside(peer.ip(), scope),
            _ => {}
        }
        let name = match path.scope_id {
            0 => format!("{wire}:{}", path.src),
            index => format!("{wire}:{}%{}", path.src, interface_name(index)?),
        };
        open(&name, &self.options())
    }

    /// A peer on this host has its interface's MTU, whatever the loopback interface could do.
    fn options_beside(&self, peer: IpAddr, scope_id: u32) -> OpenOptions {
        let interface = route::interface_of(peer, scope_id).ok().flatten();
        OpenOptions { mtu: interface.and_then(|i| Mtu::largest_in(i.mtu)), ..self.options() }
    }

    /// The same where the device is named: its own interface bounds it too.
    fn options_between(&self, own: &DeviceSpec, peer: SocketAddr) -> OpenOptions {
        let options = self.options_beside(peer.ip(), scope_of(peer));
        let interface = route::interface_of(own.ip, own.scope_id).ok().flatten();
        let most = interface.and_then(|i| Mtu::largest_in(i.mtu));
        let mtu =
            options.mtu.map(|mtu| most.into_iter().chain([mtu]).min_by_key(|mtu| mtu.bytes()).unwrap_or(mtu));
        OpenOptions { mtu, ..options }
    }

    /// A free IPv6 address of this host that is not the peer's.
    fn open_beside(&self, peer: IpAddr, scope_id: u32) -> Result<Host, CliError> {
        let found =
            possible_devices().map_err(|e| CliError::failed(format_args!("cannot list addresses: {e}")))?;
        let mut others: Vec<_> =
            found.iter().filter(|d| d.ip.is_ipv6() && d.ip != peer && !is_link_local(d.ip)).collect();
        others.sort_by_key(|d| d.ip.is_loopback() != peer.is_loopback());
        let options = self.options_beside(peer, scope_id);
        for device in others {
            let mtu = options.mtu.into_iter().chain(device.active_mtu).min_by_key(|mtu| mtu.bytes());
            let name = device.name.replacen("rocev2", self.wire(), 1);
            match Host::open(&name, &OpenOptions { mtu, ..options.clone() }) {
                Err(OpenError::InUse { .. }) => {}
                other => return other.map_err(blame),
            }
        }
        Err(CliError::failed(format_args!(
            "{peer} is this host's own, and it has no other free IPv6 address to reach it from: one device owns an \
             address; add one (ip address add fd00::2/64 dev lo), or use 127.x"
        )))
    }

    /// The first free address of 127.0.0.0/24 that is not the peer's.
    pub fn open_loopback(&self, first: Ipv4Addr, peer: IpAddr) -> Result<Host, CliError> {
        let candidates =
            std::iter::once(first).chain((2..2 + LOOPBACK_TRIES).map(|last| Ipv4Addr::new(127, 0, 0, last)));
        let options = self.options_beside(peer, 0);
        let mut last_error = None;
        for ip in candidates.filter(|ip| IpAddr::V4(*ip) != peer) {
            match Host::open(&format!("{}:{ip}", self.wire()), &options) {
                Ok(host) => return Ok(host),
                Err(e @ OpenError::InUse { .. }) => last_error = Some(e),
                Err(e) => return Err(blame(e)),
            }
        }
        Err(CliError::failed(format_args!(
            "no free loopback address: {}",
            last_error.map_or_else(String::new, |e| e.to_string())
        )))
    }
}

/// Where a server listens: the device's first address.
pub fn listen_at(host: &Host, port: u16) -> Result<SocketAddr, CliError> {
    let (ip, scope_id) =
        host.addresses().first().ok_or_else(|| CliError::failed("the device has no address"))?;
    Ok(route::with_scope(*ip, port, *scope_id))
}

/// The line by which a server says where it listens: the address with its interface, and the device.
pub fn listening(host: &Host, addr: SocketAddr) -> String {
    let shown = Scoped(addr, Some(&host.interface().name));
    format!("listening on {shown}, device {}", host.device().name())
}

/// That a peer could have this address.
fn check_peer(ip: IpAddr) -> Result<(), String> {
    let what = match ip {
        ip if ip.is_unspecified() => "it means any address, and a peer has one",
        ip if ip.is_multicast() => "it is a group's",
        IpAddr::V4(v4) if v4.is_broadcast() => "it is everybody's",
        _ => return Ok(()),
    };
    Err(format!("{ip} is no unicast address of a peer: {what}"))
}

fn scope_of(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn interface_name(index: u32) -> Result<String, CliError> {
    route::interface_name(index).map_err(|e| CliError::failed(format_args!("interface {index}: {e}")))
}

/// Opens a device by its name.
pub fn open(name: &str, options: &OpenOptions) -> Result<Host, CliError> {
    Host::open(name, options).map_err(blame)
}

/// A name that is wrong, and a capture that would overwrite something else, are mistakes in usage.
fn blame(error: OpenError) -> CliError {
    match error {
        OpenError::Name { .. }
        | OpenError::Address { .. }
        | OpenError::NotOurs { .. }
        | OpenError::NoInterface { .. }
        | OpenError::NoFabricPort { .. }
        | OpenError::NoCapture { .. } => CliError::usage(error),
        other => CliError::failed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_unicast_address() {
        let checked = |text: &str| check_peer(text.parse().unwrap());
        for (text, word) in [
            ("0.0.0.0", "any address"),
            ("::", "any address"),
            ("224.1.1.1", "group"),
            ("ff02::1", "group"),
            ("255.255.255.255", "everybody"),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains("no unicast address") && error.contains(word), "{error}");
        }
        assert_eq!((checked("127.0.0.1"), checked("fe80::1")), (Ok(()), Ok(())));
    }
}
