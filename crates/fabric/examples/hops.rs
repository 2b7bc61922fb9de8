//! How many hops a second one core forwards: a fat tree of 16 hosts under all-to-all RC WRITE traffic of 4 KiB packets.
//!
//! A hop is a switch looking a packet up, putting it on another lane, queueing it, and sending it with credits and lane
//! arbitration. The frames are whole (LRH to VCRC, right ICRC and VCRC, 4,138 bytes); a change of lane corrects the VCRC
//! without reading the payload. A packet is copied once, at delivery, as its sender here keeps its own. `--vcrc ends` (the
//! default) sums each packet once, at the first receiver; `every-hop` at each; `trusted` at none. Time is the thread's own.
//! Usage: `cargo run --release -p everywire-fabric --example hops -- [SECONDS] [--vcrc WHEN] [--audit]
//! [--at-least MILLIONS]`.

#[path = "../tests/ib/manager.rs"]
#[allow(dead_code)]
mod manager;
#[path = "../tests/ib/traffic.rs"]
#[allow(dead_code)]
mod traffic;

use std::time::{Duration, Instant};

use bytes::Bytes;
use everywire_fabric::ib::subnet_manager::routing::RoutingEngine;
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{Event, LinkParams, Subnet, SubnetOptions, VcrcCheck};

use everywire_wire::smp::{SlToVl, attribute};
use everywire_wire::vcrc::check_packet;
use traffic::{port, write_packet};

/// Hosts of the tree.
const HOSTS: usize = 16;
/// Payload of a packet.
const PAYLOAD: usize = 4096;
/// Packets that a host has ready for each other host.
const READY: u32 = 4;

/// One delivered packet of so many is summed again.
const SAMPLE: u64 = 1024;

struct Host {
    node: usize,
    /// For every other host in turn.
    packets: Vec<Bytes>,
    next: usize,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(5.0);
    let after = |flag: &str| args.iter().skip_while(|arg| *arg != flag).nth(1).map(String::as_str);
    let vcrc = match after("--vcrc") {
        None | Some("ends") => VcrcCheck::FirstHop,
        Some("every-hop") => VcrcCheck::EveryHop,
        Some("trusted") => VcrcCheck::Damaged,
        Some(other) => return eprintln!("--vcrc is ends, every-hop or trusted, not {other}"),
    };
    let audit = args.iter().any(|arg| arg == "--audit");
    let shape = Topology::fat_tree(HOSTS, 8).expect("a fat tree of 16 hosts");
    let base = Instant::now();
    let options = SubnetOptions { vcrc, audit, ..SubnetOptions::default() };
    let mut subnet = Subnet::of_shape(base, 1, options, &shape, LinkParams::DEFAULT).expect("a subnet");
    let engine = RoutingEngine::FatTree { roots: Vec::new() };
    let (mut manager, graph, _) = manager::bring_up(&mut subnet, &shape, &engine, base);
    change_lanes(&mut manager, &mut subnet, &shape);
    let lids: Vec<_> = graph.endports.iter().map(|endport| endport.lid).collect();
    let mut hosts: Vec<Host> = shape.hosts().enumerate().map(|(n, node)| host(n, node, &lids)).collect();
    let (before, mut delivered, mut by_hops) = (subnet.forwarded(), 0u64, 0u64);
    let (started, mut now, cpu) = (Instant::now(), manager.now, cpu_seconds());
    let virtual_start = now;
    while started.elapsed() < Duration::from_secs_f64(seconds) {
        for _ in 0..2_000 {
            hosts.iter_mut().for_each(|host| offer(&mut subnet, now, host));
            now = subnet.poll_timeout().expect("something under way") + Duration::from_nanos(500);
            while let Some(event) = subnet.poll(now) {
                if let Event::Deliver { packet, hops, .. } = event {
                    assert_eq!(packet.len(), 4138);
                    if delivered.is_multiple_of(SAMPLE) {
                        check_packet(&packet).expect("the VCRC of its last lane");
                    }
                    delivered += 1;
                    by_hops += u64::from(hops);
                }
            }
        }
    }
    let wall = started.elapsed().as_secs_f64();
    let took = cpu.zip(cpu_seconds()).map_or(wall, |(from, to)| to - from);
    let hops = subnet.forwarded() - before;
    subnet.check_credits().expect("credits are conserved");
    let virtual_time = now.duration_since(virtual_start).as_secs_f64();
    println!(
        "{delivered} packets of 4138 bytes delivered over {:.2} switches each",
        by_hops as f64 / delivered as f64
    );
    println!(
        "{hops} hops in {took:.2} s of one core ({wall:.2} s by the clock), {:.3} ms of virtual time",
        virtual_time * 1e3
    );
    let millions = hops as f64 / took / 1e6;
    println!("{millions:.2} million hops/s, {:.0} ns a hop", took * 1e9 / hops as f64);
    let least: f64 = after("--at-least").and_then(|text| text.parse().ok()).unwrap_or(0.0);
    if millions < least {
        eprintln!("that is less than {least} million");
        std::process::exit(1);
    }
}

/// Every service level leaves a switch on a lane of its output port's, so that nearly every hop changes the lane.
fn change_lanes(manager: &mut manager::Manager, subnet: &mut Subnet, shape: &Topology) {
    let host = shape.hosts().next().expect("a host");
    for (node, path) in manager::routes(shape, host) {
        let ports = if shape.nodes[node].is_switch { shape.nodes[node].ports } else { 0 };
        for (input, output) in (0..=ports).flat_map(|input| (1..=ports).map(move |output| (input, output))) {
            let mut data = [0; 64];
            SlToVl::new([output % LinkParams::DEFAULT.vls; 16]).emit(&mut data);
            let modifier = u32::from(input) << 8 | u32::from(output);
            manager.set(subnet, attribute::SL_TO_VL, modifier, &path, &data);
        }
    }
}

/// Seconds that this thread has run: other work on the machine does not count. `None` where Linux does not tell.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

fn host(n: usize, node: usize, lids: &[everywire_wire::Lid]) -> Host {
    let others = (1..lids.len()).map(|shift| lids[(n + shift) % lids.len()]);
    let packets = (0..READY)
        .flat_map(|psn| others.clone().map(move |dlid| (psn, dlid)))
        .map(|(psn, dlid)| write_packet(lids[n], dlid, 0, psn, PAYLOAD).into())
        .collect();
    Host { node, packets, next: 0 }
}

/// Keeps a few packets in the port's queue.
fn offer(subnet: &mut Subnet, now: Instant, host: &mut Host) {
    const QUEUED: usize = 8;
    let room = subnet.room(port(host.node), 0);
    for _ in everywire_fabric::ib::SEND_QUEUE - QUEUED..room {
        let packet = host.packets[host.next].clone();
        host.next = (host.next + 1) % host.packets.len();
        subnet.send(now, port(host.node), packet).expect("room");
    }
}
