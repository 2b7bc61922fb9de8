//! Targets for what a subnet takes from hosts: packets and subnet management, from a port on a ring with its switches.
//!
//! Whatever a host sends, nothing panics, the subnet comes to rest, no packet stays in it and no credit is lost.

use std::time::{Duration, Instant};

use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{LinkParams, NodeId, PortId, Subnet, SubnetOptions};
use everywire_fuzz::target;
use everywire_wire::mad::method;
use everywire_wire::smp::codes::port_state;
use everywire_wire::smp::{PortInfo, Smp, attribute};
use everywire_wire::{Lid, Lrh, MAD_LEN, Mad, vcrc};

/// The first host of a ring of three; nodes 0 to 2 are the switches.
const HOST: PortId = PortId { node: NodeId(3), port: 1 };

fn ring(base: Instant) -> Subnet {
    let shape = Topology::ring(3).expect("a ring");
    let options = SubnetOptions { audit: true, ..SubnetOptions::default() };
    Subnet::of_shape(base, 1, options, &shape, LinkParams::DEFAULT).expect("a subnet")
}

/// Until it rests. Traps are repeated for some seconds.
fn settle(subnet: &mut Subnet, mut now: Instant) -> Instant {
    for _ in 0..100_000 {
        let Some(at) = subnet.poll_timeout() else {
            assert_eq!(subnet.in_flight(), 0, "packets wait for ever");
            return now;
        };
        now = now.max(at);
        while subnet.poll(now).is_some() {}
        subnet.check_credits().expect("credits are conserved");
    }
    panic!("it never comes to rest");
}

fn requests() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for id in 0x10..=0x1b {
        for method in [method::GET, method::SET] {
            for path in [&[][..], &[1], &[1, 1], &[1, 1, 1, 3], &[1, 2]] {
                seeds.push(Smp::directed(method, id, 1, 1, path).to_mad().to_vec());
            }
        }
    }
    let mut returning = Smp::directed(method::GET_RESP, attribute::NODE_INFO, 0, 1, &[1, 1]);
    (returning.header.status, returning.header.class_specific) = (0x8000, 0x0302);
    seeds.push(returning.to_mad().to_vec());
    seeds.push(Smp::lid_routed(method::TRAP_REPRESS, attribute::NOTICE, 0, 1).to_mad().to_vec());
    seeds
}

target!(smp, requests(), |bytes| {
    let mut mad: Mad = [0; MAD_LEN];
    let len = bytes.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&bytes[..len]);
    let base = Instant::now();
    let mut subnet = ring(base);
    // The class, so that most inputs get past the first check.
    mad[1] = if mad[1] & 1 == 0 { 0x01 } else { 0x81 };
    subnet.send_smp(base, HOST, Lid::PERMISSIVE, &mad);
    let now = settle(&mut subnet, base);
    subnet.send_smp(now, HOST, Lid(1), &mad);
    settle(&mut subnet, now);
});

/// Brings the ports of the first host and its switch up, without any LID.
fn activate(subnet: &mut Subnet, mut now: Instant) -> Instant {
    for state in [port_state::ARMED, port_state::ACTIVE] {
        for (path, number) in [(&[][..], 1u8), (&[1], 3), (&[1], 1), (&[1], 2)] {
            let info =
                PortInfo { port_state: state, lid: Lid(u16::from(path.is_empty())), ..PortInfo::default() };
            let mut smp = Smp::directed(method::SET, attribute::PORT_INFO, number.into(), 1, path);
            info.emit(&mut smp.data);
            subnet.send_smp(now, HOST, Lid::PERMISSIVE, &smp.to_mad());
            now = settle(subnet, now + Duration::from_nanos(1));
        }
    }
    now
}

fn packets() -> Vec<Vec<u8>> {
    let mads = requests().into_iter().take(8);
    mads.map(|mad| [&[0, 2, 0, 1, 0, 0, 0, 1][..], &[0x64; 20], &mad, &[0; 6]].concat()).collect()
}

target!(packet, packets(), |bytes| {
    let base = Instant::now();
    let mut subnet = ring(base);
    let now = activate(&mut subnet, base);
    // Once as it is, and once with the length and the sum made right.
    let _ = subnet.send(now, HOST, bytes.to_vec());
    let mut packet = bytes.to_vec();
    packet.resize(packet.len().max(22).next_multiple_of(4) + 2, 0);
    let words = ((packet.len() - 2) / 4) as u16;
    packet[4..6].copy_from_slice(&(words & Lrh::MAX_PKT_LEN).to_be_bytes());
    vcrc::seal(&mut packet);
    let _ = subnet.send(now, HOST, packet);
    settle(&mut subnet, now);
});
