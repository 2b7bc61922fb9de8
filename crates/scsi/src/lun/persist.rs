//! PERSISTENT RESERVE IN and OUT at a logical unit: the state machine's effects, and what is kept on disk. SPC-4 §5.13.
//!
//! With APTPL the new state is durable before the command ends; if it cannot be made so, nothing has changed.

use super::flag;
use super::run::{Done, Run};
use crate::lock;
use crate::reservations::{Effects, OutRequest};
use crate::sense::{Asc, Failure, Sense, SenseKey};
use crate::status::Status;
use crate::target::drained;
use crate::task_set::Aborted;

impl Run<'_> {
    pub(super) fn reserve_in(&self, action: u8, alloc: u16) -> Result<Done, Failure> {
        let state = lock(&self.unit.state);
        if state.reservations.is_spc2_of_another(&self.path.name) {
            return Err(Failure::Status(Status::RESERVATION_CONFLICT));
        }
        let data = state.reservations.report(action, self.unit.config.store.is_some())?;
        drop(state);
        Ok(self.give(&data, alloc))
    }

    pub(super) async fn reserve_out(&self, action: u8, scope: u8, kind: u8) -> Result<Done, Failure> {
        let request = OutRequest::parse(action, scope, kind, &self.list()?)?;
        if let Some(moving) = &request.moving
            && !self.nexus.target.ports().iter().any(|port| port.relative_id == moving.to.port)
        {
            return Err(Sense::parameter(18).into());
        }
        let effects = self.change_reservations(&request)?;
        let mut running = Vec::new();
        let tas = self.unit.task_aborted_status();
        let how = |nexus| if tas && nexus != self.path.nexus { Aborted::WithStatus } else { Aborted::Silent };
        for name in &effects.aborts {
            let nexuses = self.unit.nexuses_named(name);
            running.extend(self.unit.abort(|nexus, _| nexuses.contains(&nexus), how).0);
        }
        for (name, asc) in effects.attentions {
            self.unit.attention(asc, |path| path.name == name);
        }
        drained(self.unit, &running).await;
        Ok(Done::GOOD)
    }

    fn change_reservations(&self, request: &OutRequest) -> Result<Effects, Failure> {
        let unit = self.unit;
        let mut state = lock(&unit.state);
        let mut new = state.reservations.clone();
        let effects = new.out(&self.path.name, request)?;
        match &unit.config.store {
            Some(store) => {
                let record = new.record();
                if record != state.reservations.record() {
                    store.save(record.as_deref()).map_err(|error| {
                        tracing::warn!("volume {}: reservations cannot be kept: {error}", unit.name());
                        Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)
                    })?;
                }
            }
            None if request.aptpl => return Err(Sense::parameter(20).into()),
            None => {}
        }
        state.reservations = new;
        unit.set(flag::RESERVED, state.reservations.is_reserved());
        Ok(effects)
    }
}
