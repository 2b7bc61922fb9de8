//! RAM disks by the trait, and what memory they take.

use super::*;
use crate::buffer::SharedBuffer;

fn done(future: IoFuture<IoResult>) -> IoResult {
    future.into_ready().unwrap_or_else(|_| panic!("RAM completes at once"))
}

fn read(ram: &RamBackend, offset: u64, len: usize) -> Vec<u8> {
    let buf = SharedBuffer::new(vec![0xee; len]);
    done(ram.read(offset, &buf.io())).expect("in range");
    buf.to_vec()
}

fn write(ram: &RamBackend, offset: u64, bytes: &[u8]) {
    done(ram.write(offset, &SharedBuffer::new(bytes.to_vec()).io(), false)).expect("in range");
}

#[test]
fn fresh_reads_zero_and_takes_no_memory() {
    let ram = RamBackend::new(512, (8 << 20) / 512).expect("fits");
    assert_eq!(read(&ram, 4096, 8192), vec![0; 8192]);
    assert_eq!(ram.allocated_chunks(), 0);
}

#[test]
fn bytes_come_back_across_a_chunk_border() {
    let ram = RamBackend::new(512, (8 << 20) / 512).expect("fits");
    let bytes: Vec<u8> = (0..65536u32).map(|i| (i * 7 + i / 256) as u8).collect();
    write(&ram, CHUNK - 1024, &bytes);
    assert_eq!(read(&ram, CHUNK - 1024, 65536), bytes);
    assert_eq!(read(&ram, CHUNK - 1536, 512), vec![0; 512]);
    assert_eq!(ram.allocated_chunks(), 2);
}

#[test]
fn piecewise_zeroing_frees_the_chunk() {
    let ram = RamBackend::new(512, (4 << 20) / 512).expect("fits");
    write(&ram, 0, &[1; 8192]);
    done(ram.write_zeroes(0, 4096, true)).expect("in range");
    assert_eq!(ram.allocated_chunks(), 1);
    assert_eq!(read(&ram, 4096, 4096), vec![1; 4096]);
    done(ram.discard(4096, 4096)).expect("in range");
    assert_eq!(ram.allocated_chunks(), 0);
    // Half a page zeroed leaves the page's other half alone.
    write(&ram, 0, &[2; 4096]);
    done(ram.write_zeroes(512, 1024, true)).expect("in range");
    let page = read(&ram, 0, 4096);
    assert!(page[..512].iter().all(|&b| b == 2) && page[1536..].iter().all(|&b| b == 2));
    assert!(page[512..1536].iter().all(|&b| b == 0));
}

#[test]
fn out_of_range_and_wrap_are_refused() {
    let ram = RamBackend::new(4096, 16).expect("fits");
    let buf = SharedBuffer::new(vec![0; 8192]);
    assert!(matches!(done(ram.read(65536 - 4096, &buf.io())), Err(BlockError::OutOfRange { .. })));
    assert!(matches!(done(ram.write(u64::MAX - 4095, &buf.io(), false)), Err(BlockError::OutOfRange { .. })));
    assert!(matches!(done(ram.write_zeroes(4096, u64::MAX, true)), Err(BlockError::OutOfRange { .. })));
    assert!(matches!(done(ram.read(512, &buf.io())), Err(BlockError::Misaligned { .. })));
    assert!(done(ram.read(65536 - 8192, &buf.io())).is_ok());
    assert!(RamBackend::new(512, u64::MAX).is_err());
}

#[test]
fn two_writers_on_one_chunk_both_land() {
    let ram = Arc::new(RamBackend::new(512, (2 << 20) / 512).expect("fits"));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let ram = ram.clone();
            scope.spawn(move || {
                for i in 0..64u64 {
                    write(&ram, (i * 4 + thread) * 512, &[thread as u8 + 1; 512]);
                }
            });
        }
    });
    for i in 0..256u64 {
        assert_eq!(read(&ram, i * 512, 512), vec![(i % 4) as u8 + 1; 512]);
    }
}

/// Bytes of a chunk that are in memory (the kernel's pagemap document: bit 63 of a page's entry).
fn resident(chunk: &Chunk) -> u64 {
    use std::os::unix::fs::FileExt;
    let (at, len) = chunk.raw();
    let mut entries = vec![0; len / PAGE * 8];
    let map = std::fs::File::open("/proc/self/pagemap").expect("Linux");
    map.read_exact_at(&mut entries, (at as usize / PAGE * 8) as u64).expect("mapped");
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() as u64 * PAGE as u64
}

/// The first write to a chunk costs a page or two, not two megabytes.
#[test]
fn a_cold_write_takes_small_pages() {
    let ram = RamBackend::new(512, CHUNK / 512).expect("fits");
    write(&ram, 40960, &[1; 4096]);
    let chunk = ram.chunk_at(0).expect("written");
    assert!(resident(&chunk) <= 64 << 10, "{} bytes", resident(&chunk));
}

#[test]
fn warming_gives_memory_and_leaves_contents() {
    let ram = RamBackend::new(512, 8 * CHUNK / 512).expect("fits");
    write(&ram, 3 * CHUNK, &[9; 4096]);
    warm_slots(&Arc::downgrade(&ram.slots), 6, || true);
    assert_eq!(ram.allocated_chunks(), 6, "no more than it was told");
    for index in 0..6 {
        let chunk = ram.chunk_at(index * CHUNK).expect("warm");
        assert!(resident(&chunk) >= CHUNK, "chunk {index}: {} bytes", resident(&chunk));
    }
    assert_eq!(read(&ram, 3 * CHUNK, 8192), [[9; 4096], [0; 4096]].concat());
    assert_eq!(read(&ram, 0, 4096), [0; 4096]);
    write(&ram, CHUNK, &[4; 512]);
    assert_eq!(read(&ram, CHUNK, 512), [4; 512]);
}

#[test]
fn warming_ends_where_memory_or_the_disk_does() {
    let ram = RamBackend::new(512, 64 * CHUNK / 512).expect("fits");
    let looks = std::cell::Cell::new(0);
    let more = || looks.replace(looks.get() + 1) < 1;
    warm_slots(&Arc::downgrade(&ram.slots), 64, more);
    assert_eq!(ram.allocated_chunks(), LOOK_EVERY);
    warm_slots(&Arc::downgrade(&ram.slots), usize::MAX, || ram.allocated_chunks() < 64);
    assert_eq!(ram.allocated_chunks(), 64);
    let gone = Arc::downgrade(&ram.slots);
    drop(ram);
    warm_slots(&gone, 64, || true);
}
