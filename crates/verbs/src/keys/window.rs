//! Memory windows: remote access to a part of a region, given and taken by work requests.
//!
//! Read IBTA vol. 1 §10.6.7 and §11.3.2 first. A type 1 window is bound again and again, each time under a new key, and
//! belongs to its protection domain. A type 2 (2B) window is bound once, through one queue pair, which alone may use it,
//! and is free again once invalidated. What a window opens is never more than its region allows.

use everywire_transport::memory::{Access, AccessError, BindWindow, PdId, RemoteAccess};
use everywire_wire::{Qpn, RKey};

use super::{CHANGING, Entry, KeyTable, KeyTableError, Kind, REMOTE};

/// The two sorts of memory window (IBV_MW_TYPE_1, IBV_MW_TYPE_2B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Rebound at will, usable on every queue pair of its domain.
    Type1,
    /// Bound to one queue pair until it is invalidated.
    Type2,
}

/// What a bound window opens.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// The region, by the upper 24 bits of its key.
    parent: u32,
    /// The region's number: another one that comes to the same key is not meant.
    parent_serial: u64,
    /// Offset in the region of the window's first byte.
    offset: u64,
    /// Address that peers give for it.
    base: u64,
    len: u64,
    access: Access,
    /// Type 2: the queue pair.
    qpn: Qpn,
}

/// A window and its state: bound, or not.
pub(super) struct Window {
    ty: WindowType,
    bound: Option<Bound>,
}

impl Window {
    /// IBTA §10.6.7.2.6: a type 2 window goes back to free. Gives what it had opened.
    pub(super) fn invalidate(&mut self, qpn: Qpn) -> Result<Bound, AccessError> {
        if self.ty == WindowType::Type1 {
            return Err(AccessError::Permission); // o10-37.2.26
        }
        match self.bound {
            None => Err(AccessError::Invalidated),
            Some(bound) if bound.qpn != qpn => Err(AccessError::WrongQp),
            Some(bound) => {
                self.bound = None;
                Ok(bound)
            }
        }
    }
}

impl KeyTable {
    /// Allocates a window that opens nothing yet.
    pub(crate) fn alloc_window(&mut self, pd: PdId, ty: WindowType) -> Result<u32, KeyTableError> {
        if self.windows >= self.max_windows {
            return Err(KeyTableError::Full);
        }
        self.windows += 1;
        let kind = Kind::Window(Window { ty, bound: None });
        Ok(self.insert(Entry::closed(pd, kind)))
    }

    /// Frees a window, bound or not.
    pub(crate) fn dealloc_window(&mut self, key: u32) {
        let Some(entry) = self.entries.remove(&(key >> 8)) else { return };
        self.retire(key >> 8);
        self.windows -= 1;
        if let Kind::Window(Window { ty, bound: Some(bound) }) = entry.kind {
            self.unbound(ty, &bound);
        }
    }

    /// A window is not bound any more.
    pub(super) fn unbound(&mut self, ty: WindowType, bound: &Bound) {
        self.bound_to_qps -= u32::from(ty == WindowType::Type2);
        if let Some(parent) = self.entries.get_mut(&bound.parent)
            && parent.serial == bound.parent_serial
        {
            parent.windows -= 1;
        }
    }

    /// A queue pair is being destroyed: type 2 windows bound through it are free again, and a later queue pair of the same
    /// number does not open them.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        if self.bound_to_qps == 0 {
            return;
        }
        let mut freed = Vec::new();
        for entry in self.entries.values_mut() {
            if let Kind::Window(Window { ty: WindowType::Type2, bound }) = &mut entry.kind {
                freed.extend(bound.take_if(|bound| bound.qpn == qpn));
            }
        }
        freed.iter().for_each(|bound| self.unbound(WindowType::Type2, bound));
    }

    /// The memory behind a peer's access through a window.
    pub(super) fn through_window(
        &self,
        entry: &Entry,
        window: &Window,
        at: &RemoteAccess,
    ) -> Result<(&Entry, u64), AccessError> {
        let bound = window.bound.as_ref().ok_or(AccessError::Invalidated)?;
        if entry.pd != at.pd {
            return Err(AccessError::WrongPd);
        }
        if window.ty == WindowType::Type2 && bound.qpn != at.qpn {
            return Err(AccessError::WrongQp); // IBTA o10-37.2.33
        }
        if !bound.access.contains(at.need) {
            return Err(AccessError::Permission);
        }
        let inside = at.va.checked_sub(bound.base).ok_or(AccessError::OutOfBounds)?;
        let end = inside.checked_add(at.length).ok_or(AccessError::OutOfBounds)?;
        if end > bound.len {
            return Err(AccessError::OutOfBounds);
        }
        let parent = self.entries.get(&bound.parent).ok_or(AccessError::Invalidated)?;
        if parent.serial != bound.parent_serial {
            return Err(AccessError::Invalidated);
        }
        Ok((parent, bound.offset + inside))
    }

    /// A Bind Memory Window work request.
    pub(super) fn bind(&mut self, pd: PdId, qpn: Qpn, bind: &BindWindow) -> Result<RKey, AccessError> {
        let entry = self.entry_mut(bind.window.0, pd)?; // C10-72
        let Kind::Window(window) = &entry.kind else { return Err(AccessError::BadState) };
        let (ty, before) = (window.ty, window.bound);
        if bind.new_rkey.0 >> 8 != bind.window.0 >> 8 {
            return Err(AccessError::UnknownKey); // only the low eight bits are the consumer's
        }
        match ty {
            WindowType::Type1 if bind.access.contains(Access::ZERO_BASED) => {
                return Err(AccessError::Permission); // o10-36.2.2
            }
            WindowType::Type2 if before.is_some() => return Err(AccessError::BadState), // o10-37.2.30
            WindowType::Type2 if bind.length == 0 => return Err(AccessError::OutOfBounds), // o10-37.2.40
            _ => {}
        }
        let bound = if bind.length == 0 { None } else { Some(self.check_bind(pd, qpn, bind)?) };
        if let Some(before) = before {
            self.unbound(ty, &before);
        }
        if let Some(bound) = &bound
            && let Some(parent) = self.entries.get_mut(&bound.parent)
        {
            parent.windows += 1;
            self.bound_to_qps += u32::from(ty == WindowType::Type2);
        }
        let entry = self.entry_mut(bind.window.0, pd)?;
        entry.tag = bind.new_rkey.0 as u8;
        entry.kind = Kind::Window(Window { ty, bound });
        Ok(bind.new_rkey)
    }

    /// What a bind with a length may open.
    fn check_bind(&self, pd: PdId, qpn: Qpn, bind: &BindWindow) -> Result<Bound, AccessError> {
        let parent = self.entry(bind.mr.0)?;
        if parent.pd != pd {
            return Err(AccessError::WrongPd);
        }
        match parent.kind {
            Kind::Window(_) => return Err(AccessError::BadState),
            Kind::Fast { valid: false, .. } => return Err(AccessError::Invalidated),
            _ => {}
        }
        let needs_write = bind.access.intersects(CHANGING);
        if !parent.access.contains(Access::MW_BIND) // C10-73
            || parent.access.contains(Access::ZERO_BASED) // o10-37.2.2
            || (needs_write && !parent.access.contains(Access::LOCAL_WRITE)) // C10-74
            || !(REMOTE | Access::ZERO_BASED).contains(bind.access)
        {
            return Err(AccessError::Permission);
        }
        let offset = parent.offset(bind.addr, bind.length)?; // C10-75
        Ok(Bound {
            parent: bind.mr.0 >> 8,
            parent_serial: parent.serial,
            offset,
            base: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            len: bind.length,
            access: bind.access & REMOTE,
            qpn,
        })
    }
}
