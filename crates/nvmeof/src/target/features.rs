//! Set and Get Features. NVMe Base 2.0 §§5.15, 5.27; the mandatory ones of a fabrics controller, and the write cache.

use everywire_block::IoBuf;

use super::controller::Controller;
use super::{ControllerKey, Failure, Outcome, Target, TargetEvent};
use crate::pdu::features::*;
use crate::pdu::{Sqe, Status};

/// Get Features SEL: default and saved values, and capabilities.
const SELECT_DEFAULT: u32 = 1;
const SELECT_SAVED: u32 = 2;
const SELECT_CAPABILITIES: u32 = 3;
/// Capabilities dword 0 bit 2: changeable.
const CHANGEABLE: u64 = 1 << 2;

/// Values that a host set. Reset puts the defaults back.
#[derive(Debug, Clone)]
pub(super) struct Features {
    arbitration: u32,
    temperature_threshold: u32,
    error_recovery: u32,
    write_atomicity: u32,
    pub(super) write_cache: bool,
    /// I/O queues granted; `None` until the host asked.
    granted_queues: Option<u16>,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            arbitration: 0,
            // 343 K, a common default.
            temperature_threshold: 0x157,
            error_recovery: 0,
            write_atomicity: 0,
            write_cache: true,
            granted_queues: None,
        }
    }
}

impl Features {
    /// I/O queues the host may connect.
    pub(super) fn io_queues(&self, max: u16) -> u16 {
        self.granted_queues.unwrap_or(max)
    }

    fn stored(&mut self, fid: u8) -> Option<&mut u32> {
        match fid {
            ARBITRATION => Some(&mut self.arbitration),
            TEMPERATURE_THRESHOLD => Some(&mut self.temperature_threshold),
            ERROR_RECOVERY => Some(&mut self.error_recovery),
            WRITE_ATOMICITY => Some(&mut self.write_atomicity),
            _ => None,
        }
    }
}

/// Both halves of Number of Queues, 0-based.
fn queue_counts(queues: u16) -> u64 {
    let zero_based = u64::from(queues.saturating_sub(1));
    zero_based | zero_based << 16
}

impl Controller {
    /// Events the host may turn on.
    fn known_events(&self) -> u32 {
        if self.subsystem.is_discovery() { AEC_DISCOVERY_LOG } else { AEC_SMART | AEC_NAMESPACE_ATTRIBUTE }
    }
}

impl Target {
    pub(super) fn set_features(&mut self, key: ControllerKey, sqe: &Sqe) -> Outcome {
        let invalid = Failure::from(Status::INVALID_FIELD.dnr());
        let (fid, value, max_queues) = (sqe.cdw10 as u8, sqe.cdw11, self.limits.max_io_queues);
        if sqe.cdw10 & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr().into());
        }
        let has_cache = self.has_volatile_cache(key);
        let controller = self.controllers.get_mut(&key).ok_or(invalid)?;
        if controller.subsystem.is_discovery() && !matches!(fid, KEEP_ALIVE_TIMER | ASYNC_EVENT_CONFIG) {
            return Err(invalid);
        }
        match fid {
            NUMBER_OF_QUEUES => {
                let (submission, completion) = (value as u16, (value >> 16) as u16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(invalid);
                }
                if !controller.queues.is_empty() {
                    return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
                }
                // Over fabrics a queue is a pair, so the smaller wish counts.
                let granted = (submission.min(completion) + 1).min(max_queues);
                controller.features.granted_queues = Some(granted);
                return Ok(queue_counts(granted));
            }
            KEEP_ALIVE_TIMER => {
                controller.kato_ms = value;
                let queue = controller.admin_queue;
                self.events.push_back(TargetEvent::Deadline { queue });
            }
            ASYNC_EVENT_CONFIG => {
                if value & !controller.known_events() != 0 {
                    return Err(invalid);
                }
                controller.async_config = value;
            }
            VOLATILE_WRITE_CACHE if has_cache => controller.features.write_cache = value & 1 != 0,
            // One combination of command sets, 0.
            COMMAND_SET_PROFILE if value & 0x1ff == 0 => {}
            // One power state, 0.
            POWER_MANAGEMENT if value & 0x1f == 0 => {}
            // Over fabrics Connect sets it. NVMe Base 2.0 §5.27.1.25.
            HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into()),
            _ => *controller.features.stored(fid).ok_or(invalid)? = value,
        }
        Ok(0)
    }

    pub(super) fn get_features(&mut self, key: ControllerKey, sqe: &Sqe, buf: &IoBuf) -> Outcome {
        let invalid = Failure::from(Status::INVALID_FIELD.dnr());
        let (fid, select, max_queues) = (sqe.cdw10 as u8, sqe.cdw10 >> 8 & 7, self.limits.max_io_queues);
        let has_cache = self.has_volatile_cache(key);
        let controller = self.controllers.get_mut(&key).ok_or(invalid)?;
        if controller.subsystem.is_discovery() && !matches!(fid, KEEP_ALIVE_TIMER | ASYNC_EVENT_CONFIG) {
            return Err(invalid);
        }
        let default = select == SELECT_DEFAULT || select == SELECT_SAVED;
        if select > SELECT_CAPABILITIES {
            return Err(invalid);
        }
        let mut features = if default { Features::default() } else { controller.features.clone() };
        let value = match fid {
            NUMBER_OF_QUEUES => queue_counts(features.io_queues(max_queues)),
            KEEP_ALIVE_TIMER => u64::from(if default { 0 } else { controller.kato_ms }),
            ASYNC_EVENT_CONFIG => u64::from(if default { 0 } else { controller.async_config }),
            VOLATILE_WRITE_CACHE if has_cache => u64::from(features.write_cache),
            POWER_MANAGEMENT | COMMAND_SET_PROFILE => 0,
            HOST_IDENTIFIER => {
                if select == SELECT_CAPABILITIES {
                    return Ok(0);
                }
                buf.store(0, &controller.hostid);
                return Ok(0);
            }
            _ => u64::from(*features.stored(fid).ok_or(invalid)?),
        };
        Ok(if select == SELECT_CAPABILITIES { CHANGEABLE } else { value })
    }

    /// Bytes that Get Features returns. Over fabrics only the 128-bit host identifier exists.
    pub(super) fn feature_len(sqe: &Sqe) -> Result<u32, Failure> {
        match sqe.cdw10 as u8 {
            HOST_IDENTIFIER if sqe.cdw11 & EXHID == 0 => Err(Status::INVALID_FIELD.dnr().into()),
            HOST_IDENTIFIER => Ok(16),
            _ => Ok(0),
        }
    }

    pub(super) fn has_volatile_cache(&self, key: ControllerKey) -> bool {
        let subsystem =
            self.controllers.get(&key).and_then(|controller| self.subsystems.get(&controller.subsystem));
        subsystem.is_some_and(|subsystem| subsystem.has_volatile_cache())
    }
}
