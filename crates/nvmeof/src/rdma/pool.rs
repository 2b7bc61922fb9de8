//! The pool of registered buffers, as the block layer sees its buffers.

use std::rc::Rc;
use std::sync::Arc;

use everywire_block::{IoBuf, IoMemory};
use everywire_verbs::pool::{BufferPool, PoolBuf};
use everywire_verbs::rt::Notify;
use everywire_verbs::{Pd, Sge, VerbsError};

use super::region::io_memory;

/// A pool on one protection domain.
pub(super) struct DataPool {
    pool: Rc<BufferPool>,
    memory: Arc<dyn IoMemory>,
}

impl DataPool {
    /// A pool of at least `bytes`, in buffers of up to `max` bytes (a power of two of at least 4 KiB).
    pub(super) fn new(pd: &Pd, bytes: usize, max: usize) -> Result<Rc<Self>, VerbsError> {
        let pool = BufferPool::new(pd, bytes, max, pd.device().read_sink_access())?;
        let memory = io_memory(pool.region());
        Ok(Rc::new(Self { pool, memory }))
    }

    /// A buffer of at least `len` bytes; `None` when there is none now.
    pub(super) fn take(self: &Rc<Self>, len: usize) -> Option<DataBuf> {
        let buffer = self.pool.take(len)?;
        Some(DataBuf { buffer, pool: self.clone() })
    }

    /// Bytes that are handed out.
    pub(super) fn in_use(&self) -> usize {
        self.pool.in_use()
    }

    /// Asks to be notified when a buffer comes back. One call is one notification.
    pub(super) fn wait(&self, notify: &Notify) {
        self.pool.wait(notify);
    }
}

/// A buffer of the pool; it goes back when dropped.
pub(super) struct DataBuf {
    buffer: PoolBuf,
    pool: Rc<DataPool>,
}

impl DataBuf {
    /// A segment of `len` bytes from byte `offset` of the buffer.
    pub(super) fn sge(&self, offset: usize, len: u32) -> Sge {
        self.buffer.sge(offset, len)
    }

    /// Its first `len` bytes for a backend.
    pub(super) fn io(&self, len: usize) -> IoBuf {
        IoBuf::new(self.pool.memory.clone(), self.buffer.at(), len)
    }
}
