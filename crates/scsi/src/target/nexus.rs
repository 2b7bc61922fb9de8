//! An I_T nexus: where commands come in. SAM-5 §5.4 and §5.12, SPC-4 §5.6.
//!
//! A command is judged when it comes: unit attention, port state, reservation, medium, fields, in this order. What passes
//! enters the task set of its logical unit and becomes a [`Task`]. A nexus that is dropped aborts its tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::map::Lun;
use super::path::Path;
use super::task::{Answer, Expected, Slot};
use super::{LunMap, Outcome, Port, Target, Task};
use crate::cdb::Command;
use crate::inquiry::{self, Subject};
use crate::lock;
use crate::lun::LogicalUnit;
use crate::reservations::NexusName;
use crate::sense::{Asc, Failure, Sense};
use crate::status::Status;
use crate::task_set::{Aborted, Attribute};
use crate::transport_id::TransportId;

/// A command as a transport delivers it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Logical unit number, 8 bytes as in the command.
    pub lun: u64,
    /// Names it in this nexus until it ends.
    pub tag: u64,
    /// Task attribute.
    pub attribute: Attribute,
    /// The CDB; bytes after it do not matter.
    pub cdb: &'a [u8],
    /// Bytes that the initiator would send.
    pub data_out: u32,
    /// Bytes that the initiator would take.
    pub data_in: u32,
}

/// What became of a command.
pub enum Submitted {
    /// It ended at once, without data.
    Done(Outcome),
    /// It waits for its data, and to be run.
    Task(Task),
}

/// An I_T nexus.
pub struct Nexus(pub(super) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) id: u64,
    pub(crate) name: NexusName,
    pub(crate) target: Arc<Target>,
    pub(crate) map: Arc<LunMap>,
    pub(crate) port: Arc<Port>,
    /// What it met so far, by number.
    met: Mutex<BTreeMap<u16, Met>>,
}

/// A logical unit, and what it knows of the nexus.
type Met = (Arc<LogicalUnit>, Arc<Path>);

impl Nexus {
    pub(super) fn new(
        id: u64,
        target: Arc<Target>,
        map: Arc<LunMap>,
        port: Arc<Port>,
        initiator: TransportId,
    ) -> Self {
        let name = NexusName { initiator, port: port.relative_id };
        Self(Arc::new(Inner { id, name, target, map, port, met: Mutex::default() }))
    }

    /// Takes a command.
    pub fn submit(&self, request: &Request<'_>) -> Submitted {
        let expected = Expected { out: request.data_out, into: request.data_in };
        let refused = |failure: Failure, descriptor| {
            tracing::debug!("{}: CDB {:02x?}: {failure:?}", self.0.name.initiator, request.cdb);
            Submitted::Done(expected.failed(failure, descriptor))
        };
        let parsed = Command::parse(request.cdb);
        if let Ok(Command::ReportLuns { select, alloc }) = parsed {
            return match self.report_luns(select) {
                Ok(data) => Submitted::Task(Task::answering(Answer { data, alloc }, expected)),
                Err(sense) => refused(sense.into(), false),
            };
        }
        let (unit, path) = match Lun::parse(request.lun) {
            Lun::Unit(number) => match self.0.at(number) {
                Some(met) => met,
                None => return self.no_unit(parsed, Subject::Nobody, expected),
            },
            Lun::WellKnown => return self.no_unit(parsed, Subject::WellKnown, expected),
            Lun::Unknown => return self.no_unit(parsed, Subject::Nobody, expected),
        };
        let judged = unit.judge(&path, &self.0.port, parsed);
        let judged = judged.and_then(|plan| unit.check_exact(&plan, expected.out).map(|()| plan));
        let plan = match judged {
            Ok(plan) => plan,
            Err(failure) => return refused(failure, unit.descriptor_sense()),
        };
        let Some(slot) = Slot::new(&unit, self.0.id, request.tag, request.attribute, plan.range) else {
            return refused(Failure::Status(Status::TASK_SET_FULL), false);
        };
        Submitted::Task(Task::new(slot, self.0.clone(), path, plan, expected))
    }

    /// The initiator port and the target port that it joins.
    pub fn name(&self) -> &NexusName {
        &self.0.name
    }

    fn report_luns(&self, select: u8) -> Result<Vec<u8>, Sense> {
        let data = self.0.map.report(select)?;
        // SPC-4 §6.33.1: it is known now, at every logical unit.
        lock(&self.0.met).values().for_each(|(_, path)| path.attentions.clear(Asc::REPORTED_LUNS_CHANGED));
        Ok(data)
    }

    /// SPC-4 §5.6.3 and §6.6.1: what is answered where there is no logical unit, or the well-known one.
    fn no_unit(&self, parsed: Result<Command, Sense>, subject: Subject<'_>, expected: Expected) -> Submitted {
        let well_known = matches!(subject, Subject::WellKnown);
        let answer = |data, alloc| Submitted::Task(Task::answering(Answer { data, alloc }, expected));
        let sense = match parsed {
            Ok(Command::Inquiry { evpd: false, page: 0, alloc }) => {
                return answer(inquiry::standard(subject, &self.0.port), alloc.into());
            }
            Ok(Command::Inquiry { evpd: false, .. }) => Sense::cdb_field(2),
            Ok(Command::Inquiry { evpd: true, page, alloc }) if well_known => {
                match inquiry::well_known_page(page) {
                    Ok(data) => return answer(data, alloc.into()),
                    Err(sense) => sense,
                }
            }
            Ok(Command::RequestSense { descriptor, alloc }) => {
                let asc = if well_known { Asc::NONE } else { Asc::LUN_NOT_SUPPORTED };
                let sense =
                    if well_known { Sense::new(crate::SenseKey::NO_SENSE, asc) } else { Sense::illegal(asc) };
                return answer(sense.emit(descriptor).to_vec(), alloc.into());
            }
            Ok(Command::TestUnitReady) if well_known => return answer(Vec::new(), 0),
            Ok(_) if well_known => Sense::illegal(Asc::INVALID_OPERATION_CODE),
            _ => Sense::illegal(Asc::LUN_NOT_SUPPORTED),
        };
        Submitted::Done(expected.failed(sense.into(), false))
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        let met = std::mem::take(&mut *lock(&self.0.met));
        for (unit, _) in met.into_values() {
            unit.abort(|nexus, _| nexus == self.0.id, |_| Aborted::Silent);
            unit.forget_nexus(self.0.id, &self.0.name);
        }
    }
}

impl Inner {
    /// The logical unit of a number, and what it knows of this nexus. The first command to it learns that the nexus is new.
    pub(crate) fn at(&self, number: u16) -> Option<Met> {
        let mut met = lock(&self.met);
        if let Some((unit, path)) = met.get(&number) {
            return Some((unit.clone(), path.clone()));
        }
        let unit = self.map.get(number)?;
        let path = Path { nexus: self.id, name: self.name.clone(), attentions: Default::default() };
        let path = Arc::new(path);
        path.attentions.establish(Asc::POWER_ON_OR_RESET);
        unit.attach(&path);
        met.insert(number, (unit.clone(), path.clone()));
        Some((unit, path))
    }

    /// A logical unit is no longer in the map.
    pub(super) fn forget_lun(&self, number: u16) {
        let gone = lock(&self.met).remove(&number);
        if let Some((unit, _)) = gone {
            unit.forget_nexus(self.id, &self.name);
        }
    }

    /// A unit attention at every logical unit that it met.
    pub(super) fn tell(&self, asc: Asc) {
        lock(&self.met).values().for_each(|(_, path)| path.attentions.establish(asc));
    }
}
