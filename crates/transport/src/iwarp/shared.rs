//! What the halves of an iWARP queue pair share: configuration, state, what start-up agreed on.
//!
//! The requester and the responder read this and never each other. When either meets an error that ends the connection it
//! returns it; the queue pair carries the state change and the TERMINATE message out.

use everywire_wire::{Qpn, RKey};

use super::params::{IwarpConfig, StreamParams};
use crate::ib::attr::{QpConfig, QpState};
use crate::ib::env::QpEnv;
use crate::ib::wr::{Completion, RecvWr, WcOpcode, WcStatus};
use crate::memory::{Access, PdId, RemoteAccess};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: QpConfig,
    pub(super) iwarp: IwarpConfig,
    pub(super) state: QpState,
    /// Set by a modify.
    pub(super) access: Access,
    /// A move to SQD asked for an event once drained.
    pub(super) tell_drained: bool,
    /// Set by `start`.
    pub(super) stream: Option<StreamParams>,
}

impl Shared {
    pub(super) fn new(config: QpConfig, iwarp: IwarpConfig) -> Shared {
        let (state, access) = (QpState::Reset, Access::empty());
        Shared { config, iwarp, state, access, tell_drained: false, stream: None }
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    pub(super) fn pd(&self) -> PdId {
        self.config.pd
    }

    /// READs and atomics outstanding as requester.
    pub(super) fn ord(&self) -> usize {
        self.stream.map_or(0, |s| usize::from(s.ord.min(StreamParams::MAX_DEPTH)))
    }

    /// READs and atomics held as responder.
    pub(super) fn ird(&self) -> usize {
        self.stream.map_or(0, |s| usize::from(s.ird.min(StreamParams::MAX_DEPTH)))
    }

    pub(super) fn remote(&self, rkey: RKey, va: u64, length: u64, need: Access) -> RemoteAccess {
        RemoteAccess { pd: self.pd(), qpn: self.qpn(), rkey, va, length, need }
    }

    /// A receive completion with the fields that are always the same.
    pub(super) fn recv_completion(&self, wr_id: u64) -> Completion {
        Completion::of(wr_id, WcOpcode::Recv, self.qpn(), Qpn::default())
    }

    /// A receive that ends in error or flushed.
    pub(super) fn complete_error<E: QpEnv>(
        &self,
        env: &mut E,
        wr: &RecvWr,
        status: WcStatus,
        vendor_err: u32,
    ) {
        let completion = Completion { status, vendor_err, ..self.recv_completion(wr.wr_id) };
        env.complete(self.config.recv_cq, completion, true);
    }
}
