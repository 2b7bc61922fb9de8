//! One volume over SCSI and over a protocol that is not SCSI: same bytes, reservations and order. SPC-4 table 66, SAM-5 §8.6.

use everywire_block::{Backend, BlockError, IoResult};

use super::*;
use crate::reservations::ReservationType;

/// A device with its only logical unit as others see it.
fn shared() -> (Lab, Arc<dyn Backend>) {
    let lab = lab();
    let backend = lab.map.get(0).expect("there").for_outsiders();
    (lab, backend)
}

fn write(backend: &dyn Backend, block: u64, byte: u8) -> IoFuture<IoResult> {
    backend.write(block * 512, &SharedBuffer::new(vec![byte; 512]).io(), false)
}

fn done(future: IoFuture<IoResult>) -> IoResult {
    match now(future) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

fn read(backend: &dyn Backend, block: u64) -> Result<Vec<u8>, BlockError> {
    let memory = SharedBuffer::new(vec![0xee; 512]);
    done(backend.read(block * 512, &memory.io())).map(|()| memory.to_vec())
}

fn reserved(result: IoResult) -> bool {
    matches!(result, Err(BlockError::Reserved { .. }))
}

/// PERSISTENT RESERVE OUT, its parameter list with reservation key and service action key.
fn reserve_out(nexus: &Nexus, action: u8, kind: u8, keys: (u8, u8)) -> Status {
    let mut list = vec![0; 24];
    (list[7], list[15]) = keys;
    send(nexus, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0).0.status
}

#[test]
fn both_see_the_same_bytes() {
    let (lab, backend) = shared();
    let nexus = lab.ready(1);
    done(write(&*backend, 3, 7)).expect("writes");
    assert_eq!(send(&nexus, &read_10(3, 1), &[], 512).1, [7; 512]);
    send(&nexus, &write_10(4, 1), &[8; 512], 0);
    assert_eq!(read(&*backend, 4).expect("reads"), [8; 512]);
    done(backend.write_zeroes(3 * 512, 512, true)).expect("zeroes");
    done(backend.discard(4 * 512, 512)).expect("discards");
    done(backend.flush()).expect("flushes");
    assert_eq!(send(&nexus, &read_10(3, 2), &[], 1024).1, [0; 1024]);
    assert!(matches!(read(&*backend, 8192), Err(BlockError::OutOfRange { .. })));
    assert_eq!(lab.map.get(0).expect("there").tasks(), 0);
}

/// SPC-4 table 66, the column of nexuses that have not registered.
#[test]
fn a_reservation_keeps_strangers_out() {
    for kind in ReservationType::ALL {
        let (lab, backend) = shared();
        let nexus = lab.ready(1);
        assert_eq!(reserve_out(&nexus, 0, 0, (0, 1)), Status::GOOD);
        done(write(&*backend, 0, 1)).expect("a registration alone reserves nothing");
        assert_eq!(reserve_out(&nexus, 1, kind.code(), (1, 0)), Status::GOOD);
        assert!(reserved(done(write(&*backend, 0, 2))), "{kind:?}");
        assert!(reserved(done(backend.write_zeroes(0, 512, false))), "{kind:?}");
        assert!(reserved(done(backend.discard(0, 512))) && reserved(done(backend.flush())), "{kind:?}");
        let may_read = matches!(
            kind,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrantsOnly
                | ReservationType::WriteExclusiveAllRegistrants
        );
        match read(&*backend, 0) {
            Ok(bytes) => assert!(may_read && bytes == [1; 512], "{kind:?}"),
            Err(error) => assert!(!may_read && reserved(Err(error)), "{kind:?}"),
        }
        assert_eq!(reserve_out(&nexus, 2, kind.code(), (1, 0)), Status::GOOD);
        done(write(&*backend, 0, 3)).expect("it is released");
    }
    // SPC-2's RESERVE excludes reads too (SPC-2 §5.5.1).
    let (lab, backend) = shared();
    let nexus = lab.ready(1);
    assert_eq!(send(&nexus, &[0x16, 0, 0, 0, 0, 0], &[], 0).0.status, Status::GOOD);
    assert!(read(&*backend, 0).is_err() && reserved(done(write(&*backend, 0, 1))));
    drop(nexus);
    done(write(&*backend, 0, 1)).expect("it ended with its nexus");
}

/// SAM-5 §8.6: what came after an ORDERED command waits for it, whatever it came by; task management is not for it.
#[test]
fn an_ordered_command_holds_for_everybody() {
    let (lab, backend) = shared();
    let (nexus, unit) = (lab.ready(1), lab.map.get(0).expect("there"));
    let cdb = write_10(0, 1);
    let ordered = || {
        let request = Request { attribute: Attribute::Ordered, ..request(7, &cdb, 512, 0) };
        let Submitted::Task(task) = nexus.submit(&request) else { panic!("it waits for data") };
        task
    };
    let task = ordered();
    let mut late = write(&*backend, 0, 2);
    let mut dropped = write(&*backend, 1, 2);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(std::pin::Pin::new(&mut late).poll(&mut cx).is_pending());
    assert!(std::pin::Pin::new(&mut dropped).poll(&mut cx).is_pending());
    drop(dropped);
    assert!(matches!(now(task.execute(SharedBuffer::new(vec![1; 512]).io())), Poll::Ready(Some(_))));
    done(late).expect("its turn has come");
    assert_eq!(read(&*backend, 0).expect("reads"), [2; 512]);
    assert_eq!(read(&*backend, 1).expect("reads"), [0; 512], "what was given up before it began is not done");
    let task = ordered();
    let late = write(&*backend, 0, 3);
    assert_eq!(now(nexus.manage(0, Function::ClearTaskSet)), Poll::Ready(Response::Complete));
    done(late).expect("the ordered command is gone, and this one was not SCSI's to abort");
    assert!(matches!(now(task.execute(SharedBuffer::new(vec![1; 512]).io())), Poll::Ready(None)));
    assert_eq!((read(&*backend, 0).expect("reads"), unit.tasks()), (vec![3; 512], 0));
}

#[test]
fn an_ejected_or_protected_medium_is_so_for_everybody() {
    let (lab, backend) = shared();
    let nexus = lab.ready(1);
    // START STOP UNIT with LOEJ, then again with START.
    assert_eq!(send(&nexus, &[0x1b, 0, 0, 0, 2, 0], &[], 0).0.status, Status::GOOD);
    assert!(matches!(read(&*backend, 0), Err(BlockError::NotReady { .. })));
    send(&nexus, &[0x1b, 0, 0, 0, 3, 0], &[], 0);
    assert!(read(&*backend, 0).is_ok());
    // SWP of the control mode page.
    let mut page = vec![0; 16];
    page[4..10].copy_from_slice(&[0x0a, 10, 0, 0x10, 8, 0]);
    page[12..14].fill(0xff);
    send(&nexus, &[0; 6], &[], 0);
    assert_eq!(send(&nexus, &[0x15, 0x10, 0, 0, 16, 0], &page, 0).0.status, Status::GOOD);
    assert!(matches!(done(write(&*backend, 0, 1)), Err(BlockError::ReadOnly { .. })));
    assert!(read(&*backend, 0).is_ok());
}
