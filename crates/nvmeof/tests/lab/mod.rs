//! A target and a host in the simulator, for the tests that run end to end there.
#![allow(dead_code)] // each test binary uses its part

pub mod raw;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{Backend, RamBackend};
use everywire_fabric::link::LinkParams;
use everywire_nvmeof::Nqn;
use everywire_nvmeof::rdma::{
    Controller, HostIdentity, InitiatorOptions, Namespace, NvmeTarget, TargetOptions,
};
use everywire_nvmeof::target::{Limits, NamespaceConfig, SubsystemConfig, Target};
use everywire_sim::{HostConfig, HostId, World};

/// Virtual time that a test may take.
pub const LIMIT: Duration = Duration::from_secs(3600);

/// A target and a host on a link.
pub struct Lab {
    pub world: World,
    pub target_host: HostId,
    pub host: HostId,
    pub backend: Arc<dyn Backend>,
    pub limits: Limits,
    pub target: Rc<RefCell<Option<NvmeTarget>>>,
}

pub fn nqn() -> Nqn {
    "nqn.2026-01.lab:s1".parse().expect("an NQN")
}

pub fn identity(n: u128) -> HostIdentity {
    HostIdentity::from_uuid(uuid::Uuid::from_u128(n))
}

pub fn address() -> SocketAddr {
    "10.0.0.1:4420".parse().expect("an address")
}

impl Lab {
    pub fn with(seed: u64, limits: Limits) -> Self {
        Self::with_mtu(seed, limits, 1500)
    }

    pub fn with_mtu(seed: u64, limits: Limits, mtu: usize) -> Self {
        let world = World::new(seed);
        let add = |ip: &str| {
            let config = HostConfig::new(ip.parse().expect("ip"));
            world.add_host(HostConfig { link: LinkParams { mtu, ..config.link }, ..config })
        };
        let (target_host, host) = (add("10.0.0.1"), add("10.0.0.2"));
        let backend: Arc<dyn Backend> = Arc::new(RamBackend::new(512, 65536).expect("fits"));
        Self::of(world, target_host, host, backend, limits)
    }

    /// On a backend of the test's own.
    pub fn on(seed: u64, backend: Arc<dyn Backend>) -> Self {
        let world = World::new(seed);
        let add = |ip: &str| world.add_host(HostConfig::new(ip.parse().expect("ip")));
        let (target_host, host) = (add("10.0.0.1"), add("10.0.0.2"));
        Self::of(world, target_host, host, backend, Limits::default())
    }

    /// Between two hosts of the test's own.
    pub fn between(world: World, target_host: HostId, host: HostId) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(RamBackend::new(512, 65536).expect("fits"));
        Self::of(world, target_host, host, backend, Limits::default())
    }

    fn of(
        world: World,
        target_host: HostId,
        host: HostId,
        backend: Arc<dyn Backend>,
        limits: Limits,
    ) -> Self {
        let lab = Self { world, target_host, host, backend, limits, target: Rc::default() };
        lab.serve();
        lab
    }

    pub fn new(seed: u64) -> Self {
        Self::with(seed, Limits::default())
    }

    pub fn serve(&self) {
        let mut target = Target::new(self.limits.clone());
        target.add_subsystem(&self.subsystem()).expect("a subsystem");
        let options = TargetOptions { data_pool: 4 << 20, ..TargetOptions::default() };
        let target = NvmeTarget::new(self.world.rt(self.target_host), target, options);
        target.listen(&self.world.device(self.target_host), address()).expect("listens");
        *self.target.borrow_mut() = Some(target);
    }

    /// What is served: one namespace, to any host.
    pub fn subsystem(&self) -> SubsystemConfig {
        SubsystemConfig::new(nqn()).namespace(NamespaceConfig::new(self.backend.clone()))
    }

    /// What a host's program has, for programs that go on while the test does.
    pub fn host(&self) -> Host {
        Host { rt: self.world.rt(self.host), device: self.world.device(self.host) }
    }

    pub fn target(&self) -> NvmeTarget {
        self.target.borrow().clone().expect("serving")
    }

    /// Runs a host's program to its end.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&self, program: impl FnOnce(Host) -> F) -> T {
        self.world.block_on(LIMIT, program(self.host())).expect("ends in time")
    }
}

/// What a host's program has.
#[derive(Clone)]
pub struct Host {
    pub rt: everywire_verbs::rt::Rt,
    pub device: everywire_verbs::Device,
}

impl Host {
    pub async fn connect(&self, options: InitiatorOptions) -> Controller {
        let controller =
            Controller::connect(&self.rt, &self.device, address(), &nqn(), &identity(1), options).await;
        controller.unwrap_or_else(|error| panic!("{error}"))
    }
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8).collect()
}

pub async fn write_and_read(disk: &Namespace, offset: u64, len: usize, seed: u64) {
    let bytes = pattern(len, seed);
    disk.write(offset, &bytes).await.unwrap_or_else(|error| panic!("{error}"));
    let back = disk.read(offset, len).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(back == bytes, "{len} bytes at {offset} differ");
}
