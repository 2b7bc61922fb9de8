//! Targets for what `everywire-scsi` takes from initiators: CDBs and parameter lists, through a whole device over memory.
//! Whatever comes, a command ends once, within the lengths that its initiator gave; and what is read is written the same.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use everywire_block::{RamBackend, SharedBuffer};
use everywire_fuzz::target;
use everywire_scsi::cdb::Command;
use everywire_scsi::lun::{LogicalUnit, LunConfig};
use everywire_scsi::reservations::MemoryStore;
use everywire_scsi::target::{Nexus, PortConfig, Request, Submitted, Target};
use everywire_scsi::{Attribute, Protocol, Sense, Status, TransportId};

/// Bytes that an initiator offers to take.
const TAKES: u32 = 4096;
/// Polls after which a command should have ended: SANITIZE gives way once a MiB.
const POLLS: usize = 64;

fn device() -> Nexus {
    let target = Target::new();
    let map = target.lun_map();
    let ram = Arc::new(RamBackend::new(512, 2048).expect("fits"));
    let store = Some(Arc::new(MemoryStore::default()) as Arc<_>);
    let config = LunConfig { removable: true, atomic_writes: true, store, ..LunConfig::new("fuzz", ram) };
    map.add(0, LogicalUnit::new(config).expect("good")).expect("free");
    let (name, device_name) =
        ("iqn.2026-11.example:t,t,0x0001".to_owned(), "iqn.2026-11.example:t".to_owned());
    let port = target.add_port(PortConfig { protocol: Protocol::Iscsi, name, device_name, group: 1 });
    let initiator = TransportId::iscsi("iqn.2026-11.example:i", [0; 6]).expect("short");
    target.nexus(&map, &port.expect("room"), initiator)
}

/// Sends one command and holds its outcome against what the initiator gave.
fn send(nexus: &Nexus, cdb: &[u8], data: &[u8]) {
    let (data_out, data_in) = (data.len() as u32, if data.is_empty() { TAKES } else { 0 });
    let request = Request { lun: 0, tag: 1, attribute: Attribute::Simple, cdb, data_out, data_in };
    let outcome = match nexus.submit(&request) {
        Submitted::Done(outcome) => outcome,
        Submitted::Task(task) => {
            assert!(task.data_out() <= data_out && task.data_in() <= data_in);
            let mut memory = data[..task.data_out() as usize].to_vec();
            memory.resize(memory.len().max(task.data_in() as usize), 0);
            let mut run = task.execute(SharedBuffer::new(memory).io());
            let mut poll = || Pin::new(&mut run).poll(&mut Context::from_waker(Waker::noop()));
            let ended = (0..POLLS).find_map(|_| match poll() {
                Poll::Ready(outcome) => Some(outcome.expect("nobody aborted it")),
                Poll::Pending => None,
            });
            ended.expect("memory keeps nobody waiting")
        }
    };
    assert!(outcome.data_in <= data_in);
    assert_eq!(outcome.sense.is_some(), outcome.status == Status::CHECK_CONDITION);
    if let Some(sense) = outcome.sense {
        assert!(Sense::parse(&sense).is_some());
    }
}

/// A CDB of 16 bytes, and what follows it as data.
fn exchanges() -> Vec<Vec<u8>> {
    let with = |cdb: &[u8], data: &[u8]| {
        let mut bytes = cdb.to_vec();
        bytes.resize(16, 0);
        bytes.extend(data);
        bytes
    };
    let mut reserve = vec![0; 24];
    reserve[15] = 1;
    let mut copy = vec![0; 16 + 32 + 28];
    (copy[3], copy[11], copy[16], copy[48], copy[51]) = (32, 28, 0xe4, 2, 24);
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend([0; 16]);
    vec![
        with(&[0x2a, 0, 0, 0, 0, 1, 0, 0, 1], &[7; 512]),
        with(&[0x28, 0, 0, 0, 0, 1, 0, 0, 4], &[]),
        with(&[0x12, 1, 0x83, 0, 255], &[]),
        with(&[0x5a, 0x10, 0x3f, 0, 0, 0, 0, 0, 255], &[]),
        with(
            &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 20],
            &[0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 0, 16, 8, 0, 0, 0, 255, 255, 0, 0],
        ),
        with(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24], &reserve),
        with(&[0x5e, 3, 0, 0, 0, 0, 0, 1, 0], &[]),
        with(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24], &unmap),
        with(&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 76], &copy),
        with(&[0x48, 1, 0, 0, 0, 0, 0, 0, 8], &[1, 0, 0, 4, 1, 2, 3, 4]),
        with(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0], &[]),
        with(&[0xa3, 0x0c, 0x81, 0x28, 0, 0, 0, 0, 4, 0], &[]),
        with(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[0; 1024]),
    ]
}

target!(scsi_command, exchanges(), |bytes| {
    let (cdb, data) = bytes.split_at(bytes.len().min(16));
    if let Ok(command) = Command::parse(cdb) {
        let emitted = command.emit();
        assert_eq!(Command::parse(emitted.as_bytes()), Ok(command), "{cdb:02x?}");
    }
    let nexus = device();
    // The first one hears of the unit attention, or is one that is always answered; the second acts.
    send(&nexus, cdb, data);
    send(&nexus, cdb, data);
});

/// Several commands of one nexus: each is a CDB of 16 bytes, a length in two, and its data.
fn sequences() -> Vec<Vec<u8>> {
    let pieces: Vec<Vec<u8>> = exchanges()
        .into_iter()
        .map(|one| {
            let (cdb, data) = one.split_at(16);
            [cdb, &(data.len() as u16).to_be_bytes(), data].concat()
        })
        .collect();
    vec![pieces.concat(), pieces[5..8].concat()]
}

target!(scsi_sequence, sequences(), |bytes| {
    let nexus = device();
    send(&nexus, &[0; 6], &[]);
    let mut rest = bytes;
    while rest.len() >= 18 {
        let (head, after) = rest.split_at(18);
        let len = usize::from(u16::from_be_bytes([head[16], head[17]])).min(after.len());
        let (data, after) = after.split_at(len);
        send(&nexus, &head[..16], data);
        rest = after;
    }
});

target!(
    sense_data,
    [&[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xc0, 0, 2][..], &[0x72, 5, 0x24, 0, 0, 0, 0, 0]]
        .map(<[u8]>::to_vec),
    |bytes| {
        if let Some(sense) = Sense::parse(bytes) {
            assert!(!sense.to_string().is_empty());
            let descriptor = sense.emit(true);
            assert_eq!(
                Sense::parse(&descriptor).map(|again| (again.key, again.asc, again.information)),
                Some((sense.key, sense.asc, sense.information))
            );
        }
    }
);
