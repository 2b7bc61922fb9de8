//! Which logical units an initiator sees, by number; logical unit numbers on the wire. SAM-5 §4.7, SPC-4 §6.33.
//!
//! Numbers below 256 travel in peripheral device addressing, larger ones in flat space addressing; both are understood for
//! every number they can say. The REPORT LUNS well-known logical unit is always there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{NexusInner, Target};
use crate::lock;
use crate::lun::LogicalUnit;
use crate::sense::{Asc, Sense};

/// Largest logical unit number: flat space addressing has 14 bits.
pub const MAX_LUN: u16 = 0x3fff;

/// REPORT LUNS well-known logical unit: extended addressing C1h 01h.
const WELL_KNOWN: u64 = 0xc101 << 48;
/// Peripheral device addressing has 8 bits.
const PERIPHERAL_MAX: u16 = 0xff;
const FLAT: u64 = 0x4000;

/// What a logical unit number names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lun {
    Unit(u16),
    WellKnown,
    /// In a form that this device does not use.
    Unknown,
}

impl Lun {
    /// Of the 8 bytes of a command, most significant first.
    pub(crate) fn parse(wire: u64) -> Self {
        let (first, rest) = ((wire >> 48) as u16, wire << 16);
        match first >> 14 {
            // Peripheral device addressing on bus 0.
            0 if first >> 8 == 0 && rest == 0 => Self::Unit(first),
            1 if rest == 0 => Self::Unit(first & MAX_LUN),
            _ if wire == WELL_KNOWN => Self::WellKnown,
            _ => Self::Unknown,
        }
    }

    fn wire(number: u16) -> u64 {
        if number <= PERIPHERAL_MAX { u64::from(number) << 48 } else { (FLAT | u64::from(number)) << 48 }
    }
}

/// Why a map cannot take a logical unit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The number is taken.
    #[error("LUN {0} is described twice")]
    Taken(u16),
    /// The number cannot travel.
    #[error("LUN {0} is over {MAX_LUN}, the most that flat space addressing can say (SAM-5 §4.7.7.3)")]
    TooLarge(u16),
}

/// The logical units that some initiators see.
pub struct LunMap {
    target: Arc<Target>,
    units: Mutex<BTreeMap<u16, Arc<LogicalUnit>>>,
}

impl LunMap {
    pub(super) fn new(target: Arc<Target>) -> Arc<Self> {
        Arc::new(Self { target, units: Mutex::default() })
    }

    /// The device it belongs to.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Adds a logical unit; nexuses learn of it by REPORTED LUNS DATA HAS CHANGED.
    ///
    /// # Errors
    /// The number is taken, or over [`MAX_LUN`].
    pub fn add(self: &Arc<Self>, number: u16, unit: Arc<LogicalUnit>) -> Result<(), MapError> {
        if number > MAX_LUN {
            return Err(MapError::TooLarge(number));
        }
        let mut units = lock(&self.units);
        if units.contains_key(&number) {
            return Err(MapError::Taken(number));
        }
        units.insert(number, unit);
        drop(units);
        self.changed(|_| {});
        Ok(())
    }

    /// Takes a logical unit away: commands that it has go on, new ones are refused.
    pub fn remove(self: &Arc<Self>, number: u16) -> Option<Arc<LogicalUnit>> {
        let removed = lock(&self.units).remove(&number);
        if removed.is_some() {
            self.changed(|nexus| nexus.forget_lun(number));
        }
        removed
    }

    /// A logical unit.
    pub fn get(&self, number: u16) -> Option<Arc<LogicalUnit>> {
        lock(&self.units).get(&number).cloned()
    }

    /// Every logical unit.
    pub fn units(&self) -> Vec<Arc<LogicalUnit>> {
        lock(&self.units).values().cloned().collect()
    }

    fn changed(self: &Arc<Self>, also: impl Fn(&NexusInner)) {
        self.target.tell(Asc::REPORTED_LUNS_CHANGED, |nexus| {
            let ours = Arc::ptr_eq(&nexus.map, self);
            if ours {
                also(nexus);
            }
            ours
        });
    }

    /// Parameter data of REPORT LUNS, whole.
    pub(crate) fn report(&self, select: u8) -> Result<Vec<u8>, Sense> {
        let (units, well_known) = match select {
            0 => (true, false),
            1 => (false, true),
            2 => (true, true),
            _ => return Err(Sense::cdb_field(2)),
        };
        let mut list = Vec::new();
        if units {
            list.extend(lock(&self.units).keys().flat_map(|&number| Lun::wire(number).to_be_bytes()));
        }
        if well_known {
            list.extend(WELL_KNOWN.to_be_bytes());
        }
        let mut data = (list.len() as u32).to_be_bytes().to_vec();
        data.extend([0; 4]);
        data.extend(list);
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sam() {
        assert_eq!(Lun::parse(0), Lun::Unit(0));
        assert_eq!(Lun::parse(0x0007 << 48), Lun::Unit(7));
        assert_eq!(Lun::parse(0x4007 << 48), Lun::Unit(7));
        assert_eq!(Lun::parse(0x7fff << 48), Lun::Unit(0x3fff));
        assert_eq!(Lun::parse(0xc101 << 48), Lun::WellKnown);
        assert_eq!(Lun::parse(0x0107 << 48), Lun::Unknown, "bus 1");
        assert_eq!(Lun::parse(0x0007_0001 << 32), Lun::Unknown, "a second level");
        assert_eq!((Lun::wire(255), Lun::wire(256)), (0x00ff << 48, 0x4100 << 48));
    }
}
