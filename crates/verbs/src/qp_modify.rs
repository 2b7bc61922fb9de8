//! Changes of a queue pair's attributes, and what of the device goes with them: windows of peers, entries of the partition
//! table, last words before a RESET.
//!
//! Read IBTA vol. 1 §11.2.5.2 and §10.9.2. Which attributes are allowed when is the transport's table.

use everywire_transport::ib::{self, QpAttr};
use everywire_wire::Qpn;

use crate::state::State;

impl State {
    /// Changes a queue pair's attributes.
    pub(crate) fn modify(&mut self, qpn: Qpn, attr: &QpAttr) -> Option<Result<(), ib::ModifyError>> {
        let slot = self.qps.slot(qpn)?;
        if attr.path.as_ref().is_some_and(|path| self.lacks_grh(path)) {
            let what = "a path into another subnet without a GRH: LIDs mean nothing beyond a router";
            return Some(Err(ib::ModifyError::Unsupported { what }));
        }
        if attr.path.as_ref().is_some_and(|path| self.has_foreign_slid(path)) {
            let what = "a source LID that is not the port's: path bits are below 2^LMC";
            return Some(Err(ib::ModifyError::Unsupported { what }));
        }
        if let Some(index) = attr.pkey_index
            && self.ib.is_some()
        {
            return self.modify_with_pkey(slot, qpn, index, attr);
        }
        self.modify_slot(slot, qpn, attr)
    }

    /// The same on InfiniBand, where the partition table has several entries and the subnet manager fills it.
    fn modify_with_pkey(
        &mut self,
        slot: u32,
        qpn: Qpn,
        index: u16,
        attr: &QpAttr,
    ) -> Option<Result<(), ib::ModifyError>> {
        let Some(pkey) = self.pkey_at(index) else {
            return Some(Err(ib::ModifyError::Unsupported { what: "a P_Key index without a partition" }));
        };
        let result = self.modify_slot(slot, qpn, &QpAttr { pkey_index: Some(0), ..attr.clone() })?;
        if result.is_ok()
            && let Some(qp) = self.qps.at(slot).and_then(|entry| entry.qp.ib())
        {
            qp.set_pkey(index, pkey);
        }
        Some(result)
    }

    fn modify_slot(&mut self, slot: u32, qpn: Qpn, attr: &QpAttr) -> Option<Result<(), ib::ModifyError>> {
        if attr.state == Some(ib::QpState::Reset) {
            self.keep_last_words(slot);
            self.drop_stream(slot);
        }
        let result = self.with_slot(slot, |qp, core| qp.modify(core, attr))?;
        if matches!(attr.state, Some(ib::QpState::Err | ib::QpState::Reset)) {
            self.cm_qp_taken(qpn);
        }
        let Some(entry) = self.qps.at(slot) else { return Some(result) };
        let peer = match entry.qp.config().ty {
            ib::QpType::Ud => None,
            ib::QpType::Rc | ib::QpType::Uc => entry.qp.query().path.map(|path| path.dst),
        };
        let before = std::mem::replace(&mut entry.peer, peer);
        if before != peer {
            // In this order, so that a window that stays in use is kept.
            peer.inspect(|&ip| self.core.windows.add_user(ip));
            before.inspect(|&ip| self.core.windows.remove_user(ip, qpn));
        }
        Some(result)
    }
}
