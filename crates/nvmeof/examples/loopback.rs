//! A target and an initiator on loopback, over real sockets, with the emulated READ loop beside them.
//!
//! `cargo run --release -p everywire-nvmeof --example loopback` runs a target in a second process, 4 KiB random reads on
//! RAM at depth 1 and 32, the same reads as bare UDP, and prints the ratios.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_block::RamBackend;
use everywire_net::baseline::{BaselineOptions, Client, serve};
use everywire_net::{Host, OpenOptions, TokioRt};
use everywire_nvmeof::Nqn;
use everywire_nvmeof::rdma::{Controller, HostIdentity, InitiatorOptions, NvmeTarget, TargetOptions};
use everywire_nvmeof::target::{Limits, NamespaceConfig, SubsystemConfig, Target};

const TARGET: &str = "127.77.0.1";
const HOST: &str = "127.77.0.2";
const TARGET_BASE: &str = "127.77.0.3";
const HOST_BASE: &str = "127.77.0.4";
const BLOCKS: u64 = (256 << 20) / 512;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("target") => target(),
        Some("baseline") => {
            let stop = std::sync::atomic::AtomicBool::new(false);
            serve(ip(TARGET_BASE), 0, &Default::default(), &stop).expect("serves");
        }
        _ => bench(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn nqn() -> Nqn {
    "nqn.2026-01.lab:ram".parse().expect("an NQN")
}

fn host(address: &str) -> (TokioRt, Host) {
    let runtime = TokioRt::new().expect("a runtime");
    let host = Host::open(&format!("rocev2:{address}"), &OpenOptions::default()).expect("a device");
    host.run(&runtime).expect("a driver");
    (runtime, host)
}

fn target() {
    let (runtime, host) = host(TARGET);
    let mut target = Target::new(Limits::default());
    let backend = Arc::new(RamBackend::new(512, BLOCKS).expect("fits"));
    target.add_subsystem(&SubsystemConfig::new(nqn()).namespace(NamespaceConfig::new(backend))).expect("new");
    let target = NvmeTarget::new(runtime.handle(), target, TargetOptions::default());
    target.listen(host.device(), SocketAddr::new(ip(TARGET), 4420)).expect("listens");
    runtime.block_on(std::future::pending::<()>());
}

/// A second process of this program, ended with its handle.
struct Child(std::process::Child);

impl Child {
    fn start(mode: &str) -> Self {
        let exe = std::env::current_exe().expect("this program");
        Self(std::process::Command::new(exe).arg(mode).spawn().expect("a second process"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bench() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2);
    let duration = Duration::from_secs(seconds);
    for depth in [1, 32] {
        let base = baseline(depth, duration);
        let ours = nvme(depth, duration);
        println!(
            "depth {depth:2}: nvme {ours:9.0} IOPS, READ loop {base:9.0} IOPS, ratio {:.2}",
            ours / base
        );
    }
}

fn baseline(depth: u32, duration: Duration) -> f64 {
    let _child = Child::start("baseline");
    std::thread::sleep(Duration::from_millis(300));
    let options = BaselineOptions { size: 4096, depth, region: 256 << 20, duration, ..Default::default() };
    let client = Client::open(ip(HOST_BASE), 0, ip(TARGET_BASE), &options);
    client.expect("opens").read_loop().expect("runs").msg_per_s
}

fn nvme(depth: u32, duration: Duration) -> f64 {
    let _child = Child::start("target");
    std::thread::sleep(Duration::from_millis(300));
    let (runtime, host) = host(HOST);
    let rt = runtime.handle();
    runtime.block_on(async {
        let identity = HostIdentity::from_uuid(uuid::Uuid::from_u128(1));
        let options = InitiatorOptions { queue_entries: depth as u16 + 1, ..Default::default() };
        let address = SocketAddr::new(ip(TARGET), 4420);
        let controller = Controller::connect(&rt, host.device(), address, &nqn(), &identity, options).await;
        let controller = controller.unwrap_or_else(|error| panic!("{error}"));
        let disk = controller.namespace(1).expect("a namespace");
        for at in (0..BLOCKS * 512).step_by(1 << 20) {
            disk.write(at, &vec![(at >> 20) as u8; 1 << 20]).await.expect("writes");
        }
        let end = Instant::now() + duration;
        let tasks: Vec<_> = (0..u64::from(depth))
            .map(|task| {
                let disk = disk.clone();
                rt.spawn(async move {
                    let buffer = disk.buffer(4096).expect("memory");
                    let (mut seed, mut done) = (task + 1, 0u64);
                    while Instant::now() < end {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let slba = (seed >> 33) % (BLOCKS / 8) * 8;
                        disk.read_blocks(slba, 8, &buffer, 0).await.unwrap_or_else(|error| panic!("{error}"));
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.expect("ran");
        }
        controller.disconnect().await.expect("in order");
        total as f64 / duration.as_secs_f64()
    })
}
