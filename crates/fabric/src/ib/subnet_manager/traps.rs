//! Traps: what nodes report by themselves, answered, followed by a sweep, and passed on to subscribers.
//!
//! Read IBTA §13.4.9 (traps and TrapRepress) and §14.2.5.1 (which there are) first.

use std::time::Instant;

use everywire_wire::mad::method;
use everywire_wire::notice::{Notice, trap};
use everywire_wire::smp::Smp;
use everywire_wire::{Gid, Guid, Lid};

use super::election::SmState;
use super::{Address, Sm};

impl Sm {
    /// A notice from a node. Only the master takes any.
    pub(super) fn handle_trap(&mut self, now: Instant, from: Lid, smp: &Smp) {
        let (SmState::Master, Ok(notice)) = (self.state, Notice::parse(&smp.data)) else { return };
        let mut repress = *smp;
        repress.header.method = method::TRAP_REPRESS;
        repress.header.status = 0;
        repress.m_key = self.config.m_key;
        self.answer(Address::Smi(from), repress.to_mad());
        if !notice.is_generic {
            return;
        }
        if matches!(
            notice.trap_number,
            trap::LINK_STATE_CHANGED | trap::CAPABILITIES_CHANGED | trap::SYSTEM_IMAGE_GUID_CHANGED
        ) {
            self.sweep(now);
        }
        let issuer = self.map.owner(notice.issuer_lid);
        let port = issuer.and_then(|owner| self.known.port(owner.node, owner.port));
        let gid = port.map_or(Gid::ZERO, |port| self.gid(port.guid));
        self.report(now, notice, gid);
    }

    /// GID of a port.
    pub(super) fn gid(&self, guid: Guid) -> Gid {
        super::gid_of(self.config.gid_prefix, guid)
    }
}
