//! Who may log in: rules by initiator name and address.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::str::FromStr;

use super::config::Device;
use crate::name::IscsiName;

/// Addresses that begin alike: `192.0.2.0/24`, `2001:db8::/32`, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    address: IpAddr,
    bits: u8,
}

impl Subnet {
    fn width(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// Whether an address is in it. An IPv4 address mapped into IPv6 is an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(one)) => {
                let shift = 32 - u32::from(self.bits);
                net.to_bits().checked_shr(shift) == one.to_bits().checked_shr(shift)
            }
            (IpAddr::V6(net), IpAddr::V6(one)) => {
                let shift = 128 - u32::from(self.bits);
                net.to_bits().checked_shr(shift) == one.to_bits().checked_shr(shift)
            }
            _ => false,
        }
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| format!("`{text}` is no address or subnet"))?;
        let width = Subnet::width(address);
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|&bits| bits <= width),
            None => Some(width),
        };
        let bits = bits.ok_or_else(|| format!("`{text}`: a prefix of 0 to {width} bits is needed"))?;
        Ok(Subnet { address, bits })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// One rule.
#[derive(Clone, Default)]
pub struct Rule {
    /// Names it fits; any if empty.
    pub initiators: Vec<IscsiName>,
    /// Addresses it fits; any if empty.
    pub addresses: Vec<Subnet>,
    /// Whom it fits may not log in.
    pub deny: bool,
    /// The logical units they see; the node's own if `None`.
    pub device: Option<Rc<dyn Device>>,
}

impl Rule {
    /// Whether it decides about this initiator.
    pub fn fits(&self, initiator: &IscsiName, address: IpAddr) -> bool {
        (self.initiators.is_empty() || self.initiators.contains(initiator))
            && (self.addresses.is_empty() || self.addresses.iter().any(|net| net.contains(address)))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.deny { "deny" } else { "allow" })?;
        self.initiators.iter().try_for_each(|name| write!(f, " {name}"))?;
        self.addresses.iter().try_for_each(|net| write!(f, " {net}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets() {
        let contains = |net: &str, one: &str| net.parse::<Subnet>().unwrap().contains(one.parse().unwrap());
        assert!(contains("192.0.2.0/24", "192.0.2.77") && !contains("192.0.2.0/24", "192.0.3.1"));
        assert!(contains("192.0.2.7", "::ffff:192.0.2.7") && !contains("192.0.2.7", "192.0.2.8"));
        assert!(contains("0.0.0.0/0", "203.0.113.9") && !contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("2001:db8::/32", "2001:db8:1::1") && contains("::/0", "2001:db8::1"));
        for bad in ["192.0.2.0/33", "x", "::/129", "1.2.3.4/"] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_and_addresses_both_count() {
        let name = |text: &str| text.parse::<IscsiName>().unwrap();
        let (host, other) = (name("iqn.2001-04.com.example:host"), name("iqn.2001-04.com.example:other"));
        let rule = Rule {
            initiators: vec![host.clone()],
            addresses: vec!["192.0.2.0/24".parse().unwrap()],
            ..Rule::default()
        };
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(rule.fits(&host, at("192.0.2.1")));
        assert!(!rule.fits(&other, at("192.0.2.1")) && !rule.fits(&host, at("203.0.113.1")));
        assert!(Rule::default().fits(&other, at("203.0.113.1")));
    }
}
