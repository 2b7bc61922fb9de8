//! Two service levels on two lanes through one congested link: shares by weight, priority up to its limit, and a lane that is
//! blocked stops no other (IBTA §7.6.9, §7.9). Our subnet manager writes the tables.

use std::time::{Duration, Instant};

use everywire_fabric::ib::subnet_manager::{HostedSm, LaneTables, Sm, SmConfig};
use everywire_fabric::ib::{
    Event, HcaConfig, LinkId, LinkParams, NodeId, PortId, Subnet, SubnetOptions, SwitchConfig,
};
use everywire_wire::smp::{PortInfo, SlToVl, VlArbitration, VlWeight, attribute};
use everywire_wire::vcrc::check_packet;
use everywire_wire::{Guid, Lid};

use crate::traffic::{port, write_packet};

/// Nodes, in the order in which they are made.
const SENDERS: [usize; 2] = [1, 2];
const RECEIVERS: [usize; 2] = [3, 4];
const NEAR: NodeId = NodeId(5);
/// Between the switches.
const TRUNK: LinkId = LinkId(0);
const TRUNK_PORT: u8 = 8;
const PAYLOAD: usize = 2048;
/// A packet's bytes as an arbiter counts them, in blocks of 64.
const BLOCKS: u64 = (PAYLOAD as u64 + 8 + 12 + 16 + 4 + 2).div_ceil(64);

fn weight(vl: u8, weight: u8) -> VlWeight {
    VlWeight { vl, weight, ..VlWeight::default() }
}

/// Service level n on lane n; what there are more of, on lane 0.
fn two_lanes() -> [u8; 16] {
    std::array::from_fn(|sl| u8::from(sl == 1))
}

/// Two hosts on one switch that each write to one of two on the other, on a service level of its own.
struct Lab {
    subnet: Subnet,
    manager: HostedSm,
    now: Instant,
    lids: [Lid; 5],
    sent: [u32; 2],
    /// Packets by service level.
    got: [u64; 2],
    /// This receiver takes nothing out of its buffers.
    stuck: Option<usize>,
}

impl Lab {
    fn new(tables: LaneTables, vls: u8) -> Lab {
        let (now, options) = (Instant::now(), SubnetOptions { audit: true, ..SubnetOptions::default() });
        let mut subnet = Subnet::new(now, 5, options);
        for n in 0..5u64 {
            let holds_receives = RECEIVERS.contains(&(n as usize));
            let config = HcaConfig::new(Guid(0x100 + n * 16), "host");
            subnet.add_hca(HcaConfig { holds_receives, ..config }).unwrap();
        }
        for n in 0..2 {
            subnet.add_switch(SwitchConfig::new(Guid(0x1000 + n * 16), TRUNK_PORT, "switch")).unwrap();
        }
        let shape = LinkParams { vls, ..LinkParams::DEFAULT };
        let at = |node: u32, port: u8| PortId { node: NodeId(node), port };
        subnet.connect(at(5, TRUNK_PORT), at(6, TRUNK_PORT), shape).unwrap();
        for (host, switch, number) in [(0, 5, 1), (1, 5, 2), (2, 5, 3), (3, 6, 1), (4, 6, 2)] {
            subnet.connect(at(host, 1), at(switch, number), shape).unwrap();
        }
        let config = SmConfig { lanes: Some(tables), ..SmConfig::new(Guid(0x101)) };
        let manager = HostedSm::start(now, Sm::new(config, 1), port(0), &mut subnet);
        let mut lab = Lab { subnet, manager, now, lids: [Lid(0); 5], sent: [0; 2], got: [0; 2], stuck: None };
        lab.run(Duration::from_secs(1), false);
        lab.lids = std::array::from_fn(|n| lab.subnet.port_values(port(n)).unwrap().lid);
        assert!(lab.lids.iter().all(|lid| lid.is_unicast()));
        lab
    }

    /// Lets time pass; senders keep their queues full.
    fn run(&mut self, time: Duration, sending: bool) {
        let end = self.now + time;
        loop {
            for sl in 0..2 {
                while sending && self.subnet.can_send(port(SENDERS[sl]), sl as u8) {
                    let (from, to) = (self.lids[SENDERS[sl]], self.lids[RECEIVERS[sl]]);
                    let packet = write_packet(from, to, sl as u8, self.sent[sl], PAYLOAD);
                    self.subnet.send(self.now, port(SENDERS[sl]), packet).unwrap();
                    self.sent[sl] += 1;
                }
            }
            while let Some(event) = self.subnet.poll(self.now) {
                let taken = self.manager.handle_event(self.now, &event);
                if let (false, Event::Deliver { port: to, packet, credit, .. }) = (taken, event) {
                    let sl = usize::from(check_packet(&packet).unwrap().sl);
                    assert_eq!(to, port(RECEIVERS[sl]));
                    self.got[sl] += 1;
                    if self.stuck != Some(sl) {
                        self.subnet.consume(self.now, credit.unwrap());
                    }
                }
            }
            self.manager.drive(self.now, &mut self.subnet);
            let next = [self.manager.poll_timeout(), self.subnet.poll_timeout()].into_iter().flatten().min();
            match next.filter(|at| *at <= end) {
                Some(at) => self.now = at.max(self.now),
                None => break,
            }
        }
        self.now = end;
        self.subnet.check_credits().unwrap();
    }

    /// Packets of each service level in a time of full load, the beginning left out.
    fn shares(&mut self) -> [u64; 2] {
        self.run(Duration::from_micros(100), true);
        let before = self.got;
        self.run(Duration::from_millis(2), true);
        let shares = [0, 1].map(|sl| self.got[sl] - before[sl]);
        // 12.5 bytes a nanosecond, all of them used.
        let bytes = (shares[0] + shares[1]) as f64 * (PAYLOAD + 42) as f64;
        let ability = self.subnet.params(TRUNK).unwrap().data_bits() as f64 / 8.0 * 2e-3;
        assert!((0.98..1.02).contains(&(bytes / ability)), "{bytes} of {ability}");
        shares
    }
}

#[test]
fn low_priority_lanes_share_by_weight() {
    for (weights, ratio) in [([1, 1], 1.0), ([1, 3], 3.0), ([4, 1], 0.25)] {
        // In whole packets, since a lane keeps its turn while any weight is left.
        let [a, b] = weights.map(|n| u8::try_from(n * BLOCKS).unwrap());
        let low = Some(vec![weight(0, a), weight(1, b)]);
        let mut lab = Lab::new(LaneTables { sl2vl: two_lanes(), low, ..LaneTables::default() }, 4);
        let [zero, one] = lab.shares();
        let found = one as f64 / zero as f64;
        assert!((found / ratio - 1.0).abs() < 0.02, "{weights:?}: {zero} and {one}");
    }
}

/// With limit n the high table sends 4096·n bytes, to the end of a packet, for each low packet; with 255 nothing but its own.
#[test]
fn high_priority_goes_first_up_to_its_limit() {
    for (high_limit, each_low) in [(0, Some(1)), (1, Some(2)), (4, Some(8)), (255, None)] {
        let tables = LaneTables {
            sl2vl: two_lanes(),
            high: vec![weight(1, 255)],
            low: Some(vec![weight(0, 255)]),
            high_limit,
        };
        let mut lab = Lab::new(tables, 4);
        let [low, high] = lab.shares();
        match each_low {
            Some(n) => assert!(
                (high as f64 / low as f64 / f64::from(n) - 1.0).abs() < 0.03,
                "{high_limit}: {low}, {high}"
            ),
            None => assert!(low <= 1 && high > 1000, "{low}, {high}"),
        }
    }
}

/// A receiver that takes nothing fills its lane back to the sender; the other lane has the link to itself, and when the first
/// moves again nothing is missing.
#[test]
fn a_blocked_lane_stops_no_other() {
    let tables = LaneTables { sl2vl: two_lanes(), ..LaneTables::default() };
    let mut lab = Lab::new(tables, 4);
    lab.stuck = Some(1);
    let shares = lab.shares();
    assert!(shares[1] == 0 && shares[0] > 11_000, "{shares:?}");
    assert!(!lab.subnet.can_send(port(SENDERS[1]), 1), "its sender waits");
    // On one lane for both the same receiver stops everything.
    let mut lab = Lab::new(LaneTables::default(), 4);
    lab.stuck = Some(1);
    lab.run(Duration::from_millis(1), true);
    let before = lab.got;
    lab.run(Duration::from_millis(1), true);
    assert_eq!(lab.got, before);
}

/// What smpquery's sl2vl, vlarb and portinfo read: the tables as told, folded where a link has fewer lanes.
#[test]
fn tables_are_as_they_were_told() {
    let sl2vl = std::array::from_fn(|sl| [0, 3, 5, 15][sl % 4]);
    let low: Vec<VlWeight> = (0..40).map(|n| weight(n % 8, n + 1)).collect();
    for (vls, folded) in [(8, [0, 3, 5, 15]), (4, [0, 3, 1, 15]), (2, [0, 1, 1, 15])] {
        let (high, low) = (vec![weight(5, 9), weight(3, 8)], Some(low.clone()));
        let mut lab = Lab::new(LaneTables { sl2vl, high, low, high_limit: 7 }, vls);
        for at in [PortId { node: NEAR, port: TRUNK_PORT }, port(1)] {
            let switch = at.node == NEAR;
            let number = if switch { u32::from(at.port) } else { 0 };
            let agent = PortId { port: if switch { 0 } else { 1 }, ..at };
            let mut get = |id, modifier| lab.subnet.inspect(agent, id, modifier).unwrap();
            let input = if switch { 2 << 8 } else { 0 };
            let lanes = SlToVl::parse(&get(attribute::SL_TO_VL, input | number)).unwrap();
            (0..16).for_each(|sl| assert_eq!(lanes.vl(sl), folded[usize::from(sl % 4)]));
            let mut block = |n: u32| {
                let data = get(attribute::VL_ARBITRATION, n << 16 | number);
                VlArbitration::parse(&data).unwrap().entries.map(|entry| (entry.vl, entry.weight))
            };
            assert_eq!((block(1)[7], block(1)[31]), ((7 % vls, 8), (31 % 8 % vls, 32)));
            assert_eq!((block(2)[7], block(2)[8]), ((7 % vls, 40), (0, 0)));
            assert_eq!((block(3)[0], block(3)[1], block(3)[2]), ((5 % vls, 9), (3 % vls, 8), (0, 0)));
            let info = PortInfo::parse(&get(attribute::PORT_INFO, u32::from(at.port))).unwrap();
            assert_eq!(info.vl_high_limit, 7);
        }
    }
}
