//! Names of peers on the command line: `ADDRESS`, `ADDRESS:PORT`, `[V6]:PORT`, `V6%INTERFACE`, and `localhost`, which is where
//! servers listen by default. No other name is resolved.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use everywire_net::{address, route};

/// A peer: its address, and its port if one was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName {
    ip: IpAddr,
    scope_id: u32,
    port: Option<u16>,
}

impl FromStr for PeerName {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerName, String> {
        let (host, port) = split_port(text)?;
        let host = if host.eq_ignore_ascii_case("localhost") { "127.0.0.1" } else { host };
        let (ip, scope_id) = address(host)?;
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if link_local && scope_id == 0 {
            return Err(format!("`{text}` is a link-local address: say on which interface, as in {ip}%eth0"));
        }
        Ok(PeerName { ip, scope_id, port })
    }
}

/// Takes the port off; the brackets of an IPv6 address stay.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let split = match text.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => Some((host, port)),
        _ => None,
    };
    let Some((host, port)) = split else { return Ok((text, None)) };
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok((host, Some(port))),
        _ => Err(format!("`{text}`: `{port}` is not a port from 1 to 65535")),
    }
}

impl PeerName {
    /// The socket address, with `default_port` where none was written.
    pub fn socket_addr(&self, default_port: u16) -> SocketAddr {
        route::with_scope(self.ip, self.port.unwrap_or(default_port), self.scope_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> String {
        text.parse::<PeerName>().unwrap().socket_addr(9).to_string()
    }

    mod fuzz {
        use super::*;

        fn names() -> Vec<Vec<u8>> {
            ["192.0.2.1:4420", "[2001:db8::1]:9", "fe80::1%lo", "::1"]
                .map(|name| name.as_bytes().to_vec())
                .into()
        }

        everywire_fuzz::target!(peer_name, names(), |bytes| {
            if let Ok(text) = std::str::from_utf8(bytes)
                && let Ok(peer) = text.parse::<PeerName>()
            {
                assert_ne!(peer.socket_addr(9).port(), 0);
            }
        });
    }

    #[test]
    fn written_forms() {
        assert_eq!(addr("192.0.2.1"), "192.0.2.1:9");
        assert_eq!(addr("192.0.2.1:4420"), "192.0.2.1:4420");
        assert_eq!(addr("2001:db8::1"), "[2001:db8::1]:9");
        assert_eq!(addr("[2001:db8::1]:4420"), "[2001:db8::1]:4420");
        assert_eq!(addr("fe80::1%lo"), "[fe80::1%1]:9");
        assert_eq!((&*addr("localhost"), &*addr("localhost:4420")), ("127.0.0.1:9", "127.0.0.1:4420"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in
            [("fe80::1", "interface"), ("1.2.3", "address"), ("1.2.3.4:0", "port"), ("1.2.3.4:99999", "port")]
        {
            let error = text.parse::<PeerName>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
