//! A target and an initiator in the simulator, for the tests that run end to end there.
#![allow(dead_code)] // each test binary uses its part

pub mod held;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{Backend, RamBackend};
use everywire_fabric::faults::{Faults, Ppm};
use everywire_scsi::lun::{LogicalUnit, LunConfig};
use everywire_scsi::target::{LunMap, Target};
use everywire_sim::{HostConfig, HostId, World};
use everywire_srp::PortId;
use everywire_srp::rdma::initiator::Disk;
use everywire_srp::rdma::{Initiator, InitiatorOptions, SrpTarget, TargetOptions};
use everywire_srp::target::{Limits, TargetPort};
use everywire_verbs::Device;
use everywire_verbs::rt::Rt;

/// Virtual time that a test may take.
pub const LIMIT: Duration = Duration::from_secs(3600);
/// The target port, and the initiator's.
pub const TARGET: PortId = PortId::new(0x0002_c903_0000_0001, 0x0002_c903_0000_0002);
pub const INITIATOR: PortId = PortId::new(0, 0x0002_c903_0000_00aa);

pub struct Lab {
    pub world: World,
    pub target_host: HostId,
    pub host: HostId,
    pub backend: Arc<dyn Backend>,
    pub limits: Limits,
    pub options: TargetOptions,
    pub target: Rc<RefCell<Option<SrpTarget>>>,
    pub map: Arc<LunMap>,
}

pub fn address() -> SocketAddr {
    "10.0.0.1:5555".parse().expect("an address")
}

impl Lab {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, Limits::default(), TargetOptions { data_pool: 8 << 20, ..TargetOptions::default() })
    }

    pub fn with(seed: u64, limits: Limits, options: TargetOptions) -> Self {
        Self::on(seed, Arc::new(RamBackend::new(512, 65536).expect("fits")), limits, options)
    }

    /// Nobody listens yet.
    pub fn bare(seed: u64) -> Self {
        let backend = Arc::new(RamBackend::new(512, 65536).expect("fits"));
        Self::idle(HostConfig::new, seed, backend, Limits::default(), TargetOptions::default())
    }

    pub fn on(seed: u64, backend: Arc<dyn Backend>, limits: Limits, options: TargetOptions) -> Self {
        Self::on_wire(HostConfig::new, seed, backend, limits, options)
    }

    pub fn on_wire(
        wire: fn(IpAddr) -> HostConfig,
        seed: u64,
        backend: Arc<dyn Backend>,
        limits: Limits,
        options: TargetOptions,
    ) -> Self {
        let lab = Self::idle(wire, seed, backend, limits, options);
        lab.serve();
        lab
    }

    /// Another target port to the same logical unit.
    pub fn add_port(&self, name: &str, id: PortId) {
        let port = TargetPort { name: name.to_owned(), id, initiators: None };
        self.target().add_port(port, self.map.clone(), 1).expect("a port");
    }

    fn idle(
        wire: fn(IpAddr) -> HostConfig,
        seed: u64,
        backend: Arc<dyn Backend>,
        limits: Limits,
        options: TargetOptions,
    ) -> Self {
        let world = World::new(seed);
        let add = |ip: &str| world.add_host(wire(ip.parse().expect("ip")));
        let (target_host, host) = (add("10.0.0.1"), add("10.0.0.2"));
        assert!(world.ib_up(LIMIT));
        let map = Target::new().lun_map();
        let unit = LogicalUnit::new(LunConfig::new("lab/0", backend.clone())).expect("a unit");
        world.rt(target_host).spawn(unit.clone().drive());
        map.add(0, unit).expect("free");
        Self { world, target_host, host, backend, limits, options, target: Rc::default(), map }
    }

    pub fn serve(&self) {
        let target =
            SrpTarget::new(self.world.rt(self.target_host), self.limits.clone(), self.options.clone());
        let port = TargetPort { name: "lab".to_owned(), id: TARGET, initiators: None };
        target.add_port(port, self.map.clone(), 1).expect("a port");
        target.listen(&self.world.device(self.target_host), address()).expect("listens");
        *self.target.borrow_mut() = Some(target);
    }

    pub fn host(&self) -> Host {
        Host { rt: self.world.rt(self.host), device: self.world.device(self.host) }
    }

    pub fn target(&self) -> SrpTarget {
        self.target.borrow().clone().expect("serving")
    }

    /// Runs an initiator's program to its end.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&self, program: impl FnOnce(Host) -> F) -> T {
        self.world.block_on(LIMIT, program(self.host())).expect("ends in time")
    }
}

/// What an initiator's program has.
#[derive(Clone)]
pub struct Host {
    pub rt: Rt,
    pub device: Device,
}

pub fn options() -> InitiatorOptions {
    InitiatorOptions { initiator: INITIATOR, ..InitiatorOptions::default() }
}

impl Host {
    pub async fn connect(&self, options: InitiatorOptions) -> Initiator {
        let initiator = Initiator::connect(&self.rt, &self.device, address(), TARGET, options).await;
        initiator.unwrap_or_else(|error| panic!("{error}"))
    }
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8).collect()
}

pub async fn write_and_read(disk: &Disk, offset: u64, len: usize, seed: u64) {
    let bytes = pattern(len, seed);
    disk.write(offset, &bytes).await.unwrap_or_else(|error| panic!("{error}"));
    let back = disk.read(offset, len).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(back == bytes, "{len} bytes at {offset} differ");
}

/// Frames that are lost, late, doubled and damaged.
pub fn faults() -> Faults {
    Faults {
        loss: Ppm(20_000),
        reorder: Ppm(20_000),
        duplicate: Ppm(10_000),
        corrupt: Ppm(5_000),
        ..Faults::default()
    }
}

/// Nothing is outstanding, and every credit is back.
pub fn all_back(initiator: &Initiator, limit: i32) {
    assert!(initiator.credits().iter().all(|&have| have == (limit, 0)), "{:?}", initiator.credits());
}
