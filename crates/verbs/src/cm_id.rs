//! Where the connection manager meets the device: what it is told, what it is asked.
//!
//! The device calls these hooks with its lock held; none of them may block. They see the whole [`State`], so that the
//! connection manager can move queue pairs through their states and ask for routes.

use std::net::IpAddr;
use std::time::Instant;

use everywire_transport::mad::{MAD_LEN, MadPath};
use everywire_wire::Qpn;

use crate::config::DeviceConfig;
use crate::drive::Unreachable;
use crate::route::{Route, RouteError, RouteToken};
use crate::state::State;

/// The connection manager's own state.
pub(crate) struct CmState {}

impl CmState {
    pub(crate) fn new(_config: &DeviceConfig, _seed: u64) -> CmState {
        CmState {}
    }
}

impl State {
    /// A MAD arrived on QP1.
    pub(crate) fn cm_handle_mad(&mut self, _now: Instant, _path: MadPath, _mad: &[u8; MAD_LEN]) {}

    /// The next MAD to send from QP1.
    pub(crate) fn cm_poll_transmit(&mut self, _now: Instant) -> Option<(MadPath, [u8; MAD_LEN])> {
        None
    }

    /// When the connection manager wants to be called.
    pub(crate) fn cm_poll_timeout(&mut self) -> Option<Instant> {
        None
    }

    /// Time has passed.
    pub(crate) fn cm_handle_timeout(&mut self, _now: Instant) {}

    /// The answer to `State::resolve_for_cm`.
    pub(crate) fn cm_route_resolved(&mut self, _: Instant, _: RouteToken, _: Result<Route, RouteError>) {}

    /// The network says that a destination cannot be reached.
    pub(crate) fn cm_unreachable(&mut self, _now: Instant, _dst: IpAddr, _why: Unreachable) {}

    /// The first packet arrived on a queue pair in RTR.
    pub(crate) fn cm_communication_established(&mut self, _now: Instant, _qpn: Qpn) {}

    /// A queue pair is about to be destroyed.
    pub(crate) fn cm_qp_destroyed(&mut self, _qpn: Qpn) {}
}
