//! The conformance suite on real sockets: every wire that this machine lets us open, with every way to drive a device.
//!
//! A wire is a line of `WIRES`, a way to drive one of `Driver::ALL`. The suite mostly waits, so all runs of a test go side by
//! side, and none sees another: addresses are 127.x of this process, and each run over InfiniBand has a subnet of its own.
//! Raw wires go through a veth pair between two network namespaces for each way to drive; without the right to make those
//! they are skipped, with a word. `EVERYWIRE_CONFORM=NAME` runs one wire alone,
//! `EVERYWIRE_CONFORM_THIN=N` every N-th of the rows that differ in flags only, where there is no such word every eighth.

#[path = "conformance/fabric.rs"]
mod fabric;
#[path = "conformance/local.rs"]
mod local;
#[allow(dead_code, reason = "the crate's own tests use the rest of it")]
#[path = "../src/testing.rs"]
mod testing;
#[path = "../src/fabric_host/two_hosts.rs"]
mod two_hosts;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
    /// In two network namespaces with a veth pair between them, under this name, at addresses that no other wire has (each
    /// takes UDP's port at its own) and with this group: frames without a UDP socket.
    Namespaces { name: fn(IpAddr) -> String, ips: [&'static str; 2], group: &'static str },
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
        place: Place::Namespaces {
            name: |ip| format!("rocev2-raw:eth0/{ip}"),
            ips: ["10.99.0.1", "10.99.0.2"],
            group: "239.1.2.3",
        },
        options: OpenOptions::default,
    },
    Wire {
        name: "RoCE v1",
        place: Place::Namespaces {
            name: |ip| format!("rocev1:eth0/{ip}"),
            ips: ["fd99::1", "fd99::2"],
            group: "ff05::4791",
        },
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

/// One run.
fn conform(wire: &Wire, driver: Driver, namespaces: &[testing::Pair]) -> Report {
    let open = |name: &str| Host::open(name, &(wire.options)()).unwrap();
    match wire.place {
        Place::Loopback(name) => {
            let [a, b] = [loopback(), loopback()].map(|ip| (open(&name(ip)), ip));
            drive(driver, a, b, Err("Linux's loopback interface has no multicast"))
        }
        Place::Fabric => {
            let (_fabric, ports) = fabric::start();
            let [a, b] = ports.map(|(name, ip)| (open(&name), ip.parse().unwrap()));
            drive(driver, a, b, Ok(GROUP))
        }
        Place::Namespaces { name, ips, group } => {
            let namespaces = &namespaces[driver as usize];
            // This thread, which asks for routes, ends up in the first.
            let [b, a] = [1, 0].map(|end| {
                namespaces.enter(end);
                let ip = ips[end].parse().unwrap();
                (open(&name(ip)), ip)
            });
            drive(driver, a, b, Ok(group.parse().unwrap()))
        }
    }
}

/// The multicast group of a subnet.
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
        Driver::Thread | Driver::Task => tokio.block_on(run(pair, tokio.handle(), plan())),
        Driver::Inline => {
            let local = LocalRt::new();
            block_on(local.run(run(pair, local.handle(), plan())))
        }
    }
}

/// Of eight combinations of flags one, in turn, unless `EVERYWIRE_CONFORM_THIN=1` asks for all of them.
fn plan() -> Plan {
    let thin = std::env::var("EVERYWIRE_CONFORM_THIN").map_or(8, |thin| thin.parse().unwrap());
    Plan { lossy: false, patience: Duration::from_secs(20), quiet: Duration::from_millis(2), thin }
}

/// A call of `block_on` drives every host of the process that nobody else drives, and makes sockets for it in the namespace of
/// its thread: hosts of several namespaces must not wait for a driver at one time.
static ALONE: Mutex<()> = Mutex::new(());

/// Every wire with every driver, side by side.
fn matrix(wires: &[Wire], namespaces: &[testing::Pair]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let chosen = std::env::var("EVERYWIRE_CONFORM").ok();
    let wires = wires.iter().filter(|wire| chosen.as_ref().is_none_or(|name| name == wire.name));
    let runs: Vec<_> = wires.flat_map(|wire| Driver::ALL.map(|driver| (wire, driver))).collect();
    let reports: Vec<_> = std::thread::scope(|scope| {
        let start = |&(wire, driver)| scope.spawn(move || conform(wire, driver, namespaces));
        let threads: Vec<_> = runs.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut matrix = Matrix::default();
    for ((wire, driver), report) in runs.iter().zip(reports) {
        matrix.add(format!("{} {driver:?}", wire.name), report);
    }
    matrix.judge();
}

#[test]
fn every_wire_with_every_driver() {
    matrix(WIRES, &[]);
}

#[test]
fn every_raw_wire() {
    let pair = |driver| testing::Pair::new(&format!("c{}", driver as u8), 9000);
    let pairs: Option<Vec<_>> = Driver::ALL.into_iter().map(pair).collect();
    if let Some(namespaces) = pairs {
        matrix(RAW_WIRES, &namespaces);
    }
}
