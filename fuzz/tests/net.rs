//! Targets for what `everywire-net` reads from a person: device names and addresses. What the kernel tells it by netlink has
//! its target inside the crate.

use everywire_fuzz::target;
use everywire_net::{DeviceSpec, WireKind, address};

fn names() -> Vec<Vec<u8>> {
    let names = [
        "rocev2:127.0.0.1",
        "rocev2:[::1]",
        "rocev2:fe80::1%lo",
        "rocev2-raw:lo/127.0.0.1",
        "rocev2-raw:eth0/2001:db8::1",
        "iwarp:192.0.2.1",
        "iwarp:192.0.2.1,crc=off,rtr=read,pause=5",
        "rocev1:eth0/192.0.2.1,vlan=5,priority=3",
        "ib:fat-tree-16/h1/1",
        "127.0.0.1",
    ];
    names.map(|name| name.as_bytes().to_vec()).into()
}

target!(device_spec, names(), |bytes| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match DeviceSpec::parse(text) {
            Ok(spec) => {
                let of_fabric = matches!(spec.wire, WireKind::Fabric(_));
                assert!(spec.ip.is_unspecified() == of_fabric && !spec.ip.is_multicast());
                let begins: &[&str] = match spec.wire {
                    WireKind::Udp => &["rocev2:"],
                    WireKind::Raw(_) => &["rocev2-raw:", "rocev1:"],
                    WireKind::Tcp => &["iwarp:"],
                    WireKind::Fabric(_) => &["ib:"],
                };
                assert!(begins.iter().any(|start| text.starts_with(start)), "{text}: {:?}", spec.wire);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        if let Ok((ip, scope)) = address(text) {
            assert!(scope == 0 || ip.is_ipv6());
        }
    }
});
