//! Keys that come and go: binding windows, fast-registering regions, and taking them away again.

use everywire_verbs::{Access, FastRegister, LKey, QpType, RKey, SendOp, SendWr, Sge};

use super::end::{KeyStep, Pending, Place};
use super::node::{Door, OPENINGS, Opening, REMOTE_ACCESS, opening_range};
use super::ops::{Built, Kind, Source};
use super::random::pattern;
use super::rig::Rig;
use crate::checkers::Violation;

impl Rig {
    /// Payload behind a fast-register key of the poster's own, now and then. A LOCAL_INV that is posted after it has to wait until it
    /// cannot be sent again.
    pub fn source_behind_key(
        &mut self,
        index: usize,
        side: usize,
        len: usize,
    ) -> Result<Option<Source>, Violation> {
        let end = &self.connections[index].ends[side];
        let (host, node) = (end.host, end.node);
        let mine = |i: &usize| {
            let opening = &self.nodes[host].openings[*i];
            let fast = matches!(opening.door, Door::Fast(_));
            fast && opening.state == Opening::Open && opening.used_by == Some((index, side))
        };
        let choices: Vec<usize> = (0..OPENINGS).filter(mine).collect();
        if choices.is_empty() || self.dice.chance(1, 2) {
            return Ok(None);
        }
        let i = *self.dice.pick(&choices);
        let Some(slot) = self.nodes[host].areas[i + 1].take(&mut self.dice, len, 1) else { return Ok(None) };
        let payload = pattern(self.next_id, len);
        self.nodes[host].write(slot, &payload)?;
        let opening = &mut self.nodes[host].openings[i];
        opening.own_users += 1;
        let inside = (slot.offset - opening_range(i + 1).offset) as u64;
        let sge = Sge { addr: opening.base + inside, length: len as u32, lkey: LKey(opening.key.0) };
        let behind = Some(Place { host, node, area: i + 1, slot });
        Ok(Some(Source { payload, sges: vec![sge], inline: None, slots: Vec::new(), behind }))
    }

    /// A request whose payload was behind a key of its own has ended.
    pub fn left_own_opening(&mut self, place: Place) {
        let node = &mut self.nodes[place.host];
        if node.number == place.node {
            node.areas[place.area].give_back(place.slot);
            let users = &mut node.openings[place.area - 1].own_users;
            *users = users.saturating_sub(1);
        }
    }

    /// A request that opens one of the poster's openings, if one is shut.
    pub fn build_opening(
        &mut self,
        index: usize,
        side: usize,
        kind: Kind,
    ) -> Result<Option<Built>, Violation> {
        let end = &self.connections[index].ends[side];
        let (host, number) = (end.host, end.node);
        let wants_window = kind == Kind::BindMw;
        let fits = |i: &usize| {
            let opening = &self.nodes[host].openings[*i];
            opening.state == Opening::Closed && matches!(opening.door, Door::Window(_)) == wants_window
        };
        let choices: Vec<usize> = (0..OPENINGS).filter(fits).collect();
        if choices.is_empty() || end.qp.ty() != QpType::Rc {
            return Ok(None);
        }
        let i = *self.dice.pick(&choices);
        let range = opening_range(i + 1);
        let zero_based = self.dice.chance(1, 2);
        let iova = 0x7000_0000_0000 + ((i as u64) << 32) + self.dice.below(4096) as u64;
        let cut = self.dice.between(1, range.len - 1);
        let node = &self.nodes[host];
        let (op, key, base) = match &node.openings[i].door {
            Door::Window(window) => {
                let access = REMOTE_ACCESS | if zero_based { Access::ZERO_BASED } else { Access::empty() };
                let bind = window.bind(&node.main, range.offset, range.len as u64, access);
                let base = if zero_based { 0 } else { bind.addr };
                (SendOp::BindMw(bind), bind.new_rkey, base)
            }
            Door::Fast(fast) => {
                let split = range.offset + cut;
                let pages: Vec<Sge> =
                    vec![node.main.sge(range.offset..split), node.main.sge(split..range.offset + range.len)];
                let reg: FastRegister = fast.registration(iova, pages, REMOTE_ACCESS | Access::LOCAL_WRITE);
                let key = reg.new_key;
                (SendOp::FastReg(reg), key, iova)
            }
        };
        let id = self.id();
        let wr = self.flags(SendWr::new(id, op));
        let opening = &mut self.nodes[host].openings[i];
        opening.state = Opening::Asked;
        opening.base = base;
        opening.used_by = Some((index, side));
        let pending = Pending { key: Some((host, number, i, KeyStep::Open(key))), ..Pending::default() };
        Ok(Some(Built::new(kind, wr, pending)))
    }

    /// A request that shuts one again, if nobody is using it.
    pub fn build_local_inv(&mut self, index: usize, side: usize) -> Result<Option<Built>, Violation> {
        let end = &self.connections[index].ends[side];
        let (host, number) = (end.host, end.node);
        let fits = |i: &usize| {
            let opening = &self.nodes[host].openings[*i];
            opening.state == Opening::Open && opening.users == 0 && opening.used_by == Some((index, side))
        };
        let choices: Vec<usize> = (0..OPENINGS).filter(fits).collect();
        if choices.is_empty() {
            return Ok(None);
        }
        let i = *self.dice.pick(&choices);
        let opening = &mut self.nodes[host].openings[i];
        opening.state = Opening::Closing;
        let key: RKey = opening.key;
        let id = self.id();
        let wr = self.flags(SendWr::new(id, SendOp::LocalInv(key)));
        let pending = Pending { key: Some((host, number, i, KeyStep::Shut)), ..Pending::default() };
        Ok(Some(Built::new(Kind::LocalInv, wr, pending)))
    }

    /// An opening of the peer that this end may use.
    pub fn peer_opening(&mut self, index: usize, side: usize) -> Option<(usize, usize)> {
        let peer = &self.connections[index].ends[1 - side];
        let (host, node) = (peer.host, peer.node);
        if !self.is_live(host, node) {
            return None;
        }
        let fits = |i: &usize| {
            let opening = &self.nodes[host].openings[*i];
            opening.state == Opening::Open && opening.used_by == Some((index, 1 - side))
        };
        let choices: Vec<usize> = (0..OPENINGS).filter(fits).collect();
        if choices.is_empty() { None } else { Some((host, *self.dice.pick(&choices))) }
    }
}
