//! Admin commands: which are known, how much data each moves, and where each is carried out. NVMe Base 2.0 §5.
//! Identify, Get Log Page and the features have files of their own.

use std::time::Instant;

use everywire_block::IoBuf;

use super::config::MAX_ASYNC_EVENTS;
use super::queue::Phase;
use super::{ControllerKey, Direction, Failure, JobKind, Outcome, QueueId, Step, Target, exact};
use crate::pdu::identify::IDENTIFY_LEN;
use crate::pdu::log::LogRequest;
use crate::pdu::sgl::DataPointer;
use crate::pdu::{AdminOpcode, Sqe, Status};

impl Target {
    pub(super) fn begin_admin(
        &mut self,
        now: Instant,
        key: ControllerKey,
        sqe: &Sqe,
        extra: &IoBuf,
    ) -> Result<Step, Failure> {
        let controller = self.controllers.get_mut(&key).ok_or(Status::ABORTED_SQ_DELETION)?;
        if !controller.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        let discovery = controller.subsystem.is_discovery();
        let len = match AdminOpcode(sqe.opcode) {
            AdminOpcode::ASYNC_EVENT_REQUEST => return self.async_event_request(key, sqe.cid),
            AdminOpcode::KEEP_ALIVE => {
                controller.last_seen = now;
                return Ok(Step::Respond(Ok(0)));
            }
            AdminOpcode::ABORT if !discovery => {
                let aborted = sqe.cdw10 as u16 == 0 && self.abort_held(key, (sqe.cdw10 >> 16) as u16);
                return Ok(Step::Respond(Ok(u64::from(!aborted))));
            }
            AdminOpcode::SET_FEATURES => return Ok(Step::Respond(self.set_features(key, sqe))),
            AdminOpcode::IDENTIFY => IDENTIFY_LEN as u32,
            AdminOpcode::GET_LOG_PAGE => self.log_len(sqe)?,
            AdminOpcode::GET_FEATURES => Self::feature_len(sqe)?,
            _ => return Err(Status::INVALID_OPCODE.dnr().into()),
        };
        if len == 0 {
            let job = JobKind::Admin(*sqe);
            let none = DataPointer::Keyed(Default::default());
            return Ok(Step::Run(exact(sqe, Direction::None, 0, none, job)?));
        }
        let data = self.data(sqe, extra)?;
        Ok(Step::Run(exact(sqe, Direction::ToHost, len, data, JobKind::Admin(*sqe))?))
    }

    /// Length of a log read, within MDTS. NVMe Base 2.0 §5.16: the offset is a multiple of 4.
    fn log_len(&self, sqe: &Sqe) -> Result<u32, Failure> {
        let request = LogRequest::from_sqe(sqe);
        if request.len > u64::from(self.limits.max_transfer()) || !request.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.dnr().into());
        }
        Ok(request.len as u32)
    }

    /// NVMe Base 2.0 §5.2: held until there is something to report, at most AERL + 1 at once.
    fn async_event_request(&mut self, key: ControllerKey, cid: u16) -> Result<Step, Failure> {
        let controller = self.controllers.get_mut(&key).ok_or(Status::ABORTED_SQ_DELETION)?;
        if controller.held_events.len() >= MAX_ASYNC_EVENTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr().into());
        }
        controller.held_events.push(cid);
        self.report(key);
        Ok(Step::Held)
    }

    /// Carries out a command whose result goes to the host.
    pub(super) fn run_admin(&mut self, now: Instant, id: QueueId, sqe: &Sqe, buf: &IoBuf) -> Outcome {
        let Some(Phase::Connected { controller: key, .. }) = self.queues.get(&id).map(|queue| queue.phase)
        else {
            return Err(Status::ABORTED_SQ_DELETION.into());
        };
        let bytes = match AdminOpcode(sqe.opcode) {
            AdminOpcode::IDENTIFY => self.identify(key, sqe)?,
            AdminOpcode::GET_LOG_PAGE => self.log_page(now, key, &LogRequest::from_sqe(sqe), sqe.nsid)?,
            _ => return self.get_features(key, sqe, buf),
        };
        debug_assert_eq!(bytes.len(), buf.len());
        buf.store(0, &bytes);
        Ok(0)
    }
}
