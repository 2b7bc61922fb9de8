//! A target with a disk that can be held and a window of a few commands, over a slow stream or over RDMA.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_fabric::faults::{Faults, Ppm};
use everywire_iscsi::initiator::{Initiator, IscsiError, Options};
use everywire_iscsi::rdma::{RdmaOptions, RdmaPortal};
use everywire_iscsi::session::target::SessionOptions;
use everywire_iscsi::target::{Target, TargetOptions};
use everywire_sim::{HostConfig, HostId, World};
use everywire_verbs::rt::{LocalFuture, Rt};

use super::{Host, WIRES};
use crate::lab::held::Held;
use crate::lab::{self, HOST, LIMIT, Lab, name};

/// Commands that the target takes at once.
pub const WINDOW: u32 = 4;

/// A target with a disk, and who logs in there.
pub struct Stage {
    pub world: World,
    pub rt: Rt,
    pub connect: Rc<dyn Fn() -> LocalFuture<Result<Initiator, IscsiError>>>,
    pub disk: Arc<Held>,
    pub target: Target,
    pub portal: Option<RdmaPortal>,
    pub hosts: Vec<HostId>,
}

pub fn options() -> Options {
    let mut options = Options::new(name(HOST));
    // Longer than the transport takes to get through the faults below.
    options.session.command_timeout = Duration::from_secs(10);
    options
}

pub fn target_options() -> TargetOptions {
    let session = SessionOptions { queue_depth: WINDOW, ..SessionOptions::default() };
    TargetOptions { session, ..TargetOptions::default() }
}

pub fn faults() -> Faults {
    Faults { loss: Ppm(10_000), reorder: Ppm(20_000), duplicate: Ppm(10_000), ..Faults::default() }
}

impl Stage {
    /// Over a stream of 160 MB/s.
    pub fn tcp(seed: u64, blocks: u64) -> Stage {
        let disk = Held::new(blocks);
        let (on, unit) = (disk.clone(), Rc::new(Cell::new(None)));
        let lab = Lab::with(seed, target_options(), |node| {
            let (device, driven) = on.device();
            node.device = device;
            unit.set(Some(driven));
        });
        let rt = lab.rt();
        unit.take().into_iter().for_each(|unit| drop(rt.spawn(unit.drive())));
        lab.pipes.drip(16 << 10);
        let (its_rt, connect) = (rt.clone(), lab::connector(lab.pipes.clone()));
        let connect = Rc::new(move || connect(&its_rt, options()));
        Stage { world: lab.world, rt, connect, disk, target: lab.target, portal: None, hosts: Vec::new() }
    }

    pub fn iser(seed: u64, blocks: u64, wire: fn(std::net::IpAddr) -> HostConfig) -> Stage {
        let world = World::new(seed);
        let add = |ip: &str| world.add_host(wire(ip.parse().expect("ip")));
        let (target_host, host) = (add("10.0.0.1"), add("10.0.0.2"));
        assert!(world.ib_up(LIMIT));
        let disk = Held::new(blocks);
        let (device, unit) = disk.device();
        world.rt(target_host).spawn(unit.drive());
        let rdma = RdmaOptions::default();
        let (target, portal) = super::serve_device(&world, target_host, device, target_options(), rdma);
        let initiator = Host { rt: world.rt(host), device: world.device(host) };
        let rt = initiator.rt.clone();
        let connect = Rc::new(move || -> LocalFuture<_> {
            let initiator = initiator.clone();
            Box::pin(async move { initiator.connect(options()).await })
        });
        Stage { world, rt, connect, disk, target, portal: Some(portal), hosts: vec![host] }
    }

    /// Every wire, with and without faults where there are any.
    pub fn all(mut act: impl FnMut(&str, u64, &dyn Fn(u64) -> Stage)) {
        for seed in 0..3 {
            act("TCP", seed, &|blocks| Stage::tcp(seed, blocks));
            for (wire, config) in WIRES.into_iter().filter(|(wire, _)| ["RoCE v2", "iWARP"].contains(wire)) {
                act(wire, seed, &|blocks| {
                    let stage = Stage::iser(seed, blocks, config);
                    if seed > 0 {
                        stage.hosts.iter().for_each(|&host| stage.world.set_faults(host, faults()));
                    }
                    stage
                });
            }
        }
    }

    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&self, program: F) -> T {
        self.world.block_on(LIMIT, program).expect("it ends")
    }

    /// Nothing is left once the initiators have logged out.
    pub fn check_empty(&self, what: &str) {
        self.world.run_for(Duration::from_secs(10));
        let memory = self.portal.as_ref().map_or(0, RdmaPortal::memory_in_use);
        assert_eq!((self.target.sessions(), memory), (0, 0), "{what}");
    }
}
