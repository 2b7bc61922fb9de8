//! Raw memory: bounds, alignment, laziness, whole words and atomics against other threads.

use super::*;
use std::sync::Mutex;

struct Heap(Vec<AtomicU64>, usize);

// SAFETY: the vector is never resized, so its heap block stays; tests touch it through atomics only.
unsafe impl StableBuffer for Heap {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the offset given by the tests is inside the block.
        unsafe { self.0.as_ptr().cast::<u8>().cast_mut().add(self.1) }
    }
    fn len(&self) -> usize {
        self.0.len() * 8 - self.1
    }
}

struct Disk(Mutex<Vec<u8>>);

impl CopyMemory for Disk {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) {
        let disk = self.0.lock().unwrap();
        into.copy_from_slice(&disk[offset as usize..][..into.len()]);
    }
    fn write_at(&self, offset: u64, from: &[u8]) {
        self.0.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
    }
    fn update_u64(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> u64 {
        let mut disk = self.0.lock().unwrap();
        let word = &mut disk[offset as usize..][..8];
        let old = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&update(old).to_ne_bytes());
        old
    }
}

#[test]
fn owned_memory_is_page_aligned_and_zero() {
    for len in [0usize, 1, 7, 4096, 4097, 200_016, 1 << 20] {
        let region = Region::owned(len).unwrap();
        assert_eq!(region.len(), len as u64);
        assert_eq!(region.as_ptr().unwrap() as usize % PAGE_SIZE, 0);
        let mut bytes = vec![0xaa; len];
        region.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn large_regions_cost_nothing_until_used() {
    // 4 GiB would not fit beside the other tests if it were touched.
    let region = Region::owned(4 << 30).unwrap();
    region.write((4 << 30) - 3, b"end").unwrap();
    let mut end = [0; 3];
    region.read((4 << 30) - 3, &mut end).unwrap();
    assert_eq!(&end, b"end");
    assert_eq!(Region::owned(usize::MAX).err(), Some(NoMemory(usize::MAX)));
    assert!(Region::owned(isize::MAX as usize - PAGE_SIZE).is_err());
}

#[test]
fn ranges_are_checked_with_wrap() {
    let region = Region::owned(100).unwrap();
    let mut two = [0; 2];
    for offset in [99, 100, 101, u64::MAX, u64::MAX - 1] {
        let error = RangeError { offset, length: 2, region: 100 };
        assert_eq!(region.read(offset, &mut two), Err(error));
        assert_eq!(region.write(offset, &two), Err(error));
    }
    region.write(98, b"ok").unwrap();
    region.read(98, &mut two).unwrap();
    assert_eq!(&two, b"ok");
    assert!(region.write(100, &[]).is_ok(), "no bytes at the very end is a range");
}

#[test]
fn every_length_and_offset_copies_exactly() {
    let region = Region::owned(64).unwrap();
    for offset in 0..16u64 {
        for len in 0..=33usize {
            region.write(0, &[0xee; 64]).unwrap();
            let data: Vec<u8> = (0..len as u8).map(|i| i ^ 0x5a).collect();
            region.write(offset, &data).unwrap();
            let mut all = [0; 64];
            region.read(0, &mut all).unwrap();
            let mut expected = [0xee; 64];
            expected[offset as usize..][..len].copy_from_slice(&data);
            assert_eq!(all, expected);
        }
    }
}

#[test]
fn the_end_of_a_message_is_written_last() {
    // A reader that polls the last word must then see the whole message, whatever its length and place.
    let region = Arc::new(Region::owned(4096).unwrap());
    for len in [9usize, 12, 64, 100, 1000] {
        let writer = region.clone();
        let thread = std::thread::spawn(move || {
            for round in 1..=200u8 {
                writer.write(8, &vec![round; len]).unwrap();
                while writer_waits(&writer, round) {
                    std::hint::spin_loop();
                }
            }
        });
        for round in 1..=200u8 {
            let mut last = [0];
            while last[0] != round {
                region.read(8 + len as u64 - 1, &mut last).unwrap();
                std::thread::yield_now();
            }
            let mut all = vec![0; len];
            region.read(8, &mut all).unwrap();
            assert!(all.iter().all(|&byte| byte == round), "{len} bytes: {all:?}");
            region.write(0, &[round]).unwrap();
        }
        thread.join().unwrap();
        region.write(0, &[0; 2000]).unwrap();
    }
}

fn writer_waits(region: &Region, round: u8) -> bool {
    let mut seen = [0];
    region.read(0, &mut seen).unwrap();
    std::thread::yield_now();
    seen[0] != round
}

#[test]
fn external_memory_is_used_in_place() {
    let heap = Arc::new(Heap((0..8).map(|_| AtomicU64::new(0)).collect(), 3));
    let region = Region::stable(heap.clone());
    assert_eq!(region.len(), 61);
    region.write(5, &7u64.to_ne_bytes()).unwrap();
    assert_eq!(heap.0[1].load(Ordering::Relaxed), 7);
    assert!(region.atomic_possible(5), "aligned in memory, whatever the offset");
    assert!(!region.atomic_possible(8));
    assert_eq!(region.update_u64(5, |old| old + 1), Some(7));
    assert_eq!(heap.0[1].load(Ordering::Relaxed), 8);

    let disk = Arc::new(Disk(Mutex::new(vec![0; 32])));
    let region = Region::copied(disk.clone());
    region.write(30, b"xy").unwrap();
    assert_eq!(&disk.0.lock().unwrap()[30..], b"xy");
    assert!(region.write(31, b"xy").is_err());
    assert_eq!(region.update_u64(8, |_| 5), Some(0));
    assert_eq!(region.update_u64(9, |_| 5), None);
    assert!(region.as_ptr().is_none());
}

#[test]
fn atomics_are_atomic_against_the_cpu() {
    let heap = Arc::new(Heap(vec![AtomicU64::new(0)], 0));
    let region = Arc::new(Region::stable(heap.clone()));
    let other = {
        let heap = heap.clone();
        std::thread::spawn(move || {
            for _ in 0..20_000 {
                heap.0[0].fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    for _ in 0..20_000 {
        region.update_u64(0, |old| old + 1).unwrap();
    }
    other.join().unwrap();
    assert_eq!(heap.0[0].load(Ordering::Relaxed), 40_000);
}
