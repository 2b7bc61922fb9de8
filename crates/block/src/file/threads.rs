//! The engine for systems without io_uring: a few threads, plain positioned system calls, requests in arrival order.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::FallocateFlags;

use super::op::{Op, OsResult, Request};

/// Requests run at once.
const WORKERS: usize = 4;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Op>>,
    stopping: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    file: Arc<File>,
}

pub(super) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn new(file: Arc<File>) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new(), file });
        let workers = (0..WORKERS)
            .map(|_| {
                let shared = shared.clone();
                std::thread::spawn(move || shared.work())
            })
            .collect();
        Self { shared, workers }
    }

    pub(super) fn submit(&self, op: Arc<Op>) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).waiting.push_back(op);
        self.shared.work.notify_one();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker only ends abnormally by panicking, which the panic hook has reported.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let op = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    if let Some(op) = queue.waiting.pop_front() {
                        break op;
                    }
                    if queue.stopping {
                        return;
                    }
                    queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let result = loop {
                match self.execute(&op) {
                    Err(libc::EINTR) => {}
                    other => break other,
                }
            };
            op.complete(result);
        }
    }

    fn execute(&self, op: &Op) -> OsResult {
        let os = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match op.request {
            Request::Read { offset, len } => {
                op.with_buf(|buf| self.file.read_at(&mut buf[..len], offset)).map_err(os)
            }
            Request::Write { offset, len, fua } => {
                let n = op.with_buf(|buf| self.file.write_at(&buf[..len], offset)).map_err(os)?;
                if fua {
                    self.file.sync_data().map_err(os)?;
                }
                Ok(n)
            }
            Request::Sync => self.file.sync_data().map(|()| 0).map_err(os),
            Request::Fallocate { mode, offset, len } => {
                let mode = FallocateFlags::from_bits_retain(mode);
                rustix::fs::fallocate(&self.file, mode, offset, len).map(|()| 0).map_err(|e| e.raw_os_error())
            }
        }
    }
}
