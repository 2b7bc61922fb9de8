//! iSER under loss, death and storms of logins: exactly one status a command, every byte where it belongs, nothing left behind.

mod lab;
mod rdma_lab;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use everywire_fabric::faults::{Faults, Ppm};
use everywire_iscsi::initiator::Initiator;
use everywire_sim::HostConfig;
use lab::LIMIT;
use rdma_lab::{Host, RdmaLab, options};

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8).collect()
}

fn faults() -> Faults {
    Faults {
        loss: Ppm(20_000),
        reorder: Ppm(20_000),
        duplicate: Ppm(10_000),
        corrupt: Ppm(5_000),
        ..Faults::default()
    }
}

async fn write_and_read(session: &Initiator, offset: u64, len: usize, seed: u64) {
    let disk = session.disk(0).await.unwrap_or_else(|e| panic!("{e}"));
    let bytes = pattern(seed, len);
    disk.write(offset, bytes.clone().into()).await.unwrap_or_else(|e| panic!("{e}"));
    let back = disk.read(offset, len).await.unwrap_or_else(|e| panic!("{e}"));
    assert!(back == bytes, "{len} bytes at {offset} differ");
}

/// Twenty at once, each in a place of its own, on frames that are lost, doubled, late and damaged.
#[test]
fn many_commands_at_once_under_loss_and_reordering() {
    for (wire, config) in [("RoCE v2", HostConfig::new as fn(_) -> _), ("iWARP", HostConfig::iwarp)] {
        for seed in 0..3 {
            let lab = RdmaLab::on(seed, config);
            lab.world.set_faults(lab.host, faults());
            lab.run(move |host| async move {
                let session = host.connect(options()).await.unwrap_or_else(|e| panic!("{wire}: {e}"));
                let tasks: Vec<_> = (0..20u64)
                    .map(|i| {
                        let session = session.clone();
                        host.rt.spawn(async move {
                            for round in 0..3 {
                                let len = [512, 4096, 12288, 65536][(i as usize + round) % 4];
                                write_and_read(&session, i * 65536, len, i * 10 + round as u64).await;
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("ran");
                }
                session.logout().await;
            });
            lab.world.run_for(Duration::from_secs(30));
            let left = (lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use());
            assert_eq!(left, (0, 0, 0), "{wire}, seed {seed}");
        }
    }
}

/// Works until it is killed.
async fn restless(host: Host) {
    let session = host.connect(options()).await.unwrap_or_else(|e| panic!("{e}"));
    for i in 0..32u64 {
        let session = session.clone();
        host.rt.spawn(async move {
            loop {
                write_and_read(&session, i * 65536, 65536, i).await;
            }
        });
    }
    std::future::pending::<()>().await;
}

/// Initiators die with commands under way, again and again; the target keeps neither session nor memory of them.
#[test]
fn killed_initiators_leave_nothing_behind() {
    let lab = RdmaLab::new(7);
    let mut after_first = None;
    for round in 0..6u64 {
        let host = lab.host();
        host.rt.clone().spawn(restless(host));
        lab.world.run_for(Duration::from_micros(20_000 + 3_701 * round));
        assert_eq!(lab.target.sessions(), 1, "round {round}");
        lab.world.kill(lab.host);
        lab.world.run_for(Duration::from_secs(120));
        let left = (lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use());
        assert_eq!(left, (0, 0, 0), "round {round}");
        let usage = lab.world.device(lab.target_host).usage();
        assert_eq!(*after_first.get_or_insert(usage), usage, "round {round}");
        lab.world.restart(lab.host);
    }
}

/// The target dies three times under two dozen sessions, which all come back at once each time; no command fails, and none is lost.
#[test]
fn a_storm_of_logins() {
    const SESSIONS: usize = 24;
    let lab = RdmaLab::new(11);
    let host = lab.host();
    let (sessions, done) = (Rc::new(RefCell::new(Vec::<Initiator>::new())), Rc::new(Cell::new(0)));
    let enough = Rc::new(Cell::new(false));
    for i in 0..SESSIONS as u64 {
        let (host, sessions, done, enough) = (host.clone(), sessions.clone(), done.clone(), enough.clone());
        lab.world.rt_outside().spawn(async move {
            let mut options = options();
            options.loss_timeout = Duration::from_secs(120);
            let session = host.connect(options).await.unwrap_or_else(|e| panic!("{e}"));
            sessions.borrow_mut().push(session.clone());
            for round in 0.. {
                write_and_read(&session, i * 65536, 8192, i * 1000 + round).await;
                host.rt.sleep(Duration::from_millis(100)).await;
                if enough.get() {
                    break;
                }
            }
            session.logout().await;
            done.set(done.get() + 1);
        });
    }
    assert!(lab.world.run_until(LIMIT, || sessions.borrow().len() == SESSIONS));
    let mut served = None;
    for storm in 1..=3 {
        lab.world.run_for(Duration::from_secs(2));
        lab.world.kill(lab.target_host);
        drop(served.take());
        lab.world.run_for(Duration::from_secs(2));
        lab.world.restart(lab.target_host);
        let (target, portal) =
            rdma_lab::serve(&lab.world, lab.target_host, &lab.disk, Default::default(), Default::default());
        let all_back = || sessions.borrow().iter().all(|session| session.reconnects() == storm);
        assert!(lab.world.run_until(LIMIT, all_back), "storm {storm}: {} are back", target.sessions());
        served = Some((target, portal));
    }
    enough.set(true);
    assert!(lab.world.run_until(LIMIT, || done.get() == SESSIONS), "{} of {SESSIONS} are done", done.get());
    lab.world.run_for(Duration::from_secs(30));
    let (target, portal) = served.expect("it serves");
    assert_eq!((target.sessions(), portal.memory_in_use()), (0, 0));
}
