//! Aborts at every state, by every function, on one channel and on several: exactly one end a command, no byte of it anywhere else or
//! later, every credit back, and the channels alive. SRP r16a §5.7; SAM-5 §7.

mod lab;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everywire_scsi::SenseKey;
use everywire_scsi::cdb::{Command, Io, Size};
use everywire_sim::HostConfig;
use everywire_srp::PortId;
use everywire_srp::iu::Function;
use everywire_srp::rdma::initiator::{Completion, IoData, SrpError, SrpErrorKind, TagCell};
use everywire_srp::rdma::{Initiator, InitiatorOptions, TargetOptions};
use everywire_srp::target::Limits;
use everywire_verbs::MemoryRegion;
use everywire_verbs::rt::{JoinHandle, Rt};
use lab::held::{Gate, Held, hold};
use lab::{INITIATOR, Lab, all_back, faults, options, pattern};

/// Commands at once.
const COMMANDS: usize = 8;
/// Bytes of a command.
const LEN: usize = 48 << 10;
const BLOCKS: u64 = 4096;
/// Requests that a channel may have outstanding: with one channel commands wait for credits.
const LIMIT: u16 = 6;
const GUARD: u8 = 0x5a;

type Wire = (&'static str, fn(IpAddr) -> HostConfig);

const WIRES: [Wire; 2] = [("RoCE v2", HostConfig::new), ("InfiniBand", HostConfig::infiniband)];

struct Stage {
    lab: Lab,
    rt: Rt,
    disk: Arc<Held>,
    gate: Arc<Mutex<Gate>>,
    what: String,
}

/// Each wire with one, two and three channels; RoCE with faults but once.
fn stages(mut act: impl FnMut(Stage, usize)) {
    for (wire, config) in WIRES {
        for seed in 0..4u64 {
            let (disk, gate) = Held::new(BLOCKS);
            let limits = Limits { request_limit: LIMIT, ..Limits::default() };
            let small = TargetOptions {
                data_pool: 512 << 10,
                max_transfer: 256 << 10,
                send_queue: 24,
                ..TargetOptions::default()
            };
            let lab = Lab::on_wire(config, seed, disk.clone(), limits, small);
            if seed > 0 && wire == "RoCE v2" {
                lab.world.set_faults(lab.host, faults());
            }
            let (rt, what) = (lab.host().rt, format!("{wire}, seed {seed}"));
            act(Stage { lab, rt, disk, gate, what }, 1 + seed as usize % 3);
        }
    }
}

fn with(channels: usize, seed: u64) -> InitiatorOptions {
    let segment = Some(4096).filter(|_| seed.is_multiple_of(2));
    InitiatorOptions { channels, segment, io_timeout: Duration::from_secs(2), ..options() }
}

fn io(place: usize) -> Io {
    Io::new(Size::Sixteen, (place * LEN / 512) as u64, (LEN / 512) as u32)
}

/// A command of a place of its own, on its way.
struct Sent {
    write: bool,
    at: usize,
    bytes: Vec<u8>,
    region: MemoryRegion,
    tag: TagCell,
    end: JoinHandle<Result<Completion, SrpError>>,
}

fn send(rt: &Rt, initiator: &Initiator, place: usize, write: bool, salt: u64) -> Sent {
    let (tag, bytes) = (TagCell::default(), pattern(LEN, salt));
    let region = initiator.buffer(LEN).expect("memory");
    if write {
        region.write_at(0, &bytes).expect("fits");
    }
    let (initiator, its_tag, memory) = (initiator.clone(), tag.clone(), region.clone());
    let end = rt.spawn(async move {
        let (command, data) = match write {
            true => (Command::Write(io(place)), IoData::Out { region: &memory, at: 0, len: LEN as u32 }),
            false => (Command::Read(io(place)), IoData::In { region: &memory, at: 0, len: LEN as u32 }),
        };
        let end = initiator.execute_tagged(0, command.emit().as_bytes(), data, &its_tag).await;
        if end.is_err() {
            // From here on the target must not reach it: neither may this be read, nor may anything be written here.
            memory.write_at(0, &vec![GUARD; LEN]).expect("fits");
        }
        end
    });
    Sent { write, at: place * LEN, bytes, region, tag, end }
}

#[derive(Default)]
struct Count {
    good: Cell<u32>,
    aborted: Cell<u32>,
    check: Cell<u32>,
}

impl Count {
    fn add(&self, what: &str, end: &Result<Completion, SrpError>) {
        let count = match end {
            Ok(done) if done.status.0 == 0 => &self.good,
            // It tells whoever comes after another's function.
            Ok(done) if done.sense_key() == Some(SenseKey::UNIT_ATTENTION) => &self.check,
            Err(error) if matches!(*error.kind, SrpErrorKind::Aborted) => &self.aborted,
            other => panic!("{what}: {other:?}"),
        };
        count.set(count.get() + 1);
    }
}

/// Waits for the ends of commands, and holds disk and memory against them: outside their places nothing changed, what was written is
/// there, what was read was there; an aborted write has written each of its blocks or not; nothing moves after the end.
async fn judge(rt: &Rt, what: &str, disk: &Held, before: &[u8], sent: Vec<Sent>, count: &Count) {
    let mut ends = Vec::new();
    for mut one in sent {
        let end = (&mut one.end).await.expect("ran");
        count.add(what, &end);
        ends.push((one, end));
    }
    let (now, mut expected) = (disk.bytes(), before.to_vec());
    for (one, end) in &ends {
        let place = one.at..one.at + LEN;
        let good = matches!(end, Ok(done) if done.status.0 == 0);
        match (one.write, end) {
            (true, _) if good => expected[place].copy_from_slice(&one.bytes),
            (true, Err(_)) => {
                for block in place.step_by(512) {
                    let from = block - one.at;
                    if now[block..block + 512] == one.bytes[from..from + 512] {
                        expected[block..block + 512].copy_from_slice(&one.bytes[from..from + 512]);
                    }
                }
            }
            (false, _) if good => {
                let read = one.region.read_vec(0, LEN).expect("fits");
                assert!(read == before[place], "{what}: a read gave other bytes");
            }
            _ => {}
        }
    }
    assert!(now == expected, "{what}: bytes outside a command, or of one that was aborted");
    rt.sleep(Duration::from_millis(20)).await;
    assert!(disk.bytes() == now, "{what}: something came to the disk after the end");
    for (one, _) in ends.iter().filter(|(_, end)| end.is_err()) {
        assert!(
            one.region.read_vec(0, LEN).expect("fits") == vec![GUARD; LEN],
            "{what}: memory of an aborted command"
        );
    }
}

/// Every credit is back, and as many commands as there ever are pass.
async fn whole(rt: &Rt, what: &str, initiator: &Initiator) {
    let disk = initiator.disk(0).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let reads: Vec<_> = (0..4 * u64::from(LIMIT))
        .map(|i| {
            let disk = disk.clone();
            rt.spawn(async move { disk.read(i * 4096, 4096).await.map(drop) })
        })
        .collect();
    for read in reads {
        read.await.expect("ran").unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    // The last ones may come by SRP_CRED_REQ.
    rt.sleep(Duration::from_secs(1)).await;
    all_back(initiator, LIMIT.into());
}

/// Eight commands and a function at any moment: before they are sent, while tables and data move, while the disk has them, while they
/// are answered. ABORT TASK ends the command that it names and no other, though all channels have the same tags.
#[test]
fn at_every_moment() {
    let total = Rc::new(Count::default());
    stages(|Stage { lab, rt, disk, gate, what }, channels| {
        let count = total.clone();
        lab.run(move |host| async move {
            let seed = channels as u64;
            let initiator = host.connect(with(channels, seed)).await;
            let sets =
                [Function::AbortTaskSet, Function::ClearTaskSet, Function::LunReset, Function::ClearAca];
            for round in 0..24u64 {
                let what = format!("{what}, {channels} channels, round {round}");
                whole(&rt, &what, &initiator).await;
                let before = disk.bytes();
                hold(&gate, round % 3 == 2);
                let write = |i: usize| !(i as u64 + round).is_multiple_of(3);
                let sent: Vec<Sent> = (0..COMMANDS)
                    .map(|i| send(&rt, &initiator, i, write(i), round * 10 + i as u64))
                    .collect();
                rt.sleep(Duration::from_micros(rt.entropy() % 400)).await;
                let function = sets.get(round as usize % 7).copied();
                let named: Vec<usize> = if function.is_none() { vec![1, COMMANDS - 1] } else { Vec::new() };
                let tags: Vec<TagCell> = named.iter().map(|&i| sent[i].tag.clone()).collect();
                let (aborting, its_what) = (initiator.clone(), what.clone());
                let answer = rt.spawn(async move {
                    if let Some(function) = function {
                        aborting.manage(0, function).await.unwrap_or_else(|e| panic!("{its_what}: {e}"));
                    }
                    for tag in tags {
                        match aborting.abort(0, &tag).await {
                            Ok(()) => {}
                            Err(error) if matches!(*error.kind, SrpErrorKind::Argument(_)) => {}
                            Err(error) => panic!("{its_what}: {error}"),
                        }
                    }
                });
                rt.sleep(Duration::from_millis(20)).await;
                hold(&gate, false);
                answer.await.expect("ran");
                let already = count.aborted.get();
                judge(&rt, &what, &disk, &before, sent, &count).await;
                let aborted = (count.aborted.get() - already) as usize;
                match function {
                    None => {
                        assert!(aborted <= named.len(), "{what}: {aborted} aborted, {named:?} were named")
                    }
                    Some(Function::ClearAca) => assert_eq!(aborted, 0, "{what}"),
                    Some(_) => {}
                }
            }
            whole(&rt, &what, &initiator).await;
            assert_eq!(initiator.reconnects(), 0, "{what}: the channels lived on");
            initiator.log_out().await;
        });
        lab.world.run_for(Duration::from_secs(10));
        assert_eq!((lab.target().channels(), lab.target().data_in_use()), (0, 0));
    });
    let (good, aborted) = (total.good.get(), total.aborted.get());
    assert_eq!(good + aborted + total.check.get(), 8 * 24 * COMMANDS as u32, "each ends once");
    assert!(good > 100 && aborted > 100, "{good} good, {aborted} aborted");
}

/// Another initiator's function ends commands without a word (TAS 0, SAM-5 §5.3.1): their own finds out, and all end once.
#[test]
fn by_another_initiator() {
    let total = Rc::new(Count::default());
    stages(|Stage { lab, rt, disk, gate, what }, channels| {
        let count = total.clone();
        lab.run(move |host| async move {
            let initiator = host.connect(with(channels, 1)).await;
            let other = PortId::new(7, INITIATOR.guid);
            let other = host.connect(InitiatorOptions { initiator: other, ..with(1, 1) }).await;
            for round in 0..6u64 {
                let what = format!("{what}, {channels} channels, round {round}");
                whole(&rt, &what, &initiator).await;
                whole(&rt, &what, &other).await;
                let before = disk.bytes();
                hold(&gate, round % 2 == 0);
                let sent: Vec<Sent> = (0..COMMANDS)
                    .map(|i| send(&rt, &initiator, i, i % 2 == 0, round * 10 + i as u64))
                    .collect();
                rt.sleep(Duration::from_micros(rt.entropy() % 300)).await;
                let function = if round % 4 < 2 { Function::ClearTaskSet } else { Function::LunReset };
                let resetting = other.clone();
                let answer = rt.spawn(async move { resetting.manage(0, function).await });
                rt.sleep(Duration::from_millis(20)).await;
                hold(&gate, false);
                answer.await.expect("ran").unwrap_or_else(|e| panic!("{what}: {e}"));
                judge(&rt, &what, &disk, &before, sent, &count).await;
            }
            for initiator in [&initiator, &other] {
                whole(&rt, &what, initiator).await;
                assert_eq!(initiator.reconnects(), 0, "{what}: the channels lived on");
                initiator.log_out().await;
            }
        });
    });
    let (good, aborted, check) = (total.good.get(), total.aborted.get(), total.check.get());
    assert_eq!(good + aborted + check, 8 * 6 * COMMANDS as u32, "each ends once");
    assert!(aborted > 50, "{good} good, {aborted} aborted, {check} unit attentions");
}

/// Callers that go away at any moment take no credit along.
#[test]
fn callers_go_away() {
    stages(|Stage { lab, rt, gate, what, .. }, channels| {
        lab.run(move |host| async move {
            let initiator = host.connect(with(channels, 2)).await;
            for round in 0..8u64 {
                hold(&gate, round % 2 == 0);
                let callers: Vec<_> = (0..2 * COMMANDS)
                    .map(|i| {
                        let (initiator, its_rt) = (initiator.clone(), rt.clone());
                        let patience = Duration::from_micros(rt.entropy() % 300);
                        rt.spawn(async move {
                            let region = initiator.buffer(LEN).expect("memory");
                            let data = IoData::In { region: &region, at: 0, len: LEN as u32 };
                            let command = Command::Read(io(i)).emit();
                            let _ = its_rt
                                .timeout(patience, initiator.execute(0, command.as_bytes(), data))
                                .await;
                        })
                    })
                    .collect();
                for caller in callers {
                    caller.await.expect("ran");
                }
                hold(&gate, false);
                whole(&rt, &what, &initiator).await;
            }
            assert_eq!(initiator.reconnects(), 0, "{what}: the channels lived on");
            initiator.log_out().await;
        });
    });
}

/// Commands have taken every slot of this side, and never end: a function still gets through, and ends them.
#[test]
fn a_function_has_room() {
    let (disk, gate) = Held::new(BLOCKS);
    let lab = Lab::on(1, disk, Limits::default(), TargetOptions::default());
    let rt = lab.host().rt;
    lab.run(move |host| async move {
        let initiator = host.connect(InitiatorOptions { queue: 4, ..options() }).await;
        initiator.disk(0).await.expect("a disk").read(0, 512).await.expect("reads");
        hold(&gate, true);
        let sent: Vec<Sent> = (0..COMMANDS).map(|i| send(&rt, &initiator, i, false, 1)).collect();
        rt.sleep(Duration::from_millis(10)).await;
        let (resetting, letting_go) = (initiator.clone(), gate.clone());
        let reset = rt.spawn(async move { resetting.manage(0, Function::LunReset).await });
        rt.sleep(Duration::from_millis(10)).await;
        hold(&letting_go, false);
        reset.await.expect("ran").expect("resets");
        let count = Count::default();
        for one in sent {
            count.add("queue of 4", &one.end.await.expect("ran"));
        }
        assert_eq!(count.aborted.get(), 3, "what had been sent");
        assert_eq!(initiator.reconnects(), 0);
    });
}

/// More than the target moves for one command is answered by a status; the channel goes on.
#[test]
fn a_command_that_is_too_long() {
    const LONG: usize = (32 << 20) + 512;
    let lab = Lab::new(1);
    lab.run(move |host| async move {
        let initiator = host.connect(options()).await;
        let disk = initiator.disk(0).await.expect("a disk");
        let region = initiator.buffer(LONG).expect("memory");
        for write in [false, true] {
            let io = Io::new(Size::Sixteen, 0, (LONG / 512) as u32);
            let (command, data) = match write {
                true => (Command::Write(io), IoData::Out { region: &region, at: 0, len: LONG as u32 }),
                false => (Command::Read(io), IoData::In { region: &region, at: 0, len: LONG as u32 }),
            };
            let done = initiator.execute(0, command.emit().as_bytes(), data).await.expect("a status");
            assert_eq!(done.sense_key(), Some(SenseKey::ILLEGAL_REQUEST));
        }
        disk.read(0, 4096).await.expect("reads");
        assert_eq!(initiator.reconnects(), 0);
    });
}
