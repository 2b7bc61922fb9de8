//! The key table: which L_Key or R_Key opens which bytes, to whom, for what.
//!
//! Read IBTA vol. 1 §10.6 (memory management) first, §10.6.7 for windows. It is the device's
//! `Memory` (see `access`): every segment is checked in full (key, domain, permission, bounds, wrap) before a byte moves,
//! and nothing is checked where there are no bytes. The upper 24 bits of a key are drawn from entropy and rest in quarantine after use; the low 8 are the
//! consumer's on fast-register regions and windows. The memory itself is in `memory`; posting is the transport's.

mod access;
mod fast;
mod window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use everywire_transport::memory::{Access, AccessError, PdId};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::ids::{IdMap, IdSet};
use crate::memory::Region;
use window::Window;
pub use window::WindowType;

/// Keys that were retired last and are not handed out again yet: a stale peer's requests miss.
const QUARANTINE: usize = 1 << 16;

/// Where synthetic addresses begin: nothing an ordinary process maps, so that a mixed-up pointer is noticed.
const FIRST_IOVA: u64 = 0x0100_0000_0000_0000;

/// Unused addresses after each region, so that running past one never reaches the next.
const IOVA_GUARD: u64 = 1 << 20;

/// Alignment of synthetic addresses.
const IOVA_ALIGN: u64 = crate::memory::PAGE_SIZE as u64;

/// What peers may do at all.
pub(crate) const REMOTE: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Remote kinds of access that change memory: they need LOCAL_WRITE on the region (IBTA C10-74).
const CHANGING: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// A piece of a fast-registered region.
struct Piece {
    region: Arc<Region>,
    /// Offset in `region`.
    offset: u64,
    /// Offset of its first byte in the whole.
    at: u64,
    len: u64,
}

/// What a key stands for.
enum Kind {
    /// Ordinary registration.
    Region { region: Arc<Region> },
    /// Fast-register region; free while it has no pieces.
    Fast { pieces: Vec<Piece>, max_pages: u32, valid: bool },
    /// Memory window.
    Window(Window),
}

/// One key.
struct Entry {
    /// The low eight bits of the current key.
    tag: u8,
    pd: PdId,
    access: Access,
    /// Address of the first byte.
    base: u64,
    len: u64,
    /// Windows that are bound to it.
    windows: u32,
    /// Tells it from all others, also from one that has the same key later.
    serial: u64,
    kind: Kind,
}

impl Entry {
    /// An entry that opens nothing yet, until it is registered or bound.
    fn closed(pd: PdId, kind: Kind) -> Entry {
        Entry { tag: 0, pd, access: Access::empty(), base: 0, len: 0, windows: 0, serial: 0, kind }
    }

    /// The offset of an access in the whole, if all of it is inside.
    #[inline]
    fn offset(&self, addr: u64, length: u64) -> Result<u64, AccessError> {
        // Both subtractions and the sum fail on wrap.
        let offset = addr.checked_sub(self.base).ok_or(AccessError::OutOfBounds)?;
        let end = offset.checked_add(length).ok_or(AccessError::OutOfBounds)?;
        if end <= self.len { Ok(offset) } else { Err(AccessError::OutOfBounds) }
    }

    /// Runs `each(region, offset, range of the access)` over the memory behind `length` bytes at `offset`.
    #[inline]
    fn pieces(
        &self,
        offset: u64,
        length: usize,
        mut each: impl FnMut(&Arc<Region>, u64, std::ops::Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        match &self.kind {
            Kind::Region { region } => each(region, offset, 0..length),
            Kind::Fast { pieces, valid: true, .. } => {
                let first = pieces.partition_point(|piece| piece.at + piece.len <= offset);
                let mut done = 0;
                for piece in &pieces[first..] {
                    if done == length {
                        break;
                    }
                    let inside = offset + done as u64 - piece.at;
                    let take = (length - done).min((piece.len - inside) as usize);
                    each(&piece.region, piece.offset + inside, done..done + take)?;
                    done += take;
                }
                if done == length { Ok(()) } else { Err(AccessError::OutOfBounds) }
            }
            Kind::Fast { .. } => Err(AccessError::Invalidated),
            Kind::Window(_) => Err(AccessError::Permission),
        }
    }

    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.pieces(offset, into.len(), |region, at, range| {
            region.read(at, &mut into[range]).map_err(|_| AccessError::OutOfBounds)
        })
    }

    #[inline]
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        self.pieces(offset, from.len(), |region, at, range| {
            region.write(at, &from[range]).map_err(|_| AccessError::OutOfBounds)
        })
    }
}

/// What to make an entry of.
pub(crate) struct NewRegion {
    /// Domain it belongs to.
    pub(crate) pd: PdId,
    /// What it allows.
    pub(crate) access: Access,
    /// Address of its first byte; `None` for a synthetic one.
    pub(crate) iova: Option<u64>,
    /// The memory.
    pub(crate) region: Arc<Region>,
}

/// Why the table took nothing in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTableError {
    /// As many entries of that sort as the device allows.
    Full,
    /// The address range wraps around.
    Wraps,
}

/// All keys of one device.
pub(crate) struct KeyTable {
    entries: IdMap<u32, Entry>,
    retired: VecDeque<u32>,
    quarantined: IdSet<u32>,
    rng: ChaCha8Rng,
    next_iova: u64,
    last_serial: u64,
    /// Type 2 windows that are bound.
    bound_to_qps: u32,
    regions: u32,
    windows: u32,
    max_regions: u32,
    max_windows: u32,
}

impl KeyTable {
    /// An empty table for at most `max_regions` and `max_windows`.
    pub(crate) fn new(seed: u64, max_regions: u32, max_windows: u32) -> KeyTable {
        KeyTable {
            entries: IdMap::default(),
            retired: VecDeque::new(),
            quarantined: IdSet::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            next_iova: FIRST_IOVA,
            last_serial: 0,
            bound_to_qps: 0,
            regions: 0,
            windows: 0,
            max_regions,
            max_windows,
        }
    }

    /// Registers memory; gives its key, local and remote, and the address of its first byte.
    pub(crate) fn register(&mut self, new: NewRegion) -> Result<(u32, u64), KeyTableError> {
        let len = new.region.len();
        if self.regions >= self.max_regions {
            return Err(KeyTableError::Full);
        }
        let base = match new.iova {
            _ if new.access.contains(Access::ZERO_BASED) => 0,
            Some(iova) => iova,
            None => self.synthetic(&new.region),
        };
        base.checked_add(len).ok_or(KeyTableError::Wraps)?;
        self.regions += 1;
        let kind = Kind::Region { region: new.region };
        let key = self.insert(Entry {
            tag: 0,
            pd: new.pd,
            access: new.access,
            base,
            len,
            windows: 0,
            serial: 0,
            kind,
        });
        Ok((key, base))
    }

    /// Allocates a fast-register region of at most `max_pages` pieces, in the free state.
    pub(crate) fn alloc_fast(&mut self, pd: PdId, max_pages: u32) -> Result<u32, KeyTableError> {
        if self.regions >= self.max_regions {
            return Err(KeyTableError::Full);
        }
        self.regions += 1;
        let kind = Kind::Fast { pieces: Vec::new(), max_pages, valid: false };
        Ok(self.insert(Entry::closed(pd, kind)))
    }

    /// Whether windows are bound to the region of a key.
    pub(crate) fn has_windows(&self, key: u32) -> bool {
        self.entries.get(&(key >> 8)).is_some_and(|entry| entry.windows > 0)
    }

    /// Takes a region out, whatever its current tag, and gives its memory back to be dropped without the lock. Windows
    /// still bound to it open nothing any more.
    pub(crate) fn deregister(&mut self, key: u32) -> Vec<Arc<Region>> {
        let Some(entry) = self.entries.remove(&(key >> 8)) else { return Vec::new() };
        self.retire(key >> 8);
        self.regions -= 1;
        match entry.kind {
            Kind::Region { region } => vec![region],
            Kind::Fast { pieces, .. } => pieces.into_iter().map(|piece| piece.region).collect(),
            Kind::Window(_) => Vec::new(),
        }
    }

    /// How many regions and windows there are.
    pub(crate) fn usage(&self) -> (u32, u32) {
        (self.regions, self.windows)
    }

    /// The next synthetic address. It keeps the memory's own place within a page, so that what is aligned for the CPU is
    /// aligned for peers.
    fn synthetic(&mut self, region: &Region) -> u64 {
        let within = region.as_ptr().map_or(0, |start| start as usize as u64 % IOVA_ALIGN);
        let end = |base: u64| {
            base.checked_add(region.len())?.checked_add(IOVA_GUARD)?.checked_next_multiple_of(IOVA_ALIGN)
        };
        let base = self.next_iova + within;
        let (base, next) = match end(base) {
            Some(next) => (base, next),
            // The address space is used up: begin again. It is keys that tell regions apart, not addresses.
            None => (FIRST_IOVA + within, end(FIRST_IOVA + within).unwrap_or(FIRST_IOVA)),
        };
        self.next_iova = next;
        base
    }

    /// Takes an entry in under a fresh key.
    fn insert(&mut self, mut entry: Entry) -> u32 {
        // The limits keep the table far from 2^24 keys, so this ends soon.
        let index = loop {
            let index = self.rng.next_u32() >> 8;
            if index != 0 && !self.entries.contains_key(&index) && !self.quarantined.contains(&index) {
                break index;
            }
        };
        entry.tag = self.rng.next_u32() as u8;
        self.last_serial += 1;
        entry.serial = self.last_serial;
        let key = (index << 8) | u32::from(entry.tag);
        self.entries.insert(index, entry);
        key
    }

    fn retire(&mut self, index: u32) {
        self.retired.push_back(index);
        self.quarantined.insert(index);
        if self.retired.len() > QUARANTINE
            && let Some(oldest) = self.retired.pop_front()
        {
            self.quarantined.remove(&oldest);
        }
    }

    /// The current key of a region or window, whatever its tag has become.
    pub(crate) fn current_key(&self, key: u32) -> Option<u32> {
        let entry = self.entries.get(&(key >> 8))?;
        Some((key & !0xff) | u32::from(entry.tag))
    }

    #[inline]
    fn entry(&self, key: u32) -> Result<&Entry, AccessError> {
        let entry = self.entries.get(&(key >> 8)).ok_or(AccessError::UnknownKey)?;
        if entry.tag == key as u8 { Ok(entry) } else { Err(AccessError::UnknownKey) }
    }

    fn entry_mut(&mut self, key: u32, pd: PdId) -> Result<&mut Entry, AccessError> {
        let entry = self.entries.get_mut(&(key >> 8)).ok_or(AccessError::UnknownKey)?;
        if entry.tag != key as u8 {
            return Err(AccessError::UnknownKey);
        }
        if entry.pd == pd { Ok(entry) } else { Err(AccessError::WrongPd) }
    }
}
