//! Device names: `rocev2:ADDRESS`, `rocev2-raw:INTERFACE/ADDRESS`, `rocev1:INTERFACE/ADDRESS`, `iwarp:ADDRESS` and
//! `ib:FABRIC/HOST/PORT[,path=N]`.
//!
//! ADDRESS is an IPv4 or IPv6 address of this host, without port; a link-local one names its interface (`fe80::1%eth0`).
//! Raw Ethernet and iWARP take options after it, each with a comma before it. What is wrong with a name is said in words, with the addresses that an interface has where one was named instead.

mod iwarp;

use std::net::IpAddr;

use everywire_verbs::IwarpOptions;

use crate::error::OpenError;
use crate::fabric_host::plan::check_name;
use crate::raw::Tagging;
use crate::route;
use crate::udp::{check_device_address, needs_scope};

/// A device name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// How it reaches the wire.
    pub wire: WireKind,
    /// Its address; unspecified for a port of a fabric, whose addresses only the fabric knows.
    pub ip: IpAddr,
    /// Interface index of a link-local address, else 0.
    pub scope_id: u32,
    /// What an iWARP device asks of its peers, where the name says so.
    pub iwarp: Option<IwarpOptions>,
}

/// How a device reaches the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// RoCE v2 on ordinary UDP sockets.
    Udp,
    /// RoCE v2 and v1 on raw Ethernet.
    Raw(RawWire),
    /// iWARP on ordinary TCP sockets.
    Tcp,
    /// InfiniBand, through a port of a fabric that runs on this machine.
    Fabric(FabricWire),
}

/// Highest path bits: an LMC of 7 gives 2^7 LIDs (IBTA §4.1.3).
const MAX_PATH_BITS: u8 = 127;

/// A port of a fabric: `FABRIC/HOST/PORT[,path=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricWire {
    /// The fabric's name.
    pub fabric: String,
    /// `HOST/PORT`.
    pub port: String,
    /// Path bits of what is made there and asks for none of its own.
    pub path_bits: u8,
}

impl FabricWire {
    fn parse(rest: &str) -> Result<FabricWire, String> {
        let form = || PORT_NEEDED.to_owned();
        let (rest, option) = rest.split_once(',').map_or((rest, None), |(rest, o)| (rest, Some(o)));
        let path_bits = option.map_or(Ok(0), path_bits)?;
        let (fabric, port) = rest.split_once('/').ok_or_else(form)?;
        check_name("fabric", fabric)?;
        let (host, number) = port.rsplit_once('/').ok_or_else(form)?;
        check_name("host", host)?;
        match number.parse::<u8>() {
            Ok(1..) => Ok(FabricWire { fabric: fabric.to_owned(), port: port.to_owned(), path_bits }),
            _ => Err(format!("port {number:?}: ports count from 1 ({})", form())),
        }
    }
}

/// `path=N`: the source LID is the base LID plus N.
fn path_bits(option: &str) -> Result<u8, String> {
    let Some(text) = option.strip_prefix("path=") else {
        return Err(format!("{option:?} is not path=N, the path bits of a port with several LIDs"));
    };
    let bits = text.parse().ok().filter(|bits| *bits <= MAX_PATH_BITS);
    bits.ok_or_else(|| format!("{option}: path bits are 0 to {MAX_PATH_BITS}, and below 2^LMC of the port"))
}

/// Raw Ethernet: `INTERFACE/ADDRESS[,vlan=VID][,priority=PCP]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawWire {
    /// Interface.
    pub interface: String,
    /// Whether connections are made by RoCE v1 unless the peer chooses.
    pub roce_v1: bool,
    /// The tag of its frames.
    pub vlan: Option<Tagging>,
}

impl RawWire {
    /// The wire, and the address as text.
    fn parse<'a>(wire: &str, rest: &'a str) -> Result<(RawWire, &'a str), String> {
        let (interface, rest) = match rest.split_once('/') {
            Some((interface, rest)) if !interface.is_empty() => (interface, rest),
            _ => return Err(interface_needed(wire)),
        };
        let (text, options) = rest.split_once(',').unwrap_or((rest, ""));
        let vlan = tagging(options)?;
        Ok((RawWire { interface: interface.to_owned(), roce_v1: wire == "rocev1", vlan }, text))
    }
}

/// `vlan=VID,priority=PCP`, either of them.
fn tagging(options: &str) -> Result<Option<Tagging>, String> {
    let mut tagging = None;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let tagging = tagging.get_or_insert(Tagging { vid: 0, priority: None });
        match option.split_once('=').map(|(name, value)| (name, value.parse::<u16>())) {
            Some(("vlan", Ok(vid))) if vid < 4095 => tagging.vid = vid,
            Some(("vlan", _)) => return Err(format!("{option}: a VLAN is 0 to 4094")),
            Some(("priority", Ok(priority))) if priority < 8 => tagging.priority = Some(priority as u8),
            Some(("priority", _)) => return Err(format!("{option}: a priority is 0 to 7")),
            _ => return Err(format!("{option:?} is neither vlan=VID nor priority=PCP")),
        }
    }
    Ok(tagging)
}

impl DeviceSpec {
    /// Reads a name.
    ///
    /// # Errors
    /// [`OpenError::Name`] or [`OpenError::Address`], saying what is wrong.
    pub fn parse(name: &str) -> Result<DeviceSpec, OpenError> {
        let bad = |why: String| OpenError::Name { name: name.to_owned(), why };
        let Some((wire, rest)) = name.split_once(':') else {
            return Err(bad(match address(name) {
                Ok(_) => format!("the wire is missing; did you mean rocev2:{name}?"),
                Err(_) => without_address(name),
            }));
        };
        let mut iwarp = None;
        let (wire, text) = match wire {
            "rocev2" => (WireKind::Udp, rest),
            "rocev2-raw" | "rocev1" => {
                let (raw, text) = RawWire::parse(wire, rest).map_err(bad)?;
                (WireKind::Raw(raw), text)
            }
            "iwarp" => {
                let (text, options) = rest.split_once(',').map_or((rest, None), |(text, o)| (text, Some(o)));
                iwarp = options.map(iwarp::options).transpose().map_err(bad)?;
                (WireKind::Tcp, text)
            }
            "ib" => {
                let wire = WireKind::Fabric(FabricWire::parse(rest).map_err(bad)?);
                return Ok(DeviceSpec { wire, ip: IpAddr::from([0; 16]), scope_id: 0, iwarp: None });
            }
            _ => match address(name) {
                Ok(_) => return Err(bad(format!("the wire is missing; did you mean rocev2:{name}?"))),
                Err(_) => return Err(bad(format!("there is no wire named {wire:?}"))),
            },
        };
        let (ip, mut scope_id) = address(text).map_err(bad)?;
        check_device_address(ip).map_err(|why| OpenError::Address { ip, why: why.to_owned() })?;
        if let (WireKind::Raw(RawWire { interface, .. }), true, 0) = (&wire, needs_scope(ip), scope_id) {
            scope_id = route::interface(interface).map_err(|error| bad(error.to_string()))?.index;
        }
        if needs_scope(ip) && scope_id == 0 {
            return Err(OpenError::Address {
                ip,
                why: format!("a link-local address means nothing without its interface: {ip}%eth0, say"),
            });
        }
        Ok(DeviceSpec { wire, ip, scope_id, iwarp })
    }
}

/// What a name lacks that has no colon.
fn without_address(name: &str) -> String {
    match name {
        "rocev2" | "iwarp" => format!("ADDRESS is needed after {name}:, as in {name}:127.0.0.1"),
        "rocev2-raw" | "rocev1" => interface_needed(name),
        "ib" => PORT_NEEDED.to_owned(),
        _ => "a device name begins with its wire and a colon".to_owned(),
    }
}

fn interface_needed(wire: &str) -> String {
    format!("INTERFACE/ADDRESS is needed after {wire}:, as in {wire}:eth0/192.0.2.1")
}

/// What a port of a fabric is named by.
const PORT_NEEDED: &str = "FABRIC/HOST/PORT is needed after ib:, as in ib:fat-tree-16/h1/1";

/// An address with an optional interface, in brackets or not.
///
/// # Errors
/// What is wrong with it, in words.
pub fn address(text: &str) -> Result<(IpAddr, u32), String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let (ip, scope) = match bare.split_once('%') {
        Some((ip, scope)) => (ip, Some(scope)),
        None => (bare, None),
    };
    let parsed: IpAddr = ip.parse().map_err(|_| not_an_address(text))?;
    let scope_id = match scope {
        None => 0,
        Some(name) => match name.parse::<u32>() {
            Ok(index) => index,
            Err(_) => route::interface(name).map_err(|error| error.to_string())?.index,
        },
    };
    Ok((parsed, if needs_scope(parsed) { scope_id } else { 0 }))
}

fn not_an_address(text: &str) -> String {
    let of_interface: Vec<String> = route::addresses()
        .unwrap_or_default()
        .into_iter()
        .filter(|address| address.interface == text)
        .map(|address| match address.scope_id {
            0 => address.ip.to_string(),
            _ => format!("{}%{}", address.ip, address.interface),
        })
        .collect();
    if of_interface.is_empty() {
        format!("{text:?} is not an IPv4 or IPv6 address (without port)")
    } else {
        format!("{text:?} is an interface; name one of its addresses: {}", of_interface.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> DeviceSpec {
        DeviceSpec::parse(name).unwrap()
    }

    fn error(name: &str) -> String {
        DeviceSpec::parse(name).unwrap_err().to_string()
    }

    #[test]
    fn good_names() {
        let v4 = spec("rocev2:127.0.0.1");
        assert_eq!((v4.wire, v4.ip, v4.scope_id), (WireKind::Udp, [127, 0, 0, 1].into(), 0));
        assert_eq!((spec("iwarp:127.0.0.1").wire, spec("iwarp:127.0.0.1").iwarp), (WireKind::Tcp, None));
        let asked = spec("iwarp:[::1],crc=off,rtr=read,pause=300").iwarp.unwrap();
        assert!(
            !asked.crc
                && asked.peer_to_peer == Some(everywire_verbs::Rtr::Read)
                && asked.pause.as_millis() == 300
        );
        let ib = |fabric: &str, port: &str, path_bits| {
            WireKind::Fabric(FabricWire { fabric: fabric.into(), port: port.into(), path_bits })
        };
        assert_eq!(spec("ib:fat-tree-16/h1/1").wire, ib("fat-tree-16", "h1/1", 0));
        assert_eq!(spec("ib:fat-tree-16/h1/1,path=3").wire, ib("fat-tree-16", "h1/1", 3));
        assert_eq!(spec("rocev2:::1").ip, std::net::Ipv6Addr::LOCALHOST);
        assert_eq!(spec("rocev2:[::1]").ip, std::net::Ipv6Addr::LOCALHOST);
        let index = route::interface("lo").unwrap().index;
        assert_eq!(spec("rocev2:fe80::1%lo").scope_id, index);
        assert_eq!(spec(&format!("rocev2:fe80::1%{index}")).scope_id, index);
        let raw = spec("rocev2-raw:lo/127.0.0.1");
        let wire = |roce_v1, vlan| WireKind::Raw(RawWire { interface: "lo".into(), roce_v1, vlan });
        assert_eq!((raw.wire, raw.ip), (wire(false, None), [127, 0, 0, 1].into()));
        let v1 = spec("rocev1:lo/127.0.0.1,vlan=100,priority=3");
        assert_eq!(v1.wire, wire(true, Some(Tagging { vid: 100, priority: Some(3) })));
        assert_eq!(spec("rocev1:lo/::1,vlan=0").wire, wire(true, Some(Tagging { vid: 0, priority: None })));
        assert_eq!(spec("rocev2-raw:lo/fe80::1").scope_id, index);
    }

    #[test]
    fn bad_names_say_what_to_do() {
        for (name, says) in [
            ("127.0.0.1", "did you mean rocev2:127.0.0.1?"),
            ("::1", "did you mean rocev2:::1?"),
            ("loopback", "begins with its wire"),
            ("rocev2", "ADDRESS is needed after rocev2:"),
            ("iwarp", "ADDRESS is needed after iwarp:"),
            ("rocev1", "INTERFACE/ADDRESS is needed after rocev1:"),
            ("rocev2-raw", "INTERFACE/ADDRESS is needed after rocev2-raw:"),
            ("ib", "FABRIC/HOST/PORT is needed after ib:"),
            ("ib:", "FABRIC/HOST/PORT is needed after ib:"),
            ("rocev3:1.2.3.4", "rocev1:INTERFACE/ADDRESS, iwarp:ADDRESS or ib:FABRIC/HOST/PORT"),
            ("ib:fabric", "FABRIC/HOST/PORT"),
            ("ib:fabric/h1", "FABRIC/HOST/PORT"),
            ("ib:fabric/h1/0", "ports count from 1"),
            ("ib:a b/h1/1", "letters"),
            ("ib:fabric/h1/1,path=128", "0 to 127"),
            ("ib:fabric/h1/1,bits=1", "path=N"),
            ("rocev3:1.2.3.4", "no wire named \"rocev3\""),
            ("rocev1:1.2.3.4", "INTERFACE/ADDRESS"),
            ("iwarp:127.0.0.1,crc", "\"crc\" is none of crc=on"),
            ("iwarp:127.0.0.1,mpa=1,rtr=send", "no peer-to-peer"),
            ("iwarp:1.2.3.4:4420", "not an IPv4 or IPv6 address (without port)"),
            ("rocev2:lo", "is an interface; name one of its addresses: 127.0.0.1"),
            ("rocev2:1.2.3.4:4791", "not an IPv4 or IPv6 address (without port)"),
            ("rocev2:0.0.0.0", "wildcard"),
            ("rocev2:224.0.0.1", "multicast"),
            ("rocev2:::ffff:1.2.3.4", "give it as IPv4"),
            ("rocev2:fe80::1", "without its interface"),
            ("rocev2:fe80::1%nosuch0", "no interface is named"),
            ("rocev2-raw:1.2.3.4", "INTERFACE/ADDRESS"),
            ("rocev1:lo/127.0.0.1,vlan=4095", "0 to 4094"),
            ("rocev1:lo/127.0.0.1,priority=8", "0 to 7"),
            ("rocev1:lo/127.0.0.1,pcp=1", "neither vlan=VID nor priority=PCP"),
        ] {
            assert!(error(name).contains(says), "{name}: {}", error(name));
        }
    }
}
