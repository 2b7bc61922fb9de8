//! Memory of a caller's that commands use without a copy, where the transport can.
//!
//! Over RDMA it is registered once, and each command opens to the target just the part that it transfers, for as long as it runs
//! (RFC 7145 §9.3). On a stream it is ordinary memory that data is copied through.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use everywire_block::{IoMemory, SharedBuffer};
use everywire_verbs::{Access, MemoryRegion, Pd, VerbsError};

/// Memory for data of commands. Cheap to clone; a command that its caller no longer waits for may use it until its session ends.
#[derive(Clone)]
pub struct Buffer {
    memory: Rc<Memory>,
    len: usize,
}

enum Memory {
    Plain(Arc<SharedBuffer>),
    Registered(MemoryRegion),
}

impl Buffer {
    /// Zeroed; registered in `pd`, if there is one.
    pub(crate) fn new(pd: Option<&Pd>, len: usize) -> Result<Buffer, VerbsError> {
        let memory = match pd {
            Some(pd) => Memory::Registered(pd.register(len, Access::LOCAL_WRITE)?),
            None => Memory::Plain(SharedBuffer::new(vec![0; len])),
        };
        Ok(Buffer { memory: Rc::new(memory), len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `into.len()` bytes out, from byte `at`.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn read_at(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        match &*self.memory {
            Memory::Plain(memory) => memory.load(at, into),
            Memory::Registered(region) => region.read_at(at, into).expect("checked above"),
        }
    }

    /// Copies bytes in, at byte `at`.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        match &*self.memory {
            Memory::Plain(memory) => memory.store(at, from),
            Memory::Registered(region) => region.write_at(at, from).expect("checked above"),
        }
    }

    fn check(&self, at: usize, len: usize) {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {at} of a buffer of {} bytes", self.len);
    }
}

/// A part of a buffer.
#[derive(Clone)]
pub struct Span {
    buffer: Buffer,
    at: usize,
    len: usize,
}

impl Span {
    /// The `len` bytes of `buffer` from byte `at`.
    ///
    /// # Panics
    /// They are not all inside.
    pub fn new(buffer: &Buffer, at: usize, len: usize) -> Span {
        buffer.check(at, len);
        Span { buffer: buffer.clone(), at, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is, if that is registered in the protection domain `pd`.
    pub(crate) fn registered(&self, pd: &Pd) -> Option<(&MemoryRegion, usize)> {
        match &*self.buffer.memory {
            Memory::Registered(region) if region.pd().same(pd) => Some((region, self.at)),
            _ => None,
        }
    }

    /// A copy of what is in it.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut bytes = vec![0; self.len];
        self.buffer.read_at(self.at, &mut bytes);
        bytes.into()
    }

    /// Copies in what came; what is longer is cut.
    pub(crate) fn fill(&self, data: &[u8]) {
        self.buffer.write_at(self.at, &data[..data.len().min(self.len)]);
    }
}
