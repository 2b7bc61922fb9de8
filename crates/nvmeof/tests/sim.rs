//! Target and initiator end to end in the simulator: real RoCE frames, virtual time, loss and death.

mod lab;

use std::sync::Arc;
use std::time::Duration;

use everywire_block::RamBackend;
use everywire_fabric::faults::{Faults, Ppm};
use everywire_nvmeof::rdma::initiator::NvmeErrorKind;
use everywire_nvmeof::rdma::{Controller, InitiatorOptions, discover};
use everywire_nvmeof::target::{Limits, NamespaceConfig, SubsystemConfig};
use everywire_nvmeof::{Nqn, Status};
use everywire_sim::{HostConfig, World};
use lab::{Host, LIMIT, Lab, address, identity, nqn, write_and_read};

#[test]
fn discover_connect_write_read_disconnect() {
    let lab = Lab::new(1);
    lab.run(|host| async move {
        let found = discover(&host.rt, &host.device, address(), &identity(1)).await.expect("a log");
        let names: Vec<_> = found.iter().map(|entry| entry.subsystem().to_owned()).collect();
        assert_eq!(names, ["nqn.2014-08.org.nvmexpress.discovery", "nqn.2026-01.lab:s1"]);
        assert_eq!((found[1].address(), found[1].port()), (Some(address().ip()), Some(4420)));
        let controller = host.connect(InitiatorOptions { io_queues: 2, ..Default::default() }).await;
        assert_eq!(controller.io_queues(), 2);
        let disk = controller.namespace(1).expect("a namespace");
        assert_eq!((disk.info().block_size, disk.info().blocks), (512, 65536));
        for (i, len) in [512, 4096, 8192, 65536, 1 << 20, (2 << 20) + 512].into_iter().enumerate() {
            write_and_read(&disk, 512 * i as u64, len, i as u64).await;
        }
        disk.flush().await.expect("flushes");
        disk.write_zeroes(4096, 8192, true).await.expect("zeroes");
        assert_eq!(disk.read(4096, 8192).await.expect("reads"), vec![0; 8192]);
        let buffer = disk.buffer(4096).expect("memory");
        let past = disk.read_blocks(65536 - 7, 8, &buffer, 0).await.expect_err("past the end");
        assert_eq!(past.status().map(Status::code), Some(Status::LBA_OUT_OF_RANGE));
        let text = past.to_string();
        for part in ["10.0.0.2:", "10.0.0.1:4420", "nqn.2026-01.lab:s1", "Read", "LBA Out of Range", "0x80"] {
            assert!(text.contains(part), "{text}");
        }
        controller.disconnect().await.expect("in order");
    });
    // Nothing is left of it on either side.
    lab.world.run_for(Duration::from_secs(30));
    assert_eq!(lab.target().connections(), 0);
    assert_eq!(lab.target().with(|target| (target.queue_count(), target.controller_count())), (0, 0));
    let usage = lab.world.device(lab.host).usage();
    assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 0), "{usage:?}");
    let usage = lab.world.device(lab.target_host).usage();
    assert_eq!((usage.qps, usage.cqs, usage.mrs), (0, 0, 1), "only the data pool is left: {usage:?}");
}

/// NV-01 and NV-02: queue depths, and in-capsule sizes including none.
#[test]
fn depths_and_in_capsule_sizes() {
    for (entries, in_capsule_data) in [(2, 0), (16, 16), (32, 4096), (128, 8192), (1024, 65536)] {
        let lab = Lab::with(2, Limits { in_capsule_data, ..Limits::default() });
        lab.run(move |host| async move {
            let controller =
                host.connect(InitiatorOptions { queue_entries: entries, ..Default::default() }).await;
            let disk = controller.namespace(1).expect("a namespace");
            for len in [512, 4096, 8192, 128 << 10] {
                write_and_read(&disk, 0, len, len as u64).await;
            }
            controller.disconnect().await.expect("in order");
        });
    }
}

#[test]
fn many_commands_at_once_under_loss_and_reordering() {
    for seed in 0..8 {
        let lab = Lab::new(seed);
        let faults = Faults {
            loss: Ppm(20_000),
            reorder: Ppm(20_000),
            duplicate: Ppm(10_000),
            corrupt: Ppm(5_000),
            ..Faults::default()
        };
        lab.world.set_faults(lab.host, faults);
        lab.run(move |host| async move {
            let options = InitiatorOptions { io_queues: 2, queue_entries: 16, ..Default::default() };
            let controller = host.connect(options).await;
            let disk = controller.namespace(1).expect("a namespace");
            let tasks: Vec<_> = (0..32u64)
                .map(|i| {
                    let disk = disk.clone();
                    host.rt.spawn(async move {
                        for round in 0..4 {
                            let len = [512, 4096, 12288, 65536][(i as usize + round) % 4];
                            write_and_read(&disk, i * 65536, len, seed * 1000 + i * 10 + round as u64).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ran");
            }
            controller.disconnect().await.expect("in order");
        });
    }
}

/// The target dies and comes back; the initiator's commands wait and go on.
#[test]
fn reconnects_after_the_target_was_killed() {
    for seed in 0..4 {
        let lab = Lab::new(seed);
        let host = Host { rt: lab.world.rt(lab.host), device: lab.world.device(lab.host) };
        let rt = lab.world.rt_outside();
        let done = rt.spawn(async move {
            let controller = host.connect(InitiatorOptions { queue_entries: 32, ..Default::default() }).await;
            let disk = controller.namespace(1).expect("a namespace");
            for round in 0..200 {
                write_and_read(&disk, (round % 16) * 65536, 65536, round).await;
                host.rt.sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(controller.reconnects(), 1);
            controller.disconnect().await.expect("in order");
        });
        lab.world.run_for(Duration::from_millis(2000 + seed * 333));
        lab.world.kill(lab.target_host);
        lab.target.borrow_mut().take();
        lab.world.run_for(Duration::from_secs(7));
        assert!(!done.is_finished());
        lab.world.restart(lab.target_host);
        lab.serve();
        assert!(lab.world.run_until(LIMIT, || done.is_finished()), "seed {seed}");
        lab.world.block_on(LIMIT, done).expect("ended").expect("ran");
    }
}

/// The host's port goes down for so long that attempts to come back are ten seconds apart. Once it is up again, with a subnet
/// manager's leave, nothing is waited for.
#[test]
fn reconnects_as_soon_as_the_port_is_up_again() {
    for down in [20, 27, 34] {
        let world = World::new(down);
        let add = |ip: &str| world.add_host(HostConfig::infiniband(ip.parse().expect("ip")));
        let (target, host) = (add("10.0.0.1"), add("10.0.0.2"));
        assert!(world.ib_up(LIMIT));
        let lab = Lab::between(world, target, host);
        let (host, device) = (lab.host(), lab.world.device(lab.host));
        let reconnected = lab.world.rt_outside().spawn(async move {
            let controller = host.connect(InitiatorOptions::default()).await;
            let disk = controller.namespace(1).expect("a namespace");
            host.rt.sleep(Duration::from_secs(5)).await;
            write_and_read(&disk, 0, 65536, 1).await;
            assert_eq!(controller.reconnects(), 1);
        });
        lab.world.run_for(Duration::from_secs(3));
        lab.world.partition(lab.host, true);
        lab.world.run_for(Duration::from_secs(down));
        assert!(!reconnected.is_finished());
        lab.world.partition(lab.host, false);
        let up = device.port_comes_up();
        let rt = lab.world.rt_outside();
        lab.world.block_on(LIMIT, up).expect("active");
        let since = rt.now();
        assert!(lab.world.run_until(LIMIT, || reconnected.is_finished()));
        let took = rt.now() - since;
        assert!(took < Duration::from_millis(200), "{took:?} after {down} s");
        lab.world.block_on(LIMIT, reconnected).expect("ended").expect("ran");
    }
}

/// NV-17: hosts die with commands outstanding, again and again; the target keeps nothing of them.
#[test]
fn killed_hosts_leave_nothing_behind() {
    let lab = Lab::new(7);
    let mut after_first = None;
    for round in 0..12u64 {
        let host = Host { rt: lab.world.rt(lab.host), device: lab.world.device(lab.host) };
        let keep_alive = Some(Duration::from_secs(2));
        host.rt.clone().spawn(async move {
            let options =
                InitiatorOptions { queue_entries: 128, io_queues: 2, keep_alive, ..Default::default() };
            let controller = host.connect(options).await;
            let disk = controller.namespace(1).expect("a namespace");
            for i in 0..128u64 {
                let disk = disk.clone();
                host.rt.spawn(async move {
                    loop {
                        write_and_read(&disk, i * 65536, 65536, i).await;
                    }
                });
            }
            std::future::pending::<()>().await;
        });
        lab.world.run_for(Duration::from_micros(20_000 + 3_701 * round));
        lab.world.kill(lab.host);
        lab.world.run_for(Duration::from_secs(60));
        assert_eq!(lab.target().connections(), 0, "round {round}");
        let usage = lab.world.device(lab.target_host).usage();
        assert_eq!(*after_first.get_or_insert(usage), usage, "round {round}");
        lab.world.restart(lab.host);
    }
}

/// A killed host's successor may get the number of a queue pair that the target still has a connection with: it is told so
/// (REJ 10) and connects with another. With an id slot and all queue pairs there are four numbers for each slot.
#[test]
fn a_stale_number_is_changed_for_another() {
    for seed in 0..4 {
        let world = World::new(100 + seed);
        let add = |ip: &str, id_slot| {
            let mut config = HostConfig::new(ip.parse().expect("ip"));
            config.device.id_slot = id_slot;
            config.device.limits.max_qp = u32::MAX;
            world.add_host(config)
        };
        let (target, host) = (add("10.0.0.1", None), add("10.0.0.2", Some(1)));
        let lab = Lab::between(world, target, host);
        for _ in 0..8 {
            lab.run(|host| async move {
                let controller = host.connect(InitiatorOptions::default()).await;
                let disk = controller.namespace(1).expect("a namespace");
                write_and_read(&disk, 0, 4096, 1).await;
                // It dies with its connections.
                std::mem::forget((controller, disk));
            });
            lab.world.kill(lab.host);
            lab.world.restart(lab.host);
        }
    }
}

/// NV-14 and graceful shutdown, seen from a host.
#[test]
fn a_removed_host_loses_its_association_for_good() {
    let lab = Lab::new(3);
    let target = lab.target();
    let listed = SubsystemConfig { hosts: Some(vec![identity(1).nqn]), ..lab.subsystem() };
    target.with(|target| target.remove_subsystem(&nqn())).expect("exists");
    target.with(|target| target.add_subsystem(&listed)).expect("new");
    lab.run(move |host| async move {
        let controller = host.connect(InitiatorOptions::default()).await;
        let disk = controller.namespace(1).expect("a namespace");
        write_and_read(&disk, 0, 4096, 1).await;
        target.with(|target| target.remove_host(&nqn(), &identity(1).nqn, false)).expect("exists");
        let error = disk.read(0, 4096).await.expect_err("not allowed any more");
        assert!(
            matches!(&*error.kind, NvmeErrorKind::Status(s) if s.code() == Status::CONNECT_INVALID_HOST),
            "{error}"
        );
    });
}

#[test]
fn shutdown_tells_the_hosts() {
    let lab = Lab::new(4);
    let target = lab.target();
    lab.run(move |host| async move {
        let options = InitiatorOptions { loss_timeout: Duration::from_secs(3), ..Default::default() };
        let controller = host.connect(options).await;
        let disk = controller.namespace(1).expect("a namespace");
        write_and_read(&disk, 0, 4096, 1).await;
        let before = host.rt.now();
        target.shutdown().await;
        assert!(host.rt.now() - before < Duration::from_secs(1), "the host confirms at once");
        assert_eq!(target.connections(), 0);
        let error = disk.read(0, 4096).await.expect_err("nobody is there");
        assert!(matches!(&*error.kind, NvmeErrorKind::GivenUp { .. }), "{error}");
    });
}

#[test]
fn keep_alive_ends_the_association_of_a_host_that_is_cut_off() {
    let lab = Lab::new(5);
    let host = Host { rt: lab.world.rt(lab.host), device: lab.world.device(lab.host) };
    let connected = lab.world.block_on(LIMIT, async move { host.connect(InitiatorOptions::default()).await });
    let controller = connected.expect("connects");
    lab.world.run_for(Duration::from_secs(60));
    assert_eq!(lab.target().connections(), 2, "an idle host stays connected");
    lab.world.partition(lab.host, true);
    lab.world.run_for(Duration::from_secs(30));
    assert_eq!(lab.target().connections(), 0);
    lab.world.partition(lab.host, false);
    lab.world.run_for(Duration::from_secs(60));
    assert_eq!(lab.target().connections(), 2, "and it comes back");
    drop(controller);
}

#[test]
fn the_initiator_learns_of_a_new_namespace() {
    let lab = Lab::new(6);
    let target = lab.target();
    lab.run(move |host| async move {
        let controller = host.connect(InitiatorOptions::default()).await;
        assert_eq!(controller.namespaces().len(), 1);
        host.rt.sleep(Duration::from_secs(1)).await;
        let backend = Arc::new(RamBackend::new(4096, 256).expect("fits"));
        let nsid =
            target.with(|target| target.add_namespace(&nqn(), &NamespaceConfig::new(backend))).expect("room");
        host.rt.sleep(Duration::from_secs(1)).await;
        let disk = controller.namespace(nsid).expect("seen");
        assert_eq!(disk.info().block_size, 4096);
        write_and_read(&disk, 8192, 8192, 1).await;
        controller.disconnect().await.expect("in order");
    });
}

#[test]
fn refusals_name_their_reason() {
    let lab = Lab::new(8);
    lab.run(|host| async move {
        let nobody: Nqn = "nqn.2026-01.lab:nobody".parse().expect("an NQN");
        let connect = |address, subsystem: Nqn| {
            let host = host.clone();
            async move {
                let options = InitiatorOptions::default();
                let result =
                    Controller::connect(&host.rt, &host.device, address, &subsystem, &identity(1), options)
                        .await;
                result.err().expect("refused").to_string()
            }
        };
        let text = connect(address(), nobody).await;
        assert!(text.contains("SUBNQN at offset 256 of the data"), "{text}");
        let text = connect("10.0.0.1:4421".parse().expect("an address"), nqn()).await;
        assert!(text.contains("10.0.0.1:4421") && text.contains("connecting"), "{text}");
    });
}

/// Packets that one 4 KiB read takes on the wire: command, data, response, and few acknowledgements. A guard on what the
/// speed of small I/O rests on.
#[test]
fn small_reads_take_few_packets() {
    for depth in [1u64, 32] {
        const READS: u64 = 2000;
        let lab = Lab::with_mtu(9, Limits::default(), 9000);
        let sent = {
            let (a, b) = (lab.world.device(lab.host), lab.world.device(lab.target_host));
            move || [&a, &b].map(|device| device.counters().by_name("sent_pkts").expect("a counter"))
        };
        let counters = sent.clone();
        let (before, after) = lab.run(move |host| async move {
            let options = InitiatorOptions { queue_entries: 64, keep_alive: None, ..Default::default() };
            let controller = host.connect(options).await;
            let disk = controller.namespace(1).expect("a namespace");
            let before = counters();
            let tasks: Vec<_> = (0..depth)
                .map(|task| {
                    let disk = disk.clone();
                    host.rt.spawn(async move {
                        let buffer = disk.buffer(4096).expect("memory");
                        for i in 0..READS / depth {
                            disk.read_blocks((task * 100 + i) * 8, 8, &buffer, 0).await.expect("reads");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ran");
            }
            (before, counters())
        });
        let per_read = |at: usize| (after[at] - before[at]) as f64 / (READS / depth * depth) as f64;
        let (host, target) = (per_read(0), per_read(1));
        println!("depth {depth}: {host:.2} packets a read from the host, {target:.2} from the target");
        // Command and acknowledgement; data, response and acknowledgement.
        assert!(host <= 2.2 && target <= 3.05, "{host} and {target}");
    }
}

/// A target that is gone for good: commands fail when the time that was named is over, whatever an attempt to connect is
/// waiting for just then, and the reason says that nobody is there.
#[test]
fn a_controller_that_stays_away_is_given_up_in_time() {
    let lab = Lab::new(77);
    let host = lab.host();
    let failed = lab.world.rt_outside().spawn(async move {
        let options = InitiatorOptions { loss_timeout: Duration::from_secs(7), ..Default::default() };
        let controller = host.connect(options).await;
        let disk = controller.namespace(1).expect("a namespace");
        write_and_read(&disk, 0, 4096, 1).await;
        host.rt.sleep(Duration::from_secs(1)).await;
        let error = disk.read(0, 4096).await.expect_err("nobody is there");
        assert_eq!(controller.reconnects(), 0);
        error.to_string()
    });
    lab.world.run_for(Duration::from_millis(500));
    lab.world.partition(lab.target_host, true);
    let start = lab.world.elapsed();
    assert!(lab.world.run_until(LIMIT, || failed.is_finished()));
    let took = lab.world.elapsed() - start;
    // Noticing takes the keep alive's five seconds and its interval at most.
    assert!(took < Duration::from_secs(7 + 8), "{took:?}");
    let error = lab.world.block_on(LIMIT, failed).expect("ends").expect("ran");
    assert!(error.contains("the peer is gone: not reconnected within 7s"), "{error}");
}
