//! What `everywire fabric show --format json` says of a running fabric, in the terms in which the tools say it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::parse::{self, End, Node, Seen, Subnet, cable};

/// A fabric as our own program shows it. Only what is compared.
#[derive(Debug, Deserialize)]
pub struct Shown {
    /// Node and port of our subnet manager; empty without one.
    pub sm: String,
    pub roots: Vec<String>,
    pub nodes: Vec<ShownNode>,
    pub links: Vec<Link>,
}

#[derive(Debug, Deserialize)]
pub struct ShownNode {
    pub name: String,
    pub switch: bool,
    guid: String,
    pub ports: u8,
    pub end_ports: Vec<EndPort>,
    /// Port by LID, 255 for none.
    #[serde(default)]
    pub forwarding: Vec<u8>,
}

#[derive(Debug, Deserialize)]
pub struct EndPort {
    pub port: u8,
    guid: String,
    pub lid: u16,
    #[serde(default)]
    pub ip: Option<std::net::IpAddr>,
}

#[derive(Debug, Deserialize)]
pub struct Link {
    pub ends: [LinkEnd; 2],
    /// `4xQDR`.
    pub rate: String,
    pub mtu: u16,
}

#[derive(Debug, Deserialize)]
pub struct LinkEnd {
    pub node: String,
    pub port: u8,
    pub state: String,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.ends.iter().all(|end| end.state != "down")
    }
}

/// The port of a switch's table where no port is.
const NO_PORT: u8 = 255;

impl ShownNode {
    pub fn guid(&self) -> u64 {
        parse::guid(&self.guid).unwrap_or_default()
    }

    /// LID of a host's port, or of a switch.
    pub fn lid(&self, port: u8) -> u16 {
        let port = if self.switch { 0 } else { port };
        self.end_ports.iter().find(|p| p.port == port).map_or(0, |p| p.lid)
    }

    /// GUID as iblinkinfo prints it with a port: a host's port has one of its own.
    fn port_guid(&self, port: u8) -> u64 {
        let own = self.end_ports.iter().find(|p| !self.switch && p.port == port);
        own.and_then(|p| parse::guid(&p.guid)).unwrap_or_else(|| self.guid())
    }
}

impl Shown {
    pub fn node(&self, name: &str) -> Result<&ShownNode, String> {
        self.nodes.iter().find(|n| n.name == name).ok_or_else(|| format!("fabric show has no node {name}"))
    }

    pub fn hosts(&self) -> impl Iterator<Item = &ShownNode> {
        self.nodes.iter().filter(|n| !n.switch)
    }

    pub fn switches(&self) -> impl Iterator<Item = &ShownNode> {
        self.nodes.iter().filter(|n| n.switch)
    }

    /// Whether the subnet manager has done all it has to: every cable in use, every port with a LID.
    pub fn is_active(&self) -> bool {
        let links = self.links.iter().filter(|l| l.is_up()).flat_map(|l| &l.ends);
        let mut ports = links
            .map(|end| end.state == "active" && self.node(&end.node).is_ok_and(|n| n.lid(end.port) != 0));
        ports.all(|ok| ok)
    }

    /// Nodes, cables that are up, and LIDs, as ibnetdiscover would list them.
    pub fn subnet(&self) -> Result<Subnet, String> {
        let node = |n: &ShownNode| Node { guid: n.guid(), switch: n.switch, name: n.name.clone() };
        let mut subnet = Subnet { nodes: self.nodes.iter().map(node).collect(), ..Subnet::default() };
        for link in self.links.iter().filter(|l| l.is_up()) {
            let mut ends: Vec<End> = Vec::new();
            for end in &link.ends {
                let node = self.node(&end.node)?;
                let port = if node.switch { 0 } else { end.port };
                subnet.lids.insert((node.guid(), port), node.lid(end.port));
                ends.push((node.guid(), end.port));
            }
            subnet.cables.insert(cable(ends[0], ends[1]));
        }
        Ok(subnet)
    }

    /// Cables that are up, as iblinkinfo would list them.
    pub fn linkinfo(&self) -> Result<BTreeSet<(Seen, Seen)>, String> {
        let seen = |end: &LinkEnd| {
            let node = self.node(&end.node)?;
            Ok::<Seen, String>(Seen {
                guid: node.port_guid(end.port),
                lid: node.lid(end.port),
                port: end.port,
            })
        };
        let cable = |link: &Link| {
            let (a, b) = (seen(&link.ends[0])?, seen(&link.ends[1])?);
            Ok((a.min(b), a.max(b)))
        };
        self.links.iter().filter(|l| l.is_up()).map(cable).collect()
    }

    /// The switches' tables.
    pub fn tables(&self) -> BTreeMap<u64, BTreeMap<u16, u8>> {
        let table = |n: &ShownNode| {
            let ports = n.forwarding.iter().enumerate().filter(|(_, port)| **port != NO_PORT);
            ports.map(|(lid, port)| (lid as u16, *port)).collect()
        };
        self.switches().map(|n| (n.guid(), table(n))).collect()
    }
}
