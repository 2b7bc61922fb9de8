//! Fast registration, and the invalidation of what it registered.
//!
//! Read IBTA vol. 1 §10.6.4.6 and §10.6.5 first. A fast-register region is free or registered. Registering it maps pieces of
//! plain regions, whose memory stays until it is invalidated, whatever becomes of their own keys meanwhile.

use everywire_transport::memory::{Access, AccessError, FastRegister, PdId};
use everywire_wire::{Qpn, RKey};

use super::{CHANGING, KeyTable, Kind, Piece, REMOTE, WindowType};

impl KeyTable {
    /// A Fast Register work request.
    pub(super) fn register_fast(&mut self, pd: PdId, reg: &FastRegister) -> Result<(), AccessError> {
        let old = reg.mr.0;
        // The list of pieces is the one that the last registration had.
        let (max_pages, mut pieces) = match &mut self.entry_mut(old, pd)?.kind {
            Kind::Fast { max_pages, valid: false, pieces } => (*max_pages, std::mem::take(pieces)),
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
        base.checked_add(reg.length).ok_or(AccessError::OutOfBounds)?;
        self.fast_pieces(pd, reg, max_pages, &mut pieces)?;
        let entry = self.entry_mut(old, pd)?;
        entry.tag = reg.new_key.0 as u8;
        entry.access = reg.access;
        entry.base = base;
        entry.len = reg.length;
        entry.kind = Kind::Fast { pieces, max_pages, valid: true };
        Ok(())
    }

    /// The pieces of a fast registration: as if each were a local segment that must allow what the whole will.
    fn fast_pieces(
        &self,
        pd: PdId,
        reg: &FastRegister,
        max_pages: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), AccessError> {
        if reg.pages.len() as u64 > u64::from(max_pages) {
            return Err(AccessError::OutOfBounds);
        }
        let write = reg.access.contains(Access::LOCAL_WRITE);
        let mut at = 0;
        for page in reg.pages.iter().filter(|page| page.length > 0) {
            let (entry, offset) = self.local(pd, page, write)?;
            // Regions made of regions made of regions would never end: only plain memory can be a piece.
            let Kind::Region { region } = &entry.kind else { return Err(AccessError::Permission) };
            let len = u64::from(page.length);
            pieces.push(Piece { region: region.clone(), offset, at, len });
            at += len;
        }
        if at == reg.length { Ok(()) } else { Err(AccessError::OutOfBounds) }
    }

    /// Local and remote invalidation (IBTA §10.6.5): of fast-register regions and bound type 2 windows only.
    pub(super) fn invalidate(&mut self, pd: PdId, qpn: Qpn, key: RKey) -> Result<(), AccessError> {
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
                let bound = window.invalidate(qpn)?;
                self.unbound(WindowType::Type2, &bound);
                Ok(())
            }
        }
    }
}
