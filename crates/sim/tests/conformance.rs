//! The conformance suite in virtual time: every wire of the table, on a clean link and on one that loses packets.
//!
//! A wire is a row of `RUNS`. `EVERYWIRE_SEED` replays a run with another seed.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use everywire_conformance::{End, Matrix, Pair, Plan, Report, run};
use everywire_fabric::faults::{Faults, Ppm};
use everywire_fabric::link::LinkParams;
use everywire_sim::{HostConfig, World};

/// What is between the two hosts.
struct Run {
    name: &'static str,
    /// What a host is.
    host: fn(IpAddr) -> HostConfig,
    /// The hosts' addresses.
    ips: [&'static str; 2],
    /// Packets lost on purpose, of a million.
    loss: u32,
}

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

const CLEAN: &[Run] = &[
    Run { name: "RoCE v2", host: HostConfig::new, ips: V4, loss: 0 },
    Run { name: "RoCE v1", host: HostConfig::roce_v1, ips: V4, loss: 0 },
    Run { name: "InfiniBand", host: HostConfig::infiniband, ips: V4, loss: 0 },
    Run { name: "iWARP", host: HostConfig::iwarp, ips: V4, loss: 0 },
    Run { name: "iWARP 7306", host: with_rfc7306, ips: V4, loss: 0 },
];

const LOSSY: &[Run] = &[
    Run { name: "RoCE v2", host: HostConfig::new, ips: V6, loss: 10_000 },
    Run { name: "RoCE v1", host: HostConfig::roce_v1, ips: V6, loss: 10_000 },
    Run { name: "iWARP 7306", host: with_rfc7306, ips: V6, loss: 10_000 },
];

/// iWARP with atomics and immediate data.
fn with_rfc7306(ip: IpAddr) -> HostConfig {
    let mut config = HostConfig::iwarp(ip);
    config.device.iwarp.rfc7306 = true;
    config
}

/// Bytes that wait in a port: more than the longest message, which unreliable connections send all at once.
const QUEUE: usize = 8 << 20;
/// More than the retries of any attempt take, all together.
const LIMIT: Duration = Duration::from_secs(1_000_000);

fn seed() -> u64 {
    std::env::var("EVERYWIRE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn conform(run_of: &Run) -> Report {
    let world = World::new(seed());
    let [a, b] = run_of.ips.map(|ip| {
        let link = LinkParams { queue_bytes: QUEUE, ..LinkParams::DEFAULT };
        world.add_host(HostConfig { link, ..(run_of.host)(ip.parse().unwrap()) })
    });
    assert!(world.ib_up(Duration::from_secs(60)), "the subnet manager brings every port up");
    for host in [a, b] {
        world.set_faults(host, Faults { loss: Ppm(run_of.loss), ..Faults::NONE });
    }
    let other = world.clone();
    // On InfiniBand the first GID is not the address that programs know.
    let end = |host, n: usize| End { device: world.device(host), ip: run_of.ips[n].parse().unwrap() };
    let pair = Pair {
        group: Ok(if run_of.ips[0].contains(':') { "ff05::4791" } else { "239.1.2.3" }.parse().unwrap()),
        kill: Ok(Rc::new(move || other.kill(b))),
        a: end(a, 0),
        b: end(b, 1),
    };
    let plan = Plan {
        lossy: run_of.loss > 0,
        patience: Duration::from_secs(600),
        thin: if run_of.loss > 0 { 4 } else { 1 },
        ..Plan::default()
    };
    let report = world.block_on(LIMIT, run(pair, world.rt_outside(), plan));
    report.unwrap_or_else(|stalled| panic!("{}: {stalled}", run_of.name))
}

fn matrix(runs: &[Run]) {
    let mut matrix = Matrix::default();
    for run in runs {
        let lossy = if run.loss > 0 { " with loss" } else { "" };
        matrix.add(format!("{}{lossy}", run.name), conform(run));
    }
    matrix.judge();
}

#[test]
fn every_wire() {
    matrix(CLEAN);
}

#[test]
fn every_wire_with_loss() {
    matrix(LOSSY);
}
