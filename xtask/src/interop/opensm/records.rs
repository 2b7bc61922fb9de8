//! What saquery prints of a subnet, record by record: the same whoever answers, our administrator or OpenSM's.
//!
//! libumad2sim cuts an answer to one MAD and pads it with zeros, so nearly every query names one record by its key. The keys are
//! those of `fabric show`: every node, port, link and path. What a manager chooses for itself is left out by name.

use std::collections::BTreeMap;

use super::agree::lid;
use super::shown::Shown;
use super::tools::Tools;

/// The fields of a record: name and value.
pub type Record = Vec<(String, String)>;

/// What was asked, and the records of the answer.
pub type Answers = BTreeMap<String, Vec<Record>>;

/// Fields that say who answers or what it has chosen, by the beginning of their names: timers and limits that the standard leaves to
/// managers, what they count, and the port of a node that is nearest to them.
const CHOSEN: &[&str] = &[
    "ActCount",
    "CapMask",
    "capability_mask",
    "Capability mask",
    "DefaultMulticast",
    "DiagCode",
    "HoqLife",
    "LifeTimeValue",
    "LocalPort",
    "MastSMSL",
    "McastFdbTop",
    "MkeyLeasePeriod",
    "MulticastFDBTop",
    "pkt_life",
    "port_num",
    "preference",
    "Response time",
    "SMLid",
    "SubnetTimeout",
    "Trap",
    "VLHighLimit",
    "VLStallCount",
];

/// Records of saquery's output; those that are all zero are the padding of a MAD.
pub fn records(text: &str) -> Vec<Record> {
    let mut all: Vec<Record> = Vec::new();
    for line in text.lines() {
        if line.ends_with("dump:") && !line.starts_with(char::is_whitespace) {
            all.push(Vec::new());
        } else if let Some((name, value)) = line.trim().split_once("..") {
            let record = all.last_mut();
            let (name, value) = (name.trim(), value.trim_start_matches(['.', ':']).trim());
            let name = name.trim_end_matches(':');
            if !CHOSEN.iter().any(|chosen| name.starts_with(chosen))
                && let Some(record) = record
            {
                record.push((name.to_owned(), value.to_owned()));
            }
        } else if let Some(record) = all.last_mut() {
            // A line of a table, or a capability by name.
            record.push((String::new(), line.trim().to_owned()));
        }
    }
    let is_zero = |value: &str| value.trim_start_matches("0x").chars().all(|c| "0: ".contains(c));
    all.retain(|record| record.iter().any(|(name, value)| !name.is_empty() && !is_zero(value)));
    all
}

/// Asks whatever is the subnet's administrator now for every record that there is to be, from `host`.
pub fn ask(tools: &Tools, host: &str, shown: &Shown) -> Result<Answers, String> {
    let mut answers = Answers::new();
    let mut one = |args: &[&str]| -> Result<(), String> {
        let text = tools.run(host, "saquery", args)?;
        let found = records(&text);
        // The first one: padding is behind it.
        let first = found.into_iter().take(1).collect();
        answers.insert(args.join(" "), first);
        Ok(())
    };
    for node in &shown.nodes {
        let lid = lid(node)?;
        one(&["NR", &lid])?;
        one(&["GIR", &format!("{lid}/0")])?;
        if node.switch {
            one(&["SWIR", &lid])?;
            one(&["LFTR", &format!("{lid}/0")])?;
            one(&["PIR", &format!("{lid}/0")])?;
        }
    }
    for link in shown.links.iter().filter(|link| link.is_up()) {
        for end in &link.ends {
            let lid = shown.node(&end.node)?.lid(end.port);
            let port = format!("{lid}/{}", end.port);
            one(&["PIR", &port])?;
            one(&["LR", &port])?;
            if !shown.node(&end.node)?.switch {
                // OpenSM shows them to who is trusted.
                one(&["--smkey", "1", "PKTR", &format!("{port}/0")])?;
            }
        }
    }
    let hosts: Vec<u16> = shown.hosts().flat_map(|node| &node.end_ports).map(|port| port.lid).collect();
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            one(&["-p", "--src-to-dst", &format!("{from}:{to}")])?;
        }
    }
    // The broadcast group of IPoIB is there from the start; whoever is not trusted sees no members.
    for args in [&["-g"][..], &["-m"], &["-c"]] {
        one(args)?;
    }
    let managers = tools.run(host, "saquery", &["-s"])?;
    let mut ports: Vec<Record> = records(&managers);
    ports.iter_mut().for_each(|port| port.retain(|(name, _)| name == "EndPortLid" || name == "PortNum"));
    ports.sort();
    answers.insert("-s".into(), ports);
    Ok(answers)
}

/// Fails with every field that two administrators say differently.
pub fn same(ours: &Answers, theirs: &Answers) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (query, records) in ours {
        let other = theirs.get(query).map_or(&[][..], Vec::as_slice);
        if records.len() != other.len() {
            wrong.push(format!("saquery {query}: ours has {records:?}, OpenSM's {other:?}"));
        }
        for (own, other) in records.iter().flatten().zip(other.iter().flatten()) {
            if own != other {
                wrong.push(format!("saquery {query}: ours has {own:?}, OpenSM's {other:?}"));
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
