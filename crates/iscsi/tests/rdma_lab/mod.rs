//! A target and an initiator's host in the simulator, on any wire.
#![allow(dead_code)]

pub mod raw;
pub mod stage;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use everywire_iscsi::initiator::{Initiator, IscsiError, Options};
use everywire_iscsi::rdma::{RdmaBinding, RdmaOptions, RdmaPortal};
use everywire_iscsi::target::{Device, Node, Portal, Target, TargetOptions};
use everywire_sim::{HostConfig, HostId, World};
use everywire_verbs::Device as Rnic;
use everywire_verbs::rt::Rt;

use crate::lab::{HOST, LIMIT, MiniDisk, TARGET, name};

/// A wire by name, and a host on it.
pub type OnWire = (&'static str, fn(IpAddr) -> HostConfig);

/// How a host of each wire is made.
pub const WIRES: [OnWire; 4] = [
    ("RoCE v2", HostConfig::new),
    ("RoCE v1", HostConfig::roce_v1),
    ("iWARP", HostConfig::iwarp),
    ("InfiniBand", HostConfig::infiniband),
];

pub fn address() -> SocketAddr {
    "10.0.0.1:3260".parse().expect("an address")
}

pub struct RdmaLab {
    pub world: World,
    pub target_host: HostId,
    pub host: HostId,
    pub disk: MiniDisk,
    pub target: Target,
    pub portal: RefCell<Option<RdmaPortal>>,
}

/// What a program on the initiator's host has.
#[derive(Clone)]
pub struct Host {
    pub rt: Rt,
    pub device: Rnic,
}

impl RdmaLab {
    pub fn new(seed: u64) -> RdmaLab {
        RdmaLab::on(seed, HostConfig::new)
    }

    pub fn on(seed: u64, wire: impl Fn(IpAddr) -> HostConfig) -> RdmaLab {
        RdmaLab::with(seed, wire, TargetOptions::default(), RdmaOptions::default())
    }

    pub fn with(
        seed: u64,
        wire: impl Fn(IpAddr) -> HostConfig,
        options: TargetOptions,
        rdma: RdmaOptions,
    ) -> RdmaLab {
        let world = World::new(seed);
        let add = |ip: &str| world.add_host(wire(ip.parse().expect("ip")));
        let (target_host, host) = (add("10.0.0.1"), add("10.0.0.2"));
        assert!(world.ib_up(LIMIT));
        let disk = MiniDisk::default();
        let (target, portal) = serve(&world, target_host, &disk, options, rdma);
        RdmaLab { world, target_host, host, disk, target, portal: RefCell::new(Some(portal)) }
    }

    pub fn host(&self) -> Host {
        Host { rt: self.world.rt(self.host), device: self.world.device(self.host) }
    }

    /// Runs a program of the initiator's host.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&self, program: impl FnOnce(Host) -> F) -> T {
        self.world.block_on(LIMIT, program(self.host())).expect("it ends")
    }

    pub fn memory_in_use(&self) -> usize {
        self.portal.borrow().as_ref().map_or(0, RdmaPortal::memory_in_use)
    }
}

/// A target with one disk on a host.
pub fn serve(
    world: &World,
    host: HostId,
    disk: &MiniDisk,
    options: TargetOptions,
    rdma: RdmaOptions,
) -> (Target, RdmaPortal) {
    serve_device(world, host, Rc::new(disk.clone()), options, rdma)
}

/// A target with one device on a host.
pub fn serve_device(
    world: &World,
    host: HostId,
    device: Rc<dyn Device>,
    options: TargetOptions,
    rdma: RdmaOptions,
) -> (Target, RdmaPortal) {
    let target = Target::new(world.rt(host), options).expect("a target");
    target.add_node(Node::new(name(TARGET), device)).expect("a node");
    target.add_portal(Portal { address: address(), group: 1, rdma: true });
    let portal = target.listen_rdma(&world.device(host), address(), rdma).expect("listens");
    (target, portal)
}

pub fn options() -> Options {
    Options::new(name(HOST))
}

impl Host {
    pub fn binding(&self) -> RdmaBinding {
        RdmaBinding::new(&self.device, None).expect("memory")
    }

    pub async fn connect(&self, options: Options) -> Result<Initiator, IscsiError> {
        Initiator::connect_rdma(&self.rt, self.binding(), address(), &name(TARGET), options).await
    }
}
