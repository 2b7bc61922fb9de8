//! The key table: which L_Key or R_Key opens which bytes, to whom, for what.
//!
//! Read IBTA vol. 1 §10.6 (memory management) first, §10.6.7 for windows. It is the device's [`Memory`]: every segment is
//! checked in full (key, domain, permission, bounds, wrap) before a byte moves, and nothing is checked where there are no
//! bytes. The upper 24 bits of a key are drawn from entropy and rest in quarantine after use; the low 8 are the
//! consumer's on fast-register regions and windows. The memory itself is in `memory`; posting is the transport's.

mod window;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use everywire_transport::memory::{
    Access, AccessError, AtomicOp, BindWindow, FastRegister, Memory, PdId, RemoteAccess, Sge,
};
use everywire_wire::{Qpn, RKey};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

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

/// Keys are random: their bits need no further mixing.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }
    fn write_u32(&mut self, index: u32) {
        // The map takes its bucket from the low bits and its tag from the high ones.
        self.0 = u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

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
    kind: Kind,
}

impl Entry {
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
        mut each: impl FnMut(&Region, u64, std::ops::Range<usize>) -> Result<(), AccessError>,
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
    entries: HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>,
    retired: VecDeque<u32>,
    quarantined: HashSet<u32, BuildHasherDefault<KeyHasher>>,
    rng: ChaCha8Rng,
    next_iova: u64,
    regions: u32,
    windows: u32,
    max_regions: u32,
    max_windows: u32,
}

impl KeyTable {
    /// An empty table for at most `max_regions` and `max_windows`.
    pub(crate) fn new(seed: u64, max_regions: u32, max_windows: u32) -> KeyTable {
        KeyTable {
            entries: HashMap::default(),
            retired: VecDeque::new(),
            quarantined: HashSet::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            next_iova: FIRST_IOVA,
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
        let key = self.insert(Entry { tag: 0, pd: new.pd, access: new.access, base, len, windows: 0, kind });
        Ok((key, base))
    }

    /// Allocates a fast-register region of at most `max_pages` pieces, in the free state.
    pub(crate) fn alloc_fast(&mut self, pd: PdId, max_pages: u32) -> Result<u32, KeyTableError> {
        if self.regions >= self.max_regions {
            return Err(KeyTableError::Full);
        }
        self.regions += 1;
        let kind = Kind::Fast { pieces: Vec::new(), max_pages, valid: false };
        Ok(self.insert(Entry { tag: 0, pd, access: Access::empty(), base: 0, len: 0, windows: 0, kind }))
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

    /// The entry and offset behind one local segment.
    #[inline]
    fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(&Entry, u64), AccessError> {
        let entry = self.entry(sge.lkey.0)?;
        if entry.pd != pd {
            return Err(AccessError::WrongPd);
        }
        match entry.kind {
            Kind::Window(_) => return Err(AccessError::Permission), // IBTA §10.6.7: no local access through windows
            Kind::Fast { valid: false, .. } => return Err(AccessError::Invalidated),
            _ => {}
        }
        if write && !entry.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessError::Permission);
        }
        Ok((entry, entry.offset(sge.addr, u64::from(sge.length))?))
    }

    /// The entry and offset behind a peer's access.
    #[inline]
    fn remote(&self, at: &RemoteAccess) -> Result<(&Entry, u64), AccessError> {
        let entry = self.entry(at.rkey.0)?;
        match &entry.kind {
            Kind::Window(window) => return self.through_window(entry, window, at),
            Kind::Fast { valid: false, .. } => return Err(AccessError::Invalidated),
            _ => {}
        }
        if entry.pd != at.pd {
            return Err(AccessError::WrongPd);
        }
        if !entry.access.contains(at.need) {
            return Err(AccessError::Permission);
        }
        Ok((entry, entry.offset(at.va, at.length)?))
    }

    /// Runs `each` over the parts of a segment list that hold bytes `offset..offset + length` of the message; all of them
    /// are checked before the first is used.
    fn walk(
        &self,
        (pd, sges, write): (PdId, &[Sge], bool),
        offset: u64,
        length: usize,
        mut each: impl FnMut(&Entry, u64, std::ops::Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if length == 0 {
            return Ok(());
        }
        if let [sge] = sges {
            // The usual case, without a second look.
            let (entry, at) = self.local(pd, sge, write)?;
            if offset.checked_add(length as u64).is_none_or(|end| end > u64::from(sge.length)) {
                return Err(AccessError::OutOfBounds);
            }
            return each(entry, at + offset, 0..length);
        }
        for check in [true, false] {
            let (mut skip, mut done) = (offset, 0);
            for sge in sges.iter().filter(|sge| sge.length > 0) {
                if done == length {
                    break;
                }
                if skip >= u64::from(sge.length) {
                    skip -= u64::from(sge.length);
                    continue;
                }
                let (entry, at) = self.local(pd, sge, write)?;
                let take = (length - done).min((u64::from(sge.length) - skip) as usize);
                if !check {
                    each(entry, at + skip, done..done + take)?;
                }
                done += take;
                skip = 0;
            }
            if done < length {
                return Err(AccessError::OutOfBounds);
            }
        }
        Ok(())
    }
}

impl Memory for KeyTable {
    fn check_local(&self, pd: PdId, sges: &[Sge], write: bool) -> Result<u64, AccessError> {
        let mut total = 0;
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.local(pd, sge, write)?;
            total += u64::from(sge.length);
        }
        Ok(total)
    }

    fn gather(&self, pd: PdId, sges: &[Sge], offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.walk((pd, sges, false), offset, into.len(), |entry, at, range| entry.read(at, &mut into[range]))
    }

    fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, from: &[u8]) -> Result<(), AccessError> {
        self.walk((pd, sges, true), offset, from.len(), |entry, at, range| entry.write(at, &from[range]))
    }

    fn check_remote(&self, at: &RemoteAccess) -> Result<(), AccessError> {
        if at.length == 0 {
            return Ok(()); // IBTA C9-88: no R_Key check for zero-length requests
        }
        self.remote(at).map(drop)
    }

    fn read_remote(&self, at: &RemoteAccess, into: &mut [u8]) -> Result<(), AccessError> {
        if into.is_empty() {
            return Ok(());
        }
        let (entry, offset) = self.remote(&RemoteAccess { length: into.len() as u64, ..*at })?;
        entry.read(offset, into)
    }

    fn write_remote(&mut self, at: &RemoteAccess, from: &[u8]) -> Result<(), AccessError> {
        if from.is_empty() {
            return Ok(());
        }
        let (entry, offset) = self.remote(&RemoteAccess { length: from.len() as u64, ..*at })?;
        entry.write(offset, from)
    }

    fn atomic(&mut self, at: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessError> {
        let (entry, offset) = self.remote(&RemoteAccess { length: 8, ..*at })?;
        if !at.va.is_multiple_of(8) {
            return Err(AccessError::OutOfBounds); // the transport has refused it before (IBTA §9.4.5)
        }
        let mut original = None;
        entry.pieces(offset, 8, |region, at, range| {
            // A word that straddles pieces, or is not aligned in this host's memory, cannot be one atomic access.
            if range.len() == 8 {
                original = region.update_u64(at, |old| match op {
                    AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
                    AtomicOp::CompareSwap { .. } => old,
                    AtomicOp::FetchAdd { add } => old.wrapping_add(add),
                });
            }
            Ok(())
        })?;
        original.ok_or(AccessError::OutOfBounds)
    }

    fn invalidate_local(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError> {
        self.invalidate(pd, qpn, key)
    }

    fn invalidate_remote(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError> {
        self.invalidate(pd, qpn, key)
    }

    fn bind_window(&mut self, pd: PdId, qpn: Qpn, bind: &BindWindow) -> Result<RKey, AccessError> {
        self.bind(pd, qpn, bind)
    }

    fn fast_register(&mut self, pd: PdId, _qpn: Qpn, reg: &FastRegister) -> Result<(), AccessError> {
        let (max_pages, old) = match self.entry_mut(reg.mr.0, pd)? {
            Entry { kind: Kind::Fast { max_pages, valid: false, .. }, .. } => (*max_pages, reg.mr.0),
            _ => return Err(AccessError::BadState), // IBTA §10.6.4.6: the region must be free
        };
        if reg.new_key.0 >> 8 != old >> 8 {
            return Err(AccessError::UnknownKey); // only the low eight bits are the consumer's
        }
        let allowed = REMOTE | Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
        if !allowed.contains(reg.access)
            || (reg.access.intersects(CHANGING) && !reg.access.contains(Access::LOCAL_WRITE))
        {
            return Err(AccessError::Permission);
        }
        let base = if reg.access.contains(Access::ZERO_BASED) { 0 } else { reg.iova };
        let pieces = self.fast_pieces(pd, reg, max_pages)?;
        base.checked_add(reg.length).ok_or(AccessError::OutOfBounds)?;
        let entry = self.entry_mut(old, pd)?;
        entry.tag = reg.new_key.0 as u8;
        entry.access = reg.access;
        entry.base = base;
        entry.len = reg.length;
        entry.kind = Kind::Fast { pieces, max_pages, valid: true };
        Ok(())
    }
}

impl KeyTable {
    /// The pieces of a fast registration: as if each were a local segment that must allow what the whole will.
    fn fast_pieces(&self, pd: PdId, reg: &FastRegister, max_pages: u32) -> Result<Vec<Piece>, AccessError> {
        if reg.pages.len() as u64 > u64::from(max_pages) {
            return Err(AccessError::OutOfBounds);
        }
        let write = reg.access.contains(Access::LOCAL_WRITE);
        let mut pieces = Vec::with_capacity(reg.pages.len());
        let mut at = 0;
        for page in reg.pages.iter().filter(|page| page.length > 0) {
            let (entry, offset) = self.local(pd, page, write)?;
            // Regions made of regions made of regions would never end: only plain memory can be a piece.
            let Kind::Region { region } = &entry.kind else { return Err(AccessError::Permission) };
            let len = u64::from(page.length);
            pieces.push(Piece { region: region.clone(), offset, at, len });
            at += len;
        }
        if at == reg.length { Ok(pieces) } else { Err(AccessError::OutOfBounds) }
    }

    /// Local and remote invalidation (IBTA §10.6.5): of fast-register regions and bound type 2 windows only.
    fn invalidate(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError> {
        let entry = self.entry_mut(key.0, pd)?;
        match &mut entry.kind {
            Kind::Region { .. } => Err(AccessError::Permission),
            Kind::Fast { valid: false, .. } => Err(AccessError::Invalidated),
            Kind::Fast { .. } if entry.windows > 0 => Err(AccessError::BadState),
            Kind::Fast { pieces, valid, .. } => {
                pieces.clear();
                *valid = false;
                Ok(())
            }
            Kind::Window(window) => {
                let parent = window.invalidate(qpn)?;
                self.unbound(parent);
                Ok(())
            }
        }
    }

    /// The current key of a region or window, whatever its tag has become.
    pub(crate) fn current_key(&self, key: u32) -> Option<u32> {
        let entry = self.entries.get(&(key >> 8))?;
        Some((key & !0xff) | u32::from(entry.tag))
    }
}
