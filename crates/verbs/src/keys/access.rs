//! The device's [`Memory`]: every access is resolved to an entry and an offset here, and only then do bytes move.
//!
//! Read IBTA vol. 1 §10.6.3 first. In this order: key, domain, permission, bounds. Windows are resolved in `window`.

use std::sync::Arc;

use everywire_transport::memory::{
    Access, AccessError, AtomicOp, BindWindow, FastRegister, Memory, PdId, Pin, RemoteAccess, Sge,
};
use everywire_wire::{Qpn, RKey};
use smallvec::SmallVec;

use super::{Entry, KeyTable, Kind};

impl KeyTable {
    /// The entry and offset behind one local segment.
    #[inline]
    pub(super) fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(&Entry, u64), AccessError> {
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

/// Pins, until it is known whether all of an access can be pinned.
#[derive(Default)]
struct Pins {
    pins: SmallVec<[Pin; 4]>,
    /// Some of it is reached by copying only.
    copied: bool,
}

impl Pins {
    fn add(&mut self, entry: &Entry, at: u64, length: usize) -> Result<(), AccessError> {
        entry.pieces(at, length, |region, at, part| {
            self.copied |= region.as_ptr().is_none();
            let owner: Arc<_> = region.clone();
            self.pins.push(Pin::new(owner, at, part.len()));
            Ok(())
        })
    }

    fn give(self, take: &mut dyn FnMut(Pin)) -> bool {
        if !self.copied {
            self.pins.into_iter().for_each(take);
        }
        !self.copied
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
                original = region.update_u64(at, |old| op.apply(old));
            }
            Ok(())
        })?;
        original.ok_or(AccessError::OutOfBounds)
    }

    fn pin(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        length: usize,
        take: &mut dyn FnMut(Pin),
    ) -> Result<bool, AccessError> {
        let mut pins = Pins::default();
        self.walk((pd, sges, false), offset, length, |entry, at, range| pins.add(entry, at, range.len()))?;
        Ok(pins.give(take))
    }

    fn pin_remote(&self, at: &RemoteAccess, take: &mut dyn FnMut(Pin)) -> Result<bool, AccessError> {
        let (entry, offset) = self.remote(at)?;
        let mut pins = Pins::default();
        pins.add(entry, offset, at.length as usize)?;
        Ok(pins.give(take))
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
        self.register_fast(pd, reg)
    }
}
