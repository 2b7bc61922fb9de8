//! Where our subnet manager sits.
use std::io;
use std::time::Instant;

use everywire_fabric::ib::PortId;
use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_wire::{Lid, Mad};

use super::FabricEvent;
use super::built::Built;
use super::mads::Backlog;
use super::plan;

pub(super) struct Seat {
    pub port: PortId,
}

impl Seat {
    pub(super) fn take(built: &mut Built, _base: Instant, _seed: u64) -> io::Result<Seat> {
        Ok(Seat { port: built.port_id(built.plan.sm) })
    }
    pub(super) fn turn(&mut self, _: &mut Built, _: &mut Backlog, _: Instant) -> bool {
        false
    }
    pub(super) fn timeout(&self) -> Option<Instant> {
        None
    }
    pub(super) fn wants_gmp(&self, _: PortId, _: &Mad) -> bool {
        false
    }
    pub(super) fn gmp(&mut self, _: Instant, _: &MadRoute, _: &Mad) {}
    pub(super) fn smp(&mut self, _: Instant, _: Lid, _: &Mad) {}
    pub(super) fn events(&mut self) -> Vec<FabricEvent> {
        Vec::new()
    }
    pub(super) fn engine(&self) -> plan::Engine {
        plan::Engine::MinHop
    }
    pub(super) fn warnings(&self) -> &[String] {
        &[]
    }
}
