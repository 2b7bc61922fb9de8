//! Socket addresses as people write them: a link-local address with the name of its interface. RFC 4007 §11.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use everywire_verbs::Device;

/// An address, shown with the name of the interface that its scope is, if it has a scope and the name is known.
#[derive(Debug, Clone, Copy)]
pub struct Scoped<'a>(pub SocketAddr, pub Option<&'a str>);

impl fmt::Display for Scoped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (SocketAddr::V6(v6), Some(interface)) if v6.scope_id() != 0 => {
                write!(f, "[{}%{interface}]:{}", v6.ip(), v6.port())
            }
            (address, _) => write!(f, "{address}"),
        }
    }
}

/// The name of the interface that a link-local address belongs to, if the device has it.
pub(crate) fn interface_of(device: &Device, address: SocketAddr) -> Option<Arc<str>> {
    let SocketAddr::V6(v6) = address else { return None };
    let gids = device.gids();
    let gid = gids.iter().find(|gid| gid.scope_id != 0 && gid.scope_id == v6.scope_id())?;
    gid.interface.as_deref().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddrV6};

    use super::*;

    /// RFC 4007 §11.2: `<address>%<zone_id>`, and §11.5 for what goes around it.
    #[test]
    fn a_scope_is_an_interface() {
        let ip: Ipv6Addr = "fe80::1".parse().expect("an address");
        let local = SocketAddr::V6(SocketAddrV6::new(ip, 4420, 0, 3));
        assert_eq!(Scoped(local, Some("eth0")).to_string(), "[fe80::1%eth0]:4420");
        assert_eq!(Scoped(local, None).to_string(), "[fe80::1%3]:4420");
        let global = "[2001:db8::1]:4420".parse().expect("an address");
        assert_eq!(Scoped(global, Some("eth0")).to_string(), "[2001:db8::1]:4420");
        let v4 = "192.0.2.1:4420".parse().expect("an address");
        assert_eq!(Scoped(v4, Some("eth0")).to_string(), "192.0.2.1:4420");
    }
}
