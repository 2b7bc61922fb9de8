//! Every tool's view of a subnet against our own `fabric show`. The tools learn what they print by MADs alone.

use std::fmt::Debug;
use std::time::Duration;

use super::parse::{self, field};
use super::routes;
use super::shown::{Link, Shown, ShownNode};
use super::tools::Tools;

/// Fails with what the tool and the program say differently.
pub fn same<T: PartialEq + Debug>(what: &str, tool: &T, ours: &T) -> Result<(), String> {
    if tool == ours {
        return Ok(());
    }
    Err(format!("{what}: the tool and fabric show differ\n tool: {tool:?}\n ours: {ours:?}"))
}

/// The field of a tool's output as that text.
fn has(what: &str, output: &str, name: &str, expected: &str) -> Result<(), String> {
    match field(output, name) {
        Some(value) if value == expected => Ok(()),
        value => Err(format!("{what}: {name} is {value:?}, fabric show has {expected:?}\n{output}")),
    }
}

/// The tools that list the whole subnet: nodes, cables, LIDs.
pub fn listings(tools: &Tools, host: &str, shown: &Shown) -> Result<(), String> {
    let discovered = parse::netdiscover(&tools.run(host, "ibnetdiscover", &[])?)?;
    let ours = shown.subnet()?;
    same("ibnetdiscover's nodes", &discovered.nodes, &ours.nodes)?;
    same("ibnetdiscover's cables", &discovered.cables, &ours.cables)?;
    same("ibnetdiscover's LIDs", &discovered.lids, &ours.lids)?;
    let links = parse::linkinfo(&tools.run(host, "iblinkinfo", &["--line"])?)?;
    same("iblinkinfo", &links, &shown.linkinfo()?)?;
    let hosts = parse::hosts(&tools.run(host, "ibhosts", &[])?)?;
    same("ibhosts", &hosts, &shown.hosts().map(|n| (n.guid(), n.name.clone())).collect())
}

/// The switches' tables, and ibtracert along them: from the first host to all, and from all to the last.
pub fn tables(tools: &Tools, host: &str, shown: &Shown) -> Result<(), String> {
    let tables = parse::tables(&tools.run(host, "dump_fts", &[])?)?;
    same("dump_fts", &tables, &shown.tables())?;
    let subnet = shown.subnet()?;
    let lengths = routes::lengths(&subnet, &tables)?;
    let (first, last) = (shown.hosts().next(), shown.hosts().last());
    for ((from, to), length) in &lengths {
        if first.is_some_and(|n| n.name == *from) || last.is_some_and(|n| n.name == *to) {
            let (a, b) = (lid(shown.node(from)?)?, lid(shown.node(to)?)?);
            let traced = parse::hops(&tools.run(host, "ibtracert", &[&a, &b])?);
            same(&format!("ibtracert from {from} to {to}"), &traced, length)?;
        }
    }
    Ok(())
}

/// LID of a switch, or of a host's first port that has one, as an argument.
pub fn lid(node: &ShownNode) -> Result<String, String> {
    let lid = node.end_ports.iter().map(|p| p.lid).find(|lid| *lid != 0);
    lid.map(|lid| lid.to_string()).ok_or_else(|| format!("{} has no LID", node.name))
}

/// smpquery: every node, and both ends of every cable.
pub fn smps(tools: &Tools, host: &str, shown: &Shown) -> Result<(), String> {
    for node in &shown.nodes {
        let lid = lid(node)?;
        let info = tools.run(host, "smpquery", &["nodeinfo", &lid])?;
        let what = format!("smpquery nodeinfo of {}", node.name);
        has(&what, &info, "NodeType", if node.switch { "Switch" } else { "Channel Adapter" })?;
        has(&what, &info, "NumPorts", &node.ports.to_string())?;
        has(&what, &info, "Guid", &format!("{:#018x}", node.guid()))?;
        let described = tools.run(host, "smpquery", &["nodedesc", &lid])?;
        has("smpquery nodedesc", &described, "Node Description", &node.name)?;
        if node.switch {
            let info = tools.run(host, "smpquery", &["switchinfo", &lid])?;
            let top = shown.tables().get(&node.guid()).and_then(|t| t.keys().last().copied()).unwrap_or(0);
            let said: u16 = field(&info, "LinearFdbTop").and_then(|v| v.parse().ok()).unwrap_or(0);
            if said < top {
                return Err(format!("{}: LinearFdbTop is {said}, the table goes to {top}", node.name));
            }
        }
    }
    for link in shown.links.iter().filter(|l| l.is_up()) {
        for end in &link.ends {
            let (node, port) = (shown.node(&end.node)?, end.port.to_string());
            let info = tools.run(host, "smpquery", &["portinfo", &lid(node)?, &port])?;
            port_info(&format!("smpquery portinfo of {}/{port}", node.name), &info, link)?;
        }
    }
    Ok(())
}

/// Lanes and signalling by their names, as the tools have them.
const SPEEDS: [(&str, &str, &str); 5] = [
    ("SDR", "LinkSpeedActive", "2.5 Gbps"),
    ("DDR", "LinkSpeedActive", "5.0 Gbps"),
    ("QDR", "LinkSpeedActive", "10.0 Gbps"),
    ("FDR", "LinkSpeedExtActive", "14.0625 Gbps"),
    ("EDR", "LinkSpeedExtActive", "25.78125 Gbps"),
];

fn port_info(what: &str, info: &str, link: &Link) -> Result<(), String> {
    has(what, info, "LinkState", "Active")?;
    has(what, info, "PhysLinkState", "LinkUp")?;
    has(what, info, "NeighborMTU", &link.mtu.to_string())?;
    let (width, speed) = link.rate.split_at(link.rate.find('x').map_or(0, |at| at + 1));
    has(what, info, "LinkWidthActive", &width.to_uppercase())?;
    let row = SPEEDS.iter().find(|row| row.0 == speed).ok_or_else(|| format!("{what}: speed {speed}"))?;
    has(what, info, row.1, row.2)
}

/// The subnet manager and what its SA knows. libumad2sim cuts an answer to one MAD, so each is asked for one record.
pub fn administration(tools: &Tools, host: &str, sm: &str, shown: &Shown) -> Result<(), String> {
    let sm_lid = lid(shown.node(sm)?)?;
    let info = tools.run(host, "sminfo", &[])?;
    if !info.contains(&format!("sm lid {sm_lid} ")) || !info.contains("SMINFO_MASTER") {
        return Err(format!("sminfo does not say that the master is at LID {sm_lid}: {info}"));
    }
    has("saquery SMIR", &tools.run(host, "saquery", &["SMIR"])?, "LID", &sm_lid)?;
    for node in &shown.nodes {
        let record = tools.run(host, "saquery", &["NR", &lid(node)?])?;
        let what = format!("saquery NR of {}", node.name);
        has(&what, &record, "node_guid", &format!("{:#018x}", node.guid()))?;
        has(&what, &record, "NodeDescription", &node.name)?;
    }
    for link in shown.links.iter().filter(|l| l.is_up()) {
        let [a, b] = &link.ends;
        let (from, to) = (shown.node(&a.node)?, shown.node(&b.node)?);
        let record = tools.run(host, "saquery", &["LR", &format!("{}/{}", lid(from)?, a.port)])?;
        has("saquery LR", &record, "ToLID", &lid(to)?)?;
        has("saquery LR", &record, "ToPort", &b.port.to_string())?;
    }
    let from = lid(shown.node(host)?)?;
    for to in shown.hosts().filter(|n| n.name != host) {
        let record = tools.run(host, "saquery", &["-p", "--src-to-dst", &format!("{from}:{}", lid(to)?)])?;
        has("saquery PR", &record, "slid", &from)?;
        has("saquery PR", &record, "dlid", &lid(to)?)?;
    }
    Ok(())
}

/// Counters: no errors anywhere, and packets where the tools' own went.
pub fn counters(tools: &Tools, host: &str, shown: &Shown) -> Result<(), String> {
    for node in shown.hosts() {
        let port = node.end_ports.iter().find(|p| p.lid != 0).map_or(1, |p| p.port);
        let said = tools.run(host, "perfquery", &[&lid(node)?, &port.to_string()])?;
        let what = format!("perfquery of {}", node.name);
        for counter in
            ["SymbolErrorCounter", "LinkDownedCounter", "PortRcvErrors", "PortXmitDiscards", "VL15Dropped"]
        {
            has(&what, &said, counter, "0")?;
        }
        for counter in ["PortXmitPkts", "PortRcvPkts"] {
            if field(&said, counter).is_none_or(|v| v == "0") {
                return Err(format!("{what}: {counter} shows no packet\n{said}"));
            }
        }
    }
    let errors = tools.run(host, "ibqueryerrors", &[])?;
    let expected = format!("{} nodes checked, 0 bad nodes found", shown.nodes.len());
    if errors.contains(&expected) {
        Ok(())
    } else {
        Err(format!("ibqueryerrors: not {expected:?}:\n{errors}"))
    }
}

/// ibping from `host` to every other one of `to`, one after the other.
pub fn ibping(tools: &Tools, host: &str, to: &[&str], shown: &Shown) -> Result<(), String> {
    for peer in to {
        let server = tools.start(peer, "ibping", &["-S"])?;
        // It says nothing when it listens.
        std::thread::sleep(Duration::from_millis(500));
        let said = tools.run(host, "ibping", &["-c", "5", "-L", &lid(shown.node(peer)?)?])?;
        drop(server);
        if !said.contains("5 packets transmitted, 5 received") {
            return Err(format!("ibping from {host} to {peer}:\n{said}"));
        }
    }
    Ok(())
}

/// ibdiagnet finds every node and nothing wrong.
pub fn ibdiagnet(tools: &Tools, host: &str, shown: &Shown) -> Result<(), String> {
    let said = tools.run(host, "ibdiagnet", &["-o", "report"])?;
    let (switches, hosts) = (shown.switches().count(), shown.hosts().count());
    let found = format!("{} nodes ({switches} Switches & {hosts} CA-s) discovered", switches + hosts);
    if !said.contains(&found) {
        return Err(format!("ibdiagnet: not {found:?}:\n{said}"));
    }
    match said.lines().find(|l| l.starts_with("-E-")) {
        Some(line) => Err(format!("ibdiagnet: {line}\n{said}")),
        None => Ok(()),
    }
}
