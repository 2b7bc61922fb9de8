//! The queue pair.
use std::time::Instant;

use everywire_wire::{Qpn, RocePacket};

use super::attr::{QpAttr, QpConfig, QpState};
use super::burst::Burst;
use super::env::QpEnv;
use super::packet::PacketMeta;
use super::qp_state::{ModifyError, check_modify};
use super::wr::{PostError, RecvWr, SendWr};

/// A queue pair of any service. See the module for how it is driven.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    state: QpState,
    attr: QpAttr,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Qp {
        Qp { config, state: QpState::Reset, attr: QpAttr::default() }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// What it was made with.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Changes attributes and state, as one step: on an error nothing has changed. Like posting it needs no time: a program
    /// calls it, and what waits for time starts to when the driver comes by.
    pub fn modify<E: QpEnv>(&mut self, env: &mut E, attr: &QpAttr) -> Result<(), ModifyError> {
        let _ = env;
        self.state = check_modify(self.config.ty, self.state, attr)?;
        Ok(())
    }

    /// Every attribute that has been set.
    pub fn query(&self) -> QpAttr {
        self.attr.clone()
    }

    /// Queues a send. In ERR it completes at once, flushed, in order.
    pub fn post_send<E: QpEnv>(&mut self, env: &mut E, wr: SendWr) -> Result<(), PostError> {
        let _ = (env, wr);
        Err(PostError::WrongState { state: self.state, what: "send" })
    }

    /// Queues a receive. In ERR it completes at once, flushed, in order.
    pub fn post_recv<E: QpEnv>(&mut self, env: &mut E, wr: RecvWr) -> Result<(), PostError> {
        let _ = (env, wr);
        Err(PostError::WrongState { state: self.state, what: "receive" })
    }

    /// A packet for this queue pair, its ICRC checked.
    pub fn handle_packet<E: QpEnv>(
        &mut self,
        env: &mut E,
        now: Instant,
        packet: &RocePacket<'_>,
        meta: &PacketMeta,
    ) {
        let _ = (env, now, packet, meta);
    }

    /// Fills `burst` (cleared first) with the next packets to send; false if there are none now. Call until false.
    pub fn poll_transmit<E: QpEnv>(&mut self, env: &mut E, now: Instant, burst: &mut Burst) -> bool {
        let _ = (env, now);
        burst.clear();
        false
    }

    /// When to call [`Qp::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Time has passed.
    pub fn handle_timeout<E: QpEnv>(&mut self, env: &mut E, now: Instant) {
        let _ = (env, now);
    }

    /// Moves it to ERR for a reason of the device (a completion queue that overflowed): raises QP_FATAL and flushes.
    pub fn fail<E: QpEnv>(&mut self, env: &mut E) {
        let _ = env;
    }

    /// To be called before it is dropped: gives its share of windows back. Nothing is completed (IBTA C10-19).
    pub fn close<E: QpEnv>(&mut self, env: &mut E) {
        let _ = env;
    }
}
