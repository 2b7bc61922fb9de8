//! Nothing is dropped for want of a buffer, credits are conserved, and what deadlocks and what does not.

use std::time::Instant;

use everywire_fabric::faults::Ppm;
use everywire_fabric::ib::subnet_manager::routing::{RoutingEngine, credit_loops};
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{LinkId, LinkParams, Subnet, SubnetOptions, VcrcCheck};

use crate::manager::bring_up;
use crate::traffic::{Flow, Received, port, run};

const AUDIT: SubnetOptions = SubnetOptions { lifetimes: false, vcrc: VcrcCheck::FirstHop, audit: true };

fn up(
    shape: &Topology,
    engine: RoutingEngine,
    link: LinkParams,
    options: SubnetOptions,
) -> (Subnet, Vec<Flow>, Instant) {
    let base = Instant::now();
    let mut subnet = Subnet::of_shape(base, 7, options, shape, link).unwrap();
    let (manager, graph, _) = bring_up(&mut subnet, shape, &engine, base);
    let hosts: Vec<usize> = shape.hosts().collect();
    let flows = hosts.iter().zip(&graph.endports).map(|(host, endport)| Flow {
        from: *host,
        slid: endport.lid,
        dlid: endport.lid,
        sl: 0,
        payload: 4096,
        count: 0,
        sent: 0,
    });
    let flows = flows.collect();
    (subnet, flows, manager.now)
}

/// 16 hosts send to one; packets of several sizes.
fn incast(packets: u32, sweep: u64) {
    let shape = Topology::fat_tree(16, 8).unwrap();
    let (mut subnet, mut flows, now) =
        up(&shape, RoutingEngine::FatTree { roots: Vec::new() }, LinkParams::DEFAULT, AUDIT);
    let (to, dlid) = (flows[0].from, flows[0].dlid);
    flows.remove(0);
    // The sixteenth sender is the second flow of a host, on another lane.
    let mut second = Flow { sl: 1, ..copy(&flows[3]) };
    second.count = 1;
    flows.push(second);
    let senders = flows.len() as u32;
    assert_eq!(senders, 16);
    for (n, flow) in flows.iter_mut().enumerate() {
        (flow.dlid, flow.count) = (dlid, packets / senders);
        flow.payload = [4096, 4096, 2048, 64, 256, 1024, 4][n % 7];
    }
    let mut received = Received::default();
    let mut events = 0u64;
    let end = run(&mut subnet, now, &mut flows, &mut received, |subnet| {
        events += 1;
        if events.is_multiple_of(sweep) {
            subnet.check_credits().unwrap();
        }
    });
    subnet.check_credits().unwrap();
    assert_eq!(received.packets, u64::from(packets / senders * senders));
    assert_eq!(subnet.in_flight(), 0);
    no_loss(&subnet, &shape);
    let c = subnet.counters(port(to)).unwrap();
    assert!(c.rcv_packets >= received.packets);
    // Who has long packets waits for credits, and the counters say so.
    let waited = |flow: &Flow| subnet.counters(port(flow.from)).unwrap().xmit_wait_ns > 0;
    assert!(flows.iter().filter(|flow| flow.payload == 4096).all(waited));
    println!(
        "{} packets in {:.3} ms of virtual time, none lost, credits conserved at every change",
        received.packets,
        (end - now).as_secs_f64() * 1e3
    );
}

fn copy(flow: &Flow) -> Flow {
    Flow { ..*flow }
}

fn no_loss(subnet: &Subnet, shape: &Topology) {
    for (node, kind) in shape.nodes.iter().enumerate() {
        for number in 1..=kind.ports {
            let id = everywire_fabric::ib::PortId { port: number, ..port(node) };
            let c = subnet.counters(id).unwrap();
            assert_eq!(
                (c.xmit_discards, c.rcv_errors, c.buffer_overruns, c.rcv_switch_relay_errors, c.vl15_dropped),
                (0, 0, 0, 0, 0),
                "{}",
                subnet.port_name(id)
            );
        }
    }
}

#[test]
fn sixteen_to_one_loses_nothing_and_credits_are_conserved_at_every_instant() {
    incast(4_000, 1);
}

/// The whole of it, for `cargo xtask soak`: `cargo test -p everywire-fabric --test ib --profile soak -- --ignored`.
#[test]
#[ignore = "a million packets; run by the soak"]
fn sixteen_to_one_for_a_million_packets() {
    incast(1_000_000, 1_000);
}

/// Every host of a ring sends half way round, with buffers of a single packet.
fn ring(engine: RoutingEngine, options: SubnetOptions) -> (Subnet, Topology, Received, u32) {
    let shape = Topology::ring(6).unwrap();
    let link = LinkParams { buffer: 4288, vls: 1, ..LinkParams::DEFAULT };
    let (mut subnet, mut flows, now) = up(&shape, engine, link, options);
    let lids: Vec<_> = flows.iter().map(|flow| flow.slid).collect();
    for (n, flow) in flows.iter_mut().enumerate() {
        (flow.dlid, flow.count) = (lids[(n + 2) % lids.len()], 400);
    }
    let mut received = Received::default();
    run(&mut subnet, now, &mut flows, &mut received, |subnet| subnet.check_credits().unwrap());
    let sent = flows.iter().map(|flow| flow.sent).sum();
    (subnet, shape, received, sent)
}

#[test]
fn min_hop_deadlocks_a_ring() {
    let shape = Topology::ring(6).unwrap();
    let graph = shape.graph(0);
    let tables = everywire_fabric::ib::subnet_manager::routing::route(&graph, &RoutingEngine::MinHop).tables;
    assert!(credit_loops(&graph, &tables).is_some(), "the loop is known beforehand");
    let (subnet, shape, received, sent) = ring(RoutingEngine::MinHop, AUDIT);
    // Nothing will ever happen again, and packets wait.
    assert_eq!(subnet.poll_timeout(), None);
    assert!(subnet.in_flight() >= 6, "{} packets wait", subnet.in_flight());
    assert_eq!(received.packets + subnet.in_flight() as u64, u64::from(sent), "waiting is not losing");
    no_loss(&subnet, &shape);
}

#[test]
fn up_down_does_not() {
    let (subnet, shape, received, _) = ring(RoutingEngine::UpDown { roots: Vec::new() }, AUDIT);
    assert_eq!((received.packets, subnet.in_flight()), (6 * 400, 0));
    no_loss(&subnet, &shape);
}

#[test]
fn every_shape_carries_all_to_all() {
    let shapes = [
        (Topology::torus(3, 3).unwrap(), RoutingEngine::UpDown { roots: Vec::new() }),
        (Topology::fat_tree(16, 4).unwrap(), RoutingEngine::FatTree { roots: Vec::new() }),
    ];
    for (shape, engine) in shapes {
        let link = LinkParams { vls: 4, ..LinkParams::DEFAULT };
        let (mut subnet, mut flows, mut now) = up(&shape, engine, link, AUDIT);
        let lids: Vec<_> = flows.iter().map(|flow| flow.slid).collect();
        for shift in 1..lids.len() {
            for (n, flow) in flows.iter_mut().enumerate() {
                let sl = (shift % 4) as u8;
                *flow = Flow { dlid: lids[(n + shift) % lids.len()], sl, count: 4, sent: 0, ..copy(flow) };
            }
            let mut received = Received::default();
            now = run(&mut subnet, now, &mut flows, &mut received, |_| {});
            assert_eq!(received.packets, 4 * lids.len() as u64);
            subnet.check_credits().unwrap();
        }
        no_loss(&subnet, &shape);
    }
}

#[test]
fn damaged_packets_are_dropped_and_their_credits_come_back() {
    let shape = Topology::ring(3).unwrap();
    for (retry, vcrc) in
        [(false, VcrcCheck::FirstHop), (false, VcrcCheck::EveryHop), (true, VcrcCheck::Damaged)]
    {
        let clean = LinkParams { retry, buffer: 3 * 4288, vls: 1, ..LinkParams::DEFAULT };
        let base = Instant::now();
        let options = SubnetOptions { vcrc, ..AUDIT };
        let mut subnet = Subnet::of_shape(base, 11, options, &shape, clean).unwrap();
        let (manager, graph, _) = bring_up(&mut subnet, &shape, &RoutingEngine::MinHop, base);
        for link in 0..subnet.links() {
            subnet.set_bit_errors(LinkId(link as u32), Ppm::percent(5)).unwrap();
        }
        let hosts: Vec<usize> = shape.hosts().collect();
        let (from, slid, dlid) = (hosts[0], graph.endports[0].lid, graph.endports[1].lid);
        let mut now = manager.now;
        let (mut got, mut sent, mut last) = (0, 0, None);
        while sent < 1000 || subnet.poll_timeout().is_some() {
            while sent < 1000 && subnet.can_send(port(from), 0) {
                let packet = crate::traffic::write_packet(slid, dlid, 0, sent, 1024);
                subnet.send(now, port(from), packet).unwrap();
                sent += 1;
            }
            now = subnet.poll_timeout().expect("credits that the wire swallowed come back");
            while let Some(event) = subnet.poll(now) {
                if let everywire_fabric::ib::Event::Deliver { packet, .. } = event {
                    everywire_wire::vcrc::check_packet(&packet).expect("no damaged packet arrives");
                    let psn = crate::traffic::psn(&packet);
                    assert!(last.is_none_or(|last| psn > last));
                    (last, got) = (Some(psn), got + 1);
                }
            }
            subnet.check_credits().unwrap();
        }
        let damaged: u64 = (0..shape.nodes.len())
            .flat_map(|node| (1..=shape.nodes[node].ports).map(move |n| (node, n)))
            .map(|(node, n)| {
                let id = everywire_fabric::ib::PortId { port: n, ..port(node) };
                subnet.counters(id).unwrap().rcv_errors
            })
            .sum();
        assert_eq!(
            subnet.traps_pending(everywire_fabric::ib::NodeId(0)),
            0,
            "5 % is below the threshold of eight"
        );
        if retry {
            assert_eq!((got, damaged), (1000, 0));
        } else {
            assert_eq!(got + damaged, 1000);
            // Three links of 5 % each: 143 of 1000 on average.
            assert!((80..220).contains(&damaged), "{damaged}");
        }
    }
}

#[test]
fn a_pulled_link_loses_what_was_on_it_and_starts_anew() {
    let shape = Topology::ring(4).unwrap();
    let (mut subnet, mut flows, now) = up(&shape, RoutingEngine::MinHop, LinkParams::DEFAULT, AUDIT);
    let dlid = flows[1].slid;
    flows.truncate(1);
    (flows[0].dlid, flows[0].count) = (dlid, 500);
    // The link between the first two switches, pulled after some packets.
    let (mut seen, mut now) = (0, now);
    let link = LinkId(0);
    while seen < 50 {
        while flows[0].sent < flows[0].count && subnet.can_send(port(flows[0].from), 0) {
            let flow = &mut flows[0];
            let packet = crate::traffic::write_packet(flow.slid, flow.dlid, 0, flow.sent, 4096);
            subnet.send(now, port(flow.from), packet).unwrap();
            flow.sent += 1;
        }
        now = subnet.poll_timeout().unwrap();
        while let Some(event) = subnet.poll(now) {
            seen += usize::from(matches!(event, everywire_fabric::ib::Event::Deliver { .. }));
        }
    }
    subnet.link_down(now, link).unwrap();
    assert!(!subnet.is_up(link));
    subnet.check_credits().unwrap();
    while let Some(at) = subnet.poll_timeout() {
        now = at;
        while subnet.poll(now).is_some() {}
        subnet.check_credits().unwrap();
    }
    assert_eq!(subnet.in_flight(), 0, "nothing is stuck behind a dead link");
    subnet.link_up(now, link).unwrap();
    let [a, b] = subnet.ends(link).unwrap();
    assert_eq!(
        (subnet.state(a), subnet.state(b)),
        (2, 2),
        "back in Init, for the subnet manager to configure"
    );
    while let Some(at) = subnet.poll_timeout() {
        while subnet.poll(at).is_some() {}
    }
    subnet.check_credits().unwrap();
    assert_eq!(subnet.credits(a, 0), Some(512), "32 KiB in blocks of 64");
}
