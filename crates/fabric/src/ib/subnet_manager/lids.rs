//! LIDs: every end port keeps the one it had, new ones get the lowest that are free.
//!
//! Read IBTA §4.1.3 and §7.11.1 (LMC) first. A LID that this manager once gave stays with its port GUID for as long as the
//! manager runs, seen or not; a LID that a port brings along from another manager is kept where it is free and aligned.

use std::collections::{BTreeMap, BTreeSet};

use everywire_wire::{Guid, Lid};

use super::inventory::Inventory;

/// The highest unicast LID.
const TOP: u16 = 0xbfff;

/// Ranges of LIDs that are taken, by first LID.
#[derive(Debug, Default)]
struct Taken(BTreeMap<u16, u16>);

impl Taken {
    fn is_free(&self, first: u16, count: u16) -> bool {
        let end = first + (count - 1);
        self.0.range(..=end).next_back().is_none_or(|(at, n)| at + (n - 1) < first)
    }

    /// The lowest aligned range from `from` on.
    fn lowest(&self, from: u16, count: u16) -> Option<u16> {
        let mut at = from.max(1).checked_next_multiple_of(count)?;
        while at <= TOP - (count - 1) {
            let end = at + (count - 1);
            match self.0.range(..=end).next_back() {
                Some((first, n)) if first + (n - 1) >= at => {
                    at = (first + n).checked_next_multiple_of(count)?;
                }
                _ => return Some(at),
            }
        }
        None
    }
}

/// Gives every end port a LID. Returns the GUIDs that none is left for.
///
/// LIDs of ports that are not in the subnet at present are given away last, when nothing else is free.
pub(super) fn assign(inventory: &Inventory, lids: &mut BTreeMap<Guid, Lid>, lmc: u8) -> Vec<Guid> {
    let mut wanted: Vec<(Guid, u16, Lid)> = Vec::new();
    for (node, _, port) in inventory.end_ports() {
        let count = if inventory.nodes[&node].is_switch() { 1 } else { 1 << lmc };
        wanted.push((port.guid, count, port.info.lid));
    }
    let present: BTreeSet<Guid> = wanted.iter().map(|(guid, ..)| *guid).collect();
    let mut taken = Taken::default();
    let fits = |taken: &Taken, lid: Lid, count: u16| {
        lid.0 != 0 && lid.0 <= TOP - (count - 1) && lid.0.is_multiple_of(count) && taken.is_free(lid.0, count)
    };
    // First those that had one from us, then those that bring one along.
    let mut open = Vec::new();
    for &(guid, count, has) in &wanted {
        match lids.get(&guid) {
            Some(&lid) if fits(&taken, lid, count) => _ = taken.0.insert(lid.0, count),
            _ => open.push((guid, count, has)),
        }
    }
    for (guid, lid) in lids.iter().filter(|(guid, _)| !present.contains(guid)) {
        let count = 1 << lmc;
        let count = if lid.0.is_multiple_of(count) { count } else { 1 };
        if fits(&taken, *lid, count) {
            taken.0.insert(lid.0, count);
            let _ = guid;
        }
    }
    open.retain(|&(guid, count, has)| {
        let keeps = fits(&taken, has, count);
        if keeps {
            taken.0.insert(has.0, count);
            lids.insert(guid, has);
        }
        !keeps
    });
    give_free(&mut taken, open, lids, &present)
}

fn give_free(
    taken: &mut Taken,
    open: Vec<(Guid, u16, Lid)>,
    lids: &mut BTreeMap<Guid, Lid>,
    present: &BTreeSet<Guid>,
) -> Vec<Guid> {
    let (mut without, mut from) = (Vec::new(), BTreeMap::new());
    for (guid, count, _) in open {
        let start = from.entry(count).or_insert(1u16);
        let mut lid = taken.lowest(*start, count);
        if lid.is_none() && lids.keys().any(|guid| !present.contains(guid)) {
            // Those who are away lose theirs.
            let away: Vec<Guid> = lids.keys().copied().filter(|guid| !present.contains(guid)).collect();
            for guid in away {
                if let Some(lid) = lids.remove(&guid) {
                    taken.0.remove(&lid.0);
                }
            }
            lid = taken.lowest(1, count);
        }
        match lid {
            Some(lid) => {
                taken.0.insert(lid, count);
                lids.insert(guid, Lid(lid));
                *start = lid;
            }
            None => without.push(guid),
        }
    }
    without
}
