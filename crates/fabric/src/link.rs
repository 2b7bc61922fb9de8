//! One direction of a link: serialisation at a bandwidth behind a bounded queue, propagation delay, and its faults.
//!
//! A frame waits for the frames before it, takes its length over the bandwidth to leave, travels for the delay, and
//! arrives in order unless a fault says otherwise. The queue is a drop-tail one, counted in bytes, as in a plain NIC or
//! switch port; lossless behaviour (PFC) is not modelled here.

use std::time::Duration;

use crate::clock::{SimTime, nanos};
use crate::faults::{DropCause, FaultSource, Faults};

/// Bytes that a frame occupies on the medium besides its own: preamble, start delimiter, FCS and inter-frame gap
/// (IEEE 802.3 clauses 3.1 and 4.4).
pub const MEDIUM_OVERHEAD: usize = 7 + 1 + 4 + 12;
/// An Ethernet header: two addresses and a type.
const ETH_HEADER: usize = 14;
/// An IEEE 802.1Q tag, which does not count against the MTU.
const VLAN_TAG: usize = 4;

/// The properties of a link, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkParams {
    /// Bits a second; zero stands for a link that takes no time to send.
    pub bandwidth: u64,
    /// Propagation delay.
    pub delay: Duration,
    /// The most bytes that may wait to be sent in one direction.
    pub queue_bytes: usize,
    /// The largest Ethernet payload (the IP MTU), in bytes.
    pub mtu: usize,
}

impl LinkParams {
    /// 25 Gbit/s, 1 µs, a 1 MiB queue, MTU 1500.
    pub const DEFAULT: LinkParams = LinkParams {
        bandwidth: 25_000_000_000,
        delay: Duration::from_micros(1),
        queue_bytes: 1 << 20,
        mtu: 1500,
    };

    fn serialisation(&self, bytes: usize) -> Duration {
        if self.bandwidth == 0 {
            return Duration::ZERO;
        }
        let bits = bytes as u128 * 8 * 1_000_000_000;
        Duration::from_nanos(u64::try_from(bits / u128::from(self.bandwidth)).unwrap_or(u64::MAX))
    }
}

impl Default for LinkParams {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What one direction of a link did, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Offered by the sender.
    pub offered: u64,
    /// Arrivals handed on, copies included.
    pub delivered: u64,
    /// Dropped by random loss.
    pub lost: u64,
    /// Dropped by a partition.
    pub partitioned: u64,
    /// Dropped because the queue was full.
    pub queue_full: u64,
    /// Dropped because longer than the MTU allows, or too short to be an Ethernet frame.
    pub bad_length: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
}

/// A frame and when it arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit arrives.
    pub at: SimTime,
    /// The frame, from the destination address on, without FCS.
    pub frame: Vec<u8>,
}

/// One direction of a link.
#[derive(Debug, Clone)]
pub struct Link {
    params: LinkParams,
    faults: Faults,
    source: FaultSource,
    /// When the transmitter is free again.
    busy_until: SimTime,
    /// The latest in-order arrival so far; jitter does not undercut it.
    last_arrival: SimTime,
    counters: LinkCounters,
}

impl Link {
    /// A direction without faults, whose later fault decisions follow from `seed`.
    pub fn new(params: LinkParams, seed: u64) -> Self {
        Link {
            params,
            faults: Faults::NONE,
            source: FaultSource::new(seed),
            busy_until: SimTime::ZERO,
            last_arrival: SimTime::ZERO,
            counters: LinkCounters::default(),
        }
    }

    /// The properties.
    pub fn params(&self) -> &LinkParams {
        &self.params
    }

    /// Changes the properties for frames offered from now on.
    pub fn set_params(&mut self, params: LinkParams) {
        self.params = params;
    }

    /// The faults in force.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Changes the faults for frames offered from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Opens or closes the partition and leaves the other faults as they are.
    pub fn set_partition(&mut self, cut: bool) {
        self.faults.partition = cut;
    }

    /// What happened so far.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Sends a frame: where and when it, and perhaps a copy of it, arrives. Both `None` when it is dropped.
    pub fn offer(&mut self, now: SimTime, mut frame: Vec<u8>) -> [Option<Arrival>; 2] {
        self.counters.offered += 1;
        if !self.length_is_legal(&frame) {
            self.counters.bad_length += 1;
            return [None, None];
        }
        let on_wire = frame.len() + MEDIUM_OVERHEAD;
        if self.backlog_bytes(now) + on_wire as u128 > self.params.queue_bytes as u128 {
            self.counters.queue_full += 1;
            return [None, None];
        }
        // A frame that is lost has still used the medium.
        self.busy_until = self.busy_until.max(now).after(self.params.serialisation(on_wire));
        let verdict = self.source.judge(&self.faults, frame.len() - ETH_HEADER);
        match verdict.drop {
            Some(DropCause::Loss) => {
                self.counters.lost += 1;
                return [None, None];
            }
            Some(DropCause::Partition) => {
                self.counters.partitioned += 1;
                return [None, None];
            }
            None => {}
        }
        if let Some(bit) = verdict.flip_bit {
            frame[ETH_HEADER + bit / 8] ^= 0x80 >> (bit % 8);
            self.counters.corrupted += 1;
        }
        let in_order = self.busy_until.after(self.params.delay).after(verdict.jitter).max(self.last_arrival);
        let at = match verdict.hold {
            Some(hold) => {
                self.counters.reordered += 1;
                in_order.after(hold)
            }
            None => {
                self.last_arrival = in_order;
                in_order
            }
        };
        let copy = verdict.copy_after.map(|gap| {
            self.counters.duplicated += 1;
            Arrival { at: at.after(gap), frame: frame.clone() }
        });
        self.counters.delivered += 1 + u64::from(copy.is_some());
        [Some(Arrival { at, frame }), copy]
    }

    /// Bytes that still wait for or are in transmission at `now`.
    fn backlog_bytes(&self, now: SimTime) -> u128 {
        let wait = u128::from(nanos(self.busy_until.since(now)));
        wait * u128::from(self.params.bandwidth) / 8 / 1_000_000_000
    }

    fn length_is_legal(&self, frame: &[u8]) -> bool {
        if frame.len() < ETH_HEADER {
            return false;
        }
        let tagged = frame[12..14] == [0x81, 0x00];
        frame.len() <= ETH_HEADER + if tagged { VLAN_TAG } else { 0 } + self.params.mtu
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Ppm;

    fn at(a: &[Option<Arrival>; 2]) -> Option<u64> {
        a[0].as_ref().map(|a| a.at.as_nanos())
    }

    /// 1 Gbit/s: a byte takes 8 ns. A 976-byte frame with its overhead is 1000 bytes.
    fn gigabit() -> LinkParams {
        LinkParams {
            bandwidth: 1_000_000_000,
            delay: Duration::from_nanos(500),
            queue_bytes: 3_000,
            mtu: 1500,
        }
    }

    #[test]
    fn frames_queue_behind_each_other_and_the_queue_is_bounded() {
        let mut link = Link::new(gigabit(), 0);
        assert_eq!(at(&link.offer(SimTime::ZERO, vec![0; 976])), Some(8_500));
        assert_eq!(at(&link.offer(SimTime::ZERO, vec![0; 976])), Some(16_500));
        assert_eq!(at(&link.offer(SimTime::ZERO, vec![0; 976])), Some(24_500));
        assert_eq!(at(&link.offer(SimTime::ZERO, vec![0; 976])), None);
        assert_eq!(link.counters().queue_full, 1);
        // After one frame's time there is room for one again.
        assert_eq!(at(&link.offer(SimTime::from_nanos(8_000), vec![0; 976])), Some(32_500));
    }

    #[test]
    fn the_mtu_holds_and_a_vlan_tag_does_not_count() {
        let mut link = Link::new(gigabit(), 0);
        let mut tagged = vec![0; 1518];
        tagged[12..14].copy_from_slice(&[0x81, 0x00]);
        assert!(at(&link.offer(SimTime::ZERO, vec![0; 1514])).is_some());
        assert!(at(&link.offer(SimTime::ZERO, vec![0; 1515])).is_none());
        assert!(at(&link.offer(SimTime::ZERO, vec![0; 13])).is_none());
        assert!(at(&link.offer(SimTime::from_nanos(100_000), tagged)).is_some());
        assert_eq!(link.counters().bad_length, 2);
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_breaks_it() {
        let params = LinkParams { bandwidth: 0, delay: Duration::from_nanos(10), ..gigabit() };
        let mut link = Link::new(params, 11);
        link.set_faults(Faults { jitter: Duration::from_micros(5), ..Faults::NONE });
        let mut last = 0;
        for t in 0..200 {
            let arrival = at(&link.offer(SimTime::from_nanos(t), vec![0; 64])).unwrap();
            assert!(arrival >= last);
            last = arrival;
        }
        let mut link = Link::new(params, 11);
        let late_by = Duration::from_micros(5);
        link.set_faults(Faults { reorder: Ppm::percent(30), late_by, ..Faults::NONE });
        let order: Vec<_> =
            (0..200).map(|t| at(&link.offer(SimTime::from_nanos(t), vec![0; 64])).unwrap()).collect();
        assert!(!order.is_sorted());
        assert!(link.counters().reordered > 0);
    }

    #[test]
    fn corruption_flips_exactly_one_bit_and_a_copy_is_the_same() {
        let mut link = Link::new(gigabit(), 2);
        link.set_faults(Faults { corrupt: Ppm::ALWAYS, duplicate: Ppm::ALWAYS, ..Faults::NONE });
        let [first, copy] = link.offer(SimTime::ZERO, vec![0; 100]);
        let (first, copy) = (first.unwrap(), copy.unwrap());
        assert_eq!(first.frame[..14], [0; 14]);
        assert_eq!(first.frame.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        assert_eq!(first.frame, copy.frame);
        assert!(copy.at >= first.at);
        assert_eq!(link.counters().delivered, 2);
    }
}
