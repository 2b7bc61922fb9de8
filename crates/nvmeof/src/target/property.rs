//! Fabrics commands on a connected admin queue: Property Get and Set. NVMe-oF 1.1 §§3.4, 3.5.

use std::time::Instant;

use super::{CloseReason, ControllerKey, Failure, Target, TargetEvent};
use crate::pdu::fabrics::{self, PropertyGet, PropertySet};
use crate::pdu::properties::{
    CAP, CC, CC_CSS, CC_CSS_ALL, CC_EN, CC_IOCQES_SHIFT, CC_IOSQES_SHIFT, CSTS, Capabilities, NSSR, VERSION,
    VS,
};
use crate::pdu::{Sqe, Status};

/// CAP.TO: how long enabling may take, in units of 500 ms. It takes none; hosts use this as their patience.
const READY_TIMEOUT: u8 = 15;

impl Target {
    pub(super) fn begin_fabrics(
        &mut self,
        now: Instant,
        key: ControllerKey,
        sqe: &Sqe,
    ) -> Result<u64, Failure> {
        match sqe.fctype() {
            fabrics::PROPERTY_GET => self.property_get(key, &PropertyGet::from_sqe(sqe)),
            fabrics::PROPERTY_SET => self.property_set(now, key, &PropertySet::from_sqe(sqe)),
            fabrics::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into()),
            _ => Err(Status::INVALID_OPCODE.dnr().into()),
        }
    }

    fn property_get(&self, key: ControllerKey, get: &PropertyGet) -> Result<u64, Failure> {
        let invalid = Failure::from(Status::INVALID_FIELD.dnr());
        let controller = self.controllers.get(&key).ok_or(invalid)?;
        let wide = match get.attrib & 7 {
            0 => false,
            1 => true,
            _ => return Err(invalid),
        };
        // The size must be the property's own.
        match (get.offset, wide) {
            (CAP, true) => Ok(Capabilities::new(self.limits.max_queue_entries, READY_TIMEOUT).0),
            (VS, false) => Ok(VERSION.into()),
            (CC, false) => Ok(controller.cc.into()),
            (CSTS, false) => Ok(controller.csts.into()),
            (NSSR, false) => Ok(0),
            _ => Err(invalid),
        }
    }

    fn property_set(&mut self, now: Instant, key: ControllerKey, set: &PropertySet) -> Result<u64, Failure> {
        let invalid = Failure::from(Status::INVALID_FIELD.dnr());
        let controller = self.controllers.get_mut(&key).ok_or(invalid)?;
        if set.attrib & 7 != 0 || set.offset != CC {
            return Err(invalid);
        }
        let value = set.value as u32;
        let sizes = (value >> CC_IOSQES_SHIFT & 0xf, value >> CC_IOCQES_SHIFT & 0xf);
        // Page size (10:7) and arbitration (13:11) have one supported value each: 0.
        let known = value & 0x3f80 == 0 && matches!(value & CC_CSS, 0 | CC_CSS_ALL);
        let enabling = value & CC_EN != 0 && controller.cc & CC_EN == 0;
        if enabling && !(known && matches!(sizes, (6, 4) | (0, 0))) {
            return Err(invalid);
        }
        let deleted = controller.set_cc(value);
        controller.last_seen = now;
        let admin = controller.admin_queue;
        for queue in deleted.into_values() {
            self.close(queue, CloseReason::ControllerReset);
        }
        self.events.push_back(TargetEvent::Deadline { queue: admin });
        Ok(0)
    }
}
