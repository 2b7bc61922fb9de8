//! Aborts at every state, by every function, over TCP and iSER: exactly one end a command, no byte of it anywhere else or later, the
//! whole window there afterwards, and the session alive. RFC 7143 §4.2.3.3, §11.5, §11.6; SAM-5 §7.

mod lab;
mod rdma_lab;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use everywire_iscsi::initiator::{Completion, Initiator, IscsiError, TagCell, Transfer};
use everywire_iscsi::pdu::{TaskFunction, TaskResult};
use everywire_iscsi::session::initiator::Failure;
use everywire_sim::HostConfig;
use everywire_verbs::rt::{JoinHandle, Rt};
use lab::BLOCK;
use lab::held::Held;
use rdma_lab::stage::{Stage, WINDOW};

/// Commands that are sent at once.
const COMMANDS: usize = 6;
/// Bytes of a command.
const LEN: usize = 96 << 10;
/// Blocks of the disk.
const BLOCKS: u64 = 4096;

fn cdb(write: bool, lba: usize, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = if write { 0x8a } else { 0x88 };
    cdb[2..10].copy_from_slice(&(lba as u64).to_be_bytes());
    cdb[10..14].copy_from_slice(&((len / BLOCK) as u32).to_be_bytes());
    cdb
}

/// A command of a place of its own, on its way.
struct Sent {
    write: bool,
    at: usize,
    bytes: Vec<u8>,
    tag: TagCell,
    end: JoinHandle<Result<Completion, IscsiError>>,
}

fn send(rt: &Rt, session: &Initiator, place: usize, write: bool, salt: u64) -> Sent {
    let (at, tag) = (place * LEN, TagCell::default());
    let bytes: Vec<u8> =
        (0..LEN as u64).map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(salt * 77) >> 7) as u8).collect();
    let transfer = if write { Transfer::Out(bytes.clone().into()) } else { Transfer::In(LEN) };
    let (session, its_tag) = (session.clone(), tag.clone());
    let end =
        rt.spawn(
            async move { session.execute_tagged(0, &cdb(write, at / BLOCK, LEN), transfer, &its_tag).await },
        );
    Sent { write, at, bytes, tag, end }
}

/// How many ended in which way.
#[derive(Default)]
struct Count {
    good: Cell<u32>,
    aborted: Cell<u32>,
    check: Cell<u32>,
}

impl Count {
    fn add(&self, end: &Result<Completion, IscsiError>) {
        let count = match end {
            Ok(Completion { status: 0, .. }) => &self.good,
            // A unit attention tells whoever comes after another's function.
            Ok(Completion { status: 2, sense, .. }) if sense[2] & 15 == 6 => &self.check,
            Err(IscsiError::Request(Failure::Aborted)) => &self.aborted,
            other => panic!("{other:?}"),
        };
        count.set(count.get() + 1);
    }
}

/// Waits for the ends of commands, and holds the disk against them: outside their places nothing changed, what was written is there,
/// what was read was there; an aborted write has written each of its blocks or not.
async fn judge(disk: &Held, before: &[u8], sent: Vec<Sent>, count: &Count) {
    let mut expected = before.to_vec();
    let mut ends = Vec::new();
    for one in sent {
        let end = one.end.await.expect("ran");
        count.add(&end);
        ends.push((one.write, one.at, one.bytes, end));
    }
    let now = disk.bytes();
    for (write, at, bytes, end) in ends {
        let place = at..at + LEN;
        let done = matches!(&end, Ok(done) if done.status == 0);
        match (write, end) {
            (true, _) if done => expected[place].copy_from_slice(&bytes),
            (true, Err(_)) => {
                for block in place.step_by(BLOCK) {
                    let (block, from) = (block..block + BLOCK, block - at);
                    if now[block.clone()] == bytes[from..from + BLOCK] {
                        expected[block].copy_from_slice(&bytes[from..from + BLOCK]);
                    }
                }
            }
            (false, Ok(read)) if done => assert!(read.data == before[place], "a read gave other bytes"),
            _ => {}
        }
    }
    assert!(now == expected, "bytes outside a command, or of one that has no end");
}

/// More commands at once than the window holds all pass: none of its places is lost.
async fn whole_window(rt: &Rt, session: &Initiator) {
    let disk = session.disk(0).await.unwrap_or_else(|e| panic!("{e}"));
    let reads: Vec<_> = (0..3 * WINDOW as u64)
        .map(|i| {
            let disk = disk.clone();
            rt.spawn(async move { disk.read(i * 4096, 4096).await.map(drop) })
        })
        .collect();
    for read in reads {
        read.await.expect("ran").unwrap_or_else(|e| panic!("{e}"));
    }
}

const SETS: [TaskFunction; 4] =
    [TaskFunction::AbortTaskSet, TaskFunction::ClearTaskSet, TaskFunction::LunReset, TaskFunction::WarmReset];

/// Six commands, of which four fit the window, and a function at any moment: before they are sent, while data moves, while the disk has
/// them, while they are answered.
#[test]
fn at_every_moment() {
    let total = Rc::new(Count::default());
    Stage::all(|wire, seed, stage| {
        let stage = stage(BLOCKS);
        let (rt, connecting, disk, count) =
            (stage.rt.clone(), (stage.connect)(), stage.disk.clone(), total.clone());
        let what = format!("{wire}, seed {seed}");
        let name = what.clone();
        stage.run(async move {
            let session = connecting.await.unwrap_or_else(|e| panic!("{name}: {e}"));
            for round in 0..20u64 {
                whole_window(&rt, &session).await;
                let before = disk.bytes();
                disk.hold(round % 3 == 2);
                let write = |i: usize| !(i as u64 + round).is_multiple_of(3);
                let sent: Vec<Sent> =
                    (0..COMMANDS).map(|i| send(&rt, &session, i, write(i), round * 10 + i as u64)).collect();
                rt.sleep(Duration::from_micros(rt.entropy() % 4000)).await;
                let (function, tags) = (SETS.get(round as usize % 6), sent.iter().map(|one| one.tag.clone()));
                let (tags, aborting): (Vec<TagCell>, _) = (tags.collect(), session.clone());
                let answer = rt.spawn(async move {
                    match function {
                        Some(function) => aborting.manage(*function, 0).await.map(|result| vec![result]),
                        None => {
                            let mut results = Vec::new();
                            for tag in [&tags[0], &tags[COMMANDS - 1]] {
                                results.push(aborting.abort(tag).await?);
                            }
                            Ok(results)
                        }
                    }
                });
                rt.sleep(Duration::from_millis(20)).await;
                if round % 3 == 2 {
                    let took_nothing = disk.bytes() == before;
                    disk.hold(false);
                    assert!(took_nothing, "{name}, round {round}: the disk was held");
                }
                let results =
                    answer.await.expect("ran").unwrap_or_else(|e| panic!("{name}, round {round}: {e}"));
                let fine = |result: &TaskResult| matches!(result, TaskResult::Complete | TaskResult::NoTask);
                assert!(results.iter().all(fine), "{name}, round {round}: {results:?}");
                judge(&disk, &before, sent, &count).await;
                let after = disk.bytes();
                rt.sleep(Duration::from_millis(20)).await;
                assert!(disk.bytes() == after, "{name}, round {round}: something came after the end");
            }
            whole_window(&rt, &session).await;
            assert_eq!(session.reconnects(), 0, "{name}: the session lived on");
            session.logout().await;
        });
        stage.check_empty(&what);
    });
    let (good, aborted) = (total.good.get(), total.aborted.get());
    assert_eq!(good + aborted + total.check.get(), 9 * 20 * COMMANDS as u32, "each ends once");
    assert!(good > 100 && aborted > 100, "{good} good, {aborted} aborted");
}

/// Another session's function ends commands without a word (TAS 0, SAM-5 §5.3.1): their own session finds out, and all end once.
#[test]
fn by_another_session() {
    let total = Rc::new(Count::default());
    Stage::all(|wire, seed, stage| {
        let stage = stage(BLOCKS);
        let connecting = ((stage.connect)(), (stage.connect)());
        let (rt, disk, count, what) =
            (stage.rt.clone(), stage.disk.clone(), total.clone(), format!("{wire}, seed {seed}"));
        let name = what.clone();
        stage.run(async move {
            let (session, other) =
                (connecting.0.await.expect("logs in"), connecting.1.await.expect("logs in"));
            for round in 0..9u64 {
                whole_window(&rt, &session).await;
                whole_window(&rt, &other).await;
                let before = disk.bytes();
                disk.hold(round % 2 == 0);
                let sent: Vec<Sent> = (0..COMMANDS)
                    .map(|i| send(&rt, &session, i, i % 2 == 0, round * 10 + i as u64))
                    .collect();
                rt.sleep(Duration::from_micros(rt.entropy() % 3000)).await;
                let (function, resetting) = (SETS[1 + round as usize % 3], other.clone());
                let answer = rt.spawn(async move { resetting.manage(function, 0).await });
                rt.sleep(Duration::from_millis(20)).await;
                disk.hold(false);
                let result =
                    answer.await.expect("ran").unwrap_or_else(|e| panic!("{name}, round {round}: {e}"));
                assert_eq!(result, TaskResult::Complete, "{name}, round {round}");
                judge(&disk, &before, sent, &count).await;
            }
            for session in [&session, &other] {
                whole_window(&rt, session).await;
                assert_eq!(session.reconnects(), 0, "{name}: the session lived on");
                session.logout().await;
            }
        });
        stage.check_empty(&what);
    });
    let (good, aborted, check) = (total.good.get(), total.aborted.get(), total.check.get());
    assert_eq!(good + aborted + check, 9 * 9 * COMMANDS as u32, "each ends once");
    assert!(aborted > 50 && check > 10, "{good} good, {aborted} aborted, {check} unit attentions");
}

/// Callers that go away at any moment take nothing of the window along.
#[test]
fn callers_go_away() {
    Stage::all(|wire, seed, stage| {
        let stage = stage(BLOCKS);
        let (rt, connecting, disk) = (stage.rt.clone(), (stage.connect)(), stage.disk.clone());
        let what = format!("{wire}, seed {seed}");
        let name = what.clone();
        stage.run(async move {
            let session = connecting.await.expect("logs in");
            for round in 0..12u64 {
                disk.hold(round % 2 == 0);
                let callers: Vec<_> = (0..2 * COMMANDS)
                    .map(|i| {
                        let (session, its_rt) = (session.clone(), rt.clone());
                        let patience = Duration::from_micros(rt.entropy() % 3000);
                        rt.spawn(async move {
                            let cdb = cdb(i % 2 == 0, i * LEN / BLOCK, LEN);
                            let out = Transfer::Out(vec![i as u8; LEN].into());
                            let transfer = if i % 2 == 0 { out } else { Transfer::In(LEN) };
                            its_rt.timeout(patience, session.execute(0, &cdb, transfer)).await.is_ok()
                        })
                    })
                    .collect();
                for caller in callers {
                    caller.await.expect("ran");
                }
                disk.hold(false);
                whole_window(&rt, &session).await;
            }
            assert_eq!(session.reconnects(), 0, "{name}: the session lived on");
            session.logout().await;
        });
        stage.check_empty(&what);
    });
}

/// Commands that wait for the window have no CmdSN: aborted, or without their callers, they leave no gap.
#[test]
fn before_they_are_sent() {
    Stage::all(|wire, seed, stage| {
        let stage = stage(BLOCKS);
        let (rt, connecting, disk) = (stage.rt.clone(), (stage.connect)(), stage.disk.clone());
        let what = format!("{wire}, seed {seed}");
        stage.run(async move {
            let session = connecting.await.expect("logs in");
            whole_window(&rt, &session).await;
            disk.hold(true);
            let mut sent: Vec<Sent> =
                (0..WINDOW as usize + 4).map(|i| send(&rt, &session, i, false, 0)).collect();
            while disk.inside() < WINDOW as usize {
                rt.sleep(Duration::from_millis(1)).await;
            }
            let (aborted, dropped) = (sent.remove(WINDOW as usize), sent.remove(WINDOW as usize + 1));
            assert_eq!(session.abort(&aborted.tag).await, Ok(TaskResult::Complete));
            assert_eq!(aborted.end.await.expect("ran"), Err(IscsiError::Request(Failure::Aborted)));
            // The caller of this one is told nothing, and goes.
            assert_eq!(session.abort(&dropped.tag).await, Ok(TaskResult::Complete));
            drop(dropped);
            disk.hold(false);
            for one in sent {
                let tag = one.tag.clone();
                assert_eq!(one.end.await.expect("ran").expect("a status").status, 0);
                assert_eq!(session.abort(&tag).await, Ok(TaskResult::NoTask), "it has ended");
            }
            whole_window(&rt, &session).await;
            session.logout().await;
        });
        stage.check_empty(&what);
    });
}

/// Over RDMA a command may wait for memory of this side's too, and one that no memory holds is refused, not the session's end.
#[test]
fn before_there_is_memory() {
    const LARGE: usize = 32 << 20;
    let stage = Stage::iser(1, LARGE as u64 / BLOCK as u64, HostConfig::new);
    let (rt, connecting, disk) = (stage.rt.clone(), (stage.connect)(), stage.disk.clone());
    stage.run(async move {
        let session = connecting.await.expect("logs in");
        whole_window(&rt, &session).await;
        let too_long = session.execute(0, &cdb(false, 0, LARGE + BLOCK), Transfer::In(LARGE + BLOCK)).await;
        let failure = Failure::TooLong { len: LARGE + BLOCK, most: LARGE };
        assert_eq!(too_long, Err(IscsiError::Request(failure)));
        disk.hold(true);
        let large: Vec<_> = (0..2)
            .map(|_| {
                let session = session.clone();
                rt.spawn(async move { session.execute(0, &cdb(false, 0, LARGE), Transfer::In(LARGE)).await })
            })
            .collect();
        rt.sleep(Duration::from_millis(10)).await;
        let small: Vec<Sent> = (0..2).map(|i| send(&rt, &session, i, true, 1)).collect();
        rt.sleep(Duration::from_millis(10)).await;
        assert_eq!(session.abort(&small[0].tag).await, Ok(TaskResult::Complete));
        disk.hold(false);
        let mut ends = Vec::new();
        for one in small {
            ends.push(one.end.await.expect("ran").map(|done| done.status));
        }
        assert_eq!(ends, [Err(IscsiError::Request(Failure::Aborted)), Ok(0)]);
        for one in large {
            assert_eq!(one.await.expect("ran").expect("a status").data.len(), LARGE);
        }
        whole_window(&rt, &session).await;
        assert_eq!(session.reconnects(), 0);
        session.logout().await;
    });
    stage.check_empty("memory");
}
