//! The io_uring engine: callers submit from their own thread, one thread reaps completions and wakes them.
//!
//! Submitting directly keeps the path to the disk short (one system call); at most [`ENTRIES`] requests are in the kernel,
//! later ones wait here in order. The submission queue is only touched under its lock, the completion queue only by the
//! reaper, which is what the crate's `*_shared` functions ask for.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::op::{Op, Request};

/// Requests in the kernel at once.
const ENTRIES: u32 = 256;
/// `user_data` of the request that tells the reaper to stop.
const STOP: u64 = 0;
/// Wait before asking again when the kernel is short of memory for requests.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Queue {
    in_kernel: u32,
    waiting: VecDeque<Arc<Op>>,
    stopping: bool,
}

struct Shared {
    ring: IoUring,
    queue: Mutex<Queue>,
    file: Arc<File>,
}

pub(super) struct Ring {
    shared: Arc<Shared>,
    reaper: Option<JoinHandle<()>>,
}

impl Ring {
    /// Fails where the kernel has no io_uring, forbids it, or lacks one of the operations used here.
    pub(super) fn new(file: Arc<File>) -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let codes = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
        if !codes.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let shared = Arc::new(Shared { ring, queue: Mutex::default(), file });
        let reaper = {
            let shared = shared.clone();
            std::thread::Builder::new().name("block-uring".into()).spawn(move || shared.reap())?
        };
        Ok(Self { shared, reaper: Some(reaper) })
    }

    pub(super) fn submit(&self, op: Arc<Op>) {
        let mut queue = self.shared.lock();
        queue.waiting.push_back(op);
        self.shared.fill(&mut queue);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.lock();
            queue.stopping = true;
            // The reaper drains what is in flight first, so kernel-held buffers outlive their requests.
            let stop = opcode::Nop::new().build().user_data(STOP);
            queue.in_kernel += 1;
            self.shared.push(&stop);
            self.shared.enter();
        }
        if let Some(reaper) = self.reaper.take() {
            // The reaper only ends abnormally by panicking, which the panic hook has reported.
            let _ = reaper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands waiting requests to the kernel while it has room. Called with the queue locked.
    fn fill(&self, queue: &mut Queue) {
        let mut pushed = false;
        while queue.in_kernel < ENTRIES
            && let Some(op) = queue.waiting.pop_front()
        {
            let entry = self.entry(&op).user_data(Arc::into_raw(op) as u64);
            queue.in_kernel += 1;
            self.push(&entry);
            pushed = true;
        }
        if pushed {
            self.enter();
        }
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the caller holds the queue lock, so this is the only submission queue handle; the buffer that the
            // entry points to lives in an `Op` whose reference count the entry's user_data holds until completion.
            if unsafe { self.ring.submission_shared().push(entry).is_ok() } {
                return;
            }
            self.enter();
        }
    }

    /// Submits what is queued. Busy and interrupted calls are tried again: an entry left behind would never complete.
    fn enter(&self) {
        loop {
            match self.ring.submit() {
                Ok(_) => return,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    fn entry(&self, op: &Op) -> squeue::Entry {
        let fd = types::Fd(self.file.as_raw_fd());
        match op.request {
            Request::Read { offset, len } => op.with_buf(|buf| {
                debug_assert!(len <= buf.len());
                opcode::Read::new(fd, buf.as_mut_ptr(), len as u32).offset(offset).build()
            }),
            Request::Write { offset, len, fua } => op.with_buf(|buf| {
                debug_assert!(len <= buf.len());
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, buf.as_ptr(), len as u32).offset(offset).rw_flags(flags).build()
            }),
            Request::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Request::Fallocate { mode, offset, len } => {
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode as i32).build()
            }
        }
    }

    /// The reaper thread.
    fn reap(&self) {
        loop {
            if let Err(error) = self.ring.submitter().submit_and_wait(1)
                && error.raw_os_error() != Some(libc::EINTR)
            {
                std::thread::sleep(RETRY);
            }
            let mut reaped = 0;
            // SAFETY: only this thread makes completion queue handles, one at a time.
            for cqe in unsafe { self.ring.completion_shared() } {
                reaped += 1;
                if cqe.user_data() == STOP {
                    continue;
                }
                // SAFETY: user_data came from `Arc::into_raw` in `fill`, and each entry completes once.
                let op = unsafe { Arc::from_raw(cqe.user_data() as *const Op) };
                op.complete(usize::try_from(cqe.result()).map_err(|_| -cqe.result()));
            }
            let mut queue = self.lock();
            queue.in_kernel -= reaped;
            self.fill(&mut queue);
            if queue.stopping && queue.in_kernel == 0 && queue.waiting.is_empty() {
                return;
            }
        }
    }
}
