//! Multicast groups: made by the first full member, kept while there is one, each with a LID and a spanning tree.
//!
//! Read IBTA §15.2.5.17 (MCMemberRecord: making, joining, leaving) and RFC 4391 §5 (IPoIB's broadcast group) first. A join
//! of a group that is there must agree with it in what it names; one that is not there is made only where the request says
//! all that a group needs. Send-only members are in no switch's output, but their switch is in the tree.

use std::collections::BTreeMap;
use std::time::Instant;

use everywire_wire::mad::method::GET;
use everywire_wire::notice::trap;
use everywire_wire::sa::{McMemberRecord, SaMad, join_state, selector, status};
use everywire_wire::smp::codes::rate;
use everywire_wire::{Gid, Lid, PKey, QKey};

use super::super::config::{MAX_GROUPS, MAX_MEMBERS, SmConfig};
use super::super::inventory::Owner;
use super::super::routing::{self, MulticastTree};
use super::super::setup::FIRST_MLID;
use super::super::sweep::Phase;
use super::path::rate_of;
use super::{Answer, GsiAddress, Records, Sm};

/// Members that receive.
const RECEIVES: u8 = join_state::FULL | join_state::NON;
/// Members that keep a group.
const KEEPS: u8 = join_state::FULL | join_state::SEND_ONLY_FULL;
/// MTU and rate of a group that the first member does not say: 2048 bytes, 10 Gbit/s, as IPoIB and OpenSM have it.
const DEFAULT_MTU: u8 = 4;
const DEFAULT_RATE: u8 = 3;
/// IPoIB's Q_Key (RFC 4391 §4.3 leaves it to the manager; OpenSM's).
const IPOIB_QKEY: QKey = QKey(0x0b1b);
/// Hop limit "as far as it goes".
const LINK_LOCAL_SCOPE: u8 = 2;

/// A group.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub mlid: Lid,
    pub mgid: Gid,
    pub qkey: QKey,
    pub pkey: PKey,
    pub mtu: u8,
    pub rate: u8,
    pub life_time: u8,
    pub sl: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    /// Stays when nobody is left.
    stays: bool,
    /// JoinState bits by port GID.
    members: BTreeMap<Gid, u8>,
    tree: MulticastTree,
}

impl Group {
    fn record(&self, port_gid: Gid, join_state: u8) -> McMemberRecord {
        McMemberRecord {
            mgid: self.mgid,
            port_gid,
            qkey: self.qkey,
            mlid: self.mlid,
            mtu_selector: selector::EXACTLY,
            mtu: self.mtu,
            traffic_class: self.traffic_class,
            pkey: self.pkey,
            rate_selector: selector::EXACTLY,
            rate: self.rate,
            life_time_selector: selector::EXACTLY,
            life_time: self.life_time,
            sl: self.sl,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            scope: self.mgid.0[1] & 15,
            join_state,
            ..McMemberRecord::default()
        }
    }

    /// Whether a request agrees with the group in every component that it names (IBTA §15.2.5.17.3).
    fn agrees(&self, want: &McMemberRecord, mask: u64) -> bool {
        let same = |component: u64, same: bool| mask & component == 0 || same;
        same(McMemberRecord::QKEY, want.qkey == self.qkey)
            && same(McMemberRecord::PKEY, want.pkey.base() == self.pkey.base())
            && same(McMemberRecord::MLID, want.mlid == self.mlid)
            && same(McMemberRecord::SL, want.sl == self.sl)
            && same(McMemberRecord::TRAFFIC_CLASS, want.traffic_class == self.traffic_class)
            && same(McMemberRecord::FLOW_LABEL, want.flow_label == self.flow_label)
            && same(McMemberRecord::HOP_LIMIT, want.hop_limit == self.hop_limit)
            && same(McMemberRecord::SCOPE, want.scope == self.mgid.0[1] & 15)
            && compares(want.mtu_selector, self.mtu.into(), want.mtu.into(), mask >> 4 & 3 == 3)
            && compares(
                want.rate_selector,
                rate::megabits(self.rate),
                rate::megabits(want.rate),
                mask >> 8 & 3 == 3,
            )
            && compares(
                want.life_time_selector,
                self.life_time.into(),
                want.life_time.into(),
                mask >> 10 & 3 == 3,
            )
    }
}

fn compares(how: u8, has: u32, asked: u32, named: bool) -> bool {
    !named
        || match how {
            selector::GREATER => has > asked,
            selector::LESS => has < asked,
            selector::EXACTLY => has == asked,
            _ => true,
        }
}

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    by_mlid: BTreeMap<Lid, Group>,
    mlids: BTreeMap<Gid, Lid>,
    members: usize,
    /// For MGIDs that the manager makes up.
    made_up: u64,
}

impl Groups {
    /// With IPoIB's broadcast groups of the partitions that want one.
    pub fn new(config: &SmConfig) -> Groups {
        let mut groups = Groups { by_mlid: BTreeMap::new(), mlids: BTreeMap::new(), members: 0, made_up: 0 };
        for partition in config.partitions.iter().filter(|partition| partition.ipoib) {
            let pkey = PKey(partition.pkey | 0x8000);
            let [high, low] = pkey.0.to_be_bytes();
            // RFC 4391 §4: ff12:401b:<P_Key>::ffff:ffff.
            let mgid = Gid([0xff, 0x12, 0x40, 0x1b, high, low, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
            let want = McMemberRecord {
                mgid,
                pkey,
                qkey: IPOIB_QKEY,
                mtu: DEFAULT_MTU,
                rate: DEFAULT_RATE,
                life_time: config.subnet_timeout,
                ..McMemberRecord::default()
            };
            if let Some(mlid) = groups.make(&want)
                && let Some(group) = groups.by_mlid.get_mut(&mlid)
            {
                group.stays = true;
            }
        }
        groups
    }

    pub fn by_mgid(&self, mgid: Gid) -> Option<&Group> {
        self.by_mlid.get(self.mlids.get(&mgid)?)
    }

    pub fn trees(&self) -> impl Iterator<Item = (Lid, &MulticastTree)> {
        self.by_mlid.values().map(|group| (group.mlid, &group.tree))
    }

    /// A new group without members; `None` where there is no multicast LID left.
    fn make(&mut self, want: &McMemberRecord) -> Option<Lid> {
        if self.by_mlid.len() >= MAX_GROUPS {
            return None;
        }
        let mlid = (FIRST_MLID..).map(Lid).find(|mlid| !self.by_mlid.contains_key(mlid))?;
        let group = Group {
            mlid,
            mgid: want.mgid,
            qkey: want.qkey,
            pkey: PKey(want.pkey.0 | 0x8000),
            mtu: want.mtu,
            rate: want.rate,
            life_time: want.life_time,
            sl: want.sl,
            flow_label: want.flow_label,
            hop_limit: want.hop_limit,
            traffic_class: want.traffic_class,
            stays: false,
            members: BTreeMap::new(),
            tree: MulticastTree::default(),
        };
        self.mlids.insert(group.mgid, mlid);
        self.by_mlid.insert(mlid, group);
        Some(mlid)
    }

    /// An MGID that is not in use: of transient scope, with the signature of manager-made ones (IBTA §4.1.1).
    fn make_up(&mut self, scope: u8) -> Gid {
        loop {
            self.made_up += 1;
            let mut gid = [0xff, 0x10 | scope & 15, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            gid[8..].copy_from_slice(&self.made_up.to_be_bytes());
            if !self.mlids.contains_key(&Gid(gid)) {
                return Gid(gid);
            }
        }
    }

    /// Takes JoinState bits away from a member, and the group with its last keeper. `true`: the group is gone.
    fn remove(&mut self, mlid: Lid, port: Gid, bits: u8) -> bool {
        let Some(group) = self.by_mlid.get_mut(&mlid) else { return false };
        if let Some(state) = group.members.get_mut(&port) {
            *state &= !bits;
            if *state == 0 {
                group.members.remove(&port);
                self.members -= 1;
            }
        }
        let kept = group.stays || group.members.values().any(|state| state & KEEPS != 0);
        if !kept {
            self.members -= group.members.len();
            self.mlids.remove(&group.mgid);
            self.by_mlid.remove(&mlid);
        }
        !kept
    }

    /// Takes ports out of all groups, and tells the groups that end by it.
    pub fn remove_ports(&mut self, gone: &[Gid]) -> Vec<Gid> {
        let mut ended = Vec::new();
        for (mlid, mgid) in self.by_mlid.values().map(|g| (g.mlid, g.mgid)).collect::<Vec<_>>() {
            for gid in gone {
                if self.by_mlid.get(&mlid).is_some_and(|group| group.members.contains_key(gid))
                    && self.remove(mlid, *gid, u8::MAX)
                {
                    ended.push(mgid);
                }
            }
        }
        ended
    }

    /// A record a member, or one a group for those who are not trusted to see members.
    pub fn records(&self, trusted: bool) -> impl Iterator<Item = McMemberRecord> {
        self.by_mlid.values().flat_map(move |group| {
            let all = group.members.values().fold(0, |all, state| all | state);
            let members = group.members.iter().filter(move |_| trusted).map(|(gid, state)| (*gid, *state));
            let whole = (!trusted).then_some((Gid::ZERO, all));
            members.chain(whole).map(|(gid, state)| group.record(gid, state))
        })
    }
}

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
        *state |= want.join_state;
        let state = *state;
        let record = group.record(want.port_gid, state);
        self.regrow(mlid);
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
        self.regrow(mlid);
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
        if asker != Some(owner) && request.sm_key != self.config.sm_key {
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

    /// A group has changed: its tree, and the tables of the switches unless a sweep will write them anyway.
    fn regrow(&mut self, mlid: Lid) {
        self.grow_tree(mlid);
        if !matches!(self.phase, Phase::Discovery | Phase::Managers) {
            self.set_multicast_tables(Some(mlid));
        }
    }

    /// Answers a query for membership.
    pub(super) fn member_records(&self, request: &SaMad) -> Answer {
        let trusted = request.sm_key == self.config.sm_key && request.sm_key != 0;
        // A port's own membership is no secret.
        let named = request.component_mask & McMemberRecord::PORT_GID != 0;
        if request.header.method == GET && request.component_mask == 0 {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        Records::matching(request, self.sa.groups.records(trusted || named))
    }
}
