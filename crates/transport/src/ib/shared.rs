//! What the two halves of a queue pair share: its configuration, its state and its attributes in ready-to-use form.
//!
//! The requester and the responder read this and never each other. When either meets an error that ends the connection
//! it leaves a [`fault`](Shared::raise); the queue pair carries the state change out once the call at hand is done.

use std::net::IpAddr;

use everywire_wire::{Bth, Mtu, Opcode, PKey, Psn, QKey, Qpn, RocePacket};

use super::attr::{QpAttr, QpConfig, QpState, QpType};
use super::path::Path;
use super::qp_state::StateEvent;
use crate::memory::{Access, PdId};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: QpConfig,
    pub(super) state: QpState,
    /// Everything that was set, for query.
    pub(super) attr: QpAttr,
    pub(super) path: Path,
    /// Payload bytes of a full packet.
    pub(super) mtu: usize,
    pub(super) dest_qp: Qpn,
    pub(super) access: Access,
    pub(super) qkey: QKey,
    pub(super) max_rd_atomic: usize,
    pub(super) max_dest_rd_atomic: usize,
    pub(super) min_rnr_timer: u8,
    /// A packet came while in RTR, and the consumer was told.
    pub(super) heard: bool,
    /// An error that changes the state after this call.
    pub(super) fault: Option<StateEvent>,
}

impl Shared {
    pub(super) fn new(config: QpConfig) -> Shared {
        let nowhere = IpAddr::from([0, 0, 0, 0]);
        let mtu = config.port_mtu.bytes();
        Shared {
            config,
            state: QpState::Reset,
            attr: QpAttr::default(),
            path: Path::new(nowhere, nowhere, super::path::FIRST_SOURCE_PORT),
            mtu,
            dest_qp: Qpn::default(),
            access: Access::empty(),
            qkey: QKey::default(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            heard: false,
            fault: None,
        }
    }

    /// Takes over what a checked modify carries.
    pub(super) fn apply(&mut self, new: &QpAttr) {
        macro_rules! take {
            ($($field:ident),*) => { $(if new.$field.is_some() { self.attr.$field = new.$field; })* };
        }
        take!(access, pkey_index, port, qkey, path, path_mtu, timeout, retry_cnt, rnr_retry, rq_psn);
        take!(max_rd_atomic, min_rnr_timer, sq_psn, max_dest_rd_atomic, path_mig_state, dest_qp);
        if self.state == QpState::Rts && new.state == Some(QpState::Sqd) {
            self.attr.en_sqd_async_notify = Some(new.en_sqd_async_notify.unwrap_or(false));
        }
        let set = &self.attr;
        self.path = set.path.unwrap_or(self.path);
        self.mtu = set.path_mtu.map_or(self.mtu, Mtu::bytes);
        self.dest_qp = set.dest_qp.unwrap_or(self.dest_qp);
        self.access = set.access.unwrap_or(self.access);
        self.qkey = set.qkey.unwrap_or(self.qkey);
        self.max_rd_atomic = usize::from(set.max_rd_atomic.unwrap_or(0));
        self.max_dest_rd_atomic = usize::from(set.max_dest_rd_atomic.unwrap_or(0));
        self.min_rnr_timer = set.min_rnr_timer.unwrap_or(0);
    }

    pub(super) fn ty(&self) -> QpType {
        self.config.ty
    }

    pub(super) fn is_rc(&self) -> bool {
        self.config.ty == QpType::Rc
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    pub(super) fn pd(&self) -> PdId {
        self.config.pd
    }

    pub(super) fn pkey(&self) -> PKey {
        self.config.pkey
    }

    /// Leaves an error for the queue pair to act on. The first one counts.
    pub(super) fn raise(&mut self, fault: StateEvent) {
        self.fault.get_or_insert(fault);
    }

    /// A packet to the peer with nothing but a BTH.
    pub(super) fn packet(&self, opcode: Opcode, psn: Psn) -> RocePacket<'static> {
        let bth = Bth {
            opcode,
            // IBTA §17.2.8 and cases RX-09: MigReq is 1 in the migrated state, the only one there is here.
            mig_req: true,
            pkey: self.pkey(),
            dest_qp: self.dest_qp,
            psn,
            ..Bth::default()
        };
        RocePacket { bth, ..RocePacket::default() }
    }
}
