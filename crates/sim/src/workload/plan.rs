//! What a seed stands for: how many hosts, which links and faults, which queue pairs, how rough it gets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use everywire_fabric::faults::{Faults, Ppm};
use everywire_fabric::link::LinkParams;
use everywire_verbs::Wire;
use everywire_wire::Mtu;

use super::random::Dice;
use super::wire::traits;
use crate::checkers::delivery::LossyNetwork;

/// How the network behaves in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Nothing is lost, repeated or reordered: nothing may fail that was not meant to, and nothing be sent twice.
    Calm,
    /// Loss only.
    Loss,
    /// Repeats only.
    Repeats,
    /// Frames pass each other.
    Reorder,
    /// Flipped bits.
    Corrupt,
    /// A little of everything.
    Mixed,
    /// A lot of everything.
    Storm,
}

/// How a connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// Both ends are told everything by the program.
    ByHand,
    /// Through the connection manager.
    ConnectionManager,
}

/// A connected pair of queue pairs.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionPlan {
    /// RC (true) or UC.
    pub reliable: bool,
    /// The hosts of its ends, which may be the same.
    pub hosts: [usize; 2],
    /// Path MTU.
    pub mtu: Mtu,
    /// How it is made.
    pub setup: Setup,
    /// By end: receives come from the host's shared receive queue.
    pub shared: [bool; 2],
    /// By end: whether unsignalled requests are allowed at all (`sq_sig_all` off).
    pub selective: [bool; 2],
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// RNR timer code.
    pub rnr_timer: u8,
    /// RNR retries; 7 has no end.
    pub rnr_retry: u8,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
}

/// Everything about a run that is decided before it starts.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Addresses by host.
    pub ips: Vec<IpAddr>,
    /// The link of every host.
    pub link: LinkParams,
    /// The weather, for texts.
    pub weather: Weather,
    /// The same in detail.
    pub faults: Faults,
    /// Whether interfaces send UDP checksums.
    pub udp_checksum: bool,
    /// What carries the messages.
    pub wire: Wire,
    /// Whether iWARP has the extensions of RFC 7306.
    pub rfc7306: bool,
    /// Connected pairs.
    pub connections: Vec<ConnectionPlan>,
    /// Hosts are killed and restarted this many times.
    pub kills: usize,
    /// Hosts are cut off for a while this many times.
    pub partitions: usize,
    /// Streams of a host are reset this many times.
    pub resets: usize,
    /// One request in this many is bound to fail.
    pub one_bad_in: usize,
    /// Work requests to post in all.
    pub target: usize,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, target: usize) -> Self {
        let mut dice = Dice::new(seed ^ 0x706c_616e);
        let host_count = dice.between(2, 3);
        let ipv6 = dice.chance(1, 3);
        let ips = (0..host_count).map(|i| address(ipv6, i)).collect();
        const WEATHERS: [Weather; 7] = [
            Weather::Calm,
            Weather::Loss,
            Weather::Repeats,
            Weather::Reorder,
            Weather::Corrupt,
            Weather::Mixed,
            Weather::Storm,
        ];
        let weather = WEATHERS[dice.weighted(&[4, 3, 2, 3, 2, 4, 2])];
        // Adapters send jumbo frames where the path MTU needs them.
        let jumbo = dice.chance(2, 3);
        let bandwidth = *dice.pick(&[1_000_000_000, 10_000_000_000, 100_000_000_000]);
        let link = LinkParams {
            bandwidth,
            delay: Duration::from_nanos(dice.between(200, 5_000) as u64),
            queue_bytes: 2 << 20,
            mtu: if jumbo { 9000 } else { 1500 },
        };
        let count = dice.between(3, 5);
        let connections = (0..count).map(|i| connection(&mut dice, i, host_count, jumbo)).collect();
        let rough = weather != Weather::Calm || dice.chance(1, 3);
        Plan {
            seed,
            ips,
            link,
            weather,
            faults: faults(&mut dice, weather),
            udp_checksum: weather != Weather::Corrupt && dice.chance(1, 2),
            wire: Wire::RoceV2,
            rfc7306: false,
            connections,
            kills: if rough { dice.weighted(&[4, 2, 1]) } else { 0 },
            partitions: if rough { dice.weighted(&[3, 2, 1]) } else { 0 },
            resets: 0,
            one_bad_in: *dice.pick(&[80, 150, 400]),
            target,
        }
    }

    /// The same over another wire. InfiniBand has no weather: its links keep their packets until they are pulled, hosts' and
    /// those between switches. On iWARP streams break as well; its connections are all reliable, made through the connection
    /// manager, between two hosts, and with receives of their own: of a shared queue no sender knows how many are left for it.
    pub fn over(self, wire: Wire, rfc7306: bool) -> Plan {
        let traits = traits(wire, rfc7306);
        let hosts = self.ips.len();
        let connections = self.connections.iter().map(|plan| {
            let [first, second] = plan.hosts;
            let alone = second == first && !traits.is_ib;
            ConnectionPlan {
                reliable: plan.reliable || !traits.is_ib,
                hosts: [first, if alone { (first + 1) % hosts } else { second }],
                setup: if traits.by_hand { plan.setup } else { Setup::ConnectionManager },
                shared: if traits.waits_for_receives { plan.shared } else { [false; 2] },
                ..*plan
            }
        });
        let same = Plan { wire, rfc7306, connections: connections.collect(), ..self };
        match wire {
            Wire::InfiniBand => Plan { weather: Weather::Calm, faults: Faults::NONE, ..same },
            Wire::Iwarp => Plan { resets: same.partitions, ..same },
            Wire::RoceV2 | Wire::RoceV1 => same,
        }
    }

    /// What the network may do to unreliable messages.
    pub fn lossy(&self) -> LossyNetwork {
        LossyNetwork {
            repeats: self.faults.duplicate > Ppm::NEVER,
            reorders: self.faults.reorder > Ppm::NEVER,
        }
    }

    /// Whether frames may go missing, be it by damage.
    pub fn loses(&self) -> bool {
        self.faults.loss > Ppm::NEVER
            || self.faults.corrupt > Ppm::NEVER
            || self.kills + self.partitions + self.resets > 0
    }

    /// The longest that a frame can be under way: queues full, held back and repeated.
    pub fn longest_flight(&self) -> Duration {
        let queue = Duration::from_nanos(self.link.queue_bytes as u64 * 8_000_000_000 / self.link.bandwidth);
        2 * (queue + 2 * self.faults.late_by + self.faults.jitter + self.link.delay)
            + Duration::from_micros(10)
    }
}

fn address(ipv6: bool, host: usize) -> IpAddr {
    let n = host as u8 + 1;
    if ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
    }
}

fn connection(dice: &mut Dice, index: usize, hosts: usize, jumbo: bool) -> ConnectionPlan {
    let first = dice.below(hosts);
    // Now and then both ends are on one host.
    let second = if dice.chance(1, 12) { first } else { (first + dice.between(1, hosts - 1)) % hosts };
    let reliable = match index {
        0 | 1 => true,
        2 => false,
        _ => dice.chance(3, 4),
    };
    let largest = if jumbo { 4 } else { 2 };
    ConnectionPlan {
        reliable,
        hosts: [first, second],
        mtu: Mtu::ALL[dice.between(0, largest)],
        setup: if reliable && dice.chance(1, 3) { Setup::ConnectionManager } else { Setup::ByHand },
        shared: [dice.chance(1, 3), dice.chance(1, 3)],
        selective: [dice.chance(3, 4), dice.chance(3, 4)],
        timeout: dice.between(8, 11) as u8,
        rnr_timer: dice.between(1, 12) as u8,
        rnr_retry: if dice.chance(1, 8) { 6 } else { 7 },
        rd_atomic: *dice.pick(&[1, 2, 4, 16]),
    }
}

fn faults(dice: &mut Dice, weather: Weather) -> Faults {
    let late_by = Duration::from_micros(dice.between(5, 150) as u64);
    let jitter = Duration::from_nanos(dice.between(0, 3_000) as u64);
    let mut permille = |low, high| Ppm(dice.between(low, high) as u32 * 1_000);
    let base = Faults { late_by, jitter, ..Faults::NONE };
    match weather {
        Weather::Calm => base,
        Weather::Loss => Faults { loss: permille(1, 60), ..base },
        Weather::Repeats => Faults { duplicate: permille(5, 200), ..base },
        Weather::Reorder => Faults { reorder: permille(5, 150), ..base },
        Weather::Corrupt => Faults { corrupt: permille(1, 60), ..base },
        Weather::Mixed => Faults {
            loss: permille(1, 20),
            duplicate: permille(1, 40),
            corrupt: permille(1, 10),
            reorder: permille(1, 40),
            ..base
        },
        Weather::Storm => Faults {
            loss: permille(20, 80),
            duplicate: permille(20, 100),
            corrupt: permille(10, 40),
            reorder: permille(20, 100),
            ..base
        },
    }
}
