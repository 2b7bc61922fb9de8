//! The table of multicast groups: their properties, members, LIDs and spanning trees.
//!
//! Read IBTA §15.2.5.17 and RFC 4391 §4 (IPoIB's MGIDs) first. Who may join is [`super::multicast`]'s affair.

use std::collections::BTreeMap;

use everywire_wire::sa::{McMemberRecord, join_state, selector};
use everywire_wire::smp::codes::rate;
use everywire_wire::{Gid, Lid, PKey, QKey};

use super::super::config::{MAX_GROUPS, SmConfig};
use super::super::routing::MulticastTree;
use super::super::setup::FIRST_MLID;

/// Members that keep a group.
pub(super) const KEEPS: u8 = join_state::FULL | join_state::SEND_ONLY_FULL;
/// MTU and rate of a group that the first member does not say: 2048 bytes, 10 Gbit/s, as IPoIB and OpenSM have it.
pub(super) const DEFAULT_MTU: u8 = 4;
pub(super) const DEFAULT_RATE: u8 = 3;
/// IPoIB's Q_Key (RFC 4391 §4.3 leaves it to the manager; OpenSM's).
const IPOIB_QKEY: QKey = QKey(0x0b1b);

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
    pub members: BTreeMap<Gid, u8>,
    pub tree: MulticastTree,
}

impl Group {
    pub fn record(&self, port_gid: Gid, join_state: u8) -> McMemberRecord {
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
    pub fn agrees(&self, want: &McMemberRecord, mask: u64) -> bool {
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
    pub by_mlid: BTreeMap<Lid, Group>,
    mlids: BTreeMap<Gid, Lid>,
    /// Members of all of them.
    pub members: usize,
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
                sl: partition.sl & 15,
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
    pub fn make(&mut self, want: &McMemberRecord) -> Option<Lid> {
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
    pub fn make_up(&mut self, scope: u8) -> Gid {
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
    pub fn remove(&mut self, mlid: Lid, port: Gid, bits: u8) -> bool {
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
