//! A queue pair of either transport, dispatched statically.
//!
//! What both have is here under one name. The rest each wire's own code asks for with [`AnyQp::ib`]: a packet for a queue
//! pair that is no InfiniBand transport's does not exist, since the device has one wire.

use std::time::Instant;

use everywire_transport::ib::{
    self, ModifyError, PostError, QpAttr, QpConfig, QpEnv, QpState, RecvWr, SendWr,
};
use everywire_transport::iwarp::{self, IwarpConfig};

use crate::config::{DeviceConfig, IwarpOptions, Wire};

/// A queue pair of the transport that the device's wire has.
#[expect(clippy::large_enum_variant, reason = "a box costs every packet of the larger a look elsewhere")]
pub(crate) enum AnyQp {
    /// InfiniBand's transport: RoCE and InfiniBand.
    Ib(ib::Qp),
    /// RDMAP: iWARP.
    Iwarp(iwarp::Qp),
}

macro_rules! each {
    ($self:expr, $qp:ident => $call:expr) => {
        match $self {
            AnyQp::Ib($qp) => $call,
            AnyQp::Iwarp($qp) => $call,
        }
    };
}

impl AnyQp {
    /// A queue pair of the transport that this device's wire has.
    pub(crate) fn new(device: &DeviceConfig, config: QpConfig) -> AnyQp {
        match device.wire {
            Wire::Iwarp => {
                let DeviceConfig { iwarp: IwarpOptions { rfc7306, strict_read_sink, .. }, .. } = *device;
                AnyQp::Iwarp(iwarp::Qp::new(config, IwarpConfig { rfc7306, strict_read_sink }))
            }
            Wire::RoceV2 | Wire::RoceV1 | Wire::InfiniBand => AnyQp::Ib(ib::Qp::new(config)),
        }
    }

    /// What it was made with.
    #[inline]
    pub(crate) fn config(&self) -> &QpConfig {
        each!(self, qp => qp.config())
    }

    /// Its state.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        each!(self, qp => qp.state())
    }

    /// Every attribute that has been set.
    pub(crate) fn query(&self) -> QpAttr {
        each!(self, qp => qp.query())
    }

    /// Changes attributes and state.
    pub(crate) fn modify<E: QpEnv>(&mut self, env: &mut E, attr: &QpAttr) -> Result<(), ModifyError> {
        each!(self, qp => qp.modify(env, attr))
    }

    /// Queues a send.
    #[inline]
    pub(crate) fn post_send<E: QpEnv>(&mut self, env: &mut E, wr: SendWr) -> Result<(), PostError> {
        each!(self, qp => qp.post_send(env, wr))
    }

    /// Queues a receive.
    #[inline]
    pub(crate) fn post_recv<E: QpEnv>(&mut self, env: &mut E, wr: RecvWr) -> Result<(), PostError> {
        each!(self, qp => qp.post_recv(env, wr))
    }

    /// To ERR for a reason of the device.
    pub(crate) fn fail<E: QpEnv>(&mut self, env: &mut E) {
        each!(self, qp => qp.fail(env));
    }

    /// The end: nothing completes any more.
    pub(crate) fn close<E: QpEnv>(&mut self, env: &mut E) {
        each!(self, qp => qp.close(env));
    }

    /// When it wants to be called.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        each!(self, qp => qp.poll_timeout())
    }

    /// Time has passed.
    pub(crate) fn handle_timeout<E: QpEnv>(&mut self, env: &mut E, now: Instant) {
        each!(self, qp => qp.handle_timeout(env, now));
    }

    /// The queue pair of InfiniBand's transport, if it is one.
    #[inline]
    pub(crate) fn ib(&mut self) -> Option<&mut ib::Qp> {
        match self {
            AnyQp::Ib(qp) => Some(qp),
            AnyQp::Iwarp(_) => None,
        }
    }

    /// The queue pair of iWARP's transport, if it is one.
    #[inline]
    pub(crate) fn iwarp(&mut self) -> Option<&mut iwarp::Qp> {
        match self {
            AnyQp::Iwarp(qp) => Some(qp),
            AnyQp::Ib(_) => None,
        }
    }
}
