//! The conformance suite on real sockets: every wire that this machine lets us open, with every way to drive a device.
//!
//! A wire is a line of `WIRES`, a way to drive one of `Driver::ALL`. The suite mostly waits, so all runs of a test go side by
//! side, and none sees another: addresses are 127.x of this process, and each run over InfiniBand has a subnet of its own, each
//! run on raw Ethernet two network namespaces. Without the right to make those the raw wires are skipped, with a word.
//! `EVERYWIRE_CONFORM=NAME` runs one wire alone.

#[path = "conformance/fabric.rs"]
mod fabric;
#[path = "conformance/local.rs"]
mod local;
#[allow(dead_code, reason = "the crate's own tests use the rest of it")]
#[path = "../src/testing.rs"]
mod testing;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use everywire_conformance::{End, Matrix, Pair, Plan, Report, run};
use everywire_net::{Host, OpenOptions, TokioRt, block_on};
use everywire_verbs::IwarpOptions;
use local::LocalRt;

/// A way to drive devices.
#[derive(Clone, Copy, Debug)]
enum Driver {
    /// A background thread each.
    Thread,
    /// A task each on the runtime of the program.
    Task,
    /// Nobody but whoever waits or polls.
    Inline,
}

impl Driver {
    const ALL: [Driver; 3] = [Driver::Thread, Driver::Task, Driver::Inline];
}

/// A wire: its name in the matrix, where its devices are, and how they are opened.
struct Wire {
    name: &'static str,
    place: Place,
    options: fn() -> OpenOptions,
}

/// Where a run has its devices.
enum Place {
    /// At loopback addresses of their own, under this name.
    Loopback(fn(IpAddr) -> String),
    /// At two ports of a subnet of their own.
    Fabric,
    /// In two network namespaces of their own with a veth pair between them, under this name: frames without a UDP socket.
    Namespaces(fn(IpAddr) -> String),
}

const WIRES: &[Wire] = &[
    Wire {
        name: "RoCE v2",
        place: Place::Loopback(|ip| format!("rocev2:{ip}")),
        options: OpenOptions::default,
    },
    Wire { name: "iWARP", place: Place::Loopback(|ip| format!("iwarp:{ip}")), options: OpenOptions::default },
    Wire { name: "iWARP 7306", place: Place::Loopback(|ip| format!("iwarp:{ip}")), options: with_rfc7306 },
    Wire { name: "InfiniBand", place: Place::Fabric, options: OpenOptions::default },
];

const RAW_WIRES: &[Wire] = &[
    Wire {
        name: "RoCE v2 raw",
        place: Place::Namespaces(|ip| format!("rocev2-raw:eth0/{ip}")),
        options: OpenOptions::default,
    },
    Wire {
        name: "RoCE v1",
        place: Place::Namespaces(|ip| format!("rocev1:eth0/{ip}")),
        options: OpenOptions::default,
    },
];

/// iWARP with atomics and immediate data.
fn with_rfc7306() -> OpenOptions {
    let iwarp = IwarpOptions { rfc7306: true, ..IwarpOptions::default() };
    OpenOptions { iwarp, ..OpenOptions::default() }
}

/// An address of 127.0.0.0/8 that no other test of this process uses, and hardly one of another process.
fn loopback() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::V4(Ipv4Addr::new(127, 0x60 | (pid >> 8) as u8 & 0x1f, pid as u8, n))
}

/// One run; `None` where its place cannot be had.
fn conform(wire: &Wire, driver: Driver, number: usize) -> Option<Report> {
    let open = |name: &str| Host::open(name, &(wire.options)()).unwrap();
    match wire.place {
        Place::Loopback(name) => {
            let [a, b] = [loopback(), loopback()].map(|ip| (open(&name(ip)), ip));
            Some(drive(driver, a, b, Err("Linux's loopback interface has no multicast")))
        }
        Place::Fabric => {
            let (_fabric, ports) = fabric::start();
            let [a, b] = ports.map(|(name, ip)| (open(&name), ip.parse().unwrap()));
            Some(drive(driver, a, b, Ok(GROUP)))
        }
        Place::Namespaces(name) => {
            let namespaces = testing::Pair::new(&format!("c{number}"), 9000)?;
            // This thread, which asks for routes, ends up in the first.
            let [b, a] = [(1, "10.99.0.2"), (0, "10.99.0.1")].map(|(end, ip)| {
                namespaces.enter(end);
                let ip = ip.parse().unwrap();
                (open(&name(ip)), ip)
            });
            Some(drive(driver, a, b, Ok(GROUP)))
        }
    }
}

/// The multicast group, where there are any.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));

/// Runs the suite between two devices at their addresses. `b` goes when it is killed.
fn drive(
    driver: Driver,
    a: (Host, IpAddr),
    b: (Host, IpAddr),
    group: Result<IpAddr, &'static str>,
) -> Report {
    let tokio = TokioRt::new().unwrap();
    match driver {
        Driver::Thread => [&a, &b].iter().for_each(|end| end.0.spawn_thread().unwrap()),
        Driver::Task => [&a, &b].iter().for_each(|end| end.0.run(&tokio).unwrap()),
        Driver::Inline => {}
    }
    let end = |(host, ip): &(Host, IpAddr)| End { device: host.device().clone(), ip: *ip };
    let ends = [end(&a), end(&b)];
    let b = RefCell::new(Some(b.0));
    let kill: Rc<dyn Fn()> = Rc::new(move || drop(b.borrow_mut().take()));
    let [first, second] = ends;
    let pair = Pair { a: first, b: second, group, kill: Ok(kill) };
    match driver {
        Driver::Task => tokio.block_on(run(pair, tokio.handle(), PLAN)),
        Driver::Thread | Driver::Inline => {
            let local = LocalRt::new();
            block_on(local.run(run(pair, local.handle(), PLAN)))
        }
    }
}

/// One of eight combinations of flags, in turn: the simulator runs all of them.
const PLAN: Plan =
    Plan { lossy: false, patience: Duration::from_secs(20), quiet: Duration::from_millis(2), thin: 8 };

/// Every wire with every driver, side by side.
fn matrix(wires: &[Wire]) {
    let chosen = std::env::var("EVERYWIRE_CONFORM").ok();
    let wires = wires.iter().filter(|wire| chosen.as_ref().is_none_or(|name| name == wire.name));
    let runs: Vec<_> = wires.flat_map(|wire| Driver::ALL.map(|driver| (wire, driver))).collect();
    let reports: Vec<_> = std::thread::scope(|scope| {
        let start = |(number, &(wire, driver))| {
            scope.spawn(move || {
                let (started, report) = (Instant::now(), conform(wire, driver, number));
                println!("{} {driver:?}: {} s", wire.name, started.elapsed().as_secs());
                report
            })
        };
        let threads: Vec<_> = runs.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut matrix = Matrix::default();
    for ((wire, driver), report) in runs.iter().zip(reports) {
        if let Some(report) = report {
            matrix.add(format!("{} {driver:?}", wire.name), report);
        }
    }
    matrix.judge();
}

#[test]
fn every_wire_with_every_driver() {
    matrix(WIRES);
}

#[test]
fn every_raw_wire() {
    matrix(RAW_WIRES);
}
