//! Multicast groups: made by the first full member, kept while there is one, each with a LID and a spanning tree.
//!
//! Read IBTA §15.2.5.17 (MCMemberRecord: making, joining, leaving) and RFC 4391 §5 (IPoIB's broadcast group) first. A join
//! of a group that is there must agree with it in what it names; one that is not there is made only where the request says
//! all that a group needs. Send-only members are in no switch's output, but their switch is in the tree.

use std::time::Instant;

use everywire_wire::mad::method::GET;
use everywire_wire::notice::trap;
use everywire_wire::sa::{McMemberRecord, SaMad, join_state, selector, status};
use everywire_wire::smp::codes::rate;
use everywire_wire::{Gid, Lid};

use super::super::config::{MAX_GROUPS, MAX_MEMBERS};
use super::super::inventory::Owner;
use super::super::routing;
use super::super::sweep::Phase;
use super::groups::{DEFAULT_MTU, DEFAULT_RATE, Group, KEEPS};
use super::path::rate_of;
use super::{Answer, GsiAddress, Records, Sm};

/// Members that receive.
const RECEIVES: u8 = join_state::FULL | join_state::NON;
/// Scope of groups that the manager makes up an MGID for, unless another is asked for.
const LINK_LOCAL_SCOPE: u8 = 2;

impl Sm {
    /// SubnAdmSet(MCMemberRecord): joins, and makes the group where that is asked for and possible.
    pub(super) fn join(&mut self, now: Instant, from: GsiAddress, request: &SaMad) -> Answer {
        let (want, mask) = self.membership(from, request)?;
        let owner = self.port_of_gid(want.port_gid).ok_or(status::REQ_INVALID_GID)?;
        let existing = self.sa.groups.by_mgid(want.mgid);
        let mlid = match existing {
            Some(group) if !group.agrees(&want, mask) || !self.reaches(owner, group) => {
                return Err(status::REQ_INVALID);
            }
            Some(group) => group.mlid,
            None => self.make_group(now, owner, want, mask)?,
        };
        let groups = &mut self.sa.groups;
        let group = groups.by_mlid.get_mut(&mlid).ok_or(status::NO_RESOURCES)?;
        if !group.members.contains_key(&want.port_gid) {
            if groups.members >= MAX_MEMBERS {
                return Err(status::NO_RESOURCES);
            }
            groups.members += 1;
        }
        let state = group.members.entry(want.port_gid).or_insert(0);
        let (before, state) = (std::mem::replace(state, *state | want.join_state), *state | want.join_state);
        let record = group.record(want.port_gid, state);
        let receives = state & RECEIVES != 0;
        if before == 0 || before & RECEIVES == 0 && receives {
            if let Some((index, _)) = self.map.endports.get(&want.port_gid.interface_id()) {
                group.tree.add(&self.map.graph, *index, receives);
            }
            self.write_tree(mlid);
        }
        Ok(Records::one(&record))
    }

    /// SubnAdmDelete(MCMemberRecord): leaves.
    pub(super) fn leave(&mut self, now: Instant, from: GsiAddress, request: &SaMad) -> Answer {
        let (want, _) = self.membership(from, request)?;
        let group = self.sa.groups.by_mgid(want.mgid).ok_or(status::REQ_INVALID)?;
        let state = *group.members.get(&want.port_gid).ok_or(status::REQ_INVALID)?;
        if state & want.join_state == 0 {
            return Err(status::REQ_INVALID);
        }
        let (mlid, record) = (group.mlid, group.record(want.port_gid, state & !want.join_state));
        if self.sa.groups.remove(mlid, want.port_gid, want.join_state) {
            self.report_gid(now, trap::MULTICAST_GROUP_DELETED, want.mgid);
        }
        self.grow_tree(mlid);
        self.write_tree(mlid);
        Ok(Records::one(&record))
    }

    /// What a request to join or leave is about. Nobody joins for a port of another partition, nor for another port unless
    /// trusted (IBTA §15.4.1.2).
    fn membership(&self, from: GsiAddress, request: &SaMad) -> Result<(McMemberRecord, u64), u16> {
        let mask = request.component_mask;
        let want = McMemberRecord::parse(&request.data).map_err(|_| status::REQ_INVALID)?;
        let needed = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        // An MGID of zero, named or not, asks for one to be made up.
        let needed = if want.mgid.is_zero() { needed & !McMemberRecord::MGID } else { needed };
        if mask & needed != needed {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        if !want.mgid.is_zero() && want.mgid.0[0] != 0xff {
            return Err(status::REQ_INVALID_GID);
        }
        if want.join_state == 0 {
            return Err(status::REQ_INVALID);
        }
        let asker = self.map.owner(from.lid);
        let owner = self.port_of_gid(want.port_gid).ok_or(status::REQ_INVALID_GID)?;
        if asker != Some(owner) && !self.trusts(request) {
            return Err(status::REQ_DENIED);
        }
        Ok((McMemberRecord { port_gid: self.port_gid(owner), ..want }, mask))
    }

    fn port_gid(&self, owner: Owner) -> Gid {
        self.known.port(owner.node, owner.port).map_or(Gid::ZERO, |port| self.gid(port.guid))
    }

    /// Whether a port is in the group's partition and its link is good enough.
    fn reaches(&self, owner: Owner, group: &Group) -> bool {
        let Some(port) = self.known.port(owner.node, owner.port) else { return false };
        let member = |p: &super::super::Partition| p.key_of(port.guid).is_some();
        let mut partitions = self.config.partitions.iter().filter(|p| p.pkey & 0x7fff == group.pkey.base());
        let linked = owner.port > 0;
        partitions.any(member)
            && (!linked || port.info.neighbor_mtu >= group.mtu)
            && (!linked || rate::megabits(rate_of(port)) >= rate::megabits(group.rate))
    }

    fn make_group(
        &mut self,
        now: Instant,
        owner: Owner,
        mut want: McMemberRecord,
        mask: u64,
    ) -> Result<Lid, u16> {
        if mask & McMemberRecord::CREATE != McMemberRecord::CREATE {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        if want.join_state & KEEPS == 0 {
            return Err(status::REQ_INVALID);
        }
        let port = self.known.port(owner.node, owner.port).ok_or(status::REQ_INVALID_GID)?;
        let named = |selector: u64, value: u64| mask & selector != 0 && mask & value != 0;
        let (mtu, rate) = (port.info.neighbor_mtu.max(1), rate_of(port));
        want.mtu = match (named(McMemberRecord::MTU_SELECTOR, McMemberRecord::MTU), want.mtu_selector) {
            (false, _) => mtu.min(DEFAULT_MTU),
            (_, selector::EXACTLY) => want.mtu,
            (_, selector::LARGEST) => mtu,
            (_, selector::GREATER) => want.mtu.saturating_add(1),
            _ => want.mtu.saturating_sub(1),
        };
        want.rate = match (named(McMemberRecord::RATE_SELECTOR, McMemberRecord::RATE), want.rate_selector) {
            (false, _) => DEFAULT_RATE,
            (_, selector::EXACTLY) => want.rate,
            _ => rate,
        };
        if !named(McMemberRecord::LIFE_TIME_SELECTOR, McMemberRecord::LIFE_TIME) || want.life_time == 0 {
            want.life_time = self.config.subnet_timeout;
        }
        if !(1..=5).contains(&want.mtu) || rate::megabits(want.rate) == 0 {
            return Err(status::REQ_INVALID);
        }
        let cap = self.known.nodes.values().filter_map(|n| n.switch.map(|s| s.multicast_fdb_cap)).min();
        if self.sa.groups.by_mlid.len() >= cap.map_or(MAX_GROUPS, usize::from) {
            return Err(status::NO_RESOURCES);
        }
        if want.mgid.is_zero() {
            let scope = if mask & McMemberRecord::SCOPE != 0 { want.scope } else { LINK_LOCAL_SCOPE };
            want.mgid = self.sa.groups.make_up(scope);
        }
        let mlid = self.sa.groups.make(&want).ok_or(status::NO_RESOURCES)?;
        let group = &self.sa.groups.by_mlid[&mlid];
        if !self.reaches(owner, group) {
            self.sa.groups.remove(mlid, Gid::ZERO, 0);
            return Err(status::REQ_INVALID);
        }
        self.report_gid(now, trap::MULTICAST_GROUP_CREATED, want.mgid);
        Ok(mlid)
    }

    /// The group's tree over its present members.
    pub(super) fn grow_tree(&mut self, mlid: Lid) {
        let Some(group) = self.sa.groups.by_mlid.get_mut(&mlid) else { return };
        let members = group.members.iter().filter_map(|(gid, state)| {
            let (index, _) = self.map.endports.get(&gid.interface_id())?;
            Some((*index, state & RECEIVES != 0))
        });
        group.tree = routing::tree(&self.map.graph, members);
    }

    /// A group has changed: so do the tables of the switches, unless a sweep will write them anyway.
    fn write_tree(&mut self, mlid: Lid) {
        if !matches!(self.phase, Phase::Discovery | Phase::Managers) {
            self.set_multicast_tables(Some(mlid));
        }
    }

    /// Answers a query for membership.
    pub(super) fn member_records(&self, request: &SaMad) -> Answer {
        let trusted = self.trusts(request);
        // A port's own membership is no secret.
        let named = request.component_mask & McMemberRecord::PORT_GID != 0;
        if request.header.method == GET && request.component_mask == 0 {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        Records::matching(request, self.sa.groups.records(trusted || named))
    }
}
