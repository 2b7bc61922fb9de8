//! Registered memory of every origin the kernel has: anonymous, memfd, a file mapped shared or read-only, memory behind
//! copying calls; at unaligned starts and of odd lengths (RX-18, RX-19). WRITE and READ go through real queue pairs.
//!
//! What is expected is mmap(2)'s word: what is written to a shared mapping is in its file.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex};

use everywire_net::{Host, OpenOptions, block_on};
use everywire_verbs::memory::{CopyMemory, StableBuffer};
use everywire_verbs::{
    Access, ConnParam, ConnectOptions, Cq, ListenOptions, MemoryRegion, Pd, Qp, QpInit, QpType, SendOp,
    SendWr, WcStatus,
};

/// Not a multiple of anything: several packets, several pages.
const LEN: usize = 3 * 4096 + 1237;
/// Where the registered bytes begin in the mapping.
const SKIP: usize = 13;

const READS: Access = Access::REMOTE_READ;

fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | READS
}

/// A part of a mapping, which is unmapped with it.
struct Mapping {
    start: *mut libc::c_void,
    _file: Option<File>,
}

// SAFETY: the mapping stays where it is until it is dropped; a pointer is as good on one thread as on another.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: Option<File>, protection: i32, flags: i32) -> Mapping {
        let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping at an address that the kernel chooses; the result is checked.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), SKIP + LEN, protection, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { start, _file: file }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nobody has it any more.
        unsafe { libc::munmap(self.start, SKIP + LEN) };
    }
}

// SAFETY: mapped readable for as long as the value lives, writable where a test registers it for writing, and touched by
// the library alone. Files keep their length while they are mapped.
unsafe impl StableBuffer for Mapping {
    fn as_ptr(&self) -> *mut u8 {
        self.start.cast::<u8>().wrapping_add(SKIP)
    }

    fn len(&self) -> usize {
        LEN
    }
}

/// A memfd of the mapping's length.
fn memfd() -> File {
    // SAFETY: the name is a C string, and the descriptor, which is checked, is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"everywire-test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.set_len((SKIP + LEN) as u64).unwrap();
    file
}

/// An unlinked file of the mapping's length, with `bytes` where the registered part begins.
fn file(bytes: &[u8]) -> File {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("everywire-memory-{}-{n}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(&[0; SKIP]).unwrap();
    file.write_all(bytes).unwrap();
    file.set_len((SKIP + LEN) as u64).unwrap();
    file
}

fn contents(file: &File) -> Vec<u8> {
    let mut file = file.try_clone().unwrap();
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes.split_off(SKIP)
}

/// Memory that only copying reaches.
struct Copied(Mutex<Vec<u8>>);

impl CopyMemory for Copied {
    fn len(&self) -> u64 {
        LEN as u64
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..into.len()]);
    }
    fn write_at(&self, offset: u64, from: &[u8]) {
        self.0.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
    }
    fn update_u64(&self, offset: u64, update: &mut dyn FnMut(u64) -> u64) -> u64 {
        let mut bytes = self.0.lock().unwrap();
        let word: &mut [u8] = &mut bytes[offset as usize..][..8];
        let old = u64::from_ne_bytes((&*word).try_into().unwrap());
        word.copy_from_slice(&update(old).to_ne_bytes());
        old
    }
}

struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

fn side(host: &Host) -> Side {
    let pd = host.device().alloc_pd().unwrap();
    let cq = host.device().create_cq(64).unwrap();
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
    qp.to_init(all()).unwrap();
    Side { pd, cq, qp }
}

fn open(n: u8) -> Host {
    let pid = std::process::id();
    let ip = IpAddr::V4(Ipv4Addr::new(127, 0x60 | (pid >> 8) as u8 & 0x1f, pid as u8, n));
    let host = Host::open(&format!("rocev2:{ip}"), &OpenOptions::default()).unwrap();
    host.spawn_thread().unwrap();
    host
}

/// Runs a test between a client, which posts, and a server, which has the memory.
fn between(n: u8, test: impl FnOnce(&Side, &Side)) {
    let (server, client) = (open(n), open(n + 1));
    let (s, c) = (side(&server), side(&client));
    let ip = server.device().gids()[0].ip;
    let listener = server.device().listen(SocketAddr::new(ip, 0), ListenOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            block_on(async {
                let request = listener.next_request().await.unwrap();
                request.accept(&s.qp, ConnParam::default()).await.unwrap()
            })
        });
        let connection = block_on(client.device().connect(ConnectOptions::new(listener.local_addr(), &c.qp)));
        let (_connection, _accepted) = (connection.unwrap(), accepted.join().unwrap());
        test(&s, &c);
    });
}

/// Posts, and how it ended.
fn run(client: &Side, op: SendOp, local: &MemoryRegion, at: usize, len: usize) -> WcStatus {
    client.qp.post_send(SendWr::new(7, op).with_sges([local.sge(at..at + len)])).unwrap();
    let mut done = Vec::new();
    block_on(client.cq.wait(&mut done, 1)).unwrap();
    done[0].status
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed).collect()
}

/// Bytes go from one region into the other and back, whole and in odd parts; `seen` is what the memory's owner sees.
fn there_and_back(client: &Side, local: &MemoryRegion, remote: &MemoryRegion, seen: impl Fn() -> Vec<u8>) {
    let whole = pattern(1);
    local.write_at(0, &whole).unwrap();
    let write = |at| SendOp::Write { remote: remote.remote(at) };
    let read = |at| SendOp::Read { remote: remote.remote(at) };
    assert_eq!(run(client, write(0), local, 0, LEN), WcStatus::Success);
    assert!(seen() == whole, "written");
    local.write_at(0, &vec![0; LEN]).unwrap();
    assert_eq!(run(client, read(0), local, 0, LEN), WcStatus::Success);
    assert!(local.read_vec(0, LEN).unwrap() == whole, "read");
    for (at, len) in [(LEN - 1, 1), (0, 1), (3, 4097), (4096 - SKIP, 4096), (LEN - 1025, 1025)] {
        let part = pattern(at as u8 ^ 0x55)[..len].to_vec();
        local.write_at(5, &part).unwrap();
        assert_eq!(run(client, write(at), local, 5, len.min(LEN - 5)), WcStatus::Success);
        assert!(seen()[at..at + len] == part, "{len} bytes at {at}");
        local.write_at(5, &vec![0; len]).unwrap();
        assert_eq!(run(client, read(at), local, 5, len), WcStatus::Success);
        assert!(local.read_vec(5, len).unwrap() == part, "{len} bytes at {at}");
    }
}

#[test]
fn anonymous_and_shared_mappings() {
    between(1, |s, c| {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let local = Mapping::new(None, rw, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let local = c.pd.register_buffer(Arc::new(local), all(), None).unwrap();
        for shared in [memfd(), file(&[])] {
            let there = Mapping::new(Some(shared.try_clone().unwrap()), rw, libc::MAP_SHARED);
            let remote = s.pd.register_buffer(Arc::new(there), all(), None).unwrap();
            assert_eq!(remote.len(), LEN);
            there_and_back(c, &local, &remote, || contents(&shared));
        }
        // An address of the caller's choice, as unaligned as it likes.
        let there = Mapping::new(None, rw, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let remote = s.pd.register_buffer(Arc::new(there), all(), Some(0x7_0003)).unwrap();
        assert_eq!(remote.addr(), 0x7_0003);
        there_and_back(c, &local, &remote, || remote.read_vec(0, LEN).unwrap());
    });
}

#[test]
fn memory_behind_copying_calls() {
    between(3, |s, c| {
        let local = c.pd.register_copy(Arc::new(Copied(Mutex::new(vec![0; LEN]))), all()).unwrap();
        let there = Arc::new(Copied(Mutex::new(vec![0; LEN])));
        let remote = s.pd.register_copy(there.clone(), all()).unwrap();
        there_and_back(c, &local, &remote, || there.0.lock().unwrap().clone());
    });
}

/// A mapping that cannot be written: registered without write access it is read by peers and by one's own queue pairs,
/// and nobody writes it (a write would be SIGSEGV here).
#[test]
fn a_read_only_file() {
    between(5, |s, c| {
        let bytes = pattern(9);
        let there = Mapping::new(Some(file(&bytes)), libc::PROT_READ, libc::MAP_PRIVATE);
        let remote = s.pd.register_buffer(Arc::new(there), READS, None).unwrap();
        let local = c.pd.register(LEN, all()).unwrap();
        assert_eq!(run(c, SendOp::Read { remote: remote.remote(0) }, &local, 0, LEN), WcStatus::Success);
        assert!(local.read_vec(0, LEN).unwrap() == bytes);
        // The source of a WRITE needs no access at all (IBTA §10.6.3.1).
        let own = Mapping::new(Some(file(&bytes)), libc::PROT_READ, libc::MAP_SHARED);
        let own = c.pd.register_buffer(Arc::new(own), Access::empty(), None).unwrap();
        let target = s.pd.register(LEN, all()).unwrap();
        assert_eq!(run(c, SendOp::Write { remote: target.remote(0) }, &own, 0, LEN), WcStatus::Success);
        assert!(target.read_vec(0, LEN).unwrap() == bytes);
        assert_eq!(run(c, SendOp::Write { remote: remote.remote(0) }, &local, 0, 64), WcStatus::RemAccessErr);
    });
}

#[test]
fn a_read_into_memory_without_write_access_is_refused_here() {
    between(7, |s, c| {
        let own = Mapping::new(Some(file(&pattern(2))), libc::PROT_READ, libc::MAP_SHARED);
        let own = c.pd.register_buffer(Arc::new(own), Access::empty(), None).unwrap();
        let remote = s.pd.register(LEN, all()).unwrap();
        let status = run(c, SendOp::Read { remote: remote.remote(0) }, &own, 0, 64);
        assert_eq!(status, WcStatus::LocProtErr);
    });
}
