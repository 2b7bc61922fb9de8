//! The conformance suite on real sockets: every wire that this machine lets us open, with every way to drive a device.
//!
//! A wire is a line of `WIRES`, a way to drive one of `Driver::ALL`. Addresses are 127.x of this process, so that several test
//! processes do not meet.

#[path = "conformance/local.rs"]
mod local;
#[allow(dead_code, reason = "the crate's own tests use the rest of it")]
#[path = "../src/testing.rs"]
mod testing;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use everywire_conformance::{Matrix, Pair, Plan, Report, run};
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

/// A wire: its name in the matrix, and the name of a device at an address.
struct Wire {
    name: &'static str,
    device: fn(IpAddr) -> String,
    options: fn() -> OpenOptions,
}

const WIRES: &[Wire] = &[
    Wire { name: "RoCE v2", device: |ip| format!("rocev2:{ip}"), options: OpenOptions::default },
    Wire { name: "iWARP", device: |ip| format!("iwarp:{ip}"), options: OpenOptions::default },
    Wire { name: "iWARP 7306", device: |ip| format!("iwarp:{ip}"), options: with_rfc7306 },
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

fn conform(wire: &Wire, driver: Driver) -> Report {
    let open = || Host::open(&(wire.device)(loopback()), &(wire.options)()).unwrap();
    let (a, b) = (open(), open());
    let tokio = TokioRt::new().unwrap();
    match driver {
        Driver::Thread => [&a, &b].iter().for_each(|host| host.spawn_thread().unwrap()),
        Driver::Task => [&a, &b].iter().for_each(|host| host.run(&tokio).unwrap()),
        Driver::Inline => {}
    }
    let pair = pair(&a, b, Err("Linux's loopback interface has no multicast"));
    match driver {
        Driver::Task => tokio.block_on(run(pair, tokio.handle(), PLAN)),
        Driver::Thread | Driver::Inline => wait_for(pair),
    }
}

/// One of eight combinations of flags, in turn: the simulator runs all of them.
const PLAN: Plan =
    Plan { lossy: false, patience: Duration::from_secs(20), quiet: Duration::from_millis(2), thin: 8 };

/// `b` goes when it is killed.
fn pair(a: &Host, b: Host, group: Result<IpAddr, &'static str>) -> Pair {
    let of = Pair::new(a.device(), b.device());
    let b = RefCell::new(Some(b));
    Pair { group, kill: Ok(Rc::new(move || drop(b.borrow_mut().take()))), ..of }
}

/// Runs the suite without tokio.
fn wait_for(pair: Pair) -> Report {
    let local = LocalRt::new();
    block_on(local.run(run(pair, local.handle(), PLAN)))
}

/// Only the wire that `EVERYWIRE_CONFORM` names, if it does.
fn chosen(wire: &&Wire) -> bool {
    std::env::var("EVERYWIRE_CONFORM").map_or(true, |name| name == wire.name)
}

#[test]
fn every_wire_with_every_driver() {
    let mut matrix = Matrix::default();
    for wire in WIRES.iter().filter(chosen) {
        for driver in Driver::ALL {
            matrix.add(format!("{} {driver:?}", wire.name), conform(wire, driver));
        }
    }
    matrix.judge();
}

/// Frames that need no UDP socket, on a veth pair between two namespaces.
const RAW_WIRES: &[Wire] = &[
    Wire { name: "RoCE v2 raw", device: |ip| format!("rocev2-raw:eth0/{ip}"), options: OpenOptions::default },
    Wire { name: "RoCE v1", device: |ip| format!("rocev1:eth0/{ip}"), options: OpenOptions::default },
];

#[test]
fn every_raw_wire() {
    let Some(namespaces) = testing::Pair::new("c", 9000) else { return };
    let mut matrix = Matrix::default();
    for wire in RAW_WIRES {
        let report = std::thread::scope(|scope| scope.spawn(|| conform_raw(wire, &namespaces)).join());
        matrix.add(wire.name, report.unwrap());
    }
    matrix.judge();
}

/// A device in each namespace, with a thread each; this thread, which asks for routes, ends up in the first.
fn conform_raw(wire: &Wire, namespaces: &testing::Pair) -> Report {
    let open = |end: usize, ip: &str| {
        namespaces.enter(end);
        let host = Host::open(&(wire.device)(ip.parse().unwrap()), &(wire.options)()).unwrap();
        host.spawn_thread().unwrap();
        host
    };
    let b = open(1, "10.99.0.2");
    let a = open(0, "10.99.0.1");
    wait_for(pair(&a, b, Ok("239.1.2.3".parse().unwrap())))
}
