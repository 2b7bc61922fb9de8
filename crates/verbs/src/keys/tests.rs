//! The key table by the standard's rules: cases RX-17, RX-18, RX-20, RX-31 and IBTA §10.6.

use super::*;
use crate::memory::CopyMemory;
use everywire_transport::memory::{AtomicOp, BindWindow, FastRegister, Memory, RemoteAccess, Sge};
use everywire_wire::{LKey, Qpn, RKey};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QPN: Qpn = Qpn::new(0x1234);
const ALL: Access = REMOTE.union(Access::LOCAL_WRITE).union(Access::MW_BIND);

struct Mr {
    key: u32,
    base: u64,
    region: Arc<Region>,
}

impl Mr {
    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.base.wrapping_add(offset), length, lkey: LKey(self.key) }
    }
    fn at(&self, offset: u64, length: u64, need: Access) -> RemoteAccess {
        RemoteAccess {
            pd: PD,
            qpn: QPN,
            rkey: RKey(self.key),
            va: self.base.wrapping_add(offset),
            length,
            need,
        }
    }
}

fn table() -> KeyTable {
    KeyTable::new(7, 1000, 1000)
}

fn register_in(table: &mut KeyTable, pd: PdId, len: usize, access: Access, iova: Option<u64>) -> Mr {
    let region = Arc::new(Region::owned(len).unwrap());
    let new = NewRegion { pd, access, iova, region: region.clone() };
    let (key, base) = table.register(new).unwrap();
    Mr { key, base, region }
}

fn register(table: &mut KeyTable, len: usize, access: Access) -> Mr {
    register_in(table, PD, len, access, None)
}

fn counting(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn any_offset_and_length_inside_a_region_is_allowed() {
    // RX-17: regions that begin and end anywhere in a page, segments that cross pages.
    let mut table = table();
    for iova in [0u64, 1, 4095, 4096, 0x7fff_ffff_f001] {
        let mr = register_in(&mut table, PD, 3 * 4096 + 17, ALL, Some(iova));
        assert_eq!(mr.base, iova);
        let size = mr.region.len();
        for offset in [0, 1, 4094, 4096, 8191, size - 1] {
            for length in [1, 2, 4097, size - offset] {
                let inside = offset + length <= size;
                let expected = if inside { Ok(length) } else { Err(AccessError::OutOfBounds) };
                assert_eq!(table.check_local(PD, &[mr.sge(offset, length as u32)], true), expected);
                let remote = table.check_remote(&mr.at(offset, length, Access::REMOTE_WRITE));
                assert_eq!(remote.is_ok(), inside);
            }
        }
        table.deregister(mr.key);
    }
}

#[test]
fn segments_gather_and_scatter_at_any_offset() {
    let mut table = table();
    let (a, b) = (register(&mut table, 10_000, ALL), register(&mut table, 5000, ALL));
    let list = [a.sge(3, 4000), b.sge(0, 0), b.sge(17, 1), b.sge(999, 4001), a.sge(5000, 5000)];
    let total: usize = list.iter().map(|sge| sge.length as usize).sum();
    let message = counting(total);
    let mut at = 0;
    for chunk in [1, 4096, 1024, 17, 4096] {
        let chunk = &message[at..total.min(at + chunk)];
        table.scatter(PD, &list, at as u64, chunk).unwrap();
        at += chunk.len();
    }
    table.scatter(PD, &list, at as u64, &message[at..]).unwrap();
    for (offset, length) in [(0, total), (3999, 3), (4000, 1), (4001, 4001), (total - 1, 1), (7, 12_000)] {
        let mut out = vec![0; length];
        table.gather(PD, &list, offset as u64, &mut out).unwrap();
        assert!(out == message[offset..][..length], "{length} bytes at {offset}");
    }
    let mut past = [0; 2];
    assert_eq!(table.gather(PD, &list, total as u64 - 1, &mut past), Err(AccessError::OutOfBounds));
}

#[test]
fn every_segment_is_checked_before_a_byte_moves() {
    let mut table = table();
    let (good, small) = (register(&mut table, 100, ALL), register(&mut table, 10, ALL));
    let read_only = register(&mut table, 100, Access::empty());
    let foreign = register_in(&mut table, OTHER_PD, 100, ALL, None);
    let unknown = Sge { lkey: LKey(good.key ^ 1), ..good.sge(0, 10) };
    let rows = [
        (small.sge(5, 6), AccessError::OutOfBounds),
        (small.sge(u64::MAX, 1), AccessError::OutOfBounds),
        (read_only.sge(0, 10), AccessError::Permission),
        (foreign.sge(0, 10), AccessError::WrongPd),
        (unknown, AccessError::UnknownKey),
        (Sge { addr: u64::MAX, ..good.sge(0, 10) }, AccessError::OutOfBounds),
    ];
    for (bad, error) in rows {
        let list = [good.sge(0, 50), bad];
        assert_eq!(table.check_local(PD, &list, true), Err(error));
        assert_eq!(table.scatter(PD, &list, 45, &[0xff; 8]), Err(error));
        let mut bytes = [0; 50];
        good.region.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 50], "nothing was written before the refusal");
    }
    assert!(table.check_local(PD, &[read_only.sge(0, 10)], false).is_ok(), "reading needs no LOCAL_WRITE");
}

#[test]
fn nothing_is_checked_where_there_are_no_bytes() {
    // RX-20 and IBTA C9-88: a zero-length operation succeeds with any key and address.
    let mut table = table();
    let nonsense = Sge { addr: 0xdead, length: 0, lkey: LKey(0) };
    assert_eq!(table.check_local(PD, &[nonsense, nonsense], true), Ok(0));
    assert_eq!(table.check_local(PD, &[], true), Ok(0));
    assert!(table.gather(PD, &[nonsense], 0, &mut []).is_ok());
    assert!(table.scatter(PD, &[], 0, &[]).is_ok());
    for need in [Access::REMOTE_READ, Access::REMOTE_WRITE] {
        let at = RemoteAccess { pd: PD, qpn: QPN, rkey: RKey(0), va: 1, length: 0, need };
        assert!(table.check_remote(&at).is_ok());
        assert!(table.read_remote(&at, &mut []).is_ok());
        assert!(table.write_remote(&at, &[]).is_ok());
    }
}

#[test]
fn remote_access_needs_key_domain_permission_and_bounds() {
    let mut table = table();
    let mr = register(&mut table, 100, Access::REMOTE_READ);
    let read = mr.at(0, 100, Access::REMOTE_READ);
    assert!(table.check_remote(&read).is_ok());
    let rows = [
        (RemoteAccess { rkey: RKey(mr.key.wrapping_add(1)), ..read }, AccessError::UnknownKey),
        (RemoteAccess { rkey: RKey(mr.key.wrapping_add(256)), ..read }, AccessError::UnknownKey),
        (RemoteAccess { pd: OTHER_PD, ..read }, AccessError::WrongPd),
        (RemoteAccess { need: Access::REMOTE_WRITE, ..read }, AccessError::Permission),
        (RemoteAccess { need: Access::REMOTE_ATOMIC, length: 8, ..read }, AccessError::Permission),
        (RemoteAccess { length: 101, ..read }, AccessError::OutOfBounds),
        (RemoteAccess { va: mr.base - 1, length: 1, ..read }, AccessError::OutOfBounds),
        (RemoteAccess { va: mr.base + 100, length: 1, ..read }, AccessError::OutOfBounds),
        (RemoteAccess { length: u64::MAX, ..read }, AccessError::OutOfBounds),
        (RemoteAccess { va: u64::MAX, length: 2, ..read }, AccessError::OutOfBounds),
    ];
    for (at, error) in rows {
        assert_eq!(table.check_remote(&at), Err(error), "{at:x?}");
    }
    assert_eq!(table.write_remote(&mr.at(0, 4, Access::REMOTE_WRITE), b"oops"), Err(AccessError::Permission));
    table.deregister(mr.key);
    assert_eq!(table.check_remote(&read), Err(AccessError::UnknownKey));
}

#[test]
fn the_last_byte_of_the_address_space() {
    let mut table = table();
    let mr = register_in(&mut table, PD, 16, ALL, Some(u64::MAX - 16));
    assert!(table.check_remote(&mr.at(0, 16, Access::REMOTE_WRITE)).is_ok());
    assert_eq!(table.check_remote(&mr.at(1, 16, Access::REMOTE_WRITE)), Err(AccessError::OutOfBounds));
    let region = Arc::new(Region::owned(17).unwrap());
    let new = NewRegion { pd: PD, access: ALL, iova: Some(u64::MAX - 15), region };
    assert_eq!(table.register(new), Err(KeyTableError::Wraps));
    assert_eq!(table.usage(), (1, 0));
}

#[test]
fn zero_based_regions_count_from_their_start() {
    let mut table = table();
    let mr = register_in(&mut table, PD, 64, ALL | Access::ZERO_BASED, Some(0x5000));
    assert_eq!(mr.base, 0);
    table.write_remote(&mr.at(60, 4, Access::REMOTE_WRITE), b"tail").unwrap();
    let mut tail = [0; 4];
    mr.region.read(60, &mut tail).unwrap();
    assert_eq!(&tail, b"tail");
}

#[test]
fn atomics_follow_the_standard() {
    let mut table = table();
    let mr = register(&mut table, 32, ALL);
    mr.region.write(8, &5u64.to_ne_bytes()).unwrap();
    let at = mr.at(8, 8, Access::REMOTE_ATOMIC);
    assert_eq!(table.atomic(&at, AtomicOp::FetchAdd { add: u64::MAX }), Ok(5));
    assert_eq!(
        table.atomic(&at, AtomicOp::CompareSwap { compare: 5, swap: 9 }),
        Ok(4),
        "no match, no change"
    );
    assert_eq!(table.atomic(&at, AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(4));
    assert_eq!(table.atomic(&at, AtomicOp::FetchAdd { add: 0 }), Ok(9));
    for offset in [1, 4, 7, 25, 32] {
        assert!(
            table.atomic(&mr.at(offset, 8, Access::REMOTE_ATOMIC), AtomicOp::FetchAdd { add: 1 }).is_err()
        );
    }
}

#[test]
fn keys_are_not_reused_early() {
    let mut table = table();
    let mut seen = HashSet::new();
    for _ in 0..20_000 {
        let mr = register(&mut table, 1, ALL);
        assert!(seen.insert(mr.key >> 8), "a key came back while a stale peer could still use it");
        table.deregister(mr.key);
    }
    assert_eq!(table.usage(), (0, 0));
}

#[test]
fn quarantine_is_bounded() {
    let mut table = table();
    for index in 1..=(QUARANTINE as u32 + 1000) {
        table.retire(index);
    }
    assert_eq!((table.retired.len(), table.quarantined.len()), (QUARANTINE, QUARANTINE));
    assert!(!table.quarantined.contains(&1000) && table.quarantined.contains(&1001));
}

#[test]
fn same_seed_same_keys_and_addresses() {
    let run = |seed| {
        let mut table = KeyTable::new(seed, 10, 10);
        [100, 4097, 1].map(|len| {
            let mr = register(&mut table, len, ALL);
            (mr.key, mr.base)
        })
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3)[0].0, run(4)[0].0);
    let bases = run(3).map(|entry| entry.1);
    assert!(bases.windows(2).all(|pair| pair[1] - pair[0] > IOVA_GUARD), "a gap after each");
}

#[test]
fn limits_hold() {
    let mut table = KeyTable::new(1, 2, 1);
    let a = register(&mut table, 1, ALL);
    table.alloc_fast(PD, 4).unwrap();
    let region = Arc::new(Region::owned(1).unwrap());
    let new = NewRegion { pd: PD, access: ALL, iova: None, region };
    assert_eq!(table.register(new), Err(KeyTableError::Full));
    assert_eq!(table.alloc_fast(PD, 4), Err(KeyTableError::Full));
    table.alloc_window(PD, WindowType::Type1).unwrap();
    assert_eq!(table.alloc_window(PD, WindowType::Type2), Err(KeyTableError::Full));
    table.deregister(a.key);
    register(&mut table, 1, ALL);
}

struct Sparse(Mutex<HashMap<u64, u8>>, u64);

impl CopyMemory for Sparse {
    fn len(&self) -> u64 {
        self.1
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) {
        let bytes = self.0.lock().unwrap();
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = bytes.get(&(offset + index as u64)).copied().unwrap_or(0);
        }
    }
    fn write_at(&self, offset: u64, from: &[u8]) {
        let at = |index: usize| offset + index as u64;
        self.0.lock().unwrap().extend(from.iter().enumerate().map(|(index, &byte)| (at(index), byte)));
    }
    fn update_u64(&self, _offset: u64, _update: &mut dyn FnMut(u64) -> u64) -> u64 {
        unreachable!("no atomics here")
    }
}

#[test]
fn sixty_four_gibibytes_are_one_region() {
    // RX-18: large, and not a multiple of anything.
    let mut table = table();
    let len = (64 << 30) + 200_016 + 1;
    let region = Arc::new(Region::copied(Arc::new(Sparse(Mutex::default(), len))));
    let new = NewRegion { pd: PD, access: ALL, iova: None, region: region.clone() };
    let (key, base) = table.register(new).unwrap();
    let mr = Mr { key, base, region };
    table.write_remote(&mr.at(len - 3, 3, Access::REMOTE_WRITE), b"end").unwrap();
    let mut end = [0; 3];
    table.read_remote(&mr.at(len - 3, 3, Access::REMOTE_READ), &mut end).unwrap();
    assert_eq!(&end, b"end");
    assert!(table.check_remote(&mr.at(len - 2, 3, Access::REMOTE_READ)).is_err());
}

fn fast(
    table: &mut KeyTable,
    key: u32,
    tag: u8,
    iova: u64,
    access: Access,
    pages: &[Sge],
) -> Result<u32, AccessError> {
    let new_key = (key & !0xff) | u32::from(tag);
    let length = pages.iter().map(|page| u64::from(page.length)).sum();
    let pages = pages.to_vec();
    let reg =
        FastRegister { mr: LKey(key), new_key: RKey(new_key), iova, length, access, pages: pages.into() };
    table.fast_register(PD, QPN, &reg).map(|()| new_key)
}

#[test]
fn fast_registration_maps_pieces_and_invalidation_ends_it() {
    let mut table = table();
    let (a, b) = (register(&mut table, 8192, ALL), register(&mut table, 4096, ALL));
    let key = table.alloc_fast(PD, 3).unwrap();
    let free = RemoteAccess { rkey: RKey(key), ..a.at(0, 1, Access::REMOTE_READ) };
    assert_eq!(table.check_remote(&free), Err(AccessError::Invalidated));
    let pages = [a.sge(4096, 4096), b.sge(0, 100), a.sge(0, 50)];
    let key = fast(&mut table, key, 0x42, 0x10_0000, ALL, &pages).unwrap();
    assert_eq!(key & 0xff, 0x42);

    // Written across all three pieces through the new key, found in the regions themselves.
    let at = |va, length, need| RemoteAccess { pd: PD, qpn: QPN, rkey: RKey(key), va, length, need };
    let data = counting(4096 + 150);
    table.write_remote(&at(0x10_0000, data.len() as u64, Access::REMOTE_WRITE), &data).unwrap();
    let mut out = vec![0; 4096];
    a.region.read(4096, &mut out).unwrap();
    assert!(out == data[..4096]);
    b.region.read(0, &mut out[..100]).unwrap();
    assert!(out[..100] == data[4096..4196]);
    a.region.read(0, &mut out[..50]).unwrap();
    assert!(out[..50] == data[4196..]);
    let mut read = vec![0; 120];
    table.read_remote(&at(0x10_0000 + 4090, 120, Access::REMOTE_READ), &mut read).unwrap();
    assert!(read == data[4090..4210]);
    let local = Sge { addr: 0x10_0000 + 4000, length: 200, lkey: LKey(key) };
    let mut read = vec![0; 200];
    table.gather(PD, &[local], 0, &mut read).unwrap();
    assert!(read == data[4000..4200]);
    assert!(table.check_remote(&at(0x10_0000 + 4246, 1, Access::REMOTE_READ)).is_err());
    // An atomic that straddles two pieces cannot be one.
    let straddle = at(0x10_0000 + 4192, 8, Access::REMOTE_ATOMIC);
    assert_eq!(table.atomic(&straddle, AtomicOp::FetchAdd { add: 1 }), Err(AccessError::OutOfBounds));

    assert_eq!(fast(&mut table, key, 0x43, 0, ALL, &pages), Err(AccessError::BadState), "still registered");
    assert_eq!(table.invalidate_remote(OTHER_PD, QPN, RKey(key)), Err(AccessError::WrongPd));
    table.invalidate_remote(PD, QPN, RKey(key)).unwrap();
    assert_eq!(table.check_remote(&at(0x10_0000, 1, Access::REMOTE_READ)), Err(AccessError::Invalidated));
    assert_eq!(table.check_local(PD, &[local], false), Err(AccessError::Invalidated));
    assert_eq!(table.invalidate_local(PD, QPN, RKey(key)), Err(AccessError::Invalidated));
    let next = fast(&mut table, key, 0x43, 0, ALL | Access::ZERO_BASED, &pages[..1]).unwrap();
    assert!(table.check_remote(&at(0x10_0000, 1, Access::REMOTE_READ)).is_err(), "the old key is dead");
    let zero = RemoteAccess { rkey: RKey(next), va: 0, ..at(0, 4096, Access::REMOTE_READ) };
    assert!(table.check_remote(&zero).is_ok());
}

#[test]
fn fast_registration_refuses_what_its_pieces_do_not_allow() {
    let mut table = table();
    let read_only = register(&mut table, 4096, Access::REMOTE_READ);
    let foreign = register_in(&mut table, OTHER_PD, 4096, ALL, None);
    let good = register(&mut table, 4096, ALL);
    let key = table.alloc_fast(PD, 2).unwrap();
    let mut refused = |access, pages: &[Sge], error| {
        assert_eq!(fast(&mut table, key, key as u8, 0, access, pages), Err(error));
    };
    refused(ALL, &[read_only.sge(0, 4096)], AccessError::Permission);
    refused(Access::REMOTE_WRITE, &[good.sge(0, 10)], AccessError::Permission);
    refused(ALL, &[foreign.sge(0, 10)], AccessError::WrongPd);
    refused(ALL, &[good.sge(0, 4097)], AccessError::OutOfBounds);
    refused(ALL, &[good.sge(0, 1), good.sge(1, 1), good.sge(2, 1)], AccessError::OutOfBounds);
    refused(ALL, &[Sge { lkey: LKey(key), ..good.sge(0, 1) }], AccessError::Invalidated);
    assert!(fast(&mut table, key, 1, 0, Access::REMOTE_READ, &[read_only.sge(0, 4096)]).is_ok());
    let other = FastRegister {
        mr: LKey(good.key),
        new_key: RKey(good.key),
        iova: 0,
        length: 0,
        access: ALL,
        pages: Default::default(),
    };
    assert_eq!(table.fast_register(PD, QPN, &other), Err(AccessError::BadState), "an ordinary region");
    let wrong_index = FastRegister { mr: LKey(good.key), new_key: RKey(good.key ^ 0x100), ..other };
    assert!(table.fast_register(PD, QPN, &wrong_index).is_err());
}

#[test]
fn ordinary_regions_cannot_be_invalidated() {
    let mut table = table();
    let mr = register(&mut table, 8, ALL);
    assert_eq!(table.invalidate_remote(PD, QPN, RKey(mr.key)), Err(AccessError::Permission));
    assert_eq!(table.invalidate_local(PD, QPN, RKey(mr.key)), Err(AccessError::Permission));
    assert_eq!(table.invalidate_local(PD, QPN, RKey(mr.key ^ 0x80)), Err(AccessError::UnknownKey));
    assert!(table.check_remote(&mr.at(0, 8, Access::REMOTE_WRITE)).is_ok());
}

fn bind(window: u32, tag: u8, mr: &Mr, offset: u64, length: u64, access: Access) -> BindWindow {
    let new_rkey = RKey((window & !0xff) | u32::from(tag));
    let addr = mr.base + offset;
    BindWindow { window: RKey(window), new_rkey, mr: LKey(mr.key), addr, length, access }
}

#[test]
fn type_1_windows_are_rebound_at_will() {
    // RX-31: rebind, bind length 0, access after each.
    let mut table = table();
    let mr = register(&mut table, 4096, ALL);
    let window = table.alloc_window(PD, WindowType::Type1).unwrap();
    let through = |key: u32, offset, length| RemoteAccess {
        rkey: RKey(key),
        ..mr.at(offset, length, Access::REMOTE_WRITE)
    };
    assert_eq!(table.check_remote(&through(window, 0, 1)), Err(AccessError::Invalidated), "not bound yet");
    let first = table.bind_window(PD, QPN, &bind(window, 1, &mr, 100, 200, REMOTE)).unwrap().0;
    assert!(table.check_remote(&through(first, 100, 200)).is_ok());
    let elsewhere = RemoteAccess { qpn: Qpn::new(9), ..through(first, 100, 200) };
    assert!(table.check_remote(&elsewhere).is_ok(), "any queue pair of the domain");
    assert_eq!(table.check_remote(&through(first, 99, 2)), Err(AccessError::OutOfBounds));
    assert_eq!(table.check_remote(&through(first, 299, 2)), Err(AccessError::OutOfBounds));
    let foreign = RemoteAccess { pd: OTHER_PD, ..through(first, 100, 1) };
    assert_eq!(table.check_remote(&foreign), Err(AccessError::WrongPd));
    table.write_remote(&through(first, 150, 2), b"hi").unwrap();
    let mut hi = [0; 2];
    mr.region.read(150, &mut hi).unwrap();
    assert_eq!(&hi, b"hi");

    let second = table.bind_window(PD, QPN, &bind(first, 2, &mr, 0, 10, Access::REMOTE_READ)).unwrap().0;
    assert_eq!(
        table.check_remote(&through(first, 100, 1)),
        Err(AccessError::UnknownKey),
        "the old key is dead"
    );
    assert_eq!(table.check_remote(&through(second, 0, 1)), Err(AccessError::Permission), "read only now");
    assert!(table.has_windows(mr.key));
    assert_eq!(table.invalidate_remote(PD, QPN, RKey(second)), Err(AccessError::Permission), "type 1");
    let third = table.bind_window(PD, QPN, &bind(second, 3, &mr, 0, 0, REMOTE)).unwrap().0;
    assert_eq!(table.check_remote(&through(third, 0, 1)), Err(AccessError::Invalidated), "length 0 unbinds");
    assert!(!table.has_windows(mr.key));
}

#[test]
fn type_2_windows_belong_to_one_queue_pair() {
    let mut table = table();
    let mr = register(&mut table, 4096, ALL);
    let window = table.alloc_window(PD, WindowType::Type2).unwrap();
    let zero_based = REMOTE | Access::ZERO_BASED;
    let key = table.bind_window(PD, QPN, &bind(window, 0xaa, &mr, 64, 64, zero_based)).unwrap();
    assert_eq!(key.0, (window & !0xff) | 0xaa, "the consumer chooses the low byte");
    let at = RemoteAccess { rkey: key, va: 0, ..mr.at(0, 64, Access::REMOTE_WRITE) };
    table.write_remote(&RemoteAccess { length: 2, ..at }, b"ok").unwrap();
    let mut ok = [0; 2];
    mr.region.read(64, &mut ok).unwrap();
    assert_eq!(&ok, b"ok", "address 0 of the window is byte 64 of the region");
    let stranger = RemoteAccess { qpn: Qpn::new(9), ..at };
    assert_eq!(table.check_remote(&stranger), Err(AccessError::WrongQp));
    let again = bind(key.0, 0xab, &mr, 0, 64, REMOTE);
    assert_eq!(table.bind_window(PD, QPN, &again), Err(AccessError::BadState), "must be invalidated first");
    assert_eq!(table.invalidate_remote(PD, Qpn::new(9), key), Err(AccessError::WrongQp));
    table.invalidate_remote(PD, QPN, key).unwrap();
    assert!(!table.has_windows(mr.key));
    assert_eq!(table.check_remote(&at), Err(AccessError::Invalidated));
    let next = table.bind_window(PD, QPN, &again).unwrap();
    assert_eq!(table.check_remote(&at), Err(AccessError::UnknownKey), "the old key is dead");
    table.invalidate_local(PD, QPN, next).unwrap();
    let empty = bind(next.0, 1, &mr, 0, 0, REMOTE);
    assert_eq!(table.bind_window(PD, QPN, &empty), Err(AccessError::OutOfBounds), "no length 0 for type 2");
}

#[test]
fn binding_opens_no_more_than_the_region_allows() {
    let mut table = table();
    let no_bind = register(&mut table, 64, ALL - Access::MW_BIND);
    let read_only = register(&mut table, 64, Access::MW_BIND | Access::REMOTE_READ);
    let zero_based = register(&mut table, 64, ALL | Access::ZERO_BASED);
    let foreign = register_in(&mut table, OTHER_PD, 64, ALL, None);
    let good = register(&mut table, 64, ALL);
    let window = table.alloc_window(PD, WindowType::Type1).unwrap();
    let other = table.alloc_window(PD, WindowType::Type2).unwrap();
    let rows = [
        (bind(window, 1, &no_bind, 0, 64, REMOTE), AccessError::Permission),
        (bind(window, 1, &read_only, 0, 64, Access::REMOTE_WRITE), AccessError::Permission),
        (bind(window, 1, &zero_based, 0, 64, REMOTE), AccessError::Permission),
        (bind(window, 1, &foreign, 0, 64, REMOTE), AccessError::WrongPd),
        (bind(window, 1, &good, 0, 65, REMOTE), AccessError::OutOfBounds),
        (bind(window, 1, &good, 64, u64::MAX, REMOTE), AccessError::OutOfBounds),
        (bind(window, 1, &good, 0, 64, Access::LOCAL_WRITE), AccessError::Permission),
        (bind(window, 1, &good, 0, 64, REMOTE | Access::ZERO_BASED), AccessError::Permission),
        (BindWindow { mr: LKey(other), ..bind(window, 1, &good, 0, 64, REMOTE) }, AccessError::BadState),
        (
            BindWindow { new_rkey: RKey(window ^ 0x100), ..bind(window, 1, &good, 0, 64, REMOTE) },
            AccessError::UnknownKey,
        ),
        (bind(good.key, 1, &good, 0, 64, REMOTE), AccessError::BadState),
    ];
    for (bind, error) in rows {
        assert_eq!(table.bind_window(PD, QPN, &bind), Err(error), "{bind:x?}");
    }
    let bind = bind(window, 1, &read_only, 0, 64, Access::REMOTE_READ);
    assert_eq!(table.bind_window(OTHER_PD, QPN, &bind), Err(AccessError::WrongPd));
    assert!(table.bind_window(PD, QPN, &bind).is_ok());
}

#[test]
fn a_region_that_goes_takes_its_windows_access_away() {
    let mut table = table();
    let mr = register(&mut table, 64, ALL);
    let window = table.alloc_window(PD, WindowType::Type2).unwrap();
    let key = table.bind_window(PD, QPN, &bind(window, 1, &mr, 0, 64, REMOTE)).unwrap();
    let at = RemoteAccess { rkey: key, ..mr.at(0, 1, Access::REMOTE_READ) };
    assert!(table.check_remote(&at).is_ok());
    table.deregister(mr.key);
    assert_eq!(table.check_remote(&at), Err(AccessError::Invalidated));
    table.invalidate_local(PD, QPN, key).unwrap();
    table.dealloc_window(window);
    assert_eq!(table.usage(), (0, 0));
}

/// RX-31: region, key and tag come back as they were, as they may after 2^24 registrations; the window stays shut.
#[test]
fn a_window_does_not_come_alive_with_its_regions_key() {
    for ty in [WindowType::Type1, WindowType::Type2] {
        let mut table = table();
        let window = table.alloc_window(PD, ty).unwrap();
        let rng = table.rng.clone();
        let mr = register(&mut table, 64, ALL);
        let key = table.bind_window(PD, QPN, &bind(window, 1, &mr, 0, 64, REMOTE)).unwrap();
        let at = RemoteAccess { rkey: key, ..mr.at(0, 1, Access::REMOTE_READ) };
        assert!(table.check_remote(&at).is_ok());
        table.deregister(mr.key);
        (table.retired, table.quarantined) = Default::default();
        table.rng = rng;
        let new = register_in(&mut table, PD, 64, ALL, Some(mr.base));
        assert_eq!(new.key, mr.key, "the same key in full");
        assert_eq!(table.check_remote(&at), Err(AccessError::Invalidated));
        let other = table.alloc_window(PD, ty).unwrap();
        table.bind_window(PD, QPN, &bind(other, 1, &new, 0, 64, REMOTE)).unwrap();
        table.dealloc_window(window);
        assert!(table.has_windows(new.key), "the other one is bound to it");
        table.dealloc_window(other);
        assert!(!table.has_windows(new.key));
    }
}

/// RX-31 and IBTA o10-37.2.33: a type 2 window is its queue pair's, not that of a later one with the same number.
#[test]
fn a_window_does_not_come_alive_with_its_queue_pairs_number() {
    let mut table = table();
    let mr = register(&mut table, 64, ALL);
    let [ours, other, one] = [WindowType::Type2, WindowType::Type2, WindowType::Type1]
        .map(|ty| table.alloc_window(PD, ty).unwrap());
    let other_qp = Qpn::new(QPN.get() + 1);
    let open = |table: &mut KeyTable, qpn, window| {
        let rkey = table.bind_window(PD, qpn, &bind(window, 1, &mr, 0, 64, REMOTE)).unwrap();
        RemoteAccess { rkey, qpn, ..mr.at(0, 1, Access::REMOTE_READ) }
    };
    let (ours_at, other_at) = (open(&mut table, QPN, ours), open(&mut table, other_qp, other));
    let one_at = open(&mut table, QPN, one);
    table.forget_qp(QPN);
    assert_eq!(table.check_remote(&ours_at), Err(AccessError::Invalidated));
    assert!(table.check_remote(&other_at).is_ok(), "another queue pair's");
    assert!(table.check_remote(&one_at).is_ok(), "a type 1 window is its domain's");
    assert!(table.has_windows(mr.key));
    table.dealloc_window(other);
    table.dealloc_window(one);
    assert!(!table.has_windows(mr.key));
    let key = ours_at.rkey.0;
    table.bind_window(PD, other_qp, &bind(key, 2, &mr, 0, 64, REMOTE)).unwrap();
}

#[test]
fn windows_give_no_local_access_and_hold_fast_regions() {
    let mut table = table();
    let mr = register(&mut table, 64, ALL);
    let window = table.alloc_window(PD, WindowType::Type1).unwrap();
    let key = table.bind_window(PD, QPN, &bind(window, 1, &mr, 0, 64, REMOTE)).unwrap();
    let sge = Sge { lkey: LKey(key.0), ..mr.sge(0, 8) };
    assert_eq!(table.check_local(PD, &[sge], false), Err(AccessError::Permission));

    let fast_key = table.alloc_fast(PD, 1).unwrap();
    let fast_key = fast(&mut table, fast_key, 5, 0x1000, ALL, &[mr.sge(0, 64)]).unwrap();
    let fast_mr = Mr { key: fast_key, base: 0x1000, region: mr.region.clone() };
    let key = table.bind_window(PD, QPN, &bind(key.0, 2, &fast_mr, 8, 8, REMOTE)).unwrap();
    assert_eq!(
        table.invalidate_local(PD, QPN, RKey(fast_key)),
        Err(AccessError::BadState),
        "a window is bound"
    );
    let at = RemoteAccess { rkey: key, va: 0x1008, ..fast_mr.at(0, 8, Access::REMOTE_ATOMIC) };
    assert_eq!(table.atomic(&at, AtomicOp::FetchAdd { add: 3 }), Ok(0));
    let mut word = [0; 8];
    mr.region.read(8, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 3);
}

/// What is pinned is what would have been copied, also through windows' and fast regions' pieces; memory behind copying
/// calls cannot be pinned, and an access that is refused pins nothing.
#[test]
fn pins_are_the_bytes_of_the_access() {
    let mut table = table();
    let (a, b) = (register(&mut table, 100, ALL), register(&mut table, 50, ALL));
    a.region.write(0, &counting(100)).unwrap();
    b.region.write(0, &counting(50)).unwrap();
    let sges = [a.sge(90, 10), a.sge(0, 0), b.sge(0, 50)];
    let mut copied = vec![0; 40];
    table.gather(PD, &sges, 5, &mut copied).unwrap();
    let mut pinned = Vec::new();
    let whole = table.pin(PD, &sges, 5, 40, &mut |pin| pin.copy_to(0, &mut pinned)).unwrap();
    assert!(whole);
    assert_eq!(pinned, copied);
    let mut pinned = Vec::new();
    let at = a.at(20, 30, Access::REMOTE_READ);
    assert!(table.pin_remote(&at, &mut |pin| pin.copy_to(10, &mut pinned)).unwrap());
    assert_eq!(pinned, counting(100)[30..50]);
    let nothing = &mut |_| panic!("pinned what was refused");
    assert_eq!(table.pin(PD, &sges, 5, 60, nothing), Err(AccessError::OutOfBounds));
    assert_eq!(table.pin(OTHER_PD, &sges, 0, 10, nothing), Err(AccessError::WrongPd));
    assert_eq!(table.pin_remote(&a.at(90, 20, Access::REMOTE_READ), nothing), Err(AccessError::OutOfBounds));
}
