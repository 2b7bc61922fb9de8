//! Under loss, death and abortion: exactly one end a command, no byte outside its buffer, credits conserved.

mod lab;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use everywire_scsi::cdb::{Command, Io, Size};
use everywire_srp::PortId;
use everywire_srp::iu::{Function, LogoutReason, RejectReason};
use everywire_srp::rdma::initiator::{IoData, SrpErrorKind, TagCell};
use everywire_srp::rdma::{Initiator, InitiatorOptions, TargetOptions};
use everywire_srp::target::Limits;
use lab::held::{Held, hold};
use lab::{Host, INITIATOR, LIMIT, Lab, TARGET, address, all_back, faults, options, pattern, write_and_read};

/// SR-04: a send queue of few entries, many descriptors, many commands; guards around every buffer stay as they were.
#[test]
fn many_commands_at_once_under_loss_and_reordering() {
    for seed in 0..6 {
        let limits = Limits { request_limit: 8, ..Limits::default() };
        let small = TargetOptions {
            data_pool: 256 << 10,
            max_transfer: 64 << 10,
            send_queue: 10,
            ..TargetOptions::default()
        };
        let lab = Lab::with(seed, limits, small);
        lab.world.set_faults(lab.host, faults());
        lab.run(move |host| async move {
            let segment = if seed % 2 == 0 { Some(1024) } else { None };
            let channels = 1 + seed as usize % 3;
            let initiator = host.connect(InitiatorOptions { segment, channels, ..options() }).await;
            let disk = initiator.disk(0).await.expect("a disk");
            let tasks: Vec<_> = (0..24u64)
                .map(|i| {
                    let disk = disk.clone();
                    host.rt.spawn(async move {
                        for round in 0..4 {
                            let len = [512, 4096, 12288, 65536][(i as usize + round) % 4];
                            guarded(&disk, i * 65536, len, seed * 1000 + i * 10 + round as u64).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ran");
            }
            all_back(&initiator, 8);
            initiator.log_out().await;
        });
        lab.world.run_for(Duration::from_secs(10));
        assert_eq!((lab.target().channels(), lab.target().data_in_use()), (0, 0), "seed {seed}");
    }
}

/// Writes and reads within a larger buffer, whose other bytes must stay.
async fn guarded(disk: &everywire_srp::rdma::initiator::Disk, offset: u64, len: usize, seed: u64) {
    const GUARD: usize = 512;
    let region = disk.buffer(len + 2 * GUARD).expect("memory");
    let bytes = pattern(len, seed);
    region.write_at(GUARD, &bytes).expect("fits");
    disk.write_from(offset, &region, GUARD, len, false).await.unwrap_or_else(|e| panic!("{e}"));
    region.write_at(0, &vec![0x5a; len + 2 * GUARD]).expect("fits");
    disk.read_into(offset, &region, GUARD, len).await.unwrap_or_else(|e| panic!("{e}"));
    let back = region.read_vec(0, len + 2 * GUARD).expect("fits");
    assert!(back[GUARD..GUARD + len] == bytes, "{len} bytes at {offset} differ");
    let untouched = |part: &[u8]| part.iter().all(|&byte| byte == 0x5a);
    assert!(untouched(&back[..GUARD]) && untouched(&back[GUARD + len..]), "bytes outside the buffer");
}

/// SR-09: the target dies and comes back; commands wait and go on.
#[test]
fn logs_in_again_after_the_target_was_killed() {
    for seed in 0..4 {
        let lab = Lab::new(seed);
        let host = lab.host();
        let rt = lab.world.rt_outside();
        let done = rt.spawn(async move {
            let io_timeout = Duration::from_secs(2);
            let channels = 1 + seed as usize % 2;
            let initiator = host.connect(InitiatorOptions { io_timeout, channels, ..options() }).await;
            let disk = initiator.disk(0).await.expect("a disk");
            for round in 0..200 {
                write_and_read(&disk, (round % 16) * 65536, 65536, round).await;
                host.rt.sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(initiator.reconnects(), 1);
            all_back(&initiator, 128);
            initiator.log_out().await;
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

/// Initiators die with commands outstanding, again and again; the target keeps nothing of them.
#[test]
fn killed_initiators_leave_nothing_behind() {
    let lab = Lab::new(7);
    let mut after_first = None;
    for round in 0..8u64 {
        let host = lab.host();
        host.rt.clone().spawn(async move {
            let initiator = host.connect(InitiatorOptions { channels: 2, ..options() }).await;
            let disk = initiator.disk(0).await.expect("a disk");
            for i in 0..64u64 {
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
        // A target notices a silent initiator when it has something to send; one that was idle has its place taken by the next.
        lab.world.restart(lab.host);
        lab.run(|host| async move { host.connect(options()).await.log_out().await });
        lab.world.run_for(Duration::from_secs(30));
        assert_eq!((lab.target().channels(), lab.target().nexuses()), (0, 0), "round {round}");
        assert_eq!(lab.target().data_in_use(), 0, "round {round}");
        let usage = lab.world.device(lab.target_host).usage();
        assert_eq!(*after_first.get_or_insert(usage), usage, "round {round}");
    }
}

fn io(lba: u64, blocks: u32) -> Io {
    Io::new(Size::Sixteen, lba, blocks)
}

/// Commands are aborted at any moment; after the answer nothing more of them reaches the initiator's memory, and no place is lost.
#[test]
fn aborts_at_every_state() {
    for seed in 0..12u64 {
        let (backend, gate) = Held::new(65536);
        let lab = Lab::on(seed, backend, Limits { request_limit: 16, ..Limits::default() }, small());
        if seed % 3 == 0 {
            lab.world.set_faults(lab.host, faults());
        }
        let (aborted, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (count_aborted, count_ended) = (aborted.clone(), ended.clone());
        lab.run(move |host| async move {
            let segment = Some(2048).filter(|_| seed % 2 == 0);
            let initiator =
                host.connect(InitiatorOptions { segment, channels: 2, immediate: 0, ..options() }).await;
            initiator.disk(0).await.expect("a disk").read(0, 512).await.expect("reads");
            for round in 0..40u64 {
                hold(&gate, round % 4 == 3);
                let (write, tag) = (round % 2 == 0, TagCell::default());
                let region = initiator.buffer(65536).expect("memory");
                let (running, memory, its_tag) = (initiator.clone(), region.clone(), tag.clone());
                let task = host.rt.spawn(async move {
                    let (command, data) = if write {
                        (
                            Command::Write(io(128 * round, 128)),
                            IoData::Out { region: &memory, at: 0, len: 65536 },
                        )
                    } else {
                        (
                            Command::Read(io(128 * round, 128)),
                            IoData::In { region: &memory, at: 0, len: 65536 },
                        )
                    };
                    running.execute_tagged(0, command.emit().as_bytes(), data, &its_tag).await
                });
                // From before it is sent to after it is answered.
                host.rt.sleep(Duration::from_micros((round * 7919 + seed * 104_729) % 200)).await;
                while !tag.is_sent() {
                    host.rt.sleep(Duration::from_micros(1)).await;
                }
                let aborting = initiator.clone();
                let abort = host.rt.spawn(async move {
                    if round % 5 == 4 {
                        aborting.manage(0, Function::LunReset).await
                    } else {
                        aborting.abort(0, &tag).await
                    }
                });
                host.rt.sleep(Duration::from_millis(20)).await;
                hold(&gate, false);
                abort.await.expect("ran").unwrap_or_else(|e| panic!("round {round}: {e}"));
                region.write_at(0, &vec![0x5a; 65536]).expect("fits");
                match task.await.expect("ran") {
                    Ok(_) => count_ended.set(count_ended.get() + 1),
                    Err(error) if matches!(*error.kind, SrpErrorKind::Aborted) => {
                        count_aborted.set(count_aborted.get() + 1);
                    }
                    Err(error) => panic!("{error}"),
                }
                host.rt.sleep(Duration::from_millis(20)).await;
                assert_eq!(region.read_vec(0, 65536).expect("fits"), vec![0x5a; 65536], "round {round}");
            }
            host.rt.sleep(Duration::from_secs(1)).await;
            all_back(&initiator, 16);
            write_and_read(&initiator.disk(0).await.expect("a disk"), 0, 65536, seed).await;
            initiator.log_out().await;
        });
        assert_eq!(aborted.get() + ended.get(), 40, "each ends once");
        assert!(aborted.get() > 5 && ended.get() > 1, "{} aborted, {} ended", aborted.get(), ended.get());
        lab.world.run_for(Duration::from_secs(10));
        assert_eq!(lab.target().data_in_use(), 0);
    }
}

/// A channel that ends does not give away memory that the backend still works with.
#[test]
fn a_buffer_belongs_to_its_command_until_the_backend_is_done() {
    let (backend, gate) = Held::new(65536);
    let lab = Lab::on(6, backend, Limits::default(), small());
    let (target, gate_here) = (lab.target(), gate.clone());
    lab.run(move |host| async move {
        let initiator = host.connect(options()).await;
        let disk = initiator.disk(0).await.expect("a disk");
        hold(&gate_here, true);
        let reading = host.rt.spawn(async move { disk.read(0, 65536).await.map(drop) });
        host.rt.sleep(Duration::from_millis(10)).await;
        assert_eq!(target.data_in_use(), 65536);
        target.disconnect(TARGET, LogoutReason::NONE);
        // The initiator is back, and has sent the command again; the backend is still at work with the memory of the first.
        host.rt.sleep(Duration::from_millis(100)).await;
        assert_eq!((target.channels(), target.data_in_use()), (1, 2 * 65536));
        hold(&gate_here, false);
        reading.await.expect("ran").expect("reads");
        host.rt.sleep(Duration::from_millis(10)).await;
        assert_eq!(target.data_in_use(), 0);
        initiator.log_out().await;
    });
}

fn small() -> TargetOptions {
    TargetOptions {
        data_pool: 512 << 10,
        max_transfer: 256 << 10,
        send_queue: 24,
        ..TargetOptions::default()
    }
}

/// SR-01: another initiator's reset ends all commands of this one without a response; SRP_CRED_REQ brings the places back.
#[test]
fn no_credit_is_stranded() {
    let (backend, gate) = Held::new(65536);
    let lab = Lab::on(3, backend, Limits { request_limit: 6, ..Limits::default() }, small());
    lab.run(move |host| async move {
        let first = host.connect(options()).await;
        let other = PortId::new(7, INITIATOR.guid);
        let second = host.connect(InitiatorOptions { initiator: other, ..options() }).await;
        for initiator in [&first, &second] {
            initiator.disk(0).await.expect("a disk").read(0, 512).await.expect("reads");
        }
        hold(&gate, true);
        for i in 0..5u64 {
            let first = first.clone();
            host.rt.spawn(async move {
                let region = first.buffer(4096).expect("memory");
                let data = IoData::In { region: &region, at: 0, len: 4096 };
                first.execute(0, Command::Read(io(8 * i, 8)).emit().as_bytes(), data).await
            });
        }
        host.rt.sleep(Duration::from_millis(10)).await;
        assert_eq!(first.credits(), [(1, 5)], "one is kept for task management");
        let resetting = second.clone();
        let reset = host.rt.spawn(async move { resetting.manage(0, Function::LunReset).await });
        host.rt.sleep(Duration::from_millis(10)).await;
        hold(&gate, false);
        reset.await.expect("ran").expect("resets");
        host.rt.sleep(Duration::from_millis(10)).await;
        assert_eq!(first.credits()[0].0, 6, "all places are back, without a response");
        write_and_read(&second.disk(0).await.expect("a disk"), 0, 4096, 1).await;
    });
}

/// Asynchronous events are answered one by one, and carry credits.
#[test]
fn asynchronous_events() {
    let lab = Lab::new(5);
    let target = lab.target();
    lab.run(move |host| async move {
        let initiator = host.connect(options()).await;
        let sense = everywire_scsi::Sense::new(
            everywire_scsi::SenseKey::UNIT_ATTENTION,
            everywire_scsi::Asc::REPORTED_LUNS_CHANGED,
        );
        for _ in 0..10 {
            target.event(TARGET, 0, &sense.emit(false));
        }
        host.rt.sleep(Duration::from_millis(10)).await;
        let disk = initiator.disk(0).await.expect("the channel lives");
        write_and_read(&disk, 0, 4096, 1).await;
        all_back(&initiator, 128);
    });
}

/// A new single-channel login takes the place of every channel that the nexus has; the old initiator is told why.
#[test]
fn a_new_login_takes_the_place_of_the_old() {
    let lab = Lab::new(6);
    lab.run(move |host: Host| async move {
        let loss_timeout = Some(Duration::ZERO);
        let old = host.connect(InitiatorOptions { channels: 3, loss_timeout, ..options() }).await;
        let disk = old.disk(0).await.expect("a disk");
        let new = host.connect(options()).await;
        host.rt.sleep(Duration::from_millis(100)).await;
        let error = disk.read(0, 512).await.expect_err("its channels are gone");
        assert!(error.to_string().contains("multi-channel action"), "{error}");
        write_and_read(&new.disk(0).await.expect("a disk"), 0, 4096, 1).await;
        new.log_out().await;
    });
    assert!(lab.world.run_until(LIMIT, || lab.target().channels() == 0));
}

/// SR-02: refusals in words, with both addresses.
#[test]
fn refusals_say_why() {
    let limits = Limits { channels_per_nexus: 2, max_it_iu_len: 4096, ..Limits::default() };
    let lab = Lab::with(8, limits, small());
    lab.run(move |host: Host| async move {
        let wrong = PortId::new(1, 2);
        let refused = Initiator::connect(&host.rt, &host.device, address(), wrong, options()).await;
        let text = refused.err().expect("no such port").to_string();
        for part in ["10.0.0.1:5555", "unable to associate", "0x00010003", "0000000000000001"] {
            assert!(text.contains(part), "{text}");
        }
        let many = InitiatorOptions { channels: 3, ..options() };
        let refused = Initiator::connect(&host.rt, &host.device, address(), TARGET, many).await;
        let error = refused.err().expect("too many");
        assert!(matches!(*error.kind, SrpErrorKind::Refused(RejectReason::CHANNEL_LIMIT)), "{error}");
        let long = InitiatorOptions { descriptors: 255, immediate: 0, ..options() };
        let refused = Initiator::connect(&host.rt, &host.device, address(), TARGET, long).await;
        let error = refused.err().expect("too long");
        assert!(matches!(*error.kind, SrpErrorKind::Refused(RejectReason::IU_LENGTH_TOO_LARGE)), "{error}");
        // With immediate data it is asked for less.
        let initiator = host.connect(options()).await;
        assert_eq!(initiator.immediate(), 0);
        write_and_read(&initiator.disk(0).await.expect("a disk"), 0, 8192, 1).await;
        initiator.log_out().await;
    });
}
