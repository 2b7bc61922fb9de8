//! TOPOLOGY.toml: hosts, switches and links, written out or by a generator, into a plan that is checked.
//!
//! Unknown keys are mistakes, and named with their line; every other error says file, key, value and limit. What a plan must
//! hold is asked of the plan, so that `fabric show` and `fabric run` never differ.

mod file;
#[cfg(test)]
mod fuzz;
mod generate;
mod qos;
#[cfg(test)]
mod tests;
mod wording;

use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use everywire_net::fabric_host::plan::{
    Engine, HostPlan, Layout, LinkPlan, LinkRate, LinkShape, MAX_DELAY, MAX_HOST_PORTS, MAX_LMC, MAX_PPM,
    MAX_ROUTER_PORTS, MAX_SL, MAX_SM_PRIORITY, MAX_SWITCH_PORTS, NodeRef, PartitionPlan, Plan, PortRef,
    SubnetPlan, SwitchPlan, check_name,
};
use everywire_verbs::{Gid, Guid, Mtu};

use crate::error::CliError;
use file::{File, LinkFile, ShapeFile, within};

/// Most bytes of a topology file.
const MAX_FILE: u64 = 4 << 20;
/// GUIDs of hosts that are given none: locally administered, "EW", hosts, and the number of the host times 256.
const HOST_GUID: u64 = 0x0245_5700_0100_0000;
/// The same for switches.
const SWITCH_GUID: u64 = 0x0245_5700_0200_0000;
/// IP addresses of host ports that are given none: 10.77.0.1 and up, in order.
const FIRST_IP: u32 = 0x0a4d_0000;

/// Reads and checks a topology.
pub fn read(path: &Path) -> Result<Plan, CliError> {
    let whence = path.display().to_string();
    let wrong = |why: &dyn std::fmt::Display| CliError::usage(format_args!("cannot read {whence}: {why}"));
    let mut text = String::new();
    // What has no end (/dev/zero) is not read for ever.
    let file = std::fs::File::open(path).map_err(|e| wrong(&e))?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|e| wrong(&e))?;
    if text.len() as u64 > MAX_FILE {
        return Err(wrong(&"it has more than 4 MiB, the most that a topology may have"));
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("fabric");
    parse(&text, &whence, stem)
}

/// The same of text; `whence` names it in errors, and `stem` is the fabric's name where it has none.
pub fn parse(text: &str, whence: &str, stem: &str) -> Result<Plan, CliError> {
    let wrong = |why: String| CliError::usage(format_args!("{whence}: {why}"));
    let file: File = toml::from_str(text).map_err(|e| wrong(wording::told(text, &e)))?;
    check_names(text, &file).map_err(wrong)?;
    let plan = build(file, stem).map_err(wrong)?;
    plan.check().map_err(wrong)?;
    Ok(plan)
}

/// A name that stands twice is told with both places. Those that a generator makes are its plan's affair.
fn check_names(text: &str, file: &File) -> Result<(), String> {
    let hosts = file.host.iter().map(|host| ("host", &host.name));
    let routers = file.router.iter().map(|router| ("router", &router.name));
    let switches = file.switch.iter().map(|switch| ("switch", &switch.name));
    let mut places = std::collections::HashMap::new();
    for (what, name) in hosts.chain(routers).chain(switches) {
        let line = wording::line_at(text, name.span().start);
        if let Some((other, first)) = places.insert(name.get_ref(), (what, line)) {
            let name = name.get_ref();
            return Err(format!(
                "{what}.name: {name:?} is the name of two nodes: a {other} in line {first} and a {what} in line {line}"
            ));
        }
    }
    Ok(())
}

fn build(file: File, stem: &str) -> Result<Plan, String> {
    let defaults = shape(&file.defaults, LinkShape::default(), "defaults")?;
    let mut plan = Plan {
        name: file.name.unwrap_or_else(|| stem.to_owned()),
        hosts: Vec::new(),
        switches: Vec::new(),
        links: Vec::new(),
        sm: PortRef { node: NodeRef::Host(0), port: 1 },
        sm_key: file.sm_key.as_deref().map(sm_key).transpose()?,
        sm_priority: within("sm_priority", file.sm_priority.unwrap_or(0), 0..=MAX_SM_PRIORITY.into())?,
        gid_prefix: file.gid_prefix.as_deref().map_or(Ok(Gid::DEFAULT_PREFIX), gid_prefix)?,
        subnets: Vec::new(),
        engine: Engine::MinHop,
        roots: Vec::new(),
        lmc: within("lmc", file.lmc.unwrap_or(0), 0..=MAX_LMC.into())?,
        sl: within("sl", file.sl.unwrap_or(0), 0..=MAX_SL.into())?,
        lanes: file.qos.as_ref().map(qos::lanes).transpose()?,
        partitions: Vec::new(),
        layout: Layout::Levels,
    };
    if let Some(generator) = &file.generate {
        generate::generate(generator, defaults, &mut plan)?;
    }
    for host in file.host {
        check_name("host.name", host.name.get_ref())?;
        let guid = host.guid.map_or(Ok(Guid(0)), |text| guid("host.guid", &text))?;
        plan.hosts.push(HostPlan {
            name: host.name.into_inner(),
            ports: within("host.ports", host.ports.unwrap_or(1), 1..=MAX_HOST_PORTS.into())?,
            guid,
            ips: host.ip.map_or_else(Vec::new, file::OneOrMore::into_vec),
            router: false,
        });
    }
    for router in file.router {
        check_name("router.name", router.name.get_ref())?;
        let guid = router.guid.map_or(Ok(Guid(0)), |text| guid("router.guid", &text))?;
        let ports = within("router.ports", router.ports, 1..=MAX_ROUTER_PORTS.into())?;
        let name = router.name.into_inner();
        plan.hosts.push(HostPlan { name, ports, guid, ips: Vec::new(), router: true });
    }
    for switch in file.switch {
        check_name("switch.name", switch.name.get_ref())?;
        let guid = switch.guid.map_or(Ok(Guid(0)), |text| guid("switch.guid", &text))?;
        let ports = within("switch.ports", switch.ports, 1..=MAX_SWITCH_PORTS.into())?;
        plan.switches.push(SwitchPlan { name: switch.name.into_inner(), ports, guid });
    }
    number(&mut plan)?;
    for text in &file.links {
        let ends = ends(&plan, text)?;
        plan.links.push(LinkPlan { ends, shape: defaults });
    }
    for link in &file.link {
        plan.links.push(whole_link(&plan, link, defaults)?);
    }
    if let Some(engine) = file.engine {
        plan.engine = engine;
    }
    if let Some(layout) = file.layout {
        plan.layout = layout.into_layout(plan.switches.len())?;
    }
    if let Some(roots) = &file.roots {
        plan.roots = roots.iter().map(|name| root(&plan, name)).collect::<Result<_, _>>()?;
    }
    if let Some(sm) = &file.sm {
        plan.sm = sm_port(&plan, sm)?;
    }
    for subnet in &file.subnet {
        let (sm, gid_prefix) = (sm_port(&plan, &subnet.sm)?, gid_prefix(&subnet.gid_prefix)?);
        plan.subnets.push(SubnetPlan { sm, gid_prefix });
    }
    plan.partitions = file
        .partition
        .iter()
        .map(|partition| {
            let ports = |key: &str, names: &[String]| {
                let ports = names.iter().map(|name| plan.port(name));
                ports.collect::<Result<Vec<_>, _>>().map_err(|e| format!("partition.{key}: {e}"))
            };
            Ok(PartitionPlan {
                pkey: pkey(partition.pkey)?,
                full: ports("full", &partition.full)?,
                limited: ports("limited", &partition.limited)?,
                sl: within("partition.sl", partition.sl, 0..=MAX_SL.into())?,
            })
        })
        .collect::<Result<_, String>>()?;
    Ok(plan)
}

/// GUIDs and addresses for those that were given none.
fn number(plan: &mut Plan) -> Result<(), String> {
    for (index, host) in plan.hosts.iter_mut().enumerate() {
        if host.guid.0 == 0 {
            host.guid = Guid(HOST_GUID + ((index as u64 + 1) << 8));
        }
    }
    for (index, switch) in plan.switches.iter_mut().enumerate() {
        if switch.guid.0 == 0 {
            switch.guid = Guid(SWITCH_GUID + ((index as u64 + 1) << 8));
        }
    }
    let taken: std::collections::HashSet<IpAddr> =
        plan.hosts.iter().flat_map(|host| host.ips.iter().copied()).collect();
    let mut next = (FIRST_IP + 1..).map(|ip| IpAddr::from(ip.to_be_bytes())).filter(|ip| !taken.contains(ip));
    for host in plan.hosts.iter_mut().filter(|host| host.ips.is_empty() && !host.router) {
        host.ips = next.by_ref().take(usize::from(host.ports)).collect();
    }
    Ok(())
}

/// `a/1 - b/3`, with a hyphen or dash that has spaces around it.
fn ends(plan: &Plan, text: &str) -> Result<[PortRef; 2], String> {
    let parts = [" - ", " – ", " -- "].iter().find_map(|dash| text.split_once(dash));
    let (a, b) =
        parts.ok_or_else(|| format!("links: {text:?}: two ends are needed, as in \"h1/1 - s1/3\""))?;
    let port = |name: &str| plan.port(name.trim()).map_err(|e| format!("links: {text:?}: {e}"));
    Ok([port(a)?, port(b)?])
}

fn whole_link(plan: &Plan, link: &LinkFile, defaults: LinkShape) -> Result<LinkPlan, String> {
    let [a, b] = &link.ends;
    let port = |name: &str| plan.port(name).map_err(|e| format!("link.ends: {e}"));
    let shape = shape(&link.shape, defaults, &format!("link {a} - {b}"))?;
    Ok(LinkPlan { ends: [port(a)?, port(b)?], shape })
}

fn shape(file: &ShapeFile, defaults: LinkShape, key: &str) -> Result<LinkShape, String> {
    let mut shape = defaults;
    if let Some(rate) = &file.rate {
        shape.rate = LinkRate::parse(rate).map_err(|e| format!("{key}: rate: {e}"))?;
    }
    if let Some(us) = file.delay_us {
        let most = MAX_DELAY.as_secs_f64() * 1e6;
        if !(0.0..=most).contains(&us) {
            return Err(format!("{key}: delay_us: {us} is not 0 to {most}"));
        }
        shape.delay = Duration::from_nanos((us * 1e3).round() as u64);
    }
    if let Some(bytes) = file.mtu {
        let found = Mtu::ALL.into_iter().find(|mtu| i64::try_from(mtu.bytes()) == Ok(bytes));
        shape.mtu =
            found.ok_or_else(|| format!("{key}: mtu: {bytes} is none of 256, 512, 1024, 2048, 4096"))?;
    }
    if let Some(vls) = file.vls {
        let found = [1, 2, 4, 8, 15].into_iter().find(|lanes| i64::from(*lanes) == vls);
        shape.vls = found.ok_or_else(|| format!("{key}: vls: {vls} is none of 1, 2, 4, 8, 15"))?;
    }
    if let Some(ppm) = file.bit_errors_ppm {
        shape.bit_errors_ppm = within(&format!("{key}: bit_errors_ppm"), ppm, 0..=MAX_PPM.into())?;
    }
    shape.retry = file.retry.unwrap_or(shape.retry);
    Ok(shape)
}

/// `0x0002c90300000001`, or as `ibv_devinfo` prints it.
fn guid(key: &str, text: &str) -> Result<Guid, String> {
    let bare: String = text.trim().trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
    match u64::from_str_radix(&bare, 16) {
        Ok(value) if value != 0 && !bare.starts_with('+') => Ok(Guid(value)),
        _ => Err(format!(
            "{key}: {text:?} is no GUID: 16 hexadecimal digits, not all zero, as in \"0x0002c90300000001\""
        )),
    }
}

/// `0xfec0000000000001`: 16 hexadecimal digits.
fn gid_prefix(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 16);
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(|| {
        format!("gid_prefix: {text:?} is none: 16 hexadecimal digits after 0x, as in \"0xfec0000000000001\"")
    })
}

/// 15 bits; which of them name a partition the plan says.
fn pkey(value: i64) -> Result<u16, String> {
    u16::try_from(value).map_err(|_| {
        format!("partition.pkey: {value} is none of 0x0001 to 0x7ffe (the membership bit is not part of it)")
    })
}

/// `0x1`, which OpenSM has if it is told nothing.
fn sm_key(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16)) {
        Some(Ok(key)) if key != 0 => Ok(key),
        _ => Err(format!("sm_key: {text:?} is none: up to 16 hexadecimal digits after 0x, not all zero")),
    }
}

fn root(plan: &Plan, name: &str) -> Result<usize, String> {
    match plan.node(name) {
        Some(NodeRef::Switch(index)) => Ok(index),
        Some(NodeRef::Host(_)) => Err(format!("roots: {name:?} is a host; roots are switches")),
        None => Err(format!("roots: {name:?} is no switch")),
    }
}

/// A host's port, or a switch, where it is port 0.
fn sm_port(plan: &Plan, text: &str) -> Result<PortRef, String> {
    let (name, port) = text.split_once('/').map_or((text, None), |(name, port)| (name, Some(port.trim())));
    match plan.node(name.trim()) {
        Some(node @ NodeRef::Switch(_)) => match port {
            None | Some("0") => Ok(PortRef { node, port: 0 }),
            Some(port) => Err(format!(
                "sm: {text:?}: port {port} of a switch has a link; the subnet manager of a switch is at port 0, as in {name:?}"
            )),
        },
        _ => plan.port(text).map_err(|e| format!("sm: {e}")),
    }
}
