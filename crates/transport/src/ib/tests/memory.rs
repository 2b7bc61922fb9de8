//! A key table for tests: regions, windows and their checks, written for reading and not for speed.

use everywire_wire::{LKey, Qpn, RKey};

use std::sync::Arc;

use crate::memory::{
    Access, AccessError, AtomicOp, BindWindow, FastRegister, Memory, PdId, Pin, PinOwner, RemoteAccess, Sge,
};

/// Bytes as they were when they were pinned.
struct Held(Vec<u8>);

impl PinOwner for Held {
    fn start(&self) -> *const u8 {
        self.0.as_ptr()
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
    }
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdId,
    pub(crate) key: u32,
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) access: Access,
    pub(crate) valid: bool,
}

#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) pd: PdId,
    pub(crate) rkey: RKey,
    pub(crate) type2: bool,
    /// Region index, queue pair (type 2), range, access.
    pub(crate) bound: Option<(usize, Qpn, u64, u64, Access)>,
}

#[derive(Debug, Default)]
pub(crate) struct TestMemory {
    /// `pin` works, by copying.
    pub(crate) pins: bool,
    pub(crate) regions: Vec<Region>,
    pub(crate) windows: Vec<Window>,
}

impl TestMemory {
    /// Registers zeroed memory; the key is the same for local and remote use.
    pub(crate) fn register(&mut self, pd: PdId, base: u64, len: usize, access: Access) -> u32 {
        let key = 0x1000 + self.regions.len() as u32 * 0x100;
        self.regions.push(Region { pd, key, base, bytes: vec![0; len], access, valid: true });
        key
    }

    pub(crate) fn window(&mut self, pd: PdId, type2: bool) -> RKey {
        let rkey = RKey(0x80_0000 + self.windows.len() as u32 * 0x100);
        self.windows.push(Window { pd, rkey, type2, bound: None });
        rkey
    }

    pub(crate) fn bytes(&mut self, key: u32) -> &mut Vec<u8> {
        &mut self.regions.iter_mut().find(|r| r.key == key).unwrap().bytes
    }

    fn region(&self, pd: PdId, key: u32) -> Result<usize, AccessError> {
        let at = self.regions.iter().position(|r| r.key == key).ok_or(AccessError::UnknownKey)?;
        let region = &self.regions[at];
        if region.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if region.valid { Ok(at) } else { Err(AccessError::Invalidated) }
    }

    fn range(region: &Region, addr: u64, len: u64) -> Result<std::ops::Range<usize>, AccessError> {
        let start = addr.checked_sub(region.base).ok_or(AccessError::OutOfBounds)?;
        let end = start.checked_add(len).ok_or(AccessError::OutOfBounds)?;
        if end > region.bytes.len() as u64 {
            return Err(AccessError::OutOfBounds);
        }
        Ok(start as usize..end as usize)
    }

    /// Region and byte range of a remote access, fully checked.
    fn resolve(&self, at: &RemoteAccess) -> Result<(usize, std::ops::Range<usize>), AccessError> {
        if let Some(window) = self.windows.iter().find(|w| w.rkey == at.rkey) {
            if window.pd != at.pd {
                return Err(AccessError::WrongPd);
            }
            let (region, qpn, base, len, access) = window.bound.ok_or(AccessError::Invalidated)?;
            if window.type2 && qpn != at.qpn {
                return Err(AccessError::WrongQp);
            }
            if !access.contains(at.need) {
                return Err(AccessError::Permission);
            }
            let end = at.va.checked_add(at.length).ok_or(AccessError::OutOfBounds)?;
            if at.va < base || end > base + len {
                return Err(AccessError::OutOfBounds);
            }
            return Ok((region, TestMemory::range(&self.regions[region], at.va, at.length)?));
        }
        let region = self.region(at.pd, at.rkey.0)?;
        if !self.regions[region].access.contains(at.need) {
            return Err(AccessError::Permission);
        }
        Ok((region, TestMemory::range(&self.regions[region], at.va, at.length)?))
    }

    /// Calls `each` with region, range in it and range in the packet, for the part of the list that starts at `offset`.
    fn walk(
        &self,
        pd: PdId,
        sges: &[Sge],
        mut offset: u64,
        len: usize,
        mut each: impl FnMut(usize, std::ops::Range<usize>, usize),
    ) -> Result<(), AccessError> {
        let mut done = 0;
        for sge in sges {
            if offset >= u64::from(sge.length) {
                offset -= u64::from(sge.length);
                continue;
            }
            let take = (u64::from(sge.length) - offset).min((len - done) as u64);
            if take == 0 {
                break;
            }
            let region = self.region(pd, sge.lkey.0)?;
            let range = TestMemory::range(&self.regions[region], sge.addr + offset, take)?;
            each(region, range, done);
            done += take as usize;
            offset = 0;
        }
        if done == len { Ok(()) } else { Err(AccessError::OutOfBounds) }
    }
}

impl Memory for TestMemory {
    fn check_local(&self, pd: PdId, sges: &[Sge], write: bool) -> Result<u64, AccessError> {
        let mut total = 0;
        for sge in sges.iter().filter(|s| s.length > 0) {
            let region = &self.regions[self.region(pd, sge.lkey.0)?];
            if write && !region.access.contains(Access::LOCAL_WRITE) {
                return Err(AccessError::Permission);
            }
            TestMemory::range(region, sge.addr, u64::from(sge.length))?;
            total += u64::from(sge.length);
        }
        Ok(total)
    }

    fn gather(&self, pd: PdId, sges: &[Sge], offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let mut pieces = Vec::new();
        self.walk(pd, sges, offset, into.len(), |region, range, at| pieces.push((region, range, at)))?;
        for (region, range, at) in pieces {
            into[at..at + range.len()].copy_from_slice(&self.regions[region].bytes[range]);
        }
        Ok(())
    }

    fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let mut pieces = Vec::new();
        self.walk(pd, sges, offset, from.len(), |region, range, at| pieces.push((region, range, at)))?;
        for (region, range, at) in pieces {
            let len = range.len();
            self.regions[region].bytes[range].copy_from_slice(&from[at..at + len]);
        }
        Ok(())
    }

    fn check_remote(&self, at: &RemoteAccess) -> Result<(), AccessError> {
        self.resolve(at).map(drop)
    }

    fn read_remote(&self, at: &RemoteAccess, into: &mut [u8]) -> Result<(), AccessError> {
        let (region, range) = self.resolve(at)?;
        into.copy_from_slice(&self.regions[region].bytes[range]);
        Ok(())
    }

    fn write_remote(&mut self, at: &RemoteAccess, from: &[u8]) -> Result<(), AccessError> {
        let (region, range) = self.resolve(at)?;
        self.regions[region].bytes[range].copy_from_slice(from);
        Ok(())
    }

    fn atomic(&mut self, at: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessError> {
        let (region, range) = self.resolve(at)?;
        let cell = &mut self.regions[region].bytes[range];
        let original = u64::from_ne_bytes(cell.try_into().unwrap());
        cell.copy_from_slice(&op.apply(original).to_ne_bytes());
        Ok(original)
    }

    fn pin(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        length: usize,
        take: &mut dyn FnMut(Pin),
    ) -> Result<bool, AccessError> {
        let mut bytes = vec![0; length];
        self.gather(pd, sges, offset, &mut bytes)?;
        // Two pieces, as of two segments.
        let (owner, half) = (Arc::new(Held(bytes)), length / 2);
        if self.pins {
            take(Pin::new(owner.clone(), 0, half));
            take(Pin::new(owner, half as u64, length - half));
        }
        Ok(self.pins)
    }

    fn pin_remote(&self, at: &RemoteAccess, take: &mut dyn FnMut(Pin)) -> Result<bool, AccessError> {
        let mut bytes = vec![0; at.length as usize];
        self.read_remote(at, &mut bytes)?;
        if self.pins {
            let length = bytes.len();
            take(Pin::new(Arc::new(Held(bytes)), 0, length));
        }
        Ok(self.pins)
    }

    fn invalidate_local(&mut self, pd: PdId, _qpn: Qpn, key: RKey) -> Result<(), AccessError> {
        if let Some(window) = self.windows.iter_mut().find(|w| w.rkey == key) {
            // A type 1 window is only rebound (IBTA §10.6.7).
            if !window.type2 || window.pd != pd {
                return Err(AccessError::BadState);
            }
            return window.bound.take().map(drop).ok_or(AccessError::Invalidated);
        }
        let at = self.region(pd, key.0)?;
        self.regions[at].valid = false;
        Ok(())
    }

    fn invalidate_remote(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError> {
        if let Some(window) = self.windows.iter().find(|w| w.rkey == key)
            && window.bound.is_some_and(|(_, bound_qp, ..)| bound_qp != qpn)
        {
            return Err(AccessError::WrongQp);
        }
        self.invalidate_local(pd, qpn, key)
    }

    fn bind_window(&mut self, pd: PdId, qpn: Qpn, bind: &BindWindow) -> Result<RKey, AccessError> {
        let region = self.region(pd, bind.mr.0);
        let window =
            self.windows.iter_mut().find(|w| w.rkey == bind.window).ok_or(AccessError::UnknownKey)?;
        if window.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if window.type2 && window.bound.is_some() {
            return Err(AccessError::BadState);
        }
        window.bound = if bind.length == 0 {
            None
        } else {
            let at = region?;
            if !self.regions[at].access.contains(Access::MW_BIND) {
                return Err(AccessError::Permission);
            }
            TestMemory::range(&self.regions[at], bind.addr, bind.length)?;
            Some((at, qpn, bind.addr, bind.length, bind.access))
        };
        window.rkey = bind.new_rkey;
        Ok(bind.new_rkey)
    }

    fn fast_register(&mut self, pd: PdId, _qpn: Qpn, reg: &FastRegister) -> Result<(), AccessError> {
        let at = self.regions.iter().position(|r| LKey(r.key) == reg.mr).ok_or(AccessError::UnknownKey)?;
        if self.regions[at].pd != pd {
            return Err(AccessError::WrongPd);
        }
        let mut bytes = vec![0; reg.length as usize];
        self.gather(pd, &reg.pages, 0, &mut bytes)?;
        let region = &mut self.regions[at];
        *region = Region { pd, key: reg.new_key.0, base: reg.iova, bytes, access: reg.access, valid: true };
        Ok(())
    }
}
