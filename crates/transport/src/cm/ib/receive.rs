//! The way in: a MAD is parsed, its connection found, the message handed to its half of the protocol.
//!
//! Nothing a peer sends can do more than change its own connection or a counter. Read first: IBTA volume 1 §13.4.3 (common
//! MAD header) and §12.6 (messages).

use std::time::Instant;

use everywire_wire::cm::{CLASS_VERSION, CmMad, CmMessage, Mra, RejReason};

use super::message::{self, NotForUs};
use super::state::{Act, Input, step};
use super::types::CommId;
use super::{Cm, MadPath};
use crate::mad::MAD_LEN;

impl Cm {
    /// Takes a MAD that arrived on QP1.
    pub fn handle_mad(&mut self, now: Instant, from: MadPath, mad: &[u8; MAD_LEN]) {
        self.counters.received += 1;
        let CmMad { header, message } = match message::parse(mad) {
            Ok(parsed) => parsed,
            Err(NotForUs::Foreign) => {
                self.counters.foreign += 1;
                return;
            }
            Err(NotForUs::Malformed) => {
                self.counters.malformed += 1;
                return;
            }
        };
        let tid = header.transaction_id;
        match message {
            CmMessage::Req(req) if header.class_version != CLASS_VERSION => {
                self.counters.foreign += 1;
                self.refuse(from, tid, &req, RejReason::InvalidClassVersion, &[]);
            }
            CmMessage::Req(req) => self.on_req(now, from, tid, &req),
            CmMessage::Mra(mra) => self.on_mra(now, from, &mra),
            CmMessage::Rej(rej) => self.on_rej(now, from, &rej),
            CmMessage::Rep(rep) => self.on_rep(now, from, tid, &rep),
            CmMessage::Rtu(rtu) => self.on_rtu(now, from, &rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(now, from, tid, &dreq),
            CmMessage::Drep(drep) => self.on_drep(now, from, &drep),
            CmMessage::Lap(lap) => self.on_lap(from, tid, &lap),
            // We never send LAP.
            CmMessage::Apr(_) => self.counters.unexpected += 1,
            CmMessage::SidrReq(req) => self.on_sidr_req(now, from, tid, &req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(from, &rep),
        }
    }

    /// The connection of which both ids are right and the source is its peer.
    pub(super) fn pair(&self, from: &MadPath, ours: u32, theirs: u32) -> Option<CommId> {
        let conn = self.conns.get(CommId(ours))?;
        (Cm::same_peer(conn, from) && conn.remote_id == Some(theirs)).then_some(conn.id)
    }

    /// As [`Cm::pair`], and counts why there is none.
    pub(super) fn find_pair(&mut self, from: &MadPath, ours: u32, theirs: u32) -> Option<CommId> {
        let found = self.pair(from, ours, theirs);
        if found.is_none() {
            match self.conns.get(CommId(ours)) {
                Some(conn) if !Cm::same_peer(conn, from) => self.counters.wrong_source += 1,
                _ => self.counters.stray += 1,
            }
        }
        found
    }

    fn on_mra(&mut self, now: Instant, from: MadPath, mra: &Mra) {
        let ours = CommId(mra.remote_comm_id);
        let input = match mra.message_mraed {
            message::OF_REQ => Input::MraOfReq,
            message::OF_REP => Input::MraOfRep,
            // MRA of LAP: we send none.
            _ => {
                self.counters.unexpected += 1;
                return;
            }
        };
        // The MRA of a REQ is the first we hear of the peer's id.
        let found = match self.conns.get(ours) {
            Some(conn) if input == Input::MraOfReq && Cm::same_peer(conn, &from) => Some(conn.id),
            _ => self.find_pair(&from, mra.remote_comm_id, mra.local_comm_id),
        };
        let Some(id) = found else { return };
        let Some(state) = self.state(id) else { return };
        let step = step(state, input);
        match step.act {
            Act::WaitLonger => self.wait_longer(now, id, mra.service_timeout, step.next),
            _ => self.counters.unexpected += 1,
        }
    }
}
