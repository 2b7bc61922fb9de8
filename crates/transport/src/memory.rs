//! What the transport asks of registered memory: the key table's checks and the copies in and out of regions.
//!
//! The transport holds no memory of its own. A device implements [`Memory`] over its regions, windows and keys; the
//! queue pairs call it for every packet. Read IBTA vol. 1 §10.6 (memory management) first. Every check covers the
//! whole range *before* a byte moves, and an operation of zero length checks nothing and succeeds.
//! This module does not allocate keys and does not know how a region is stored.

use std::fmt;
use std::sync::Arc;

use bitflags::bitflags;
use everywire_wire::{LKey, Qpn, RKey};
use smallvec::SmallVec;

/// A protection domain of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// One piece of local memory: `length` bytes at `addr` (the region's own virtual address) under `lkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, in the address space of the region that `lkey` names.
    pub addr: u64,
    /// Bytes. Zero touches nothing and is never checked.
    pub length: u32,
    /// Local key of the region.
    pub lkey: LKey,
}

bitflags! {
    /// What a region, a window or a queue pair allows. The numbers are those of `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write (receives, READ responses, atomic results).
        const LOCAL_WRITE = 1;
        /// Peers may RDMA WRITE.
        const REMOTE_WRITE = 2;
        /// Peers may RDMA READ.
        const REMOTE_READ = 4;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const MW_BIND = 16;
        /// Addresses count from the start of the region or window, not from its virtual address.
        const ZERO_BASED = 32;
    }
}

/// Why an access was refused. The transport maps it to a NAK or a completion status by who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AccessError {
    /// No region or window has this key.
    #[error("no memory region or window has this key")]
    UnknownKey,
    /// The key belongs to another protection domain.
    #[error("the key belongs to another protection domain")]
    WrongPd,
    /// The region or window does not allow this kind of access.
    #[error("the region or window does not allow this kind of access")]
    Permission,
    /// The range leaves the region or window, or wraps around the address space.
    #[error("the range leaves the region or window")]
    OutOfBounds,
    /// The key was invalidated.
    #[error("the key was invalidated")]
    Invalidated,
    /// A type 2 window bound through another queue pair.
    #[error("the memory window is bound to another queue pair")]
    WrongQp,
    /// The object cannot do this now (binding a bound type 2 window, registering a registered fast-register region…).
    #[error("the memory region or window is not in a state that allows this")]
    BadState,
}

/// A peer's access to local memory: READ, WRITE, atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// Protection domain of the queue pair the request arrived on.
    pub pd: PdId,
    /// The queue pair the request arrived on; type 2 windows compare it.
    pub qpn: Qpn,
    /// Key in the request.
    pub rkey: RKey,
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub length: u64,
    /// Exactly one of `REMOTE_WRITE`, `REMOTE_READ`, `REMOTE_ATOMIC`.
    pub need: Access,
}

/// A 64-bit atomic, done in host byte order on 8 aligned bytes. [`AtomicOp::apply`] is what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd {
        /// Value to add.
        add: u64,
    },
    /// Stores bits of `swap` if bits of the value equal those of `compare` (RFC 7306 §5.1.2).
    MaskedCompareSwap {
        /// Bits to compare with.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// Bits to store.
        swap: u64,
        /// Which bits are stored.
        swap_mask: u64,
    },
    /// Adds fields of a word, each modulo its width (RFC 7306 §5.1.1).
    MaskedFetchAdd {
        /// Values to add, one in each field.
        add: u64,
        /// The highest bit of each field: no carry leaves it. Zero: all 64 bits are one.
        boundary: u64,
    },
}

impl AtomicOp {
    /// The value that replaces `old`.
    #[inline]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::CompareSwap { compare, swap } => {
                if old == compare {
                    swap
                } else {
                    old
                }
            }
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::MaskedCompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (old ^ compare) & compare_mask == 0 { old & !swap_mask | swap & swap_mask } else { old }
            }
            // The bits below each boundary can't carry out of their field; its own bit is added without carry.
            AtomicOp::MaskedFetchAdd { add, boundary } => {
                (old & !boundary).wrapping_add(add & !boundary) ^ (old ^ add) & boundary
            }
        }
    }
}

/// A Bind Memory Window work request (IBTA vol. 1 §10.6.7). A `length` of zero unbinds a type 1 window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWindow {
    /// The window's current key.
    pub window: RKey,
    /// The key it shall have once bound: same index, the low eight bits are the consumer's (type 2) or the device's
    /// next (type 1).
    pub new_rkey: RKey,
    /// The region it opens, by its local key; the region must allow `MW_BIND`.
    pub mr: LKey,
    /// First byte, in the region's address space.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// `REMOTE_*` and `ZERO_BASED`.
    pub access: Access,
}

/// A Fast Register work request (IBTA vol. 1 §10.6.4.6): gives an allocated region its contents, address and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The region's current local key.
    pub mr: LKey,
    /// The key it shall have, local and remote: same index, low eight bits chosen by the consumer.
    pub new_key: RKey,
    /// Address of its first byte from now on.
    pub iova: u64,
    /// Bytes; the sum of `pages`.
    pub length: u64,
    /// What it allows.
    pub access: Access,
    /// The pieces of registered memory it is made of, in order.
    pub pages: SmallVec<[Sge; 1]>,
}

/// Registered memory that stays where it is for as long as somebody holds it.
pub trait PinOwner: Send + Sync + 'static {
    /// Where its first byte is. Peers and the program write it at any time: it is for the system's own copying calls
    /// (a vectored write to a socket), never for a Rust reference.
    fn start(&self) -> *const u8;
    /// Copies bytes from `offset` out, for those who can't use a pointer.
    fn read(&self, offset: u64, into: &mut [u8]);
}

/// A range of registered memory, held.
#[derive(Clone)]
pub struct Pin {
    owner: Arc<dyn PinOwner>,
    offset: u64,
    len: usize,
}

impl Pin {
    /// `len` bytes at `offset` of `owner`; the caller has checked that they are there.
    pub fn new(owner: Arc<dyn PinOwner>, offset: u64, len: usize) -> Pin {
        Pin { owner, offset, len }
    }

    /// Where the bytes are, until this is dropped.
    pub fn as_ptr(&self) -> *const u8 {
        self.owner.start().wrapping_add(self.offset as usize)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of the bytes, without the first `skip`, to `out`.
    pub fn copy_to(&self, skip: usize, out: &mut Vec<u8>) {
        let (at, take) = (out.len(), self.len.saturating_sub(skip));
        out.resize(at + take, 0);
        self.owner.read(self.offset + skip as u64, &mut out[at..]);
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({} bytes at offset {})", self.len, self.offset)
    }
}

/// The key table and the bytes behind it, as the queue pairs of one device see them.
///
/// Work requests carry virtual addresses; whether those are real or synthetic is the implementation's business.
pub trait Memory {
    /// Checks every segment (key, domain, bounds and, if `write`, `LOCAL_WRITE`). Gives the sum of their lengths.
    fn check_local(&self, pd: PdId, sges: &[Sge], write: bool) -> Result<u64, AccessError>;
    /// Copies `into.len()` bytes, starting `offset` bytes into the list, out of local memory: segments to packet.
    fn gather(&self, pd: PdId, sges: &[Sge], offset: u64, into: &mut [u8]) -> Result<(), AccessError>;
    /// Copies `from`, starting `offset` bytes into the list, to local memory: packet to segments.
    fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, from: &[u8]) -> Result<(), AccessError>;
    /// Checks a peer's access in full, without touching memory.
    fn check_remote(&self, at: &RemoteAccess) -> Result<(), AccessError>;
    /// Checks, then copies out of the region for a READ response. `into.len()` equals `at.length`.
    fn read_remote(&self, at: &RemoteAccess, into: &mut [u8]) -> Result<(), AccessError>;
    /// Checks, then copies a WRITE's payload into the region. `from.len()` equals `at.length`.
    fn write_remote(&mut self, at: &RemoteAccess, from: &[u8]) -> Result<(), AccessError>;
    /// Checks, then does an atomic; gives the original value.
    fn atomic(&mut self, at: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessError>;
    /// Holds `length` bytes of local memory, starting `offset` bytes into the list, instead of copying them: gives them
    /// to `take` in order. False, and nothing given, where memory can only be copied.
    fn pin(
        &self,
        _pd: PdId,
        _sges: &[Sge],
        _offset: u64,
        _length: usize,
        _take: &mut dyn FnMut(Pin),
    ) -> Result<bool, AccessError> {
        Ok(false)
    }
    /// Checks a peer's access, then holds its bytes for a READ response as [`Memory::pin`] does.
    fn pin_remote(&self, _at: &RemoteAccess, _take: &mut dyn FnMut(Pin)) -> Result<bool, AccessError> {
        Ok(false)
    }
    /// A Local Invalidate work request.
    fn invalidate_local(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError>;
    /// The invalidation carried by a peer's SEND with Invalidate.
    fn invalidate_remote(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError>;
    /// A Bind Memory Window work request; gives the window's new key.
    fn bind_window(&mut self, pd: PdId, qpn: Qpn, bind: &BindWindow) -> Result<RKey, AccessError>;
    /// A Fast Register work request.
    fn fast_register(&mut self, pd: PdId, qpn: Qpn, reg: &FastRegister) -> Result<(), AccessError>;
}
