//! Both halves end to end over a pipe in virtual time: every way that data moves, losses, reinstatement, task management.

mod lab;

use std::time::Duration;

use bytes::Bytes;
use everywire_iscsi::initiator::{IscsiError, Options, Transfer, discover};
use everywire_iscsi::keys::Key;
use everywire_iscsi::login::LoginStatus;
use everywire_iscsi::login::chap::{ChapPolicy, Credentials};
use everywire_iscsi::login::initiator::LoginError;
use everywire_iscsi::pdu::{TaskFunction, TaskResult};
use everywire_iscsi::session::initiator::Failure;
use everywire_iscsi::session::scsi::{Function, Residual};
use everywire_iscsi::target::config::Moved;
use everywire_iscsi::target::{Rule, TargetOptions};
use lab::{BLOCK, HOST, LIMIT, Lab, STUCK, TARGET, address, name, pattern};

fn with(options: Options, keys: &[(Key, &str)]) -> Options {
    let mut options = options;
    keys.iter().for_each(|(key, value)| options.offers.set(*key, value));
    options
}

/// MaxRecvDataSegmentLength, FirstBurstLength, MaxBurstLength, MaxOutstandingR2T.
const GEOMETRIES: [(&str, &str, &str, &str); 2] =
    [("262144", "262144", "1048576", "16"), ("1024", "3072", "8192", "2")];

/// All four ImmediateData × InitialR2T combinations, all digests, small bursts and segments (RFC 7143 §13.10–§13.17).
#[test]
fn data_moves_in_every_way() {
    for (immediate, r2t) in [("Yes", "No"), ("Yes", "Yes"), ("No", "No"), ("No", "Yes")] {
        for (header, data) in [("None", "None"), ("CRC32C", "CRC32C"), ("CRC32C", "None"), ("None", "CRC32C")]
        {
            for (segment, first, burst, outstanding) in GEOMETRIES {
                let lab = Lab::new(1);
                let keys = [
                    (Key::ImmediateData, immediate),
                    (Key::InitialR2T, r2t),
                    (Key::HeaderDigest, header),
                    (Key::DataDigest, data),
                    (Key::MaxRecvDataSegmentLength, segment),
                    (Key::FirstBurstLength, first),
                    (Key::MaxBurstLength, burst),
                    (Key::MaxOutstandingR2T, outstanding),
                ];
                let session = lab.connect(with(lab.options(), &keys));
                lab.run(async move {
                    let session = session.await.expect("logs in");
                    let disk = session.disk(0).await.expect("a disk");
                    for (i, len) in [512, 1024, 1536, 4096, 70_144, 300_032].into_iter().enumerate() {
                        let bytes = pattern(i, len);
                        disk.write(i as u64 * 512, bytes.clone().into()).await.expect("writes");
                        assert_eq!(disk.read(i as u64 * 512, len).await.expect("reads"), bytes);
                    }
                    disk.flush().await.expect("flushes");
                    session.logout().await;
                });
                lab.world.run_for(Duration::from_secs(5));
                assert_eq!((lab.target.sessions(), lab.disk.nexuses.get()), (0, 0));
            }
        }
    }
}

/// What is longer than MAXIMUM TRANSFER LENGTH goes in several commands (SBC-3 §6.6.4), which the unit would refuse otherwise.
#[test]
fn a_long_transfer_is_cut() {
    let lab = Lab::new(19);
    lab.disk.max_blocks.set(24);
    let session = lab.connect(lab.options());
    let disk = lab.disk.clone();
    lab.run(async move {
        let session = session.await.expect("logs in");
        let bytes = pattern(3, 70_144);
        let unit = session.disk(0).await.expect("a disk");
        unit.write(512, bytes.clone().into()).await.expect("writes");
        assert_eq!(unit.read(512, 70_144).await.expect("reads"), bytes);
        let longest = disk.seen.borrow().iter().map(|one| one.data_in.max(one.data_out)).max();
        assert_eq!(longest, Some(24 * 512));
        session.logout().await;
    });
}

/// A target that says GOOD and no residual has to have sent everything: what did not come is nobody's data.
#[test]
fn a_read_that_brings_too_little() {
    let lab = Lab::new(3);
    let session = lab.connect(lab.options());
    lab.disk.halves.set(true);
    lab.run(async move {
        let session = session.await.expect("logs in");
        let disk = session.disk(0).await.expect("a disk");
        let buffer = disk.buffer(4096).expect("memory");
        for got in [disk.read(0, 4096).await.map(drop), disk.read_into(0, &buffer, 0, 4096).await] {
            let text = got.expect_err("half of it").to_string();
            assert!(text.contains("2048 bytes of 4096"), "{text}");
        }
        session.logout().await;
    });
}

/// IS-13: residuals both ways, and no byte beyond the expected length (RFC 7143 §11.4.5).
#[test]
fn residuals() {
    let lab = Lab::new(2);
    let session = lab.connect(lab.options());
    lab.disk.bytes.borrow_mut()[..2048].copy_from_slice(&pattern(1, 2048));
    let disk = lab.disk.clone();
    lab.run(async move {
        let session = session.await.expect("logs in");
        let cdb = |opcode, blocks| [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, blocks, 0, 0];
        for (blocks, want, residual) in
            [(2, 1024, Residual::None), (4, 1000, Residual::Over(1048)), (1, 1024, Residual::Under(512))]
        {
            let done = session.execute(0, &cdb(0x88, blocks), Transfer::In(want)).await.expect("a status");
            assert_eq!((done.status, done.residual), (0, residual));
            assert_eq!(done.data, pattern(1, 2048)[..want.min(usize::from(blocks) * BLOCK)]);
        }
        let bytes = pattern(5, 1024);
        let done =
            session.execute(0, &cdb(0x8a, 1), Transfer::Out(bytes.clone().into())).await.expect("a status");
        assert_eq!((done.status, done.residual), (0, Residual::Under(512)));
        assert_eq!(disk.bytes.borrow()[..512], bytes[..512]);
        assert_eq!(disk.bytes.borrow()[512..1024], pattern(1, 2048)[512..1024], "nothing beyond the command");
        let done = session
            .execute(0, &cdb(0x8a, 2), Transfer::Out(bytes[..512].to_vec().into()))
            .await
            .expect("a status");
        assert_eq!((done.status, done.residual), (0, Residual::Over(512)));
        let done = session.execute(0, &[0x5f; 10], Transfer::None).await.expect("a status");
        assert_eq!((done.status, done.sense[2], done.sense[12]), (2, 5, 0x20));
    });
}

/// RFC 7143 §7.4: commands without status are sent again after a loss, in whatever state they were.
#[test]
fn a_cut_connection_is_not_noticed_but_by_a_pause() {
    for seed in 0..20 {
        let lab = Lab::new(seed);
        let session = lab.connect(lab.options());
        let session = lab.run(session).expect("logs in");
        let (pipes, rt) = (lab.pipes.clone(), lab.rt());
        let cutter = rt.clone();
        rt.spawn(async move {
            for round in 0..6 {
                cutter.sleep(Duration::from_micros(300 + 977 * ((seed * 7 + round) % 5))).await;
                pipes.cut();
                pipes.up.set(round % 2 == 0);
                cutter.sleep(Duration::from_millis(150)).await;
                pipes.up.set(true);
            }
        });
        let (rt, mine) = (lab.rt(), session.clone());
        lab.run(async move {
            let disk = mine.disk(0).await.expect("a disk");
            for round in 0..40 {
                let bytes = pattern(round, 65_536);
                disk.write(0, bytes.clone().into()).await.expect("writes");
                rt.sleep(Duration::from_millis(20)).await;
                assert_eq!(disk.read(0, bytes.len()).await.expect("reads"), bytes);
            }
            mine.logout().await;
        });
        assert!(session.reconnects() >= 3, "{}", session.reconnects());
        lab.world.run_for(Duration::from_secs(10));
        assert_eq!((lab.target.sessions(), lab.disk.nexuses.get()), (0, 0));
    }
}

/// A target that stays away: commands fail after the time for it, and not before.
#[test]
fn a_lost_target_fails_commands_in_the_end() {
    let lab = Lab::new(3);
    let session = lab.run(lab.connect(lab.options())).expect("logs in");
    lab.pipes.up.set(false);
    lab.pipes.cut();
    let start = lab.world.elapsed();
    let lost = lab.run(async move { session.execute(0, &[0; 6], Transfer::None).await });
    assert!(matches!(lost, Err(IscsiError::Lost(_))), "{lost:?}");
    let waited = lab.world.elapsed().as_nanos() - start.as_nanos();
    assert!(waited >= 20_000_000_000, "{waited}");
}

/// IS-14 and RFC 7143 §11.5.1: an aborted task has no status; what is not there does not exist.
#[test]
fn task_management() {
    let lab = Lab::new(4);
    let session = lab.run(lab.connect(lab.options())).expect("logs in");
    let (rt, stuck) = (lab.rt(), session.clone());
    let waiting = rt.spawn(async move { stuck.execute(0, &[STUCK; 16], Transfer::None).await });
    let managed = lab.disk.managed.clone();
    let rt = lab.rt();
    lab.run(async move {
        rt.sleep(Duration::from_millis(10)).await;
        assert_eq!(session.manage(TaskFunction::LunReset, 0).await.expect("an answer"), TaskResult::Complete);
        assert_eq!(
            session.manage(TaskFunction::Reassign, 0).await.expect("an answer"),
            TaskResult::NoReassignment
        );
        let done = session.execute(0, &[0; 6], Transfer::None).await.expect("the session goes on");
        assert_eq!(done.status, 0);
        let ended = waiting.await.expect("ran").expect_err("no status for an aborted task");
        assert_eq!(ended, IscsiError::Request(Failure::Aborted));
    });
    assert_eq!(*managed.borrow(), [Function::LunReset]);
}

/// TARGET COLD RESET ends the sessions (RFC 7143 §11.5.1); initiators come back.
#[test]
fn cold_reset() {
    let lab = Lab::new(5);
    let (one, two) = (lab.connect(lab.options()), lab.connect(lab.options()));
    let rt = lab.rt();
    lab.run(async move {
        let (one, two) = (one.await.expect("logs in"), two.await.expect("logs in"));
        assert_eq!(two.execute(0, &[0; 6], Transfer::None).await.expect("a status").status, 0);
        let _ = one.manage(TaskFunction::ColdReset, 0).await;
        rt.sleep(Duration::from_secs(20)).await;
        assert_eq!(two.execute(0, &[0; 6], Transfer::None).await.expect("a status").status, 0);
        assert!(one.reconnects() == 1 && two.reconnects() == 1);
    });
}

/// Idle sessions live by pings both ways (RFC 7143 §11.18); IS-16: StatSN stays in step over them.
#[test]
fn idle_sessions_stay() {
    let lab = Lab::new(6);
    let session = lab.run(lab.connect(lab.options())).expect("logs in");
    lab.world.run_for(Duration::from_secs(300));
    let (asked, counted) = (session.clone(), session.clone());
    let done = lab.run(async move { asked.execute(0, &[0; 6], Transfer::None).await.expect("a status") });
    assert_eq!((done.status, counted.reconnects()), (0, 0));
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials::new(name, secret.as_bytes()).expect("credentials")
}

/// IS-11: discovery has its own secrets; SendTargets shows what the rules let this initiator see.
#[test]
fn discovery() {
    let found = |lab: &Lab, options: Options| {
        let (rt, pipes) = (lab.rt(), lab.pipes.clone());
        lab.run(async move { discover(&rt, pipes, address(3260), options).await })
    };
    let lab = Lab::new(7);
    let all = found(&lab, lab.options()).expect("discovers");
    assert_eq!((all[0].name.as_str(), &all[0].addresses[..]), (TARGET, &["192.0.2.1:3260,1".to_owned()][..]));

    let initiators = vec![credentials("scout", "abcdefghijkl")];
    let discovery_chap = ChapPolicy { initiators, target: None };
    let lab = Lab::with(7, TargetOptions { discovery_chap, ..TargetOptions::default() }, |_| {});
    let refused = found(&lab, lab.options()).expect_err("no secret");
    assert_eq!(refused, LoginError::Refused(LoginStatus::AuthenticationFailure).into());
    let options = Options { chap: Some(credentials("scout", "abcdefghijkl")), ..lab.options() };
    assert_eq!(found(&lab, options).expect("discovers").len(), 1);
    assert!(lab.run(lab.connect(lab.options())).is_ok(), "the target itself wants no secret");

    let other = name("iqn.2001-04.com.example:other");
    let lab = Lab::with(7, TargetOptions::default(), |node| {
        node.rules = vec![Rule { initiators: vec![other], ..Rule::default() }];
    });
    assert_eq!(found(&lab, lab.options()).expect("discovers"), []);
}

/// IS-01: the address alone may decide.
#[test]
fn access_rules() {
    let try_with = |rules: Vec<Rule>| {
        let lab = Lab::with(8, TargetOptions::default(), |node| node.rules = rules);
        lab.run(lab.connect(lab.options())).map(|_| ())
    };
    let net = |text: &str| vec![text.parse().expect("a subnet")];
    let refused = Err(LoginError::Refused(LoginStatus::AuthorizationFailure).into());
    assert_eq!(try_with(vec![Rule { addresses: net("192.0.2.0/24"), ..Rule::default() }]), Ok(()));
    assert_eq!(try_with(vec![Rule { addresses: net("203.0.113.0/24"), ..Rule::default() }]), refused);
    let deny = Rule { initiators: vec![name(HOST)], deny: true, ..Rule::default() };
    assert_eq!(try_with(vec![deny, Rule::default()]), refused);
}

#[test]
fn redirection_is_followed_to_its_limit() {
    let moved = Moved { to: "192.0.2.1:3260,1".to_owned(), permanently: false };
    let lab = Lab::with(9, TargetOptions::default(), |node| node.moved = Some(moved));
    let error = lab.run(lab.connect(lab.options())).map(|_| ()).expect_err("it moves for ever");
    assert!(error.to_string().contains("moved"), "{error}");
}

/// Shutdown asks initiators to log out (RFC 7143 §11.9.1, event 1), and is not long about it.
#[test]
fn shutdown_is_orderly() {
    let lab = Lab::new(10);
    let session = lab.run(lab.connect(lab.options())).expect("logs in");
    let asked = session.clone();
    lab.run(async move { asked.execute(0, &[0; 6], Transfer::None).await.expect("a status") });
    lab.pipes.up.set(false);
    let target = lab.target.clone();
    lab.run(async move { target.shutdown().await });
    assert_eq!((lab.target.sessions(), lab.disk.nexuses.get()), (0, 0));
}

/// A thousand logins and logouts leave nothing (IS-03).
#[test]
fn a_thousand_logins() {
    let lab = Lab::new(11);
    for _ in 0..1000 {
        let session = lab.connect(lab.options());
        lab.run(async move { session.await.expect("logs in").logout().await });
    }
    lab.world.run_for(LIMIT / 10);
    assert_eq!((lab.target.sessions(), lab.disk.nexuses.get()), (0, 0));
}

/// Many commands at once stay within the target's window, and each ends once.
#[test]
fn many_at_once() {
    let lab = Lab::new(12);
    let session = lab.run(lab.connect(lab.options())).expect("logs in");
    let rt = lab.rt();
    lab.run(async move {
        let disk = session.disk(0).await.expect("a disk");
        let tasks: Vec<_> = (0..500_usize)
            .map(|i| {
                let disk = disk.clone();
                rt.spawn(async move {
                    let bytes = Bytes::from(pattern(i, 4096));
                    disk.write(i as u64 * 4096, bytes.clone()).await.expect("writes");
                    assert_eq!(disk.read(i as u64 * 4096, 4096).await.expect("reads"), bytes);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ends");
        }
    });
}

/// SBC-3 §5.37 and §6.4.1: FUA is set where the unit announces DPOFUA; elsewhere SYNCHRONIZE CACHE follows the write.
#[test]
fn fua_only_where_it_is_known() {
    const WRITE_16: u8 = 0x8a;
    const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    for (dpofua, expected) in [
        (0x10, vec![(WRITE_16, 0), (WRITE_16, 0x08)]),
        (0x00, vec![(WRITE_16, 0), (WRITE_16, 0), (SYNCHRONIZE_CACHE_10, 0)]),
    ] {
        let lab = Lab::new(12);
        lab.disk.device_specific.set(dpofua);
        let session = lab.connect(lab.options());
        lab.run(async move {
            let session = session.await.expect("logs in");
            let disk = session.disk(0).await.expect("a disk");
            disk.write(0, pattern(1, BLOCK).into()).await.expect("writes");
            disk.write_through(0, pattern(2, BLOCK).into()).await.expect("writes");
            session.logout().await;
        });
        let seen = lab.disk.seen.borrow();
        let changes = seen.iter().filter(|one| [WRITE_16, SYNCHRONIZE_CACHE_10].contains(&one.cdb[0]));
        let changes: Vec<(u8, u8)> = changes.map(|one| (one.cdb[0], one.cdb[1])).collect();
        assert_eq!(changes, expected, "device-specific parameter {dpofua:#04x}");
    }
}
