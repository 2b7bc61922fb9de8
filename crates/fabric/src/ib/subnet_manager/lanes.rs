//! Which lane a service level takes, and how lanes share a link: the SLtoVL and arbitration tables of every port.
//!
//! Read IBTA §7.6.6 (service levels to lanes), §7.6.9 (arbitration) and §14.2.5.8 to §14.2.5.9 (the attributes) first. Without
//! [`LaneTables`] service levels share the lanes of each link evenly. With them every link gets the same tables: one that has fewer
//! lanes takes a lane modulo their number, so that no service level is without one.

use everywire_wire::Guid;
use everywire_wire::smp::codes::{capability, vls};
use everywire_wire::smp::{SlToVl, VlArbitration, VlWeight, attribute};

use super::Sm;
use super::inventory::Port;
use super::requests::Path;

/// The most entries of an arbitration table.
pub const MAX_WEIGHTS: usize = 64;
/// The lane of subnet management, which as the lane of a service level drops its packets.
pub const DROPS: u8 = 15;
/// Of each data lane in the low-priority table, in units of 64 bytes: enough for the largest packet.
const VL_WEIGHT: u8 = 72;
/// Entries of a block of an arbitration table.
const BLOCK: usize = 32;
/// The first blocks of the two tables, as the attribute modifier has them.
const LOW: u32 = 1;
const HIGH: u32 = 3;

/// What an administrator wants of lanes, for all links alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaneTables {
    /// The data lane, 0 to 14, of each service level; [`DROPS`] drops its packets.
    pub sl2vl: [u8; 16],
    /// The high-priority table, at most [`MAX_WEIGHTS`] entries; weights count 64 bytes.
    pub high: Vec<VlWeight>,
    /// The low-priority table; every lane evenly if there is none.
    pub low: Option<Vec<VlWeight>>,
    /// Units of 4096 bytes of high priority until low priority has a chance; 0 for one packet, 255 for never.
    pub high_limit: u8,
}

impl LaneTables {
    /// The first service level whose packets would wait for ever, since its lane has no weight in either table.
    pub fn starved(&self) -> Option<u8> {
        let low = self.low.as_ref()?;
        let weighted = |vl| self.high.iter().chain(low).any(|entry| entry.vl == vl && entry.weight > 0);
        (0..16u8).find(|sl| {
            let vl = self.sl2vl[usize::from(*sl)];
            vl != DROPS && !weighted(vl)
        })
    }
}

/// A lane on a link that has so many.
fn fold(vl: u8, lanes: u8) -> u8 {
    if vl == DROPS { DROPS } else { vl % lanes }
}

fn even(lanes: u8) -> Vec<VlWeight> {
    (0..lanes).map(|vl| VlWeight { vl, weight: VL_WEIGHT, ..VlWeight::default() }).collect()
}

impl Sm {
    /// Writes the tables of a port that has lanes to choose from.
    pub(super) fn set_lanes(&mut self, node: Guid, number: u8, port: &Port, inputs: &[u8]) {
        let peer = port.peer.and_then(|(node, number)| self.known.port(node, number));
        let code = port.info.vl_cap.min(peer.map_or(1, |peer| peer.info.vl_cap));
        let lanes = vls::count(code).max(1);
        if port.info.vl_cap <= 1 {
            return;
        }
        let tables = self.config.lanes.clone();
        if port.info.capability_mask & capability::SL_MAPPING != 0 || inputs.len() > 1 {
            let mut data = [0; 64];
            let vl = |sl: usize| tables.as_ref().map_or(sl as u8 % lanes, |of| fold(of.sl2vl[sl], lanes));
            SlToVl::new(std::array::from_fn(vl)).emit(&mut data);
            for input in inputs {
                let modifier = u32::from(*input) << 8 | u32::from(number);
                self.put(node, number, &port.path, attribute::SL_TO_VL, modifier, data);
            }
        }
        let at = (node, number);
        let caps = [port.info.vl_arbitration_low_cap, port.info.vl_arbitration_high_cap].map(usize::from);
        let Some(tables) = tables else {
            let low = &even(lanes)[..caps[0].min(lanes.into())];
            return self.set_weights(at, &port.path, LOW, low, caps[0].min(BLOCK));
        };
        let folded = |of: &[VlWeight]| -> Vec<VlWeight> {
            of.iter().map(|entry| VlWeight { vl: fold(entry.vl, lanes), ..*entry }).collect()
        };
        let low = tables.low.as_deref().map_or_else(|| even(lanes), folded);
        for (first, entries, cap) in [(LOW, low, caps[0]), (HIGH, folded(&tables.high), caps[1])] {
            if entries.len() > cap {
                let wants = entries.len();
                self.warn(format!(
                    "port {number} of {node} takes {cap} entries of lanes' weights, not {wants}"
                ));
            }
            self.set_weights(at, &port.path, first, &entries[..entries.len().min(cap)], cap);
        }
    }

    /// All blocks of a table with room for `cap` entries, so that nothing of another manager's stays.
    fn set_weights(&mut self, at: (Guid, u8), path: &Path, first: u32, entries: &[VlWeight], cap: usize) {
        for (number, start) in (0..cap.min(MAX_WEIGHTS)).step_by(BLOCK).enumerate() {
            let mut block = VlArbitration::default();
            let here = entries.iter().skip(start);
            block.entries.iter_mut().zip(here).for_each(|(to, from)| *to = *from);
            let mut data = [0; 64];
            block.emit(&mut data);
            let modifier = (first + number as u32) << 16 | u32::from(at.1);
            self.put(at.0, at.1, path, attribute::VL_ARBITRATION, modifier, data);
        }
    }
}
