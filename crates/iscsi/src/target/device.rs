//! A map of `everywire-scsi`'s logical units as the device behind a node: the seam between the session and the command set.
//!
//! Each portal group that initiators come by is a SCSI target port of its own (RFC 7143 §4.4.2: name, `,t,`, portal group tag);
//! an initiator port is a name with its ISID.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use everywire_block::{IoBuf, IoFuture};
use everywire_scsi::target::{self as lun, LunMap, Port, PortConfig, Request};
use everywire_scsi::{Attribute, Protocol, TransportId};

use super::config::{Device, InitiatorPort};
use crate::name::IscsiName;
use crate::pdu::TaskResult;
use crate::session::scsi::{Command, Function, Nexus, Outcome, Residual, Submitted, Task};

/// Task attributes of RFC 7143 §11.3.1.
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;

/// A portal group, and its target port.
type PortOf = (u16, Arc<Port>);

/// Logical units as the initiators of one node see them.
pub struct LunDevice {
    node: IscsiName,
    map: Arc<LunMap>,
    /// The same for all that show this node's units.
    ports: Rc<RefCell<Vec<PortOf>>>,
}

impl LunDevice {
    /// The logical units of `map`, behind the node `node`.
    pub fn new(node: IscsiName, map: Arc<LunMap>) -> Rc<LunDevice> {
        Rc::new(LunDevice { node, map, ports: Rc::default() })
    }

    /// The same node as other initiators see it: by the same target ports, to the logical units of `map`, a map of the same device.
    pub fn showing(&self, map: Arc<LunMap>) -> Rc<LunDevice> {
        Rc::new(LunDevice { node: self.node.clone(), map, ports: self.ports.clone() })
    }

    /// The target port of a portal group; that of the first one should the device have no room for more.
    fn port(&self, portal_group: u16) -> Option<Arc<Port>> {
        let mut ports = self.ports.borrow_mut();
        if let Some((_, port)) = ports.iter().find(|(group, _)| *group == portal_group) {
            return Some(port.clone());
        }
        let added = self.map.target().add_port(PortConfig {
            protocol: Protocol::Iscsi,
            name: format!("{},t,{portal_group:#06x}", self.node),
            device_name: self.node.to_string(),
            group: portal_group,
        });
        match added {
            Some(port) => {
                ports.push((portal_group, port.clone()));
                Some(port)
            }
            None => ports.first().map(|(_, port)| port.clone()),
        }
    }
}

impl Device for LunDevice {
    fn nexus(&self, initiator: &InitiatorPort) -> Box<dyn Nexus> {
        let name = TransportId::iscsi(initiator.name.as_str(), initiator.isid.0);
        match (self.port(initiator.portal_group), name) {
            (Some(port), Some(name)) => Box::new(LunNexus(self.map.target().nexus(&self.map, &port, name))),
            // A device has a thousand ports, and a name fits a TransportID by `IscsiName`'s own limit.
            _ => Box::new(NoNexus),
        }
    }
}

struct LunNexus(lun::Nexus);

struct LunTask(lun::Task);

impl Nexus for LunNexus {
    fn submit(&self, command: &Command) -> Submitted {
        let attribute = match command.attribute {
            ORDERED => Attribute::Ordered,
            HEAD_OF_QUEUE => Attribute::HeadOfQueue,
            _ => Attribute::Simple,
        };
        let request = Request {
            lun: command.lun,
            tag: command.tag,
            attribute,
            cdb: &command.cdb,
            data_out: command.data_out,
            data_in: command.data_in,
        };
        match self.0.submit(&request) {
            lun::Submitted::Done(outcome) => Submitted::Done(ended(outcome)),
            lun::Submitted::Task(task) => Submitted::Task(Box::new(LunTask(task))),
        }
    }

    fn manage(&self, lun: u64, function: Function) -> IoFuture<TaskResult> {
        let function = match function {
            Function::AbortTask { tag } => lun::Function::AbortTask { tag },
            Function::AbortTaskSet => lun::Function::AbortTaskSet,
            Function::ClearTaskSet => lun::Function::ClearTaskSet,
            Function::ClearAca => lun::Function::ClearAca,
            Function::LunReset => lun::Function::LunReset,
            Function::TargetReset => lun::Function::TargetReset,
        };
        let result = |response| match response {
            lun::Response::Complete => TaskResult::Complete,
            lun::Response::NoLun => TaskResult::NoLun,
        };
        match self.0.manage(lun, function).into_ready() {
            Ok(response) => IoFuture::ready(result(response)),
            Err(future) => IoFuture::pending(async move { result(future.await) }),
        }
    }
}

impl Task for LunTask {
    fn data_out(&self) -> u32 {
        self.0.data_out()
    }

    fn data_in(&self) -> u32 {
        self.0.data_in()
    }

    fn execute(self: Box<Self>, memory: IoBuf) -> IoFuture<Option<Outcome>> {
        match self.0.execute(memory).into_ready() {
            Ok(outcome) => IoFuture::ready(outcome.map(ended)),
            Err(future) => IoFuture::pending(async move { future.await.map(ended) }),
        }
    }
}

fn ended(outcome: lun::Outcome) -> Outcome {
    Outcome {
        status: outcome.status.0,
        sense: outcome.sense.map_or_else(Vec::new, |sense| sense.to_vec()),
        data_in: outcome.data_in,
        residual: match outcome.residual {
            lun::Residual::None => Residual::None,
            lun::Residual::Under(bytes) => Residual::Under(bytes),
            lun::Residual::Over(bytes) => Residual::Over(bytes),
        },
    }
}

/// Stands where the device has no room for another port.
struct NoNexus;

impl Nexus for NoNexus {
    fn submit(&self, _: &Command) -> Submitted {
        let status = everywire_scsi::Status::BUSY.0;
        Submitted::Done(Outcome { status, ..Outcome::default() })
    }

    fn manage(&self, _: u64, _: Function) -> IoFuture<TaskResult> {
        IoFuture::ready(TaskResult::Rejected)
    }
}
