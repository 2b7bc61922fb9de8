//! Memory regions and windows as the program holds them.
//!
//! Read DESIGN §5 and IBTA vol. 1 §10.6 first. A [`MemoryRegion`] owns its bytes or shares the caller's; peers write them
//! at any time, so access is by copying. Dropping the last handle ends the registration: its key opens nothing from then
//! on, and no operation is still running in it, since all run under the device's lock.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use everywire_transport::ib::Remote;
use everywire_transport::memory::{Access, BindWindow, FastRegister, Sge};
use everywire_wire::{LKey, RKey};
use smallvec::SmallVec;

use crate::error::{ErrorKind, VerbsError};
use crate::keys::{KeyTableError, NewRegion, REMOTE, WindowType};
use crate::memory::{CopyMemory, Region, StableBuffer};
use crate::pd::Pd;

/// Registered memory. Cheap to clone; the registration ends with the last handle.
#[derive(Clone)]
pub struct MemoryRegion(Arc<MrInner>);

struct MrInner {
    pd: Pd,
    key: u32,
    base: u64,
    access: Access,
    region: Arc<Region>,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        let mut state = self.pd.device().lock();
        let memory = state.core.keys.deregister(self.key);
        state.discard_memory(memory);
    }
}

impl Pd {
    /// Registers `len` fresh bytes, zeroed and page aligned. Their address is synthetic: the same for the same calls.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.check_registration(len as u64, access)?;
        let region =
            Region::owned(len).map_err(|error| VerbsError::no_memory(self.device().name(), error))?;
        self.register_region(region, access, None)
    }

    /// Registers the bytes of a vector, which it keeps.
    pub fn register_vec(&self, bytes: Vec<u8>, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.register_region(Region::from_vec(bytes), access, None)
    }

    /// Registers memory of the caller's in place. `iova` is the address peers and work requests use for its first byte;
    /// `None` for a synthetic one.
    pub fn register_buffer(
        &self,
        buffer: Arc<dyn StableBuffer>,
        access: Access,
        iova: Option<u64>,
    ) -> Result<MemoryRegion, VerbsError> {
        self.register_region(Region::stable(buffer), access, iova)
    }

    /// Registers memory that is reached by copying calls only.
    pub fn register_copy(
        &self,
        memory: Arc<dyn CopyMemory>,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.register_region(Region::copied(memory), access, None)
    }

    fn check_registration(&self, len: u64, access: Access) -> Result<(), VerbsError> {
        let device = self.device();
        let refuse = |what: String| Err(VerbsError::new(ErrorKind::InvalidArgument, device.name(), what));
        let known = REMOTE | Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
        if !known.contains(access) {
            return refuse(format!("unknown access flags {:#x}", access.bits()));
        }
        // IBTA §10.6.3.1: remote write and atomic need local write.
        let changing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(changing) && !access.contains(Access::LOCAL_WRITE) {
            return refuse(String::from("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE"));
        }
        let limit = device.limits().max_mr_size;
        if len > limit { Err(VerbsError::limit(device.name(), "max_mr_size", len, limit)) } else { Ok(()) }
    }

    fn register_region(
        &self,
        region: Region,
        access: Access,
        iova: Option<u64>,
    ) -> Result<MemoryRegion, VerbsError> {
        self.check_registration(region.len(), access)?;
        let region = Arc::new(region);
        let new = NewRegion { pd: self.id(), access, iova, region: region.clone() };
        let registered = self.device().lock().core.keys.register(new);
        let (key, base) = registered.map_err(|error| self.key_error(error, "max_mr"))?;
        Ok(MemoryRegion(Arc::new(MrInner { pd: self.clone(), key, base, access, region })))
    }

    fn key_error(&self, error: KeyTableError, name: &'static str) -> VerbsError {
        let (device, limits) = (self.device(), self.device().limits());
        match error {
            KeyTableError::Full if name == "max_mw" => {
                VerbsError::full(device.name(), name, limits.max_mw.into())
            }
            KeyTableError::Full => VerbsError::full(device.name(), name, limits.max_mr.into()),
            KeyTableError::Wraps => {
                let what = "the region would wrap around the end of the address space";
                VerbsError::new(ErrorKind::InvalidArgument, device.name(), what)
            }
        }
    }

    /// Allocates a fast-register region of at most `max_pages` pieces; a FAST_REG work request fills it.
    pub fn alloc_fast_reg_mr(&self, max_pages: u32) -> Result<FastRegMr, VerbsError> {
        let limit = self.device().limits().max_fast_reg_pages;
        if max_pages == 0 || max_pages > limit {
            let name = self.device().name();
            return Err(VerbsError::limit(name, "max_fast_reg_pages", max_pages.into(), limit.into()));
        }
        let key = self.device().lock().core.keys.alloc_fast(self.id(), max_pages);
        let key = key.map_err(|error| self.key_error(error, "max_mr"))?;
        Ok(FastRegMr(Arc::new(FastInner { pd: self.clone(), key })))
    }

    /// Allocates a memory window; a BIND_MW work request opens it.
    pub fn alloc_mw(&self, ty: WindowType) -> Result<MemoryWindow, VerbsError> {
        let key = self.device().lock().core.keys.alloc_window(self.id(), ty);
        let key = key.map_err(|error| self.key_error(error, "max_mw"))?;
        Ok(MemoryWindow(Arc::new(WindowInner { pd: self.clone(), key, ty })))
    }
}

impl MemoryRegion {
    /// The address of its first byte, for work requests and peers.
    pub fn addr(&self) -> u64 {
        self.0.base
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.region.len() as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.region.len() == 0
    }

    /// Its local key.
    pub fn lkey(&self) -> LKey {
        LKey(self.0.key)
    }

    /// Its remote key; of use to peers only with remote access.
    pub fn rkey(&self) -> RKey {
        RKey(self.0.key)
    }

    /// What it allows.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// A segment over a range of its bytes. Nothing is checked here: a range outside the region gives a local protection
    /// error when it is used.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        let length = u32::try_from(end.saturating_sub(start)).unwrap_or(u32::MAX);
        Sge { addr: self.0.base.wrapping_add(start as u64), length, lkey: self.lkey() }
    }

    /// The byte at `offset` as peers address it.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.0.base.wrapping_add(offset as u64), rkey: self.rkey() }
    }

    /// Copies bytes out, from `offset`. Aligned reads of 1, 2, 4 and 8 bytes are whole: a peer's flag can be polled.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), VerbsError> {
        self.0.region.read(offset as u64, into).map_err(|error| VerbsError::range(&self.to_string(), error))
    }

    /// Copies bytes in, at `offset`.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), VerbsError> {
        self.0.region.write(offset as u64, from).map_err(|error| VerbsError::range(&self.to_string(), error))
    }

    /// A copy of `len` bytes from `offset`.
    pub fn read_vec(&self, offset: usize, len: usize) -> Result<Vec<u8>, VerbsError> {
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes).map(|()| bytes)
    }

    /// Where the bytes are in this process; `None` if they are reached by copying calls. Whoever goes through the pointer
    /// must hold the region, copy by raw or volatile means, and expect peers to write at any time.
    pub fn as_ptr(&self) -> Option<*mut u8> {
        self.0.region.as_ptr()
    }

    /// Ends the registration now, as `ibv_dereg_mr` does: refused while windows are bound to it or other handles exist.
    /// (Dropping all handles always works; windows then open nothing any more.)
    pub fn deregister(self) -> Result<(), (MemoryRegion, VerbsError)> {
        let busy = |what: &str| VerbsError::new(ErrorKind::Busy, self.to_string(), what);
        if Arc::strong_count(&self.0) > 1 {
            let error = busy("other handles on the region exist");
            return Err((self, error));
        }
        if self.0.pd.device().lock().core.keys.has_windows(self.0.key) {
            let error = busy("memory windows are bound to the region");
            return Err((self, error));
        }
        Ok(())
    }
}

impl fmt::Display for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MR {:#010x}", self.0.pd.device().name(), self.0.key)
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({self}, {} bytes at {:#x}, {:?})", self.len(), self.0.base, self.0.access)
    }
}

/// A region that FAST_REG work requests fill and invalidations empty. Cheap to clone.
#[derive(Clone)]
pub struct FastRegMr(Arc<FastInner>);

struct FastInner {
    pd: Pd,
    key: u32,
}

impl Drop for FastInner {
    fn drop(&mut self) {
        let mut state = self.pd.device().lock();
        let memory = state.core.keys.deregister(self.key);
        state.discard_memory(memory);
    }
}

impl FastRegMr {
    /// The current key, local and remote: as allocated, or as the last FAST_REG executed has set it.
    pub fn key(&self) -> RKey {
        RKey(self.0.pd.device().lock().core.keys.current_key(self.0.key).unwrap_or(self.0.key))
    }

    /// A FAST_REG that makes it cover `pages`, in order, with `iova` as the address of the first byte, under the next key.
    pub fn registration(
        &self,
        iova: u64,
        pages: impl IntoIterator<Item = Sge>,
        access: Access,
    ) -> FastRegister {
        let key = self.key();
        let pages: SmallVec<[Sge; 1]> = pages.into_iter().collect();
        let length = pages.iter().map(|page| u64::from(page.length)).sum();
        FastRegister { mr: LKey(key.0), new_key: next_key(key), iova, length, access, pages }
    }
}

impl fmt::Debug for FastRegMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FastRegMr({} {:#010x})", self.0.pd.device().name(), self.0.key)
    }
}

/// A memory window. Cheap to clone; it ends with the last handle, bound or not.
#[derive(Clone)]
pub struct MemoryWindow(Arc<WindowInner>);

struct WindowInner {
    pd: Pd,
    key: u32,
    ty: WindowType,
}

impl Drop for WindowInner {
    fn drop(&mut self) {
        self.pd.device().lock().core.keys.dealloc_window(self.key);
    }
}

impl MemoryWindow {
    /// The current key: as allocated, or as the last BIND_MW executed has set it.
    pub fn rkey(&self) -> RKey {
        RKey(self.0.pd.device().lock().core.keys.current_key(self.0.key).unwrap_or(self.0.key))
    }

    /// Which sort it is.
    pub fn ty(&self) -> WindowType {
        self.0.ty
    }

    /// A BIND_MW that opens `length` bytes at `offset` of `mr` under the next key; a length of zero closes a type 1
    /// window.
    pub fn bind(&self, mr: &MemoryRegion, offset: usize, length: u64, access: Access) -> BindWindow {
        let window = self.rkey();
        let addr = mr.addr().wrapping_add(offset as u64);
        BindWindow { window, new_rkey: next_key(window), mr: mr.lkey(), addr, length, access }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryWindow({} {:#010x}, {:?})", self.0.pd.device().name(), self.0.key, self.0.ty)
    }
}

/// The key with its low eight bits moved on, as `ibv_inc_rkey` does.
pub fn next_key(key: RKey) -> RKey {
    RKey((key.0 & !0xff) | (key.0.wrapping_add(1) & 0xff))
}
