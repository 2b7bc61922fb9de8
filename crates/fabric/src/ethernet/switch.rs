//! A learning switch: it learns where a source address sits, forwards to the port it learned, and floods the rest.
//!
//! Read IEEE 802.1Q clauses 8.6 (forwarding) and 8.8 (the filtering database) first. The table is bounded: while it is
//! full of live entries, unknown addresses are not learned, so a flood of forged sources costs no memory. Each VLAN learns by itself
//! (independent learning); tags pass through unchanged and ports have no VLAN membership. No spanning tree.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Addresses, Mac};
use crate::clock::SimTime;

/// The bounds of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchConfig {
    /// The most addresses in the table.
    pub table_capacity: usize,
    /// An address not heard for this long is forgotten (IEEE 802.1Q table 8-6: 300 s).
    pub ageing: Duration,
    /// From the arrival of a frame to its being queued for sending.
    pub latency: Duration,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        SwitchConfig {
            table_capacity: 1024,
            ageing: Duration::from_secs(300),
            latency: Duration::from_nanos(500),
        }
    }
}

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forward {
    /// Out of this port.
    To(usize),
    /// Out of every port but the one it came in by.
    Flood,
    /// Nowhere: the destination is behind the port it came from, or the frame must not be forwarded.
    Drop,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    port: usize,
    heard: SimTime,
}

/// The forwarding of one switch; its ports are numbered from zero by the caller.
#[derive(Debug, Clone)]
pub struct LearningSwitch {
    config: SwitchConfig,
    table: BTreeMap<(u16, Mac), Entry>,
    flooded: u64,
    not_learned: u64,
}

impl LearningSwitch {
    /// A switch with an empty table.
    pub fn new(config: SwitchConfig) -> Self {
        LearningSwitch { config, table: BTreeMap::new(), flooded: 0, not_learned: 0 }
    }

    /// The bounds.
    pub fn config(&self) -> &SwitchConfig {
        &self.config
    }

    /// Learns from a frame that came in by `port` at `now`, and says where it goes.
    pub fn forward(&mut self, now: SimTime, port: usize, frame: &[u8]) -> Forward {
        let Some(addresses) = Addresses::of(frame) else {
            return Forward::Drop;
        };
        if is_group(addresses.source) {
            return Forward::Drop; // IEEE 802.3 §3.2.3: a source is an individual address
        }
        self.learn(now, port, addresses.vlan, addresses.source);
        // IEEE 802.1Q table 8-1: reserved addresses stay on their link.
        if addresses.destination[..5] == [0x01, 0x80, 0xc2, 0x00, 0x00] && addresses.destination[5] <= 0x0f {
            return Forward::Drop;
        }
        match self.lookup(now, addresses.vlan, addresses.destination) {
            Some(to) if to == port => Forward::Drop,
            Some(to) => Forward::To(to),
            None => {
                self.flooded += 1;
                Forward::Flood
            }
        }
    }

    /// Forgets everything learned behind `port`, as when its link goes down.
    pub fn forget_port(&mut self, port: usize) {
        self.table.retain(|_, entry| entry.port != port);
    }

    /// Addresses in the table, aged ones that nobody asked for since included.
    pub fn table_len(&self) -> usize {
        self.table.len()
    }

    /// Frames flooded so far.
    pub fn flooded(&self) -> u64 {
        self.flooded
    }

    /// Source addresses not learned because the table was full.
    pub fn not_learned(&self) -> u64 {
        self.not_learned
    }

    fn learn(&mut self, now: SimTime, port: usize, vlan: u16, source: Mac) {
        let entry = Entry { port, heard: now };
        if let Some(known) = self.table.get_mut(&(vlan, source)) {
            *known = entry;
            return;
        }
        if self.table.len() >= self.config.table_capacity {
            let ageing = self.config.ageing;
            self.table.retain(|_, e| now.since(e.heard) < ageing);
        }
        if self.table.len() < self.config.table_capacity {
            self.table.insert((vlan, source), entry);
        } else {
            self.not_learned += 1;
        }
    }

    fn lookup(&mut self, now: SimTime, vlan: u16, destination: Mac) -> Option<usize> {
        if is_group(destination) {
            return None;
        }
        let entry = *self.table.get(&(vlan, destination))?;
        if now.since(entry.heard) >= self.config.ageing {
            self.table.remove(&(vlan, destination));
            return None;
        }
        Some(entry.port)
    }
}

fn is_group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 0xa];
    const B: Mac = [2, 0, 0, 0, 0, 0xb];
    const BROADCAST: Mac = [0xff; 6];

    fn frame(destination: Mac, source: Mac, vlan: Option<u16>) -> Vec<u8> {
        let mut f = [destination, source].concat();
        if let Some(vid) = vlan {
            f.extend([0x81, 0x00]);
            f.extend(vid.to_be_bytes());
        }
        f.extend([0x08, 0x00]);
        f.resize(60, 0);
        f
    }

    fn secs(s: u64) -> SimTime {
        SimTime::ZERO.after(Duration::from_secs(s))
    }

    #[test]
    fn it_floods_until_it_has_heard_the_destination() {
        let mut switch = LearningSwitch::new(SwitchConfig::default());
        assert_eq!(switch.forward(secs(0), 0, &frame(B, A, None)), Forward::Flood);
        assert_eq!(switch.forward(secs(0), 1, &frame(A, B, None)), Forward::To(0));
        assert_eq!(switch.forward(secs(0), 0, &frame(B, A, None)), Forward::To(1));
        assert_eq!(switch.forward(secs(0), 0, &frame(BROADCAST, A, None)), Forward::Flood);
        // B moves to port 2.
        assert_eq!(switch.forward(secs(1), 2, &frame(BROADCAST, B, None)), Forward::Flood);
        assert_eq!(switch.forward(secs(1), 0, &frame(B, A, None)), Forward::To(2));
        // A destination behind the port it came from.
        assert_eq!(switch.forward(secs(1), 2, &frame(B, A, None)), Forward::Drop);
    }

    #[test]
    fn entries_age_and_vlans_are_apart() {
        let mut switch = LearningSwitch::new(SwitchConfig::default());
        switch.forward(secs(0), 0, &frame(BROADCAST, A, Some(5)));
        assert_eq!(switch.forward(secs(1), 1, &frame(A, B, Some(5))), Forward::To(0));
        assert_eq!(switch.forward(secs(1), 1, &frame(A, B, Some(6))), Forward::Flood);
        assert_eq!(switch.forward(secs(1), 1, &frame(A, B, None)), Forward::Flood);
        // Priority bits are not part of the VID.
        assert_eq!(switch.forward(secs(1), 1, &frame(A, B, Some(0xe005))), Forward::To(0));
        assert_eq!(switch.forward(secs(300), 1, &frame(A, B, Some(5))), Forward::Flood);
    }

    #[test]
    fn the_table_is_bounded_and_makes_room_by_age_only() {
        let config = SwitchConfig { table_capacity: 4, ..SwitchConfig::default() };
        let mut switch = LearningSwitch::new(config);
        for i in 0..100 {
            switch.forward(secs(0), 0, &frame(BROADCAST, [2, 0, 0, 0, 1, i], None));
        }
        assert_eq!(switch.table_len(), 4);
        assert_eq!(switch.not_learned(), 96);
        switch.forward(secs(299), 1, &frame(BROADCAST, A, None));
        assert_eq!(switch.forward(secs(299), 2, &frame(A, B, None)), Forward::Flood);
        switch.forward(secs(300), 1, &frame(BROADCAST, A, None));
        assert_eq!(switch.forward(secs(300), 2, &frame(A, B, None)), Forward::To(1));
    }

    #[test]
    fn reserved_destinations_group_sources_and_runts_are_dropped() {
        let mut switch = LearningSwitch::new(SwitchConfig::default());
        let pause = [0x01, 0x80, 0xc2, 0, 0, 1];
        assert_eq!(switch.forward(secs(0), 0, &frame(pause, A, None)), Forward::Drop);
        assert_eq!(switch.forward(secs(0), 0, &frame(A, BROADCAST, None)), Forward::Drop);
        assert_eq!(switch.forward(secs(0), 0, &[0; 13]), Forward::Drop);
        assert_eq!(switch.table_len(), 1);
        switch.forget_port(0);
        assert_eq!(switch.table_len(), 0);
    }
}
