//! The file backend on real files, both engines, judged through `std::fs`.

use std::fs::OpenOptions;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::buffer::SharedBuffer;

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("everywire-block-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

fn write(backend: &FileBackend, offset: u64, bytes: &[u8], fua: bool) -> IoResult {
    block_on(backend.write(offset, &SharedBuffer::new(bytes.to_vec()).io(), fua))
}

fn read(backend: &FileBackend, offset: u64, len: usize) -> Vec<u8> {
    let buf = SharedBuffer::new(vec![0xee; len]);
    block_on(backend.read(offset, &buf.io())).expect("read");
    buf.to_vec()
}

fn variants() -> Vec<FileOptions> {
    let base = FileOptions { size: Some(8 << 20), ..Default::default() };
    vec![
        base.clone(),
        FileOptions { buffered: true, ..base.clone() },
        FileOptions { threads: true, ..base.clone() },
        FileOptions { block_size: 4096, write_through: true, ..base },
    ]
}

#[test]
fn what_is_written_is_in_the_file_and_reads_back() {
    for (i, options) in variants().iter().enumerate() {
        let file = TempFile::new(&format!("rw{i}"));
        let backend = FileBackend::open(&file.0, options).expect("open");
        println!("{}", backend.describe());
        for (offset, len, fua) in [(0, 4096, false), (1 << 20, 65536, true), ((8 << 20) - 4096, 4096, false)]
        {
            let bytes = pattern(len, i as u8);
            write(&backend, offset, &bytes, fua).expect("write");
            block_on(backend.flush()).expect("flush");
            assert_eq!(read(&backend, offset, len), bytes);
            let disk = std::fs::read(&file.0).expect("read the file");
            assert_eq!(&disk[offset as usize..][..len], bytes, "{}", backend.describe());
        }
        assert_eq!(std::fs::metadata(&file.0).expect("stat").len(), 8 << 20);
    }
}

#[test]
fn zeroing_and_discarding_read_as_zeroes_and_leave_the_rest() {
    for (i, options) in variants().iter().enumerate() {
        let file = TempFile::new(&format!("zero{i}"));
        let backend = FileBackend::open(&file.0, options).expect("open");
        write(&backend, 0, &pattern(1 << 20, 1), false).expect("write");
        block_on(backend.write_zeroes(4096, 8192, false)).expect("zero");
        block_on(backend.write_zeroes(65536, 4096, true)).expect("zero, unmap");
        block_on(backend.discard(131072, 65536)).expect("discard");
        let mut want = pattern(1 << 20, 1);
        want[4096..4096 + 8192].fill(0);
        want[65536..65536 + 4096].fill(0);
        want[131072..131072 + 65536].fill(0);
        assert_eq!(read(&backend, 0, 1 << 20), want);
    }
}

#[test]
fn many_at_once_all_complete() {
    for threads in [false, true] {
        let file = TempFile::new(&format!("many{threads}"));
        let options = FileOptions { size: Some(8 << 20), threads, ..Default::default() };
        let backend = FileBackend::open(&file.0, &options).expect("open");
        // More than the ring holds, submitted before any is awaited.
        let running: Vec<_> = (0..1000u64)
            .map(|i| {
                let bytes = SharedBuffer::new(vec![i as u8; 4096]);
                let mut io = backend.write(i * 4096, &bytes.io(), false);
                let mut cx = Context::from_waker(Waker::noop());
                let first = std::pin::Pin::new(&mut io).poll(&mut cx);
                (first, io)
            })
            .collect();
        for (first, io) in running {
            match first {
                Poll::Ready(done) => done.expect("write"),
                Poll::Pending => block_on(io).expect("write"),
            }
        }
        for i in [0u64, 255, 256, 999] {
            assert_eq!(read(&backend, i * 4096, 4096), vec![i as u8; 4096]);
        }
    }
}

#[test]
fn a_dropped_future_does_not_lose_its_buffer() {
    let file = TempFile::new("drop");
    let options = FileOptions { size: Some(1 << 20), ..Default::default() };
    let backend = FileBackend::open(&file.0, &options).expect("open");
    for _ in 0..100 {
        let buf = SharedBuffer::new(vec![1; 65536]);
        let mut io = backend.write(0, &buf.io(), false);
        let _ = std::pin::Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop()));
    }
    drop(backend);
    assert_eq!(std::fs::read(&file.0).expect("read")[..65536], vec![1; 65536]);
}

#[test]
fn refusals() {
    let file = TempFile::new("refuse");
    std::fs::write(&file.0, vec![5; 8192]).expect("write");
    let options = FileOptions { read_only: true, ..Default::default() };
    let backend = FileBackend::open(&file.0, &options).expect("open");
    assert_eq!(backend.geometry().blocks, 16);
    assert!(matches!(write(&backend, 0, &[0; 512], false), Err(BlockError::ReadOnly { .. })));
    assert!(matches!(block_on(backend.discard(0, 512)), Err(BlockError::ReadOnly { .. })));
    let past = SharedBuffer::new(vec![0; 1024]);
    assert!(matches!(block_on(backend.read(8192 - 512, &past.io())), Err(BlockError::OutOfRange { .. })));
    let wrap = block_on(backend.read(u64::MAX - 511, &past.io()));
    assert!(matches!(wrap, Err(BlockError::OutOfRange { .. })));
    assert_eq!(read(&backend, 512, 512), vec![5; 512]);
    let grow = FileOptions { read_only: true, size: Some(1 << 20), ..Default::default() };
    assert!(FileBackend::open(&file.0, &grow).is_err());
    assert!(FileBackend::open(Path::new("/dev/null"), &FileOptions::default()).is_err());
}

fn refused(path: &Path, options: &FileOptions) -> String {
    match FileBackend::open(path, options) {
        Ok(_) => panic!("{path:?} was opened with {options:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_file_has_one_writer_by_whatever_name() {
    let (file, link) = (TempFile::new("lock"), TempFile::new("lock-link"));
    let create = FileOptions { size: Some(1 << 20), ..Default::default() };
    let (write, read) = (FileOptions::default(), FileOptions { read_only: true, ..FileOptions::default() });
    let first = FileBackend::open(&file.0, &create).expect("open");
    std::fs::hard_link(&file.0, &link.0).expect("link");
    for options in [&create, &write, &read] {
        let error = refused(&link.0, options);
        assert!(error.contains("open") && error.contains("this process ("), "{error}");
    }
    drop(first);
    let one = FileBackend::open(&file.0, &read).expect("free again");
    let two = FileBackend::open(&link.0, &read).expect("readers share");
    assert!(refused(&file.0, &write).contains("a file has one writer"));
    drop((one, two));
    FileBackend::open(&file.0, &write).expect("free again");
}

/// The process that holds the lock is `flock` of util-linux, which knows nothing of us.
#[test]
fn a_holder_in_another_process_is_named() {
    let file = TempFile::new("lock-other");
    std::fs::write(&file.0, vec![0; 4096]).expect("write");
    let mut holder = std::process::Command::new("flock");
    let holder = holder.arg(&file.0).args(["sh", "-c", "echo held; exec sleep 60"]);
    let Ok(mut holder) = holder.stdout(std::process::Stdio::piped()).spawn() else { return };
    let mut said = [0; 5];
    std::io::Read::read_exact(&mut holder.stdout.take().expect("piped"), &mut said).expect("held");
    let error = refused(&file.0, &FileOptions::default());
    // flock's child has inherited the lock; either of the two is the holder.
    let _ = std::process::Command::new("pkill").args(["-P", &holder.id().to_string()]).status();
    holder.kill().expect("SIGKILL");
    holder.wait().expect("reap");
    assert!(error.contains("process") && error.contains("has it open already"), "{error}");
    assert!(error.contains(&holder.id().to_string()), "{error}");
}

#[test]
fn sizes_that_do_not_fit_change_nothing() {
    let file = TempFile::new("sizes");
    std::fs::write(&file.0, vec![5; 8192]).expect("write");
    for (size, words) in [(4096, "8KiB (8192 bytes)"), (1 << 20, "size=1MiB (1048576 bytes)")] {
        let options = FileOptions { size: Some(size), ..Default::default() };
        let error = refused(&file.0, &options);
        assert!(error.contains(words) && error.contains("8KiB"), "{error}");
    }
    assert_eq!(std::fs::read(&file.0).expect("read"), vec![5; 8192], "it is as it was");
    FileBackend::open(&file.0, &FileOptions { size: Some(8192), ..Default::default() }).expect("its size");
    std::fs::write(&file.0, vec![5; 8192 + 100]).expect("write");
    for (block_size, read_only) in [(512, false), (4096, true)] {
        let options = FileOptions { block_size, read_only, ..Default::default() };
        let error = refused(&file.0, &options);
        assert!(error.contains("8292 bytes") && error.contains("no multiple"), "{error}");
    }
}

#[test]
fn what_cannot_be_made_is_not_left_behind() {
    let file = TempFile::new("huge");
    // More than off_t has, so that no file system takes it.
    let options = FileOptions { size: Some(1 << 63), ..Default::default() };
    let error = refused(&file.0, &options);
    assert!(error.contains("8388608TiB"), "{error}");
    assert!(!file.0.exists());
    std::fs::write(&file.0, b"").expect("an empty file of the user's");
    refused(&file.0, &options);
    assert!(file.0.exists(), "it was there before");
}

#[test]
fn a_file_cut_under_us_is_an_error_not_zeroes() {
    for threads in [false, true] {
        let file = TempFile::new(&format!("cut{threads}"));
        let options = FileOptions { size: Some(1 << 20), threads, buffered: true, ..Default::default() };
        let backend = FileBackend::open(&file.0, &options).expect("open");
        std::fs::OpenOptions::new().write(true).open(&file.0).expect("open").set_len(4096).expect("cut");
        let buf = SharedBuffer::new(vec![0; 8192]);
        assert!(matches!(block_on(backend.read(0, &buf.io())), Err(BlockError::Io { .. })));
    }
}

fn over_device(path: &str, threads: bool) -> FileBackend {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let options = FileOptions { threads, ..Default::default() };
    let geometry = Geometry {
        block_size: 512,
        blocks: 1 << 20,
        optimal_io: 4096,
        read_only: false,
        volatile_cache: true,
        discard: true,
    };
    FileBackend::start((Arc::new(file), None), geometry, Path::new(path), false, &options)
}

#[test]
fn a_full_disk_is_no_space() {
    for threads in [false, true] {
        let full = over_device("/dev/full", threads);
        assert!(matches!(write(&full, 0, &[1; 512], false), Err(BlockError::NoSpace { .. })));
    }
}

#[test]
fn after_a_failed_flush_none_succeeds() {
    for threads in [false, true] {
        // fdatasync on a character device without it fails with EINVAL: a real failure from the kernel.
        let backend = over_device("/dev/full", threads);
        assert!(matches!(block_on(backend.flush()), Err(BlockError::Io { op: BlockOp::Flush, .. })));
        assert!(matches!(block_on(backend.flush()), Err(BlockError::FlushLost { .. })));
    }
}

const CHILD: &str = "EVERYWIRE_BLOCK_KILL_CHILD";

/// Writes, flushes, says so, and hangs until it is killed. Only runs as the child of the next test.
#[test]
fn kill_child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let options = FileOptions { size: Some(1 << 20), ..Default::default() };
    let backend = FileBackend::open(Path::new(&path), &options).expect("open");
    write(&backend, 8192, &pattern(65536, 9), false).expect("write");
    block_on(backend.flush()).expect("flush");
    std::fs::write(Path::new(&path).with_extension("flushed"), b"x").expect("mark");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn flushed_data_survives_kill_9() {
    let file = TempFile::new("kill.img");
    let mark = TempFile(file.0.with_extension("flushed"));
    let exe = std::env::current_exe().expect("test binary");
    let mut child = std::process::Command::new(exe)
        .args(["--exact", "file::tests::kill_child", "--nocapture"])
        .env(CHILD, &file.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("spawn");
    for _ in 0..600 {
        if mark.0.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(mark.0.exists(), "the child flushed");
    child.kill().expect("SIGKILL");
    child.wait().expect("reap");
    assert_eq!(&std::fs::read(&file.0).expect("read")[8192..8192 + 65536], pattern(65536, 9));
}
