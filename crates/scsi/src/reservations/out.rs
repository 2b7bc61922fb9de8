//! PERSISTENT RESERVE OUT. SPC-4 §5.13.7 to §5.13.11 and §6.16.
//!
//! A request is judged whole before anything changes; PRGENERATION counts REGISTER, REGISTER AND IGNORE, REGISTER AND
//! MOVE, CLEAR, PREEMPT and PREEMPT AND ABORT (§5.13.6).

use super::{Effects, Held, MAX_REGISTRATIONS, NexusName, Registration, ReservationType, Reservations};
use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::sense::{Asc, Failure, Sense};
use crate::status::Status;
use crate::transport_id::TransportId;

const REGISTER: u8 = 0x0;
const RESERVE: u8 = 0x1;
const RELEASE: u8 = 0x2;
const CLEAR: u8 = 0x3;
const PREEMPT: u8 = 0x4;
const PREEMPT_AND_ABORT: u8 = 0x5;
const REGISTER_AND_IGNORE: u8 = 0x6;
const REGISTER_AND_MOVE: u8 = 0x7;

/// Bytes of the parameter list of every service action but REGISTER AND MOVE, without additional data.
const BASIC_LEN: usize = 24;
const CONFLICT: Failure = Failure::Status(Status::RESERVATION_CONFLICT);

/// Where REGISTER AND MOVE moves the reservation to. SPC-4 table 224.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegisterAndMove {
    pub(crate) to: NexusName,
    pub(crate) unregister: bool,
}

/// A checked PERSISTENT RESERVE OUT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutRequest {
    pub(crate) action: u8,
    pub(crate) kind: Option<ReservationType>,
    pub(crate) key: u64,
    pub(crate) action_key: u64,
    pub(crate) aptpl: bool,
    /// SPEC_I_PT: initiator ports to register too.
    pub(crate) others: Vec<TransportId>,
    pub(crate) moving: Option<RegisterAndMove>,
}

impl OutRequest {
    /// Reads the CDB's fields and the parameter list, which is `list_len` bytes by the CDB.
    pub(crate) fn parse(action: u8, scope: u8, kind: u8, list: &[u8]) -> Result<Self, Failure> {
        if action > REGISTER_AND_MOVE {
            return Err(Sense::cdb_bit(1, 4).into());
        }
        if list.len() < BASIC_LEN {
            return Err(Sense::list_length().into());
        }
        let typed = matches!(action, RESERVE | RELEASE | PREEMPT | PREEMPT_AND_ABORT);
        // Scope and type are only looked at where the service action has them (SPC-4 table 221).
        if typed && scope != 0 {
            return Err(Sense::cdb_bit(2, 7).into());
        }
        let kind = match ReservationType::from_code(kind) {
            None if typed => return Err(Sense::cdb_bit(2, 3).into()),
            kind => kind,
        };
        let mut request = Self {
            action,
            kind,
            key: u64_at(list, 0),
            action_key: u64_at(list, 8),
            aptpl: false,
            others: Vec::new(),
            moving: None,
        };
        if action == REGISTER_AND_MOVE {
            request.parse_move(list)?;
        } else {
            request.parse_basic(list)?;
        }
        Ok(request)
    }

    fn parse_basic(&mut self, list: &[u8]) -> Result<(), Failure> {
        let flags = u8_at(list, 20);
        let registers = matches!(self.action, REGISTER | REGISTER_AND_IGNORE);
        self.aptpl = registers && flags & 1 != 0;
        if registers && flags & 4 != 0 {
            return Err(Sense::parameter(20).into());
        }
        if !(registers && flags & 8 != 0) {
            return if list.len() == BASIC_LEN { Ok(()) } else { Err(Sense::list_length().into()) };
        }
        if self.action == REGISTER_AND_IGNORE {
            return Err(Sense::parameter(20).into());
        }
        let len = u32_at(list, 24) as usize;
        if list.len() < 28 || list.len() - 28 != len {
            return Err(Sense::list_length().into());
        }
        let mut rest = &list[28..];
        while !rest.is_empty() {
            let at = (list.len() - rest.len()) as u16;
            let parsed = TransportId::parse(rest).filter(|(id, _)| id.is_port());
            let (id, len) = parsed.ok_or(Sense::parameter(at))?;
            if self.others.len() == MAX_REGISTRATIONS {
                return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
            }
            self.others.push(id);
            rest = &rest[len..];
        }
        Ok(())
    }

    fn parse_move(&mut self, list: &[u8]) -> Result<(), Failure> {
        let flags = u8_at(list, 17);
        self.aptpl = flags & 1 != 0;
        let len = u32_at(list, 20) as usize;
        if list.len() - BASIC_LEN != len {
            return Err(Sense::list_length().into());
        }
        let parsed = TransportId::parse(&list[BASIC_LEN..]).filter(|(id, _)| id.is_port());
        let (initiator, taken) = parsed.ok_or(Sense::parameter(24))?;
        if taken != len {
            return Err(Sense::list_length().into());
        }
        if self.action_key == 0 {
            return Err(Sense::parameter(8).into());
        }
        let to = NexusName { initiator, port: u16_at(list, 18) };
        self.moving = Some(RegisterAndMove { to, unregister: flags & 2 != 0 });
        Ok(())
    }
}

impl Reservations {
    /// Does a service action for `nexus`.
    pub(crate) fn out(&mut self, nexus: &NexusName, request: &OutRequest) -> Result<Effects, Failure> {
        if self.spc2.is_some() {
            // SPC-4 §5.13.3: no persistent reservation command beside an SPC-2 reservation.
            return Err(CONFLICT);
        }
        let registered = self.registration(nexus).map(|registration| registration.key);
        match request.action {
            REGISTER => self.register(nexus, request, registered),
            REGISTER_AND_IGNORE => {
                let ignored = OutRequest { key: registered.unwrap_or(0), ..request.clone() };
                self.register(nexus, &ignored, registered)
            }
            // Everything else is for registered nexuses that know their key (§5.13.8 to §5.13.11).
            _ if registered != Some(request.key) => Err(CONFLICT),
            RESERVE => self.reserve(nexus, request),
            RELEASE => self.release(nexus, request),
            CLEAR => Ok(self.clear(nexus)),
            PREEMPT | PREEMPT_AND_ABORT => self.preempt(nexus, request),
            _ => self.register_and_move(nexus, request),
        }
    }

    fn register(
        &mut self,
        nexus: &NexusName,
        request: &OutRequest,
        registered: Option<u64>,
    ) -> Result<Effects, Failure> {
        if registered.unwrap_or(0) != request.key {
            return Err(CONFLICT);
        }
        if !request.others.is_empty() && registered.is_some() {
            return Err(Sense::parameter(20).into());
        }
        if registered.is_none() && request.action_key == 0 {
            return Ok(Effects::default());
        }
        let mut effects = Effects::default();
        if request.action_key == 0 {
            effects = self.unregister(nexus);
        } else {
            let ports = request.others.iter().cloned();
            let others = ports.map(|initiator| NexusName { initiator, port: nexus.port });
            let names: Vec<NexusName> = std::iter::once(nexus.clone()).chain(others).collect();
            let new = names.iter().filter(|name| self.registration(name).is_none()).count();
            if self.registrations.len() + new > MAX_REGISTRATIONS {
                return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
            }
            for name in names {
                self.set_key(name, request.action_key);
            }
        }
        self.aptpl = request.aptpl;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    fn set_key(&mut self, nexus: NexusName, key: u64) {
        match self.registrations.iter_mut().find(|registration| registration.nexus == nexus) {
            Some(registration) => registration.key = key,
            None => self.registrations.push(Registration { nexus, key }),
        }
    }

    /// Ends a registration, and the reservation with it if this was the only holder. SPC-4 §5.13.11.2.
    fn unregister(&mut self, nexus: &NexusName) -> Effects {
        self.registrations.retain(|registration| registration.nexus != *nexus);
        let ends = self.held.as_ref().is_some_and(|held| {
            if held.kind.all_registrants() { self.registrations.is_empty() } else { held.holder == *nexus }
        });
        if !ends {
            return Effects::default();
        }
        let kind = self.held.take().map(|held| held.kind);
        let told = kind.is_some_and(ReservationType::admits_registrants);
        self.tell_registrants(nexus, if told { Some(Asc::RESERVATIONS_RELEASED) } else { None })
    }

    /// A unit attention for every registrant but `nexus`.
    fn tell_registrants(&self, nexus: &NexusName, asc: Option<Asc>) -> Effects {
        let others = self.registrations.iter().map(|registration| &registration.nexus);
        let told = others.filter(|other| *other != nexus);
        let attentions = asc.map(|asc| told.map(|other| (other.clone(), asc)).collect());
        Effects { attentions: attentions.unwrap_or_default(), aborts: Vec::new() }
    }

    fn reserve(&mut self, nexus: &NexusName, request: &OutRequest) -> Result<Effects, Failure> {
        let kind = request.kind.ok_or(Sense::cdb_bit(2, 3))?;
        match &self.held {
            None => self.held = Some(Held { kind, holder: nexus.clone() }),
            Some(held) if held.kind == kind && self.holds(nexus) => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Effects::default())
    }

    fn release(&mut self, nexus: &NexusName, request: &OutRequest) -> Result<Effects, Failure> {
        if !self.holds(nexus) {
            return Ok(Effects::default());
        }
        let held = self.held.as_ref().map(|held| held.kind);
        if held != request.kind {
            return Err(Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into());
        }
        self.held = None;
        let told = held.is_some_and(ReservationType::admits_registrants);
        Ok(self.tell_registrants(nexus, if told { Some(Asc::RESERVATIONS_RELEASED) } else { None }))
    }

    fn clear(&mut self, nexus: &NexusName) -> Effects {
        let effects = self.tell_registrants(nexus, Some(Asc::RESERVATIONS_PREEMPTED));
        self.registrations.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        effects
    }

    /// SPC-4 §5.13.11.4 and figure 8.
    fn preempt(&mut self, nexus: &NexusName, request: &OutRequest) -> Result<Effects, Failure> {
        let kind = request.kind.ok_or(Sense::cdb_bit(2, 3))?;
        let all = self.held.as_ref().is_some_and(|held| held.kind.all_registrants());
        let holder = self.held.as_ref().map(|held| held.holder.clone());
        let holder_key = holder.and_then(|holder| self.registration(&holder)).map(|holder| holder.key);
        // Key 0 means "all others", and only with an all-registrants reservation.
        let takes_over = if request.action_key == 0 {
            if !all {
                return Err(Sense::parameter(8).into());
            }
            true
        } else {
            if !self.registrations.iter().any(|registration| registration.key == request.action_key) {
                return Err(CONFLICT);
            }
            !all && holder_key == Some(request.action_key)
        };
        let matches =
            |registration: &Registration| request.action_key == 0 || registration.key == request.action_key;
        // A nexus that preempts its own key keeps its registration when it takes the reservation over.
        let stays = |registration: &Registration| {
            registration.nexus == *nexus && (takes_over || request.action_key == 0)
        };
        let (kept, removed): (Vec<_>, Vec<_>) = self
            .registrations
            .drain(..)
            .partition(|registration| !matches(registration) || stays(registration));
        self.registrations = kept;
        let mut effects = Effects::default();
        for Registration { nexus: gone, .. } in removed {
            if gone != *nexus {
                effects.attentions.push((gone.clone(), Asc::REGISTRATIONS_PREEMPTED));
                effects.aborts.push(gone);
            }
        }
        if takes_over {
            let before = self.held.replace(Held { kind, holder: nexus.clone() });
            if before.is_some_and(|before| before.kind != kind) {
                let told = self.tell_registrants(nexus, Some(Asc::RESERVATIONS_RELEASED));
                effects.attentions.extend(told.attentions);
            }
        } else if all && self.registrations.is_empty() {
            self.held = None;
        }
        if request.action == PREEMPT {
            effects.aborts.clear();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// SPC-4 §5.13.8. The caller has checked that the target port exists.
    fn register_and_move(&mut self, nexus: &NexusName, request: &OutRequest) -> Result<Effects, Failure> {
        let moving = request.moving.as_ref().ok_or(Sense::cdb_bit(1, 4))?;
        let movable = self.held.as_ref().is_some_and(|held| !held.kind.all_registrants());
        if !movable || !self.holds(nexus) {
            return Err(CONFLICT);
        }
        if moving.to == *nexus {
            return Err(Sense::parameter(24).into());
        }
        if self.registration(&moving.to).is_none() && self.registrations.len() == MAX_REGISTRATIONS {
            return Err(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES).into());
        }
        self.set_key(moving.to.clone(), request.action_key);
        if let Some(held) = &mut self.held {
            held.holder = moving.to.clone();
        }
        if moving.unregister {
            self.registrations.retain(|registration| registration.nexus != *nexus);
        }
        self.aptpl = request.aptpl;
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects::default())
    }
}
