//! What infiniband-diags and OpenSM print, read into what a subnet is: nodes, cables, LIDs, forwarding tables.
//!
//! The formats are those of infiniband-diags 44 and OpenSM 3.3.23 as Debian 12 has them; the tests' texts are theirs.

use std::collections::{BTreeMap, BTreeSet};

/// A node by its GUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub guid: u64,
    pub switch: bool,
    pub name: String,
}

/// One end of a cable: the node's GUID and the port.
pub type End = (u64, u8);

/// A cable, the lower end first.
pub type Cable = (End, End);

/// What is there and how it hangs together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subnet {
    pub nodes: BTreeSet<Node>,
    pub cables: BTreeSet<Cable>,
    /// LIDs of a switch, or of a host's ports that have a cable; by node GUID and port, 0 for a switch.
    pub lids: BTreeMap<End, u16>,
}

/// A cable whose ends are in order.
pub fn cable(a: End, b: End) -> Cable {
    if a <= b { (a, b) } else { (b, a) }
}

/// The text between the first `open` and the `close` after it.
fn between<'a>(line: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let from = line.find(open)? + open.len();
    let length = line[from..].find(close)?;
    Some(&line[from..from + length])
}

/// A GUID as tools print it, with `0x`, `S-` or `H-` before it or nothing.
pub fn guid(text: &str) -> Option<u64> {
    let digits = text.trim_start_matches("0x").trim_start_matches("S-").trim_start_matches("H-");
    u64::from_str_radix(digits, 16).ok()
}

/// The number after the word `lid`.
fn lid_after(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once(" lid ")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// ibnetdiscover's listing.
pub fn netdiscover(text: &str) -> Result<Subnet, String> {
    let mut subnet = Subnet::default();
    let mut node: Option<(u64, bool)> = None;
    for line in text.lines() {
        let broken = || format!("ibnetdiscover: {line}");
        if line.starts_with("Switch\t") || line.starts_with("Ca\t") {
            let switch = line.starts_with("Switch");
            let own = between(line, "\"", "\"").and_then(guid).ok_or_else(broken)?;
            let comment = line.split_once('#').map_or("", |(_, comment)| comment);
            let name = between(comment, "\"", "\"").ok_or_else(broken)?.to_owned();
            if switch {
                subnet.lids.insert((own, 0), lid_after(line).ok_or_else(broken)?);
            }
            subnet.nodes.insert(Node { guid: own, switch, name });
            node = Some((own, switch));
        } else if line.starts_with('[') {
            let (own, switch) = node.ok_or_else(broken)?;
            let port: u8 = between(line, "[", "]").and_then(|p| p.parse().ok()).ok_or_else(broken)?;
            let (_, peer) = line.split_once('"').ok_or_else(broken)?;
            let (name, rest) = peer.split_once('"').ok_or_else(broken)?;
            let at: u8 = between(rest, "[", "]").and_then(|p| p.parse().ok()).ok_or_else(broken)?;
            subnet.cables.insert(cable((own, port), (guid(name).ok_or_else(broken)?, at)));
            if !switch {
                let comment = line.split_once('#').map_or("", |(_, comment)| comment);
                subnet.lids.insert((own, port), lid_after(comment).ok_or_else(broken)?);
            }
        }
    }
    Ok(subnet)
}

/// A line of `iblinkinfo --line`: port GUID (a switch's is the node's), LID and port of both ends, of cables that are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub guid: u64,
    pub lid: u16,
    pub port: u8,
}

/// The cables that `iblinkinfo --line` calls Active, both ends as it prints them.
pub fn linkinfo(text: &str) -> Result<BTreeSet<(Seen, Seen)>, String> {
    let mut cables = BTreeSet::new();
    for line in text.lines().filter(|l| l.starts_with("0x") && l.contains(" Active/")) {
        let broken = || format!("iblinkinfo: {line}");
        let (near, far) = line.split_once("==>").ok_or_else(broken)?;
        // GUID, then the name in quotes, then LID and port; at the far end the name comes last.
        let (own, rest) = near.split_once('"').ok_or_else(broken)?;
        let (_, rest) = rest.split_once('"').ok_or_else(broken)?;
        let end = |guid_text: &str, rest: &str| {
            let mut words = rest.split(['[', ' ']).filter(|w| !w.is_empty());
            let lid = words.next()?.parse().ok()?;
            let port = words.next()?.parse().ok()?;
            Some(Seen { guid: guid(guid_text.trim())?, lid, port })
        };
        let near = end(own, rest).ok_or_else(broken)?;
        let (peer, rest) = far.trim().split_once(' ').ok_or_else(broken)?;
        let far = end(peer, rest).ok_or_else(broken)?;
        cables.insert((near.min(far), near.max(far)));
    }
    Ok(cables)
}

/// `ibhosts`: node GUIDs and names.
pub fn hosts(text: &str) -> Result<BTreeSet<(u64, String)>, String> {
    let line = |line: &str| {
        let own = between(line, ": ", " ports").and_then(guid);
        let name = between(line, "\"", "\"").map(str::to_owned);
        own.zip(name).ok_or_else(|| format!("ibhosts: {line}"))
    };
    text.lines().filter(|l| l.starts_with("Ca")).map(line).collect()
}

/// `dump_fts`: for every switch's GUID the port by LID.
pub fn tables(text: &str) -> Result<BTreeMap<u64, BTreeMap<u16, u8>>, String> {
    let mut tables: BTreeMap<u64, BTreeMap<u16, u8>> = BTreeMap::new();
    let mut switch = None;
    for line in text.lines() {
        let broken = || format!("dump_fts: {line}");
        if line.starts_with("Unicast lids") {
            let own = between(line, " guid ", " ").and_then(guid).ok_or_else(broken)?;
            tables.entry(own).or_default();
            switch = Some(own);
        } else if line.starts_with("0x") {
            let mut words = line.split_whitespace();
            let lid = words.next().and_then(|w| u16::from_str_radix(w.trim_start_matches("0x"), 16).ok());
            let port = words.next().and_then(|w| w.parse().ok());
            let table = switch.and_then(|s| tables.get_mut(&s)).ok_or_else(broken)?;
            table.insert(lid.ok_or_else(broken)?, port.ok_or_else(broken)?);
        }
    }
    Ok(tables)
}

/// How many links `ibtracert` went over: its lines with an arrow.
pub fn hops(text: &str) -> usize {
    text.lines().filter(|l| l.contains("] -> ")).count()
}

/// The value of a line `Name:.....value` or `name....value` of smpquery, saquery and perfquery.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().map(str::trim).find_map(|line| {
        let rest = line.strip_prefix(name)?.trim_start_matches(':');
        let value = rest.trim_start_matches('.');
        (value.len() < rest.len()).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests;
