//! Where data of an initiator's commands lies: in its caller's memory, or in a buffer of a pool that all connections of a binding
//! share and that outlives them.

use std::rc::Rc;

use everywire_verbs::pool::{BufferPool, PoolBuf};
use everywire_verbs::rt::Notify;
use everywire_verbs::{Access, MemoryRegion, Pd, VerbsError};

use crate::initiator::{Span, Transfer};

/// Largest buffer of one command.
pub(super) const MAX_BUFFER: usize = 32 << 20;
/// Bytes of buffers.
const POOL: usize = 64 << 20;

/// Where a command's data lies.
#[derive(Default)]
pub(super) enum Place {
    #[default]
    Nowhere,
    /// In a buffer of the pool.
    Pooled(PoolBuf),
    /// In its caller's memory, which is registered.
    Lent(Span),
}

impl Place {
    /// The region that has it, and where it begins there.
    pub(super) fn region(&self, pd: &Pd) -> Option<(&MemoryRegion, usize)> {
        match self {
            Place::Nowhere => None,
            Place::Pooled(buffer) => Some((buffer.pool().region(), buffer.at())),
            Place::Lent(span) => span.registered(pd),
        }
    }

    /// A copy of `len` bytes from byte `from`.
    pub(super) fn read(&self, pd: &Pd, from: usize, len: usize) -> Vec<u8> {
        let bytes = self.region(pd).map(|(region, at)| region.read_vec(at + from, len));
        bytes.map_or_else(Vec::new, |bytes| bytes.expect("a command's data lies inside its region"))
    }
}

/// Memory that survives connections.
pub(super) struct Memory {
    pool: Rc<BufferPool>,
    pd: Pd,
}

impl Memory {
    pub(super) fn new(pd: Pd) -> Result<Rc<Memory>, VerbsError> {
        let pool = BufferPool::new(&pd, POOL, MAX_BUFFER, Access::LOCAL_WRITE)?;
        Ok(Rc::new(Memory { pool, pd }))
    }

    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Asks to be notified when a buffer comes back.
    pub(super) fn wait(&self, poke: &Notify) {
        self.pool.wait(poke);
    }

    /// Where a command's data of `len` bytes is to lie, with what goes in its place; the data back while the pool has no buffer for
    /// it.
    pub(super) fn place(&self, data: Transfer, len: usize) -> Result<Place, Transfer> {
        if len == 0 {
            return Ok(Place::Nowhere);
        }
        let data = match data {
            Transfer::Into(span) | Transfer::From(span) if span.registered(&self.pd).is_some() => {
                return Ok(Place::Lent(span));
            }
            other => other,
        };
        let Some(buffer) = self.pool.take(len) else { return Err(data) };
        if data.data_out() > 0 {
            let written = self.pool.region().write_at(buffer.at(), &data.out());
            written.expect("a buffer lies inside its pool");
        }
        Ok(Place::Pooled(buffer))
    }
}
