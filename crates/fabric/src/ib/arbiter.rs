//! Which lane sends next: weighted round robin in two priorities.
//!
//! Read IBTA §7.6.9 first. The high-priority table is served while it has something to send, until its limit is used up;
//! then one low-priority packet has its chance. Weights count 64 bytes; a lane keeps its turn while weight is left, so a
//! packet may run over. Lane 15 is not arbitrated: it goes before all others. A lane that is in neither table never sends.

use everywire_wire::smp::VlWeight;

/// Entries of each table.
pub const ENTRIES: usize = 64;
/// Value of the high limit that never lets low priority in by itself.
const NO_LIMIT: u8 = 255;
/// Bytes of one unit of the high limit.
const LIMIT_UNIT: u32 = 4096;
/// Bytes of one unit of weight.
const WEIGHT_UNIT: u32 = 64;

/// One table and whose turn it is.
#[derive(Debug, Clone)]
struct Table {
    entries: Vec<VlWeight>,
    /// Lanes with some weight.
    lanes: u16,
    turn: usize,
    /// Units that the present turn has left.
    left: u32,
}

impl Table {
    fn new(entries: Vec<VlWeight>) -> Table {
        let mut table = Table { entries, lanes: 0, turn: 0, left: 0 };
        table.restart();
        table
    }

    fn restart(&mut self) {
        let weighted = self.entries.iter().filter(|e| e.weight > 0 && e.vl < 15);
        self.lanes = weighted.fold(0, |lanes, e| lanes | 1 << e.vl);
        (self.turn, self.left) = (0, self.entries.first().map_or(0, |e| e.weight.into()));
    }

    /// The lane whose turn it is among those that can send.
    fn choose(&mut self, ready: u16) -> Option<u8> {
        if self.lanes & ready == 0 {
            return None;
        }
        loop {
            let entry = self.entries[self.turn];
            if self.left > 0 && entry.vl < 15 && ready & 1 << entry.vl != 0 {
                return Some(entry.vl);
            }
            self.turn = if self.turn + 1 == self.entries.len() { 0 } else { self.turn + 1 };
            self.left = self.entries[self.turn].weight.into();
        }
    }

    fn used(&mut self, bytes: u32) {
        self.left = self.left.saturating_sub(bytes.div_ceil(WEIGHT_UNIT));
    }
}

/// The arbiter of a port.
#[derive(Debug, Clone)]
pub(super) struct Arbiter {
    high: Table,
    low: Table,
    limit: u8,
    /// Bytes of high priority since low priority last had a chance.
    high_bytes: u32,
}

impl Arbiter {
    /// Every lane has the same low priority: what a port does before it is told otherwise.
    pub fn new(vls: u8) -> Arbiter {
        let entry = |vl| VlWeight { vl, weight: NO_LIMIT, ..VlWeight::default() };
        let mut low: Vec<VlWeight> = (0..vls).map(entry).collect();
        low.resize(ENTRIES, VlWeight::default());
        let high = vec![VlWeight::default(); ENTRIES];
        Arbiter { high: Table::new(high), low: Table::new(low), limit: 0, high_bytes: 0 }
    }

    /// A table, to read.
    pub fn entries(&self, high: bool) -> &[VlWeight] {
        if high { &self.high.entries } else { &self.low.entries }
    }

    /// Writes entries of a table from `at` on; what is beyond its end is ignored.
    pub fn write(&mut self, high: bool, at: usize, entries: &[VlWeight]) {
        let table = if high { &mut self.high } else { &mut self.low };
        for (to, from) in table.entries.iter_mut().skip(at).zip(entries) {
            *to = *from;
        }
        table.restart();
    }

    /// PortInfo:VLHighLimit.
    pub fn set_limit(&mut self, limit: u8) {
        self.limit = limit;
    }

    /// The lane that sends a packet now, among those of `ready`, and that it does.
    #[inline]
    pub fn choose(&mut self, ready: u16, bytes_of: impl Fn(u8) -> u32) -> Option<u8> {
        let low_is_due = self.limit_is_reached() && self.low.lanes & ready != 0;
        if !low_is_due && let Some(vl) = self.high.choose(ready) {
            let bytes = bytes_of(vl);
            self.high.used(bytes);
            self.high_bytes = self.high_bytes.saturating_add(bytes);
            return Some(vl);
        }
        let vl = self.low.choose(ready)?;
        self.low.used(bytes_of(vl));
        self.high_bytes = 0;
        Some(vl)
    }

    /// A limit of zero lets one packet of high priority pass.
    fn limit_is_reached(&self) -> bool {
        match self.limit {
            NO_LIMIT => false,
            0 => self.high_bytes > 0,
            limit => self.high_bytes >= u32::from(limit) * LIMIT_UNIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(vl: u8, weight: u8) -> VlWeight {
        VlWeight { vl, weight, ..VlWeight::default() }
    }

    fn tables(high: &[VlWeight], low: &[VlWeight], limit: u8) -> Arbiter {
        let mut arbiter = Arbiter::new(4);
        let pad = |t: &[VlWeight]| {
            let mut t = t.to_vec();
            t.resize(ENTRIES, VlWeight::default());
            t
        };
        arbiter.write(true, 0, &pad(high));
        arbiter.write(false, 0, &pad(low));
        arbiter.set_limit(limit);
        arbiter
    }

    fn take(arbiter: &mut Arbiter, ready: u16, bytes: u32, n: usize) -> Vec<u8> {
        (0..n).map_while(|_| arbiter.choose(ready, |_| bytes)).collect()
    }

    #[test]
    fn weights_share_the_link() {
        let mut arbiter = tables(&[], &[weight(0, 3), weight(1, 1)], 0);
        assert_eq!(take(&mut arbiter, 0b11, 64, 8), [0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(take(&mut arbiter, 0b10, 64, 3), [1, 1, 1], "what others leave is used");
        // A packet may run over its turn's weight.
        let mut arbiter = tables(&[], &[weight(0, 1), weight(1, 1)], 0);
        assert_eq!(take(&mut arbiter, 0b11, 4096, 4), [0, 1, 0, 1]);
    }

    #[test]
    fn high_priority_yields_at_its_limit() {
        let mut arbiter = tables(&[weight(1, 255)], &[weight(0, 255)], 0);
        assert_eq!(take(&mut arbiter, 0b11, 64, 4), [1, 0, 1, 0], "limit 0: one packet");
        let mut arbiter = tables(&[weight(1, 255)], &[weight(0, 255)], 1);
        assert_eq!(take(&mut arbiter, 0b11, 2048, 6), [1, 1, 0, 1, 1, 0], "limit 1: 4096 bytes");
        let mut arbiter = tables(&[weight(1, 255)], &[weight(0, 255)], 255);
        assert_eq!(take(&mut arbiter, 0b11, 4096, 50), [1; 50], "limit 255: never");
        assert_eq!(take(&mut arbiter, 0b01, 64, 2), [0, 0]);
    }

    #[test]
    fn a_lane_without_weight_never_sends() {
        let mut arbiter = tables(&[], &[weight(0, 1), weight(2, 0)], 0);
        assert_eq!(take(&mut arbiter, 0b100, 64, 1), []);
        assert_eq!(take(&mut arbiter, 0, 64, 1), []);
    }
}
