//! A device end to end over memory: what a nexus sees from its first command on. Expectations are SAM-5's, SPC-4's, SBC-3's.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use everywire_block::{IoFuture, RamBackend, SharedBuffer};

mod outsider;

use super::*;
use crate::lun::{LogicalUnit, LunConfig};
use crate::reservations::MemoryStore;
use crate::{Attribute, Protocol, Sense, Status};

struct Lab {
    target: Arc<Target>,
    map: Arc<LunMap>,
    port: Arc<Port>,
}

fn unit(name: &str) -> Arc<LogicalUnit> {
    let ram = Arc::new(RamBackend::new(512, 8192).expect("fits"));
    let store = Some(Arc::new(MemoryStore::default()) as Arc<_>);
    let config = LunConfig { removable: true, atomic_writes: true, store, ..LunConfig::new(name, ram) };
    LogicalUnit::new(config).expect("good")
}

fn lab() -> Lab {
    let target = Target::new();
    let map = target.lun_map();
    map.add(0, unit("one")).expect("free");
    let port = target.add_port(PortConfig {
        protocol: Protocol::Iscsi,
        name: "iqn.2026-11.example:t,t,0x0001".to_owned(),
        device_name: "iqn.2026-11.example:t".to_owned(),
        group: 1,
    });
    Lab { target, map, port: port.expect("room") }
}

impl Lab {
    fn nexus(&self, n: u8) -> Nexus {
        let name = TransportId::iscsi("iqn.2026-11.example:i", [0, 0, 0, 0, 0, n]).expect("short");
        self.target.nexus(&self.map, &self.port, name)
    }

    /// A nexus that has heard that it is new.
    fn ready(&self, n: u8) -> Nexus {
        let nexus = self.nexus(n);
        let first = send(&nexus, &[0; 6], &[], 0).0;
        assert_eq!(asc(&first), 0x2900, "SAM-5 §5.14.2");
        nexus
    }
}

fn request<'a>(tag: u64, cdb: &'a [u8], data_out: u32, data_in: u32) -> Request<'a> {
    Request { lun: 0, tag, attribute: Attribute::Simple, cdb, data_out, data_in }
}

fn now<T: Unpin>(mut future: IoFuture<T>) -> Poll<T> {
    std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a command to its end; its outcome and the data that go back.
fn send(nexus: &Nexus, cdb: &[u8], data: &[u8], data_in: u32) -> (Outcome, Vec<u8>) {
    match nexus.submit(&request(1, cdb, data.len() as u32, data_in)) {
        Submitted::Done(outcome) => (outcome, Vec::new()),
        Submitted::Task(task) => {
            let mut memory = data[..task.data_out() as usize].to_vec();
            memory.resize(memory.len().max(task.data_in() as usize), 0);
            let memory = SharedBuffer::new(memory);
            let Poll::Ready(Some(outcome)) = now(task.execute(memory.io())) else {
                panic!("it did not end at once")
            };
            let mut back = memory.to_vec();
            back.truncate(outcome.data_in as usize);
            (outcome, back)
        }
    }
}

fn asc(outcome: &Outcome) -> u16 {
    outcome.sense.and_then(|sense| Sense::parse(&sense)).map_or(0, |sense| sense.asc.0)
}

fn write_10(lba: u8, blocks: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

fn read_10(lba: u8, blocks: u8) -> [u8; 10] {
    [0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

#[test]
fn what_is_written_is_read_and_lengths_that_differ_are_told() {
    let nexus = lab().ready(1);
    let (outcome, _) = send(&nexus, &write_10(2, 2), &[7; 1024], 0);
    assert_eq!((outcome.status, outcome.residual), (Status::GOOD, Residual::None));
    let (outcome, data) = send(&nexus, &read_10(1, 4), &[], 2048);
    assert_eq!((outcome.data_in, &data[..512], &data[512..1536]), (2048, &[0; 512][..], &[7; 1024][..]));
    // IS-13: less and more than the CDB says.
    let (outcome, data) = send(&nexus, &read_10(2, 2), &[], 700);
    assert_eq!((outcome.residual, data), (Residual::Over(324), vec![7; 700]));
    let (outcome, data) = send(&nexus, &read_10(2, 1), &[], 700);
    assert_eq!((outcome.residual, data.len()), (Residual::Under(188), 512));
    let (outcome, _) = send(&nexus, &write_10(9, 2), &[9; 512], 0);
    assert_eq!((outcome.status, outcome.residual), (Status::GOOD, Residual::Over(512)));
    assert_eq!(send(&nexus, &read_10(9, 2), &[], 1024).1, [[9; 512], [0; 512]].concat());
    let (outcome, _) = send(&nexus, &write_10(9, 1), &[8; 1024], 0);
    assert_eq!((outcome.status, outcome.residual), (Status::GOOD, Residual::Under(512)));
}

#[test]
fn inquiry_is_answered_wherever_it_goes() {
    let lab = lab();
    let nexus = lab.nexus(1);
    // Before the unit attention is reported, which stays (SPC-4 §6.6.1).
    let (outcome, data) = send(&nexus, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!((outcome.status, data[0], data[2], &data[8..16]), (Status::GOOD, 0, 6, &b"EVERYWIR"[..]));
    assert_eq!(asc(&send(&nexus, &[0; 6], &[], 0).0), 0x2900);
    let (outcome, data) = send(&nexus, &[0x12, 1, 0x00, 0, 96, 0], &[], 96);
    assert_eq!(data[3] as usize + 4, data.len());
    assert!(data[4..].is_sorted() && outcome.residual == Residual::Under(96 - data.len() as u32));
    let elsewhere = Request { lun: 5 << 48, ..request(1, &[0x12, 0, 0, 0, 96, 0], 0, 96) };
    let Submitted::Task(task) = nexus.submit(&elsewhere) else { panic!("INQUIRY is always answered") };
    let memory = SharedBuffer::new(vec![0; 96]);
    assert!(matches!(now(task.execute(memory.io())), Poll::Ready(Some(_))));
    assert_eq!(memory.to_vec()[0], 0x7f, "SPC-4 §6.6.2: no logical unit there");
    let elsewhere = Request { lun: 5 << 48, ..request(1, &[0; 6], 0, 0) };
    let Submitted::Done(outcome) = nexus.submit(&elsewhere) else { panic!("there is nothing to run") };
    assert_eq!(asc(&outcome), 0x2500);
}

/// IS-18: once per nexus, and REPORT LUNS makes it known too.
#[test]
fn a_changed_map_is_told_once() {
    let lab = lab();
    let (first, second) = (lab.ready(1), lab.ready(2));
    lab.map.add(300, unit("two")).expect("free");
    assert_eq!(asc(&send(&first, &[0; 6], &[], 0).0), 0x3f0e);
    assert_eq!(send(&first, &[0; 6], &[], 0).0.status, Status::GOOD);
    let (_, data) = send(&second, &[0xa0, 0, 2, 0, 0, 0, 0, 0, 0, 255, 0, 0], &[], 255);
    let expected = [
        &[0, 0, 0, 24, 0, 0, 0, 0][..],
        &[0; 8],
        &[0x41, 0x2c, 0, 0, 0, 0, 0, 0],
        &[0xc1, 1, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(data, expected.concat());
    assert_eq!(send(&second, &[0; 6], &[], 0).0.status, Status::GOOD);
    assert!(matches!(lab.map.add(300, unit("three")), Err(MapError::Taken(300))));
}

#[test]
fn an_aborted_task_has_no_status_and_its_blocks_stay() {
    let lab = lab();
    let (nexus, other) = (lab.ready(1), lab.ready(2));
    let cdb = write_10(0, 1);
    let Submitted::Task(task) = nexus.submit(&request(7, &cdb, 512, 0)) else { panic!("it waits for data") };
    // IS-14: of a task that nobody knows, it is complete as well.
    assert_eq!(now(nexus.manage(0, Function::AbortTask { tag: 99 })), Poll::Ready(Response::Complete));
    assert_eq!(now(nexus.manage(5 << 48, Function::LunReset)), Poll::Ready(Response::NoLun));
    assert_eq!(now(nexus.manage(0, Function::AbortTask { tag: 7 })), Poll::Ready(Response::Complete));
    assert!(matches!(now(task.execute(SharedBuffer::new(vec![1; 512]).io())), Poll::Ready(None)));
    assert_eq!(send(&nexus, &read_10(0, 1), &[], 512).1, [0; 512]);
    // A reset is told to everybody.
    assert_eq!(now(nexus.manage(0, Function::LunReset)), Poll::Ready(Response::Complete));
    for nexus in [&nexus, &other] {
        assert_eq!(asc(&send(nexus, &[0; 6], &[], 0).0), 0x2903);
        assert_eq!(send(nexus, &[0; 6], &[], 0).0.status, Status::GOOD);
    }
}

#[test]
fn with_tas_others_are_told_by_status() {
    let lab = lab();
    let (nexus, other) = (lab.ready(1), lab.ready(2));
    let mut page = vec![0; 16];
    page[4..10].copy_from_slice(&[0x0a, 10, 0, 0x10, 0, 0x40]);
    page[12..14].fill(0xff);
    assert_eq!(send(&nexus, &[0x15, 0x10, 0, 0, 16, 0], &page, 0).0.status, Status::GOOD);
    assert_eq!(asc(&send(&other, &[0; 6], &[], 0).0), 0x2a01, "SPC-4 §6.9: mode parameters changed");
    let cdb = write_10(0, 1);
    let Submitted::Task(task) = other.submit(&request(7, &cdb, 512, 0)) else { panic!("it waits for data") };
    assert_eq!(now(nexus.manage(0, Function::ClearTaskSet)), Poll::Ready(Response::Complete));
    let Poll::Ready(Some(outcome)) = now(task.execute(SharedBuffer::new(vec![1; 512]).io())) else {
        panic!("a status is due")
    };
    assert_eq!(outcome.status, Status::TASK_ABORTED);
}

#[test]
fn compare_and_write_keeps_others_out_of_its_blocks() {
    let nexus = lab().ready(1);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 1);
    let data = [[0; 512], [5; 512]].concat();
    assert_eq!(send(&nexus, &cdb, &data, 0).0.status, Status::GOOD);
    let (outcome, _) = send(&nexus, &cdb, &data, 0);
    let sense = Sense::parse(&outcome.sense.expect("a miscompare")).expect("whole");
    assert_eq!((sense.key.0, sense.asc.0, sense.information), (0x0e, 0x1d00, Some(0)));
    // Sizes that are not the CDB's (libiscsi's CompareAndWrite.InvalidDataOutSize).
    for len in [512, 1536, 2048] {
        assert_eq!(asc(&send(&nexus, &cdb, &vec![0; len], 0).0), 0x2400, "{len}");
    }
    // WRITE SAME of half a block, and of two (WriteSame10 and WriteSame16.InvalidDataOutSize).
    for len in [256, 1024] {
        for cdb in [write_same_10(UNMAP, 0, 1), write_same_16(UNMAP, 0, 1)] {
            assert_eq!(asc(&send(&nexus, &cdb, &vec![0; len], 0).0), 0x2400, "{len}");
        }
    }
}

/// UNMAP and ANCHOR of WRITE SAME's byte 1. SBC-3 §5.44, §5.45.
const UNMAP: u8 = 0x08;
const ANCHOR: u8 = 0x10;

fn write_same_10(flags: u8, lba: u8, blocks: u8) -> Vec<u8> {
    vec![0x41, flags, 0, 0, 0, lba, 0, 0, blocks, 0]
}

fn write_same_16(flags: u8, lba: u8, blocks: u8) -> Vec<u8> {
    vec![0x93, flags, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, blocks, 0, 0]
}

/// Whether block `lba` is mapped, by GET LBA STATUS.
fn is_mapped(nexus: &Nexus, lba: u8) -> bool {
    let status = send(nexus, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, 24, 0, 0], &[], 24).1;
    status[20] == 0
}

#[test]
fn write_same_unmaps_what_then_reads_the_same() {
    for same in [write_same_10, write_same_16] {
        let nexus = lab().ready(1);
        assert_eq!(send(&nexus, &write_10(0, 32), &[7; 16384], 0).0.status, Status::GOOD);
        assert_eq!(send(&nexus, &same(UNMAP, 8, 16), &[0; 512], 0).0.status, Status::GOOD);
        assert_eq!([0, 8, 16, 24].map(|lba| is_mapped(&nexus, lba)), [true, false, false, true]);
        // Not aligned is as good (WriteSame10.UnmapUnaligned).
        assert_eq!(send(&nexus, &same(UNMAP, 1, 7), &[0; 512], 0).0.status, Status::GOOD);
        assert_eq!(send(&nexus, &read_10(0, 2), &[], 1024).1, [[7; 512], [0; 512]].concat());
        // SBC-3 §4.7.3.4.3: with LBPRZ, blocks that would not read as the data sent are written.
        assert_eq!(send(&nexus, &same(UNMAP, 8, 8), &[0xff; 512], 0).0.status, Status::GOOD);
        assert_eq!(
            (is_mapped(&nexus, 8), send(&nexus, &read_10(15, 1), &[], 512).1),
            (true, vec![0xff; 512])
        );
        // ANCHOR: without UNMAP never, with it where ANC_SUP says so. WSNZ: no 0 blocks.
        for (flags, blocks) in [(ANCHOR, 1), (ANCHOR | UNMAP, 1), (UNMAP, 0), (0, 0)] {
            assert_eq!(asc(&send(&nexus, &same(flags, 0, blocks), &[0; 512], 0).0), 0x2400);
        }
        let page = |code| send(&nexus, &[0x12, 1, code, 0, 64, 0], &[], 64).1;
        assert_eq!((page(0xb0)[4], page(0xb2)[5], page(0xb2)[6]), (1, 0xe4, 2), "WSNZ; LBPU to LBPRZ; thin");
    }
}

/// SPC-4 §5.12.6: a registration that outlives a restart is that of an initiator at a target port, whichever port comes first then.
#[test]
fn a_ports_number_is_that_of_its_name() {
    let numbers = |names: &[&str]| {
        let target = Target::new();
        let add = |name: &&str| {
            let (name, device_name) = ((*name).to_owned(), String::new());
            let config = PortConfig { protocol: Protocol::Iscsi, name, device_name, group: 1 };
            target.add_port(config).expect("room").relative_id
        };
        names.iter().map(add).collect::<Vec<u16>>()
    };
    let (a, b) = ("iqn.2026-11.example:a,t,0x0001", "iqn.2026-11.example:b,t,0x0001");
    let there = numbers(&[a, b]);
    assert_eq!(numbers(&[b, a]), [there[1], there[0]]);
    assert!(there[0] != there[1] && !there.contains(&0));
    let twice = numbers(&[a, a]);
    assert_ne!(twice[0], twice[1], "no two ports have one number");
}

#[test]
fn standby_refuses_the_medium_and_says_so() {
    let lab = lab();
    let nexus = lab.ready(1);
    lab.target.set_group_state(1, AccessState::Standby);
    assert_eq!(asc(&send(&nexus, &[0; 6], &[], 0).0), 0x2a06);
    assert_eq!(asc(&send(&nexus, &read_10(0, 1), &[], 512).0), 0x040b);
    let (outcome, data) = send(&nexus, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    let [high, low] = lab.port.relative_id.to_be_bytes();
    assert_eq!(
        (outcome.status, &data[..]),
        (Status::GOOD, &[0, 0, 0, 12, 2, 0x8f, 0, 1, 0, 2, 0, 1, 0, 0, high, low][..])
    );
    lab.target.set_group_state(1, AccessState::ActiveOptimized);
    assert_eq!(asc(&send(&nexus, &[0; 6], &[], 0).0), 0x2a06);
    assert_eq!(send(&nexus, &read_10(0, 1), &[], 512).0.status, Status::GOOD);
}

#[test]
fn a_lost_nexus_leaves_its_persistent_reservation_and_nothing_else() {
    let lab = lab();
    let (nexus, other) = (lab.ready(1), lab.ready(2));
    assert_eq!(send(&nexus, &[0x16, 0, 0, 0, 0, 0], &[], 0).0.status, Status::GOOD);
    assert_eq!(send(&other, &[0; 6], &[], 0).0.status, Status::RESERVATION_CONFLICT);
    drop(nexus);
    assert_eq!(send(&other, &[0; 6], &[], 0).0.status, Status::GOOD, "SPC-2 §5.5.1");
    let nexus = lab.ready(1);
    let mut list = vec![0; 24];
    list[15] = 1;
    assert_eq!(send(&nexus, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0).0.status, Status::GOOD);
    (list[7], list[15]) = (1, 0);
    assert_eq!(send(&nexus, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &list, 0).0.status, Status::GOOD);
    drop(nexus);
    assert_eq!(send(&other, &write_10(0, 1), &[1; 512], 0).0.status, Status::RESERVATION_CONFLICT);
    assert_eq!(send(&lab.ready(1), &write_10(0, 1), &[1; 512], 0).0.status, Status::GOOD);
}
