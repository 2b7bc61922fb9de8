//! Walking a subnet by its switches' forwarding tables: how long the ways are, and over which cables they go.

use std::collections::BTreeMap;

use super::parse::{Cable, End, Subnet, cable};

type Tables = BTreeMap<u64, BTreeMap<u16, u8>>;

/// The cables from one host to another, in order, by the tables; an error names where it goes wrong.
pub fn way(subnet: &Subnet, tables: &Tables, from: u64, to: u64) -> Result<Vec<Cable>, String> {
    let peer = |end: End| {
        subnet.cables.iter().find_map(|&(a, b)| match end {
            e if e == a => Some(b),
            e if e == b => Some(a),
            _ => None,
        })
    };
    let lid = subnet.lids.range((to, 0)..=(to, u8::MAX)).map(|(_, lid)| *lid).next().unwrap_or(0);
    let first = subnet.cables.iter().flat_map(|&(a, b)| [a, b]).find(|end| end.0 == from);
    let mut out = first.ok_or_else(|| format!("{from:#x} has no cable"))?;
    let mut cables = Vec::new();
    loop {
        let next = peer(out).ok_or_else(|| format!("port {} of {:#x} has no cable", out.1, out.0))?;
        cables.push(cable(out, next));
        if next.0 == to {
            return Ok(cables);
        }
        if cables.len() > subnet.nodes.len() {
            return Err(format!("the way from {from:#x} to {to:#x} goes in circles"));
        }
        let table = tables.get(&next.0).ok_or_else(|| format!("{:#x} has no table", next.0))?;
        let port = table.get(&lid).ok_or_else(|| format!("{:#x} has no port for LID {lid}", next.0))?;
        out = (next.0, *port);
    }
}

/// How many cables are between every two hosts, by their names.
pub fn lengths(subnet: &Subnet, tables: &Tables) -> Result<BTreeMap<(String, String), usize>, String> {
    let mut lengths = BTreeMap::new();
    let hosts = || subnet.nodes.iter().filter(|n| !n.switch);
    for from in hosts() {
        for to in hosts().filter(|to| to.guid != from.guid) {
            let cables = way(subnet, tables, from.guid, to.guid)
                .map_err(|why| format!("from {} to {}: {why}", from.name, to.name))?;
            lengths.insert((from.name.clone(), to.name.clone()), cables.len());
        }
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::super::parse::Node;
    use super::*;

    #[test]
    fn a_way_is_what_the_tables_say() {
        let node = |guid, switch| Node { guid, switch, name: format!("n{guid}") };
        let mut subnet = Subnet {
            nodes: [node(1, false), node(2, false), node(10, true), node(11, true)].into(),
            cables: [((1, 1), (10, 1)), ((2, 1), (11, 1)), ((10, 3), (11, 3))].into(),
            lids: [((1, 1), 5), ((2, 1), 6), ((10, 0), 7), ((11, 0), 8)].into(),
        };
        let mut tables: Tables = [(10, [(5, 1), (6, 3)].into()), (11, [(5, 3), (6, 1)].into())].into();
        assert_eq!(
            way(&subnet, &tables, 1, 2).unwrap(),
            [((1, 1), (10, 1)), ((10, 3), (11, 3)), ((2, 1), (11, 1))]
        );
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(lengths(&subnet, &tables).unwrap(), [(pair("n1", "n2"), 3), (pair("n2", "n1"), 3)].into());
        tables.insert(11, [(5, 3), (6, 3)].into());
        assert!(way(&subnet, &tables, 1, 2).unwrap_err().contains("circles"));
        subnet.cables.remove(&((10, 3), (11, 3)));
        assert!(way(&subnet, &tables, 1, 2).unwrap_err().contains("no cable"));
    }
}
