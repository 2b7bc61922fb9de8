//! Service levels and lanes: `smpquery sl2vl` and `vlarb` at every port say what the topology's `[qos]` says.
//!
//! The subnet manager is ours. Links of one lane have no choice: every service level is on lane 0, and there is nothing to
//! arbitrate (IBTA §7.6.6, §7.6.9).

use std::path::Path;

use super::agree::same;
use super::fabric::Fabric;
use super::tools::Tools;
use crate::shell;

/// It has a `[qos]`, and one link of one lane, whose ends are [`ONE_LANE`].
const TOPOLOGY: &str = "written-out";
const ONE_LANE: [(&str, u8); 2] = [("storage", 2), ("s2", 2)];
/// The node of the tools.
const TOOLS: &str = "h2";

/// A port's tables: lane by service level; lane and weight of the entries that have one, low priority and high.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lanes {
    pub of_levels: Vec<u8>,
    pub weights: [Vec<(u8, u8)>; 2],
}

/// Both tables of every port with a cable.
pub fn as_written(program: &Path, folder: &Path) -> Result<(), String> {
    let fabric = Fabric::run(program, folder, TOPOLOGY, &[])?;
    let (shown, tools) = (fabric.show_active()?, Tools::new(&fabric.name, folder)?);
    let file = shell::root().join(format!("examples/{TOPOLOGY}.toml"));
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let (written, mut ports) = (wanted(&text)?, 0);
    for end in shown.links.iter().filter(|link| link.is_up()).flat_map(|link| &link.ends) {
        // smpquery asks an adapter's port by its own LID, and leaves the number out.
        let (lid, port) = (shown.node(&end.node)?.lid(end.port).to_string(), end.port.to_string());
        let what = format!("of {}/{port}", end.node);
        let has_choice = !ONE_LANE.contains(&(end.node.as_str(), end.port));
        let lanes = if has_choice { written.of_levels.clone() } else { vec![0; 16] };
        let mapped = tools.run(TOOLS, "smpquery", &["sl2vl", &lid, &port])?;
        let inputs = levels(&mapped)?;
        for said in &inputs {
            same(&format!("smpquery sl2vl {what}"), said, &lanes)?;
        }
        // A switch has a table for each port that a packet may have come in by (IBTA §14.2.5.8), port 0 among them.
        let node = shown.node(&end.node)?;
        let tables = if node.switch { usize::from(node.ports) + 1 } else { 1 };
        same(&format!("tables of sl2vl {what}"), &inputs.len(), &tables)?;
        if has_choice {
            let shares = tools.run(TOOLS, "smpquery", &["vlarb", &lid, &port])?;
            same(&format!("smpquery vlarb {what}"), &weights(&shares)?, &written.weights)?;
        }
        ports += 1;
    }
    if ports < 12 { Err(format!("{ports} ports of 12 have been asked")) } else { Ok(()) }
}

/// What a topology's `[qos]` says.
fn wanted(text: &str) -> Result<Lanes, String> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        let value = line.and_then(|line| line.split('#').next());
        value.map(|v| v.trim().trim_matches(['[', ']', '"'])).ok_or_else(|| format!("no {key} in [qos]"))
    };
    let broken = |_: std::num::ParseIntError| "a number of [qos]".to_owned();
    let of_levels = value("sl2vl")?.split(',').map(|vl| vl.trim().parse::<u8>().map_err(broken));
    let shares = |key: &str| -> Result<Vec<(u8, u8)>, String> {
        let entries = value(key)?.split(',').filter_map(|entry| entry.split_once(':'));
        entries.map(|(vl, w)| Ok((vl.parse().map_err(broken)?, w.parse().map_err(broken)?))).collect()
    };
    Ok(Lanes {
        of_levels: of_levels.collect::<Result<_, _>>()?,
        weights: [shares("vlarb_low")?, shares("vlarb_high")?],
    })
}

/// Cells of a line of smpquery: `name: | 0| 1|`.
fn cells(line: &str) -> Option<Vec<u8>> {
    let cell = |text: &str| {
        let text = text.trim();
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u8::from_str_radix(hex, 16).ok())
    };
    line.split_once('|')?.1.trim_end().trim_end_matches('|').split('|').map(cell).collect()
}

/// `smpquery sl2vl`: a table for each input port.
fn levels(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let rows = text.lines().filter(|line| line.starts_with("ports: in"));
    rows.map(|line| cells(line).ok_or_else(|| format!("smpquery sl2vl: {line}"))).collect()
}

/// `smpquery vlarb`: low priority, then high. Entries of no weight are left out (IBTA §7.6.9.2).
fn weights(text: &str) -> Result<[Vec<(u8, u8)>; 2], String> {
    let mut tables = [Vec::new(), Vec::new()];
    let (mut table, mut lanes) = (None, Vec::new());
    for line in text.lines() {
        let broken = || format!("smpquery vlarb: {line}");
        if line.contains("priority VL Arbitration Table") {
            table = Some(usize::from(line.contains("High")));
        } else if line.starts_with("VL ") {
            lanes = cells(line).ok_or_else(broken)?;
        } else if line.starts_with("WEIGHT") {
            let row = cells(line).ok_or_else(broken)?;
            let entries = lanes.iter().copied().zip(row).filter(|(_, weight)| *weight > 0);
            tables[table.ok_or_else(broken)?].extend(entries);
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as smpquery of infiniband-diags 44 prints them, of four entries instead of 32.
    #[test]
    fn smpquerys_tables_are_read() {
        let said = "# SL2VL table: Lid 6\n#                 SL: | 0| 1| 2| 3|\n\
                    ports: in  0, out  1: | 0| 1| 2| 3|\nports: in  1, out  1: | 0| 1| 2|15|\n";
        assert_eq!(levels(said).unwrap(), [[0, 1, 2, 3], [0, 1, 2, 15]]);
        let said = "# VLArbitration tables: Lid 1 port 1 LowCap 64 HighCap 64\n# Low priority VL Arbitration Table:\n\
                    VL    : |0x0 |0x1 |0x2 |0x0 |\nWEIGHT: |0x40|0x80|0xC0|0x0 |\n\n\
                    VL    : |0x0 |0x1 |\nWEIGHT: |0x0 |0x1 |\n# High priority VL Arbitration Table:\n\
                    VL    : |0x3 |0x0 |\nWEIGHT: |0x40|0x0 |\n";
        assert_eq!(weights(said).unwrap(), [vec![(0, 64), (1, 128), (2, 192), (1, 1)], vec![(3, 64)]]);
        assert!(weights("WEIGHT: |0x40|0x0 |\n").is_err());
    }

    #[test]
    fn a_topologys_qos_is_read() {
        let text = "[qos]\nsl2vl = [0, 1, 15]\nvlarb_high = \"3:64\"   # first\nvlarb_low = \"0:64,1:128\"\n";
        let lanes = wanted(text).unwrap();
        assert_eq!(lanes.of_levels, [0, 1, 15]);
        assert_eq!(lanes.weights, [vec![(0, 64), (1, 128)], vec![(3, 64)]]);
    }
}
