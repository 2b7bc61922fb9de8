//! Reservations of one logical unit: persistent ones with all six types, and SPC-2's. SPC-4 §5.13, SPC-2 §5.5.
//!
//! A pure state machine: [`Reservations::conflicts`] is the conflict table, `out` the service actions of PERSISTENT
//! RESERVE OUT, `report` those of PERSISTENT RESERVE IN, `store` keeps what APTPL asked for. What must happen to others
//! (unit attentions, aborted tasks) comes out as [`Effects`].
//! SPC-2's RESERVE and RELEASE follow "compatible reservation handling" (CRH, SPC-4 §5.13.3) while keys are registered.
//! What this does not do: ALL_TG_PT, and element or third-party reservations, all obsolete or optional.

mod out;
mod report;
mod store;

use crate::cdb::table::Access;
use crate::sense::Asc;
use crate::transport_id::TransportId;
pub(crate) use out::OutRequest;
pub use store::{FileStore, MemoryStore, ReservationStore};

/// Most registrations of a logical unit; one more is answered with INSUFFICIENT REGISTRATION RESOURCES.
pub const MAX_REGISTRATIONS: usize = 1024;

/// An I_T nexus by name: it outlives sessions, as registrations do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusName {
    /// The initiator port.
    pub initiator: TransportId,
    /// Relative target port identifier.
    pub port: u16,
}

/// Type of a persistent reservation. SPC-4 table 219.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationType {
    /// Others may read.
    WriteExclusive,
    /// Others may do nothing.
    ExclusiveAccess,
    /// Unregistered nexuses may read.
    WriteExclusiveRegistrantsOnly,
    /// Unregistered nexuses may do nothing.
    ExclusiveAccessRegistrantsOnly,
    /// As registrants only, and every registrant holds it.
    WriteExclusiveAllRegistrants,
    /// As registrants only, and every registrant holds it.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The code in CDBs and parameter data.
    pub const fn code(self) -> u8 {
        match self {
            Self::WriteExclusive => 1,
            Self::ExclusiveAccess => 3,
            Self::WriteExclusiveRegistrantsOnly => 5,
            Self::ExclusiveAccessRegistrantsOnly => 6,
            Self::WriteExclusiveAllRegistrants => 7,
            Self::ExclusiveAccessAllRegistrants => 8,
        }
    }

    /// The type of a code; `None` for reserved and obsolete ones.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Every registrant is a holder.
    pub fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Registrants may do what the holder may.
    pub fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Even reading is for those it admits.
    pub fn excludes_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess
                | Self::ExclusiveAccessRegistrantsOnly
                | Self::ExclusiveAccessAllRegistrants
        )
    }
}

/// A registered nexus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) nexus: NexusName,
    pub(crate) key: u64,
}

/// A persistent reservation. With an all-registrants type `holder` is only who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) kind: ReservationType,
    pub(crate) holder: NexusName,
}

/// What a service action does to others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Unit attentions, by nexus.
    pub(crate) attentions: Vec<(NexusName, Asc)>,
    /// Nexuses whose tasks are aborted (PREEMPT AND ABORT).
    pub(crate) aborts: Vec<NexusName>,
}

/// Reservations of one logical unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<Held>,
    /// Registrations and reservation survive power loss.
    aptpl: bool,
    /// The nexus that holds an SPC-2 reservation.
    spc2: Option<NexusName>,
}

impl Reservations {
    /// Whether there is any reservation that a command must be held against.
    pub(crate) fn is_reserved(&self) -> bool {
        self.held.is_some() || self.spc2.is_some()
    }

    fn registration(&self, nexus: &NexusName) -> Option<&Registration> {
        self.registrations.iter().find(|registration| registration.nexus == *nexus)
    }

    /// Whether another nexus has an SPC-2 reservation.
    pub(crate) fn is_spc2_of_another(&self, nexus: &NexusName) -> bool {
        self.spc2.as_ref().is_some_and(|holder| holder != nexus)
    }

    /// Whether `nexus` holds the persistent reservation.
    pub(crate) fn holds(&self, nexus: &NexusName) -> bool {
        self.held.as_ref().is_some_and(|held| {
            held.holder == *nexus || held.kind.all_registrants() && self.registration(nexus).is_some()
        })
    }

    /// Whether a command of `nexus` ends in RESERVATION CONFLICT. SPC-4 table 66.
    pub(crate) fn conflicts(&self, nexus: &NexusName, access: Access) -> bool {
        if access == Access::Free {
            return false;
        }
        if let Some(holder) = &self.spc2
            && access != Access::Reservation
            && holder != nexus
        {
            return true;
        }
        let Some(held) = &self.held else { return false };
        let admitted = if held.kind.admits_registrants() {
            self.registration(nexus).is_some()
        } else {
            held.holder == *nexus
        };
        match access {
            Access::Read => !admitted && held.kind.excludes_reads(),
            Access::Write => !admitted,
            Access::Free | Access::FreeButSpc2 | Access::Reservation => false,
        }
    }

    /// The same of somebody who has no name here, and can neither register nor reserve.
    pub(crate) fn conflicts_with_strangers(&self, access: Access) -> bool {
        let held =
            self.held.as_ref().is_some_and(|held| access == Access::Write || held.kind.excludes_reads());
        self.spc2.is_some() || held
    }

    /// RESERVE (6) and (10). Gives false for RESERVATION CONFLICT.
    pub(crate) fn reserve_spc2(&mut self, nexus: &NexusName) -> bool {
        if !self.registrations.is_empty() {
            return self.compatible(nexus);
        }
        match &self.spc2 {
            Some(holder) => holder == nexus,
            None => {
                self.spc2 = Some(nexus.clone());
                true
            }
        }
    }

    /// RELEASE (6) and (10): another's reservation stays, and that is no error (SPC-2 §7.16.1).
    pub(crate) fn release_spc2(&mut self, nexus: &NexusName) -> bool {
        if !self.registrations.is_empty() {
            return self.compatible(nexus);
        }
        self.end_spc2(nexus);
        true
    }

    /// SPC-4 §5.13.3: a registrant that the reservation admits gets GOOD for RESERVE and RELEASE, which do nothing.
    fn compatible(&self, nexus: &NexusName) -> bool {
        match &self.held {
            Some(held) if held.kind.admits_registrants() => self.registration(nexus).is_some(),
            Some(held) => held.holder == *nexus,
            None => false,
        }
    }

    /// The nexus is lost or released its SPC-2 reservation.
    pub(crate) fn end_spc2(&mut self, nexus: &NexusName) {
        if self.spc2.as_ref() == Some(nexus) {
            self.spc2 = None;
        }
    }

    /// Logical unit reset: SPC-2 reservations end, persistent ones stay (SPC-4 §5.13.1).
    pub(crate) fn reset(&mut self) {
        self.spc2 = None;
    }
}

#[cfg(test)]
mod tests;
