//! Traps: what nodes report by themselves, answered, followed by a sweep where one is due, and passed on to subscribers.
//!
//! Read IBTA §13.4.9 (traps and TrapRepress) and §14.2.5.1 (which there are) first. Only a port that the last sweep has
//! found is listened to, and only about itself. Sweeps that traps ask for are [`MIN_TRAP_SWEEP`] apart at least; a new name
//! or capability mask needs none.

use std::time::Instant;

use everywire_wire::mad::method;
use everywire_wire::notice::{Notice, TrapCapabilities, trap};
use everywire_wire::smp::codes::capability;
use everywire_wire::smp::{Smp, attribute};
use everywire_wire::{Gid, Guid, Lid};

use super::config::MIN_TRAP_SWEEP;
use super::election::SmState;
use super::inventory::Owner;
use super::requests::{Purpose, Request};
use super::sweep::Phase;
use super::{Address, Sm};

impl Sm {
    /// A notice from a node. Only the master takes any.
    pub(super) fn handle_trap(&mut self, now: Instant, from: Lid, smp: &Smp) {
        let (SmState::Master, Ok(notice)) = (self.state, Notice::parse(&smp.data)) else { return };
        let Some(issuer) = self.map.owner(notice.issuer_lid) else { return };
        if from != Lid::PERMISSIVE && self.map.owner(from) != Some(issuer) {
            return;
        }
        let mut repress = *smp;
        repress.header.method = method::TRAP_REPRESS;
        repress.header.status = 0;
        repress.m_key = self.config.m_key;
        self.answer(Address::Smi(from), repress.to_mad());
        if !notice.is_generic {
            return;
        }
        match notice.trap_number {
            trap::LINK_STATE_CHANGED | trap::SYSTEM_IMAGE_GUID_CHANGED => self.sweep_after_trap(now),
            trap::CAPABILITIES_CHANGED => self.capabilities_changed(now, issuer, &notice),
            trap::BAD_P_KEY | trap::BAD_Q_KEY | trap::SWITCH_BAD_P_KEY => self.wrong_key(now, &notice),
            _ => {}
        }
        let port = self.known.port(issuer.node, issuer.port);
        let gid = port.map_or(Gid::ZERO, |port| self.gid(port.guid));
        self.report(now, notice, gid);
    }

    /// Sweeps at once, or as soon as the last sweep after a trap is long enough ago.
    fn sweep_after_trap(&mut self, now: Instant) {
        let at = self.trap_sweep_from.map_or(now, |from| from.max(now));
        self.trap_sweep = Some(self.trap_sweep.map_or(at, |before| before.min(at)));
        if at <= now && self.phase == Phase::Idle {
            self.begin_trap_sweep(now);
        }
    }

    pub(super) fn begin_trap_sweep(&mut self, now: Instant) {
        self.trap_sweep_from = Some(now + MIN_TRAP_SWEEP);
        self.begin_sweep(now);
    }

    /// Trap 144: a name is asked for and a mask taken as told; a manager that came or went, and a link that may run
    /// otherwise now, are a sweep's affair.
    fn capabilities_changed(&mut self, now: Instant, issuer: Owner, notice: &Notice) {
        let Ok(details) = TrapCapabilities::parse(&notice.details) else { return };
        let Some(node) = self.known.nodes.get_mut(&issuer.node) else { return };
        if details.node_description {
            let purpose = Purpose::Renamed(issuer.node);
            self.requests.push(Request::get(&node.path, attribute::NODE_DESCRIPTION, 0, purpose));
        }
        let mut sweeps = details.link_speed_enabled || details.link_width_enabled;
        if let Some(port) = node.ports.get_mut(usize::from(issuer.port)) {
            let mask = &mut port.info.capability_mask;
            sweeps |= (*mask ^ details.capability_mask) & capability::IS_SM != 0;
            *mask = details.capability_mask;
        }
        if sweeps {
            self.sweep_after_trap(now);
        }
    }

    /// GID of a port.
    pub(super) fn gid(&self, guid: Guid) -> Gid {
        super::gid_of(self.config.gid_prefix, guid)
    }
}
